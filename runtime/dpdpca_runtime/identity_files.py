"""A role's private keys in its home folder: the key in use, replaced keys, and the rotation statements.

    identity.pem           the keys in use, under a passphrase if one was given
    known-key.json         their public halves: a home remembers its keys
    former-keys/N.pem      given up by rotation N; studies that began with them need them to their end
    rotations/N.json       the statement of rotation N
    next.pem               of a rotation that is under way

An interrupted rotation continues with the same key and statement. A home only accepts the key that it
remembers, or a key to which rotations lead from there. Without this rule, a party could act with the key of
another party, or with a replaced key. A home from a version without this memory accepts the key with which it
is first used, unless something else in the home names another one.
"""

import itertools
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    IntegrityError,
    MessageError,
    NotFoundError,
)
from dpdpca_protocol.messages.rotation import MOST_ROTATIONS, Rotation, too_many_rotations, verify_rotation
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_protocol.wire.kem import KEM_KEY_BYTES
from dpdpca_protocol.wire.signing import (
    FILE_FORMAT,
    OWNER,
    Identity,
    IdentityKey,
    Statement,
    check_members,
    hex_bytes,
)
from dpdpca_runtime.files import private_dir, read_private, remove_private, write_private
from dpdpca_runtime.locks import locked
from dpdpca_runtime.words import fingerprint_words

_FILE = "identity.pem"
_RESTORE = "restore this home's own keys from its newest backup; another party needs its own home (--home)"
_SEALED = b"ENCRYPTED"
"""A text that occurs only in the PEM of keys with a passphrase."""


@dataclass(frozen=True, slots=True)
class IdentityKeys:
    """All keys of one party.

    Attributes:
        former: the replaced keys, newest first.
        rotations: the statements that lead from the first key to the present key.
    """

    current: IdentityKey
    former: tuple[IdentityKey, ...] = ()
    rotations: tuple[Statement, ...] = ()

    def of(self, ed25519: bytes) -> IdentityKey | None:
        """The private key for this public key."""
        keys = (self.current, *self.former)
        return next((key for key in keys if key.public.ed25519 == ed25519), None)


