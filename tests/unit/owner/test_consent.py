"""The consent sheet says what leaves, who could read it, what is promised, and what depends on whom."""

import io
from pathlib import Path
from typing import Any

import pytest
from owner_scene import MakeScene, Scene
from rich.console import Console
from study_parties import MakeManifest

from dpdpca_owner import actions
from dpdpca_owner.accounts.bookkeeping import reserve
from dpdpca_owner.accounts.charge import Charge
from dpdpca_owner.commands.display import show_sheet
from dpdpca_owner.consent import ConsentSheet
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import PolicyError
from dpdpca_runtime.words import fingerprint_words


def shown(sheet: ConsentSheet) -> str:
    file = io.StringIO()
    show_sheet(sheet, Console(file=file, width=400, highlight=False, markup=False))
    return file.getvalue()


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_the_sheet_answers_every_question(make_scene: MakeScene, release: str) -> None:
    scene = make_scene(release=release)
    sheet = actions.review(scene.desk, scene.address, None)
    text, figures = shown(sheet), sheet.manifest.figures
    for words in (
        "Institute: ",
        "first contact",
        "To see what varies together.",
        f"{figures.ciphertext_count} Paillier ciphertexts",
        f"{figures.value_count} numbers",
        "no record, no single value and no file",
        "Institute holds the secret key",
        "Relay holds the ciphertexts but no key",
        "can undo all protection if they work together",
        "ε = 1",
        "replace-one",
        "does not protect an owner as a whole",
        f"Hospital A: {scene.desk.owner.words} (you)",
        "Hospital C",
        "at least one record is needed",
        "2030-01-02T03:04:05Z",
        "age",
        "0 to 100",
    ):
        assert words in text
    assert all(line.startswith("GET") for line in scene.proxy.received)


def test_a_joint_study_says_what_does_not_protect(make_scene: MakeScene) -> None:
    scene = make_scene(release="joint")
    joint = shown(actions.review(scene.desk, scene.address, None))
    assert "the guarantee fails for that owner's records only" in joint
    assert "does not learn the number of records" in joint
    assert "protects nobody from the data user" in joint


@pytest.mark.parametrize("named", [True, False])
def test_who_could_take_the_proxys_noise_off_is_said(make_scene: MakeScene, named: bool) -> None:
    """An owner that works with the proxy, in a study that names its owners; in any other it gains nothing."""
    scene = make_scene() if named else make_scene(participants=None)
    text = shown(actions.review(scene.desk, scene.address, None))
    assert ("One owner that works with the proxy undoes this" in text) is named
    assert ("adds a second draw of the same noise" in text) is not named
    assert ("Any enrolled owner may join" in text) is not named


def test_a_masked_study_says_what_depends_on_the_others(make_scene: MakeScene) -> None:
    scene = make_scene(release="masked")
    masked = shown(actions.review(scene.desk, scene.address, None))
    assert "every owner must be honest" in masked
    assert "Relay learns the total number" in masked


def test_a_known_data_user_is_told_from_a_new_one(make_scene: MakeScene) -> None:
    scene = make_scene()
    actions.join(
        scene.desk, scene.address, actions.prepare_join(scene.desk, scene.address, scene.location), Watcher()
    )
    assert "known to this owner since 2026-01-01" in shown(actions.review(scene.desk, scene.address, None))


