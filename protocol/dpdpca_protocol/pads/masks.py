"""Masks between the owners of a blinded study: random integers that vanish in the sum over all owners.

Each two owners share a key that nobody else can compute. Both make the same masks from it. The owner with the
lower id adds them to its values, and the other subtracts them. Any smaller set of the owners' shares stays
hidden, even from those who know all pads.
"""

from collections.abc import Iterable, Mapping

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.pads.streams import KEY_BYTES, PadKey
from dpdpca_protocol.wire.identifiers import PartyId, StudyId

_INFO = b"dpdpca/blinding/v2"
_PRIME = 2**255 - 19
_PROBE = X25519PrivateKey.from_private_bytes(bytes(KEY_BYTES))


def check_blinding_key(untrusted: bytes) -> None:
    """Refuses a public X25519 key with which two owners would share nothing secret.

    Raises:
        CryptographicError: `unfit-blinding-key`, the key has low order, or it is not the only encoding of its
            point.
    """
    _check_encoding(untrusted)
    _exchange(_PROBE, untrusted)


def check_different(keys: Iterable[bytes]) -> None:
    """Raises CryptographicError `unfit-blinding-key` if two of the keys are equal."""
    keys = list(keys)
    if len(set(keys)) < len(keys):
        raise _unfit("two owners have the same blinding key")


def pair_keys(
    own: X25519PrivateKey, owner: PartyId, others: Mapping[PartyId, bytes], study: StudyId
) -> tuple[PadKey, ...]:
    """The keys that an owner shares with each other owner of a study, for `apply_pads`.

    The owner with the lower id adds the masks, and the other subtracts them. Use the keys of a study for one
    list of values only: whoever has two lists with the same masks, and their pads, sees the exact differences
    of their values.

    Args:
        own: this owner's private key.
        owner: its id.
        others: the ids of all other owners of the study, with their public X25519 keys. Each must be known to
            be genuine: whoever made one of them knows that owner's masks.
        study: the study. Keys of different studies are independent.

    Raises:
        CryptographicError: `unfit-blinding-key`, a key has low order, or two owners have the same key.

    Guarantee: docs/claims.md, C14. Source: docs/spec.md, section 6. Tested: tests/unit/test_masks.py.
    """
    mine = own.public_key().public_bytes_raw()
    check_different([mine, *others.values()])
    made = []
    for other, theirs in sorted(others.items()):
        _check_encoding(theirs)
        adds = owner < other
        ids, publics = (owner + other, mine + theirs) if adds else (other + owner, theirs + mine)
        shared_secret = _exchange(own, theirs)
        derived = HKDF(SHA256(), KEY_BYTES, salt=bytes(study), info=_INFO + ids + publics)
        made.append(PadKey(derived.derive(shared_secret), adds))
    return tuple(made)


def _check_encoding(untrusted: bytes) -> None:
    if int.from_bytes(untrusted, "little") >= _PRIME:
        raise _unfit("a blinding key is not the only encoding of its point")


def _exchange(own: X25519PrivateKey, theirs: bytes) -> bytes:
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError as error:
        raise _unfit("a blinding key has low order") from error


def _unfit(problem: str) -> CryptographicError:
    return CryptographicError(
        "unfit-blinding-key", problem, "the owners concerned must make new keys with: dpdpca owner rotate"
    )
