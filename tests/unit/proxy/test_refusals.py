"""Every refusal of the proxy's routes has its type, and changes nothing."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from proxy_world import OpenStudy, ProxyWorld, dump, values_of

from dpdpca_protocol.canonical import canonical_json, parse_canonical
from dpdpca_protocol.errors import CryptographicError, DpdpcaError
from dpdpca_protocol.identifiers import StudyId
from dpdpca_protocol.manifest import sign_manifest
from dpdpca_protocol.messages import Enrolment, StudyAct
from dpdpca_protocol.signing import IdentityKey, sign_statement
from dpdpca_proxy.enrolment import invite
from dpdpca_proxy.settings import load_settings


def slug(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json", response.text
    return str(response.json()["type"]).removeprefix("urn:dpdpca:problem:")


def refused(act: Callable[[], object]) -> DpdpcaError:
    with pytest.raises(DpdpcaError) as raised:
        act()
    return raised.value


@pytest.fixture
def study(world: ProxyWorld) -> OpenStudy:
    return world.open_study(3)


# Enrolment


def enrolment(world: ProxyWorld, key: IdentityKey, token: str, role: str = "owner", **changes: Any) -> bytes:
    body = Enrolment(role, "New", key.public, world.proxy_key).sign(key)
    return canonical_json({"enrolment": parse_canonical(body.encoded), "invitation": token, **changes})


def enrol(world: ProxyWorld, body: bytes) -> httpx.Response:
    return world.request(None, "POST", "/v1/parties", body)


def test_an_invitation_serves_once_and_repeats_its_answer(world: ProxyWorld) -> None:
    key, other = IdentityKey.generate(), IdentityKey.generate()
    token = invite(world.proxy, "owner", "New").token
    first = enrol(world, enrolment(world, key, token))
    assert first.status_code == 201
    assert first.json()["party"] == key.public.party_id.hex()
    assert enrol(world, enrolment(world, key, token)).content == first.content
    before = dump(world.proxy)
    assert slug(enrol(world, enrolment(world, other, token))) == "invitation-used"
    again = invite(world.proxy, "owner", "New").token
    before = dump(world.proxy)
    assert slug(enrol(world, enrolment(world, key, again))) == "already-enrolled"
    assert dump(world.proxy) == before


def test_an_invitation_expires_and_has_a_role(world: ProxyWorld) -> None:
    key = IdentityKey.generate()
    token = invite(world.proxy, "owner", "New").token
    before = dump(world.proxy)
    assert slug(enrol(world, enrolment(world, key, token, role="user"))) == "invitation-unknown"
    assert slug(enrol(world, enrolment(world, key, "0" * 64))) == "invitation-unknown"
    assert slug(enrol(world, enrolment(world, key, "x"))) == "invitation-unknown"
    assert slug(enrol(world, enrolment(world, key, token, more=1))) == "malformed"
    world.clock.ahead = timedelta(hours=169)
    assert slug(enrol(world, enrolment(world, key, token))) == "invitation-expired"
    assert dump(world.proxy) == before


def test_the_token_is_kept_nowhere(world: ProxyWorld) -> None:
    made = invite(world.proxy, "owner", "New")
    assert made.token not in repr(made)
    world.stop()
    for file in world.home.rglob("*"):
        assert not file.is_file() or made.token.encode() not in file.read_bytes()


def test_an_introduction_to_another_proxy_is_refused(world: ProxyWorld) -> None:
    key = IdentityKey.generate()
    token = invite(world.proxy, "owner", "New").token
    statement = Enrolment("owner", "New", key.public, key.public.ed25519).sign(key)
    body = canonical_json({"enrolment": parse_canonical(statement.encoded), "invitation": token})
    assert slug(enrol(world, body)) == "wrong-proxy"


def test_parties_are_shown_under_the_operators_names(world: ProxyWorld) -> None:
    listed = world.client(world.user).parties()
    assert {(party.name, party.role) for party in listed} == {
        ("Institute", "user"),
        ("Hospital A", "owner"),
        ("Hospital B", "owner"),
        ("Hospital C", "owner"),
    }


# Requests


def test_unsigned_and_unknown_callers_are_refused(study: OpenStudy) -> None:
    world = study.world
    before = dump(world.proxy)
    for path in ("/v1/studies", study.path, f"{study.path}/manifest", f"{study.path}/events", "/v1/parties"):
        assert slug(world.request(None, "GET", path)) == "bad-signature"
        assert slug(world.request(IdentityKey.generate(), "GET", path)) == "unknown-key"
    assert dump(world.proxy) == before


def test_a_replay_is_refused_also_after_a_restart(study: OpenStudy) -> None:
    world = study.world
    sent: list[httpx.Request] = []
    assert world.request(world.user, "GET", study.path, change=sent.append).status_code == 200
    headers = sent[0].headers

    def replay(request: httpx.Request) -> None:
        request.headers = headers

    assert slug(world.request(None, "GET", study.path, change=replay)) == "replayed-request"
    world.restart()
    assert slug(world.request(None, "GET", study.path, change=replay)) == "replayed-request"


@pytest.mark.parametrize("minutes", [10, -10])
def test_a_stale_request_is_refused(study: OpenStudy, minutes: int) -> None:
    created = datetime.now(UTC) + timedelta(minutes=minutes)
    response = study.world.request(study.world.user, "GET", study.path, created=created)
    assert (response.status_code, slug(response)) == (401, "stale-request")


def test_roles_are_kept_apart_route_by_route(study: OpenStudy) -> None:
    world = study.world
    owner, user = world.owners[0], world.user
    before = dump(world.proxy)
    for key, method, path in (
        (user, "PUT", f"{study.path}/share/chunks/0?version=1"),
        (user, "GET", f"{study.path}/share"),
        (user, "POST", f"{study.path}/share/complete"),
        (user, "DELETE", f"{study.path}/share"),
        (owner, "POST", "/v1/studies"),
        (owner, "POST", f"{study.path}/close"),
        (owner, "DELETE", study.path),
        (owner, "GET", f"{study.path}/count"),
        (owner, "POST", f"{study.path}/count"),
        (owner, "GET", f"{study.path}/release"),
        (owner, "GET", f"{study.path}/release/chunks/0"),
        (owner, "PUT", f"{study.path}/components"),
    ):
        body = None if method == "GET" else b"{}"
        response = world.request(key, method, path, body)
        assert (response.status_code, slug(response)) == (403, "wrong-role"), path
    assert dump(world.proxy) == before


def test_another_users_study_is_not_touched(study: OpenStudy) -> None:
    world = study.world
    other = IdentityKey.generate()
    world.enrol(other, "user", "Other")
    close = StudyAct("close", study.study).sign(other)
    for method, path, body in (
        ("POST", f"{study.path}/close", close.encoded),
        ("GET", f"{study.path}/release", None),
        ("GET", f"{study.path}/count", None),
    ):
        assert slug(world.request(other, method, path, body)) == "not-the-study-owner"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/v1/studies/{'0' * 64}", 404),
        ("/v1/studies/xyz", 400),
        (f"/v1/studies/{'A' * 64}", 400),
        (f"/v1/studies/{'0' * 63}", 400),
        (f"/v1/studies/{'0' * 64}/events", 404),
        (f"/v1/studies/{'0' * 64}/transcript", 404),
    ],
)
def test_unknown_studies(world: ProxyWorld, path: str, status: int) -> None:
    response = world.request(world.user, "GET", path)
    assert response.status_code == status
    assert slug(response) in ("not-found", "malformed")


def test_bodies_have_a_type_a_size_and_one_encoding(study: OpenStudy) -> None:
    world = study.world
    close = StudyAct("close", study.study).sign(world.user).encoded
    path = f"{study.path}/close"
    before = dump(world.proxy)
    assert slug(world.request(world.user, "POST", path, close, "text/plain")) == "unsupported-media-type"
    large = world.request(world.user, "POST", path, b" " * 70_000)
    assert (large.status_code, slug(large)) == (413, "too-large")
    assert slug(world.request(world.user, "POST", path, b" " + close)) == "not-canonical"
    assert slug(world.request(world.user, "POST", path, close[:-1])) == "malformed"
    assert slug(world.request(world.user, "GET", study.path, b"{}")) == "malformed"
    assert dump(world.proxy) == before


# Manifests


def test_a_manifest_is_accepted_once_and_known_again(study: OpenStudy) -> None:
    world = study.world
    again = world.request(world.user, "POST", "/v1/studies", study.statement.encoded)
    assert (again.status_code, again.json()["study"]) == (200, study.study.hex())
    assert again.headers["location"] == study.path
    assert world.client(world.owners[0]).manifest(study.study) == study.statement.encoded


def test_one_modulus_serves_one_study(study: OpenStudy) -> None:
    error = refused(lambda: study.world.open_study(3, title="Another"))
    assert (type(error), error.slug) == (CryptographicError, "unfit-modulus")


def test_a_manifest_for_another_proxy_is_refused(world: ProxyWorld) -> None:
    manifest = world.manifest(3)
    body = manifest.to_body()
    stranger = IdentityKey.generate().public
    body["proxy"] |= {"ed25519": stranger.ed25519.hex(), "x25519": stranger.x25519.hex()}
    signed = sign_statement("manifest", body, world.user)
    error = refused(lambda: world.client(world.user).create_study(signed.encoded))
    assert error.slug == "manifest-refused"
    assert "another proxy" in error.problem


def test_a_manifest_whose_time_has_come_is_refused(world: ProxyWorld) -> None:
    error = refused(lambda: world.open_study(3, closes_at=datetime.now(UTC) - timedelta(seconds=2)))
    assert error.slug == "manifest-refused"


def test_a_manifest_of_another_user_is_refused(world: ProxyWorld) -> None:
    other = IdentityKey.generate()
    client = world.enrol(other, "user", "Other")
    statement = sign_manifest(world.manifest(3), world.user)
    assert refused(lambda: client.create_study(statement.encoded)).slug == "not-the-study-owner"


def test_a_small_modulus_is_refused_by_the_product(world: ProxyWorld) -> None:
    statement = sign_manifest(world.manifest(3), world.user)
    object.__setattr__(world.proxy, "least_modulus_bits", 2048)
    error = refused(lambda: world.client(world.user).create_study(statement.encoded))
    assert error.slug in ("unfit-modulus", "manifest-refused")


# Chunks


def test_the_same_chunk_twice_is_fine_and_another_is_a_conflict(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    client = world.client(owner)
    chunks = study.plain_chunks(values_of(3, 0))
    others = study.plain_chunks(values_of(3, 0))
    study.upload(owner, chunks)
    before = dump(world.proxy)
    study.upload(owner, chunks)
    assert refused(lambda: study.upload(owner, others)).slug == "chunk-differs"
    assert dump(world.proxy) == before
    status = client.share(study.study)
    assert (status.state, status.version, status.chunks) == ("partial", 1, frozenset({0}))
    receipt = client.complete_share(study.study, study.claim(owner, chunks))
    study.upload(owner, chunks)
    again = client.complete_share(study.study, study.claim(owner, chunks))
    assert again.encoded == receipt.encoded
    assert client.share(study.study).receipt == receipt.encoded


def test_a_chunk_opens_only_in_its_own_place(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    (chunk,) = study.plain_chunks(values_of(3, 0))
    client = world.client(owner)
    before = dump(world.proxy)
    for sealed in (
        study.seal(chunk, 2, 0),
        study.seal(chunk, 1, 1),
        chunk,
        b"",
        study.seal(chunk, 1, 0)[:-1],
        study.seal(chunk, 1, 0) + b"\0",
    ):
        error = refused(lambda sealed=sealed: client.put_chunk(study.study, 1, 0, sealed))
        assert error.slug in ("sealed-body-does-not-open", "malformed", "bad-signature")
    assert dump(world.proxy) == before


@pytest.mark.parametrize("bad", ["zero", "one", "modulus", "too large", "repeated", "short", "long"])
def test_a_chunk_with_one_bad_ciphertext_is_refused_whole(study: OpenStudy, bad: str) -> None:
    world, owner = study.world, study.world.owners[0]
    (chunk,) = study.plain_chunks(values_of(3, 0))
    public = world.secret.public
    width = public.ciphertext_bytes
    first, rest = chunk[:width], chunk[width:]
    changed = {
        "zero": bytes(width) + rest,
        "one": (1).to_bytes(width, "big") + rest,
        "modulus": int(public.modulus).to_bytes(width, "big") + rest,
        "too large": int(public.ciphertext_modulus).to_bytes(width, "big") + rest,
        "repeated": rest[:width] + rest if rest else first + first,
        "short": chunk[:-width],
        "long": chunk + first,
    }[bad]
    before = dump(world.proxy)
    sealed = study.seal(changed, 1, 0)
    error = refused(lambda: world.client(owner).put_chunk(study.study, 1, 0, sealed))
    assert error.slug in (
        "ciphertext-out-of-range",
        "ciphertext-not-a-unit",
        "ciphertext-repeated",
        "malformed",
    )
    assert dump(world.proxy) == before
    assert not list((world.home / "studies").rglob("0-*"))


@pytest.mark.parametrize("version", [None, "0", "-1", "01", "1e3", "x", "99999999999"])
def test_a_chunk_needs_a_version(study: OpenStudy, version: str | None) -> None:
    owner = study.world.owners[0]
    path = f"{study.path}/share/chunks/0" + (f"?version={version}" if version else "")
    response = study.world.request(owner, "PUT", path, b"x", "application/octet-stream")
    assert (response.status_code, slug(response)) == (400, "malformed")


def test_an_owner_that_is_not_named_is_refused(study: OpenStudy) -> None:
    world = study.world
    stranger = IdentityKey.generate()
    world.enrol(stranger, "owner", "Stranger")
    assert refused(lambda: study.deliver(stranger, values_of(3, 0))).slug == "not-a-participant"


def test_an_open_study_takes_anyone_up_to_its_size(world: ProxyWorld) -> None:
    study = world.open_study(3, named=False, min_owners=1, max_owners=2)
    study.deliver(world.owners[0], values_of(3, 0))
    study.deliver(world.owners[1], values_of(3, 1))
    assert refused(lambda: study.deliver(world.owners[2], values_of(3, 2))).slug == "cohort-full"
    study.deliver(world.owners[1], values_of(3, 4), version=2)


# Completing, withdrawing


def test_a_share_is_complete_only_when_whole_and_as_claimed(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    client = world.client(owner)
    chunks = study.plain_chunks(values_of(3, 0))
    others = study.plain_chunks(values_of(3, 0))

    def complete(claimed: list[bytes], version: int = 1) -> str:
        return refused(lambda: client.complete_share(study.study, study.claim(owner, claimed, version))).slug

    before = dump(world.proxy)
    assert complete(chunks) == "share-incomplete"
    assert dump(world.proxy) == before
    study.upload(owner, chunks)
    before = dump(world.proxy)
    assert complete(others) == "chunk-differs"
    assert complete(chunks * 2) == "malformed"
    assert complete(chunks, 2) == "share-incomplete"
    forged = study.claim(world.owners[1], chunks)
    assert refused(lambda: client.complete_share(study.study, forged)).slug == "bad-signature"
    assert dump(world.proxy) == before


def test_a_ciphertext_that_stands_in_two_chunks_is_refused(world: ProxyWorld) -> None:
    study = world.open_study(d=180)
    owner = world.owners[0]
    chunks = study.plain_chunks(values_of(180, 0))
    assert len(chunks) == 2
    width = world.secret.public.ciphertext_bytes
    again = [chunks[0], chunks[0][:width] + chunks[1][width:]]
    study.upload(owner, again)
    before = dump(world.proxy)
    client = world.client(owner)
    error = refused(lambda: client.complete_share(study.study, study.claim(owner, again)))
    assert (error.slug, error.status) == ("ciphertext-repeated", 422)
    assert dump(world.proxy) == before
    study.upload(owner, chunks, version=2)
    client.complete_share(study.study, study.claim(owner, chunks, version=2))


def test_a_statement_about_another_study_is_refused(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    chunks = study.plain_chunks(values_of(3, 0))
    study.upload(owner, chunks)
    other = OpenStudy(world, StudyId(bytes(32)), study.manifest, study.statement)
    statement = other.claim(owner, chunks)
    assert refused(lambda: world.client(owner).complete_share(study.study, statement)).slug == "malformed"


def test_versions_only_rise(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    client = world.client(owner)
    first = study.plain_chunks(values_of(3, 0))
    second = study.plain_chunks(values_of(3, 1))
    study.upload(owner, first)
    old = study.claim(owner, first)
    receipt = client.complete_share(study.study, old)
    study.upload(owner, second, version=2)
    client.complete_share(study.study, study.claim(owner, second, 2))
    # The first statement again only repeats its receipt: version 2 stays what counts.
    assert client.complete_share(study.study, old).encoded == receipt.encoded
    assert client.share(study.study).version == 2
    other = study.claim(owner, second, 1)
    assert refused(lambda: client.complete_share(study.study, other)).slug == "share-version-not-newer"
    assert refused(lambda: study.upload(owner, second, version=1)).slug in (
        "share-version-not-newer",
        "chunk-differs",
    )
    study.withdraw(owner, 3)
    assert client.share(study.study).state == "withdrawn"
    assert refused(lambda: study.withdraw(owner, 4)).slug == "wrong-state"
    assert client.complete_share(study.study, old).encoded == receipt.encoded
    assert client.share(study.study).state == "withdrawn"


def test_a_newer_upload_takes_the_place_of_an_unfinished_one(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    chunks = study.plain_chunks(values_of(3, 0))
    study.upload(owner, chunks, version=3)
    study.upload(owner, chunks, version=5)
    assert refused(lambda: study.upload(owner, chunks, version=4)).slug == "share-version-not-newer"
    folders = {path.name for path in (world.home / "studies").rglob("shares/*/*")}
    assert folders == {"5"}


# Closing, cancelling


def test_a_closed_study_stays_closed(study: OpenStudy) -> None:
    world = study.world
    chunks = study.plain_chunks(values_of(3, 2))
    for seed, owner in enumerate(world.owners[:2]):
        study.deliver(owner, values_of(3, seed))
    study.upload(world.owners[2], chunks)
    study.close()
    study.close()
    late = world.owners[2]
    claim = study.claim(late, chunks)
    assert refused(lambda: world.client(late).complete_share(study.study, claim)).slug == "study-closed"
    assert refused(lambda: study.withdraw(world.owners[0], 2)).slug == "study-closed"
    assert refused(lambda: study.deliver(late, values_of(3, 3), version=2)).slug == "study-closed"
    study.wait_state("released")
    assert refused(study.cancel).slug in ("wrong-state", "noise-already-drawn")


def test_closing_by_hand_needs_enough_owners(study: OpenStudy) -> None:
    study.deliver(study.world.owners[0], values_of(3, 0))
    before = dump(study.world.proxy)
    error = refused(study.close)
    assert error.slug == "cohort-too-small"
    assert dump(study.world.proxy) == before


def test_too_few_owners_at_closing_time_fail_the_study(study: OpenStudy) -> None:
    world = study.world
    study.deliver(world.owners[0], values_of(3, 0))
    world.clock.ahead = timedelta(seconds=3601)
    world.proxy.wake()
    wait_state(study, "failed")
    world.clock.ahead = timedelta()
    facts = world.client(world.user).study(study.study)
    assert facts.failure == "too-few-owners"
    assert not list((world.home / "studies").rglob("shares"))
    assert refused(lambda: world.client(world.user).release(study.study)).slug == "wrong-state"


def wait_state(study: OpenStudy, state: str) -> None:
    """By the database, for the routes refuse requests while the clock stands ahead."""
    from proxy_world import wait_for

    from dpdpca_proxy.studies import detail

    wait_for(lambda: detail(study.world.proxy, study.study)["state"] == state)


def test_the_closing_time_closes(study: OpenStudy) -> None:
    world = study.world
    for seed, owner in enumerate(world.owners[:2]):
        study.deliver(owner, values_of(3, seed))
    world.clock.ahead = timedelta(seconds=3601)
    world.proxy.wake()
    wait_state(study, "released")


def test_a_cancelled_study_is_over(study: OpenStudy) -> None:
    world = study.world
    study.deliver(world.owners[0], values_of(3, 0))
    study.cancel()
    study.cancel()
    assert study.state() == "cancelled"
    assert not list((world.home / "studies").rglob("shares"))
    assert refused(lambda: study.deliver(world.owners[1], values_of(3, 1))).slug == "study-closed"
    assert refused(lambda: world.client(world.user).release(study.study)).slug == "wrong-state"


def test_a_statement_of_another_kind_does_not_close(study: OpenStudy) -> None:
    world = study.world
    cancel = StudyAct("cancel", study.study).sign(world.user).encoded
    before = dump(world.proxy)
    assert slug(world.request(world.user, "POST", f"{study.path}/close", cancel)) == "malformed"
    assert dump(world.proxy) == before


# The count


def masked_to_count(world: ProxyWorld, **changes: Any) -> OpenStudy:
    study = world.open_study(3, release="masked", closing="when-complete", **changes)
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    return study


@pytest.mark.parametrize("lie", [1, -1, 100])
def test_a_false_count_is_refused_and_draws_nothing(world: ProxyWorld, lie: int) -> None:
    study = masked_to_count(world)
    challenge = study.challenge()
    before = dump(world.proxy)
    client = world.client(world.user)
    answer = study.count_answer(challenge, add=lie)
    assert refused(lambda: client.answer_count(study.study, answer)).slug == "count-proof-false"
    assert dump(world.proxy) == before
    assert "draw" not in world.worker.calls  # type: ignore[attr-defined] # it is an InlineWorker
    client.answer_count(study.study, study.count_answer(challenge))
    study.wait_state("released")


def test_the_count_is_answered_once(world: ProxyWorld) -> None:
    study = masked_to_count(world)
    challenge = study.challenge()
    client = world.client(world.user)
    answer = study.count_answer(challenge)
    client.answer_count(study.study, answer)
    client.answer_count(study.study, answer)
    other = study.count_answer(challenge, add=1)
    assert refused(lambda: client.answer_count(study.study, other)).slug == "count-already-answered"
    study.wait_state("released")
    client.answer_count(study.study, answer)


def test_a_count_out_of_range_fails_the_study_before_any_draw(world: ProxyWorld) -> None:
    study = masked_to_count(world, min_records=16)
    client = world.client(world.user)
    answer = study.count_answer(study.challenge())
    assert refused(lambda: client.answer_count(study.study, answer)).slug == "count-out-of-range"
    assert study.state() == "failed"
    assert "draw" not in world.worker.calls  # type: ignore[attr-defined] # it is an InlineWorker
    assert refused(lambda: client.release(study.study)).slug == "wrong-state"


def test_a_joint_study_has_no_count(study: OpenStudy) -> None:
    client = study.world.client(study.world.user)
    assert refused(lambda: client.count_challenge(study.study)).slug == "no-count"
    assert refused(lambda: client.release(study.study)).slug == "not-ready"


# Settings


def test_the_proxy_does_not_listen_beyond_loopback_without_tls(tmp_path: Any) -> None:
    settings = load_settings(tmp_path, host="0.0.0.0", url="https://proxy.example.org")
    assert refused(settings.check_listener).slug == "tls-required"
    load_settings(tmp_path, host="0.0.0.0", url="https://p.example.org", behind_tls=True).check_listener()
    load_settings(tmp_path).check_listener()
    nameless = load_settings(tmp_path, host="0.0.0.0", behind_tls=True)
    assert refused(nameless.check_listener).slug == "bad-settings"
    half = load_settings(tmp_path, tls_cert="x")
    assert refused(half.check_listener).slug == "bad-settings"


def test_settings_come_from_options_environment_and_file(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proxy.toml").write_text('name = "From file"\nport = 1000\nmax_streams = 7\n')
    monkeypatch.setenv("DPDPCA_PROXY_PORT", "2000")
    monkeypatch.setenv("DPDPCA_PROXY_HOME", str(tmp_path))
    settings = load_settings(None)
    assert (settings.home, settings.name) == (tmp_path, "From file")
    assert (settings.port, settings.max_streams) == (2000, 7)
    assert load_settings(None, port=3000).port == 3000
    (tmp_path / "proxy.toml").write_text('nonsense = "4711"\n')
    error = refused(lambda: load_settings(None))
    assert (error.slug, "nonsense" in error.problem, "4711" in str(error)) == ("bad-settings", True, False)
    (tmp_path / "proxy.toml").write_text("=")
    assert refused(lambda: load_settings(None)).slug == "bad-settings"
