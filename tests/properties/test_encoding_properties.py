"""Encoding and second moments against exact arithmetic, on records chosen to hurt."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies._internal.core import DataObject
from numpy.typing import NDArray
from study_parties import MakeManifest
from wide_studies import SEED, lift

from dpdpca_protocol.layout.blocks import BlockName, cut_blocks, whole_numbers
from dpdpca_protocol.records.encoding import RecordEncoder, cut_to_bound, obeys_bound
from dpdpca_protocol.records.projected_sums import ProjectedSums
from dpdpca_protocol.records.projection import LinearRule
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.terms.terms import LIFT_BOUND

SHARED = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=False,
)

awkward_floats = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(min_value=-1.1, max_value=1.1),
    st.sampled_from(
        [0.0, -0.0, 5e-324, -5e-324, 2.2e-308, 1.0, -1.0, 1 - 2**-53, 1 + 2**-52, math.nan, math.inf]
    ),
    # Halves of the grid, where rounding decides.
    st.integers(-2050, 2050).map(lambda k: k / 2048),
)


def exact_norm_squared(row: NDArray[np.int64] | list[int]) -> int:
    return sum(int(z) ** 2 for z in row)


@SHARED
@given(data=st.data())
def test_every_record_obeys_the_bound_in_integers(data: DataObject, make_manifest: MakeManifest) -> None:
    d = data.draw(st.integers(1, 5))
    clip_norm = data.draw(st.sampled_from(["0.02", "0.3", "0.7071067811865475", "0.999999999999", "1"]))
    manifest = make_manifest(
        features=[{"name": f"f{i}", "lower": -1, "upper": 1} for i in range(d)],
        clip_norm=clip_norm,
        fraction_bits=data.draw(st.sampled_from([10, 11, 20, 24])),
        missing=data.draw(st.sampled_from(["reject", "midpoint"])),
        max_records=1000,
    )
    rows = data.draw(st.lists(st.lists(awkward_floats, min_size=d, max_size=d), max_size=8))
    columns = {f"f{i}": np.array([row[i] for row in rows], dtype=float) for i in range(d)}
    encoder = RecordEncoder(manifest)
    batch = encoder.encode(columns)
    assert all(exact_norm_squared(row) <= encoder.record_bound for row in batch.z)

    complete = [row for row in rows if all(map(math.isfinite, row))]
    kept = complete if manifest.missing == "reject" else rows
    assert len(batch.z) == len(kept)
    assert batch.report.dropped == len(rows) - len(kept)
    r, q = float(Fraction(clip_norm)), manifest.figures.grid
    room = r - math.sqrt(d) / (2 * q)
    for row, z in zip(kept, batch.z, strict=True):
        u = [min(max(x, -1.0), 1.0) if math.isfinite(x) else 0.0 for x in row]
        norm = math.hypot(*u)
        shrink = min(1.0, room / norm) if norm > 0 else 1.0
        # Half a unit of rounding, a whole one where the record had to be truncated.
        assert all(abs(z_i - u_i * shrink * q) <= 1.0001 for z_i, u_i in zip(z.tolist(), u, strict=True))


@SHARED
@given(
    d=st.integers(1, 6),
    bits=st.integers(1, 30),
    data=st.data(),
)
def test_second_moments_are_the_brute_force_integers(d: int, bits: int, data: DataObject) -> None:
    side = st.integers(-(2**bits), 2**bits)
    rows = data.draw(st.lists(st.lists(side, min_size=d, max_size=d), min_size=1, max_size=6))
    bound = max(1, max(exact_norm_squared(row) for row in rows))
    if len(rows) * bound >= 2**62:
        rows = rows[:1]
        bound = max(1, exact_norm_squared(rows[0]))
    if bound >= 2**62:
        return
    moments = SecondMoments(d, bound)
    for row in rows:
        moments.add(np.array([row], dtype=np.int64))
    whole = SecondMoments(d, bound)
    whole.add(np.array(rows, dtype=np.int64))
    expected = [[sum(row[i] * row[j] for row in rows) for j in range(d)] for i in range(d)]
    assert moments.second_moment.tolist() == whole.second_moment.tolist() == expected
    assert whole.sum.tolist() == [sum(row[i] for row in rows) for i in range(d)]


@SHARED
@given(
    rows=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3), min_size=1, max_size=5),
    bound=st.integers(1, 2**62 - 1),
)
def test_the_integer_check_is_exact(rows: list[list[int]], bound: int) -> None:
    rows.append([math.isqrt(bound), 0, 0])
    assert obeys_bound(np.array(rows, dtype=np.int64), bound).tolist() == [
        exact_norm_squared(row) <= bound for row in rows
    ]


@settings(SHARED, max_examples=60)
@given(data=st.data(), d=st.integers(16, 30), columns=st.integers(1, 4), of_pairs=st.booleans())
def test_no_rule_of_a_lift_passes_its_bound(
    data: DataObject, d: int, columns: int, of_pairs: bool, make_manifest: MakeManifest
) -> None:
    """Whatever C, o and z are: each record adds at most B to the trace of G, and at most KB to |L|²."""
    c, o, z = (st.integers(1 - 2**bits, 2**bits - 1) for bits in (35, 51, 20))
    rows = data.draw(st.integers(8, d // 2).map(lambda half: 2 * half))
    manifest = lift(
        make_manifest,
        "pairs" if of_pairs else "records",
        features=[{"name": f"f{i}", "lower": -1, "upper": 1} for i in range(d)],
        sketch={"rows": rows, "seed": SEED},
        lift={
            "columns": columns,
            "matrix": data.draw(st.lists(several(c, rows), min_size=columns, max_size=columns)),
            "offset": [0] * columns if of_pairs else data.draw(several(o, columns)),
        },
    )
    figures = manifest.figures
    sums = ProjectedSums(figures, LinearRule.of_lift(manifest))
    before = np.zeros(figures.value_count, dtype=np.int64)
    for record in data.draw(st.lists(several(z, d), min_size=1, max_size=4)):
        if of_pairs:
            sums.add_pairs(np.array([record]), np.zeros((1, d), dtype=np.int64))
        else:
            sums.add(cut_to_bound(np.array([record]), figures.record_bound)[0])
        added = {
            name: whole_numbers(values)
            for name, values in cut_blocks(figures.blocks, sums.values() - before).items()
        }
        before = sums.values()
        diagonal = np.cumsum([0, *range(columns, 1, -1)]).tolist()
        assert sum(added[BlockName.GRAM][place] for place in diagonal) <= LIFT_BOUND
        assert exact_norm_squared(added[BlockName.LIFTED]) <= figures.record_bound * LIFT_BOUND


def several(each: st.SearchStrategy[int], count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(each, min_size=count, max_size=count)
