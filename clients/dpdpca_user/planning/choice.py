"""Chooses the next round of a chain of studies from what its earlier rounds have released.

The choice depends only on released numbers, so it costs no privacy.

Algorithm A: a norm study first measures the norms of records and of differences. If a private mean is worth
its cost, two mean studies follow, which move the centre, and then a joint study. Otherwise a study of pairs
follows, which needs no centre. Algorithm B is for bounds that may be far too wide: it first measures the
scale of every feature, and always ends with a study of pairs.

Shares of ρ, thresholds and quantiles are those of docs/utility.md, fitted to simulations on real tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import sqrt

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_user.planning.histograms import feature_scale, has_two_modes, quantile
from dpdpca_user.planning.noise import (
    GOOD_CENTRE_WEIGHT,
    clip_quantile,
    noise_over_signal,
    relative_noise,
    usual_norm,
)
from dpdpca_user.planning.prestudy import Histogram, PreStudyResult

SCALE_SHARE = Fraction(1, 10)
NORM_SHARE = Fraction(1, 20)
MEAN_SHARE = Fraction(1, 10)

FIRST_ERROR, SECOND_ERROR = 1.3, 1.2
"""The largest errors e₁ and e₂ with which a private mean is worth its cost."""
SCALES_FROM = 40.0
"""Number of records, in units of √(2d/ρ_s), from which a study of scales is better than none."""

_LONG, _LONG_MARGIN = 0.9, 1.05
_MIDDLE = 0.5
_TWO_MODES = 0.75
_SECOND_CLIP = 1.5
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

    @property
    def is_last(self) -> bool:
        return self.release is not ReleaseKind.PRE_STUDY


def first_round(
    d: int,
    records: int,
    rho_total: float,
    unknown_scales: bool = False,
    longest: float | None = None,
    draws: float = 2,
) -> NextRound:
    """The first round of a chain.

    Args:
        d: number of encoded features.
        records: expected number of records in all.
        rho_total: ρ of all rounds.
        unknown_scales: whether the bounds may be too wide by very different factors.
        longest: norm of the longest possible record relative to the public centre, if it exceeds √d.
        draws: the expected `PreStudyResult.noise_draws`; the default is that of noise by the proxy.
    """
    norm = sqrt(d) if longest is None else max(longest, sqrt(d))
    needed = SCALES_FROM * sqrt(draws * d / (float(SCALE_SHARE) * rho_total))
    if not unknown_scales:
        return _norm_study(norm, (), (), only_pairs=False)
    if records < needed:
        why = (
            f"{records:,} records are too few for a study of scales, which needs {needed:,.0f}: the bounds"
            " are used as they are"
        )
        return _norm_study(norm, (), (why,), only_pairs=False)
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
            f"{records:,} records are enough (at least {needed:,.0f} are needed) to ask first for the scale"
            " of each feature",
        ),
    )


def next_round(results: Sequence[PreStudyResult], is_categorical: Sequence[bool]) -> NextRound:
    """The round that follows the rounds so far.

    Args:
        results: the results of all rounds, oldest first, at least one.
        is_categorical: (d,) whether an encoded feature is a level of a category; its centre always stays 0.

    Raises:
        UsageError: the results are not those of a chain that this module has chosen.
    """
    _check_chain(results, len(is_categorical))
    last = results[-1]
    if last.octaves is not None:
        return _after_scales(results)
    if last.pair_norms is not None:
        return _after_norms(results)
    if last.total is not None and len([each for each in results if each.total is not None]) == 1:
        return _second_mean(results)
    if last.total is not None:
        return _main_about_mean(results, is_categorical)
    raise _not_a_chain("the last result contains nothing from which the next round can be chosen")


def norms_after_scales(d: int) -> NextRound:
    """The norm study that follows a study of scales, as far as it is known beforehand.

    Its one histogram spends more than any other in a chain, so it has the least noise.
    """
    return _norm_study(sqrt(d), (), (), only_pairs=True)


def _norm_study(
    norm: float, pre_studies: tuple[StudyId, ...], reasons: tuple[str, ...], *, only_pairs: bool
) -> NextRound:
    """A study that releases histograms of norms up to `norm`."""
    half = Fraction(1, 2)
    return NextRound(
        release=ReleaseKind.PRE_STUDY,
        rho_share=NORM_SHARE,
        clip_norm=norm,
        blocks={BlockName.PAIR_NORMS: Fraction(1)}
        if only_pairs
        else {BlockName.NORMS: half, BlockName.PAIR_NORMS: half},
        sum_weight=0.0,
        centre=None,
        scale=None,
        pre_studies=pre_studies,
        reasons=(
            *reasons,
            f"a norm study comes first and takes {float(NORM_SHARE):.0%} of the budget: the norms of records"
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
    base = _norm_study(sqrt(last.encoded_features), _ids(results), tuple(reasons), only_pairs=True)
    return replace(base, scale=scale)


def _after_norms(results: Sequence[PreStudyResult]) -> NextRound:
    last = results[-1]
    d, records = last.encoded_features, last.records
    assert last.pair_norms is not None
    middle = quantile(last.pair_norms, _MIDDLE)
    if middle is None:
        usual = usual_norm(d, 0) / 2
        return _pairs(
            results,
            usual,
            (f"the histogram shows nothing above its noise, so the norm comes from a rule: {usual:.3g}",),
        )
    if last.norms is None:
        return _pairs(
            results,
            _clip_of(results, ReleaseKind.PAIRS),
            ("after a study of scales, a chain always uses pairs",),
        )
    longest = quantile(last.norms, _LONG)
    if longest is None:
        return _pairs(
            results,
            _clip_of(results, ReleaseKind.PAIRS),
            ("the histogram of norms relative to the public centre shows nothing above its noise",),
        )
    r1 = min(_LONG_MARGIN * longest, last.norms.edges[-1])  # no record is longer than the last edge
    rho = float(MEAN_SHARE) * last.rho_total
    first = r1 * sqrt(last.noise_draws * 2 * d / rho) / (records * middle)
    second = _SECOND_CLIP * sqrt(last.noise_draws * 2 * d / rho) / records
    seen = (
        f"90 % of the records are within {longest:.3g} of the public centre, and half of them within"
        f" {middle:.3g} of their mean (in half-ranges)",
        f"a first private mean would have a relative error of {first:.2g} (limit: {FIRST_ERROR}), and a"
        f" second one of {second:.2g} (limit: {SECOND_ERROR})",
    )
    if first > FIRST_ERROR or second > SECOND_ERROR:
        return _pairs(
            results,
            _clip_of(results, ReleaseKind.PAIRS),
            (*seen, "so the chain uses pairs of records, which need no centre"),
        )
    return NextRound(
        release=ReleaseKind.PRE_STUDY,
        rho_share=MEAN_SHARE,
        clip_norm=r1,
        blocks={BlockName.SUM: Fraction(1)},
        sum_weight=0.0,
        centre=None,
        scale=None,
        pre_studies=_ids(results),
        reasons=(
            *seen,
            f"so a private mean comes next, of records clipped to {r1:.3g}, which is 1.05 times the 90 %"
            " point",
        ),
    )


def _second_mean(results: Sequence[PreStudyResult]) -> NextRound:
    last, norms = results[-1], _norms_of(results)
    middle = quantile(norms, _MIDDLE)
    assert middle is not None, "a mean study follows a norm study that showed something"
    r = min(_SECOND_CLIP * middle, sqrt(last.encoded_features))
    return NextRound(
        release=ReleaseKind.PRE_STUDY,
        rho_share=MEAN_SHARE,
        clip_norm=r,
        blocks={BlockName.SUM: Fraction(1)},
        sum_weight=0.0,
        centre=_moved_centre(last),
        scale=None,
        pre_studies=_ids(results),
        reasons=(
            f"the centre moves to the first private mean; relative to it, records are clipped to {r:.3g} for"
            " the second mean",
        ),
    )


def _main_about_mean(results: Sequence[PreStudyResult], is_categorical: Sequence[bool]) -> NextRound:
    last = results[-1]
    assert last.total is not None
    # Levels keep the centre 0, so their mean adds to a record's norm, in quadrature.
    offset = sum(
        mean**2 for mean, fixed in zip(last.total.mean, is_categorical, strict=True) if fixed
    ) - last.total.noise**2 * sum(is_categorical)
    wanted = _clip_of(results, ReleaseKind.JOINT)
    r = min(sqrt(wanted**2 + max(offset, 0.0)), sqrt(last.encoded_features))
    reasons = [
        f"the joint study uses the second private mean as its centre; records are clipped to {r:.3g}, the"
        f" {_quantile_wanted(results, ReleaseKind.JOINT):g} quantile, which is best for its noise"
    ]
    if offset > 0:
        reasons.append(
            f"{sqrt(offset):.3g} of this norm, in quadrature, accounts for the levels of categories, whose"
            " centre is 0"
        )
    return NextRound(
        release=ReleaseKind.JOINT,
        rho_share=_rest(results),
        clip_norm=r,
        blocks={},
        sum_weight=GOOD_CENTRE_WEIGHT,
        centre=_moved_centre(last),
        scale=None,
        pre_studies=_ids(results),
        reasons=tuple(reasons),
    )


def _pairs(results: Sequence[PreStudyResult], norm: float, reasons: tuple[str, ...]) -> NextRound:
    """`norm` bounds |y|/√2; the manifest's clip norm bounds |y|."""
    share = _rest(results)
    return NextRound(
        release=ReleaseKind.PAIRS,
        rho_share=share,
        clip_norm=min(norm * _ROOT_OF_TWO, 2 * sqrt(results[-1].encoded_features)),
        blocks={},
        sum_weight=0.0,
        centre=None,
        scale=_scale_in_use(results),
        pre_studies=_ids(results),
        reasons=(
            *reasons,
            f"a study of pairs takes the remaining {float(share):.0%}; differences are clipped to"
            f" √2·{norm:.3g}",
        ),
    )


