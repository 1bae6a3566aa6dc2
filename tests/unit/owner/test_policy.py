"""The owner's policy file: every line stops a study that does not keep it, and no line is guessed."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from owner_scene import MakeScene, OwnerCommands, Scene
from study_parties import MakeManifest, Parties, key_for

from dpdpca_owner import actions
from dpdpca_owner.accounts.budget import Budget
from dpdpca_owner.policy import DEFAULT_POLICY, Policy, load_policy, parse_policy
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import PolicyError, UsageError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.words import fingerprint_words


def test_the_default_is_what_init_writes_and_what_holds_without_a_file(tmp_path: Path) -> None:
    default = load_policy(tmp_path / "none.toml")
    assert default == parse_policy(DEFAULT_POLICY) == parse_policy("")
    assert default.budget == Budget.of_epsilon(Fraction(10), Fraction(1, 10**6))
    assert (default.max_epsilon, default.min_owners, default.recognised) == (Fraction(10), 3, None)


def test_what_a_file_leaves_out_has_its_default() -> None:
    policy = parse_policy("[study]\nmax_epsilon = 0.1\n[budget]\nepsilon = '1'\n")
    assert (policy.max_epsilon, policy.max_delta) == (Fraction(1, 10), Fraction(1, 10**5))
    assert policy.budget == Budget.of_epsilon(Fraction(1), Fraction(1, 10**6))
    assert parse_policy("[budget]\nrho = 0.5\n").budget == Budget.of_rho(Fraction(1, 2), Fraction(1, 10**6))


@pytest.mark.parametrize(
    "text",
    [
        "study = 1",
        "[study]\nmax_epsilom = 1",
        "[studies]\nmax_epsilon = 1",
        "[study]\nmax_epsilon = 0",
        "[study]\nmax_epsilon = -1",
        "[study]\nmax_epsilon = nan",
        "[study]\nmax_epsilon = inf",
        "[study]\nmax_epsilon = true",
        "[study]\nmax_epsilon = 1e99",
        "[study]\nmax_epsilon = 'much'",
        "[study]\nmax_delta = 1e-60",
        "[study]\nmax_features = 0",
        "[study]\nmax_features = 1.5",
        "[study]\nmin_owners = 0",
        "[study]\nmin_records = '3'",
        "[study]\nreleases = ['triples']",
        "[study]\nreleases = 'joint'",
        "[study]\nmechanisms = [1]",
        "[study]\nsoftware = 'sha256:" + "ab" * 32 + "'",
        "[study]\nsoftware = ['" + "ab" * 32 + "']",
        "[study]\nsoftware = ['sha256:" + "AB" * 32 + "']",
        "[study]\nsoftware = ['sha256:" + "ab" * 31 + "']",
        "[budget]\nepsilon = 1\nrho = 1",
        "[budget]\nepsilon = 0",
        "[budget]\nepsilon = 50",
        "[budget]\ndelta = 1",
        "[budget]\nrho = -1",
        "[data]\ndataset = ''",
        '[data]\ndataset = "a\\nb"',
        "recognised = 1",
        "[[recognised]]\nname = 'B'",
        "[[recognised]]\nname = 'B'\ned25519 = 'ab'",
        "[[recognised]]\nname = 'B'\nwords = 'only three words'",
        "[[recognised]]\ned25519 = '" + "ab" * 32 + "'",
        "not toml",
    ],
)
def test_a_file_that_is_not_wholly_understood_stops_everything(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refusal:
        load_policy(path)
    assert refusal.value.slug == "bad-policy"
    assert str(path) in refusal.value.problem


def test_a_file_that_others_can_change_or_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(DEFAULT_POLICY, encoding="utf-8")
    path.chmod(0o644)
    assert load_policy(path)
    path.chmod(0o666)
    with pytest.raises(PolicyError, match="chmod"):
        load_policy(path)
    path.chmod(0o600)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError):
        load_policy(path)


def judged(policy: Policy, manifest: Manifest, owner: IdentityKey) -> dict[str, bool]:
    return {line.slug: line.holds for line in policy.judge(manifest, owner.public.ed25519)}


@pytest.mark.parametrize(
    ("line", "changes", "slug"),
    [
        ("max_epsilon = 0.5", {}, "policy-epsilon"),
        ("max_delta = 1e-8", {}, "policy-delta"),
        ("max_features = 2", {}, "policy-features"),
        ("min_owners = 4", {}, "policy-owners"),
        ("min_owners = 3", {"min_owners": 2}, "policy-owners"),
        ("min_records = 100", {}, "policy-records"),
        ("releases = ['joint']", {"release": "masked"}, "policy-release"),
        ("releases = []", {}, "policy-release"),
        ("mechanisms = ['laplace']", {}, "policy-mechanism"),
    ],
)
def test_each_line_stops_what_does_not_keep_it(
    parties: Parties, make_manifest: MakeManifest, line: str, changes: dict[str, Any], slug: str
) -> None:
    manifest = make_manifest(**changes)
    owner = parties.owners[0]
    strict = parse_policy(f"[study]\n{line}\n")
    assert [found for found, holds in judged(strict, manifest, owner).items() if not holds] == [slug]
    with pytest.raises(PolicyError) as refusal:
        strict.check(manifest, owner.public.ed25519)
    assert refusal.value.slug == slug
    assert "--yes" in refusal.value.next_step
    if slug == "policy-features":
        assert f"set max_features = {manifest.encoded_features} in your policy" in refusal.value.next_step
    parse_policy("[study]\nmin_owners = 1\n").check(manifest, owner.public.ed25519)


@pytest.mark.parametrize("name", ["wishart", "gaussian as-published", "mod-sulq", "gausian"])
def test_a_policy_admits_no_mechanism_that_no_study_has(name: str) -> None:
    with pytest.raises(UsageError, match="may list only gaussian, laplace"):
        parse_policy(f'[study]\nmechanisms = ["gaussian", "{name}"]\n')


def test_all_lines_that_break_are_said_at_once(parties: Parties, make_manifest: MakeManifest) -> None:
    policy = parse_policy("[study]\nmax_epsilon = 0.5\nmin_owners = 9\n")
    with pytest.raises(PolicyError, match=r"ε = 1 \(limit: 0\.5\); .*required: 9"):
        policy.check(make_manifest(), parties.owners[0].public.ed25519)


@pytest.mark.parametrize("by", ["ed25519", "words"])
def test_only_recognised_owners_count(parties: Parties, make_manifest: MakeManifest, by: str) -> None:
    def knows(*owners: IdentityKey) -> Policy:
        tables = ["[study]\nmin_owners = 2\n"]
        for owner in owners:
            raw = owner.public.ed25519
            text = raw.hex() if by == "ed25519" else fingerprint_words(raw)
            tables.append(f"[[recognised]]\nname = 'known'\n{by} = '{text}'\n")
        return parse_policy("".join(tables))

    me, second, third = parties.owners
    joint = make_manifest(release="joint", min_owners=2)
    masked = make_manifest(release="masked", min_owners=2)
    # Two shares of the three are certain: with one stranger among them, one of mine or a friend's.
    assert judged(knows(second, third), joint, me)["policy-owners"]
    assert not judged(knows(second), joint, me)["policy-owners"]
    assert judged(knows(second), make_manifest(release="joint", min_owners=3), me)["policy-owners"]
    assert judged(knows(second, third), masked, me)["policy-recognised"]
    assert not judged(knows(second), make_manifest(release="masked"), me)["policy-recognised"]
    assert "policy-recognised" not in judged(knows(second), joint, me)


def test_in_an_open_study_nobody_is_recognised(
    parties: Parties, draft: dict[str, Any], make_manifest: MakeManifest
) -> None:
    from dpdpca_user.planning.draft import complete_draft

    manifest = complete_draft(
        draft | {"participants": []}, parties.user_party, parties.proxy_party, [],
        key_for(draft, parties.secret, parties.proof),
    )  # fmt: skip
    key = f"[[recognised]]\nname = 'B'\ned25519 = '{parties.owners[1].public.ed25519.hex()}'\n"
    assert judged(parse_policy(""), manifest, parties.owners[0])["policy-owners"]
    assert not judged(parse_policy(key), manifest, parties.owners[0])["policy-owners"]


# In the commands


def write(scene: Scene, text: str) -> None:
    scene.desk.home.policy_path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "text",
    [
        "[study]\nmax_epsilon = 0.5\n",
        "[study]\nmin_owners = 4\n",
        "[budget]\nepsilon = 0.9\ndelta = 1e-8\n",
        "[budget]\nrho = 0.0001\n",
        "[study]\nwhatever = 1\n",
    ],
)
def test_nothing_of_a_refused_study_is_asked_kept_or_sent(make_scene: MakeScene, text: str) -> None:
    scene = make_scene()
    write(scene, text)
    with pytest.raises((PolicyError, UsageError)):
        actions.prepare_join(scene.desk, scene.address, scene.location)
    assert all(line.startswith("GET") for line in scene.proxy.received)
    assert scene.desk.home.ledger.read().spends == []
    assert scene.desk.home.study(scene.address.study).plan() is None


def test_the_sheet_says_which_lines_a_study_breaks(make_scene: MakeScene) -> None:
    scene = make_scene()
    write(scene, "[study]\nmax_epsilon = 0.5\n[budget]\nrho = 0.0001\n")
    sheet = actions.review(scene.desk, scene.address, scene.location)
    assert sheet.policy()[0] == "REFUSED: ε = 1 (limit: 0.5)"
    assert any("at least 3 owners (required: 3)" in line for line in sheet.policy())
    assert any("ABOVE your budget" in line for line in sheet.spending.lines())
    facts = sheet.to_json()
    assert (facts["policy"]["holds"], facts["ledger"]["fits"]) == (False, False)


def test_a_policy_that_was_changed_during_the_question_is_the_one_that_holds(
    make_scene: MakeScene,
) -> None:
    scene = make_scene()
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    write(scene, "[budget]\nrho = 0.0001\n")
    with pytest.raises(PolicyError) as refusal:
        actions.join(scene.desk, scene.address, prepared, Watcher())
    assert refusal.value.slug == "budget-exceeded"
    assert not any(line.startswith("PUT") for line in scene.proxy.received)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[study]\nmax_epsilon = 0.5\n", "ε = 1 (limit: 0.5)"),
        ("[budget]\nrho = 0.0001\n", "above this owner's budget"),
        ("[study]\nmax_epsilom = 1\n", "unknown"),
    ],
)
def test_yes_passes_no_line(run: OwnerCommands, text: str, words: str) -> None:
    scene = run.scene
    write(scene, text)
    status, out, err = run("join", str(scene.address), "--data", scene.location.data, "--yes", "--json")
    assert status != 0
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
    assert not any(line.startswith("PUT") for line in scene.proxy.received)


def test_init_writes_the_policy_and_keeps_one_that_is_there(run: OwnerCommands, tmp_path: Path) -> None:
    home = tmp_path / "new"
    home.mkdir(mode=0o700)
    (home / "policy.toml").write_text("[study]\nmax_epsilon = 0.1\n", encoding="utf-8")
    assert run("init", "--name", "B", "--home", str(home))[0] == 0
    assert "0.1" in (home / "policy.toml").read_text(encoding="utf-8")
    other = tmp_path / "other"
    status, out, _ = run("init", "--name", "B", "--home", str(other), "--json")
    assert status == 0
    assert f"{other}/policy.toml" in out
    assert (other / "policy.toml").read_text(encoding="utf-8") == DEFAULT_POLICY
