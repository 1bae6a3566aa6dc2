"""Requests that are carried to the proxy by hand: exactly what the owner signed, any number of times."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from proxy_world import OpenStudy, ProxyWorld, dump, slug, values_of

from dpdpca_protocol.messages.carried import CarriedAnswer
from dpdpca_protocol.messages.rotation import Rotation
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.wire.http import ANSWER_HEADER, CHUNK_MEDIA_TYPE
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import IdentityKey, verify_statement
from dpdpca_runtime.http.signature import RequestSigner

CHUNK = "/share/chunks/0?version=1"
Change = Callable[[httpx.Request], None]


@dataclass
class Folder:
    """What a thief of a folder has: signed requests for one study, and no key."""

    study: OpenStudy
    owner: IdentityKey
    until: datetime

    def sign(
        self, method: str, path: str, body: bytes | None = None, key: IdentityKey | None = None
    ) -> httpx.Request:
        media_type = CHUNK_MEDIA_TYPE if method == "PUT" else "application/json"
        headers = {} if body is None else {"content-type": media_type}
        request = httpx.Request(method, self.study.world.url + path, content=body, headers=headers)
        RequestSigner(key or self.owner).sign(
            request, body, datetime(2001, 1, 1, tzinfo=UTC), carried_until=self.until
        )
        return request

    def send(self, request: httpx.Request) -> httpx.Response:
        with httpx.Client() as client:
            return client.send(request)


@pytest.fixture
def folder(world: ProxyWorld) -> Folder:
    study = world.open_study(3, suite="pads")
    return Folder(study, world.owners[0], datetime.now(UTC) + timedelta(days=9))


def share_of(folder: Folder) -> tuple[httpx.Request, httpx.Request]:
    """The chunk and the statement of the owner's share, as in its folder."""
    study = folder.study
    chunks, pad = study.padded_chunks(folder.owner, values_of(3, 1).flat)
    sealed = study.seal(folder.owner, chunks[0], 1, 0)
    claim = study.claim(folder.owner, chunks, 1, pad)
    return (
        folder.sign("PUT", study.path + CHUNK, sealed),
        folder.sign("POST", f"{study.path}/share/complete", claim.encoded),
    )


def stolen(request: httpx.Request, method: str, url: str, body: bytes | None = None) -> httpx.Request:
    """Another request with the headers of a signed one."""
    headers = {name: value for name, value in request.headers.items() if name != "content-length"}
    return httpx.Request(method, url, content=body, headers=headers)


def test_a_carried_share_is_taken_any_number_of_times(folder: Folder) -> None:
    """Though it was signed long ago, and also after a restart."""
    world, (chunk, claim) = folder.study.world, share_of(folder)
    assert [folder.send(chunk).status_code for _ in range(2)] == [204, 204]
    receipts = [folder.send(claim) for _ in range(2)]
    before = dump(world.proxy)
    world.restart()
    receipts.append(folder.send(claim))
    assert len({each.content for each in receipts}) == 1
    receipt = Receipt.parse(verify_statement("receipt", receipts[0].content))
    assert (receipt.owner, receipt.version) == (folder.owner.public.party_id, 1)
    assert folder.send(chunk).status_code == 204
    assert dump(world.proxy) == before


def test_answers_are_signed_with_the_nonce_of_the_request(folder: Folder) -> None:
    world, path = folder.study.world, folder.study.path
    proxy = world.proxy.key.public.ed25519
    for target in (
        path,
        f"{path}/manifest",
        f"{path}/transcript",
        f"{path}/share",
        "/v1/parties",
        "/v1/parties?statements=true",
        "/v1/parties/rotations",
    ):
        request = folder.sign("GET", target)
        nonce = request.headers["signature-input"].split('nonce="')[1][:32]
        response = folder.send(request)
        assert response.status_code == 200
        answer = CarriedAnswer.parse(
            verify_statement("answer", response.headers[ANSWER_HEADER].encode(), proxy)
        )
        assert (answer.nonce, answer.content) == (nonce, Digest.of(response.content))
        assert ANSWER_HEADER not in world.request(folder.owner, "GET", target).headers
    assert ANSWER_HEADER not in folder.send(folder.sign("GET", f"{path}/components")).headers


