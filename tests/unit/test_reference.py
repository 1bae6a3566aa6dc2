"""`run_study` against loops over Python's integers and against scikit-learn, for every kind of release.

The loops below are written from docs/spec.md and share nothing with the product but the law of the noise.
"""

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from reference_data import Seeded
from scripted import SILENCE, STEPS
from sklearn.decomposition import PCA
from small_studies import KINDS, OWNERS, records
from study_parties import MakeManifest

from dpdpca_protocol.errors import CryptographicError, InputError, UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.pads.streams import CHUNK_VALUES
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.privacy.mechanisms import SharedGaussian
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.pairing import KeyStream, shuffled
from dpdpca_protocol.reference import Released, run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED, Cipher, Pads, Paillier
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import EncodedSpace, fit_components
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest

Floats = NDArray[np.float64]
Rows = list[list[int]]
Gaps = list[list[int | None]]


@pytest.fixture(params=KINDS)
def manifest(request: pytest.FixtureRequest, make_manifest: MakeManifest) -> Manifest:
    return make_manifest(**KINDS[request.param])


@pytest.fixture(params=["unencrypted", "encrypted"])
def cipher(request: pytest.FixtureRequest, toy_key: SecretKey) -> Cipher[Any]:
    return UNENCRYPTED if request.param == "unencrypted" else Paillier(toy_key, OS_RANDOMNESS)


# --- the oracle -------------------------------------------------------------------------------------------


def encoded(manifest: Manifest, columns: dict[str, Any]) -> Gaps:
    """Steps 1 to 3 of section 4, None for a missing value; nothing here is longer than the clip norm."""
    q, rows = manifest.figures.grid, Gaps()
    for a, b, level in zip(columns["a"], columns["b"], columns["c"], strict=True):
        u: list[Fraction | None] = [None] * 4
        if a is not None:
            u[0] = (min(max(Fraction(a), Fraction(-8)), Fraction(24)) - 8) / 16
        if b is not None:
            u[1] = (min(max(Fraction(b), Fraction(0)), Fraction(1)) - Fraction(1, 4)) / Fraction(1, 2)
        if level is not None:
            u[2:] = (level == "x") - Fraction(1, 2), (level == "y") - Fraction(1, 4)
        rows.append([None if x is None else round(x * q) for x in u])  # halves to even
    assert all(sum(x * x for x in z) < manifest.figures.record_bound for z in filled(rows))
    return rows


def filled(rows: Gaps) -> Rows:
    return [[x or 0 for x in z] for z in rows]


def pairs(rows: Gaps, randomness: Seeded) -> list[tuple[list[int | None], list[int | None]]]:
    """The pairs in the order that the randomness gives."""
    order = shuffled(len(rows), KeyStream(randomness.bytes(32))).tolist()
    return [(rows[order[k]], rows[order[k + 1]]) for k in range(0, len(rows) - 1, 2)]


def squared(row: Sequence[int]) -> int:
    return sum(x * x for x in row)


def triangle(rows: Rows, d: int) -> list[int]:
    return [sum(z[i] * z[j] for z in rows) for i in range(d) for j in range(i, d)]


def norm_bins(bound: int, rows: Rows) -> list[int]:
    """s = Σ z² is in the first bin b of 48 with s ≤ K·2^((b−48)/2), else in the last."""
    squares = [sum(x * x for x in z) for z in rows]
    bins = [next((b for b in range(48) if s * s << (48 - b) <= bound**2), 48) for s in squares]
    return [bins.count(b) for b in range(49)]


def octave_bins(q: int, values: Sequence[int]) -> list[int]:
    """y is in the first octave o of 11 with y² ≤ 2q²·4^(o−11), else in the last."""
    bins = [next((o for o in range(11) if y * y * 4 ** (11 - o) <= 2 * q * q), 11) for y in values]
    return [bins.count(o) for o in range(12)]