class IdentityFiles:
    """The key files in one home folder.

    Args:
        home: the folder.
        acted: returns the parties that used this home, according to its other content. If there are any, only
            a key of theirs is accepted. Content that cannot be read names no parties.
        role: of the party: owner, proxy or user. It says which keys a new identity has.
    """

    def __init__(
        self, home: Path, acted: Callable[[], Collection[PartyId]] = frozenset, *, role: str = OWNER
    ) -> None:
        self._home = home
        self._role = role
        self._acted = acted

    @property
    def exist(self) -> bool:
        return self._path.exists()

    @property
    def are_remembered(self) -> bool:
        """Whether the home remembers a key."""
        return self._known_path.exists()

    @property
    def need_passphrase(self) -> bool:
        return _SEALED in read_private(self._path)

    def open_with(self, passphrase: bytes) -> bool:
        """Whether the key in use opens with this passphrase."""
        with suppress(AuthenticationError):
            _read_key(self._path, passphrase)
            return True
        return False

    def check_unused(self) -> None:
        """Raises ConflictError if there is a key, or was one."""
        if self.exist:
            raise ConflictError(
                "already-initialised",
                f"there is already a key in {self._home}",
                "use this key, or name another folder with --home",
            )
        if self.are_remembered or self._acted():
            raise ConflictError(
                "already-initialised",
                f"the key of the home {self._home} is missing",
                "restore identity.pem from a backup, or name another folder with --home",
            )

    def create(self, passphrase: bytes | None) -> IdentityKey:
        """Creates a key. Raises ConflictError like `check_unused`; existing files are kept."""
        self.check_unused()
        key = IdentityKey.generate(self._role)
        write_private(self._path, key.to_pem(passphrase), replace=False)
        self._remember(key.public)
        return key

    def load(self, passphrase: bytes | None) -> IdentityKeys:
        """Loads all keys.

        Raises:
            NotFoundError: there are none.
            AuthenticationError: the passphrase is wrong or missing.
            IntegrityError: `state-corrupt`, keys and statements do not belong together; `other-key`, the key
                in use is not a key of this home; `former-key`, it was replaced.
        """
        known = self._known()  # read before the key, because a rotation writes the key first
        keys = self._read(passphrase)
        self._check_known(keys, known)
        self._check_acted(keys)
        if known != keys.current.public:
            self._remember(keys.current.public)
        return keys

    def _read(self, passphrase: bytes | None) -> IdentityKeys:
        # In this order, so that a rotation that ends meanwhile is seen either as running or as finished.
        made, under_way = self._rotations(), self._next_path.exists()
        current = _read_key(self._path, passphrase)
        settled = next(
            (
                number
                for number, (rotation, _) in enumerate(made, 1)
                if rotation.identity.ed25519 == current.public.ed25519
            ),
            0,
        )
        if not settled and made and made[0][0].previous != current.public.ed25519:
            raise self._not_together()
        if len(made) > settled and not under_way:
            raise self._given_up(current.public.ed25519)
        former = [_read_key(self._former_path(number), passphrase) for number in range(settled, 0, -1)]
        if [key.public.ed25519 for key in former] != [link.previous for link, _ in reversed(made[:settled])]:
            raise self._not_together()
        return IdentityKeys(current, tuple(former), tuple(statement for _, statement in made[:settled]))

    def _check_known(self, keys: IdentityKeys, known: Identity | None) -> None:
        """Checks that the key in use is the remembered key, or has replaced it by rotation."""
        present = keys.current.public
        if known is None or known == present or known.ed25519 in {key.public.ed25519 for key in keys.former}:
            return
        if any(link.previous == present.ed25519 for link, _ in self._rotations()):
            raise self._given_up(present.ed25519)
        raise IntegrityError(
            "other-key",
            f"{self._path} is not the key of this home (key of this home: "
            f"{fingerprint_words(known.ed25519)}; key in the file: {fingerprint_words(present.ed25519)})",
            _RESTORE,
        )

    def _check_acted(self, keys: IdentityKeys) -> None:
        """Checks that only this party has used this home, under its current key or a former one."""
        own = {key.public.party_id for key in (keys.current, *keys.former)}
        if not own.issuperset(self._acted()):
            raise IntegrityError(
                "other-key",
                f"{self._path} is not the key of this home: its studies use another key (key in the file: "
                f"{fingerprint_words(keys.current.public.ed25519)})",
                _RESTORE,
            )

    def _known(self) -> Identity | None:
        try:
            body = parse_canonical(read_private(self._known_path))
            check_members(body, "ed25519", optional=("kem", "x25519"), formats=(FILE_FORMAT,))
            ed25519 = hex_bytes(body["ed25519"], 32, "ed25519")
            x25519 = hex_bytes(body["x25519"], 32, "x25519") if "x25519" in body else None
            if "kem" not in body:
                return Identity(ed25519)  # the X25519 key of an earlier version served for sealing
            return Identity(ed25519, hex_bytes(body["kem"], KEM_KEY_BYTES, "kem"), x25519)
        except NotFoundError:
            return None
        except MessageError as error:
            raise self._not_ours(self._known_path) from error

    def _remember(self, public: Identity) -> None:
        body: dict[str, Any] = {"ed25519": public.ed25519.hex(), "format": FILE_FORMAT}
        body |= {name: key.hex() for name, key in (("kem", public.kem), ("x25519", public.x25519)) if key}
        with suppress(OSError):  # a read-only home can be inspected, but nothing can be booked in it
            write_private(self._known_path, canonical_json(body))

    def rotate(
        self, passphrase: bytes | None, now: datetime, announce: Callable[[Statement], None]
    ) -> IdentityKeys:
        """Replaces the key in use by a new one.

        Args:
            passphrase: of the key in use. The passphrase seals the new key too.
            now: the time in the statement.
            announce: sends the statement to the parties that need it, before the new key is used. If
                `announce` raises an error, the old key stays in use and the rotation stays unfinished;
                another call continues it.

        Raises:
            ConflictError: another process is rotating, or the limit of rotations is reached.
        """
        busy = ConflictError(
            "busy", "another command is rotating these keys", "wait until that command has ended"
        )
        with locked(private_dir(self._home) / "rotation.lock", patience_seconds=0, busy=busy):
            if self._next_path.exists() and read_private(self._next_path) == read_private(self._path):
                remove_private(self._next_path)
                return self.load(passphrase)  # it was interrupted just before this last step
            keys = self.load(passphrase)
            number = len(keys.rotations) + 1
            if number > MOST_ROTATIONS:
                raise too_many_rotations()
            new = self._successor(number, passphrase)
            announce(self._statement(number, keys.current, new, now))
            private_dir(self._former_path(number).parent)
            write_private(self._former_path(number), read_private(self._path))
            write_private(self._path, read_private(self._next_path))
            self._remember(new.public)
            remove_private(self._next_path)
            return self.load(passphrase)

    def _successor(self, number: int, passphrase: bytes | None) -> IdentityKey:
        """The key to which rotation `number` leads. An interrupted rotation has already made this key."""
        if self._next_path.exists():
            begun = _read_key(self._next_path, passphrase)
            if begun.serves(self._role) or self._rotation_path(number).exists():
                return begun
            # An earlier version made these keys, and some are missing. No statement names them yet.
        made = IdentityKey.generate(self._role)
        write_private(self._next_path, made.to_pem(passphrase))
        return made

    def _statement(self, number: int, old: IdentityKey, new: IdentityKey, now: datetime) -> Statement:
        made = self._rotations()
        if len(made) >= number:
            begun, statement = made[number - 1]
            if begun.identity != new.public:
                raise self._not_together()
            return statement
        rotation = Rotation(self._role, number, old.public.ed25519, new.public, time_text(now))
        statement = rotation.sign(old, new)
        private_dir(self._rotation_path(number).parent)
        write_private(self._rotation_path(number), statement.encoded)
        return statement

    def _rotations(self) -> list[tuple[Rotation, Statement]]:
        made: list[tuple[Rotation, Statement]] = []
        while (path := self._rotation_path(len(made) + 1)).exists():
            try:
                made.append(verify_rotation(read_private(path)))
            except (MessageError, AuthenticationError) as error:
                raise self._not_ours(path) from error
        if any(
            link.previous != before.identity.ed25519 for (before, _), (link, _) in itertools.pairwise(made)
        ):
            raise self._not_together()
        return made

    def _not_ours(self, path: Path) -> IntegrityError:
        return IntegrityError(
            "state-corrupt",
            "a file next to the keys is damaged",
            "restore the file from a backup",
            place=str(path),
        )

    def _not_together(self) -> IntegrityError:
        return IntegrityError(
            "state-corrupt",
            "the rotations in a home do not lead to the key in it",
            "restore the whole home from one backup",
            place=str(self._home),
        )

    def _given_up(self, ed25519: bytes) -> IntegrityError:
        return IntegrityError(
            "former-key",
            f"this key of the home was replaced by a newer key ({fingerprint_words(ed25519)})",
            "restore the newest identity.pem, former-keys and rotations from a backup",
            place=str(self._path),
        )

    @property
    def _path(self) -> Path:
        return self._home / _FILE

    @property
    def _known_path(self) -> Path:
        return self._home / "known-key.json"

    @property
    def _next_path(self) -> Path:
        return self._home / "next.pem"

    def _former_path(self, number: int) -> Path:
        return self._home / "former-keys" / f"{number}.pem"

    def _rotation_path(self, number: int) -> Path:
        return self._home / "rotations" / f"{number}.json"


def _read_key(path: Path, passphrase: bytes | None) -> IdentityKey:
    pem = read_private(path)
    try:
        return IdentityKey.from_pem(pem, passphrase)
    except AuthenticationError as error:
        if _SEALED in pem:
            error.place = str(path)
            raise
        if passphrase is not None:
            _read_key(path, None)  # report damage first
            raise AuthenticationError(
                "wrong-passphrase", "the keys have no passphrase", "omit the passphrase file", place=str(path)
            ) from error
        damaged: Exception = error  # no passphrase would open it
    except MessageError as error:
        damaged = error
    raise IntegrityError(
        "state-corrupt",
        "a key file does not contain its keys",
        "restore the file from a backup",
        place=str(path),
    ) from damaged
