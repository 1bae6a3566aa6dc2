"""Approval by rule: what a rule matches, what it never matches, and what a month holds."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from owner_scene import MakeScene, OwnerCommands, Scene
from rule_texts import key_line, rule_for

from dpdpca_owner.accounts import entries as entries_module
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.agent import Agent
from dpdpca_owner.approving import Unmatched, approve_inbox
from dpdpca_owner.declining import decline
from dpdpca_owner.policy import DEFAULT_POLICY, load_policy, parse_policy
from dpdpca_owner.rules import RULE_TEXT, Rule, unchecked_owners
from dpdpca_owner.sources import RegisteredSource
from dpdpca_protocol.errors import IntegrityError, UsageError
from dpdpca_protocol.messages.software import Software, SoftwareKind
from dpdpca_protocol.wire.fields import decimal_text
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_runtime.words import fingerprint_words

JANUARY, FEBRUARY = (datetime(2090, month, 1, tzinfo=UTC) for month in (1, 2))
"""After the first entry of any ledger here, because times in a ledger never fall."""


def rule_text(scene: Scene, **changes: Any) -> str:
    """A rule that just covers the scene's study."""
    epsilon, delta = terms(scene)
    exact: dict[str, Any] = {
        "name": "'blood pressure'",
        "max_epsilon": f"'{decimal_text(epsilon)}'",
        "max_delta": f"'{decimal_text(delta)}'",
        "month_epsilon": f"'{decimal_text(epsilon)}'",
        "month_delta": f"'{decimal_text(delta)}'",
    }
    user = changes.pop("user", key_line(scene.parties.user.public.ed25519))
    return rule_for(user, **exact | changes).rstrip()


def terms(scene: Scene) -> tuple[Fraction, Fraction]:
    body = scene.proxy.manifest.body
    return Fraction(body["epsilon"]), Fraction(body["delta"])


def keep(scene: Scene, *rules: str, before: str = "[study]\nmax_delta = 1e-4\nmin_owners = 2\n") -> None:
    home = scene.desk.home
    home.policy_path.write_text(before + "\n\n".join(rules) + "\n", encoding="utf-8")
    if not home.sources.all():
        home.sources.add(RegisteredSource("patients", str(scene.location.data), data_set="people"), {})


def approved(scene: Scene, now: datetime = JANUARY) -> tuple[list[str], list[str]]:
    """The names of the rules that approve the scene's study, and what is told."""
    told: list[str] = []
    desk = replace(scene.desk, now=lambda: now)
    found = approve_inbox(desk, lambda place, problem: told.append(problem))
    return [each.rule for each in found], told


def test_what_a_rule_covers_is_approved_booked_and_followed(make_scene: MakeScene) -> None:
    scene = make_scene()
    text = rule_text(scene)
    keep(scene, text + "  # as the board decided")
    assert approved(scene) == (["blood pressure"], [])
    (entry,) = (each for each in scene.desk.home.ledger.read().entries if each.kind == "rule")
    assert entry.detail["text"] == text + "  # as the board decided"
    assert entry.detail["name"] == "blood pressure"
    (followed,) = scene.desk.home.followed.all()
    assert (followed.source, followed.data_set, followed.strict) == ("patients", "people", False)
    assert approved(scene) == ([], [])
    assert not any(line.startswith(("PUT", "POST")) for line in scene.proxy.received)


def test_words_are_as_good_as_a_key(make_scene: MakeScene) -> None:
    scene = make_scene()
    words = fingerprint_words(scene.parties.user.public.ed25519)
    keep(scene, rule_text(scene, user=f"words = '{words}'"))
    assert approved(scene)[0] == ["blood pressure"]


def bounds(scene: Scene) -> dict[str, tuple[str, str, str]]:
    """Each bound: the member, a value just beyond the study, and a value that just holds it."""
    (epsilon, delta), owners = terms(scene), int(scene.proxy.manifest.body["min_owners"])
    less = Fraction(1, 10**12)

    def text(value: Fraction) -> str:
        return f"'{decimal_text(value)}'"

    return {
        "epsilon": ("max_epsilon", text(epsilon - less), text(epsilon)),
        "delta": ("max_delta", text(delta - less), text(delta)),
        "owners": ("min_owners", str(owners + 1), str(owners)),
        "releases": ("releases", "['pairs']", "['joint']"),
    }


