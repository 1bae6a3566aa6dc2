"""What clipping did and how many values are missing: exact integers, against loops, and how far one record
moves them."""

import random
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import floor, isqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from reference_data import Seeded
from scripted import SILENCE, STEPS
from study_parties import MakeManifest

from dpdpca_protocol.errors import PolicyError, UsageError
from dpdpca_protocol.layout.blocks import CLIPPING, TOLD, BlockName, gap_bound
from dpdpca_protocol.pads.chunks import MAGNITUDE_LIMIT
from dpdpca_protocol.privacy.mechanisms import Gaussian, Laplace, Quantity, Setting, SharedGaussian
from dpdpca_protocol.privacy.sensitivity import block_sensitivity_squared, joint_sensitivity_squared
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.block_sums import BlockSums, new_sums
from dpdpca_protocol.records.clipping import ClippedRows
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.pairing import KeyStream, pairs, shuffled
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.reference import owner_sums, run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED, Pads
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.terms.manifest import Manifest

SEED = 41
NAN = float("nan")
FEATURES = [{"name": "a", "lower": -8, "upper": 8}, {"name": "b", "lower": -1, "upper": 1}]
TERMS: dict[str, Any] = {
    "features": FEATURES,
    "missing": "midpoint",
    "clip_norm": "0.5",
    "clip_share": "0.005",
    "clip_cap": "0.875",
    "max_records": 1000,
}


def rows_of(seed: int, count: int) -> list[list[Fraction]]:
    """Scaled rows with few binary digits, of which doubles make exact squares."""
    source = random.Random(seed)
    return [[Fraction(source.randint(-64, 64), 64) for _ in range(2)] for _ in range(count)]


def columns(rows: list[list[Fraction]]) -> dict[str, Any]:
    return {"a": [float(8 * row[0]) for row in rows], "b": [float(row[1]) for row in rows]}


def told_about_records(manifest: Manifest, rows: list[list[Fraction]]) -> tuple[int, int]:
    """Section 4: records longer than r − √d/(2q), and their squares up to C."""
    q, r, cap = manifest.figures.grid, Fraction(manifest.clip_norm), Fraction(manifest.clip_cap)
    squares = [sum(x * x for x in row) for row in rows]
    margin = Fraction(isqrt(2 * 10**40), 2 * q * 10**20)
    long = [square for square in squares if square > (r - margin) ** 2]
    return len(long), sum(min(floor(square * q**2), floor(cap**2 * q**2)) for square in long)


def told_about_pairs(manifest: Manifest, rows: list[list[Fraction]], seed: int) -> tuple[int, int]:
    q, bound, cap = manifest.figures.grid, manifest.figures.record_bound, Fraction(manifest.clip_cap)
    z = [[round(x * q) for x in row] for row in rows]
    order = shuffled(len(z), KeyStream(Seeded(seed).bytes(32))).tolist()
    pairs = [(z[order[k]], z[order[k + 1]]) for k in range(0, len(z) - 1, 2)]
    squares = [sum((x - y) ** 2 for x, y in zip(*pair, strict=True)) for pair in pairs]
    long = [square for square in squares if square > bound]
    return len(long), sum(min(square, floor(cap**2 * q**2)) for square in long)


@pytest.mark.parametrize("cipher", [UNENCRYPTED, Pads(OS_RANDOMNESS)], ids=["unencrypted", "pads"])
@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_a_study_tells_what_loops_find(make_manifest: MakeManifest, cipher: Any, release: str) -> None:
    manifest = make_manifest(**TERMS, release=release, suite="pads")
    rows = rows_of(1, 301)
    released = run_study(manifest, [columns(rows)], Seeded(5), SILENCE, cipher)
    assert isinstance(released, NoisyScatter)
    told = told_about_records(manifest, rows)
    if release == "pairs":
        told = told_about_pairs(manifest, rows, 5)
    assert released.clipped == told
    assert 50 < told[0] < released.count
    assert released.gaps == 0


@pytest.mark.parametrize("cipher", [UNENCRYPTED, Pads(OS_RANDOMNESS)], ids=["unencrypted", "pads"])
@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_a_study_tells_how_many_values_are_missing(
    make_manifest: MakeManifest, cipher: Any, release: str
) -> None:
    """Levels are missing together, an unusable value counts too, and at most half of a record counts."""
    features = [*FEATURES, {"name": "c", "levels": ["x", "y", "z"]}]
    manifest = make_manifest(**TERMS | {"features": features}, release=release, suite="pads")
    some: list[tuple[list[Any], int]] = [
        ([1.0, 0.5, "x"], 0),
        ([None, 0.5, "y"], 1),
        ([float("nan"), "text", "z"], 2),
        ([1.0, 0.5, None], 3),
        ([1.0, None, "w"], 3),
        ([None, None, None], 3),
    ]
    rows = [row for row, _ in some] * 7
    columns = {name: [row[k] for row in rows] for k, name in enumerate("abc")}
    released = run_study(manifest, [columns], Seeded(5), SILENCE, cipher)
    assert isinstance(released, NoisyScatter)
    assert released.gaps == 7 * sum(gaps for _, gaps in some)


