"""The states of a study and of one owner's share in it, as two tables.

Everything that can move a study or a share stands here. The tables know neither role nor storage; an
event that a state does not allow raises and nothing moves. No study state is entered twice.
"""

from enum import StrEnum

from dpdpca_protocol.errors import ConflictError


class StudyState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    COUNTED = "counted"
    RELEASED = "released"
    PUBLISHED = "published"
    CANCELLED = "cancelled"
    FAILED = "failed"


class StudyEvent(StrEnum):
    CLOSE = "close"
    COUNT = "count"
    RELEASE = "release"
    PUBLISH = "publish"
    CANCEL = "cancel"
    FAIL = "fail"


class ReleaseKind(StrEnum):
    """What leaves once, noisy."""

    MASKED = "masked"
    JOINT = "joint"
    PAIRS = "pairs"
    PRE_STUDY = "pre-study"

    @property
    def needs_count(self) -> bool:
        """Whether the data user proves the number of records before the noise is drawn."""
        return self is ReleaseKind.MASKED

    @property
    def has_components(self) -> bool:
        """Whether components come of it. A pre-study has numbers for whoever plans the next study."""
        return self is not ReleaseKind.PRE_STUDY


_S, _E = StudyState, StudyEvent

_COMMON: dict[tuple[StudyState, StudyEvent], StudyState] = {
    (_S.OPEN, _E.CLOSE): _S.CLOSED,
    (_S.OPEN, _E.CANCEL): _S.CANCELLED,
    (_S.OPEN, _E.FAIL): _S.FAILED,
    (_S.CLOSED, _E.CANCEL): _S.CANCELLED,
    (_S.CLOSED, _E.FAIL): _S.FAILED,
}
_PUBLISHED: dict[tuple[StudyState, StudyEvent], StudyState] = {
    (_S.RELEASED, _E.PUBLISH): _S.PUBLISHED,
}
_FLAT: dict[tuple[StudyState, StudyEvent], StudyState] = {
    (_S.CLOSED, _E.RELEASE): _S.RELEASED,
}
_COUNTED: dict[tuple[StudyState, StudyEvent], StudyState] = {
    (_S.CLOSED, _E.COUNT): _S.COUNTED,
    (_S.COUNTED, _E.CANCEL): _S.CANCELLED,
    (_S.COUNTED, _E.FAIL): _S.FAILED,
    (_S.COUNTED, _E.RELEASE): _S.RELEASED,
}

STUDY_TRANSITIONS: dict[ReleaseKind, dict[tuple[StudyState, StudyEvent], StudyState]] = {
    kind: _COMMON | (_COUNTED if kind.needs_count else _FLAT) | (_PUBLISHED if kind.has_components else {})
    for kind in ReleaseKind
}
"""(state, event) → next state. After the first draw of noise the store refuses CANCEL besides."""

TERMINAL_STATES = frozenset({_S.PUBLISHED, _S.CANCELLED, _S.FAILED})
RELEASED_STATES = frozenset({_S.RELEASED, _S.PUBLISHED})


def next_study_state(
    state: StudyState, event: StudyEvent, release: ReleaseKind, *, noise_drawn: bool = False
) -> StudyState:
    """Where `event` takes a study.

    Raises:
        ConflictError: the table has no such transition, or CANCEL comes after noise was drawn.
    """
    following = STUDY_TRANSITIONS[release].get((state, event))
    if following is None:
        slug = "study-closed" if event is _E.CLOSE else "wrong-state"
        raise ConflictError(
            slug,
            f"a {release} study that is {state} does not {event}",
            "read the study's state and its transcript",
        )
    if event is _E.CANCEL and noise_drawn:
        raise ConflictError(
            "noise-already-drawn",
            "the noise of this study is drawn, so it can no longer be cancelled",
            "wait for the release",
        )
    return following


class ShareState(StrEnum):
    ABSENT = "absent"
    PARTIAL = "partial"
    COMPLETE = "complete"
    WITHDRAWN = "withdrawn"


class ShareEvent(StrEnum):
    UPLOAD = "upload"
    COMPLETE = "complete"
    WITHDRAW = "withdraw"


_H, _V = ShareState, ShareEvent

SHARE_TRANSITIONS: dict[tuple[ShareState, ShareEvent], ShareState] = {
    (_H.ABSENT, _V.UPLOAD): _H.PARTIAL,
    (_H.PARTIAL, _V.UPLOAD): _H.PARTIAL,
    (_H.PARTIAL, _V.COMPLETE): _H.COMPLETE,
    (_H.COMPLETE, _V.WITHDRAW): _H.WITHDRAWN,
    (_H.COMPLETE, _V.UPLOAD): _H.COMPLETE,
    (_H.COMPLETE, _V.COMPLETE): _H.COMPLETE,
    (_H.WITHDRAWN, _V.UPLOAD): _H.WITHDRAWN,
    (_H.WITHDRAWN, _V.COMPLETE): _H.COMPLETE,
}
"""A complete or withdrawn share stays what it is while a higher version is being uploaded."""


def next_share_state(
    state: ShareState, event: ShareEvent, *, version: int, signed_version: int, study: StudyState
) -> ShareState:
    """Where `event` under `version` takes a share whose last signed version is `signed_version` (0: none).

    Raises:
        ConflictError: the study is not open, the version is not above the last signed one, or the table
            has no such transition.
    """
    if study is not StudyState.OPEN:
        raise ConflictError(
            "study-closed",
            f"the study is {study}: it takes no more shares",
            "ask the data user for a new study",
        )
    if version <= signed_version:
        raise ConflictError(
            "share-version-not-newer",
            f"version {version} is not above version {signed_version}, the last one signed for this share",
            f"use version {signed_version + 1}",
        )
    following = SHARE_TRANSITIONS.get((state, event))
    if following is None:
        raise ConflictError(
            "wrong-state", f"a share that is {state} cannot {event}", "read the share's state"
        )
    return following