@pytest.mark.parametrize("bound", ["epsilon", "delta", "owners", "releases"])
def test_each_bound_holds_on_both_sides(make_scene: MakeScene, bound: str) -> None:
    scene = make_scene(release="joint")
    member, beyond, within = bounds(scene)[bound]
    keep(scene, rule_text(scene, **{member: beyond}))
    assert approved(scene) == ([], [])
    assert not scene.desk.home.followed.all()
    assert scene.desk.home.ledger.read().by_rule == {}
    keep(scene, rule_text(scene, **{member: within}))
    assert approved(scene)[0] == ["blood pressure"]


def test_another_data_user_is_not_covered(make_scene: MakeScene) -> None:
    scene = make_scene()
    other = scene.parties.owners[1].public.ed25519
    for user in (f"ed25519 = '{other.hex()}'", f"words = '{fingerprint_words(other)}'"):
        keep(scene, rule_text(scene, user=user))
        assert approved(scene) == ([], [])


def test_a_masked_study_needs_a_person(make_scene: MakeScene) -> None:
    scene = make_scene(release="masked")
    keep(scene, rule_text(scene))
    assert approved(scene) == ([], [])
    with pytest.raises(UsageError, match="masked"):
        parse_policy(rule_text(scene, releases="['masked']"))


def test_what_was_declined_begun_or_withdrawn_is_for_a_person(run: OwnerCommands) -> None:
    scene = run.scene
    keep(scene, rule_text(scene))
    decline(scene.desk, scene.address)
    assert approved(scene) == ([], [])
    run("join", str(scene.address), "--source", "patients", "--yes")
    assert approved(scene) == ([], [])
    run("withdraw", str(scene.address), "--yes")
    assert approved(scene) == ([], [])
    assert scene.desk.home.ledger.read().by_rule == {}


def test_all_other_lines_of_the_policy_and_the_budget_apply(make_scene: MakeScene) -> None:
    scene = make_scene()
    for before, slug in (
        ("[study]\nmax_epsilon = 0.001\n", "limit: 0.001"),
        ("[study]\nmin_owners = 9\n", "required: 9"),
        ("[budget]\nepsilon = 0.001\n", "budget"),
    ):
        keep(scene, rule_text(scene, min_owners="1"), before=before)
        found, (told,) = approved(scene)
        assert found == []
        assert slug in told
    assert scene.desk.home.ledger.read().by_rule == {}


def test_a_rule_approves_nothing_at_a_proxy_with_other_software(make_scene: MakeScene) -> None:
    scene = make_scene()
    reviewed, other = (Software("1", SoftwareKind.WHEEL, f"sha256:{each * 32}") for each in ("ab", "cd"))
    before = f"[study]\nmax_delta = 1e-4\nmin_owners = 2\nsoftware = ['{reviewed.digest}']\n"
    keep(scene, rule_text(scene), before=before)
    scene.proxy.software = other
    found, (told,) = approved(scene)
    assert found == []
    assert str(other) in told
    assert scene.desk.home.ledger.read().by_rule == {}
    scene.proxy.software = reviewed
    assert approved(scene) == (["blood pressure"], [])


def test_a_round_of_a_chain_is_covered_as_a_whole_or_not_at_all(make_scene: MakeScene) -> None:
    scene = make_scene(release="joint", rho_share="0.5")
    keep(scene, rule_text(scene, releases="['joint']"))  # later rounds may release anything
    assert approved(scene) == ([], [])
    keep(scene, rule_text(scene))
    assert approved(scene)[0] == ["blood pressure"]
    later = make_scene_later(scene)
    assert any("later round" in why for why in rule_of(rule_text(scene)).objections(later))


def rule_of(text: str) -> Rule:
    (rule,) = parse_policy("[study]\nmin_owners = 2\n" + text).rules
    return rule


def make_scene_later(scene: Scene) -> Any:
    from dpdpca_protocol.terms.signed_manifest import parse_manifest

    return replace(parse_manifest(scene.proxy.manifest.body), pre_studies=(StudyId.of(b"first"),))


