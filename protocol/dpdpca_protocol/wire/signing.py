"""Identity keys and signed statements.

A statement is the canonical JSON object {body, kind, signature, signer}. The Ed25519 signature covers the
canonical bytes of the body and a domain tag, which consists of the kind and the body's format number. The
statement's digest is the SHA-256 of the body bytes. Verification raises an error and never returns a flag.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpdpca_protocol.errors import AuthenticationError, CryptographicError, MessageError
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.kem import HPKE, KEM_KEY_BYTES, KemKey, public_pair

FORMAT = 3
"""The number of the format of messages, which a breaking change raises. Every domain tag contains it."""
LASTING_FORMAT = 2
"""The number of the format of cards, enrolments and rotations. They are kept in homes and pins and outlive
studies, so it rises only when they themselves change."""
LASTING_FORMATS = (1, LASTING_FORMAT)
FILE_FORMAT = 1
"""The number of the format of a home's own files: keys, pins and ledger outlive changes of messages."""
OWNER = "owner"
"""The role whose keys also serve for blinding."""
_USER = "user"
_MOST_FORMAT = 9999
_PROGRAMS = {1: "an unreleased version", 2: "dpdpca 0.2", 3: "dpdpca 1.0"}
_SAME_VERSION = "use versions with the same message format"
_PEM_BLOCK = re.compile(rb"-----BEGIN [A-Z ]+-----.+?-----END [A-Z ]+-----\n?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Identity:
    """A party's public keys.

    Attributes:
        ed25519: the raw 32-byte key that verifies the party's signatures.
        kem: the key to which others seal messages. None for a data user, because nothing is sealed to it, and
            for keys from an earlier version.
        x25519: an owner's raw 32-byte key for blinding, which has no other use. None for other parties, and
            for keys from an earlier version.
    """

    ed25519: bytes
    kem: bytes | None = None
    x25519: bytes | None = None

    @property
    def party_id(self) -> PartyId:
        return PartyId.of(self.ed25519)

    @property
    def sealing_key(self) -> bytes:
        """The key `kem`. Raises CryptographicError `unfit-sealing-key` if there is none."""
        if self.kem is None:
            raise _no_kem()
        return self.kem

    @property
    def blinding_key(self) -> bytes:
        """The key `x25519`. Raises CryptographicError `unfit-blinding-key` if there is none."""
        if self.x25519 is None:
            raise _no_x25519()
        return self.x25519


@dataclass(frozen=True, slots=True)
class IdentityKey:
    """A party's private keys. Its repr shows nothing."""

    ed25519: Ed25519PrivateKey
    kem: KemKey | None = None
    x25519: X25519PrivateKey | None = None

    def __repr__(self) -> str:
        return "IdentityKey(…)"

    @classmethod
    def generate(cls, role: str = OWNER) -> Self:
        """New keys, those that a party in this role needs."""
        return cls(
            Ed25519PrivateKey.generate(),
            None if role == _USER else KemKey.generate(),
            X25519PrivateKey.generate() if role == OWNER else None,
        )

    def serves(self, role: str) -> bool:
        """Whether a party in this role has all keys that it needs."""
        return (self.kem is not None or role == _USER) and (self.x25519 is not None or role != OWNER)

    @property
    def public(self) -> Identity:
        ed25519 = self.ed25519.public_key().public_bytes_raw()
        x25519 = self.x25519.public_key().public_bytes_raw() if self.x25519 else None
        return Identity(ed25519, self.kem.public if self.kem else None, x25519)

    @property
    def opening_key(self) -> KemKey:
        """The key `kem`. Raises CryptographicError `unfit-sealing-key` if there is none."""
        if self.kem is None:
            raise _no_kem()
        return self.kem

    @property
    def blinding_key(self) -> X25519PrivateKey:
        """The key `x25519`. Raises CryptographicError `unfit-blinding-key` if there is none."""
        if self.x25519 is None:
            raise _no_x25519()
        return self.x25519

    def to_pem(self, passphrase: bytes | None = None) -> bytes:
        """PKCS#8 PEM blocks: the signing key, the ML-KEM seed and the X25519 key of `kem`, then `x25519`.

        The blocks are encrypted if a passphrase is given.
        """
        encryption: serialization.KeySerializationEncryption = (
            serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
        )
        return b"".join(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
            for key in (self.ed25519, *(self.kem.parts if self.kem else ()), self.x25519)
            if key is not None
        )

    @classmethod
    def from_pem(cls, pem: bytes, passphrase: bytes | None = None) -> Self:
        """Reads the keys in a file that `to_pem` wrote.

        A file from an earlier version holds the signing key and an X25519 key. Nothing is sealed to such an
        X25519 key any more, so the returned key has no `kem`.

        Raises:
            AuthenticationError: the passphrase is wrong or missing.
            MessageError: the file does not hold the keys of a party.
        """
        blocks = _PEM_BLOCK.findall(pem)
        if not blocks or len(blocks) != pem.count(b"-----BEGIN"):
            raise MessageError("malformed", "the key file does not hold whole PEM keys")
        try:
            keys = [serialization.load_pem_private_key(block, passphrase) for block in blocks]
        except (TypeError, ValueError) as error:
            raise AuthenticationError(
                "wrong-passphrase",
                "the key file cannot be decrypted",
                "give the passphrase with which the file was made",
            ) from error
        match keys:
            case [Ed25519PrivateKey() as signing] | [Ed25519PrivateKey() as signing, X25519PrivateKey()]:
                return cls(signing)
            case [Ed25519PrivateKey() as signing, ml_kem, second, *rest]:
                kem = KemKey.of((ml_kem, second))
                match kem, rest:
                    case KemKey(), []:
                        return cls(signing, kem)
                    case KemKey(), [X25519PrivateKey() as x25519]:
                        return cls(signing, kem, x25519)
        raise MessageError("malformed", "the key file does not hold the keys of a party")


@dataclass(frozen=True, slots=True)
class Statement:
    """A verified statement: its signer, its content, and the bytes that prove it."""

    kind: str
    body: Mapping[str, Any]
    signer: bytes
    encoded: bytes

    @property
    def body_bytes(self) -> bytes:
        return canonical_json(self.body)

    @property
    def digest(self) -> Digest:
        return Digest.of(self.body_bytes)


def domain_tag(kind: str, body: Mapping[str, Any]) -> bytes:
    """What is signed before the canonical bytes of `body`."""
    stated = body.get("format")
    number = stated if type(stated) is int and 1 <= stated <= _MOST_FORMAT else FORMAT
    return f"dpdpca/{kind}/v{number}\x00".encode()


def sign_statement(kind: str, body: Mapping[str, Any], key: IdentityKey) -> Statement:
    """Signs `body` as a statement of this kind."""
    payload = canonical_json(body)
    signer = key.public.ed25519
    envelope = {
        "body": body,
        "kind": kind,
        "signature": key.ed25519.sign(domain_tag(kind, body) + payload).hex(),
        "signer": signer.hex(),
    }
    return Statement(kind, dict(body), signer, canonical_json(envelope))


def verify_statement(kind: str, untrusted: bytes, signer: bytes | None = None) -> Statement:
    """The statement that `untrusted` encodes, if its signature holds.

    Args:
        kind: what the statement must be.
        untrusted: bytes as received.
        signer: the raw Ed25519 key that must have signed. If it is None, any signer is
            accepted, and the caller must check the signer.

    Raises:
        MessageError: the bytes are not a canonical statement of this kind.
        AuthenticationError: the signature is not valid, or another key has signed the statement.
    """
    envelope = parse_canonical(untrusted)
    if set(envelope) != {"body", "kind", "signature", "signer"} or not isinstance(envelope["body"], dict):
        raise MessageError("malformed", "a statement must have the members body, kind, signature and signer")
    if envelope["kind"] != kind:
        raise MessageError("malformed", f"this must be a {kind} statement, but it is of another kind")
    claimed = hex_bytes(envelope["signer"], 32, "signer")
    signature = hex_bytes(envelope["signature"], 64, "signature")
    if signer is not None and claimed != signer:
        raise AuthenticationError(
            "bad-signature",
            f"the {kind} statement is signed by {PartyId.of(claimed).hex()[:16]}…,"
            f" not by {PartyId.of(signer).hex()[:16]}…",
            "compare key fingerprints with the other party",
        )
    # In canonical form the body is between members of known length.
    rest = len(f',"kind":"{kind}","signature":"{signature.hex()}","signer":"{claimed.hex()}"}}')
    payload = memoryview(untrusted)[len('{"body":') : -rest]
    signed = b"".join((domain_tag(kind, envelope["body"]), payload))
    try:
        Ed25519PublicKey.from_public_bytes(claimed).verify(signature, signed)
    except (InvalidSignature, ValueError) as error:
        raise AuthenticationError(
            "bad-signature", f"the signature of the {kind} statement is invalid"
        ) from error
    return Statement(kind, envelope["body"], claimed, untrusted)


def check_members(
    body: Mapping[str, Any],
    *names: str,
    optional: Collection[str] = (),
    formats: Collection[int] = (FORMAT,),
) -> None:
    """Raises MessageError unless `body` has these members, a known `format`, and no others but `optional`."""
    if type(stated := body.get("format")) is int and stated not in formats:
        if stated == FORMAT:
            raise MessageError("malformed", f"this has format {stated}, but its kind has {max(formats)}")
        raise MessageError("malformed", f"this has format {stated}{both_programs(stated)}", _SAME_VERSION)
    if (
        set(body) - set(optional) != {"format", *names}
        or type(body["format"]) is not int
        or body["format"] not in formats
    ):
        raise MessageError(
            "malformed", f"the statement must have exactly the members format, {', '.join(names)}"
        )


def both_programs(stated: object) -> str:
    """The program with the message format `stated`, and this one: the rest of a sentence."""
    theirs = _PROGRAMS.get(stated, "another version") if isinstance(stated, int) else "another version"
    return f" ({theirs}){this_program()}"


def this_program() -> str:
    """This program with its message format: the rest of a sentence about another one."""
    return f", but this is dpdpca {version('dpdpca')}, which takes messages of format {FORMAT}"


def naming_head(body: dict[str, Any], head: Digest | None) -> dict[str, Any]:
    """The body with the head of its signer's log or ledger, if there is one."""
    return body if head is None else body | {"log": head.hex()}


def named_head(body: Mapping[str, Any]) -> Digest | None:
    """The log head that a body names, or None. Bodies of earlier versions name no head."""
    return Digest.parse(body["log"]) if "log" in body else None


def sealing_key_bytes(untrusted: Any, what: str) -> bytes:
    """Reads `untrusted` as a public key `kem` to which messages can be sealed.

    Raises:
        MessageError: the key is not 1,216 bytes of lower-case hex.
        CryptographicError: `unfit-sealing-key`, a coefficient of the ML-KEM part is out of range, or the
            X25519 part has low order and would protect nothing.
    """
    raw = hex_bytes(untrusted, KEM_KEY_BYTES, what)
    try:
        HPKE.encrypt(b"", public_pair(raw))
    except ValueError as error:
        raise CryptographicError(
            "unfit-sealing-key", f"nothing can be sealed to {what}", "make a new key"
        ) from error
    return raw


def stated_keys(role: str, identity: Identity) -> dict[str, str]:
    """The members of a card, an enrolment or a rotation that state a party's keys.

    Raises:
        CryptographicError: the role needs a key that these keys lack, because they are of an earlier version.
    """
    stated = {"ed25519": identity.ed25519.hex()}
    if role != _USER:
        stated["kem"] = identity.sealing_key.hex()
    if role == OWNER:
        stated["x25519"] = identity.blinding_key.hex()
    return stated


def key_members(role: object, body: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the members that state a party's keys in a received card, enrolment or rotation."""
    if body.get("format") == 1:
        return "ed25519", "x25519"
    if role == OWNER:
        return "ed25519", "kem", "x25519"
    return ("ed25519",) if role == _USER else ("ed25519", "kem")


def read_keys(body: Mapping[str, Any]) -> Identity:
    """Reads a party's keys from a body that has the members `key_members`.

    The X25519 key of a body of format 1 served for sealing: its length is checked, and it is dropped. Raises
    the errors of `hex_bytes` and `sealing_key_bytes`.
    """
    ed25519 = hex_bytes(body["ed25519"], 32, "ed25519")
    x25519 = hex_bytes(body["x25519"], 32, "x25519") if "x25519" in body else None
    if "kem" in body:
        return Identity(ed25519, sealing_key_bytes(body["kem"], "kem"), x25519)
    return Identity(ed25519)


def _no_kem() -> CryptographicError:
    return CryptographicError(
        "unfit-sealing-key",
        "the keys of this party are of an earlier version, and nothing can be sealed to them",
        "their holder must make new keys with: dpdpca owner rotate, or: dpdpca proxy rotate",
    )


def _no_x25519() -> CryptographicError:
    return CryptographicError(
        "unfit-blinding-key",
        "the keys of this owner are of an earlier version, and have none for blinding",
        "this owner must make new keys with: dpdpca owner rotate",
    )


def hex_bytes(untrusted: Any, length: int, what: str) -> bytes:
    """`untrusted` as exactly `length` bytes of lower-case hex, or MessageError."""
    if isinstance(untrusted, str) and len(untrusted) == 2 * length:
        try:
            value = bytes.fromhex(untrusted)
        except ValueError:
            value = b""
        if value.hex() == untrusted:
            return value
    raise MessageError("malformed", f"{what} must be {2 * length} lower-case hex digits")
