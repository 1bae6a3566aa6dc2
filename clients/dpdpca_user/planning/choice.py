"""Chooses the next round of a chain of studies from what its earlier rounds have released.

The choice depends only on released numbers, so it costs no privacy.

Algorithm A: a norm study first measures the norms of records and of differences. If private means are worth
their cost, up to four mean studies follow, which move the centre, and then a joint study. Otherwise a study
of pairs follows, which needs no centre.

Few records: if they are too few for this norm study, the last study scales all rows to one length, and needs
no norms. A mean of directions may ask first whether the public centre is near; if it is, the norms of records
tell how far to move towards this mean, and then the chain goes on as above. If records are too few for such a
mean as well, a count of the pairs that lie far from the public centre chooses the last study.

Algorithm B is for bounds that may be far too wide: it first measures the scale of every feature, and always
ends with a study of pairs.

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
from dpdpca_user.planning.centre import Centre, about_mean, mean_noise, moved_by_mean
from dpdpca_user.planning.clipping import CLIP_SHARE, clip_terms
from dpdpca_user.planning.directions import (
    SHORT,
    MeanDirection,
    directions_share,
    lengths_share,
    records_norm,
)
from dpdpca_user.planning.far_pairs import FarShare, far_pairs_share
from dpdpca_user.planning.histograms import feature_scale, has_two_modes, mean_square, quantile
from dpdpca_user.planning.noise import (
    GOOD_CENTRE_WEIGHT,
    clip_quantile,
    noise_over_signal,
    relative_noise,
    usual_norm,
)
from dpdpca_user.planning.prestudy import Histogram, NoisyCount, PreStudyResult

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
_MOST_MISSING = 0.9
_USUAL_CLIP = 2.0
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
        centre_error: the distance of the centre from the mean of the records that noise and missing values
            leave, in scaled units; 0 if it is unknown.
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
    centre_error: float = 0.0
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
        enough = (
            f"{records:,} records are enough (at least {needed:,.0f} are needed) to ask first for the scale"
            " of each feature"
        )
        return _pre_study(sqrt(d), SCALE_SHARE, {BlockName.OCTAVES: Fraction(1)}, (enough,))
    why = (
        f"{records:,} records are too few for a study of scales, which needs {needed:,.0f}: the bounds are"
        " used as they are",
    )
    reasons = why if unknown_scales else ()
    unit = usual_norm(d, 0)
    public = Centre(None, unit, 0.0, guess.offset, 0.0, _USUAL_CLIP * unit)
    rho = float(MEAN_SHARES[1]) * rho_total
    with_mean = public.after_mean(mean_noise(records, d, rho, draws)).relative_noise / sqrt(
        1 - MEAN_SHARES[1]
    )
    shares = _norm_shares(records, rho_total, draws)
    is_worth_it = guess.of_categories or with_mean < relative_noise(ReleaseKind.PAIRS)
    if with_norms or (shares is not None and is_worth_it):
        share, pairs_part = shares or (NORM_SHARE, PAIRS_PART)
        return _norm_study(max(guess.longest, sqrt(d)), share, _norms_and_pairs(pairs_part), reasons)
    is_near = guess.of_categories and public.relative_noise < relative_noise(ReleaseKind.PAIRS)
    if is_near:
        because = "most features are categories, and their public centre is probably near"
        return _one_length((), d, (*reasons, _too_few(records), because), public)
    reasons = (*reasons, _too_few(records))
    of_directions = directions_share(d, records, rho_total, draws)
    if of_directions is not None:
        return _directions(d, of_directions, reasons)
    of_far_pairs = far_pairs_share(records, rho_total, draws)
    if of_far_pairs is not None:
        return _far_pairs(d, of_far_pairs, reasons)
    return _one_length((), d, reasons)


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
    if last.far_pairs is not None and len(results) == 1:
        return _after_far_pairs(last, last.far_pairs)
    direction = MeanDirection.at_the_start(results)
    if direction is not None and last is direction.result:
        return _after_directions(direction)
    if direction is not None and last.norms is not None:
        return _after_lengths(results, direction, mean_rule)
    if last.total is not None:
        return _with_clip_terms(_after_mean(results, mean_rule), results, second_draw)
    raise _not_a_chain("the last result contains nothing from which the next round can be chosen")


def norm_study(d: int) -> NextRound:
    """The norm study with which a chain about the midpoints of the bounds begins, given enough records."""
    return _norm_study(sqrt(d), NORM_SHARE, _norms_and_pairs())


def norms_after_scales(d: int) -> NextRound:
    """The norm study that follows a study of scales, as far as it is known beforehand.

    Its one histogram spends more than any other in a chain, so it has the least noise.
    """
    return _norm_study(sqrt(d), NORM_SHARE, {BlockName.PAIR_NORMS: Fraction(1)})


def _too_few(records: int) -> str:
    return f"{records:,} records are too few to measure norms and a mean: most of both would be noise"


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


def _directions(d: int, share: Fraction, reasons: tuple[str, ...]) -> NextRound:
    """A mean of records that are scaled to one length: it shows how far the centre is from the mean."""
    why = (
        f"a mean of records scaled to one length takes {float(share):.0%} of the budget: it shows whether the"
        " public centre is near the mean"
    )
    return _pre_study(SHORT * sqrt(d), share, {BlockName.SUM: Fraction(1)}, (*reasons, why))


def _far_pairs(d: int, share: Fraction, reasons: tuple[str, ...]) -> NextRound:
    """A count of far pairs: it shows whether the centre is far from the mean, and no more."""
    why = (
        f"a count of the pairs of records that lie far from the public centre takes {float(share):.0%} of the"
        " budget"
    )
    return _pre_study(sqrt(d), share, {BlockName.FAR_PAIRS: Fraction(1)}, (*reasons, why))


def _norm_study(
    norm: float,
    share: Fraction,
    blocks: Mapping[BlockName, Fraction],
    reasons: tuple[str, ...] = (),
    pre_studies: tuple[StudyId, ...] = (),
) -> NextRound:
    """A study that releases histograms of norms up to `norm`."""
    why = f"a norm study takes {float(share):.0%} of the budget: norms decide what follows"
    return _pre_study(norm, share, blocks, (*reasons, why), pre_studies)


def _pre_study(
    norm: float,
    share: Fraction,
    blocks: Mapping[BlockName, Fraction],
    reasons: tuple[str, ...],
    pre_studies: tuple[StudyId, ...] = (),
) -> NextRound:
    """A pre-study about the public centre, in the units of the draft."""
    return NextRound(
        release=ReleaseKind.PRE_STUDY,
        rho_share=share,
        clip_norm=norm,
        blocks=blocks,
        sum_weight=0.0,
        centre=None,
        scale=None,
        pre_studies=pre_studies,
        reasons=reasons,
    )


def _norms_and_pairs(pairs_part: Fraction = PAIRS_PART) -> dict[BlockName, Fraction]:
    return {BlockName.NORMS: 1 - pairs_part, BlockName.PAIR_NORMS: pairs_part}


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
        return _one_length(results, last.encoded_features, (_too_few(last.records),))
    if last.norms is None:
        return _pairs(results, ("after a study of scales, a chain always uses pairs",))
    longest, usual = (quantile(last.norms, level) for level in (_LONG, _MIDDLE))
    if longest is None or usual is None:
        return _pairs(
            results, ("the histogram of norms relative to the public centre shows nothing above its noise",)
        )
    public = Centre(
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
    last = results[-1]
    assert last.total is not None
    middle = _usual_distance(results)
    if middle is None:  # an earlier version read more into this histogram
        return _one_length(results, last.encoded_features, (_too_few(last.records),))
    d = last.encoded_features
    noise = last.total.noise * sqrt(d)
    # the square of a length has the deviation noise²·√(2/d): a shorter shift is not seen
    shift = sqrt(max(sum(value**2 for value in last.total.mean) - noise**2, noise**2 * sqrt(2 / d)))
    missing = _missing_share(results)
    seen = (
        f"the last private mean is {shift:.3g} from the centre before it, and its noise has norm {noise:.2g}"
    )
    return _continued(results, moved_by_mean(last, shift, noise, middle, missing), seen, mean_rule)


def _after_directions(direction: MeanDirection) -> NextRound:
    """Asks for the norms of records if a move towards the mean is worth their cost. Otherwise, a joint study
    about the public centre or a study of pairs ends the chain, whichever has less noise."""
    look, public = direction.result, direction.public_centre
    d, left = look.encoded_features, rest_of([look])
    seen = f"the mean direction of records has the length {direction.length:.2f}, of at most 1"
    near = f"{seen}, so the public centre is not far from the mean"
    at_once, of_pairs = public.relative_noise, relative_noise(ReleaseKind.PAIRS)
    share = lengths_share(look.records, look.rho_total, look.noise_draws)
    if direction.is_near and share is not None and share < left:
        moved = direction.moved_centre(public.clip)
        if moved.relative_noise / sqrt(left - share) < min(at_once, of_pairs) / sqrt(left):
            return _norm_study(sqrt(d), share, {BlockName.NORMS: Fraction(1)}, (near,), ids_of([look]))
    if at_once < of_pairs:
        return _one_length([look], d, (near,), public)
    return _one_length([look], d, (f"{seen}, so the public centre is far from the mean",))


def _after_far_pairs(result: PreStudyResult, far: NoisyCount) -> NextRound:
    """A joint study about the public centre or a study of pairs, whichever has less noise."""
    d, share = result.encoded_features, FarShare.of(far, result.records)
    if share is None:
        return _one_length([result], d, (f"{result.records:,} records are too few to count far pairs",))
    seen = f"{share} of the pairs lie far from the public centre"
    if share.is_near:
        near = (f"{seen}, so this centre is near the mean",)
        return _one_length([result], d, near, about_mean(None, usual_norm(d, 0), 0.0))
    return _one_length([result], d, (f"{seen}, so this centre is far from the mean",))


def _after_lengths(
    results: Sequence[PreStudyResult], direction: MeanDirection, mean_rule: MeanRule
) -> NextRound:
    usual, d = records_norm(results), results[-1].encoded_features
    if usual is None:
        silent = "the histogram of norms shows nothing above its noise"
        return _one_length(results, d, (silent,), direction.public_centre)
    centre = direction.moved_centre(usual)
    seen = (
        f"half of the records are within {usual:.3g} of the public centre, and half within {centre.unit:.3g}"
        " of their mean (in half-ranges)"
    )
    return _continued(results, centre, seen, mean_rule)


def _continued(
    results: Sequence[PreStudyResult], centre: Centre, seen: str, mean_rule: MeanRule
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
    results: Sequence[PreStudyResult], centre: Centre, share: Fraction, mean_rule: MeanRule
) -> float:
    """The least noise of a joint study after one or more further means that each take this share of ρ;
    infinite if the rule allows no mean."""
    if centre.clip <= mean_rule.far * centre.unit:
        return inf
    last, left = results[-1], rest_of(results)
    of_mean = mean_noise(last.records, last.encoded_features, float(share) * last.rho_total, last.noise_draws)
    noises = []
    for _ in range(mean_rule.most - sum(each.total is not None for each in results)):
        left -= share
        if left <= 0:
            break
        centre = centre.after_mean(of_mean)
        noises.append(centre.relative_noise / sqrt(left))
    return min(noises, default=inf)


def _missing_share(results: Sequence[PreStudyResult]) -> float:
    """The share of values that are probably missing, from the first private mean.

    If a share p is missing, norms about the public centre have the mean square (1 − p)(offset² + r²), but the
    mean moves by (1 − p)·offset.
    """
    if MeanDirection.at_the_start(results) is not None:
        return 0.0  # the first mean is one of directions
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
    results: Sequence[PreStudyResult], centre: Centre, share: Fraction, reasons: tuple[str, ...]
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
        centre_error=centre.distance_from_mean,
        scale=None,
        pre_studies=ids_of(results),
        reasons=(*reasons, f"{moved}a private mean comes next, of records clipped to {clip:.3g}"),
    )


def _joint(results: Sequence[PreStudyResult], centre: Centre, reasons: tuple[str, ...]) -> NextRound:
    if MeanDirection.at_the_start(results) is not None:
        return _one_length(results, results[-1].encoded_features, reasons, centre)
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
        centre_error=centre.distance_from_mean,
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
    reasons: tuple[str, ...],
    near: Centre | None = None,
) -> NextRound:
    """A study with so small a clip norm that nearly all records, or differences, are scaled to one length.

    It needs no norms, and loses little where noise is large.

    Args:
        near: a centre that is near the mean; None for a study of pairs, which needs no centre.
    """
    share = rest_of(results)
    if near is None:
        release, length, what = ReleaseKind.PAIRS, usual_norm(d, 0), "study of pairs, which needs no centre,"
    else:
        which = "public centre" if near.where is None else "last private mean"
        release, length, what = ReleaseKind.JOINT, near.unit, f"joint study about the {which}"
    return NextRound(
        release=release,
        rho_share=share,
        clip_norm=SHORT * sqrt(d),
        clip_cap=_USUAL_CLIP * length * _unit_of_norms(release),
        blocks={},
        sum_weight=0.0 if near is None else near.sum_weight,
        centre=None if near is None else near.where,
        centre_error=0.0 if near is None else near.distance_from_mean,
        scale=scale_in_use(results),
        pre_studies=ids_of(results),
        reasons=(
            *reasons,
            f"a {what} takes the remaining {float(share):.0%}; nearly all rows are scaled to one length, so"
            " variances have no unit",
        ),
    )


def _pairs(results: Sequence[PreStudyResult], reasons: tuple[str, ...]) -> NextRound:
    """A study of pairs. The histogram shows |y|/√2; the manifest's clip norm bounds |y|."""
    if MeanDirection.at_the_start(results) is not None:
        return _one_length(results, results[-1].encoded_features, reasons)
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
    if not chosen.is_last or MeanDirection.at_the_start(results) is not None:
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


def _usual_distance(results: Sequence[PreStudyResult]) -> float | None:
    """The median distance of records from their mean, in scaled units; None if nothing shows it."""
    direction = MeanDirection.at_the_start(results)
    if direction is None:
        return quantile(_norms_of(results), _MIDDLE)
    norm = records_norm(results)
    return None if norm is None else direction.usual_distance(norm)


def _norms_of(results: Sequence[PreStudyResult]) -> Histogram:
    for result in reversed(results):
        if result.pair_norms is not None:
            return result.pair_norms
    raise _not_a_chain("none of the results is a norm study")


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
