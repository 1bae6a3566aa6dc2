"""Who may ask what: signatures, roles, bodies and manifests; a refusal has its type and changes nothing."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from proxy_world import OpenStudy, ProxyWorld, dump, refused, slug

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.messages.study_messages import StudyAct
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.signing import IdentityKey, sign_statement


@pytest.fixture
def study(world: ProxyWorld) -> OpenStudy:
    return world.open_study(3)


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
        (owner, "PUT", f"{study.path}/opened"),
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
    body["proxy"] |= {"ed25519": stranger.ed25519.hex(), "kem": stranger.sealing_key.hex()}
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
    object.__setattr__(world.proxy, "key_rules", KeyRules(2048))
    error = refused(lambda: world.client(world.user).create_study(statement.encoded))
    assert error.slug in ("unfit-modulus", "manifest-refused")