def _scale_in_use(results: Sequence[PreStudyResult]) -> tuple[float, ...] | None:
    """The units that a study of scales has set for all later rounds; None if there was no such study."""
    return results[-1].half_range if any(each.octaves is not None for each in results) else None


def _clip_of(results: Sequence[PreStudyResult], release: ReleaseKind) -> float:
    norms = _norms_of(results)
    found = quantile(norms, _quantile_wanted(results, release))
    assert found is not None, "the histogram has a median, so it has every quantile"
    return found


def _quantile_wanted(results: Sequence[PreStudyResult], release: ReleaseKind) -> float:
    """The quantile of |y|/√2 at which to clip in the main study: best for its noise, 0.75 for two modes."""
    last = results[-1]
    if has_two_modes(_norms_of(results)):
        return _TWO_MODES
    left = float(_rest(results))
    if release is ReleaseKind.JOINT and last.total is None:
        left -= 2 * float(MEAN_SHARE)
    elif release is ReleaseKind.JOINT and len([each for each in results if each.total is not None]) == 1:
        left -= float(MEAN_SHARE)
    noise = relative_noise(release, GOOD_CENTRE_WEIGHT)
    if last.noise_by is NoiseBy.OWNERS:
        noise *= sqrt(last.noise_draws)
    nu = noise_over_signal(noise, last.encoded_features, left * last.rho_total, last.records)
    # Below the median is the tail of a noisy histogram, where a single stray bin can move a quantile far
    # away.
    return max(clip_quantile(nu), _MIDDLE)