def test_named_owners_are_shown_with_their_words_until_and_after_they_are_known(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(release="masked")
    public = scene.parties.owners[1].public
    words = fingerprint_words(public.ed25519)
    sheet = actions.review(scene.desk, scene.address, None)
    assert f"Hospital B: {words} (new to this owner)" in shown(sheet)
    assert "but not through this proxy or the data user" in shown(sheet)
    known = {"known_since": None, "compared": False}
    row = {"name": "Hospital B", "ed25519": public.ed25519.hex(), "words": words} | known
    assert sheet.to_json()["participants"][1] == row
    actions.join(
        scene.desk, scene.address, actions.prepare_join(scene.desk, scene.address, scene.location), Watcher()
    )
    sheet = actions.review(scene.desk, scene.address, None)
    assert f"Hospital B: {words} (known to this owner since 2026-01-01T00:00:00Z)" in shown(sheet)
    assert "but not through this proxy or the data user" not in shown(sheet)
    assert sheet.to_json()["participants"][1] == row | {"known_since": "2026-01-01T00:00:00Z"}


def test_the_dry_run_counts_and_sends_nothing(make_scene: MakeScene) -> None:
    scene = make_scene(missing="midpoint")
    rows = "Weight,weight ,systolic,age\nx,500,100,50\nx,,100,50\nx,100,100,-1\nx,100,100,old\n"
    Path(scene.location.data).write_text(rows, encoding="utf-8")
    sheet = actions.review(scene.desk, scene.address, scene.location)
    dry_run = sheet.to_json()["dry_run"]
    assert (dry_run["records"], dry_run["records_that_count"]) == (4, 4)
    by_name = {feature["name"]: feature for feature in dry_run["features"]}
    assert by_name["weight"] == {
        "name": "weight",
        "column": "weight",
        "missing": 1,
        "unusable": 0,
        "out_of_bounds": 1,
    }
    assert (by_name["age"]["unusable"], by_name["age"]["out_of_bounds"]) == (1, 1)
    assert "Nothing was sent" in shown(sheet)
    assert all(line.startswith("GET") for line in scene.proxy.received)


def test_texts_of_others_are_printed_and_not_interpreted(make_scene: MakeScene) -> None:
    scene = make_scene(title="[bold red]not markup[/]", purpose="[link=http://evil.example]click[/link]")
    text = shown(actions.review(scene.desk, scene.address, None))
    assert "[bold red]not markup[/]" in text
    assert "[link=http://evil.example]click[/link]" in text


def test_the_sheet_says_what_is_proved_and_what_it_is_made_of(make_scene: MakeScene) -> None:
    scene = make_scene(release="masked")
    sheet = actions.review(scene.desk, scene.address, None)
    facts, text = sheet.to_json(), shown(sheet)
    assert (facts["epsilon"], facts["delta"]) == ("1", "0.00000004")
    assert facts["claimed"] == {"epsilon": facts["epsilon"], "delta": facts["delta"]}
    assert (facts["mechanism"], facts["calibration"]) == ("gaussian", "proved")
    assert "proved privacy: (ε, δ) = (1, 4e-08), replace-one (mechanism gaussian)" in text
    assert "continuous noise of this strength would give ε = 0.9" in text
    assert "the tails of the noise" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"release": "joint", "missing": "midpoint", "clip_norm": 1, "clip_share": "0.005"},
            (
                "how many of them were clipped to the norm, and how long these were",
                "how much of your table is empty, as one number to which noise is added",
                "added up over all records; each counts with at most 2",
                "each of these three numbers takes 0.005 of the privacy cost ρ",
            ),
        ),
        (
            {"release": "pairs", "clip_norm": 2},
            (
                "the number of pairs of records and the sums of products of the differences within pairs",
                "difference within each pair is clipped to norm 2; the largest possible is 2·√3",
                "never on the values. At least two records are needed",
                "each pair counts as two records",
                "PAIRS: if an owner does not clip",
            ),
        ),
        (
            {"release": "pre-study", "blocks": {"norms": 0.5, "octaves": 0.5}},
            (
                "the number of records, how many records fall into each range of sizes and how many pairs",
                "the data user adds the same amount before it reads the numbers",
                "PRE-STUDY: if an owner",
            ),
        ),
        (
            {"release": "pre-study", "blocks": {"far-pairs": 1}},
            (
                "the number of records and in how many pairs the records are closer to each other than, on"
                " average, to the centre of the features",
                "At least two records are needed",
            ),
        ),
        (
            {
                "release": "pre-study",
                "blocks": {"norms": 0.5, "octaves": 0.5},
                "noise_by": "owners",
                "max_colluding": 1,
            },
            (
                "The proxy neither draws nor knows the noise. What the data user puts into the manifests",
                "this machine draws its own part of the noise",
            ),
        ),
        (
            {
                "release": "masked",
                "nonnegative": True,
                "features": [{"name": name, "lower": 0, "upper": 9} for name in "abc"],
            },
            (
                "no scaled value is below 0",
                "the sums of the features and the sums of products of two features",
            ),
        ),
    ],
)
def test_each_release_says_what_it_takes(
    make_scene: MakeScene, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    scene = make_scene(**changes)
    sheet = actions.review(scene.desk, scene.address, None)
    text = shown(sheet)
    assert all(word in text for word in words), text
    assert sheet.to_json()["chain"] is None


def test_a_round_of_a_chain_shows_the_total_and_what_it_takes_of_it(make_scene: MakeScene) -> None:
    scene = make_scene(release="pairs", rho_share="0.05", delta="0.00000001")
    sheet = actions.prepare_join(scene.desk, scene.address, scene.location).sheet
    text = shown(sheet)
    assert (
        "ε = 1, δ = 1e-08 is the TOTAL for all rounds together. This round spends 5.0000% of the total"
        in text
    )
    assert "by joining you approve the total" in text
    assert "for this round by itself" in text
    assert "with all later rounds, which you approve by joining: ε = " in text
    facts = sheet.to_json()
    assert facts["chain"] == {
        "share": "0.05",
        "share_before": "0",
        "is_approved": False,
        "pre_studies": [],
    }
    ledger = facts["ledger"]
    assert 19 * ledger["after"]["rho_number"] < ledger["after_all_rounds"]["rho_number"]


def test_the_total_must_fit_the_budget_before_the_first_round(make_scene: MakeScene) -> None:
    scene = make_scene(release="pairs", rho_share="0.05", delta="0.00000001")
    policy = scene.desk.home.policy_path
    policy.write_text(policy.read_text().replace("epsilon = 10\ndelta", "epsilon = 0.5\ndelta"))
    with pytest.raises(PolicyError) as caught:
        actions.prepare_join(scene.desk, scene.address, scene.location)
    assert caught.value.slug == "budget-exceeded"


def test_a_later_round_needs_no_new_answer(make_scene: MakeScene, make_manifest: MakeManifest) -> None:
    terms = {"rho_share": "0.05", "delta": "0.00000001", "missing": "midpoint"}
    first = make_manifest(release="pre-study", blocks={"sum": 1}, **terms)
    scene = make_scene(release="pairs", pre_studies=[first.study_id.hex()], **terms)
    assert not actions.prepare_join(scene.desk, scene.address, scene.location).is_approved
    join_round(scene, first)
    assert actions.prepare_join(scene.desk, scene.address, scene.location).is_approved
    assert "you need not approve it again" in shown(actions.review(scene.desk, scene.address, None))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_approval_is_not_for_records_with_another_budget(
    make_scene: MakeScene, make_manifest: MakeManifest, elsewhere: bool
) -> None:
    """Records that changed have a budget of their own; nobody gets that without a question."""
    terms = {"rho_share": "0.05", "delta": "0.00000001", "missing": "midpoint"}
    first = make_manifest(release="pre-study", blocks={"sum": 1}, **terms)
    scene = make_scene(release="pairs", pre_studies=[first.study_id.hex()], **terms)
    join_round(scene, first)
    (before,) = scene.desk.home.ledger.read().data_sets
    with Path(scene.location.data).open("a", encoding="utf-8") as file:
        file.write("1,100,3\n")
    if elsewhere:
        join_round(scene, make_manifest(title="Another study", release="joint"), approves=False)
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    assert not prepared.is_approved
    assert "for records that count in another data set" in shown(prepared.sheet)
    assert actions.prepare_join(scene.desk, scene.address, scene.location, before).is_approved


def join_round(scene: Scene, manifest: Any, approves: bool = True) -> None:
    """What joining a study with the scene's records leaves in this owner's books."""
    desk = scene.desk
    content = actions.prepare_join(desk, scene.address, scene.location).contribution.content
    owner, budget = desk.owner.key.public.party_id, desk.home.policy().budget
    with desk.home.ledger.writing(desk.now()) as book:
        if approves:
            desk.home.approvals.approve(manifest, book.ledger)
        book.record(reserve(book.ledger, Charge.of(manifest, owner), content, None, budget, book.time))
