"""The parties and the key of a study, as a manifest names them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.paillier.keys import MOST_BITS, PublicKey
from dpdpca_protocol.paillier.proof import KeyProof
from dpdpca_protocol.wire.fields import check_members, read_list, read_text, read_url, read_wide_hex, refused
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.kem import KEM_KEY_BYTES
from dpdpca_protocol.wire.schemas import HEX_PATTERN, hex_schema, object_schema
from dpdpca_protocol.wire.signing import hex_bytes, sealing_key_bytes

_NAME = 200
_MAX_ROOTS = 64
_NAME_SCHEMA = {"type": "string", "minLength": 1, "maxLength": _NAME}
_KEY32_SCHEMA = hex_schema(32)
_WIDE_SCHEMA = {"type": "string", "pattern": HEX_PATTERN, "maxLength": MOST_BITS // 4}

PARTICIPANT_SCHEMA = object_schema(
    {"name": _NAME_SCHEMA, "ed25519": _KEY32_SCHEMA}, {"x25519": _KEY32_SCHEMA}
)
PARTY_SCHEMA = object_schema({"name": _NAME_SCHEMA, "ed25519": _KEY32_SCHEMA})
PROXY_SCHEMA = object_schema(
    {
        "name": _NAME_SCHEMA,
        "url": {"type": "string", "format": "uri"},
        "ed25519": _KEY32_SCHEMA,
        "kem": hex_schema(KEM_KEY_BYTES),
    }
)
KEY_SCHEMA = {
    "oneOf": [
        object_schema(
            {
                "modulus": _WIDE_SCHEMA,
                "proof": {"type": "array", "maxItems": _MAX_ROOTS, "items": _WIDE_SCHEMA},
            }
        ),
        object_schema({"kem": hex_schema(KEM_KEY_BYTES)}),
    ]
}


@dataclass(frozen=True, slots=True)
class Participant:
    """An owner that a study names: a name for people, and raw keys.

    Attributes:
        x25519: its key for blinding, in a blinded study; otherwise None.
    """

    name: str
    ed25519: bytes
    x25519: bytes | None = None

    @classmethod
    def parse(cls, untrusted: Any, where: str) -> Self:
        check_members(untrusted, where, ("name", "ed25519"), ("x25519",))
        return cls(
            read_text(untrusted["name"], f"{where}.name", _NAME),
            hex_bytes(untrusted["ed25519"], 32, f"{where}.ed25519"),
            hex_bytes(untrusted["x25519"], 32, f"{where}.x25519") if "x25519" in untrusted else None,
        )

    def to_body(self) -> dict[str, Any]:
        body = {"name": self.name, "ed25519": self.ed25519.hex()}
        return body if self.x25519 is None else body | {"x25519": self.x25519.hex()}


@dataclass(frozen=True, slots=True)
class Party:
    """The data user: name and raw Ed25519 key."""

    name: str
    ed25519: bytes

    @classmethod
    def parse(cls, untrusted: Any, where: str) -> Self:
        check_members(untrusted, where, ("name", "ed25519"))
        return cls(
            read_text(untrusted["name"], f"{where}.name", _NAME),
            hex_bytes(untrusted["ed25519"], 32, f"{where}.ed25519"),
        )

    def to_body(self) -> dict[str, Any]:
        return {"name": self.name, "ed25519": self.ed25519.hex()}


@dataclass(frozen=True, slots=True)
class ProxyParty:
    """The proxy: name, address, raw Ed25519 key, and the key `kem` to which owners seal their shares."""

    name: str
    url: str
    ed25519: bytes
    kem: bytes

    @classmethod
    def parse(cls, untrusted: Any, where: str) -> Self:
        check_members(untrusted, where, ("name", "url", "ed25519", "kem"))
        return cls(
            read_text(untrusted["name"], f"{where}.name", _NAME),
            read_url(untrusted["url"], f"{where}.url"),
            hex_bytes(untrusted["ed25519"], 32, f"{where}.ed25519"),
            sealing_key_bytes(untrusted["kem"], f"{where}.kem"),
        )

    def to_body(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "url": self.url,
            "ed25519": self.ed25519.hex(),
            "kem": self.kem.hex(),
        }


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """The study's Paillier modulus n and the roots that prove gcd(n, φ(n)) = 1.

    The proof is not checked here.
    """

    modulus: int
    proof: tuple[int, ...]

    @property
    def bits(self) -> int:
        return self.modulus.bit_length()

    @property
    def digest(self) -> Digest:
        """The digest by which a key is recognised that another study used."""
        return Digest.of(self.modulus.to_bytes((self.bits + 7) // 8, "big"))

    @classmethod
    def of(cls, key: PublicKey, proof: KeyProof) -> Self:
        return cls(int(key.modulus), tuple(int(root) for root in proof.roots))

    @classmethod
    def parse(cls, untrusted: Any, where: str) -> Self:
        check_members(untrusted, where, ("modulus", "proof"))
        digits = MOST_BITS // 4
        modulus = read_wide_hex(untrusted["modulus"], f"{where}.modulus", digits)
        length = len(untrusted["modulus"])
        bits = modulus.bit_length()
        if bits != 4 * length:
            refused(f"{where}.modulus is not a whole number of bytes long")
        roots = read_list(untrusted["proof"], f"{where}.proof", _MAX_ROOTS)
        proof = tuple(read_wide_hex(root, f"{where}.proof[{i}]", digits) for i, root in enumerate(roots))
        if any(len(root) != length for root in roots):
            raise MessageError("malformed", f"{where}.proof has a root of another length than the modulus")
        return cls(modulus, proof)

    def to_body(self) -> dict[str, Any]:
        digits = self.bits // 4
        return {
            "modulus": f"{self.modulus:0{digits}x}",
            "proof": [f"{root:0{digits}x}" for root in self.proof],
        }


@dataclass(frozen=True, slots=True)
class PadsKeyTerms:
    """The key of a study under pads, to which owners seal the keys of their pads.

    Attributes:
        kem: the public key as it is sent.
    """

    kem: bytes

    @property
    def bits(self) -> int:
        """0: there is no modulus."""
        return 0

    @property
    def digest(self) -> Digest:
        """The digest by which a key is recognised that another study used."""
        return Digest.of(self.kem)

    @classmethod
    def parse(cls, untrusted: Any, where: str) -> Self:
        """Raises CryptographicError if nothing can be sealed to the key."""
        check_members(untrusted, where, ("kem",))
        return cls(sealing_key_bytes(untrusted["kem"], f"{where}.kem"))

    def to_body(self) -> dict[str, Any]:
        return {"kem": self.kem.hex()}


StudyKey = KeyTerms | PadsKeyTerms


def read_key(untrusted: Any, where: str) -> StudyKey:
    """A study's key of either suite. The rules of the manifest check that it fits the suite."""
    if isinstance(untrusted, Mapping) and "kem" in untrusted:
        return PadsKeyTerms.parse(untrusted, where)
    return KeyTerms.parse(untrusted, where)
