"""Rotation of identity keys: a statement that both keys sign, and chains of such statements.

The old key signs the statement. The new key signs the terms inside this statement. So nobody can give a
party's name to a key that the party does not hold. A study keeps the keys that it started with. A chain of
rotations leads from a pinned key to the key in use, and never back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpdpca_protocol.errors import AuthenticationError, ConflictError, MessageError
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.fields import read_time
from dpdpca_protocol.wire.signing import (
    LASTING_FORMAT,
    LASTING_FORMATS,
    Identity,
    IdentityKey,
    Statement,
    check_members,
    domain_tag,
    hex_bytes,
    key_members,
    read_keys,
    sign_statement,
    stated_keys,
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
        terms = {
            **stated_keys(self.role, self.identity),
            "format": LASTING_FORMAT,
            "previous": self.previous.hex(),
            "role": self.role,
            "time": self.time,
            "version": self.version,
        }
        acceptance = new.ed25519.sign(_accepted(terms))
        return sign_statement(KIND, {**terms, "acceptance": acceptance.hex()}, old)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        """Raises MessageError for a wrong shape, AuthenticationError if the new key has not signed."""
        body = statement.body
        names = ("acceptance", "previous", "role", "time", "version")
        check_members(body, *names, *key_members(body.get("role"), body), formats=LASTING_FORMATS)
        if body["role"] not in HOLDERS:
            raise MessageError("malformed", "the role must be owner, proxy or user")
        if type(body["version"]) is not int or not 1 <= body["version"] <= _MAX_VERSION:
            raise MessageError("malformed", "the version must be a whole number of 1 or more")
        read_time(body["time"], "time")
        previous = hex_bytes(body["previous"], 32, "previous")
        identity = read_keys(body)
        if previous != statement.signer or identity.ed25519 == previous:
            raise MessageError("malformed", "a rotation must lead from its signer's key to another key")
        acceptance = hex_bytes(body["acceptance"], 64, "acceptance")
        terms = {name: value for name, value in body.items() if name != "acceptance"}
        try:
            Ed25519PublicKey.from_public_bytes(identity.ed25519).verify(acceptance, _accepted(terms))
        except (InvalidSignature, ValueError) as error:
            raise AuthenticationError(
                "bad-signature", "the new key has not signed the rotation statement"
            ) from error
        return cls(body["role"], body["version"], previous, identity, body["time"])


def _accepted(terms: Mapping[str, Any]) -> bytes:
    """What the new key signs."""
    return domain_tag(_ACCEPTANCE, terms) + canonical_json(terms)


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