@pytest.mark.parametrize("act", ["other bytes", "second version", "other place", "other study", "withdraw"])
def test_a_thief_of_the_folder_can_do_nothing_else(folder: Folder, act: str) -> None:
    study = folder.study
    other = study.world.open_study(3, suite="pads")
    chunk, claim = share_of(folder)
    assert folder.send(chunk).status_code == 204
    url, before = study.world.url + study.path, dump(study.world.proxy)
    bytes_of_another = study.seal(folder.owner, study.padded_chunks(folder.owner, [1] * 10)[0][0], 1, 0)
    tried = {
        "other bytes": stolen(chunk, "PUT", url + CHUNK, bytes_of_another),
        "second version": stolen(chunk, "PUT", f"{url}/share/chunks/0?version=2", chunk.content),
        "other place": stolen(chunk, "PUT", f"{url}/share/chunks/1?version=1", chunk.content),
        "other study": stolen(chunk, "PUT", study.world.url + other.path + CHUNK, chunk.content),
        "withdraw": stolen(claim, "DELETE", f"{url}/share", claim.content),
    }[act]
    assert slug(folder.send(tried)) == "bad-signature"
    assert dump(study.world.proxy) == before


def test_a_thief_reads_nothing_of_others(folder: Folder) -> None:
    """A question names the owner that asks, and a signature of its own gives a thief nothing."""
    study = folder.study
    asked = folder.sign("GET", f"{study.path}/share")
    other = study.world.open_study(3, suite="pads")
    assert slug(folder.send(stolen(asked, "GET", f"{study.world.url}{other.path}/share"))) == "bad-signature"
    assert (
        slug(folder.send(stolen(asked, "GET", f"{study.world.url}{study.path}/components")))
        == "bad-signature"
    )
    mine = folder.sign("GET", f"{study.path}/share", key=IdentityKey.generate())
    assert slug(folder.send(mine)) == "unknown-key"


def test_only_some_requests_of_owners_are_carried(folder: Folder) -> None:
    world, path = folder.study.world, folder.study.path
    successor = IdentityKey.generate()
    rotation = Rotation("owner", 1, folder.owner.public.ed25519, successor.public, "2026-11-28T12:00:00Z")
    party = folder.owner.public.party_id.hex()
    before = dump(world.proxy)
    signed = rotation.sign(folder.owner, successor).encoded
    for request in (
        folder.sign("POST", f"/v1/parties/{party}/rotations", signed),
        folder.sign("GET", "/v1/studies"),
        folder.sign("GET", "/v1/inbox"),
        folder.sign("GET", f"{path}/events"),
        folder.sign("GET", path, key=world.user),
        folder.sign("GET", f"{path}/share", key=world.user),
    ):
        assert slug(folder.send(request)) == "bad-signature"
    assert dump(world.proxy) == before


def test_a_carried_request_ends(folder: Folder) -> None:
    folder.until = datetime.now(UTC) - timedelta(seconds=5)
    response = folder.send(folder.sign("GET", folder.study.path))
    assert (response.status_code, slug(response)) == (401, "stale-request")
    assert f"{folder.until:%Y-%m-%dT%H:%M:%SZ}" in response.json()["detail"]


def test_an_ordinary_request_is_as_short_lived_as_ever(folder: Folder) -> None:
    """Neither a carried tag without its end nor an end without the tag lengthens its life."""
    study = folder.study
    request = folder.sign("GET", study.path)
    for old, new in (('tag="dpdpca-carried/', 'tag="dpdpca/'), ("expires=", "created=")):
        changed = stolen(request, "GET", str(request.url))
        changed.headers["signature-input"] = changed.headers["signature-input"].replace(old, new)
        assert folder.send(changed).status_code == 401
    stale = study.world.request(folder.owner, "GET", study.path, created=datetime(2001, 1, 1, tzinfo=UTC))
    assert slug(stale) == "stale-request"
