"""The states of a study and of one owner's share, as two transition tables.

The tables list every event that can change the state of a study or a share. The tables do not depend on roles
or storage. An event that a state does not allow raises an error and changes nothing. No study state is
entered twice.
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
    """What is released, once and with noise."""

    MASKED = "masked"
    JOINT = "joint"
    PAIRS = "pairs"
    PRE_STUDY = "pre-study"
    SKETCH = "sketch"
    LIFT = "lift"
    SCORES = "scores"

    @property
    def needs_count(self) -> bool:
        """Whether the data user must prove the number of records before the noise is drawn."""
        return self is ReleaseKind.MASKED

    @property
    def has_components(self) -> bool:
        """Whether the release gives components.

        A pre-study or a sketch gives numbers for planning the next study instead.
        """
        return self not in (ReleaseKind.PRE_STUDY, ReleaseKind.SKETCH)


class SummedOver(StrEnum):
    """What a sketch, a lift or scores add up: records, or differences of two records."""

    RECORDS = "records"
    PAIRS = "pairs"


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
"""(state, event) → next state. The store also refuses CANCEL after the first draw of noise."""

TERMINAL_STATES = frozenset({_S.PUBLISHED, _S.CANCELLED, _S.FAILED})
RELEASED_STATES = frozenset({_S.RELEASED, _S.PUBLISHED})


def next_study_state(
    state: StudyState, event: StudyEvent, release: ReleaseKind, *, noise_drawn: bool = False
) -> StudyState:
    """The state of a study after `event`.

    Raises:
        ConflictError: the table has no such transition, or the event is CANCEL and noise was drawn.
    """
    following = STUDY_TRANSITIONS[release].get((state, event))
    if following is None:
        slug = "study-closed" if event is _E.CLOSE else "wrong-state"
        raise ConflictError(
            slug,
            f"a {release} study in state {state} does not allow {event}",
            "read the study's state and its transcript",
        )
    if event is _E.CANCEL and noise_drawn:
        raise ConflictError(
            "noise-already-drawn",
            "the noise of this study was drawn, so the study can no longer be cancelled",
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
"""A complete or withdrawn share keeps its state while a higher version is being uploaded."""


def next_share_state(
    state: ShareState, event: ShareEvent, *, version: int, signed_version: int, study: StudyState
) -> ShareState:
    """The state of a share after `event`.

    `version` is the version of the event, `signed_version` the last signed version of the share (0 if none).

    Raises:
        ConflictError: the study is not open, the version is not above the last signed one, or the table
            has no such transition.
    """
    if study is not StudyState.OPEN:
        raise ConflictError(
            "study-closed",
            f"the study is {study}: it accepts no more shares",
            "ask the data user for a new study",
        )
    if version <= signed_version:
        raise ConflictError(
            "share-version-not-newer",
            f"version {version} is not above version {signed_version}, the last signed version of this share",
            f"use version {signed_version + 1}",
        )
    following = SHARE_TRANSITIONS.get((state, event))
    if following is None:
        raise ConflictError(
            "wrong-state", f"a share in state {state} does not allow {event}", "read the share's state"
        )
    return following