@pytest.mark.parametrize(
    ("owners", "colluding", "needed"), [(2, 1, 1), (3, 1, 1), (3, 2, 1), (4, 1, 2), (5, 1, 3), (5, 3, 1)]
)
def test_a_blinded_study_needs_words_that_were_compared(
    make_scene: MakeScene, owners: int, colluding: int, needed: int
) -> None:
    """As many as the stated ε needs, and at least one."""
    manifest = make_scene_later(make_scene())
    blinded = replace(manifest, blinding="pairwise", min_owners=owners, max_colluding=colluding)
    keys = [bytes([number]) * 32 for number in range(owners)]
    assert unchecked_owners(blinded, keys[: needed - 1]) == 1
    assert unchecked_owners(blinded, keys[:needed]) == 0
    assert unchecked_owners(manifest, ()) == 0


def test_two_studies_that_exceed_the_month_together(make_scene: MakeScene) -> None:
    """The first one is in the ledger already; a month of UTC later there is room again."""
    scene = make_scene()
    epsilon, delta = terms(scene)
    enough = {
        "month_epsilon": f"'{decimal_text(2 * epsilon)}'",
        "month_delta": f"'{decimal_text(2 * delta)}'",
    }
    for text, fits in ((rule_text(scene), False), (rule_text(scene, **enough), True)):
        keep(scene, text)
        add_approval(scene, b"first" + bytes([fits]), JANUARY)
        if not fits:
            found, (told,) = approved(scene, datetime(2090, 1, 31, 23, 59, 59, tzinfo=UTC))
            assert found == []
            assert "2090-01" in told
    # two of January are full: nothing more fits, until the month ends
    found, _ = approved(scene, datetime(2090, 1, 31, 23, 59, 59, tzinfo=UTC))
    assert found == []
    keep(scene, rule_text(scene))
    assert approved(scene, FEBRUARY)[0] == ["blood pressure"]


def add_approval(scene: Scene, name: bytes, now: datetime, rule: str = "blood pressure") -> None:
    from dpdpca_owner.accounts.bookkeeping import approve_by_rule
    from dpdpca_owner.accounts.charge import RuleApproval

    (epsilon, delta), study = terms(scene), StudyId.of(name)
    made = RuleApproval(study, study, rule, "text", epsilon, delta, "patients", "people")
    with scene.desk.home.ledger.writing(now) as book:
        book.record(approve_by_rule(book.ledger, made, Fraction(99), Fraction(1, 2), book.time))


def test_studies_that_no_rule_matches_are_asked_for_once(make_scene: MakeScene) -> None:
    """Any data user may open thousands of them, and each question counts towards the proxy's rate limit."""
    scene = make_scene()
    keep(scene, rule_text(scene, user=f"ed25519 = '{'7' * 64}'"))
    unmatched, questions = Unmatched(), scene.proxy.received

    def look() -> tuple[list[str], int]:
        questions.clear()
        found = approve_inbox(scene.desk, lambda place, problem: None, unmatched)
        return [each.rule for each in found], sum(each.endswith("/manifest") for each in questions)

    assert look() == ([], 1)
    assert look() == ([], 0)
    keep(scene, rule_text(scene))
    assert look()[0] == ["blood pressure"]


def test_a_full_month_asks_nothing_more(make_scene: MakeScene) -> None:
    scene = make_scene()
    keep(scene, rule_text(scene))
    add_approval(scene, b"first", JANUARY)
    before = scene.desk.home.ledger.entries_path.read_bytes()
    scene.proxy.received.clear()
    assert approved(scene)[0] == []
    assert scene.proxy.received == ["GET /v1/inbox", "GET /v1/studies/ID/manifest"]
    assert scene.desk.home.ledger.entries_path.read_bytes() == before


def test_a_clock_that_was_set_back_does_not_open_an_earlier_month(make_scene: MakeScene) -> None:
    scene = make_scene()
    keep(scene, rule_text(scene))
    add_approval(scene, b"first", FEBRUARY)
    assert approved(scene, JANUARY)[0] == []  # entries never go back in time, so this is February


def test_the_month_of_another_rule_does_not_count(make_scene: MakeScene) -> None:
    scene = make_scene()
    keep(scene, rule_text(scene, name="'another'"), rule_text(scene))
    add_approval(scene, b"first", JANUARY, "another")
    assert approved(scene)[0] == ["blood pressure"]


