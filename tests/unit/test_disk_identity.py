"""Keys in a home folder: rotated, resumed after any interruption, sealed, and private."""

import errno
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    CryptographicError,
    IntegrityError,
    UnavailableError,
)
from dpdpca_protocol.messages.rotation import follow_rotations, verify_rotation
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.signing import Identity, IdentityKey, Statement
from dpdpca_runtime import identity_files as identity
from dpdpca_runtime.files import write_private
from dpdpca_runtime.identity_files import IdentityFiles

NOW = datetime(2026, 11, 28, tzinfo=UTC)


def unheard(_statement: Statement) -> None:
    """Nobody has to be told."""


@pytest.mark.parametrize("passphrase", [None, b"correct horse"])
def test_former_keys_stay_and_statements_lead_on(tmp_path: Path, passphrase: bytes | None) -> None:
    files = IdentityFiles(tmp_path)
    first = files.create(passphrase)
    for _ in range(3):
        files.rotate(passphrase, NOW, unheard)
    keys = IdentityFiles(tmp_path).load(passphrase)
    assert keys.former[-1].public == first.public
    assert len({key.public for key in (keys.current, *keys.former)}) == 4
    chain = follow_rotations(
        [statement.encoded for statement in keys.rotations], "owner", first.public.ed25519
    )
    assert [link.identity for link in chain] == [key.public for key in (*keys.former[-2::-1], keys.current)]
    assert keys.of(first.public.ed25519) is keys.former[-1]
    assert files.need_passphrase == (passphrase is not None)
    pems = list(tmp_path.rglob("*.pem"))
    assert len(pems) == 4
    assert all((b"ENCRYPTED" in pem.read_bytes()) == (passphrase is not None) for pem in pems)
    if passphrase:
        with pytest.raises(AuthenticationError):
            files.load(b"wrong")


def test_a_chain_of_keys_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "MOST_ROTATIONS", 2)
    files = IdentityFiles(tmp_path)
    files.create(None)
    for _ in range(2):
        keys = files.rotate(None, NOW, unheard)
    with pytest.raises(ConflictError, match="which is the limit"):
        files.rotate(None, NOW, unheard)
    assert files.load(None).current.public == keys.current.public


def test_all_of_it_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = IdentityFiles(tmp_path / "home")
        (tmp_path / "home").mkdir(0o700)
        files.create(None)
        files.rotate(None, NOW, unheard)
    finally:
        os.umask(before)
    for path in (tmp_path / "home").rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_an_announcement_that_fails_is_made_again_word_for_word(tmp_path: Path) -> None:
    files, heard = IdentityFiles(tmp_path), list[bytes]()
    first = files.create(None)

    def unreachable(statement: Statement) -> None:
        heard.append(statement.encoded)
        raise UnavailableError("unreachable", "nobody answers")

    for _ in range(2):
        with pytest.raises(UnavailableError):
            files.rotate(None, NOW, unreachable)
        assert files.load(None).current.public == first.public
        assert files.load(None).former == ()
    keys = files.rotate(None, NOW, lambda statement: heard.append(statement.encoded))
    assert len(set(heard)) == 1
    assert verify_rotation(heard[0])[0].identity == keys.current.public