def plain_sums(manifest: Manifest, columns: dict[str, Any], randomness: Seeded) -> list[int]:
    """What one owner's share holds, section 6."""
    gaps, figures = encoded(manifest, columns), manifest.figures
    rows = filled(gaps)
    d, q, bound = 4, figures.grid, figures.record_bound
    sums = [sum(z[i] for z in rows) for i in range(d)]
    told = [0, 0] if manifest.clip_share else []  # nothing here is clipped
    if manifest.terms.tells_gaps:
        told.append(sum(min(row.count(None), 2) for row in gaps))
    if manifest.release in (ReleaseKind.JOINT, ReleaseKind.MASKED):
        return [len(rows), *sums, *triangle(rows, d), *told]
    paired = pairs(gaps, randomness)
    y = [[0 if a is None or b is None else a - b for a, b in zip(z, x, strict=True)] for z, x in paired]
    assert all(squared(each) < bound for each in y)
    if manifest.release is ReleaseKind.PAIRS:
        return [len(y), *triangle(y, d), *told]
    octaves = [count for j in range(d) for count in octave_bins(q, [each[j] for each in y])]
    at_centre = [filled([z, x]) for z, x in paired]
    far = sum(
        4 * sum(a * b for a, b in zip(z, x, strict=True)) > squared(z) + squared(x) for z, x in at_centre
    )
    return [len(rows), *norm_bins(bound, rows), *norm_bins(2 * bound, y), *sums, *octaves, far]


def expected(
    manifest: Manifest, randomness: Seeded, noise: Samplers, owners: Sequence[dict[str, Any]] = OWNERS
) -> Any:
    """The release by sections 8 and 9, the mask left out."""
    figures = manifest.figures
    totals = [
        sum(parts) for parts in zip(*(plain_sums(manifest, o, randomness) for o in owners), strict=True)
    ]
    if isinstance(figures.mechanism, SharedGaussian):
        parts = [list(figures.mechanism.share(noise)) for _ in owners]
        drawn = [sum(each) for each in zip(*parts, strict=True)]
    else:
        drawn = figures.mechanism.draw(totals[0], noise)
    if manifest.release is ReleaseKind.MASKED:
        n, v, r = totals[0], totals[1:5], square(totals[5:])
        h = square(drawn)
        return n, None, [[n * r[i][j] - v[i] * v[j] + h[i][j] for j in range(4)] for i in range(4)], None
    noisy = [x + g for x, g in zip(totals, drawn, strict=True)]
    told = None
    if manifest.clip_share:
        told = (tuple(noisy[-3:-1]), noisy[-1]) if manifest.terms.tells_gaps else (tuple(noisy[-2:]), None)
    if manifest.release is ReleaseKind.PAIRS:
        return noisy[0], None, square(noisy[1:]), told
    if manifest.release is ReleaseKind.JOINT:
        n, v, r = noisy[0], noisy[1:5], square(noisy[5:])
        return n, v, [[n * r[i][j] - v[i] * v[j] for j in range(4)] for i in range(4)], told
    return noisy


def square(upper: Sequence[int]) -> Rows:
    entries = iter(upper)
    found = {(i, j): next(entries) for i in range(4) for j in range(i, 4)}
    return [[found[min(i, j), max(i, j)] for j in range(4)] for i in range(4)]


# --- the reference ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [SILENCE, STEPS], ids=["no noise", "known noise"])
def test_a_study_releases_the_sums_that_loops_find(
    manifest: Manifest, cipher: Cipher[Any], noise: Samplers
) -> None:
    released = run_study(manifest, OWNERS, Seeded(5), noise, cipher)
    assert plain(manifest, released) == expected(manifest, Seeded(5), noise)


@pytest.mark.parametrize("noise", [SILENCE, STEPS], ids=["no noise", "known noise"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "masked" not in kind])
def test_pads_release_the_sums_that_loops_find(
    make_manifest: MakeManifest, kind: str, noise: Samplers
) -> None:
    manifest = make_manifest(**KINDS[kind])
    released = run_study(manifest, OWNERS, Seeded(5), noise, Pads(OS_RANDOMNESS))
    assert plain(manifest, released) == expected(manifest, Seeded(5), noise)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "masked" not in kind])
def test_a_study_under_pads_is_the_same_without_encryption(make_manifest: MakeManifest, kind: str) -> None:
    manifest = make_manifest(**KINDS[kind], suite="pads")
    released = [
        run_study(manifest, OWNERS, Seeded(5), STEPS, cipher) for cipher in (UNENCRYPTED, Pads(OS_RANDOMNESS))
    ]
    assert released[0] == released[1]
    assert plain(manifest, released[0]) == expected(manifest, Seeded(5), STEPS)


def test_pads_of_several_chunks_open_to_signed_sums() -> None:
    pads, count = Pads(OS_RANDOMNESS), CHUNK_VALUES + 3
    values = [(-1) ** i * (2**61 - i) for i in range(count)]
    hidden = pads.add_plain(pads.add(pads.encrypt(values), pads.encrypt([-1] * count)), range(count))
    assert pads.decrypt(hidden) == [value - 1 + i for i, value in enumerate(values)]
    assert len(set(np.concatenate(hidden.chunks).tolist())) == count
    assert repr(hidden) == "Padded(…)"