def test_after_a_recovery_nothing_is_approved_in_this_month(make_scene: MakeScene) -> None:
    from dpdpca_owner.recovery import recover_ledger

    scene = make_scene()
    keep(scene, rule_text(scene))
    scene.desk.home.ledger.entries_path.unlink()
    recover_ledger(replace(scene.desk, now=lambda: JANUARY))
    found, (told,) = approved(scene)
    assert found == []
    assert "recovered" in told
    assert approved(scene, FEBRUARY)[0] == ["blood pressure"]


def test_a_run_that_ended_after_the_entry_is_continued(make_scene: MakeScene) -> None:
    """Also without the rule: it was approved."""
    scene = make_scene()
    keep(scene, rule_text(scene))
    approved(scene)
    scene.desk.home.followed.remove(scene.address)
    keep(scene)
    assert approved(scene) == ([], [])
    assert [each.address for each in scene.desk.home.followed.all()] == [scene.address]


def test_without_a_rule_the_agent_approves_nothing_and_asks_nothing(make_scene: MakeScene) -> None:
    scene = make_scene()
    keep(scene)
    Agent(scene.desk, {}).look()
    assert scene.proxy.received == []
    assert scene.desk.home.ledger.read().by_rule == {}


def test_a_rule_that_was_removed_approves_nothing_more(make_scene: MakeScene) -> None:
    scene = make_scene()
    keep(scene, rule_text(scene))
    keep(scene)
    Agent(scene.desk, {}).look()
    assert not scene.desk.home.followed.all()


CELLS: dict[str, Callable[[str], str]] = {
    "as they are": lambda cell: cell,
    "texts": lambda cell: "unknown",
    "out of bounds": lambda cell: "1e300",
    "other values": lambda cell: f"{float(cell) / 2:.18e}",
}


def test_records_change_no_request_and_no_decision(make_scene: MakeScene) -> None:
    """The agent approves and joins: the same requests in the same order, whatever the records hold."""
    scene = make_scene()
    path = Path(str(scene.location.data))
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    requests, rules = {}, {}
    for name, change in CELLS.items():
        with fresh(scene):
            path.write_text(
                "\n".join([header, *(",".join(map(change, row.split(","))) for row in rows)]),
                encoding="utf-8",
            )
            keep(scene, rule_text(scene))
            Agent(replace(scene.desk, now=lambda: JANUARY), {}).look()
            requests[name] = list(scene.proxy.received)
            rules[name] = [each.name for each in scene.desk.home.ledger.read().by_rule.values()]
    assert any("complete" in line for line in requests["as they are"])
    for name in CELLS:
        assert requests[name] == requests["as they are"], name
        assert rules[name] == ["blood pressure"], name


@contextmanager
def fresh(scene: Scene) -> Iterator[None]:
    """The scene as it was: another home with the same keys, and a proxy that knows no share."""
    import shutil

    home = scene.desk.home.path
    kept = home.with_name("kept")
    shutil.copytree(home, kept)
    proxy = vars(scene.proxy).copy()
    scene.proxy.received, scene.proxy.events = [], list(scene.proxy.events)
    scene.proxy.receipts = {}
    try:
        yield
    finally:
        shutil.rmtree(home)
        kept.rename(home)
        vars(scene.proxy).update(proxy)
        for witness in home.parent.glob("witness/*"):
            witness.unlink()


def test_the_records_need_not_even_exist(make_scene: MakeScene) -> None:
    scene = make_scene()
    keep(scene, rule_text(scene))
    Path(str(scene.location.data)).unlink()
    assert approved(scene)[0] == ["blood pressure"]


def test_the_ledger_shows_what_was_approved_by_which_rule(run: OwnerCommands) -> None:
    scene = run.scene
    text = rule_text(scene)
    keep(scene, text)
    Agent(replace(scene.desk, now=lambda: JANUARY), {}).look()
    assert "by rule" in run("ledger")[1]
    (data_set,) = json.loads(run("ledger", "--json")[1])["data_sets"]
    (study,) = data_set["studies"]
    assert study["rule"] == {"name": "blood pressure", "text": text, "approved_at": "2090-01-01T00:00:00Z"}
    (request,) = json.loads(run("inbox", "--json")[1])["requests"]
    assert request["rule"] == "blood pressure"
    assert "approved by the rule 'blood pressure'" in run("inbox")[1]


