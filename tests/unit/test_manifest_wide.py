"""The rules for sketch, lift and scores: kept, and each one broken."""

from fractions import Fraction
from typing import Any

import pytest
import wide_studies as wide
from study_parties import MakeManifest

from dpdpca_protocol.errors import MessageError, PolicyError
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.features import MAX_LISTED_FEATURES
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_protocol.terms.wide import MOST_COLUMNS
from dpdpca_protocol.terms.wide_rules import check_rounds, longest_row_squared
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES

LIFT: dict[str, Any] = {"columns": wide.K, "matrix": wide.MATRIX, "offset": wide.OFFSET}
SCORES: dict[str, Any] = {"columns": 2, "study": "cd" * 32, "components": "ab" * 32, "norm": "1.5"}


@pytest.mark.parametrize("of", ["records", "pairs"])
@pytest.mark.parametrize("release", wide.CHAIN)
def test_a_round_survives_the_wire(release: str, of: str, make_manifest: MakeManifest) -> None:
    manifest = wide.CHAIN[release](make_manifest, of)
    assert parse_manifest(manifest.to_body()) == manifest
    assert manifest.rules.is_wide
    assert manifest.rules.of_pairs == (of == "pairs")
    assert manifest.missing == "midpoint"
    expected = Fraction(5, 100) if release != "lift" and of == "records" else 0
    assert manifest.sum_weight == expected


def test_figures_are_those_of_what_is_summed(make_manifest: MakeManifest) -> None:
    bound = (2 * 2**11) ** 2
    sketch, lift, scores = (each(make_manifest).figures for each in wide.CHAIN.values())
    assert (sketch.summed_features, sketch.summed_bound) == (wide.M, 2 * bound)
    assert sketch.alpha_squared == Fraction(5, 100) * 2 * bound
    assert sketch.noise_scale**2 == pytest.approx(float((2.05 * 2 * bound) ** 2 / (4 * sketch.rho)))
    assert (lift.summed_features, lift.summed_bound) == (wide.D, bound)
    assert lift.noise_scale**2 == pytest.approx(float(2 * bound * 2**20 / lift.rho))
    assert lift.value_count == 1 + wide.D * wide.K + wide.K * (wide.K + 1) // 2
    assert (scores.summed_features, scores.summed_bound) == (wide.K, int((1.5 * 2**11) ** 2))
    assert sketch.rho + lift.rho + scores.rho <= sketch.rho_total


@pytest.mark.parametrize(
    ("release", "changes", "reason"),
    [
        ("sketch", {"of": None}, "must have the member of"),
        ("sketch", {"sketch": None}, "must have the member sketch"),
        ("sketch", {"lift": LIFT}, "cannot have the member lift"),
        ("lift", {"lift": None}, "must have the member lift"),
        ("lift", {"sketch": None}, "must have the member sketch"),
        ("scores", {"scores": None}, "must have the member scores"),
        ("scores", {"sketch": {"rows": 16, "seed": wide.SEED}}, "cannot have the member sketch"),
        ("sketch", {"mechanism": "laplace"}, "gaussian mechanism"),
        ("sketch", {"missing": "reject"}, "cannot drop records"),
        ("lift", {"missing": "reject"}, "cannot drop records"),
        ("sketch", {"suite": "paillier"}, "uses suite pads"),
        ("sketch", {"rho_share": None}, "needs rho_share"),
        ("lift", {"pre_studies": None}, "needs pre_studies"),
        ("sketch", {"nonnegative": True}, "nonnegative"),
        ("sketch", {"sketch": {"rows": 22, "seed": wide.SEED}}, "above the 20 encoded features"),
        ("sketch", {"sketch": {"rows": 17, "seed": wide.SEED}}, "odd"),
        ("sketch", {"sketch": {"rows": 14, "seed": wide.SEED}}, "not between 16 and 2048"),
        ("lift", {"sketch": {"rows": 18, "seed": wide.SEED}}, "18 numbers, as sketch.rows says"),
        ("lift", {"lift": LIFT | {"matrix": [[2**40] * 16] * 2}}, "not between"),
        (
            "lift",
            {"lift": LIFT | {"matrix": [[2**39] * 16] * 2}},
            r"is \d{17} on the grid, and lift\.offset goes up to 49152 in absolute .* must be below 2⁵²",
        ),
        ("lift", {"lift": LIFT | {"offset": [0, 1 - 2**52]}}, f"offset goes up to {2**52 - 1} in"),
        (
            "lift",
            {"lift": {"columns": 101, "matrix": [[1] * 16] * 101, "offset": [0] * 101}},
            "columns is not between 1 and 100",
        ),
        ("lift", {"lift": LIFT | {"offset": [2**52, 0]}}, "not between"),
        ("scores", {"scores": SCORES}, "not among pre_studies"),
        ("scores", {"scores": SCORES | {"norm": "0"}}, "above 0"),
        ("scores", {"scores": SCORES | {"norm": "0.0004"}}, "shorter than one step of the grid"),
        ("scores", {"scores": SCORES | {"columns": 21}}, "more than the 20"),
        ("joint", {"of": "records"}, "cannot have the member of"),
        ("joint", {"sketch": {"rows": 16, "seed": wide.SEED}}, "cannot have the member sketch"),
        ("sketch", {"extends": "ab" * 32}, "cannot extend"),
    ],
)
def test_a_broken_rule_is_refused(
    release: str, changes: dict[str, Any], reason: str, make_manifest: MakeManifest
) -> None:
    make = wide.CHAIN.get(release)
    with pytest.raises(PolicyError, match=reason):
        make(make_manifest, **changes) if make else make_manifest(**wide.TERMS | changes)


