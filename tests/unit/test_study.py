from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.study import (
    SHARE_TRANSITIONS,
    STUDY_TRANSITIONS,
    TERMINAL_STATES,
    ReleaseKind,
    ShareEvent,
    ShareState,
    StudyEvent,
    StudyState,
    next_share_state,
    next_study_state,
)


@pytest.mark.parametrize(("release", "state", "event"), list(product(ReleaseKind, StudyState, StudyEvent)))
def test_a_study_moves_by_the_table_or_not_at_all(
    release: ReleaseKind, state: StudyState, event: StudyEvent
) -> None:
    expected = STUDY_TRANSITIONS[release].get((state, event))
    if expected is None:
        with pytest.raises(ConflictError):
            next_study_state(state, event, release)
    else:
        assert next_study_state(state, event, release) is expected


@given(st.sampled_from(list(ReleaseKind)), st.lists(st.sampled_from(list(StudyEvent)), max_size=12))
def test_no_state_is_entered_twice_and_terminal_states_stay(
    release: ReleaseKind, events: list[StudyEvent]
) -> None:
    state, seen = StudyState.OPEN, {StudyState.OPEN}
    for event in events:
        try:
            following = next_study_state(state, event, release)
        except ConflictError:
            continue
        assert state not in TERMINAL_STATES
        assert following not in seen
        seen.add(following)
        state = following


def test_only_the_masked_release_counts() -> None:
    with pytest.raises(ConflictError):
        next_study_state(StudyState.CLOSED, StudyEvent.COUNT, ReleaseKind.JOINT)
    with pytest.raises(ConflictError):
        next_study_state(StudyState.CLOSED, StudyEvent.RELEASE, ReleaseKind.MASKED)


@pytest.mark.parametrize("state", [StudyState.CLOSED, StudyState.COUNTED])
def test_no_cancellation_after_the_first_draw(state: StudyState) -> None:
    assert next_study_state(state, StudyEvent.CANCEL, ReleaseKind.MASKED) is StudyState.CANCELLED
    with pytest.raises(ConflictError) as caught:
        next_study_state(state, StudyEvent.CANCEL, ReleaseKind.MASKED, noise_drawn=True)
    assert caught.value.slug == "noise-already-drawn"


@pytest.mark.parametrize(("state", "event"), list(product(ShareState, ShareEvent)))
def test_a_share_moves_by_the_table_or_not_at_all(state: ShareState, event: ShareEvent) -> None:
    expected = SHARE_TRANSITIONS.get((state, event))
    if expected is None:
        with pytest.raises(ConflictError):
            next_share_state(state, event, version=2, signed_version=1, study=StudyState.OPEN)
    else:
        got = next_share_state(state, event, version=2, signed_version=1, study=StudyState.OPEN)
        assert got is expected


@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions_rise_strictly(version: int) -> None:
    with pytest.raises(ConflictError) as caught:
        next_share_state(
            ShareState.COMPLETE, ShareEvent.WITHDRAW, version=version, signed_version=3, study=StudyState.OPEN
        )
    assert caught.value.slug == "share-version-not-newer"


@pytest.mark.parametrize("study", [s for s in StudyState if s is not StudyState.OPEN])
def test_a_closed_study_takes_no_share(study: StudyState) -> None:
    for event in ShareEvent:
        with pytest.raises(ConflictError) as caught:
            next_share_state(ShareState.PARTIAL, event, version=9, signed_version=0, study=study)
        assert caught.value.slug == "study-closed"