def test_what_a_person_joins_is_by_no_rule(run: OwnerCommands) -> None:
    keep(run.scene, rule_text(run.scene))
    run("join", str(run.scene.address), "--source", "patients", "--yes")
    assert "by rule" not in run("ledger")[1]
    (data_set,) = json.loads(run("ledger", "--json")[1])["data_sets"]
    assert data_set["studies"][0]["rule"] is None


def test_an_earlier_version_refuses_a_ledger_with_a_rule(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene()
    keep(scene, rule_text(scene))
    approved(scene)
    known = {kind: names for kind, names in entries_module._MEMBERS.items() if kind != "rule"}
    monkeypatch.setattr(entries_module, "_MEMBERS", known)
    with pytest.raises(IntegrityError, match="a kind that this version does not know"):
        scene.desk.home.ledger.read()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": None},
        {"source": None},
        {"max_epsilon": None},
        {"max_epsilon": "0"},
        {"max_epsilon": "-1"},
        {"max_epsilon": "200", "month_epsilon": "300"},
        {"max_delta": "1", "month_delta": "1"},
        {"max_delta": "nan"},
        {"month_epsilon": "1e-9"},
        {"month_delta": "1e-20"},
        {"releases": "[]"},
        {"releases": "['joint', 'triples']"},
        {"min_owners": "0"},
        {"user": "words = 'only three words'"},
        {"user": ""},
        {"strict": "true"},
        {"note": "'" + "x" * RULE_TEXT + "'"},
        {"name": "'" + "x" * 101 + "'"},
    ],
)
def test_impossible_rules_are_a_bad_policy(make_scene: MakeScene, changes: dict[str, Any]) -> None:
    scene = make_scene()
    keep(scene, rule_text(scene))
    load_policy(scene.desk.home.policy_path)
    keep(scene, rule_text(scene, **changes))
    with pytest.raises(UsageError) as caught:
        load_policy(scene.desk.home.policy_path)
    assert caught.value.slug == "bad-policy"


def test_a_rule_whose_source_is_not_registered_stops_everything_but_registering_it(
    run: OwnerCommands,
) -> None:
    scene = run.scene
    scene.desk.home.policy_path.write_text(rule_text(scene))
    status, _, err = run("inbox")
    assert status != 0
    assert "the source 'patients', which is not registered" in err
    told: list[str] = []
    Agent(replace(scene.desk, say=told.append), {}).look()
    assert "not registered" in told[0]
    assert run("data", "add", "patients", "--data", str(scene.location.data))[0] == 0
    assert run("inbox")[0] == 0


@pytest.mark.parametrize(
    "given",
    [
        "rule = [{name = 'a'}]",
        "rule = 1",
        "RULE\nRULE",
        "[[ rule ]]\nname = '''\n[[rule]]\n'''",
    ],
)
def test_a_rule_must_stand_by_itself_under_a_name_of_its_own(make_scene: MakeScene, given: str) -> None:
    scene = make_scene()
    with pytest.raises(UsageError) as caught:
        parse_policy(given.replace("RULE", rule_text(scene)))
    assert caught.value.slug == "bad-policy"


def test_the_text_of_a_rule_ends_where_the_next_table_begins(make_scene: MakeScene) -> None:
    scene = make_scene()
    first, second = rule_text(scene), rule_text(scene, name="'b'", releases="[\n  'joint',\n]")
    policy = parse_policy(f"{first}\n\n[data]\ndataset = 'people'\n\n{second}\n[budget]\nepsilon = 5\n")
    assert [rule.text for rule in policy.rules] == [first, second]


def test_the_rule_in_the_default_policy_is_a_comment_that_works_without_its_signs() -> None:
    text = DEFAULT_POLICY[DEFAULT_POLICY.index("# [[rule]]") :]
    plain = "\n".join(line.removeprefix("# ") for line in text.splitlines())
    words = " ".join(["able"] * 12)
    (rule,) = parse_policy(plain.replace("twelve words", words)).rules
    assert rule.source == "patients"
    assert parse_policy(DEFAULT_POLICY).rules == ()


def test_a_ledger_without_rules_reads_as_before() -> None:
    assert Ledger().approved_by_rule("any", "2026-01") == (Fraction(0), Fraction(0))