@pytest.mark.parametrize(
    ("release", "member"),
    [
        ("sketch", "clip_share"),
        ("lift", "sum_weight"),
        ("lift", "extends"),
    ],
)
def test_what_a_draft_drops_a_manifest_may_not_have(
    release: str, member: str, make_manifest: MakeManifest
) -> None:
    body = wide.CHAIN[release](make_manifest).to_body()
    value = "ab" * 32 if member == "extends" else "0.05"
    with pytest.raises(PolicyError, match=member if member != "extends" else "cannot extend"):
        parse_manifest(body | {member: value})


@pytest.mark.parametrize(
    "lift",
    [
        LIFT | {"columns": 3},
        LIFT | {"offset": [0]},
        LIFT | {"matrix": []},
        LIFT | {"matrix": [[1.5] * 16] * 2},
        LIFT | {"more": 1},
    ],
)
def test_a_malformed_rule_is_refused(lift: dict[str, Any], make_manifest: MakeManifest) -> None:
    with pytest.raises(MessageError):
        wide.lift(make_manifest, lift=lift)


def test_a_lift_of_pairs_has_no_offset(make_manifest: MakeManifest) -> None:
    with pytest.raises(PolicyError, match="offset is not 0"):
        wide.lift(make_manifest, "pairs", lift=LIFT)


def test_the_bound_on_products_is_exact(make_manifest: MakeManifest) -> None:
    """The largest product of a record on the bound with a row of C·P₀, in Python's integers."""
    manifest = wide.lift(make_manifest)
    assert manifest.sketch is not None
    p0 = wide.plain_sketch_matrix(manifest.sketch.seed, wide.D, wide.M)
    rows = [[sum(c * p0[h][i] for h, c in enumerate(row)) for i in range(wide.D)] for row in wide.MATRIX]
    assert longest_row_squared(manifest) == max(sum(each * each for each in row) for row in rows)


def test_the_largest_lift_has_components_that_may_be_sent() -> None:
    """4 bytes a number, in base64. So d·k needs no limit of its own."""
    assert MAX_LISTED_FEATURES * MOST_COLUMNS * 4 * 4 / 3 < 0.9 * COMPONENTS_LIMIT_BYTES


def test_rounds_fit_each_other(make_manifest: MakeManifest) -> None:
    sketch, lift, scores = (each(make_manifest) for each in wide.CHAIN.values())
    check_rounds(sketch, [])
    check_rounds(lift, [sketch])
    check_rounds(scores, [sketch, lift])
    for late, early in ((lift, []), (scores, [sketch]), (scores, [lift]), (lift, [lift])):
        with pytest.raises(PolicyError, match="not one") as caught:
            check_rounds(late, early)
        assert caught.value.slug == "wrong-round"


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"clip_norm": "1.5"}, "clip_norm"),
        ({"fraction_bits": 12}, "fraction_bits"),
        ({"sketch": {"rows": 16, "seed": "ff" * 32}}, "sketch"),
        ({"features": wide.TERMS["features"][::-1]}, "features"),
    ],
)
def test_a_lift_that_differs_from_its_sketch_is_refused(
    changes: dict[str, Any], member: str, make_manifest: MakeManifest
) -> None:
    other = wide.lift(make_manifest, **changes)
    with pytest.raises(PolicyError, match=f"its {member} differs") as caught:
        check_rounds(other, [wide.sketch(make_manifest)])
    assert caught.value.slug == "wrong-round"


def test_scores_name_the_lift(make_manifest: MakeManifest) -> None:
    sketch, lift = wide.sketch(make_manifest), wide.lift(make_manifest)
    named = [sketch.study_id.hex(), lift.study_id.hex()]
    wrong = wide.scores(make_manifest, pre_studies=named, scores=SCORES | {"study": named[0]})
    with pytest.raises(PolicyError, match=r"scores\.study is not the lift"):
        check_rounds(wrong, [sketch, lift])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"clip_norm": "1.5"}, "its clip_norm differs from that of the sketch"),
        ({"fraction_bits": 12}, "its fraction_bits differs from that of the sketch"),
        ({"sketch": {"rows": 16, "seed": "ff" * 32}}, "that of another sketch"),
    ],
)
def test_scores_name_the_sketch_of_their_lift(
    changes: dict[str, Any], reason: str, make_manifest: MakeManifest
) -> None:
    sketch, lift = wide.sketch(make_manifest, **changes), wide.lift(make_manifest)
    named = [sketch.study_id.hex(), lift.study_id.hex()]
    scores = wide.scores(make_manifest, pre_studies=named)
    with pytest.raises(PolicyError, match=reason) as caught:
        check_rounds(scores, [sketch, lift])
    assert caught.value.slug == "wrong-round"


def test_a_sketch_ends_like_a_pre_study_and_a_lift_like_a_result() -> None:
    assert not ReleaseKind.SKETCH.has_components
    assert ReleaseKind.LIFT.has_components
    assert ReleaseKind.SCORES.has_components
