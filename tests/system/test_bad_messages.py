"""Messages that the proxy refuses, each with its problem type, and with nothing changed by any of them."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from federation.bare_owner import claim, deliver, make_chunks, seal_chunk, upload
from federation.bare_user import BareStudy, BareUser, deliver_request, make_key, make_request, send
from federation.records import add_up, patients, write_csv
from federation.relay import relaying
from federation.world import Federation, Owner, tree
from gmpy2 import mpz

from dpdpca_protocol.messages.study_messages import StudyAct
from dpdpca_protocol.paillier.chunks import decode_chunk, encode_chunk
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.terms.parties import KeyTerms
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.http import CHUNK_MEDIA_TYPE
from dpdpca_protocol.wire.salts import salted_chunk, unsalted
from dpdpca_protocol.wire.signing import LASTING_FORMAT, IdentityKey, sign_statement
from dpdpca_runtime.http.signature import RequestSigner

SUMS = add_up(patients(20, seed=61))


@pytest.fixture(scope="module")
def user(federation: Federation) -> BareUser:
    return BareUser(federation, "Correct Institute")


@pytest.fixture(scope="module")
def study(federation: Federation, user: BareUser) -> BareStudy:
    """Open, with three named owners; the first has delivered."""
    owners = federation.owners(3)
    study = user.open_study(owners)
    deliver(study, owners[0].key(), SUMS)
    return study


def slug_of(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["detail"]
    return str(problem["type"]).removeprefix("urn:dpdpca:problem:")


def state_of(federation: Federation, study: BareStudy) -> tuple[Any, ...]:
    """Everything that the proxy keeps of a study and of shares in it, as far as it can be seen."""
    facts = study.user.client.study(study.id)
    shares = [federation.client(owner.key()).share(study.id) for owner in federation.owners(3)]
    # The proxy makes its residues while a masked study is open, whatever arrives.
    files = tree(federation.proxy_home / "studies" / study.id.hex(), without="/residues/")
    return facts, shares, study.user.client.transcript(study.id), study.user.client.studies(), files


# Who speaks


def _sign(key: IdentityKey, created: datetime | None = None) -> Callable[[httpx.Request], None]:
    def change(request: httpx.Request) -> None:
        for header in ("signature", "signature-input", "content-digest"):
            request.headers.pop(header, None)
        RequestSigner(key).sign(request, request.content or None, created or datetime.now(UTC))

    return change


def _claim_to_be(key: IdentityKey) -> Callable[[httpx.Request], None]:
    """Another party's key id over one's own signature."""

    def change(request: httpx.Request) -> None:
        mine = request.headers["signature-input"]
        own = mine.split('keyid="')[1].split('"')[0]
        request.headers["signature-input"] = mine.replace(own, key.public.party_id.hex())

    return change


def _set(header: str, value: str) -> Callable[[httpx.Request], None]:
    return lambda request: request.headers.update({header: value})


def test_requests_of_strangers_and_forgers(federation: Federation, study: BareStudy) -> None:
    first, second = (owner.key() for owner in federation.owners(2))
    path, body = f"{study.path}/share/complete", b"{}"
    before = state_of(federation, study)
    late, early = datetime.now(UTC) - timedelta(minutes=6), datetime.now(UTC) + timedelta(minutes=6)
    for change, status, slug in (
        (lambda request: request.headers.pop("signature"), 401, "bad-signature"),
        (_sign(IdentityKey.generate()), 401, "unknown-key"),
        (_claim_to_be(second), 401, "bad-signature"),
        (_set("content-digest", "sha-256=:AAAA:"), 401, "bad-signature"),
        (_set("content-type", "text/plain"), 401, "bad-signature"),
        (_set("host", "proxy.example"), 421, "wrong-address"),
        (_sign(first, late), 401, "stale-request"),
        (_sign(first, early), 401, "stale-request"),
    ):
        answer = send(federation, first, "POST", path, body, change=change)
        assert (answer.status_code, slug_of(answer)) == (status, slug)
    unsigned = send(federation, None, "GET", study.path)
    assert (unsigned.status_code, slug_of(unsigned)) == (401, "bad-signature")
    assert state_of(federation, study) == before


def test_a_replayed_request_is_refused_once_and_for_all(federation: Federation, study: BareStudy) -> None:
    """Replayed byte by byte, while its signature is still fresh, and across a restart of the proxy."""
    key = federation.owners(2)[1].key()
    chunk = make_chunks(study, SUMS)[0]
    sealed = seal_chunk(study, key, chunk, 7, 0)
    request = make_request(
        federation, key, "PUT", f"{study.path}/share/chunks/0?version=7", sealed, CHUNK_MEDIA_TYPE
    )
    assert deliver_request(request).status_code == 204
    before = state_of(federation, study)
    for _ in range(2):
        again = deliver_request(request)
        assert (again.status_code, slug_of(again)) == (401, "replayed-request")
    federation.proxy.restart(kill=True)
    again = deliver_request(request)
    assert (again.status_code, slug_of(again)) == (401, "replayed-request")
    assert state_of(federation, study) == before


def test_statements_of_others(federation: Federation, study: BareStudy) -> None:
    """A statement counts for its signer alone, whoever carries it."""
    first, second = (owner.key() for owner in federation.owners(2))
    chunks = make_chunks(study, SUMS)
    before = state_of(federation, study)
    theirs = claim(study, second, chunks, 9)
    forged = json.loads(theirs.encoded) | {"signer": first.public.ed25519.hex()}
    close = StudyAct("close", study.id).sign(first)
    for method, path, body, key, expected in (
        ("POST", f"{study.path}/share/complete", theirs.encoded, first, (401, "bad-signature")),
        ("POST", f"{study.path}/share/complete", canonical_json(forged), first, (401, "bad-signature")),
        ("POST", f"{study.path}/close", close.encoded, study.user.key, (401, "bad-signature")),
        ("POST", f"{study.path}/share/complete", close.encoded, first, (400, "malformed")),
        ("DELETE", f"{study.path}/share", b"not json", first, (400, "malformed")),
    ):
        answer = send(federation, key, method, path, body)
        assert (answer.status_code, slug_of(answer)) == expected
    assert state_of(federation, study) == before


# Manifests


def test_manifests_that_do_not_hold(federation: Federation, user: BareUser, study: BareStudy) -> None:
    owners, secret, other = federation.owners(2), make_key(), BareUser(federation, "Other Institute")
    fine = user.manifest(secret, owners, min_owners=2)
    body = fine.to_body()
    signed = sign_manifest(fine, user.key).encoded
    with_modulus_of_another_study = user.manifest(study.secret, owners, min_owners=2).to_body()
    assert isinstance(fine.key, KeyTerms)
    even = f"{fine.key.modulus - 1:0512x}"

    def resigned(**changes: Any) -> bytes:
        return sign_statement("manifest", body | changes, user.key).encoded

    before = state_of(federation, study)
    for content, expected in (
        (signed.replace(b'"max_records":10000', b'"max_records":10001'), (401, "bad-signature")),
        (json.dumps(json.loads(signed)).encode(), (400, "not-canonical")),
        (resigned(noise_scale="1"), (403, "manifest-refused")),
        (resigned(slot_bits=fine.slot_bits - 1), (403, "manifest-refused")),
        (resigned(epsilon="1000"), (403, "manifest-refused")),
        (resigned(surprise=1), (400, "malformed")),
        (resigned(closes_at="2020-01-01T00:00:00Z"), (403, "manifest-refused")),
        (resigned(proxy=body["proxy"] | {"ed25519": "ab" * 32}), (403, "manifest-refused")),
        (resigned(key=body["key"] | {"modulus": even}), (422, "unfit-modulus")),
        (resigned(key=body["key"] | {"proof": body["key"]["proof"][::-1]}), (422, "unfit-modulus")),
        (
            sign_statement("manifest", with_modulus_of_another_study, user.key).encoded,
            (422, "unfit-modulus"),
        ),
        (
            sign_manifest(other.manifest(secret, owners, min_owners=2), other.key).encoded,
            (403, "not-the-study-owner"),
        ),
    ):
        answer = send(federation, user.key, "POST", "/v1/studies", content)
        assert (answer.status_code, slug_of(answer)) == expected
    figure = send(federation, user.key, "POST", "/v1/studies", resigned(slot_bits=fine.slot_bits - 1))
    assert str(fine.slot_bits - 1) in figure.json()["detail"]
    assert str(fine.slot_bits) in figure.json()["detail"], "both values are named"
    assert state_of(federation, study) == before


def test_owner_refuses_what_was_altered_on_the_way(federation: Federation, tmp_path: Path) -> None:
    """The manifest, another study's manifest, and another proxy's card, put in by a relay."""
    user = BareUser(federation, "Institute behind a bad relay")
    data = write_csv(tmp_path / "patients.csv", patients(5, seed=4))
    with relaying(federation.relay_port, federation.port) as relay:
        owner = federation.new_owner("Hospital behind a bad relay", federation.relay_url)
        study, another = (user.open_study([owner], min_owners=1) for _ in range(2))
        address = f"{federation.relay_url}/{study.id.hex()}"
        impostor = IdentityKey.generate()
        body = dict(study.signed.statement.body)
        body["user"] = body["user"] | {"ed25519": impostor.public.ed25519.hex()}
        home = tree(owner.home)

        def with_manifest(altered: bytes, path: str, content: bytes) -> bytes:
            return altered if path.endswith("/manifest") else content

        for altered, words in (
            (study.signed.statement.encoded.replace(b'"epsilon":"30"', b'"epsilon":"20"'), "signature"),
            (another.signed.statement.encoded, "does not belong to this study id"),
            (sign_statement("manifest", body, impostor).encoded, ""),
            (b'{"body":{}}', ""),
        ):
            relay.alter = partial(with_manifest, altered)
            refused = owner.run("owner", "join", address, "--data", data, "--yes")
            assert refused.status == 1
            (line,) = refused.err.splitlines()
            assert words in line
            assert tree(owner.home) == home
        assert relay.count("PUT", "/share/chunks/") == 0
        card = sign_statement("proxy", _card_of(impostor, federation), impostor).encoded
        relay.alter = lambda path, content: card if path == "/v1/proxy" else content
        again = owner.run("owner", "enrol", federation.relay_url, "--yes")
        assert again.status == 1
        assert "another key than the pinned one" in again.err
        assert tree(owner.home) == home


def _card_of(key: IdentityKey, federation: Federation) -> dict[str, Any]:
    return {
        "ed25519": key.public.ed25519.hex(),
        "format": LASTING_FORMAT,
        "name": "Relay Institute",
        "url": federation.relay_url,
        "kem": key.public.sealing_key.hex(),
    }


# Ciphertexts and shares


def _replaced(study: BareStudy, value: Callable[[SecretKey, list[mpz]], int | mpz]) -> bytes:
    """A chunk with one ciphertext put in the place of an honest one."""
    chunk, public = make_chunks(study, SUMS)[0], study.secret.public
    ciphertexts = decode_chunk(unsalted(chunk), public)
    ciphertexts[-1] = mpz(value(study.secret, ciphertexts))
    return salted_chunk(encode_chunk(ciphertexts, public), OS_RANDOMNESS)


def test_unfit_ciphertexts(federation: Federation, user: BareUser, study: BareStudy) -> None:
    """Each refuses its whole chunk; honest ciphertexts beside it do not help."""
    key = federation.owners(3)[2].key()
    masked = user.open_study(federation.owners(3), release="masked")
    out_of_range, no_unit = "ciphertext-out-of-range", "ciphertext-not-a-unit"
    before = state_of(federation, masked)
    for value, slug in (
        (lambda secret, _: 0, out_of_range),
        (lambda secret, _: 1, out_of_range),
        (lambda secret, _: secret.public.modulus, no_unit),
        (lambda secret, _: secret.public.ciphertext_modulus, out_of_range),
        (lambda secret, _: secret.public.ciphertext_modulus + 5, out_of_range),
        (lambda secret, _: (1 << (2 * secret.public.bits)) - 1, out_of_range),
        (lambda secret, _: secret.p * 12345, no_unit),
        (lambda secret, _: secret.q**2, no_unit),
        (lambda secret, others: others[0], "ciphertext-repeated"),
    ):
        sealed = seal_chunk(masked, key, _replaced(masked, value), 1, 0)
        path = f"{masked.path}/share/chunks/0?version=1"
        answer = send(federation, key, "PUT", path, sealed, CHUNK_MEDIA_TYPE)
        assert (answer.status_code, slug_of(answer)) == (422, slug)
    assert state_of(federation, masked) == before
    masked.cancel()


def test_chunks_in_the_wrong_place_or_form(federation: Federation, study: BareStudy) -> None:
    key = federation.owners(3)[2].key()
    chunk = make_chunks(study, SUMS)[0]
    good = seal_chunk(study, key, chunk, 1, 0)
    altered = good[:-1] + bytes([good[-1] ^ 1])
    before = state_of(federation, study)
    for place, query, sealed, expected in (
        ("0", "version=1", altered, (422, "sealed-body-does-not-open")),
        ("0", "version=2", good, (422, "sealed-body-does-not-open")),
        ("1", "version=1", seal_chunk(study, key, chunk, 1, 1), (400, "malformed")),
        ("0", "version=1", seal_chunk(study, key, chunk[:-1], 1, 0), (400, "malformed")),
        ("0", "version=0", good, (400, "malformed")),
        ("0", "", good, (400, "malformed")),
        ("-1", "version=1", good, (400, "malformed")),
    ):
        path = f"{study.path}/share/chunks/{place}" + (f"?{query}" if query else "")
        answer = send(federation, key, "PUT", path, sealed, CHUNK_MEDIA_TYPE)
        assert (answer.status_code, slug_of(answer)) == expected, (place, query)
    typed = send(federation, key, "PUT", f"{study.path}/share/chunks/0?version=1", good, "application/json")
    assert (typed.status_code, slug_of(typed)) == (415, "unsupported-media-type")
    assert state_of(federation, study) == before


def test_the_same_share_twice_and_another_under_its_version(federation: Federation, user: BareUser) -> None:
    owners = federation.owners(2)
    first: Owner = owners[0]
    study, key = user.open_study(owners, min_owners=1), first.key()
    chunks, other_chunks = make_chunks(study, SUMS), make_chunks(study, SUMS)
    client = federation.client(key)
    upload(study, key, chunks)
    upload(study, key, chunks)  # the same chunk again: fine

    put = f"{study.path}/share/chunks/0?version=1"
    sealed = seal_chunk(study, key, other_chunks[0], 1, 0)
    differs = send(federation, key, "PUT", put, sealed, CHUNK_MEDIA_TYPE)
    assert (differs.status_code, slug_of(differs)) == (409, "chunk-differs")
    complete = f"{study.path}/share/complete"
    wrong = send(federation, key, "POST", complete, claim(study, key, other_chunks).encoded)
    assert (wrong.status_code, slug_of(wrong)) == (409, "chunk-differs")
    early = send(federation, key, "POST", complete, claim(study, key, chunks, 2).encoded)
    assert (early.status_code, slug_of(early)) == (409, "share-incomplete")
    assert client.share(study.id).state == "partial"

    stated = claim(study, key, chunks)
    receipt = client.complete_share(study.id, stated)
    before = state_of(federation, study)
    assert client.complete_share(study.id, stated).encoded == receipt.encoded
    client.put_chunk(study.id, 1, 0, seal_chunk(study, key, chunks[0], 1, 0))
    for again in (
        send(federation, key, "PUT", put, sealed, CHUNK_MEDIA_TYPE),
        send(federation, key, "POST", complete, claim(study, key, other_chunks).encoded),
    ):
        assert (again.status_code, slug_of(again)) in (
            (409, "chunk-differs"),
            (409, "statement-differs"),
        )
    assert state_of(federation, study) == before

    study.close()
    assert study.open_release().count == SUMS.count, "counted once"