def _norms_of(results: Sequence[PreStudyResult]) -> Histogram:
    for result in reversed(results):
        if result.pair_norms is not None:
            return result.pair_norms
    raise _not_a_chain("none of the results is a norm study")


def _moved_centre(result: PreStudyResult) -> tuple[float, ...]:
    assert result.total is not None
    return tuple(
        centre + unit * mean
        for centre, unit, mean in zip(result.centre, result.half_range, result.total.mean, strict=True)
    )


def _rest(results: Sequence[PreStudyResult]) -> Fraction:
    return 1 - sum((result.rho_share for result in results), Fraction(0))


def _ids(results: Sequence[PreStudyResult]) -> tuple[StudyId, ...]:
    return tuple(result.study for result in results)


def _check_chain(results: Sequence[PreStudyResult], d: int) -> None:
    if not results:
        raise _not_a_chain("there is none")
    seen: tuple[StudyId, ...] = ()
    for result in results:
        if result.pre_studies != seen:
            raise _not_a_chain("each result must name all rounds before it, oldest first")
        if result.encoded_features != d or result.names != results[0].names:
            raise _not_a_chain("the features of the results are not those of the draft")
        seen += (result.study,)
    if _rest(results) <= 0:
        raise _not_a_chain("the rounds of these results have already spent the whole budget of the chain")


def _not_a_chain(what: str) -> UsageError:
    return UsageError(
        "not-a-chain",
        f"these results do not form a chain of pre-studies: {what}",
        "give the results of all rounds, in their order",
    )
