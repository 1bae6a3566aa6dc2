"""Keys and pins on disk: private, never overwritten, corrupt files refused, changed keys refused."""

import stat
from pathlib import Path
from typing import Any

import pytest
from owner_scene import MakeScene

from dpdpca_owner import actions
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    IntegrityError,
    NotFoundError,
    PolicyError,
    UsageError,
)
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.terms.parties import Participant, Party
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import IdentityKey

URL = "https://proxy.example:8440"
NOW = "2026-01-01T00:00:00Z"


def files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()]


def card(key: IdentityKey) -> Any:
    return ProxyCard("Relay", URL, key.public).sign(key)


def party(key: IdentityKey, name: str = "Institute") -> Party:
    return Party(name, key.public.ed25519)


def test_an_owner_comes_back_as_it_was_made_and_is_private(tmp_path: Path) -> None:
    home = OwnerHome(tmp_path / "owner")
    made = home.create("Krankenhaus Süd", None)
    assert OwnerHome(tmp_path / "owner").load().key.public == made.key.public
    assert home.load().name == "Krankenhaus Süd"
    assert len(made.words.split()) == 12
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in files(home.path)} == {0o600}


def test_keys_are_never_made_twice(tmp_path: Path) -> None:
    home = OwnerHome(tmp_path)
    made = home.create("A", None)
    with pytest.raises(ConflictError):
        home.create("B", None)
    assert home.load().key.public == made.key.public


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x1b[31m", "x" * 201, "a\u202eb"])
def test_a_name_that_could_mislead_makes_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        OwnerHome(tmp_path / "home").create(name, None)
    assert not (tmp_path / "home").exists()


def test_a_passphrase_is_asked_for_and_checked(tmp_path: Path) -> None:
    home = OwnerHome(tmp_path)
    home.create("A", b"correct horse")
    assert home.keys.need_passphrase
    assert home.load(b"correct horse").name == "A"
    for wrong in (None, b"wrong"):
        with pytest.raises(AuthenticationError, match="passphrase"):
            home.load(wrong)


def test_before_init_the_next_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="dpdpca owner init"):
        OwnerHome(tmp_path / "nothing").load()


def test_an_exposed_key_and_a_corrupt_file_are_refused(tmp_path: Path) -> None:
    home = OwnerHome(tmp_path)
    home.create("A", None)
    (tmp_path / "owner.json").write_bytes(b'{"format":1,"name":7}')
    with pytest.raises(IntegrityError, match="did not write its content"):
        home.load()
    (tmp_path / "identity.pem").chmod(0o644)
    with pytest.raises(PolicyError, match="chmod 600"):
        home.load()


def test_a_proxy_is_pinned_at_its_address_and_a_change_is_refused(tmp_path: Path) -> None:
    pins, key = OwnerHome(tmp_path).pins, IdentityKey.generate("proxy")
    with pytest.raises(NotFoundError, match="dpdpca owner enrol"):
        pins.proxy(URL)
    pins.pin_proxy(URL, card(key))
    pins.pin_proxy(URL, card(key))
    assert pins.proxy(URL).identity == key.public
    with pytest.raises(AuthenticationError, match="another key"):
        pins.pin_proxy(URL, card(IdentityKey.generate()))
    assert pins.proxy(URL).identity == key.public
    with pytest.raises(NotFoundError):
        pins.proxy("https://other.example")


def test_an_altered_pin_is_corrupt(tmp_path: Path) -> None:
    pins = OwnerHome(tmp_path).pins
    pins.pin_proxy(URL, card(IdentityKey.generate()))
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes().replace(b"Relay", b"Delay"))
    with pytest.raises(IntegrityError):
        pins.proxy(URL)


def test_a_data_user_is_trusted_at_first_contact_and_never_again_under_another_key(tmp_path: Path) -> None:
    pins, proxy, user = OwnerHome(tmp_path).pins, bytes(32), IdentityKey.generate()
    assert pins.check_user(proxy, party(user)) is None
    pins.pin_user(proxy, party(user), NOW)
    pins.pin_user(proxy, party(user), "2027-01-01T00:00:00Z")
    known = pins.check_user(proxy, party(user))
    assert known is not None
    assert known.since == NOW
    with pytest.raises(AuthenticationError, match="another key") as caught:
        pins.check_user(proxy, party(IdentityKey.generate()))
    assert str(tmp_path) in str(caught.value)
    assert pins.check_user(bytes([1]) * 32, party(IdentityKey.generate())) is None


def test_named_owners_are_pinned_by_proxy_and_name(tmp_path: Path) -> None:
    pins, proxy = OwnerHome(tmp_path).pins, bytes(32)
    key, other = (IdentityKey.generate().public.ed25519 for _ in range(2))
    assert pins.check_participant(proxy, Participant("Hospital B", key)) is None
    pins.pin_participant(proxy, Participant("Hospital B", key), NOW)
    pins.pin_participant(proxy, Participant("Hospital B", key), "2027-01-01T00:00:00Z")
    known = pins.check_participant(proxy, Participant("Hospital B", key))
    assert known is not None
    assert known.since == NOW
    with pytest.raises(AuthenticationError, match="another key"):
        pins.pin_participant(proxy, Participant("Hospital B", other), NOW)
    for elsewhere in ((bytes([1]) * 32, "Hospital B"), (proxy, "Hospital C")):
        assert pins.check_participant(elsewhere[0], Participant(elsewhere[1], other)) is None
    assert {stat.S_IMODE(file.stat().st_mode) for file in files(tmp_path)} == {0o600}


def test_moduli_of_other_studies_are_remembered(make_scene: MakeScene) -> None:
    scene = make_scene()
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    actions.join(scene.desk, scene.address, prepared, Watcher())
    home, public = scene.desk.home, scene.parties.secret.public
    assert home.known_moduli(besides=scene.address.study) == frozenset()
    assert home.known_moduli(besides=StudyId.of(b"another")) == {Digest.of(public.encode())}