@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_gaps_are_told_only_where_a_missing_value_is_the_centre(
    make_manifest: MakeManifest, release: str
) -> None:
    told = make_manifest(**TERMS, release=release).figures
    assert told.blocks[-1].name is BlockName.GAPS
    assert told.blocks[-1].bound == 1000
    silent = {name: value for name, value in TERMS.items() if name not in ("clip_share", "clip_cap")}
    assert BlockName.GAPS not in {
        block.name for block in make_manifest(**silent, release=release).figures.blocks
    }
    if release == "joint":
        dropping = make_manifest(**TERMS | {"missing": "reject"}, release=release)
        assert tuple(block.name for block in dropping.figures.blocks[-2:]) == CLIPPING
        assert dropping.figures.noise_scale < told.noise_scale
        noisy = run_study(dropping, [columns(rows_of(1, 9))], Seeded(5), SILENCE, UNENCRYPTED)
        assert isinstance(noisy, NoisyScatter)
        assert noisy.gaps is None


@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_owners_add_up(make_manifest: MakeManifest, release: str) -> None:
    manifest = make_manifest(**TERMS, release=release, noise_by="owners", min_owners=2, max_colluding=1)
    parts = [rows_of(seed, 40) for seed in (1, 2, 3)]
    apart = [run_study(manifest, [columns(part)], Seeded(5), SILENCE, UNENCRYPTED) for part in parts]
    together = run_study(manifest, [columns(part) for part in parts], Seeded(5), SILENCE, UNENCRYPTED)
    noisy = run_study(manifest, [columns(part) for part in parts], Seeded(5), STEPS, UNENCRYPTED)
    assert isinstance(together, NoisyScatter)
    assert isinstance(noisy, NoisyScatter)
    if release == "joint":  # pairs are shuffled with another seed for each owner
        clipped = [each.clipped for each in apart if isinstance(each, NoisyScatter)]
        assert together.clipped == tuple(map(sum, zip(*filter(None, clipped), strict=True)))
    assert noisy.clipped is not None
    assert together.clipped is not None
    assert all(a != b for a, b in zip(noisy.clipped, together.clipped, strict=True))
    assert (together.gaps, noisy.gaps != 0) == (0, True)


# --- sensitivity ------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(1, 2**40))
def test_a_row_adds_at_most_one_and_at_most_the_bound(lengths: list[int], bound: int) -> None:
    """Whatever the lengths are, also if floating point had gone wrong."""
    rows = ClippedRows(bound)
    for length in lengths:
        before = rows.values
        rows.add(np.array([length], dtype=np.int64))
        assert rows.count == before[0] + 1
        assert 0 <= rows.squares - before[1] <= bound
    whole = ClippedRows(bound)
    whole.add(np.array(lengths, dtype=np.int64))
    assert whole.values == rows.values


@given(st.lists(st.integers(0, 2**40), max_size=20), st.integers(1, 2**20))
def test_a_record_adds_at_most_the_bound_to_the_gaps(counts: list[int], bound: int) -> None:
    rows, whole = ClippedRows(1, 0, bound), ClippedRows(1, 0, bound)
    for count in counts:
        before = rows.values[2]
        rows.add_gaps(np.array([count], dtype=np.int64))
        assert rows.values[2] - before == min(count, bound)
    half = len(counts) // 2
    whole.add_gaps(np.array(counts[:half], dtype=np.int64))
    other = ClippedRows(1, 0, bound)
    other.add_gaps(np.array(counts[half:], dtype=np.int64))
    whole.merge(other)
    assert whole.values == rows.values


@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_no_neighbours_on_a_grid_pass_the_bounds_and_some_reach_them(
    make_manifest: MakeManifest, release: str
) -> None:
    """All records on a coarse grid, beside every partner on it."""
    manifest = make_manifest(**TERMS, release=release)
    figures, encoder, side = manifest.figures, RecordEncoder(manifest), (-1.0, -0.5, 0.0, 0.4, 1.0, NAN)
    claimed = [
        block_sensitivity_squared(name, 2, figures.record_bound, figures.mechanism.setting.clip_bound)
        for name in TOLD
    ]
    worst = [0, 0, 0]
    for partner in product(side, repeat=2):
        told = []
        for record in product(side, repeat=2):
            encoded = encoder.encode({"a": [8 * record[0], 8 * partner[0]], "b": [record[1], partner[1]]})
            told.append(owner_sums(figures, encoded.z, encoded.long, gaps=encoded.gaps)[-3:])
        for k in range(3):
            values = [each[k] for each in told]
            worst[k] = max(worst[k], max(values) - min(values))
    assert [each**2 for each in worst] == claimed


