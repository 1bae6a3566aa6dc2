"""Matches the columns of an owner's data to the features of a study."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from dpdpca_protocol.errors import InputError
from dpdpca_protocol.terms.features import Feature, column_key

_SHOWN = 5
_COMPARED = 10_000


def match_columns(names: Sequence[str], features: Iterable[Feature]) -> list[int]:
    """The position in `names` of the column of each feature.

    Names are compared after Unicode normalisation (NFC), without a byte-order mark or spaces at the ends.
    The order of columns does not matter, and columns that no feature asks for are ignored.

    Raises:
        InputError: the column of a feature is missing or occurs more than once.
    """
    places: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        places.setdefault(column_key(name), []).append(position)
    missing, doubled, found = [], [], []
    for feature in features:
        positions = places.get(column_key(feature.name), [])
        if not positions:
            missing.append(feature.name)
        elif len(positions) > 1:
            doubled.append(feature.name)
        else:
            found.append(positions[0])
    if doubled:
        raise InputError(
            "duplicated-column",
            f"the data has more than one column named {_listed(doubled)}",
            "keep one of each name",
        )
    if missing:
        raise InputError(
            "missing-column",
            f"the data lacks the column{'s' if len(missing) > 1 else ''} {_listed(missing)}",
            _suggestion(missing, list(places)) or "use the column names of the manifest",
        )
    return found


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + rest


def _suggestion(missing: Sequence[str], present: Sequence[str]) -> str:
    """Advice if a column has the same name in another case, or a similar name; else an empty text."""
    if len(present) > _COMPARED:  # this would take minutes
        return ""
    folded = {name.casefold(): name for name in present}
    for name in missing[:_SHOWN]:
        near = get_close_matches(name.casefold(), folded, n=1, cutoff=0.8)
        if near:
            return f"rename '{folded[near[0]]}' to '{name}' if that is the same quantity"
    return ""
