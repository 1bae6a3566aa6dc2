"""One approval for all rounds of a chain: what it covers, what it does not, and that it is never passed."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from present import present
from study_parties import MakeManifest

from dpdpca_owner.accounts.approvals import Approvals, lasting_terms, later_rounds
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_protocol.errors import IntegrityError, PolicyError
from dpdpca_protocol.terms.figures import figures_of
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import StudyId

TERMS = {"delta": "0.00000001", "missing": "midpoint"}
LEDGER = Ledger()


@pytest.fixture
def approvals(tmp_path: Path) -> Approvals:
    return Approvals(tmp_path / "chains")


@pytest.fixture
def a_round(make_manifest: MakeManifest) -> Callable[..., Any]:
    def make(share: str, *earlier: Manifest, **changes: Any) -> Manifest:
        named = {"pre_studies": [study.study_id.hex() for study in earlier]} if earlier else {}
        return make_manifest(**TERMS | {"release": "pairs", "rho_share": share} | named | changes)

    return make


def test_a_study_by_itself_needs_no_approval(approvals: Approvals, make_manifest: MakeManifest) -> None:
    manifest = make_manifest()
    assert approvals.chain(manifest, LEDGER) is None
    approvals.approve(manifest, LEDGER)
    assert approvals.chain(manifest, LEDGER) is None


def test_the_first_round_is_asked_about_and_later_ones_are_not(
    approvals: Approvals, a_round: Callable[..., Any]
) -> None:
    first = a_round("0.05")
    assert not present(approvals.chain(first, LEDGER)).is_covered
    approvals.approve(first, LEDGER)
    second = a_round("0.1", first, title="The second", clip_norm="0.5", max_records=4000)
    chain = present(approvals.chain(second, LEDGER))
    assert (chain.before, chain.share, chain.is_covered) == (Fraction("0.05"), Fraction("0.1"), True)
    assert later_rounds(second, chain).rho == Fraction("0.85") * second.figures.rho_total
    approvals.approve(second, LEDGER)
    third = a_round("0.85", first, second, release="joint")
    assert present(approvals.chain(third, LEDGER)).is_covered
    approvals.approve(third, LEDGER)
    # And the same round again takes nothing more.
    assert present(approvals.chain(third, LEDGER)).after == 1
    with pytest.raises(PolicyError, match="ask the data user for a round"):
        approvals.approve(a_round("0.01", first), LEDGER)


def test_rounds_that_a_manifest_does_not_name_count_too(
    approvals: Approvals, a_round: Callable[..., Any]
) -> None:
    first = a_round("0.5")
    approvals.approve(first, LEDGER)
    approvals.approve(a_round("0.4", first), LEDGER)
    greedy = a_round("0.2", first, title="The second is not named")
    chain = present(approvals.chain(greedy, LEDGER))
    assert not chain.is_covered
    with pytest.raises(PolicyError) as caught:
        chain.check()
    assert caught.value.slug == "chain-exceeded"


def test_another_first_round_is_another_question(approvals: Approvals, a_round: Callable[..., Any]) -> None:
    first = a_round("0.05")
    approvals.approve(first, LEDGER)
    assert not present(approvals.chain(a_round("0.05", title="Another chain"), LEDGER)).is_covered
    other = a_round("0.05", title="Never joined")
    assert not present(approvals.chain(a_round("0.1", other, first), LEDGER)).is_covered


@pytest.mark.parametrize(
    "changes",
    [
        {"purpose": "Something else."},
        {"missing": "reject", "release": "joint"},
        {"min_owners": 2},
        {"cohort_distance": 3},
        {"noise_by": "owners", "release": "joint"},
        {"release": "masked"},
        {"features": [{"name": "age", "lower": 0, "upper": 100}, {"name": "height", "lower": 0, "upper": 3}]},
    ],
)
def test_other_terms_are_another_question(
    approvals: Approvals, a_round: Callable[..., Any], changes: dict[str, Any]
) -> None:
    first = a_round("0.05")
    approvals.approve(first, LEDGER)
    later = a_round("0.1", first, **changes)
    assert not present(approvals.chain(later, LEDGER)).is_covered
    assert present(approvals.chain(later, LEDGER)).before == Fraction("0.05")


@pytest.mark.parametrize("changes", [{"epsilon": 2}, {"epsilon": "0.5"}, {"delta": "0.00000002"}])
def test_another_total_is_refused(
    approvals: Approvals, a_round: Callable[..., Any], changes: dict[str, Any]
) -> None:
    """After 0.9 of ε = 1 a sheet that says ε = 0.5 for all rounds would be untrue."""
    first = a_round("0.9")
    approvals.approve(first, LEDGER)
    later = a_round("0.1", first, **changes)
    assert not present(approvals.chain(later, LEDGER)).is_covered
    with pytest.raises(PolicyError) as caught:
        approvals.approve(later, LEDGER)
    assert caught.value.slug == "chain-differs"


def test_no_more_rounds_than_share_one_delta(approvals: Approvals, a_round: Callable[..., Any]) -> None:
    first = a_round("0.01")
    approvals.approve(first, LEDGER)
    for number in range(2, 9):
        approvals.approve(a_round("0.01", first, title=f"Round {number}"), LEDGER)
    with pytest.raises(PolicyError, match="already has 8 rounds") as caught:
        approvals.approve(a_round("0.01", first, title="Round 9"), LEDGER)
    assert caught.value.slug == "chain-exceeded"
    approvals.approve(first, LEDGER)  # one of the eight again


def test_bounds_centres_and_scaling_may_change(a_round: Callable[..., Any], draft: dict[str, Any]) -> None:
    first = a_round("0.05")
    features = [{**feature, "upper": 300, "centre": 200} for feature in draft["features"]]
    later = a_round("0.1", first, features=features, scaling="common", release="pre-study", blocks={"sum": 1})
    assert lasting_terms(first) == lasting_terms(later)


def test_a_round_that_was_taken_back_has_taken_nothing(
    approvals: Approvals, a_round: Callable[..., Any]
) -> None:
    class Refunded(Ledger):
        def spend(self, study: StudyId) -> Any:
            return replaced

    first = a_round("0.9")
    approvals.approve(first, LEDGER)
    second = a_round("0.9", first)
    with pytest.raises(PolicyError):
        approvals.approve(second, LEDGER)

    class Taken:
        is_live = False
        data_set = None

    replaced = Taken()
    assert present(approvals.chain(second, Refunded())).before == 0
    replaced.is_live = True
    assert present(approvals.chain(second, Refunded())).before == Fraction("0.9")


def test_a_file_of_another_content_stops_everything(
    approvals: Approvals, a_round: Callable[..., Any], tmp_path: Path
) -> None:
    first = a_round("0.05")
    approvals.approve(first, LEDGER)
    (path,) = (tmp_path / "chains").iterdir()
    assert path.stat().st_mode & 0o77 == 0
    path.write_text("{}")
    with pytest.raises(IntegrityError, match="did not write its content"):
        approvals.chain(first, LEDGER)


def test_shares_of_one_chain_are_of_one_rho(a_round: Callable[..., Any]) -> None:
    rounds = [a_round(share) for share in ("0.05", "0.95")]
    rounds += [a_round("0.5", release=release) for release in ("masked", "joint")]
    assert len({manifest.figures.rho_total for manifest in rounds}) == 1
    for manifest in rounds:
        share = manifest.rho_share * manifest.figures.rho_total
        assert share * (1 - Fraction(1, 2**28)) <= manifest.figures.rho <= share
    alone = figures_of(replace(rounds[0].terms, rho_share=Fraction(1)))
    assert alone.delta_zcdp > rounds[0].figures.delta_zcdp
