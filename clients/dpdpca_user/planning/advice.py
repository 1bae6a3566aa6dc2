"""Advice on a draft: sentences for its author about what could be better. No advice stops a study."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.records.encoding import RecordEncoder, cut_to_bound
from dpdpca_protocol.records.pairing import differences
from dpdpca_protocol.terms.figures import figures_of
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.planning.clipping import CLIP_CAP, CLIP_SHARE
from dpdpca_user.planning.draft import default_delta
from dpdpca_user.planning.histograms import feature_scale, quantile
from dpdpca_user.planning.noise import usual_norm
from dpdpca_user.planning.placement import placements
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.planning.sample import finite_numbers, room_for

_HIGH_CLIP = 0.7
_RULE_CLIP = 0.35
_WIDE = 5.0
_NARROW = 1e-6
"""Relative width of bounds below which they are probably a mistake."""
_LONG_CAP = 2.0
"""The advice names clip_cap if lengths count that are longer than a good one by more than this factor."""
_USUAL_CAP = 2.0
"""A good clip_cap, in units of the usual length of rows, if the clip norm is far below that."""
_COSTLY = 1.05
"""The advice names max_records if its excess multiplies the noise by at least this factor."""
_MANY = 20
_MASKED_OVER_JOINT = {False: "2.3 to 2.8", True: "1.4 to 1.7"}
"""Noise of the masked release divided by that of the joint release, for a/K of 0.43 and 0.05, by
`nonnegative`."""


def advice(manifest: Manifest, records: int | None = None, *, of_chain: bool = False) -> list[str]:
    """Advice from the draft alone and, if given, the expected number of records.

    Args:
        manifest: the draft's manifest; for the base of a chain, that of its joint study.
        records: the expected number of records.
        of_chain: whether a chain will choose centres and clip norm.
    """
    return list(_advice(manifest, records, of_chain))


def _advice(manifest: Manifest, records: int | None, of_chain: bool) -> Iterator[str]:
    if manifest.release.has_components and not of_chain and not manifest.rules.is_wide:
        yield from _clip_advice(manifest)
        yield from _told_advice(manifest)
    yield from _narrow_advice(manifest)
    from_zero = [
        f"{feature.name} {float(feature.origin):g}"
        for feature in manifest.features
        if feature.lower == 0 and feature.centre is None
    ]
    if from_zero and not manifest.rules.of_pairs and not of_chain:
        yield (
            "with bounds [0, B] the centre is B/2, as for "
            f"{', '.join(from_zero[:_MANY])}. If B/2 is not a typical value, give a centre; for counts the"
            " centre is often near 0"
        )
    if manifest.missing == "reject":
        yield (
            "missing = reject treats it as public which records are complete;"
            " missing = midpoint keeps all records"
        )
    if manifest.rules.is_masked:
        yield (
            f"the masked release has {_MASKED_OVER_JOINT[manifest.nonnegative]} times the noise of the joint "
            "one at the same ε, needs a count round, and relies on every owner; the joint release also gives"
            " a "
            "private mean"
        )
        if not manifest.nonnegative and all(feature.centre == feature.lower for feature in manifest.features):
            yield "every centre is the lower bound: nonnegative = true would reduce the noise by two fifths"
    if not manifest.participants:
        yield (
            "no participants are named, so any enrolled owner may join; name them, or write participants ="
            ' "enrolled"'
        )
    if manifest.needs_second_noise:
        yield (
            "because nobody is named and the proxy draws the noise, the components carry a second draw of"
            " noise, by the data user: √2 times the noise"
        )
    if manifest.epsilon > 3:
        yield f"ε = {float(manifest.epsilon):g} is a weak guarantee for one record"
    if "…" in (manifest.title, manifest.purpose):
        yield "write a title and a purpose, because owners read them before they consent"
    if records is not None:
        yield from _count_advice(manifest, records)


def _count_advice(manifest: Manifest, records: int) -> Iterator[str]:
    if records > manifest.max_records:
        yield f"{records} records are more than max_records = {manifest.max_records}"
        return
    enough = room_for(records)
    if enough >= manifest.max_records or manifest.delta != default_delta(manifest.max_records):
        return
    terms = replace(manifest.terms, max_records=enough, delta=default_delta(enough))
    factor = float(manifest.noise_scale / figures_of(terms).noise_scale)
    if factor >= _COSTLY:
        yield (
            f"max_records = {manifest.max_records:,} is far above {records:,} records. max_records determines"
            f" delta, so the noise is {factor:.2f} times what it would be with max_records = {enough}"
        )


def _narrow_advice(manifest: Manifest) -> Iterator[str]:
    narrow = [
        feature.name
        for feature in manifest.features
        if feature.lower is not None
        and feature.upper is not None
        and feature.upper - feature.lower < _NARROW * max(abs(feature.lower), abs(feature.upper))
    ]
    if narrow:
        yield (
            "lower and upper bound differ by less than a millionth of their size: "
            f"{', '.join(narrow[:_MANY])}. Values outside the bounds are clipped: is this intended?"
        )


def _clip_advice(manifest: Manifest) -> Iterator[str]:
    d, r = manifest.figures.encoded_features, float(manifest.clip_norm)
    most = math.sqrt(2 * d if manifest.rules.of_pairs else d)
    root = f"√{d}" if not manifest.rules.of_pairs else f"√{2 * d}"
    if r > _HIGH_CLIP * most:
        yield (
            f"clip_norm = {r:.3g} is above 0.7·{root} = {_HIGH_CLIP * most:.3g}, and noise grows with its "
            f"square. If you know nothing better, take 0.35·{root} = {_RULE_CLIP * most:.2g}, or half of that"
        )
    if manifest.rho_share == 1:
        yield _clip_forecast(manifest, r)


def _clip_forecast(manifest: Manifest, r: float) -> str:
    """What the clip norm will do to records that lie as `placements` assumes."""
    near, far = placements(manifest.features, manifest.scaling)
    if manifest.rules.of_pairs:
        return (
            f"clip_norm = {r:.3g} will shorten {_percent(near.share_longer(r / math.sqrt(2)))} of the"
            " differences if features have a standard deviation of 0.35 of their half-ranges"
        )
    return (
        f"clip_norm = {r:.3g} will shorten {_percent(near.share_longer(r))} of the records if the centres are"
        f" at the means, and {_percent(far.share_longer(r))} if the means are half a range away from"
        " them (assumed: standard deviations of 0.35 of the half-ranges). Shortened records make variances"
        " too small"
    )


def _told_advice(manifest: Manifest) -> Iterator[str]:
    """What the result will not say about clipping and gaps, or only with too much noise."""
    if not manifest.rules.tells_clipping or manifest.mechanism != "gaussian":
        return
    if not manifest.clip_share:
        told, cost = "how many records were clipped, and by how much this lowered the variances", "two"
        if manifest.missing == "midpoint":
            told, cost = f"{told}, or how many values are missing", "three"
        yield (
            f"without clip_share, the result cannot say {told}. clip_share = {CLIP_SHARE} lets it say so, for"
            f" {cost} times this part of the budget"
        )
        return
    longest, cap = math.sqrt(manifest.terms.clip_cap_squared), _good_cap(manifest)
    if not manifest.clip_cap and longest > _LONG_CAP * cap:
        yield (
            f"without clip_cap, lengths up to {longest:.3g} count, the longest that the bounds allow. The"
            " noise on what clipping took away grows with the square of this length, and clip_cap ="
            f" {cap:.3g} is usually enough"
        )


def _good_cap(manifest: Manifest) -> float:
    """A length, in the unit of the clip norm, that few rows exceed.

    It is three times the clip norm, or twice the usual length if the clip norm is very short.
    """
    categorical = sum(feature.is_categorical for feature in manifest.features)
    usual = usual_norm(len(manifest.features) - categorical, categorical)
    root = math.sqrt(2) if manifest.rules.of_pairs else 1.0
    return max(CLIP_CAP * float(manifest.clip_norm), _USUAL_CAP * usual * root)


def _percent(share: float) -> str:
    """A rough share in words."""
    if share > 0.95:
        return "nearly all"
    return "few" if share < 0.05 else f"about {share:.0%}"


def sample_advice(manifest: Manifest, sample: Mapping[str, Column], *, of_chain: bool = False) -> list[str]:
    """Advice from a sample that is not secret: bounds too wide or too narrow, centres that are not typical,
    and the share of its records that the clip norm shortens.

    Args:
        manifest: the draft's manifest.
        sample: columns, from `columns_of_sample`.
        of_chain: whether a chain will choose centres and clip norm.
    """
    wide, off, outside = [], [], []
    for feature in manifest.features:
        values = finite_numbers(sample.get(feature.name, ()))
        if feature.lower is None or feature.upper is None or not values:
            continue
        if beyond := sum(not feature.lower <= value <= feature.upper for value in values):
            outside.append(f"{feature.name} ({beyond} of {len(values)})")
        half, spread = float(feature.half_range), (max(values) - min(values)) / 2
        if spread == 0:
            continue
        if half > _WIDE * spread:
            wide.append(f"{feature.name} ({half / spread:.0f} times)")
        typical = median(values)
        if abs(typical - float(feature.origin)) > half / 2:
            off.append(f"{feature.name} ({typical:g}, not {float(feature.origin):g})")
    said = list(_found(wide, off, outside))
    shortened = None if of_chain else clipped_share(manifest, sample)
    if shortened is not None:
        what = "differences of two records" if manifest.rules.of_pairs else "records"
        said.append(
            f"of the sample's {what}, {shortened:.0%} are longer than clip_norm ="
            f" {float(manifest.clip_norm):.3g} and would be shortened"
        )
    return said


def clipped_share(manifest: Manifest, sample: Mapping[str, Column]) -> float | None:
    """The share of a sample's records, or of the differences of its two halves, that would be clipped; None
    if the sample lacks a feature or has too few records."""
    try:
        batch = RecordEncoder(manifest).encode(sample)
    except InputError:
        return None
    if not manifest.rules.of_pairs:
        return batch.report.clipped / len(batch.z) if len(batch.z) else None
    half = len(batch.z) // 2
    paired = batch.z[np.arange(2 * half).reshape(2, half).T.ravel()]  # neighbours in a file may be alike
    cut = [cut_to_bound(each, manifest.figures.record_bound)[1] for each in differences([paired])]
    return sum(cut) / half if half else None


def _found(wide: Sequence[str], off: Sequence[str], outside: Sequence[str]) -> Iterator[str]:
    if wide:
        yield (
            "bounds are much wider than the sample needs: "
            f"{', '.join(wide[:_MANY])}. Wide bounds alone do no harm if clip_norm is low enough, but"
            " they move the centre"
        )
    if off:
        yield f"typical values of the sample are far from the centre: {', '.join(off[:_MANY])}"
    if outside:
        yield f"values of the sample outside the bounds, which would be clipped: {', '.join(outside[:_MANY])}"


def result_advice(results: Sequence[PreStudyResult]) -> list[str]:
    """Advice from the results of pre-studies: bounds that are too wide."""
    said = []
    for result in results:
        if result.pair_norms is not None:
            middle = quantile(result.pair_norms, 0.5)
            usual = usual_norm(result.encoded_features, 0)
            if middle is not None and middle < usual / _WIDE:
                said.append(
                    f"half of the records are within {middle:.3g} of their mean, but {usual:.3g} is usual:"
                    " the "
                    "bounds are much wider than needed"
                )
        if result.octaves is not None:
            found = [feature_scale(each, result.records // 2) for each in result.octaves]
            wide = [
                f"{name} ({0.35 / scale:.0f} times)"
                for name, scale in zip(result.names, found, strict=True)
                if scale is not None and scale < 0.35 / _WIDE
            ]
            if wide:
                said.append(f"bounds are much wider than needed: {', '.join(wide[:_MANY])}")
    return said
