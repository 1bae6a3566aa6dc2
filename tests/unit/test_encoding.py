"""Encoding: missing rules, bounds, scaling, one-hot columns, and the report."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from reference_data import Seeded
from study_parties import MakeManifest

from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_protocol.records.encoding import (
    ABSENT,
    BatchReport,
    EncodedBatch,
    RecordEncoder,
    at_centre,
    cut_to_bound,
    obeys_bound,
)
from dpdpca_protocol.terms.manifest import Manifest


def encode(manifest: Manifest, **columns: Sequence[Any] | NDArray[np.float64]) -> EncodedBatch:
    return RecordEncoder(manifest).encode(columns)


@pytest.fixture
def study(make_manifest: MakeManifest, draft: dict[str, Any]) -> Callable[..., Any]:
    """A study whose clip norm is out of the way."""
    return lambda **changes: make_manifest(
        features=draft["features"], clip_norm="1.7320508", fraction_bits=20, **changes
    )


def test_range_scaling_divides_by_each_half_range(study: Callable[..., Any]) -> None:
    batch = encode(study(), age=[75.0], systolic=[120.0], weight=[126.5])
    assert batch.z.dtype == np.int64
    assert batch.z.tolist() == [[2**19, 0, 0]]


def test_common_scaling_divides_by_the_largest_half_range(study: Callable[..., Any]) -> None:
    batch = encode(study(scaling="common"), age=[75.0], systolic=[120.0], weight=[64.5])
    assert batch.z.tolist() == [[round(2**20 * 25 / 124), 0, -(2**19)]]


def test_values_out_of_bounds_are_moved_to_the_bound_and_counted(study: Callable[..., Any]) -> None:
    batch = encode(study(), age=[-5.0, 100.0, 1e300], systolic=[120.0] * 3, weight=[126.5, 126.5, -1e300])
    # The last record lies on two bounds at once, √2 long: within the clip norm.
    assert batch.z.tolist() == [[-(2**20), 0, 0], [2**20, 0, 0], [2**20, 0, -(2**20)]]
    assert batch.report == BatchReport(3, 0, 0, (0, 0, 0), (0, 0, 0), (2, 0, 1))


def test_reject_drops_the_record(study: Callable[..., Any]) -> None:
    batch = encode(
        study(),
        age=[75.0, math.nan, 50.0],
        systolic=[math.inf, 120.0, 120.0],
        weight=[126.5, math.nan, 126.5],
    )
    assert batch.z.tolist() == [[0, 0, 0]]
    assert batch.report == BatchReport(3, 2, 0, (1, 1, 1), (0, 0, 0), (0, 0, 0))
    assert batch.report.accepted == 1


def test_midpoint_puts_the_centre_in(study: Callable[..., Any]) -> None:
    batch = encode(study(missing="midpoint"), age=[75.0], systolic=[math.nan], weight=[None])
    assert batch.z.tolist() == [[2**19, 0, 0]]
    assert batch.report == BatchReport(1, 0, 0, (0, 1, 1), (0, 0, 0), (0, 0, 0))


def test_a_category_is_one_column_a_level(make_manifest: MakeManifest, draft: dict[str, Any]) -> None:
    features = [{"name": "blood", "levels": ["A", "B", "0"]}, draft["features"][0]]
    columns: dict[str, Any] = {"blood": ["B", "0", None], "age": [50.0, 50.0, 75.0]}
    manifest = make_manifest(features=features, clip_norm="1.9", fraction_bits=20, missing="midpoint")
    batch = encode(manifest, **columns)
    assert batch.z.tolist() == [[0, 2**20, 0, 0], [0, 0, 2**20, 0], [0, 0, 0, 2**19]]
    assert batch.report == BatchReport(3, 0, 0, (1, 0), (0, 0), (0, 0))
    rejecting = make_manifest(features=features, clip_norm="1.9", fraction_bits=20)
    assert encode(rejecting, **columns).z.tolist() == batch.z.tolist()[:2]


def test_a_level_is_measured_from_its_centre_and_a_missing_one_is_at_it(make_manifest: MakeManifest) -> None:
    features = [{"name": "blood", "levels": ["A", "B", "0"], "centre": ["0.5", 0.25, 0]}]
    manifest = make_manifest(features=features, clip_norm="1.5", fraction_bits=20, missing="midpoint")
    batch = encode(manifest, blood=["A", "B", "0", None])
    half, quarter = 2**19, 2**18
    assert batch.z.tolist() == [
        [half, -quarter, 0],
        [-half, 3 * quarter, 0],
        [-half, -quarter, 2**20],
        [0, 0, 0],
    ]


def test_records_that_will_be_paired_show_what_they_lack(make_manifest: MakeManifest) -> None:
    features = [{"name": "blood", "levels": ["A", "B"]}, {"name": "age", "lower": 0, "upper": 100}]
    manifest = make_manifest(features=features, release="pairs", clip_norm="1", fraction_bits=10)
    z = encode(manifest, blood=["B", None, "Z"], age=[75, "old", None]).z
    assert z.tolist() == [[0, 1024, 512], [ABSENT] * 3, [ABSENT] * 3]
    assert at_centre(z).tolist() == [[0, 1024, 512], [0] * 3, [0] * 3]


def test_long_records_keep_their_direction_and_are_counted(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(clip_norm="0.5", fraction_bits=20)
    batch = encode(manifest, age=[100.0, 60.0], systolic=[220.0, 120.0], weight=[250.5, 126.5])
    assert batch.report.clipped == 1
    length = math.sqrt((batch.z[0] ** 2).sum())
    assert 0.5 * 2**20 - 2 < length <= 0.5 * 2**20
    assert np.ptp(batch.z[0]) <= 1
    assert batch.z[1].tolist() == [round(0.2 * 2**20), 0, 0]


def test_halves_go_to_the_even_neighbour(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(features=[{"name": "x", "lower": -1, "upper": 1}], clip_norm=1, fraction_bits=4)
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5]) / 16
    assert encode(manifest, x=values).z.ravel().tolist() == [0, 2, 2, 0, -2]


def test_one_constant_column_of_one_record(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(features=[{"name": "x", "lower": 0, "upper": 1}], clip_norm="0.5")
    assert encode(manifest, x=[0.5]).z.tolist() == [[0]]
    assert encode(manifest, x=[1.0, 1.0]).z.tolist() == [[512], [512]]


def test_no_records_are_no_error(study: Callable[..., Any]) -> None:
    batch = encode(study(), age=[], systolic=[], weight=[])
    assert batch.z.shape == (0, 3)
    assert batch.report == BatchReport.empty(3)


def test_extra_and_permuted_columns_change_nothing(study: Callable[..., Any]) -> None:
    columns = {"age": [75.0], "systolic": [150.0], "weight": [60.0]}
    plain = encode(study(), **columns)
    shuffled = RecordEncoder(study()).encode({"note": ["?"], **dict(reversed(columns.items()))})
    assert np.array_equal(plain.z, shuffled.z)


def test_batches_are_independent_of_each_other(study: Callable[..., Any]) -> None:
    encoder = RecordEncoder(study(missing="midpoint"))
    columns = {name: np.linspace(-10, 300, 7) for name in ("age", "systolic", "weight")}
    whole = encoder.encode(columns)
    first = encoder.encode({name: column[:3] for name, column in columns.items()})
    second = encoder.encode({name: column[3:] for name, column in columns.items()}, first_record=3)
    assert np.array_equal(whole.z, np.vstack([first.z, second.z]))
    assert whole.report == first.report + second.report


def test_the_owners_arrays_are_left_alone(study: Callable[..., Any]) -> None:
    column = np.array([1000.0, math.nan, math.inf])
    before = column.copy()
    encode(study(), age=column, systolic=column, weight=column)
    assert np.array_equal(column, before, equal_nan=True)


@pytest.mark.parametrize("missing", ["reject", "midpoint"])
def test_what_is_no_number_and_no_level_is_the_centre_under_both_rules(
    make_manifest: MakeManifest, draft: dict[str, Any], missing: str
) -> None:
    """Dropping such records would tell the exact N how many there are."""
    features = [{"name": "blood", "levels": ["A", "B"]}, *draft["features"][:2]]
    manifest = make_manifest(features=features, clip_norm="1.9", fraction_bits=20, missing=missing)
    columns: dict[str, Any] = {
        "blood": ["B", "C", "A", np.datetime64("2020-01-01T00")],
        "age": [50.0, 75.0, "old", [1]],
        "systolic": [120.0, b"\xff", 170.0, 120.0],
    }
    batch = encode(manifest, **columns)
    assert batch.z.tolist() == [[0, 2**20, 0, 0], [0, 0, 2**19, 0], [2**20, 0, 0, 2**19], [0, 0, 0, 0]]
    assert batch.report == BatchReport(4, 0, 0, (0, 0, 0), (2, 2, 1), (0, 0, 0))


def test_only_an_empty_value_drops_a_record(study: Callable[..., Any]) -> None:
    columns: dict[str, Any] = {"age": ["old", "", None, " "], "systolic": ["x"] * 4, "weight": [126.5] * 4}
    batch = encode(study(), **columns)
    assert batch.z.tolist() == [[0, 0, 0]]
    assert batch.report == BatchReport(4, 3, 0, (3, 0, 0), (1, 4, 0), (0, 0, 0))


def test_a_strict_encoder_names_the_record_by_its_place_in_the_whole(study: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="in record 42"):
        RecordEncoder(study(), strict=True).encode(
            {"age": [1.0, "old"], "systolic": [1.0, 1.0], "weight": [1.0, 1.0]}, first_record=40
        )


def test_reports_of_different_studies_do_not_add_up() -> None:
    with pytest.raises(UsageError):
        BatchReport.empty(2) + BatchReport.empty(3)


def test_a_record_that_fails_the_integers_is_truncated_and_then_becomes_0(
    make_manifest: MakeManifest,
) -> None:
    """Floating point that went wrong, planted: the scale is 0.04 per cent too large, then 10 per cent."""
    manifest = make_manifest(
        features=[{"name": "x", "lower": -1, "upper": 1}], clip_norm="0.5", fraction_bits=10
    )
    encoder = RecordEncoder(manifest)
    assert encoder.record_bound == 512**2
    encoder._clip_norm = 0.5009
    assert encoder.encode({"x": [1.0, -1.0]}).z.tolist() == [[512], [-512]]
    encoder._clip_norm = 0.55
    batch = encoder.encode({"x": [1.0, 0.25]})
    assert batch.z.tolist() == [[0], [256]]
    assert batch.report.clipped == 1


def test_a_row_that_cannot_be_cut_to_the_bound_becomes_0(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.array([[3, 4], [6, 8], [-1, 2]], dtype=np.int64)
    assert cut_to_bound(rows, 25)[0].tolist() == [[3, 4], [3, 3], [-1, 2]]
    monkeypatch.setattr(np, "rint", lambda scaled: scaled + 5)
    monkeypatch.setattr(np, "trunc", lambda scaled: scaled + 5)
    cut, count = cut_to_bound(rows, 25)
    assert (cut.tolist(), count) == ([[3, 4], [0, 0], [-1, 2]], 1)


@pytest.mark.parametrize("bound", [1, 2, 25, 2**31 - 1, 2**31, 2**52 - 1, 2**52, 2**53 + 1, 2**61 + 12345])
def test_the_bound_is_checked_without_wrapping(bound: int) -> None:
    root = math.isqrt(bound)
    most = math.isqrt(2**63 - 1)
    rows = [
        [root, 0],
        [root + 1, 0],
        [-root, 1],
        [root, root],
        [-(2**63), 0],
        [2**63 - 1, 2**63 - 1],
        [most + 1, 0],
        [2**32, 2**32],
        [root, 1],
        [root, math.isqrt(bound - root**2)],
        [root, math.isqrt(bound - root**2) + 1],
    ]
    expected = [sum(z * z for z in row) <= bound for row in rows]
    assert obeys_bound(np.array(rows, dtype=np.int64), bound).tolist() == expected


def test_many_features_at_the_bound_do_not_wrap() -> None:
    d = 10_000
    bound = 2**62 - 1
    side = math.isqrt(bound // d)
    rows = np.full((2, d), side, dtype=np.int64)
    rows[1, 0] += d * side  # more than the bound by far
    assert obeys_bound(rows, bound).tolist() == [True, False]


def test_a_nonnegative_study_takes_no_coordinate_below_zero(
    make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = [{"name": "a", "lower": 0, "upper": 50}, {"name": "b", "lower": "2.5", "upper": 250.5}]
    manifest = make_manifest(release="masked", features=features, nonnegative=True)
    encoder = RecordEncoder(manifest)
    batch = encoder.encode({"a": [-3.0, 0.0, 50.0, math.nan], "b": [2.5, -1e300, 300.0, 2.5]})
    assert (batch.z >= 0).all()
    # Whatever goes wrong in floating point before: integers decide.
    monkeypatch.setattr(np, "rint", lambda scaled: np.floor(scaled) - 1)
    batch = encoder.encode({"a": [0.0, 50.0], "b": [30.0, 30.0]})
    assert batch.z[0].tolist() == [0, 0]
    assert (batch.z[1] > 0).all()
    assert batch.report.clipped == 2


@pytest.mark.parametrize("terms", [{"missing": "reject"}, {"missing": "midpoint"}, {"release": "pairs"}])
@pytest.mark.parametrize("d", [1, 3, 1_100])
def test_a_table_is_encoded_as_its_columns_are(
    d: int, terms: dict[str, str], make_manifest: MakeManifest
) -> None:
    manifest = make_manifest(
        **{"release": "joint", **terms},
        features=[
            {"name": f"f{i}", "lower": -1, "upper": 1 + i % 3, "centre": f"0.{i % 7}"} for i in range(d)
        ],
        clip_norm="0.9",
        fraction_bits=16,
    )
    source, encoder = Seeded(d), RecordEncoder(manifest)
    numbers = np.array([[source.below(4001) / 1000 - 2 for _ in range(d)] for _ in range(6)])
    holes = numbers / d**0.5
    holes[0, 0], holes[1, -1], holes[2, d // 2], holes[3, 0] = math.nan, math.inf, -1e300, 1e30
    for table in (numbers, holes, numbers.astype(np.float32), numbers.astype(np.int8), numbers > 0):
        plain = encoder.encode({f"f{i}": table[:, i] for i in range(d)})
        batch = encoder.encode_table(table)
        assert (batch.z == plain.z).all()
        assert (batch.long == plain.long).all()
        assert (batch.gaps == plain.gaps).all()
        told = plain.report
        assert (batch.dropped, len(batch.long)) == (told.dropped, told.clipped)
        assert tuple(batch.missing.tolist()) == told.missing
        assert tuple(batch.out_of_bounds.tolist()) == told.out_of_bounds
        rows = [encoder.encode_table(table[i : i + 1]).z for i in range(len(table))]
        assert (np.concatenate(rows) == batch.z).all()


def test_a_table_has_a_number_for_each_feature(make_manifest: MakeManifest) -> None:
    encoder = RecordEncoder(make_manifest())
    for table in (np.zeros((2, 2)), np.zeros(3), np.full((2, 3), "a")):
        with pytest.raises(UsageError, match="numbers for 3 features"):
            encoder.encode_table(table)
