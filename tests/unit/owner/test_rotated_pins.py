"""Pins follow a key along statements under both keys, never without them, and never back."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from promises import Promise

from dpdpca_owner.home import OwnerHome
from dpdpca_owner.pins import Pins
from dpdpca_protocol.errors import AuthenticationError
from dpdpca_protocol.messages.rotation import Rotation
from dpdpca_protocol.messages.study_messages import ProxyCard, StudyMark
from dpdpca_protocol.terms.parties import Participant, Party
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import Identity, IdentityKey, Statement
from dpdpca_runtime.http.marks import SeenMarks
from dpdpca_user.home import EnrolledProxy, UserHome

URL = "https://proxy.example:8440"
NOW = "2026-01-01T00:00:00Z"
KEYS = [IdentityKey.generate() for _ in range(4)]


def card(key: IdentityKey) -> Statement:
    return ProxyCard("Relay", URL, key.public).sign(key)


def chain(role: str, *numbers: int) -> list[bytes]:
    """Statements that lead from each of these keys to the next."""
    links = []
    for version, (old, new) in enumerate(itertools.pairwise(numbers), 1):
        keys = KEYS[old], KEYS[new]
        rotation = Rotation(role, version, keys[0].public.ed25519, keys[1].public, NOW)
        links.append(rotation.sign(*keys).encoded)
    return links


def as_proxy(at: int) -> Identity:
    """A proxy has no key for blinding."""
    return replace(KEYS[at].public, x25519=None)


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    return OwnerHome(tmp_path).pins


def test_a_proxy_is_followed_and_never_back(pins: Pins, promise: Promise) -> None:
    pins.pin_proxy(URL, card(KEYS[0]))
    assert pins.follow_proxy(URL, card(KEYS[2]), chain("proxy", 0, 1, 2))
    assert not pins.follow_proxy(URL, card(KEYS[2]), [])
    assert pins.proxy(URL).identity == as_proxy(2)
    assert pins.proxy_identities(URL) == tuple(map(as_proxy, (2, 1, 0)))
    refused = 0
    for at, links in ((0, []), (1, chain("proxy", 0, 1)), (0, chain("proxy", 2, 0))):
        with pytest.raises(AuthenticationError, match="already replaced"):
            pins.follow_proxy(URL, card(KEYS[at]), links)
        with pytest.raises(AuthenticationError, match="already replaced"):
            pins.pin_proxy(URL, card(KEYS[at]))
        refused += 2
    assert pins.proxy(URL).identity == as_proxy(2)
    promise("P20", counted=f"{refused} key chains of a proxy rolled back", result="all refused")


def test_a_data_user_follows_a_proxy_and_never_back(tmp_path: Path, promise: Promise) -> None:
    user, first = UserHome(tmp_path), KEYS[0].public
    user.pin_proxy(EnrolledProxy(URL, "Relay", first.ed25519.hex(), first.sealing_key.hex()))
    followed = user.follow_proxy(user.proxy(URL), ProxyCard.parse(card(KEYS[2])), chain("proxy", 0, 1, 2))
    assert user.proxy(URL) == followed
    assert followed.keys == tuple(KEYS[at].public.ed25519 for at in (2, 1, 0))
    for at, links in ((0, []), (1, chain("proxy", 0, 1)), (0, chain("proxy", 2, 0))):
        with pytest.raises(AuthenticationError, match="already replaced"):
            user.follow_proxy(followed, ProxyCard.parse(card(KEYS[at])), links)
    mixed = Identity(followed.identity.ed25519, KEYS[3].public.sealing_key)
    for shown, links in ((KEYS[3].public, chain("proxy", 1, 3)), (mixed, [])):
        with pytest.raises(AuthenticationError, match=r"another|not the pinned"):
            user.follow_proxy(followed, ProxyCard("Relay", URL, shown), links)
    assert user.proxy(URL) == followed
    promise("P20", counted="3 key chains of a proxy rolled back, shown to a data user", result="all refused")


@pytest.mark.parametrize("role", ["owner", "user"])
def test_a_proxy_with_another_key_goes_on_with_its_generations(tmp_path: Path, role: str) -> None:
    """It falls for nobody by rotating, and old studies and new ones are held against the same mark."""
    if role == "owner":
        home = OwnerHome(tmp_path)
        home.pins.pin_proxy(URL, card(KEYS[0]))
        home.pins.follow_proxy(URL, card(KEYS[2]), chain("proxy", 0, 1, 2))
        marks = home.marks
    else:
        user, first = UserHome(tmp_path), KEYS[0].public
        pinned = EnrolledProxy(URL, "Relay", first.ed25519.hex(), first.sealing_key.hex())
        user.pin_proxy(pinned)
        user.follow_proxy(pinned, ProxyCard.parse(card(KEYS[2])), chain("proxy", 0, 1, 2))
        marks = SeenMarks(tmp_path / "marks.json", user.first_key)
    study, head = StudyId(bytes(32)), Digest.of(b"head")

    def say(at: int, generation: int) -> None:
        proxy = KEYS[at].public.ed25519
        mark = StudyMark(study, "open", generation, head, NOW).sign(KEYS[at])
        marks.check(proxy, study, "open", mark.encoded, marks.known(proxy))

    say(0, 5)
    say(2, 7)
    for at in (0, 1, 2):
        with pytest.raises(AuthenticationError) as alarm:
            say(at, 6)
        assert alarm.value.slug == "generation-fell"
    say(0, 7)
    assert marks.known(KEYS[3].public.ed25519) is None


def test_a_proxy_without_a_statement_is_refused(pins: Pins) -> None:
    pins.pin_proxy(URL, card(KEYS[0]))
    for links in ([], chain("proxy", 1, 2), chain("user", 0, 2), chain("proxy", 0, 1)):
        with pytest.raises(AuthenticationError, match="another key"):
            pins.follow_proxy(URL, card(KEYS[2]), links)
    assert pins.proxy(URL).identity == as_proxy(0)


def _user(at: int) -> Party:
    return Party("Institute", KEYS[at].public.ed25519)


def _participant(at: int) -> Participant:
    return Participant("Hospital B", KEYS[at].public.ed25519)


@pytest.mark.parametrize(("kind", "role"), [("user", "user"), ("participant", "owner")])
def test_a_party_is_followed_and_never_back(pins: Pins, kind: str, role: str, promise: Promise) -> None:
    named = {"user": _user, "participant": _participant}[kind]
    check, pin = getattr(pins, f"check_{kind}"), getattr(pins, f"pin_{kind}")
    proxy = bytes(32)
    pin(proxy, named(0), NOW)
    with pytest.raises(AuthenticationError, match="another key"):
        check(proxy, named(2), lambda: chain(role, 1, 2))
    with pytest.raises(AuthenticationError, match="already replaced"):
        check(proxy, named(1), lambda: chain(role, 0, 1, 2))
    known = check(proxy, named(2), lambda: chain(role, 0, 1, 2))
    assert known.since == NOW
    assert "has changed its key since" in known.met
    for at, links in ((0, []), (1, chain(role, 0, 1))):
        with pytest.raises(AuthenticationError, match="already replaced"):
            check(proxy, named(at), lambda links=links: links)
        assert check(proxy, named(at), may_be_former=True).ed25519 == KEYS[2].public.ed25519
    promise("P20", counted=f"3 key chains of a {role} rolled back", result="all refused")


def test_what_was_pinned_on_a_proxy_stays_pinned_when_its_key_changes(pins: Pins) -> None:
    pins.pin_proxy(URL, card(KEYS[0]))
    pins.pin_user(KEYS[0].public.ed25519, _user(3), NOW)
    pins.follow_proxy(URL, card(KEYS[1]), chain("proxy", 0, 1))
    assert pins.check_user(KEYS[1].public.ed25519, _user(3)) is not None
    with pytest.raises(AuthenticationError):
        pins.check_user(KEYS[1].public.ed25519, _user(2))