@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_any_values_move_the_sums_by_no_more(make_manifest: MakeManifest, release: str) -> None:
    """Random records of all sizes, some beyond every bound, one of them replaced."""
    manifest = make_manifest(**TERMS, release=release)
    figures, encoder, source = manifest.figures, RecordEncoder(manifest), random.Random(SEED)
    bound = figures.mechanism.setting.clip_bound

    def value() -> Any:
        odd = (float("nan"), float("inf"), -1e300, 1e300, 5e-324, None, "text")
        return source.choice(odd) if source.random() < 0.3 else source.uniform(-9, 9)

    def told(rows: list[list[Any]]) -> NDArray[np.object_]:
        encoded = encoder.encode({"a": [row[0] for row in rows], "b": [row[1] for row in rows]})
        return np.array(owner_sums(figures, encoded.z, encoded.long, gaps=encoded.gaps)[-3:], dtype=object)

    for _ in range(300):
        rows = [[value(), value()] for _ in range(4)]
        moved = told(rows) - told([[value(), value()], *rows[1:]])
        assert abs(moved[0]) <= 1
        assert abs(moved[1]) <= bound
        assert abs(moved[2]) <= gap_bound(2)


# --- noise and ρ ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_by", ["proxy", "owners"])
@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_the_parts_of_rho_are_the_stated_ones_and_add_up(
    make_manifest: MakeManifest, release: str, noise_by: str
) -> None:
    s = Fraction("0.05")
    figures = make_manifest(**TERMS | {"clip_share": "0.05"}, release=release, noise_by=noise_by).figures
    mechanism, K, C = figures.mechanism, figures.record_bound, figures.mechanism.setting.clip_bound
    assert isinstance(mechanism, Gaussian)
    assert int((Fraction("0.875") * figures.grid) ** 2) == C
    moved = Fraction(2 * K**2) if release == "pairs" else joint_sensitivity_squared(K, figures.alpha_squared)
    spent = {
        "matrix": moved / (2 * mechanism.scale**2),
        "rows": 1 / (2 * mechanism.variance(BlockName.CLIPPED)),
        "squares": C**2 / (2 * mechanism.variance(BlockName.CLIPPED_SQUARES)),
        "gaps": gap_bound(2) ** 2 / (2 * mechanism.variance(BlockName.GAPS)),
    }
    rho = sum(spent.values())
    excess = figures.rho - rho
    assert spent["rows"] == spent["squares"] == spent["gaps"] == s * rho
    assert spent["matrix"] == (1 - 3 * s) * rho
    assert excess == 0 if noise_by == "proxy" else 0 < excess < figures.rho / 64
    assert figures.rho <= figures.rho_total
    assert figures.rho > figures.rho_total * (1 - Fraction(1, 10**6))


def test_draws_have_the_order_of_the_values(make_manifest: MakeManifest) -> None:
    figures = make_manifest(**TERMS, release="joint").figures
    asked: list[tuple[Fraction, int]] = []

    def gaussian(variance: Fraction, count: int, bound: int) -> list[int]:
        asked.append((variance, count))
        return [len(asked)] * count

    noise = figures.mechanism.draw(1, type(STEPS)(gaussian=gaussian))
    assert len(noise) == figures.value_count == 1 + 2 + 3 + 3
    assert noise[0] == 0
    assert noise[-3:] == [len(asked) - 2, len(asked) - 1, len(asked)]
    assert asked[-3:] == [(figures.block_variance(name), 1) for name in TOLD]


@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_an_owners_part_has_an_mth_of_each_variance(make_manifest: MakeManifest, release: str) -> None:
    manifest = make_manifest(**TERMS, release=release, noise_by="owners", min_owners=3, max_colluding=1)
    mechanism = manifest.figures.mechanism
    assert isinstance(mechanism, SharedGaussian)
    asked: list[Fraction] = []

    def gaussian(variance: Fraction, count: int, bound: int) -> list[int]:
        asked.extend([variance] * count)
        return [7] * count

    share = list(mechanism.share(type(STEPS)(gaussian=gaussian)))
    assert len(share) == manifest.figures.value_count
    assert asked[-3:] == [mechanism.variance(name) / 2 for name in TOLD]
    d = 2
    assert len(mechanism.draw_triangle(1)) == d * (d + 1) // 2
    assert len(mechanism.draw_told()) == 3


# --- terms ------------------------------------------------------------------------------------------------


