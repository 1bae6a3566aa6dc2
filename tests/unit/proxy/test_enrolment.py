"""Enrolment and settings: who may come in, and where the proxy may listen."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from proxy_world import ProxyWorld, dump, refused, slug

from dpdpca_protocol.messages.study_messages import Enrolment
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.signing import IdentityKey, sign_statement
from dpdpca_proxy.enrolment import invite
from dpdpca_proxy.settings import load_settings


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


def test_a_key_of_format_1_enrols_a_data_user_and_no_owner(world: ProxyWorld) -> None:
    """Nothing is sealed to a data user, so it needs no `kem`. An owner without `kem` could join no study."""
    for role, status in (("owner", 422), ("user", 201)):
        key, token = IdentityKey.generate("user"), invite(world.proxy, role, "New").token
        terms = {"name": "New", "proxy": world.proxy_key.hex(), "role": role}
        keys = {"ed25519": key.public.ed25519.hex(), "x25519": "9f" * 32}
        statement = sign_statement("enrolment", {**terms, **keys, "format": 1}, key)
        before = dump(world.proxy)
        body = {"enrolment": parse_canonical(statement.encoded), "invitation": token}
        answer = enrol(world, canonical_json(body))
        assert answer.status_code == status
        if status == 422:
            assert (slug(answer), dump(world.proxy)) == ("unfit-sealing-key", before)


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


def test_the_proxy_does_not_listen_beyond_loopback_without_tls(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, host="0.0.0.0", url="https://proxy.example.org")
    assert refused(settings.check_listener).slug == "tls-required"
    load_settings(tmp_path, host="0.0.0.0", url="https://p.example.org", behind_tls=True).check_listener()
    load_settings(tmp_path).check_listener()
    nameless = load_settings(tmp_path, host="0.0.0.0", behind_tls=True)
    assert refused(nameless.check_listener).slug == "bad-settings"
    half = load_settings(tmp_path, tls_cert="x")
    assert refused(half.check_listener).slug == "bad-settings"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "operator", ""])
def test_the_operators_page_stays_on_loopback_unless_told(tmp_path: Path, host: str) -> None:
    """Also where the public listener has its TLS: the operator's has none, and no login."""
    settings = load_settings(
        tmp_path, operator_host=host, host="0.0.0.0", url="https://p.example.org", behind_tls=True
    )
    error = refused(settings.check_listener)
    assert (error.slug, "operator's page" in error.problem) == ("tls-required", True)
    load_settings(tmp_path, operator_host=host, operator_beyond=True).check_listener()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_the_operators_page_listens_on_loopback(tmp_path: Path, host: str) -> None:
    load_settings(tmp_path, operator_host=host).check_listener()


def test_settings_come_from_options_environment_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
