"""What the operator's page says of states, events and failures."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from dpdpca_protocol.study import ReleaseKind, ShareState, StudyState
from dpdpca_runtime.asgi.problem_table import PROBLEMS

STATES: Final[Mapping[StudyState, str]] = {
    StudyState.OPEN: "open for shares",
    StudyState.CLOSED: "closed; the proxy adds up the shares",
    StudyState.COUNTED: "counted; the proxy makes the release",
    StudyState.RELEASED: "released; the data user has published no components yet",
    StudyState.PUBLISHED: "finished; the components are published",
    StudyState.CANCELLED: "cancelled by the data user",
    StudyState.FAILED: "failed",
}
RELEASED_NUMBERS: Final = "finished; the result of this round is released"
WAITS_FOR_COUNT: Final = "closed; the proxy waits for the number of records from the data user"

RELEASES: Final[Mapping[ReleaseKind, str]] = {
    ReleaseKind.MASKED: "masked release",
    ReleaseKind.JOINT: "joint release",
    ReleaseKind.PAIRS: "release of pairs",
    ReleaseKind.PRE_STUDY: "pre-study",
    ReleaseKind.SKETCH: "sketch",
    ReleaseKind.LIFT: "lift",
    ReleaseKind.SCORES: "scores",
}

SHARES: Final[Mapping[ShareState, str]] = {
    ShareState.ABSENT: "expected",
    ShareState.PARTIAL: "sending",
    ShareState.COMPLETE: "delivered",
    ShareState.WITHDRAWN: "withdrawn",
}
DECLINED: Final = "declined"
NOT_DELIVERED: Final = "not delivered"

PHASES: Final[Mapping[str, str]] = {
    "aggregate": "adding up the shares",
    "count": "asking for the number of records",
    "draw": "drawing the noise",
    "release": "making the release",
}

_UNITS: Final = ("kB", "MB", "GB", "TB")

_EVENTS: Final[Mapping[str, str]] = {
    "manifest": "The data user opened the study.",
    "receipt": "{owner} delivered its share.",
    "withdrawal": "{owner} withdrew its share.",
    "closed": "The study closed with {owners} ({reason}).",
    "count": "The data user proved the number of records.",
    "release": "The proxy released the sum with noise.",
    "opened": "The data user opened the release.",
    "components": "The data user published the components.",
    "cancelled": "The data user cancelled the study.",
    "failed": "The study failed.",
}

_ANEW: Final = "Ask the data user to create a new study."
_FAILURES: Final[Mapping[str, str]] = {
    "too-few-owners": "Ask the data user to create a new study that closes later, and remind the owners.",
    "cohort-incomplete": "Ask the data user to create a new study that names only owners who will deliver.",
    "cohort-too-close": f"Ask the data user to create a new study: {PROBLEMS['cohort-too-close'].remedy}.",
    "count-out-of-range": f"Ask the data user to {PROBLEMS['count-out-of-range'].remedy}.",
}

TROUBLE: Final[Mapping[str, tuple[str, str]]] = {
    "state-corrupt": (
        "What the proxy has stored of this study contradicts itself.",
        "Run dpdpca proxy audit with the id of the study. Restore the whole home from one backup.",
    ),
    "step-failing": (
        "A step of this study fails again and again.",
        "The proxy's log says why, under “step failed”. Check the disk, the memory and the executor.",
    ),
}
FEW_OWNERS: Final = (
    "Fewer owners than the study needs have delivered. If it stays so, the study fails.",
    "Remind the owners that are expected.",
)
DATA_USER_AWAY: Final = (
    "The data user has not sent the number of records for more than an hour.",
    "Ask the data user whether its service runs.",
)


def event_words(kind: str, told: Mapping[str, Any]) -> str:
    """An event as a sentence. `told` holds what its kind needs: owner (a name), owners (such as "2 owners"),
    reason."""
    return _EVENTS.get(kind, kind).format_map(told)


def counted(count: int, thing: str, things: str = "") -> str:
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def failure_remedy(slug: str) -> str:
    return _FAILURES.get(slug, _ANEW)


def time_left(left: timedelta) -> str:
    """The two largest units of a time that is left."""
    minutes = int(left.total_seconds()) // 60
    if minutes < 1:
        return "less than a minute" if left > timedelta() else "none; it closes now"
    days, hours = divmod(minutes // 60, 24)
    units = [("day", days), ("hour", hours), ("minute", minutes % 60)]
    first = next(index for index, (_, count) in enumerate(units) if count)
    return " ".join(counted(count, unit) for unit, count in units[first : first + 2] if count)


def size(count: int) -> str:
    """A number of bytes, such as 38.5 kB."""
    if count < 1000:
        return f"{count} B"
    power = min((len(str(count)) - 1) // 3, len(_UNITS))
    return f"{count / 1000**power:.1f} {_UNITS[power - 1]}"
