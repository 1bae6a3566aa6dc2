"""Chooses the next round of a chain of studies from what its earlier rounds have released.

The choice depends only on released numbers, so it costs no privacy.

Algorithm A: a norm study first measures the norms of records and of differences. If private means are worth
their cost, up to four mean studies follow, which move the centre, and then a joint study. Otherwise a study
of pairs follows, which needs no centre. If records are too few for a norm study, a single study of pairs
scales all differences to one length. Algorithm B is for bounds that may be far too wide: it first measures
the scale of every feature, and always ends with a study of pairs.

A chain for many features begins in the same way, and `wide_chain` replaces its end.

Shares of ρ, thresholds and quantiles are those of docs/utility.md, fitted to simulations on real tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, hypot, inf, sqrt
from operator import itemgetter
from typing import Any

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_user.planning.clipping import CLIP_SHARE, clip_terms
from dpdpca_user.planning.histograms import feature_scale, has_two_modes, mean_square, quantile
from dpdpca_user.planning.noise import (
    GOOD_CENTRE_WEIGHT,
    clip_quantile,
    noise_over_signal,
    relative_noise,
    usual_norm,
)
from dpdpca_user.planning.prestudy import Histogram, PreStudyResult

SCALE_SHARE = Fraction(1, 10)
NORM_SHARE, MOST_NORM_SHARE = Fraction(1, 20), Fraction(1, 10)
MEAN_SHARES = (Fraction(1, 20), Fraction(1, 10), Fraction(1, 5))

MOST_MEANS = 4
SCALES_FROM = 40.0
"""Number of records, in units of √(2d/ρ_s), from which a study of scales is better than none."""
NORMS_FROM, NORMS_PLENTY = 10.0, 20.0
"""Numbers of pairs, in units of the noise of a count: that a histogram of norms needs, and from which half of
a norm study is enough for it."""
PAIRS_PART, MOST_PAIRS_PART = Fraction(1, 2), Fraction(3, 4)
"""The part of a norm study that the norms of differences take. There are half as many pairs as records, so
they take more if records are few."""

_LONG, _LONG_MARGIN = 0.9, 1.05
_MIDDLE = 0.5
_TWO_MODES = 0.75
_WEIGHT_OF_ERROR = 0.5
_MOST_MISSING = 0.9
_MISSING_LEFT = 0.5
_USUAL_CLIP = 2.0
_SHORT = 2.0**-10
_ROOT_OF_TWO = sqrt(2)


@dataclass(frozen=True, slots=True)
class NextRound:
    """The terms of the next study of a chain.

    Attributes:
        release: pre-study, or the release that ends the chain.
        rho_share: its share of the ρ of all rounds.
        clip_norm: in scaled units; in a study of pairs it bounds differences.
        blocks: the blocks of a pre-study, with their parts of the round's budget.
        sum_weight: a/K of a joint study, else 0.
        centre: (d,) centres in original units, or None for those of the base draft.
        scale: (d,) one scaled unit in original units, or None for that of the base draft.
        pre_studies: ids of all earlier rounds, oldest first.
        reasons: why this round was chosen, as sentences for people.
        clip_cap: the length, like `clip_norm`, up to which the last round adds up the squared lengths of
            clipped rows; None for the largest that the bounds allow.
        members: further members of the draft, as they are written there; only rounds for many features have
            them.
        is_followed: whether another round follows a release that has components: scores follow a lift.
    """

    release: ReleaseKind
    rho_share: Fraction
    clip_norm: float
    blocks: Mapping[BlockName, Fraction]
    sum_weight: float
    centre: tuple[float, ...] | None
    scale: tuple[float, ...] | None
    pre_studies: tuple[StudyId, ...]
    reasons: tuple[str, ...]
    clip_share: str = CLIP_SHARE
    clip_cap: float | None = None
    members: Mapping[str, Any] = field(default_factory=dict)
    is_followed: bool = False

    @property
    def is_last(self) -> bool:
        return self.release.has_components and not self.is_followed


@dataclass(frozen=True, slots=True)
class MeanRule:
    """When a chain spends budget on private means.

    Attributes:
        shares: of ρ that a mean may take.
        most: how many means there may be.
        far: a mean is worth its cost only if records about the centre are clipped at more than this multiple
            of their usual distance from the mean.
    """

    shares: tuple[Fraction, ...] = MEAN_SHARES
    most: int = MOST_MEANS
    far: float = 0.0


_ANY_MEAN = MeanRule()


@dataclass(frozen=True, slots=True)
class Guess:
    """What public terms alone suggest about the norms of records, in scaled units.

    Attributes:
        longest: the norm of the longest possible record relative to the public centre.
        offset: the usual distance of the mean from the public centre, in units of the usual distance of
            records from their mean.
        of_categories: whether most of that distance comes from categories, so that the guess is a safe one.
    """

    longest: float
    offset: float
    of_categories: bool


def first_round(
    d: int,
    records: int,
    rho_total: float,
    guess: Guess,
    unknown_scales: bool = False,
    draws: float = 2,
    *,
    with_norms: bool = False,
) -> NextRound:
    """The first round of a chain.

    Args:
        d: number of encoded features.
        records: expected number of records in all.
        rho_total: ρ of all rounds.
        guess: what is known without data.
        unknown_scales: whether the bounds may be too wide by very different factors.
        draws: the expected `PreStudyResult.noise_draws`; the default is that of noise by the proxy.
        with_norms: begin with a norm study even if records seem too few for it.
    """
    needed = SCALES_FROM * sqrt(draws * d / (float(SCALE_SHARE) * rho_total))
    if unknown_scales and records >= needed:
        return NextRound(
            release=ReleaseKind.PRE_STUDY,
            rho_share=SCALE_SHARE,
            clip_norm=sqrt(d),
            blocks={BlockName.OCTAVES: Fraction(1)},
            sum_weight=0.0,
            centre=None,
            scale=None,
            pre_studies=(),
            reasons=(
                f"{records:,} records are enough (at least {needed:,.0f} are needed) to ask first for the"
                " scale of each feature",
            ),
        )
    why = (
        f"{records:,} records are too few for a study of scales, which needs {needed:,.0f}: the bounds are"
        " used as they are",
    )
    reasons = why if unknown_scales else ()
    public = _Centre(None, 1.0, 0.0, guess.offset, 0.0, _USUAL_CLIP)
    rho = float(MEAN_SHARES[1]) * rho_total
    with_mean = public.after_mean(_mean_noise(records, d, rho, draws)).relative_noise / sqrt(
        1 - MEAN_SHARES[1]
    )
    shares = _norm_shares(records, rho_total, draws)
    if with_norms:
        return _norm_study(max(guess.longest, sqrt(d)), *(shares or (NORM_SHARE,)), reasons=reasons)
    if shares is not None and (guess.of_categories or with_mean < relative_noise(ReleaseKind.PAIRS)):
        return _norm_study(max(guess.longest, sqrt(d)), *shares, reasons=reasons)
    is_near = guess.of_categories and public.relative_noise < relative_noise(ReleaseKind.PAIRS)
    alone = _one_length((), d, None, records, public if is_near else None)
    return replace(alone, reasons=(*reasons, *alone.reasons))


def next_round(
    results: Sequence[PreStudyResult],
    d: int,
    mean_rule: MeanRule = _ANY_MEAN,
    *,
    second_draw: bool = False,
) -> NextRound:
    """The round that follows the rounds so far.

    Args:
        results: the results of all rounds, oldest first, at least one.
        d: number of encoded features.
        mean_rule: when a private mean is worth its cost.
        second_draw: whether the last release gets a second draw of noise, if the proxy draws the first one.

    Raises:
        UsageError: the results are not those of a chain that this module has chosen.
    """
    check_chain(results, d)
    last = results[-1]
    if last.octaves is not None:
        return _after_scales(results)
    if last.pair_norms is not None:
        return _with_clip_terms(_after_norms(results, mean_rule), results, second_draw)
    if last.total is not None:
        return _with_clip_terms(_after_mean(results, mean_rule), results, second_draw)
    raise _not_a_chain("the last result contains nothing from which the next round can be chosen")


def norm_study(d: int) -> NextRound:
    """The norm study with which a chain about the midpoints of the bounds begins, given enough records."""
    return _norm_study(sqrt(d), NORM_SHARE)


def norms_after_scales(d: int) -> NextRound:
    """The norm study that follows a study of scales, as far as it is known beforehand.

    Its one histogram spends more than any other in a chain, so it has the least noise.
    """
    return _norm_study(sqrt(d), NORM_SHARE, only_pairs=True)


def _norm_shares(records: int, rho_total: float, draws: float) -> tuple[Fraction, Fraction] | None:
    """The share of ρ for two histograms of norms, and the part of it for differences; None if records are too
    few.

    The share is 5 %, or up to 10 % if records are few.
    """
    if records < 2:
        return None
    spent = draws * (1 / (records // 2)) ** 2 / rho_total  # by a histogram whose noise is all pairs
    if spent * NORMS_PLENTY**2 <= PAIRS_PART * NORM_SHARE:
        return NORM_SHARE, PAIRS_PART
    needed = Fraction(spent * NORMS_FROM**2) / MOST_PAIRS_PART
    share = Fraction(ceil(needed * 100), 100)
    return None if share > MOST_NORM_SHARE else (max(share, NORM_SHARE), MOST_PAIRS_PART)


def _norm_study(
    norm: float,
    share: Fraction,
    pairs_part: Fraction = PAIRS_PART,
    *,
    pre_studies: tuple[StudyId, ...] = (),
    reasons: tuple[str, ...] = (),
    only_pairs: bool = False,
) -> NextRound:
    """A study that releases histograms of norms up to `norm`."""
    return NextRound(
        release=ReleaseKind.PRE_STUDY,
        rho_share=share,
        clip_norm=norm,
        blocks={BlockName.PAIR_NORMS: Fraction(1)}
        if only_pairs
        else {BlockName.NORMS: 1 - pairs_part, BlockName.PAIR_NORMS: pairs_part},
        sum_weight=0.0,
        centre=None,
        scale=None,
        pre_studies=pre_studies,
        reasons=(
            *reasons,
            f"a norm study comes first and takes {float(share):.0%} of the budget: the norms of records"
            " and of differences decide what follows",
        ),
    )


def _after_scales(results: Sequence[PreStudyResult]) -> NextRound:
    last = results[-1]
    assert last.octaves is not None
    found = [feature_scale(each, last.records // 2) for each in last.octaves]
    narrower = sum(scale is not None and scale < 1 for scale in found)
    silent = sum(scale is None for scale in found)
    scale = tuple(
        unit * (1.0 if part is None else min(part, 1.0))
        for unit, part in zip(last.half_range, found, strict=True)
    )
    reasons = [
        f"{narrower} of {len(found)} features vary less than their bounds allow and get their own units"
    ]
    if silent:
        reasons.append(f"{silent} features show nothing above the noise and keep their half-range as a unit")
    base = norms_after_scales(last.encoded_features)
    return replace(base, scale=scale, pre_studies=ids_of(results), reasons=(*reasons, *base.reasons))


def _after_norms(results: Sequence[PreStudyResult], mean_rule: MeanRule) -> NextRound:
    last = results[-1]
    assert last.pair_norms is not None
    middle = quantile(last.pair_norms, _MIDDLE)
    if middle is None:
        return _one_length(results, last.encoded_features, scale_in_use(results), last.records)
    if last.norms is None:
        return _pairs(results, ("after a study of scales, a chain always uses pairs",))
    longest, usual = (quantile(last.norms, level) for level in (_LONG, _MIDDLE))
    if longest is None or usual is None:
        return _pairs(
            results, ("the histogram of norms relative to the public centre shows nothing above its noise",)
        )
    public = _Centre(
        where=None,
        unit=middle,
        noise=0.0,
        offset=sqrt(max((usual / middle) ** 2 - 1, 0.0)),
        missing=0.0,
        clip=min(_LONG_MARGIN * longest, last.norms.edges[-1]),  # no record is longer than the last edge
    )
    seen = (
        f"half of the records are within {usual:.3g} of the public centre, and half within {middle:.3g} of"
        " their mean (in half-ranges)"
    )
    return _continued(results, public, seen, mean_rule)


def _after_mean(results: Sequence[PreStudyResult], mean_rule: MeanRule) -> NextRound:
    last, norms = results[-1], _norms_of(results)
    assert last.total is not None
    middle = quantile(norms, _MIDDLE)
    if middle is None:  # an earlier version read more into this histogram
        return _one_length(results, last.encoded_features, None, last.records)
    d = last.encoded_features
    noise = last.total.noise * sqrt(d)
    # the square of a length has the deviation noise²·√(2/d): a shorter shift is not seen
    shift = sqrt(max(sum(value**2 for value in last.total.mean) - noise**2, noise**2 * sqrt(2 / d)))
    missing = _missing_share(results)
    private = _about_mean(
        _moved_centre(last, _step(shift, noise, missing)),
        middle,
        _noise_left(shift, noise, missing) / middle,
        _MISSING_LEFT * shift / middle * missing / (1 - missing),
        missing,
    )
    seen = (
        f"the last private mean is {shift:.3g} from the centre before it, and its noise has norm {noise:.2g}"
    )
    return _continued(results, private, seen, mean_rule)


@dataclass(frozen=True, slots=True)
class _Centre:
    """A centre, and how far it is from the mean of the records.

    Attributes:
        where: (d,) in original units, or None for the public centre.
        unit: r, the median distance of records from their mean, in scaled units.
        noise: the norm of its noise, in units of r.
        offset: what else separates it from the mean, in units of r.
        missing: the share of values that are probably missing. A missing value counts as the centre, so a
            private mean leaves this share of the offset.
        clip: where to clip records about this centre for a mean, in scaled units.
    """

    where: tuple[float, ...] | None
    unit: float
    noise: float
    offset: float
    missing: float
    clip: float

    @property
    def error(self) -> float:
        return hypot(self.noise, self.offset)

    @property
    def sum_weight(self) -> float:
        """a/K of a joint study about this centre.

        Along the mean, the variance of the noise is 1 + 2·error²·K/a times that in other directions. This
        is one direction of many, and a larger weight would add noise to all of them.
        """
        return round(max(GOOD_CENTRE_WEIGHT, min(_WEIGHT_OF_ERROR * self.error**2, 2.0)), 3)

    @property
    def relative_noise(self) -> float:
        """c of a joint study about this centre, whose clip norm is widened by the error."""
        return relative_noise(ReleaseKind.JOINT, self.sum_weight) * (1 + self.error**2)

    def after_mean(self, noise: float) -> "_Centre":
        """The centre after a mean about this one, if the norm of the mean's noise is `noise` in units of its
        clip norm."""
        left = _noise_left(self.error, noise * self.clip / self.unit, self.missing)
        return _about_mean(None, self.unit, left, _MISSING_LEFT * self.offset * self.missing, self.missing)


def _about_mean(
    where: tuple[float, ...] | None, unit: float, noise: float, offset: float, missing: float
) -> _Centre:
    return _Centre(where, unit, noise, offset, missing, unit * hypot(1, noise, offset))


def _continued(
    results: Sequence[PreStudyResult], centre: _Centre, seen: str, mean_rule: MeanRule
) -> NextRound:
    """The next round of a chain with this centre: another mean, a joint study about the centre, or pairs.

    The choice leaves the least noise in the last study. Noise is in units of r²/√ρ.
    """
    of_pairs = relative_noise(ReleaseKind.PAIRS) / sqrt(rest_of(results))
    at_once = centre.relative_noise / sqrt(rest_of(results))
    share, with_mean = min(
        ((share, _least_noise(results, centre, share, mean_rule)) for share in mean_rule.shares),
        key=itemgetter(1),
    )
    after_means = f" {with_mean:.2f} after more private means," if with_mean < inf else ""
    reasons = (
        seen,
        f"the relative noise of the last study would be {at_once:.2f} with the present centre,"
        f"{after_means} and {of_pairs:.2f} with pairs",
    )
    if of_pairs < min(at_once, with_mean):
        return _pairs(results, (*reasons, "so the chain uses pairs of records, which need no centre"))
    if at_once <= with_mean:
        return _joint(results, centre, reasons)
    return _mean(results, centre, share, reasons)


def _least_noise(
    results: Sequence[PreStudyResult], centre: _Centre, share: Fraction, mean_rule: MeanRule
) -> float:
    """The least noise of a joint study after one or more further means that each take this share of ρ;
    infinite if the rule allows no mean."""
    if centre.clip <= mean_rule.far * centre.unit:
        return inf
    last, left = results[-1], rest_of(results)
    of_mean = _mean_noise(
        last.records, last.encoded_features, float(share) * last.rho_total, last.noise_draws
    )
    noises = []
    for _ in range(mean_rule.most - sum(each.total is not None for each in results)):
        left -= share
        if left <= 0:
            break
        centre = centre.after_mean(of_mean)
        noises.append(centre.relative_noise / sqrt(left))
    return min(noises, default=inf)


def _mean_noise(records: int, d: int, rho: float, draws: float) -> float:
    """The norm of the noise of a private mean, in units of its clip norm (utility, T12)."""
    return sqrt(draws * 2 * d / rho) / records


def _missing_share(results: Sequence[PreStudyResult]) -> float:
    """The share of values that are probably missing, from the first private mean.

    If a share p is missing, norms about the public centre have the mean square (1 − p)(offset² + r²), but the
    mean moves by (1 − p)·offset.
    """
    first = next(each.total for each in results if each.total is not None)
    norms = next(each.norms for each in results if each.norms is not None)
    moved = sum(value**2 for value in first.mean) - len(first.mean) * first.noise**2
    about_mean, about_centre = (
        mean_square(histogram, first.clip_norm) for histogram in (_norms_of(results), norms)
    )
    if not about_centre:
        return 0.0
    return min(max(1 - (moved + about_mean) / about_centre, 0.0), _MOST_MISSING)


def _mean(
    results: Sequence[PreStudyResult], centre: _Centre, share: Fraction, reasons: tuple[str, ...]
) -> NextRound:
    clip = centre.clip if centre.where is None else min(centre.clip, sqrt(results[-1].encoded_features))
    moved = "" if centre.where is None else "the centre moves to the last private mean, and "
    return NextRound(
        release=ReleaseKind.PRE_STUDY,
        rho_share=share,
        clip_norm=clip,
        blocks={BlockName.SUM: Fraction(1)},
        sum_weight=0.0,
        centre=centre.where,
        scale=None,
        pre_studies=ids_of(results),
        reasons=(*reasons, f"{moved}a private mean comes next, of records clipped to {clip:.3g}"),
    )


def _joint(results: Sequence[PreStudyResult], centre: _Centre, reasons: tuple[str, ...]) -> NextRound:
    norm, level = _clip_of(results, ReleaseKind.JOINT)
    longest = sqrt(results[-1].encoded_features)
    clip = min(norm * hypot(1, centre.error), longest)
    which = "the public centre" if centre.where is None else "the last private mean"
    return NextRound(
        release=ReleaseKind.JOINT,
        rho_share=rest_of(results),
        clip_norm=clip,
        blocks={},
        sum_weight=centre.sum_weight,
        centre=centre.where,
        scale=None,
        pre_studies=ids_of(results),
        reasons=(
            *reasons,
            f"so a joint study about {which} ends the chain; records are clipped to {clip:.3g}, from the"
            f" {level:g} quantile, which is best for its noise",
        ),
    )


def _one_length(
    results: Sequence[PreStudyResult],
    d: int,
    scale: tuple[float, ...] | None,
    records: int,
    near: _Centre | None = None,
) -> NextRound:
    """A study with so small a clip norm that nearly all records, or differences, are scaled to one length.

    It needs no norms, and loses little where noise is large.

    Args:
        near: a centre that is near the mean; None for a study of pairs, which needs no centre.
    """
    share = rest_of(results)
    release = ReleaseKind.PAIRS if near is None else ReleaseKind.JOINT
    if near is None:
        last = "a study of pairs, which needs no centre,"
    else:
        last = "a joint study about the public centres, because most features are categories,"
    return NextRound(
        release=release,
        rho_share=share,
        clip_norm=_SHORT * sqrt(d),
        clip_cap=_USUAL_CLIP * usual_norm(d, 0) * _unit_of_norms(release),
        blocks={},
        sum_weight=0.0 if near is None else near.sum_weight,
        centre=None,
        scale=scale,
        pre_studies=ids_of(results),
        reasons=(
            f"{records:,} records are too few to measure norms and a mean: most of both would be noise",
            f"{last} takes the remaining {float(share):.0%}; nearly all rows are scaled to one length, so"
            " variances have no unit",
        ),
    )


def _pairs(results: Sequence[PreStudyResult], reasons: tuple[str, ...]) -> NextRound:
    """A study of pairs. The histogram shows |y|/√2; the manifest's clip norm bounds |y|."""
    share, (norm, _) = rest_of(results), _clip_of(results, ReleaseKind.PAIRS)
    return NextRound(
        release=ReleaseKind.PAIRS,
        rho_share=share,
        clip_norm=min(norm * _ROOT_OF_TWO, 2 * sqrt(results[-1].encoded_features)),
        blocks={},
        sum_weight=0.0,
        centre=None,
        scale=scale_in_use(results),
        pre_studies=ids_of(results),
        reasons=(
            *reasons,
            f"a study of pairs takes the remaining {float(share):.0%}; differences are clipped to"
            f" √2·{norm:.3g}",
        ),
    )