def test_padded_values_never_look_the_same() -> None:
    first, second = (Pads(OS_RANDOMNESS).encrypt([1, 2, 3, 4]) for _ in range(2))
    assert len({*first.chunks[0].tolist(), *second.chunks[0].tolist()}) == 8
    assert first.keys != second.keys


def test_pads_hide_no_masked_study(make_manifest: MakeManifest) -> None:
    with pytest.raises(UsageError):
        run_study(make_manifest(**KINDS["masked"]), OWNERS, Seeded(5), SILENCE, Pads(OS_RANDOMNESS))


def plain(manifest: Manifest, released: Released) -> Any:
    """A release in the form of `expected`."""
    found: Any
    if isinstance(released, NoisyScatter):
        sums = None if released.sum is None else list(released.sum)
        rows = [list(row) for row in released.scaled_scatter]
        told = None if released.clipped is None else (released.clipped, released.gaps)
        found = released.count, sums, rows, told
        assert released.of_pairs == (manifest.release is ReleaseKind.PAIRS)
    else:
        assert list(released) == [block.name for block in manifest.figures.blocks]
        found = [value for values in released.values() for value in values]
    return found


NO_NUMBERS: list[Any] = ["old", "1,5", b"\xff", [1], 2j, date(2020, 1, 1), timedelta(1)]
NO_LEVELS: list[Any] = ["z", 7, "X", b"\xff", {"x"}, 2j, datetime(2020, 1, 1)]
CENTRE = {"a": 8, "b": 0.25, "c": None}


