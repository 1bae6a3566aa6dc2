"""A proxy is pinned once, whichever way its address is spelled; files of earlier versions are still found."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dpdpca_owner import actions
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.pins import Pins
from dpdpca_owner.study_folder import Plan
from dpdpca_protocol.errors import AuthenticationError, CryptographicError, DpdpcaError, PolicyError
from dpdpca_protocol.messages.rotation import Rotation
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.kem import PREVIEW_KEM
from dpdpca_protocol.wire.signing import FILE_FORMAT, Identity, IdentityKey, Statement, sign_statement
from dpdpca_runtime.files import private_dir, write_private
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.words import fingerprint_words
from dpdpca_user.home import EnrolledProxy, UserHome

CANONICAL = "https://relay.example"
SPELLINGS = [
    "https://relay.example", "https://RELAY.example", "https://relay.example:443", "https://relay.example.",
    "https://relay.example:", "https://relay.example/", "https://Relay.Example.:0443",
]  # fmt: skip
OTHERS = [
    ("https://[2001:DB8:0::1]:8440", "https://[2001:db8::1]:8440"),
    ("http://LOCALHOST:8440", "http://localhost:8440"),
    ("https://BÜCHER.example", "https://xn--bcher-kva.example"),
]
KEYS = [IdentityKey.generate("proxy") for _ in range(3)]
NOW = "2026-01-01T00:00:00Z"


def card(key: IdentityKey) -> Statement:
    return ProxyCard("Relay", CANONICAL, key.public).sign(key)


def rotation(old: int, new: int) -> bytes:
    keys = KEYS[old], KEYS[new]
    return Rotation("proxy", new, keys[0].public.ed25519, keys[1].public, NOW).sign(*keys).encoded


# The owner, one file a proxy


def keep_as_before(folder: Path, url: str, key: int, former: tuple[int, ...] = ()) -> Path:
    """A pin as versions wrote it that took every spelling for another proxy."""
    path = private_dir(folder / "proxies") / f"{Digest.of(url.encode()).hex()[:32]}.json"
    keys = [
        {"ed25519": KEYS[at].public.ed25519.hex(), "kem": KEYS[at].public.sealing_key.hex()} for at in former
    ]
    body = {
        "card": parse_canonical(card(KEYS[key]).encoded),
        "former": keys,
        "format": FILE_FORMAT,
        "url": url,
    }
    write_private(path, json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode())
    return path


def pin_files(folder: Path) -> list[Path]:
    return sorted((folder / "proxies").iterdir())


@pytest.mark.parametrize("old", SPELLINGS)
def test_an_owner_finds_a_pin_of_any_spelling_by_any_other(tmp_path: Path, old: str) -> None:
    keep_as_before(tmp_path, old, 0)
    pins = Pins(tmp_path)
    assert pins.proxy_urls() == [CANONICAL]
    for spelling in SPELLINGS:
        assert pins.proxy(spelling).identity == KEYS[0].public
        assert pins.check_proxy(spelling, ProxyCard.parse(card(KEYS[0])))
        with pytest.raises(AuthenticationError, match="another key"):
            pins.check_proxy(spelling, ProxyCard.parse(card(KEYS[1])))


def test_an_owner_pins_one_proxy_once(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    for spelling in SPELLINGS:
        pins.pin_proxy(spelling, card(KEYS[0]))
        with pytest.raises(AuthenticationError, match="another key"):
            pins.pin_proxy(spelling, card(KEYS[1]))
    assert len(pin_files(tmp_path)) == 1
    for spelling, canonical in OTHERS:
        pins.pin_proxy(spelling, card(KEYS[1]))
        pins.pin_proxy(canonical, card(KEYS[1]))
    assert pins.proxy_urls() == sorted([CANONICAL, *(canonical for _, canonical in OTHERS)])


def test_two_pins_of_an_owner_with_one_key_become_one(tmp_path: Path) -> None:
    for spelling in SPELLINGS:
        keep_as_before(tmp_path, spelling, 0)
    pins = Pins(tmp_path)
    assert pins.proxy_urls() == [CANONICAL]
    assert pins.proxy(CANONICAL).identity == KEYS[0].public
    assert len(pin_files(tmp_path)) == len(SPELLINGS)  # reading changes nothing
    pins.pin_proxy(SPELLINGS[3], card(KEYS[0]))
    (left,) = pin_files(tmp_path)
    assert json.loads(left.read_bytes())["url"] == CANONICAL
    assert left.stat().st_mode & 0o777 == 0o600


def test_pins_of_an_earlier_version_wait_for_new_keys_of_their_proxy(tmp_path: Path) -> None:
    """Such pins hold an X25519 key, which nothing uses any more. A rotation brings a `kem`."""
    body: dict[str, Any] = dict(card(KEYS[0]).body) | {"format": 1, "x25519": "9f" * 32}
    del body["kem"]
    path = keep_as_before(tmp_path, CANONICAL, 0)
    pin = json.loads(path.read_bytes()) | {
        "card": parse_canonical(sign_statement("proxy", body, KEYS[0]).encoded),
        "former": [{"ed25519": KEYS[1].public.ed25519.hex(), "x25519": "9f" * 32}],
    }
    write_private(path, canonical_json(pin))
    pins, old = Pins(tmp_path), Identity(KEYS[0].public.ed25519)
    assert pins.proxy_identities(CANONICAL) == (old, Identity(KEYS[1].public.ed25519))
    with pytest.raises(AuthenticationError, match="a sealing key that is not the pinned one"):
        pins.follow_proxy(CANONICAL, card(KEYS[0]), [])  # only a rotation brings a `kem`
    assert pins.follow_proxy(CANONICAL, card(KEYS[2]), [rotation(0, 2)])
    assert pins.proxy_identities(CANONICAL)[:2] == (KEYS[2].public, old)

    kept = asdict(entry(CANONICAL, 0)) | {"x25519": "9f" * 32}
    del kept["kem"]
    folder = private_dir(tmp_path / "user")
    write_private(folder / "proxies.json", json.dumps({"proxies": [kept]}).encode())
    home = UserHome(folder)
    pinned = home.proxy(None)
    assert pinned.identity == old
    with pytest.raises(CryptographicError, match="of an earlier version"):
        _ = pinned.party
    assert pinned.provisional_party.kem == PREVIEW_KEM
    followed = home.follow_proxy(pinned, ProxyCard.parse(card(KEYS[2])), [rotation(0, 2)])
    assert (followed.party.kem, home.proxy(None)) == (KEYS[2].public.kem, followed)


@pytest.mark.parametrize("behind", SPELLINGS[:2])
def test_a_pin_that_followed_a_rotation_covers_one_that_did_not(tmp_path: Path, behind: str) -> None:
    ahead = SPELLINGS[1 - SPELLINGS.index(behind)]
    keep_as_before(tmp_path, ahead, 1, former=(0,))
    keep_as_before(tmp_path, behind, 0)
    pins = Pins(tmp_path)
    assert pins.proxy_identities(CANONICAL) == (KEYS[1].public, KEYS[0].public)
    assert pins.first_key(KEYS[1].public.ed25519) == KEYS[0].public.ed25519
    with pytest.raises(AuthenticationError, match="already replaced"):
        pins.check_proxy(behind, ProxyCard.parse(card(KEYS[0])))
    assert pins.follow_proxy(behind, card(KEYS[2]), [rotation(1, 2)])
    assert pins.proxy_identities(CANONICAL) == tuple(KEYS[at].public for at in (2, 1, 0))
    assert len(pin_files(tmp_path)) == 1


def test_two_pins_of_an_owner_with_different_keys_are_refused(tmp_path: Path) -> None:
    files = [keep_as_before(tmp_path, SPELLINGS[at], at) for at in (0, 1)]
    other = keep_as_before(tmp_path, "https://other.example", 2)
    pins = Pins(tmp_path)
    acts_on_it: list[Callable[[], Any]] = [
        lambda: pins.proxy(CANONICAL),
        lambda: pins.proxy_identities(SPELLINGS[1]),
        lambda: pins.check_proxy(CANONICAL, ProxyCard.parse(card(KEYS[0]))),
        lambda: pins.pin_proxy(CANONICAL, card(KEYS[0])),
        lambda: pins.follow_proxy(CANONICAL, card(KEYS[1]), [rotation(0, 1)]),
    ]
    for act in acts_on_it:
        with pytest.raises(AuthenticationError) as refused:
            act()
        assert refused.value.slug == "proxy-pinned-twice"
        for at, file in enumerate(files):
            assert f"{fingerprint_words(KEYS[at].public.ed25519)} ({file})" in refused.value.problem
        assert "delete the other file" in refused.value.next_step
    assert pins.proxy("https://other.example").identity == KEYS[2].public
    assert pin_files(tmp_path) == sorted([*files, other])
    files[1].unlink()
    assert pins.proxy(SPELLINGS[1]).identity == KEYS[0].public


def test_studies_that_were_joined_under_another_spelling_are_found(tmp_path: Path) -> None:
    home, study = OwnerHome(tmp_path), StudyId.of(b"a study")
    keep_as_before(tmp_path, SPELLINGS[-1], 0)
    home.study(study).save_plan(Plan(SPELLINGS[-1], 1, Digest.of(b"m"), Digest.of(b"n")))
    (place,) = map(actions.joined_at, home.joined())
    assert place == StudyAddress(CANONICAL, study)
    assert home.pins.proxy(place.proxy).identity == KEYS[0].public


def test_an_address_that_is_refused_by_now_is_still_listed(tmp_path: Path) -> None:
    home, study = OwnerHome(tmp_path), StudyId.of(b"a study")
    keep_as_before(tmp_path, "https://my_relay:8440", 0)
    home.study(study).save_plan(Plan("https://my_relay:8440", 1, Digest.of(b"m"), Digest.of(b"n")))
    assert home.pins.proxy_urls() == ["https://my_relay:8440"]
    assert [str(actions.joined_at(folder)) for folder in home.joined()] == [
        f"https://my_relay:8440/{study.hex()}"
    ]


# The data user, one file for all


def entry(url: str, key: int, former: tuple[int, ...] = ()) -> EnrolledProxy:
    ed25519, kem = KEYS[key].public.ed25519.hex(), KEYS[key].public.sealing_key.hex()
    return EnrolledProxy(url, "Relay", ed25519, kem, tuple(KEYS[at].public.ed25519.hex() for at in former))


def user_home(folder: Path, *entries: EnrolledProxy) -> UserHome:
    listed = [{name: getattr(each, name) for name in EnrolledProxy.__slots__} for each in entries]
    write_private(private_dir(folder) / "proxies.json", json.dumps({"proxies": listed}).encode())
    return UserHome(folder)


@pytest.mark.parametrize("old", SPELLINGS)
def test_a_data_user_finds_a_proxy_of_any_spelling_by_any_other(tmp_path: Path, old: str) -> None:
    home = user_home(tmp_path, entry(old, 0), entry("https://other.example", 1))
    for spelling in SPELLINGS:
        found = home.proxy(spelling)
        assert (found.url, found.identity) == (CANONICAL, KEYS[0].public)
        home.pin_proxy(entry(spelling, 0))
        with pytest.raises(AuthenticationError, match="another key"):
            home.pin_proxy(entry(spelling, 2))
    assert sorted(proxy.url for proxy in home.proxies()) == ["https://other.example", CANONICAL]
    kept = json.loads((tmp_path / "proxies.json").read_bytes())["proxies"]
    assert sorted(proxy["url"] for proxy in kept) == ["https://other.example", CANONICAL]
    with pytest.raises(PolicyError, match="enrolled at 2 proxies"):
        home.proxy(None)


def test_entries_of_a_data_user_with_one_key_become_one(tmp_path: Path) -> None:
    home = user_home(tmp_path, *(entry(spelling, 0) for spelling in SPELLINGS))
    assert home.proxies() == (entry(CANONICAL, 0),)
    assert home.proxy(None) == entry(CANONICAL, 0)


@pytest.mark.parametrize("turned", [False, True])
def test_an_entry_that_followed_a_rotation_covers_one_that_did_not(tmp_path: Path, turned: bool) -> None:
    entries = [entry(SPELLINGS[0], 0), entry(SPELLINGS[1], 1, former=(0,)), entry(SPELLINGS[2], 0)]
    home = user_home(tmp_path, *(reversed(entries) if turned else entries))
    assert home.proxies() == (entry(CANONICAL, 1, former=(0,)),)
    assert home.first_key(KEYS[1].public.ed25519) == KEYS[0].public.ed25519


def test_entries_of_a_data_user_with_different_keys_are_refused(tmp_path: Path) -> None:
    home = user_home(
        tmp_path, entry(SPELLINGS[0], 0), entry(SPELLINGS[1], 1), entry("https://other.example", 2)
    )
    for spelling in SPELLINGS:
        with pytest.raises(DpdpcaError) as refused:
            home.proxy(spelling)
        assert refused.value.slug == "proxy-pinned-twice"
        for at in (0, 1):
            assert fingerprint_words(KEYS[at].public.ed25519) in refused.value.problem
        assert str(tmp_path / "proxies.json") in refused.value.next_step
    assert home.proxy("https://other.example").identity == KEYS[2].public
    with pytest.raises(PolicyError, match=r"enrolled at \d proxies"):
        home.proxy(None)
    alone = user_home(tmp_path / "alone", entry(SPELLINGS[0], 0), entry(SPELLINGS[1], 1))
    with pytest.raises(AuthenticationError, match="pinned under several spellings"):
        alone.proxy(None)
