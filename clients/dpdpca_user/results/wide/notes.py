"""What a reader of the components of a lift has to know, as sentences."""

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


def notes(components: Components) -> tuple[str, ...]:
    """Sentences beside the components of a lift; none for those of a full matrix."""
    if components.lifted is None:
        return ()
    said = [_FOUND, _CUT]
    if components.variance_kind == LOWER_BOUND:
        has_none = bool(components.trusted_count) and not components.captured.any()
        said.append(GRAM_NOT_POSITIVE if has_none else _BOUNDS)
    return (*said, _TOTAL, _NO_MATRIX)


def no_matrix() -> ConflictError:
    """The refusal of everything that needs variances, covariances or correlations of features."""
    return ConflictError(
        "no-correlation",
        "this study has many features and released no matrix of them, so there are no covariances,"
        " correlations or means of features",
        "use the components and their variances",
    )
