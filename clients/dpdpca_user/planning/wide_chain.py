"""Chooses the rounds of a chain for many features: norms and means as ever, then sketch, lift and scores.

Up to 5,000 features, the sketch decides between a lift and a full matrix. What a manifest contains comes from
the norm study, the means and the sketch alone. Nothing that was computed from a lift may stand in a manifest:
without a second draw, the proxy could subtract its noise from it. So the scores name the lift's components by
the digest of the sealed statement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Self

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.study import ReleaseKind, SummedOver
from dpdpca_protocol.terms.wide import LEAST_ROWS, MOST_COLUMNS, MOST_ROWS, SEED_BYTES
from dpdpca_protocol.wire.fields import check_members, decimal_text, malformed, read_integer
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_user.planning.choice import (
    MeanRule,
    NextRound,
    check_chain,
    ids_of,
    last_draws,
    next_round,
    rest_of,
    scale_in_use,
)
from dpdpca_user.planning.draft import gets_second_draw
from dpdpca_user.planning.prestudy import PreStudyResult, ReleasedSketch
from dpdpca_user.planning.wide import (
    COMPARED_UP_TO,
    MEAN_PART,
    SCORES_PART,
    SKETCH_PART,
    Route,
    SketchNoise,
    route,
    sketch_rows,
)
from dpdpca_user.results.wide.choice import Budget, choose_release, length_of, visibility
from dpdpca_user.results.wide.rule import lift_rule, scores_norm

DEFAULT_COLUMNS = 10
"""How many components a chain for many features looks for, if its draft does not say."""
WIDE_MEANS = MeanRule(shares=(MEAN_PART,), most=2, far=1.2)
_STEP = 10**6


@dataclass(frozen=True, slots=True)
class WideWishes:
    """What the base draft of a chain asks of its rounds for many features.

    Attributes:
        columns: k, at most how many components are wanted: `lift = {columns = 6}` in the draft.
        rows: m of the sketch: `sketch = {rows = 512}`; None for what the noise suggests.
        scores: whether scores follow the lift: `scores = false` leaves them out.
        of_in_clear: whether the components get a second draw of noise, if the proxy draws the first one.
    """

    columns: int = DEFAULT_COLUMNS
    rows: int | None = None
    scores: bool = True
    of_in_clear: bool = False

    @classmethod
    def of(cls, base: Mapping[str, Any], in_clear: bool = False) -> Self:
        """Raises MessageError: a member has another form."""
        lift, sketch, scores = base.get("lift", {}), base.get("sketch", {}), base.get("scores", True)
        check_members(lift, "lift of a chain's draft", (), ("columns",))
        check_members(sketch, "sketch of a chain's draft", (), ("rows",))
        if not isinstance(scores, bool):
            malformed("scores of a chain's draft", "true or false")
        rows = read_integer(sketch["rows"], "sketch.rows", LEAST_ROWS, MOST_ROWS) if sketch else None
        columns = DEFAULT_COLUMNS
        if lift:
            columns = read_integer(lift["columns"], "lift.columns", 1, MOST_COLUMNS)
        return cls(columns, rows, scores, gets_second_draw(base, in_clear))


@dataclass(frozen=True, slots=True)
class PublishedLift:
    """A lift whose components the owners have.

    Attributes:
        study: its id.
        rho_share: its share of ρ.
        columns: k.
        components: digest of the statement with the sealed components.
    """

    study: StudyId
    rho_share: Fraction
    columns: int
    components: Digest


def is_wide_chain(base: Mapping[str, Any], d: int) -> bool:
    """Whether a chain of this draft has a sketch. A draft that names its release gets a full matrix."""
    return route(d) is not Route.FULL and "release" not in base


def next_wide_round(
    results: Sequence[PreStudyResult], d: int, wishes: WideWishes, randomness: Randomness
) -> NextRound:
    """The round that follows norms, means or sketch.

    Args:
        results: the results of all rounds, oldest first, at least one.
        d: number of encoded features.
        wishes: what the draft asks for.
        randomness: for the seed of the sketch.

    Raises:
        ConflictError: `nothing-in-the-sketch`.
        PolicyError: `manifest-refused`, the sketch varies too little for a lift.
        UsageError: the results are not those of a chain.
    """
    if results and results[-1].sketch is not None:
        check_chain(results, d)
        return _after_sketch(results, d, wishes)
    chosen = next_round(results, d, WIDE_MEANS)
    return _sketch(results, d, chosen, wishes, randomness) if chosen.is_last else chosen


def scores_round(results: Sequence[PreStudyResult], d: int, lift: PublishedLift) -> NextRound:
    """The scores that follow a lift; they take what it has left.

    Args:
        results: of all rounds before the lift, oldest first.
        d: number of encoded features.
        lift: whose components are scored.
    """
    check_chain(results, d)
    sketch = _sketch_of(results)
    left = rest_of(results) - lift.rho_share
    norm = scores_norm(sketch.reading, lift.columns, float(sketch.clip_norm), 1 << sketch.fraction_bits, d)
    return NextRound(
        release=ReleaseKind.SCORES,
        rho_share=left,
        clip_norm=float(sketch.clip_norm),
        blocks={},
        sum_weight=0.0,
        centre=_centre_in_use(results),
        scale=scale_in_use(results),
        pre_studies=(*ids_of(results), lift.study),
        reasons=(
            f"scores of the {lift.columns} components end the chain: they say how much each component varies",
            f"they are cut to {norm:.3g}, as the sketch suggests",
        ),
        members=_terms(sketch)
        | {
            "scores": {
                "columns": lift.columns,
                "study": lift.study.hex(),
                "components": lift.components.hex(),
                "norm": decimal_text(Fraction(ceil(norm * _STEP), _STEP)),
            }
        },
    )


def _sketch(
    results: Sequence[PreStudyResult],
    d: int,
    chosen: NextRound,
    wishes: WideWishes,
    randomness: Randomness,
) -> NextRound:
    """A sketch in the place of the full matrix that a chain for fewer features would choose."""
    last, of_pairs = results[-1], chosen.release is ReleaseKind.PAIRS
    noise = SketchNoise(last.records, float(SKETCH_PART) * last.rho_total, of_pairs, last.noise_draws)
    rows = min(wishes.rows or sketch_rows(d, noise), d)
    why = (
        f"{d:,} features are many, so a sketch comes first: each record is mixed into {rows} numbers",
        f"it shows which directions vary; {'differences' if of_pairs else 'records'} are clipped to"
        f" {chosen.clip_norm:.3g}",
    )
    return replace(
        chosen,
        release=ReleaseKind.SKETCH,
        rho_share=SKETCH_PART,
        sum_weight=0.0,
        clip_cap=None,
        reasons=(*chosen.reasons[:-1], *why),
        members={
            "of": str(SummedOver.PAIRS if of_pairs else SummedOver.RECORDS),
            "sketch": {"rows": rows, "seed": randomness.bytes(SEED_BYTES).hex()},
        },
    )


def _after_sketch(results: Sequence[PreStudyResult], d: int, wishes: WideWishes) -> NextRound:
    last, sketch = results[-1], _sketch_of(results)
    reading, left = sketch.reading, rest_of(results)
    of_scores = SCORES_PART if wishes.scores else Fraction(0)
    if left <= of_scores:
        raise UsageError("not-a-chain", "the earlier rounds have left nothing for a lift", "start again")
    budget = Budget(
        features=d,
        rows=reading.count,
        of_pairs=reading.of_pairs,
        rho_lift=float(left - of_scores) * last.rho_total,
        rho_full=float(left) * last.rho_total,
        draws=last_draws(last, wishes.of_in_clear),
        length=length_of(reading),
    )
    choice = choose_release(visibility(reading), min(wishes.columns, d), budget, d <= COMPARED_UP_TO)
    if not choice.is_lift:
        full = next_round(results[:-1], d, WIDE_MEANS, second_draw=wishes.of_in_clear)
        return replace(full, rho_share=left, pre_studies=ids_of(results), reasons=choice.sentences)
    rule = lift_rule(reading, choice.columns)
    sealed = ("the owners get its components sealed, because scores follow",) if wishes.scores else ()
    return NextRound(
        release=ReleaseKind.LIFT,
        rho_share=left - of_scores,
        clip_norm=float(sketch.clip_norm),
        blocks={},
        sum_weight=0.0,
        centre=_centre_in_use(results),
        scale=scale_in_use(results),
        pre_studies=ids_of(results),
        reasons=(*choice.sentences, *sealed),
        members=_terms(sketch)
        | {
            "sketch": {"rows": reading.rows, "seed": sketch.seed.hex()},
            "lift": {
                "columns": choice.columns,
                "matrix": rule.matrix.tolist(),
                "offset": list(rule.offset),
            },
        },
        is_followed=wishes.scores,
    )


def _sketch_of(results: Sequence[PreStudyResult]) -> ReleasedSketch:
    sketch = results[-1].sketch if results else None
    if sketch is None:
        raise UsageError(
            "not-a-chain", "the last of these results is not that of a sketch", "give all rounds"
        )
    return sketch


def _terms(sketch: ReleasedSketch) -> dict[str, Any]:
    """The members in which all rounds after a sketch agree with it."""
    return {
        "of": str(SummedOver.PAIRS if sketch.reading.of_pairs else SummedOver.RECORDS),
        "clip_norm": decimal_text(sketch.clip_norm),
        "fraction_bits": sketch.fraction_bits,
    }


def _centre_in_use(results: Sequence[PreStudyResult]) -> tuple[float, ...] | None:
    """The private centre of the sketch; None for the public one."""
    sketch = results[-1].sketch
    if any(each.total is not None for each in results) and sketch and not sketch.reading.of_pairs:
        return results[-1].centre
    return None
