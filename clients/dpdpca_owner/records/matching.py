"""Which column of the owner's data is which feature of a study."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from dpdpca_protocol.errors import InputError
from dpdpca_protocol.terms.features import Feature, column_key

_SHOWN = 5


def match_columns(names: Sequence[str], features: Iterable[Feature]) -> list[int]:
    """For each feature the position of its column in `names`.

    Names are compared after Unicode normalisation (NFC) and without byte-order mark and outer spaces, and by
    nothing looser. Columns that no feature asks for are ignored, in any order.

    Raises:
        InputError: a feature's column is missing, or there are two of it.
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
            "duplicated-column", f"the data has more than one column {_listed(doubled)}", "keep one of them"
        )
    if missing:
        raise InputError(
            "missing-column",
            f"the data lacks the column{'s' if len(missing) > 1 else ''} {_listed(missing)}",
            _suggestion(missing, list(places)) or "name the columns as the manifest does",
        )
    return found


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + rest


def _suggestion(missing: Sequence[str], present: Sequence[str]) -> str:
    """What the owner may have meant: the same name in another case, or a near one."""
    folded = {name.casefold(): name for name in present}
    for name in missing:
        near = get_close_matches(name.casefold(), folded, n=1, cutoff=0.8)
        if near:
            return f"rename '{folded[near[0]]}' to '{name}' if that is the same quantity"
    return ""