def test_a_study_without_the_member_is_what_it_was(make_manifest: MakeManifest) -> None:
    plain = {name: value for name, value in TERMS.items() if not name.startswith("clip_s")}
    del plain["clip_cap"]
    for release in ("joint", "pairs"):
        manifest = make_manifest(**plain, release=release)
        assert not {"clip_share", "clip_cap"} & manifest.to_body().keys()
        assert not set(TOLD) & {block.name for block in manifest.figures.blocks}
        sums = new_sums(manifest.figures)
        if isinstance(sums, SecondMoments):
            sums.add_clipped(np.array([1, 2, 3]))  # nothing asks for it
        else:
            assert isinstance(sums, BlockSums)
            for pair in pairs([np.full((4, 2), 10**4)]):
                sums.add_pairs(*pair)
        assert len(list(sums.stream())) == manifest.figures.value_count


def test_a_cap_that_is_left_out_is_the_longest_row(make_manifest: MakeManifest) -> None:
    terms = {name: value for name, value in TERMS.items() if name != "clip_cap"}
    for release, longest in (("joint", 2), ("pairs", 8)):
        manifest = make_manifest(**terms, release=release)
        assert "clip_cap" not in manifest.to_body()
        beyond = make_manifest(**terms, release=release, clip_cap="1000")
        assert beyond.figures.mechanism.setting == manifest.figures.mechanism.setting
        assert manifest.figures.mechanism.setting.clip_bound == longest * manifest.figures.grid**2


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"clip_share": "0.100001"}, "at most 0.1"),
        ({"clip_share": "-0.01"}, "above 0"),
        ({"clip_cap": "0.499"}, "below clip_norm"),
        ({"clip_cap": "-1"}, "below 0"),
        ({"clip_share": "0"}, "no meaning without clip_share"),
        ({"mechanism": "laplace"}, "only for the gaussian"),
    ],
)
def test_terms_that_no_party_accepts(
    make_manifest: MakeManifest, changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PolicyError, match=reason):
        make_manifest(**TERMS | changed, release="joint")


@pytest.mark.parametrize("release", ["masked", "pre-study"])
def test_a_draft_of_another_release_drops_the_members(make_manifest: MakeManifest, release: str) -> None:
    blocks = {"blocks": {"sum": "1"}} if release == "pre-study" else {}
    manifest = make_manifest(**TERMS, **blocks, release=release)
    assert manifest.clip_share == manifest.clip_cap == 0


@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_rows_of_one_length_are_told_in_a_coarser_unit(make_manifest: MakeManifest, release: str) -> None:
    terms = TERMS | {"clip_norm": "0.000244140625", "max_records": 2**24}
    manifest = make_manifest(**terms, release=release, suite="pads")
    figures, C = manifest.figures, manifest.figures.mechanism.setting.clip_bound
    whole = int((Fraction("0.875") * figures.grid) ** 2)
    assert C.bit_length() == 61 - 25 < whole.bit_length()
    assert whole >> figures.clip_shift == C
    rows = rows_of(2, 101)
    noisy = run_study(manifest, [columns(rows)], Seeded(5), SILENCE, UNENCRYPTED)
    assert isinstance(noisy, NoisyScatter)
    assert noisy.clipped is not None
    if release == "joint":
        squares = [floor(sum(x * x for x in row) * figures.grid**2) for row in rows]
        assert noisy.clipped[1] == sum(min(square >> figures.clip_shift, C) for square in squares)


def test_sums_with_noise_stay_below_the_limit_of_pads(make_manifest: MakeManifest) -> None:
    blocks = {block.name: block for block in make_manifest(**TERMS, release="pairs").figures.blocks}
    squares = blocks[BlockName.CLIPPED_SQUARES]
    assert squares.bound + squares.tail < MAGNITUDE_LIMIT
    assert blocks[BlockName.CLIPPED].bound == 500
    assert squares.tail >= 13 * float(squares.bound / 500) / (2 * 0.005 * 0.02) ** 0.5 / 100


def test_a_mechanism_without_a_proof_tells_nothing() -> None:
    setting = Setting(
        Quantity.JOINT,
        2,
        100,
        Fraction(1),
        Fraction(1, 10**6),
        Fraction(43),
        clip_share=Fraction(1, 200),
        clip_bound=200,
    )
    with pytest.raises(UsageError, match="no noise for what clipping did"):
        Laplace.calibrated(setting).draw(1)
    with pytest.raises(UsageError, match="only a release that tells what clipping did"):
        replace(setting, clip_share=Fraction(0), clip_bound=0, tells_gaps=True)
    with pytest.raises(UsageError, match="only a joint release and pairs"):
        Setting(
            Quantity.SCATTER,
            2,
            100,
            Fraction(1),
            Fraction(1, 10**6),
            clip_share=Fraction(1, 200),
            clip_bound=200,
        )
