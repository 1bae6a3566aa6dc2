"""Forged, stale, replayed and redirected uploads, and older statements again: refused, without a change."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from promises import Promise
from proxy_world import EVIDENCE, PASSING, OpenStudy, ProxyWorld, dump, free_port, refused, slug, values_of

from dpdpca_protocol.messages.share import ShareStatement, Withdrawal
from dpdpca_protocol.messages.study_messages import StudyAct
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.signature import RequestSigner

_PLACES = 4
"""Characters of a text that are changed, one at a time."""


@pytest.fixture
def study(world: ProxyWorld) -> OpenStudy:
    return world.open_study(3)


def altered(value: Any) -> Iterator[Any]:
    """`value` with one bit of one leaf flipped, at each leaf."""
    if isinstance(value, dict):
        for name in value:
            yield from ({**value, name: other} for other in altered(value[name]))
    elif isinstance(value, list):
        for at in range(len(value)):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in altered(value[at]))
    elif isinstance(value, bool) or value is None:
        yield not value
    elif isinstance(value, int):
        yield from (value ^ bit for bit in (1, 2, 64))
    else:
        for at in sorted({len(value) * part // _PLACES for part in range(_PLACES)}):
            yield value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]


def is_refused(answer: httpx.Response) -> bool:
    return 400 <= answer.status_code < 500 and bool(slug(answer))


def test_every_bit_of_a_statement_is_signed(study: OpenStudy, promise: Promise) -> None:
    world, owner = study.world, study.world.owners[0]
    chunks = study.plain_chunks(values_of(3, 0))
    study.upload(owner, chunks)
    study.deliver(world.owners[1], values_of(3, 1))
    withdrawal = Withdrawal(study.study, world.owners[1].public.ed25519, 2).sign(world.owners[1])
    sent = [
        (owner, "POST", f"{study.path}/share/complete", study.claim(owner, chunks)),
        (world.owners[1], "DELETE", f"{study.path}/share", withdrawal),
        (world.user, "POST", f"{study.path}/close", StudyAct("close", study.study).sign(world.user)),
        (world.user, "DELETE", study.path, StudyAct("cancel", study.study).sign(world.user)),
    ]
    before, flipped = dump(world.proxy), 0
    for key, method, path, statement in sent:
        for forged in altered(json.loads(statement.encoded)):
            assert is_refused(world.request(key, method, path, canonical_json(forged))), forged
            flipped += 1
    assert dump(world.proxy) == before
    promise("P19", counted=f"{flipped} statements with one bit flipped", result="0 accepted, 0 changes")


def test_an_upload_is_bound_to_its_request(study: OpenStudy, promise: Promise) -> None:
    """Study, proxy, path, method, time, body and sender: whichever is another, the request is refused."""
    world, owner = study.world, study.world.owners[0]
    (chunk,) = study.plain_chunks(values_of(3, 0))
    sealed, path = study.seal(owner, chunk, 1, 0), f"{study.path}/share/chunks/0"
    world.with_new_key()
    other_study = world.open_study(3, title="Another")
    other_proxy = f"http://127.0.0.1:{free_port()}"

    def request(
        sent_path: str = f"{path}?version=1",
        method: str = "PUT",
        key: IdentityKey = owner,
        base: str = world.url,
        created: datetime | None = None,
    ) -> httpx.Request:
        headers = {"content-type": "application/octet-stream"}
        made = httpx.Request(method, base + sent_path, content=sealed, headers=headers)
        RequestSigner(key).sign(made, sealed, created or datetime.now(UTC))
        return made

    def send(signed: httpx.Request, body: bytes = sealed, key_id: str | None = None) -> httpx.Response:
        """What was signed for `signed`, on an upload of this chunk to this study."""

        def change(made: httpx.Request) -> None:
            for name in ("signature", "signature-input", "content-digest"):
                made.headers[name] = signed.headers[name]
            if key_id is not None:
                made.headers["signature-input"] = made.headers["signature-input"].replace(
                    owner.public.party_id.hex(), key_id
                )

        return world.request(None, "PUT", f"{path}?version=1", body, "application/octet-stream", change)

    stranger, now = IdentityKey.generate(), datetime.now(UTC)
    before = dump(world.proxy)
    refusals = {
        "another study": send(request(f"{other_study.path}/share/chunks/0?version=1")),
        "another proxy": send(request(base=other_proxy)),
        "another path": send(request(f"{study.path}/share/chunks/1?version=1")),
        "another version": send(request(f"{path}?version=2")),
        "another method": send(request(method="POST")),
        "another body": send(request(), study.seal(owner, chunk, 1, 0)),
        "ten minutes ago": send(request(created=now - timedelta(minutes=10))),
        "ten minutes ahead": send(request(created=now + timedelta(minutes=10))),
        "an unknown key": send(request(key=stranger)),
        "another's name": send(request(), key_id=world.owners[1].public.party_id.hex()),
        "another's chunk": send(request(key=world.owners[1])),
        "the data user": send(request(key=world.user)),
    }
    assert all(is_refused(answer) for answer in refusals.values()), refusals
    slugs = {name: slug(answer) for name, answer in refusals.items()}
    assert {slugs["ten minutes ago"], slugs["ten minutes ahead"]} == {"stale-request"}
    assert (slugs["an unknown key"], slugs["the data user"]) == ("unknown-key", "wrong-role")
    for name in ("another study", "another proxy", "another path", "another version", "another method"):
        assert slugs[name] == "bad-signature", name
    assert dump(world.proxy) == before

    good = request()
    assert send(good).status_code == 204
    after = dump(world.proxy)
    assert slug(send(good)) == "replayed-request"
    world.restart()
    assert slug(send(good)) == "replayed-request"
    assert dump(world.proxy) == after
    promise(
        "P19",
        counted=f"{len(refusals)} redirected, stale and foreign uploads, 1 nonce again, also after a restart",
        result="0 accepted, 0 changes",
    )


REFUSALS = ("share-version-not-newer", "statement-differs", "study-closed")


def test_statements_do_not_roll_back(study: OpenStudy, promise: Promise) -> None:
    world, owner = study.world, study.world.owners[0]
    client = world.client(owner)
    versions = {version: study.plain_chunks(values_of(3, version)) for version in (1, 2, 4)}
    claims = {version: study.claim(owner, chunks, version) for version, chunks in versions.items()}
    replays = 0

    def replay(acts: dict[str, tuple[Callable[[], Any], bytes | None]]) -> None:
        """Each act gets its old receipt, where it had one, or 409; nothing changes."""
        nonlocal replays
        before, share = dump(world.proxy, without=(*PASSING, *EVIDENCE)), client.share(study.study)
        for name, (act, receipt) in acts.items():
            if receipt is not None:
                assert act().encoded == receipt, name
            else:
                assert refused(act).slug in REFUSALS, name
            replays += 1
        assert dump(world.proxy, without=(*PASSING, *EVIDENCE)) == before
        assert client.share(study.study) == share

    def complete(version: int) -> Callable[[], Any]:
        return lambda: client.complete_share(study.study, claims[version])

    def take_back(version: int) -> Callable[[], Any]:
        return lambda: study.withdraw(owner, version)

    never_sent = study.claim(owner, study.plain_chunks(values_of(3, 9)), 1)
    other = lambda: client.complete_share(study.study, never_sent)  # noqa: E731 # an act like the others
    study.upload(owner, versions[1], 1)
    first = complete(1)().encoded
    study.upload(owner, versions[2], 2)
    second = complete(2)().encoded
    replay(
        {
            "the first share": (complete(1), first),
            "another first share": (other, None),
            "chunks of the first share": (lambda: study.upload(owner, versions[1], 1), None),
            "taken back at 1": (take_back(1), None),
            "taken back at 2": (take_back(2), None),
        }
    )
    third = take_back(3)().encoded
    replay(
        {
            "the first share": (complete(1), first),
            "the second share": (complete(2), second),
            "another first share": (other, None),
            "chunks of the second share": (lambda: study.upload(owner, versions[2], 2), None),
            "taken back at 2": (take_back(2), None),
        }
    )
    study.upload(owner, versions[4], 4)
    complete(4)()
    replay({"the withdrawal": (take_back(3), third), "the second share": (complete(2), second)})
    study.deliver(world.owners[1], values_of(3, 1))
    study.close()
    study.wait_state("released")
    replay({"the withdrawal": (take_back(3), third), "a withdrawal at 5": (take_back(5), None)})
    cohort = {member.owner: member.version for member in client.study(study.study).cohort_members}
    assert cohort[owner.public.party_id] == 4
    promise(
        "P20", counted=f"{replays} older shares and withdrawals again", result="0 changes; version 4 released"
    )


def test_a_share_is_of_one_study_and_one_owner(world: ProxyWorld) -> None:
    study, owner = world.open_study(3), world.owners[0]
    chunks = study.plain_chunks(values_of(3, 0))
    study.upload(owner, chunks)
    world.with_new_key()
    other = world.open_study(3, title="Another")
    before = dump(world.proxy)
    client, path = world.client(owner), f"{study.path}/share/complete"
    assert refused(lambda: client.complete_share(study.study, other.claim(owner, chunks))).slug == "malformed"
    foreign = study.claim(world.owners[1], chunks)
    assert slug(world.request(owner, "POST", path, foreign.encoded)) == "bad-signature"
    borrowed = ShareStatement.parse(study.claim(owner, chunks))
    mixed = replace(borrowed, kem=world.owners[1].public.sealing_key).sign(owner)
    assert slug(world.request(owner, "POST", path, mixed.encoded)) == "malformed"
    assert dump(world.proxy) == before