def _with_clip_terms(chosen: NextRound, results: Sequence[PreStudyResult], second_draw: bool) -> NextRound:
    """The last round of a chain with what it asks about clipping; any other round as it is."""
    if not chosen.is_last:
        return chosen
    last, unit = results[-1], _unit_of_norms(chosen.release)
    rows = last.records // 2 if chosen.release is ReleaseKind.PAIRS else last.records
    rho = float(chosen.rho_share) * last.rho_total / last_draws(last, second_draw)
    found = clip_terms(_norms_of(results), last.records // 2, rows, chosen.clip_norm / unit, rho)
    return chosen if found is None else replace(chosen, clip_share=found.share, clip_cap=unit * found.cap)


def last_draws(last: PreStudyResult, second_draw: bool = False) -> float:
    """As `PreStudyResult.noise_draws`, of the study that ends the chain of `last`.

    Args:
        last: any result of the chain.
        second_draw: as for `next_round`.
    """
    if last.noise_by is NoiseBy.OWNERS:
        return last.noise_draws
    return 2.0 if second_draw else 1.0


def _unit_of_norms(release: ReleaseKind) -> float:
    """The clip norm for a norm of 1 in a histogram of |y|/√2."""
    return _ROOT_OF_TWO if release is ReleaseKind.PAIRS else 1.0


def scale_in_use(results: Sequence[PreStudyResult]) -> tuple[float, ...] | None:
    """The units that a study of scales has set for all later rounds; None if there was no such study."""
    return results[-1].half_range if any(each.octaves is not None for each in results) else None


def _clip_of(results: Sequence[PreStudyResult], release: ReleaseKind) -> tuple[float, float]:
    """The norm at which to clip |y|/√2 in the last study, and its quantile: best for its noise, 0.75 for two
    modes."""
    last, norms = results[-1], _norms_of(results)
    noise = relative_noise(release, GOOD_CENTRE_WEIGHT) * sqrt(last_draws(last))
    rho = float(rest_of(results)) * last.rho_total
    nu = noise_over_signal(noise, last.encoded_features, rho, last.records)
    level = _TWO_MODES if has_two_modes(norms) else clip_quantile(nu)
    found = quantile(norms, level)
    assert found is not None, "the histogram has a median, so it has every quantile"
    return found, level


def _norms_of(results: Sequence[PreStudyResult]) -> Histogram:
    for result in reversed(results):
        if result.pair_norms is not None:
            return result.pair_norms
    raise _not_a_chain("none of the results is a norm study")


def _step(shift: float, noise: float, missing: float) -> float:
    """How far to move towards a private mean, as a multiple of the way.

    The centre before the mean has an error of its own, often no larger than the noise of the mean. A step of
    shift²/(shift² + noise²) weighs both, so that no earlier mean is forgotten. And if values are missing, the
    mean is only the part 1 − missing of the way.

    Args:
        shift: the distance of the mean from the centre before it, without its noise.
        noise: the norm of the mean's noise.
        missing: the share of values that are probably missing.

    Source: James and Stein 1961, for the weight.
    """
    return shift**2 / (shift**2 + noise**2) / (1 - missing) if shift else 0.0


def _noise_left(shift: float, noise: float, missing: float) -> float:
    """The norm of the error that noise leaves after such a step."""
    return noise * sqrt(_step(shift, noise, missing) / (1 - missing))


def _moved_centre(result: PreStudyResult, step: float) -> tuple[float, ...]:
    assert result.total is not None
    return tuple(
        centre + unit * step * mean
        for centre, unit, mean in zip(result.centre, result.half_range, result.total.mean, strict=True)
    )


def rest_of(results: Sequence[PreStudyResult]) -> Fraction:
    """The share of ρ that these rounds have left."""
    return 1 - sum((result.rho_share for result in results), Fraction(0))


def ids_of(results: Sequence[PreStudyResult]) -> tuple[StudyId, ...]:
    """The ids of these rounds."""
    return tuple(result.study for result in results)


def check_chain(results: Sequence[PreStudyResult], d: int) -> None:
    """Raises UsageError `not-a-chain` unless these are results of a chain's rounds that have left budget."""
    if not results:
        raise _not_a_chain("there is none")
    seen: tuple[StudyId, ...] = ()
    for result in results:
        if result.pre_studies != seen:
            raise _not_a_chain("each result must name all rounds before it, oldest first")
        if result.encoded_features != d or result.names != results[0].names:
            raise _not_a_chain("the features of the results are not those of the draft")
        seen += (result.study,)
    if rest_of(results) <= 0:
        raise _not_a_chain("the rounds of these results have already spent the whole budget of the chain")


def _not_a_chain(what: str) -> UsageError:
    return UsageError(
        "not-a-chain",
        f"these results do not form a chain of pre-studies: {what}",
        "give the results of all rounds, in their order",
    )
