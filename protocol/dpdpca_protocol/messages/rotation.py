"""Rotation of identity keys: a statement that both keys sign, and chains of such statements.

The old key signs the statement. The new key signs the terms inside this statement. So nobody can give a
party's name to a key that the party does not hold. A study keeps the keys that it started with. A chain of
rotations leads from a pinned key to the key in use, and never back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpdpca_protocol.errors import AuthenticationError, ConflictError, MessageError
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.fields import read_time
from dpdpca_protocol.wire.signing import (
    FORMAT,
    Identity,
    IdentityKey,
    Statement,
    check_members,
    domain_tag,
    hex_bytes,
    sealing_key_bytes,
    sign_statement,
    verify_statement,
)

KIND = "rotation"
HOLDERS = ("owner", "proxy", "user")
MOST_ROTATIONS = 256
"""The most rotations of one party.

Further rotations are refused, so that nobody has to check an unlimited number of signatures.
"""
_ACCEPTANCE = "rotation-acceptance"
_MAX_VERSION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rotation:
    """One link: `identity` replaces `previous` (a raw Ed25519 key).

    Attributes:
        version: rises with each rotation of a party.
        time: when the party made it, by its own clock.
    """

    role: str
    version: int
    previous: bytes
    identity: Identity
    time: str

    def sign(self, old: IdentityKey, new: IdentityKey) -> Statement:
        terms = self._terms()
        acceptance = new.ed25519.sign(domain_tag(_ACCEPTANCE) + canonical_json(terms))
        return sign_statement(KIND, {**terms, "acceptance": acceptance.hex()}, old)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        """Raises MessageError for a wrong shape, AuthenticationError if the new key has not signed."""
        body = statement.body
        check_members(body, "acceptance", "ed25519", "previous", "role", "time", "version", "x25519")
        if body["role"] not in HOLDERS:
            raise MessageError("malformed", "the role must be owner, proxy or user")
        if type(body["version"]) is not int or not 1 <= body["version"] <= _MAX_VERSION:
            raise MessageError("malformed", "the version must be a whole number of 1 or more")
        read_time(body["time"], "time")
        previous = hex_bytes(body["previous"], 32, "previous")
        identity = Identity(
            hex_bytes(body["ed25519"], 32, "ed25519"), sealing_key_bytes(body["x25519"], "x25519")
        )
        if previous != statement.signer or identity.ed25519 == previous:
            raise MessageError("malformed", "a rotation must lead from its signer's key to another key")
        rotation = cls(body["role"], body["version"], previous, identity, body["time"])
        acceptance = hex_bytes(body["acceptance"], 64, "acceptance")
        try:
            Ed25519PublicKey.from_public_bytes(identity.ed25519).verify(
                acceptance, domain_tag(_ACCEPTANCE) + canonical_json(rotation._terms())
            )
        except (InvalidSignature, ValueError) as error:
            raise AuthenticationError(
                "bad-signature", "the new key has not signed the rotation statement"
            ) from error
        return rotation

    def _terms(self) -> dict[str, Any]:
        return {
            "ed25519": self.identity.ed25519.hex(),
            "format": FORMAT,
            "previous": self.previous.hex(),
            "role": self.role,
            "time": self.time,
            "version": self.version,
            "x25519": self.identity.x25519.hex(),
        }


def verify_rotation(untrusted: bytes) -> tuple[Rotation, Statement]:
    """The rotation in a statement, both signatures verified; raises like `Rotation.parse`."""
    statement = verify_statement(KIND, untrusted)
    return Rotation.parse(statement), statement


def follow_rotations(untrusted: Sequence[bytes], role: str, pinned: bytes) -> tuple[Rotation, ...]:
    """The links that lead on from the key `pinned`, in order; empty if no rotation follows it.

    Only statements that keys of this chain signed are considered. Statements of other keys have no effect.

    Args:
        untrusted: rotation statements of any parties, in any order, as a proxy sends them.
        role: the role of the party.
        pinned: raw Ed25519 key.

    Raises:
        MessageError, AuthenticationError: a link of the chain is invalid, a key has two successors, the
            versions do not rise, the chain is circular, or it has more than `MOST_ROTATIONS` links.
    """
    by_signer: dict[object, list[bytes]] = {}
    for encoded in untrusted:
        by_signer.setdefault(parse_canonical(encoded).get("signer"), []).append(encoded)
    chain: list[Rotation] = []
    seen, key = {pinned}, pinned
    while (following := _successor(by_signer.get(key.hex(), []), role)) is not None:
        if following.identity.ed25519 in seen:
            raise _broken("the chain returns to a key that was replaced before")
        if chain and following.version <= chain[-1].version:
            raise _broken("the versions do not rise")
        if len(chain) == MOST_ROTATIONS:
            raise _broken(f"the chain has more than {MOST_ROTATIONS} links")
        chain.append(following)
        key = following.identity.ed25519
        seen.add(key)
    return tuple(chain)


def _successor(untrusted: Sequence[bytes], role: str) -> Rotation | None:
    """The only rotation among the statements of one signer."""
    found = {rotation for rotation, _ in map(verify_rotation, untrusted) if rotation.role == role}
    if len(found) > 1:
        raise _broken("one key was replaced by two different keys")
    return found.pop() if found else None


def _broken(why: str) -> MessageError:
    return MessageError(
        "rotation-broken", f"the chain of key rotations is invalid: {why}", "ask the proxy's operator"
    )


def too_many_rotations() -> ConflictError:
    """The error for a party that has made `MOST_ROTATIONS` rotations."""
    return ConflictError(
        "too-many-rotations",
        f"this party has rotated its keys {MOST_ROTATIONS} times, which is the limit",
        "create a new home with new keys and enrol again; an owner's new home has a new ledger: lower its "
        "budget by what the old ledger shows",
    )
