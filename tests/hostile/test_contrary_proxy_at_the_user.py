"""A proxy that signs what is not so, and what the data user's software says to it.

Each forgery is signed with the proxy's real key: the signature alone would let it pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proxy_world import ProxyWorld
from study_parties import Parties
from user_world import UserWorld

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.messages.log import LogEntry
from dpdpca_protocol.messages.share import CohortMember, ShareStatement, cohort_digest
from dpdpca_protocol.messages.study_messages import CountChallenge, ReleaseStatement
from dpdpca_protocol.messages.transcript import FIRST, Event
from dpdpca_protocol.wire.canonical import parse_canonical
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import IdentityKey, Statement, verify_statement
from dpdpca_runtime.http.answers import ReleaseBundle
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_user.evidence import verify_release
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.steps import decode_bundle, signed_manifest
from dpdpca_user_service.store.studies import StudyRow


class Case:
    """A finished masked study, taken apart."""

    def __init__(self, user: UserWorld, row: StudyRow) -> None:
        self.user, self.row = user, row
        self.proxy = user.world.proxy.key
        self.signed = signed_manifest(user.service, row)
        self.bundle = decode_bundle(user.service.store.need(row.id, "bundle"))
        self.challenge = user.service.store.need(row.id, "challenge")
        self.answer = user.service.store.need(row.id, "answer")
        self.said = ReleaseStatement.parse(verify_statement("release", self.bundle.release))

    def verify(self, bundle: ReleaseBundle, challenge: bytes | None = None) -> None:
        verify_release(
            self.signed,
            bundle.release,
            bundle.shares,
            bundle.transcript,
            bundle.log,
            challenge or self.challenge,
            self.answer,
        )

    def release(self, **changes: Any) -> bytes:
        said = replace(self.said, **changes)
        if "cohort" in changes and "cohort_digest" not in changes:
            said = replace(said, cohort_digest=cohort_digest(said.cohort))
        return said.sign(self.proxy).encoded

    def chain(self, change: Callable[[list[Event]], list[Event]]) -> tuple[bytes, ...]:
        """The transcript with other events, signed and linked anew."""
        events = [Event.parse(parse_canonical(event)["body"]) for event in self.bundle.transcript]
        out: list[bytes] = []
        previous: Digest = FIRST
        for index, event in enumerate(change(events)):
            statement = replace(event, index=index, previous=previous).sign(self.proxy)
            out.append(statement.encoded)
            previous = statement.digest
        return tuple(out)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, parties: Parties) -> Iterator[Case]:
    folder: Path = tmp_path_factory.mktemp("contrary")
    world = ProxyWorld(folder / "proxy", parties.user, list(parties.owners), parties.secret, parties.proof)
    world.start()
    world.enrol_all()
    user = UserWorld(world, folder / "user")
    row = user.advance_to(user.create(release="masked"), Stage.OPEN)
    user.deliver_all(row)
    yield Case(user, user.advance_to(row, Stage.PUBLISHED))
    user.service.close()
    world.stop()


def test_the_honest_bundle_passes(case: Case) -> None:
    case.verify(case.bundle)


def refused(case: Case, bundle: ReleaseBundle, slug: str, challenge: bytes | None = None) -> None:
    with pytest.raises(DpdpcaError) as refusal:
        case.verify(bundle, challenge)
    assert refusal.value.slug == slug, str(refusal.value)


def test_an_owner_left_out(case: Case) -> None:
    kept = case.said.cohort[:-1]
    refused(case, replace(case.bundle, release=case.release(cohort=kept)), "cohort-differs")
    shares = tuple(
        share
        for share in case.bundle.shares
        if verify_statement("share", share).digest in {member.statement for member in kept}
    )
    left_out = replace(case.bundle, release=case.release(cohort=kept), shares=shares)
    refused(case, left_out, "cohort-differs")


def test_a_cohort_below_what_the_manifest_asks_for(case: Case) -> None:
    one = case.said.cohort[:1]
    refused(case, replace(case.bundle, release=case.release(cohort=one)), "cohort-too-small")


def test_an_owner_counted_twice(case: Case) -> None:
    twice = (*case.said.cohort, case.said.cohort[0])
    refused(case, replace(case.bundle, release=case.release(cohort=twice)), "cohort-differs")


def test_a_digest_that_is_not_the_cohorts(case: Case) -> None:
    false = case.release(cohort_digest=Digest.of(b"another"))
    refused(case, replace(case.bundle, release=false), "cohort-differs")


def test_a_release_that_names_other_software_than_the_transcript(case: Case) -> None:
    assert case.said.software is not None
    other = replace(case.said.software, version="9.9.9")
    release = case.release(software=other)

    def naming(events: list[Event], detail: dict[str, Any]) -> list[Event]:
        *before, last = events
        digest = verify_statement("release", release).digest.hex()
        return [*before, replace(last, detail={**last.detail, "statement": digest, **detail})]

    contrary = replace(case.bundle, release=release, transcript=case.chain(lambda events: naming(events, {})))
    refused(case, contrary, "transcript-broken")
    agreed = case.chain(lambda events: naming(events, {"software_version": "9.9.9"}))
    case.verify(replace(case.bundle, release=release, transcript=agreed))


def test_a_release_of_an_earlier_version_names_no_software_and_holds(case: Case) -> None:
    release = case.release(software=None)
    digest = verify_statement("release", release).digest.hex()

    def as_before(events: list[Event]) -> list[Event]:
        *before, last = events
        told = {name: value for name, value in last.detail.items() if not name.startswith("software_")}
        return [*before, replace(last, detail={**told, "statement": digest})]

    case.verify(replace(case.bundle, release=release, transcript=case.chain(as_before)))


def test_an_owner_that_the_manifest_does_not_name(case: Case) -> None:
    stranger = IdentityKey.generate()
    public = stranger.public
    real = ShareStatement.parse(verify_statement("share", case.bundle.shares[0]))
    statement = replace(real, owner=public.ed25519, kem=public.sealing_key).sign(stranger)
    member = CohortMember(public.party_id, 1, statement.digest)
    bundle = replace(
        case.bundle,
        release=case.release(cohort=(*case.said.cohort[1:], member)),
        shares=(*case.bundle.shares[1:], statement.encoded),
    )
    refused(case, bundle, "cohort-differs")


def test_a_share_of_another_study_or_version(case: Case) -> None:
    owner = case.user.world.owners[0]
    real = next(
        share
        for share in (ShareStatement.parse(verify_statement("share", s)) for s in case.bundle.shares)
        if share.owner == owner.public.ed25519
    )
    rest = tuple(s for s in case.bundle.shares if verify_statement("share", s).signer != owner.public.ed25519)
    other_study = replace(real, study=StudyId(bytes(32))).sign(owner).encoded
    refused(case, replace(case.bundle, shares=(*rest, other_study)), "wrong-study")
    other_version = replace(real, version=2).sign(owner).encoded
    refused(case, replace(case.bundle, shares=(*rest, other_version)), "cohort-differs")


def test_another_count_than_was_proved(case: Case) -> None:
    assert case.said.records is not None
    false = case.release(records=case.said.records + 1)
    refused(case, replace(case.bundle, release=false), "count-differs")


def test_a_count_that_was_asked_of_another_cohort(case: Case) -> None:
    asked = CountChallenge.parse(
        verify_statement("count-challenge", case.challenge), case.signed.public_key.ciphertext_bytes
    )
    another = replace(asked, cohort=Digest.of(b"another")).sign(case.proxy).encoded
    refused(case, case.bundle, "count-differs", another)


def test_another_study_or_kind_of_release(case: Case) -> None:
    from dpdpca_protocol.study import ReleaseKind

    refused(case, replace(case.bundle, release=case.release(study=StudyId(bytes(32)))), "wrong-study")
    joint = case.release(release=ReleaseKind.JOINT, records=None)
    refused(case, replace(case.bundle, release=joint), "wrong-study")


def test_a_release_of_fewer_chunks(case: Case) -> None:
    digests = (*case.said.chunk_digests, case.said.chunk_digests[0])
    release = case.release(chunk_digests=digests)
    digest = verify_statement("release", release).digest.hex()

    def name_it(events: list[Event]) -> list[Event]:
        return [
            replace(event, detail={**event.detail, "statement": digest}) if event.kind == "release" else event
            for event in events
        ]

    refused(case, replace(case.bundle, release=release, transcript=case.chain(name_it)), "malformed")


@pytest.mark.parametrize(
    "change",
    [
        lambda events: events[1:],
        lambda events: [event for event in events if event.kind != "closed"],
        lambda events: [event for event in events if event.kind != "release"],
        lambda events: [
            event for event in events if event is not next(e for e in events if e.kind == "receipt")
        ],
        lambda events: [
            replace(event, detail={**event.detail, "cohort": "00" * 32}) if event.kind == "closed" else event
            for event in events
        ],
        lambda events: [
            replace(event, detail={**event.detail, "version": 9}) if event.kind == "receipt" else event
            for event in events
        ],
        lambda events: [
            repeated
            for event in events
            for repeated in ([event, event] if event.kind == "closed" else [event])
        ],
        lambda events: [event for event in events if event.kind != "count"],
        lambda events: [
            replace(event, detail={**event.detail, "answer": "00" * 32}) if event.kind == "count" else event
            for event in events
        ],
        lambda events: [
            replace(event, kind="withdrawal") if event.kind == "receipt" else event for event in events
        ],
        lambda events: [],
    ],
)
def test_a_transcript_that_contradicts_the_release(case: Case, change: Any) -> None:
    """Re-linked and re-signed by the proxy itself, so that the chain as such is sound."""
    refused(case, replace(case.bundle, transcript=case.chain(change)), "transcript-broken")


@pytest.mark.parametrize(
    "change",
    [
        lambda log: [],
        lambda log: log[1:],
        lambda log: log[:-1],
        lambda log: [*log[:2], *log[3:]],
        lambda log: [*log[:2], replace(log[2], subject=Digest.of(b"another")), *log[3:]],
        lambda log: [*log, replace(log[-1], previous=log[-1].digest, position=log[-1].position + 1)],
        lambda log: [*log[:-1], replace(log[-1], position=1)],
    ],
)
def test_a_log_that_is_not_the_one_that_the_release_names(case: Case, change: Any) -> None:
    with pytest.raises(DpdpcaError) as refusal:
        case.verify(replace(case.bundle, log=tuple(change(list(case.bundle.log)))))
    assert refusal.value.slug in ("transcript-broken", "log-broken")


def test_a_log_without_an_event_of_the_study(case: Case) -> None:
    """The proxy signs a transcript with a head of a log that lacks the closing of the study."""
    log: list[LogEntry] = []
    for entry in case.bundle.log:
        if entry.kind != "closed":
            previous = log[-1].digest if log else entry.previous
            log.append(replace(entry, previous=previous))

    def named(events: list[Event]) -> list[Event]:
        detail = {**events[-1].detail, "log": log[-1].digest.hex()}
        return [*events[:-1], replace(events[-1], detail=detail)]

    refused(case, replace(case.bundle, transcript=case.chain(named), log=tuple(log)), "transcript-broken")


def test_no_second_question_is_answered(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once an answer is stored, the proxy can ask what it likes: the key is not used for a count again."""
    user = case.user
    asked: list[StudyId] = []

    def ask(self: ProxyClient, study: StudyId) -> Statement:
        asked.append(study)
        return CountChallenge(study, Digest.of(b"x"), bytes(128)).sign(case.proxy)

    monkeypatch.setattr(ProxyClient, "count_challenge", ask)
    before = user.workers.calls.count("open_count")
    user.advance(case.row)
    assert asked == []
    assert user.workers.calls.count("open_count") == before == 1