def spoilt(columns: dict[str, Any], seed: int, missing: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The records with values that no feature takes, and the same with the centre, or nothing, instead."""
    source = Seeded(seed)
    rows = [
        dict(zip("abc", row, strict=True)) for row in zip(*(columns[name] for name in "abc"), strict=True)
    ]
    counted = [dict(row) for row in rows]
    for row, other in zip(rows, counted, strict=True):
        for name in "abc":
            if source.below(3) == 0:
                odd = NO_LEVELS if name == "c" else NO_NUMBERS
                row[name] = odd[source.below(len(odd))]
                other[name] = CENTRE[name] if missing == "reject" else None
    if missing == "reject":
        kept = [place for place, row in enumerate(rows) if row["c"] is not None]
        counted = [counted[place] for place in kept]
    assert counted
    return tuple({name: [row[name] for row in each] for name in "abc"} for each in (rows, counted))  # type: ignore[return-value]  # two of them


@pytest.mark.parametrize("missing", ["midpoint", "reject"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_no_feature_takes_counts_as_the_centre(
    make_manifest: MakeManifest, kind: str, missing: str
) -> None:
    """Also where records with a missing value are dropped: N and all sums are those of the filled records."""
    if missing == "reject" and kind.startswith(("pairs", "pre-study")):
        missing = "midpoint"  # records are paired only where every record counts
    manifest = make_manifest(**KINDS[kind] | {"missing": missing})
    owners = [spoilt(columns, seed, missing) for seed, columns in enumerate(OWNERS[:2])]
    released = run_study(manifest, [rows for rows, _ in owners], Seeded(5), STEPS, UNENCRYPTED)
    assert plain(manifest, released) == expected(
        manifest, Seeded(5), STEPS, [counted for _, counted in owners]
    )


def test_noise_changes_every_number_but_the_count(manifest: Manifest) -> None:
    """The known noise is one that would be missed."""
    silent, noisy = (run_study(manifest, OWNERS, Seeded(5), noise, UNENCRYPTED) for noise in (SILENCE, STEPS))
    if isinstance(silent, NoisyScatter):
        assert isinstance(noisy, NoisyScatter)
        assert silent.count == noisy.count
        assert np.not_equal(silent.scaled_scatter, noisy.scaled_scatter).mean() > 0.9
    else:
        assert not isinstance(noisy, NoisyScatter)
        assert silent[BlockName.COUNT] == noisy[BlockName.COUNT]
        assert all(silent[name] != noisy[name] for name in silent if name is not BlockName.COUNT)


@pytest.mark.parametrize("kind", ["joint", "masked"])
def test_it_does_not_matter_who_holds_a_record(make_manifest: MakeManifest, kind: str) -> None:
    manifest, whole = make_manifest(**KINDS[kind]), records(4, 12)
    parts = [{name: column[k::5] for name, column in whole.items()} for k in range(5)]
    once, shared = (run_study(manifest, o, OS_RANDOMNESS, STEPS, UNENCRYPTED) for o in ([whole], parts))
    assert once == shared


def test_a_study_of_no_record_or_of_too_many_ends_without_a_release(manifest: Manifest) -> None:
    none: dict[str, Any] = {"a": [], "b": [], "c": []}
    twice = 2 if manifest.release is ReleaseKind.PAIRS else 1
    for owners in ([none], [records(1, 60 * twice), records(2, 41 * twice)]):
        with pytest.raises(CryptographicError) as caught:
            run_study(manifest, owners, OS_RANDOMNESS, SILENCE, UNENCRYPTED)
        assert caught.value.slug == "count-out-of-range"


def test_records_that_do_not_fit_are_refused(manifest: Manifest) -> None:
    with pytest.raises(InputError):
        run_study(manifest, [{"a": [1.0]}], OS_RANDOMNESS, SILENCE, UNENCRYPTED)


def made_up(seed: int, count: int) -> Floats:
    rng = np.random.default_rng(seed)  # noqa: TID251 - made-up records, not noise, masks or keys
    latent = rng.normal(size=(count, 2))
    raw = latent @ rng.normal(size=(2, 4)) + 0.3 * rng.normal(size=(count, 4)) + rng.normal(size=4)
    return raw * [6, 0.2, 700, 0.2] + [8, 0.4, 3000, 0.05]  # some lie out of bounds and are clipped


@pytest.mark.parametrize("release", ["joint", "masked", "pairs"])
@pytest.mark.parametrize("scaling", ["range", "common"])
def test_without_noise_it_is_pca_of_the_pooled_encoded_records(
    make_manifest: MakeManifest, cipher: Cipher[Any], release: str, scaling: str
) -> None:
    features = [
        {"name": "a", "lower": -10, "upper": 30},
        {"name": "b", "lower": 0, "upper": 1, "centre": "0.25"},
        {"name": "c", "lower": 1000, "upper": 5000},
        {"name": "d", "lower": "-0.5", "upper": 0.5},
    ]
    manifest = make_manifest(
        features=features,
        missing="midpoint",
        release=release,
        scaling=scaling,
        clip_norm="4" if release == "pairs" else "1.2",  # the oracle cuts no difference
        max_records=500,
    )
    raw = [made_up(seed, count) for seed, count in enumerate((60, 25, 90))]
    owners = [{name: rows[:, j] for j, name in enumerate("abcd")} for rows in raw]
    opened = run_study(manifest, owners, Seeded(1), SILENCE, cipher)

    assert isinstance(opened, NoisyScatter)
    space = EncodedSpace.of(manifest)
    components = fit_components(opened, manifest.figures, space)
    z = [RecordEncoder(manifest).encode(columns).z for columns in owners]
    if release == "pairs":
        randomness, y = Seeded(1), []
        for each in z:
            order = shuffled(len(each), KeyStream(randomness.bytes(32)))
            y.append(each[order][0 : len(each) // 2 * 2 : 2] - each[order][1::2])
        # With their opposites, differences have the mean 0; the covariance ½ Σ y yᵀ/m is half of theirs.
        differences = np.concatenate([*y, *(-each for each in y)]) / units(manifest, space)
        assert opened.count == len(differences) // 2 == 30 + 12 + 45
        plain = PCA().fit(differences)
        variances = plain.explained_variance_ * (len(differences) - 1) / len(differences) / 2
    else:
        pooled = np.concatenate(z) / units(manifest, space)
        assert opened.count == len(pooled) == 175
        plain = PCA().fit(pooled)
        variances = plain.explained_variance_
    np.testing.assert_allclose(components.eigenvalues, variances, rtol=1e-9)
    signs = np.sign(np.sum(components.vectors * plain.components_, axis=1))[:, None]
    np.testing.assert_allclose(components.vectors, signs * plain.components_, atol=1e-9)
    if release == "joint":
        assert components.mean is not None
        mean = space.centre + space.half_range * np.concatenate(z).mean(axis=0) / manifest.figures.grid
        np.testing.assert_allclose(components.mean, mean, rtol=1e-9)


def units(manifest: Manifest, space: EncodedSpace) -> float:
    """Grid units in one unit of the metric."""
    return manifest.figures.grid / space.unit
