"""What a reader of the components of a lift has to know, as sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.result.components import LOWER_BOUND, Components
from dpdpca_user.results.wide.lift import GRAM_NOT_POSITIVE

_CUT = (
    "Records are cut to the clip norm, and in the sketch and in the scores once more, and no figure sees it."
)
_FOUND = "Components that the sketch did not show are not in the lift."
_TOTAL = "The total variance comes from the sketch and is usually some per cent too low."
_NO_MATRIX = (
    "There is no matrix of features: no covariances, no correlations, no variances of features, and no"
    " limit of SPE."
)
_BOUNDS = "The variances are lower bounds, because this result has no scores round."
_ALIKE = 1.1
"""Above this ratio of the largest to the smallest round, the rules made from one do not fit the other."""


@dataclass(frozen=True, slots=True)
class RoundCount:
    """A round of a chain, and the number of its records."""

    release: str
    records: int


def notes(components: Components, rounds: Sequence[RoundCount] = ()) -> tuple[str, ...]:
    """Sentences beside the components of a lift; none for those of a full matrix.

    Args:
        components: of a result.
        rounds: all rounds of its chain, oldest first, this one included.
    """
    if components.lifted is None:
        return ()
    said = [*differing_counts(rounds), _FOUND, _CUT]
    if components.variance_kind == LOWER_BOUND:
        has_none = bool(components.trusted_count) and not components.captured.any()
        said.append(GRAM_NOT_POSITIVE if has_none else _BOUNDS)
    return (*said, _TOTAL, _NO_MATRIX)


def differing_counts(rounds: Sequence[RoundCount]) -> tuple[str, ...]:
    """A warning if the numbers of records of two rounds differ by more than 10 %."""
    if not rounds:
        return ()
    least, most = (choose(rounds, key=lambda each: each.records) for choose in (min, max))
    if most.records <= _ALIKE * least.records:
        return ()
    return (
        f"The rounds of this chain do not have the same records: the {most.release} has {most.records:,}, the"
        f" {least.release} has {least.records:,}. Each round is planned from the rounds before it, so the"
        " components and their variances may be less accurate than their figures say.",
    )


def no_matrix() -> ConflictError:
    """The refusal of everything that needs variances, covariances or correlations of features."""
    return ConflictError(
        "no-correlation",
        "this study has many features and released no matrix of them, so there are no covariances,"
        " correlations or means of features",
        "use the components and their variances",
    )