def test_a_rotation_may_end_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For k = 1, 2, … the k-th write or removal does not happen; the next run ends with one new key."""
    for k in range(1, 20):
        home = tmp_path / str(k)
        home.mkdir()
        files = IdentityFiles(home)
        first, calls = files.create(None), [0]

        def dying(act: object, calls: list[int] = calls, k: int = k) -> object:
            def acting(*args: object, **options: object) -> object:
                calls[0] += 1
                if calls[0] == k:
                    raise KeyboardInterrupt
                return act(*args, **options)  # type: ignore[operator]  # one of the two below

            return acting

        with monkeypatch.context() as patch:
            for name in ("write_private", "remove_private"):
                patch.setattr(identity, name, dying(getattr(identity, name)))
            try:
                files.rotate(None, NOW, unheard)
            except KeyboardInterrupt:
                died = True
            else:
                died = False
        assert files.load(None).of(first.public.ed25519) is not None
        keys = files.rotate(None, NOW, unheard) if died else files.load(None)
        assert [key.public for key in keys.former] == [first.public], k
        assert len(keys.rotations) == 1
        if not died:
            assert k > 5
            return
    pytest.fail("it never came through")


def test_two_cannot_rotate_at_once(tmp_path: Path) -> None:
    files = IdentityFiles(tmp_path)
    files.create(None)

    def again(_statement: Statement) -> None:
        with pytest.raises(ConflictError):
            files.rotate(None, NOW, unheard)

    files.rotate(None, NOW, again)


def test_a_rotation_goes_on_with_the_key_that_it_has_announced(tmp_path: Path) -> None:
    """Its new key was exchanged, or lost: the proxies know of another one."""
    files = IdentityFiles(tmp_path)
    first = files.create(None)

    def unreachable(_statement: Statement) -> None:
        raise UnavailableError("unreachable", "nobody answers")

    with pytest.raises(UnavailableError):
        files.rotate(None, NOW, unreachable)
    announced = (tmp_path / "next.pem").read_bytes()
    write_private(tmp_path / "next.pem", IdentityKey.generate().to_pem())
    with pytest.raises(IntegrityError, match="do not lead"):
        files.rotate(None, NOW, unheard)
    (tmp_path / "next.pem").unlink()
    with pytest.raises(IntegrityError, match="was replaced"):
        files.rotate(None, NOW, unheard)
    write_private(tmp_path / "next.pem", announced)
    assert files.load(None).current.public == first.public
    assert [key.public for key in files.rotate(None, NOW, unheard).former] == [first.public]


def test_a_home_that_cannot_be_written_can_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = IdentityFiles(tmp_path)
    key = files.create(None)
    (tmp_path / "known-key.json").unlink()

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(identity, "write_private", refuse)
        assert files.load(None).current.public == key.public
    assert not files.are_remembered
    files.load(None)
    assert files.are_remembered


def test_a_sealing_key_counts_as_much_as_a_signing_key(tmp_path: Path) -> None:
    files = IdentityFiles(tmp_path)
    mixed = IdentityKey(files.create(None).ed25519, IdentityKey.generate().kem)
    write_private(tmp_path / "identity.pem", mixed.to_pem())
    with pytest.raises(IntegrityError, match="not the key of this home"):
        files.load(None)
    write_private(tmp_path / "identity.pem", IdentityKey(mixed.ed25519).to_pem())  # a part was cut off
    with pytest.raises(IntegrityError, match="not the key of this home"):
        files.load(None)


def earlier_pem(passphrase: bytes | None) -> tuple[Identity, bytes]:
    """Keys as an earlier version made them: Ed25519 and X25519."""
    signing, sealing = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    encryption = (
        serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    )
    pem = b"".join(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        for key in (signing, sealing)
    )
    return Identity(signing.public_key().public_bytes_raw()), pem


@pytest.mark.parametrize("passphrase", [None, b"correct horse"])
def test_keys_of_an_earlier_version_are_read_and_get_a_kem_by_a_rotation(
    tmp_path: Path, passphrase: bytes | None
) -> None:
    old, pem = earlier_pem(passphrase)
    remembered = {"ed25519": old.ed25519.hex(), "format": 1, "x25519": "9f" * 32}
    write_private(tmp_path / "identity.pem", pem)
    write_private(tmp_path / "known-key.json", canonical_json(remembered))
    # The earlier version was interrupted in a rotation, before it signed a statement about the new key.
    write_private(tmp_path / "next.pem", earlier_pem(passphrase)[1])
    files = IdentityFiles(tmp_path)
    current = files.load(passphrase).current
    assert current.public == old
    with pytest.raises(CryptographicError, match="of an earlier version"):
        _ = current.opening_key
    keys = files.rotate(passphrase, NOW, unheard)
    assert [key.public for key in keys.former] == [old]
    assert keys.current.opening_key.public == keys.current.public.sealing_key
    assert (tmp_path / "former-keys" / "1.pem").read_bytes() == pem
    assert IdentityFiles(tmp_path).load(passphrase).current.public == keys.current.public


def test_a_data_user_has_only_a_signing_key(tmp_path: Path) -> None:
    files = IdentityFiles(tmp_path, role="user")
    assert files.create(None).kem is None
    keys = files.rotate(None, NOW, unheard)
    assert keys.current.kem is None
    assert verify_rotation(keys.rotations[0].encoded)[0].identity == keys.current.public
    assert (tmp_path / "identity.pem").read_bytes().count(b"BEGIN") == 1


def test_a_passphrase_for_keys_without_one_is_no_damage(tmp_path: Path) -> None:
    files = IdentityFiles(tmp_path)
    files.create(None)
    with pytest.raises(
        AuthenticationError, match=r"have no passphrase \(.*identity.pem\); omit the passphrase"
    ):
        files.load(b"correct horse")
    (tmp_path / "identity.pem").write_text("-----BEGIN PRIVATE KEY-----")
    with pytest.raises(IntegrityError, match="does not contain its keys"):
        files.load(b"correct horse")
