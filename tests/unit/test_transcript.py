import pytest

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.messages.transcript import FIRST, Event, verify_transcript
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import IdentityKey, Statement

PROXY = IdentityKey.generate()
STUDY = StudyId.of(b"study")


def chain(kinds: list[str], study: StudyId = STUDY, key: IdentityKey = PROXY) -> list[Statement]:
    links: list[Statement] = []
    previous = FIRST
    for index, kind in enumerate(kinds):
        event = Event(study, index, previous, f"2026-01-01T00:00:0{index}Z", kind, {"n": index})
        links.append(event.sign(key))
        previous = links[-1].digest
    return links


LINKS = [link.encoded for link in chain(["manifest", "receipt", "receipt", "closed", "release"])]
KEY = PROXY.public.ed25519


def test_an_honest_chain_is_read_back_in_order() -> None:
    events = verify_transcript(LINKS, STUDY, KEY)
    assert [event.kind for event in events] == ["manifest", "receipt", "receipt", "closed", "release"]
    assert verify_transcript(LINKS[:2], STUDY, KEY) == events[:2]


@pytest.mark.parametrize(
    "altered",
    [
        [LINKS[1], *LINKS[2:]],  # the first missing
        [LINKS[0], *LINKS[2:]],  # one missing
        [LINKS[0], LINKS[2], LINKS[1], *LINKS[3:]],  # two swapped
        [LINKS[0], LINKS[0], *LINKS[1:]],  # one twice
        [link.encoded for link in chain(["manifest"], StudyId.of(b"another"))],
        [link.encoded for link in chain(["manifest"], key=IdentityKey.generate())],
        [link.encoded for link in chain(["no such kind"])],
        *(
            [link.encoded for link in chain(kinds)]
            for kinds in (
                ["receipt"],
                ["manifest", "manifest"],
                ["manifest", "release"],
                ["manifest", "closed", "receipt"],
                ["manifest", "receipt", "closed", "withdrawal", "closed", "release"],
                ["manifest", "closed", "count", "count"],
                ["manifest", "closed", "release", "release"],
                ["manifest", "closed", "release", "cancelled"],
                ["manifest", "cancelled", "closed"],
                ["manifest", "closed", "release", "components", "components"],
            )
        ),
    ],
)
def test_a_broken_or_forged_chain_is_refused(altered: list[bytes]) -> None:
    with pytest.raises(DpdpcaError):
        verify_transcript(altered, STUDY, KEY)


@pytest.mark.parametrize(
    "kinds",
    [
        [
            "manifest",
            "receipt",
            "withdrawal",
            "receipt",
            "closed",
            "count",
            "release",
            "opened",
            "components",
        ],
        ["manifest", "failed"],
        ["manifest", "closed", "count", "failed"],
        ["manifest", "receipt", "closed", "cancelled"],
    ],
)
def test_every_course_that_a_study_can_take_is_read(kinds: list[str]) -> None:
    events = verify_transcript([link.encoded for link in chain(kinds)], STUDY, KEY)
    assert [event.kind for event in events] == kinds


@pytest.mark.parametrize("time", ["", "2026-01-01", "2026-01-01T00:00:00Z\x1b[2J", "2026-13-01T00:00:00Z"])
def test_a_time_is_a_time(time: str) -> None:
    with pytest.raises(DpdpcaError):
        verify_transcript([Event(STUDY, 0, FIRST, time, "manifest", {}).sign(PROXY).encoded], STUDY, KEY)


def test_time_does_not_run_backwards() -> None:
    first = Event(STUDY, 0, FIRST, "2026-01-01T00:00:01Z", "manifest", {}).sign(PROXY)
    second = Event(STUDY, 1, Digest(first.digest), "2026-01-01T00:00:00Z", "receipt", {}).sign(PROXY)
    with pytest.raises(DpdpcaError):
        verify_transcript([first.encoded, second.encoded], STUDY, KEY)
