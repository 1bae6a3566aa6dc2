"""A role's private keys in its home folder: those in use, those given up, and the statements between.

    identity.pem           the keys in use, under a passphrase if one was given
    former-keys/N.pem      given up by rotation N; studies that began with them need them to their end
    rotations/N.json       the statement of rotation N
    next.pem               of a rotation that is under way

A rotation that was interrupted goes on with the very key and statement that it began with.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dpdpca_disk.private import private_dir, read_private, remove_private, write_private
from dpdpca_protocol.errors import AuthenticationError, ConflictError, IntegrityError, MessageError
from dpdpca_protocol.fields import time_text
from dpdpca_protocol.rotation import MOST_ROTATIONS, Rotation, too_many_rotations, verify_rotation
from dpdpca_protocol.signing import IdentityKey, Statement

_FILE = "identity.pem"


@dataclass(frozen=True, slots=True)
class IdentityKeys:
    """All keys of one party.

    Attributes:
        former: given up, the newest first.
        rotations: the statements that lead from the first key to the present one.
    """

    current: IdentityKey
    former: tuple[IdentityKey, ...] = ()
    rotations: tuple[Statement, ...] = ()

    def of(self, ed25519: bytes) -> IdentityKey | None:
        """The key whose public half is this one."""
        keys = (self.current, *self.former)
        return next((key for key in keys if key.public.ed25519 == ed25519), None)


class IdentityFiles:
    """The key files in one home folder."""

    def __init__(self, home: Path) -> None:
        self._home = home

    @property
    def exist(self) -> bool:
        return self._path.exists()

    @property
    def need_passphrase(self) -> bool:
        return b"ENCRYPTED" in read_private(self._path)

    def create(self, passphrase: bytes | None) -> IdentityKey:
        """Raises ConflictError where there is a key: it is kept."""
        key = IdentityKey.generate()
        write_private(self._path, key.to_pem(passphrase), replace=False)
        return key

    def load(self, passphrase: bytes | None) -> IdentityKeys:
        """All keys.

        Raises:
            NotFoundError: there are none.
            AuthenticationError: the passphrase is wrong or missing.
            IntegrityError: the statements do not lead to the key in use.
        """
        current = IdentityKey.from_pem(read_private(self._path), passphrase)
        made = self._rotations()
        settled = next(
            (
                number
                for number, (rotation, _) in enumerate(made, 1)
                if rotation.identity.ed25519 == current.public.ed25519
            ),
            0,
        )
        if not settled and made and made[0][0].previous != current.public.ed25519:
            raise IntegrityError(
                "state-corrupt",
                "the rotations in a home do not lead to the key in it",
                "put the whole home back from one backup",
                place=str(self._home),
            )
        former = [
            IdentityKey.from_pem(read_private(self._former_path(number)), passphrase)
            for number in range(settled, 0, -1)
        ]
        return IdentityKeys(current, tuple(former), tuple(statement for _, statement in made[:settled]))

    def rotate(
        self, role: str, passphrase: bytes | None, now: datetime, announce: Callable[[Statement], None]
    ) -> IdentityKeys:
        """Gives up the key in use for a new one.

        Args:
            role: owner, proxy or user.
            passphrase: of the key in use; seals the new one too.
            now: put into the statement.
            announce: brings the statement to whoever must know it, before the new key is put to use. What it
                raises leaves the old key in use and the rotation under way: another call goes on with it.

        Raises:
            ConflictError: another process is at it, or there were as many as may be.
        """
        with self._locked():
            if self._next_path.exists() and read_private(self._next_path) == read_private(self._path):
                remove_private(self._next_path)
                return self.load(passphrase)  # it was interrupted when all but this was done
            keys = self.load(passphrase)
            number = len(keys.rotations) + 1
            if number > MOST_ROTATIONS:
                raise too_many_rotations()
            if not self._next_path.exists():
                write_private(self._next_path, IdentityKey.generate().to_pem(passphrase), replace=False)
            new = IdentityKey.from_pem(read_private(self._next_path), passphrase)
            announce(self._statement(number, role, keys.current, new, now))
            private_dir(self._former_path(number).parent)
            write_private(self._former_path(number), read_private(self._path))
            write_private(self._path, read_private(self._next_path))
            remove_private(self._next_path)
            return self.load(passphrase)

    def _statement(
        self, number: int, role: str, old: IdentityKey, new: IdentityKey, now: datetime
    ) -> Statement:
        made = self._rotations()
        if len(made) >= number:
            return made[number - 1][1]
        rotation = Rotation(role, number, old.public.ed25519, new.public, time_text(now))
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
                raise IntegrityError(
                    "state-corrupt",
                    "a rotation of keys is not what this program wrote",
                    "put it back from a backup",
                    place=str(path),
                ) from error
        return made

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(private_dir(self._home) / "rotation.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError("busy", "another command rotates these keys", "wait until it ends") from error
        else:
            yield
        finally:
            os.close(descriptor)

    @property
    def _path(self) -> Path:
        return self._home / _FILE

    @property
    def _next_path(self) -> Path:
        return self._home / "next.pem"

    def _former_path(self, number: int) -> Path:
        return self._home / "former-keys" / f"{number}.pem"

    def _rotation_path(self, number: int) -> Path:
        return self._home / "rotations" / f"{number}.json"
