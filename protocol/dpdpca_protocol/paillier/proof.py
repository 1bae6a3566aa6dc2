"""Checks of a modulus, and the key proof, which no test of n alone can replace.

The count proof of the masked release and the hiding of shares need gcd(n, φ(n)) = 1, because then x → xⁿ
permutes Z*_n. The key's maker shows n-th roots of hash-derived values. If a prime r ≥ 2²⁰ divided gcd(n,
φ(n)), at most a fraction 1/r of all values would have such a root (Goldberg, Reyzin, Sagga, Baldimtsi, ePrint
2018/057).
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import gmpy2
from gmpy2 import mpz

from dpdpca_protocol.errors import CryptographicError, UsageError
from dpdpca_protocol.paillier.bases import hash_to_residue
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules, PublicKey, SecretKey
from dpdpca_protocol.paillier.published_moduli import PUBLISHED_MODULI
from dpdpca_protocol.wire.identifiers import Digest

ROOT_COUNT = 8
"""The roots in a proof: soundness 2⁻¹²⁸ if primes below 2¹⁶ are excluded, 2⁻¹⁶⁰ if primes below 2²⁰ are."""
_PROOF_TAG = b"dpdpca/key-proof/v1"
_IDENTITY_BYTES = 32
_TRIAL_LIMIT = 1 << 20
_PRIME_ROUNDS = 25
_FERMAT_ROUNDS = 110


@dataclass(frozen=True, slots=True)
class KeyProof:
    """The n-th roots mod n of values that are hashes of n and of the identity of the key's owner."""

    roots: tuple[mpz, ...]


def prove_key(secret: SecretKey, identity: bytes) -> KeyProof:
    """Proves that gcd(n, φ(n)) = 1, for the data user that will publish n.

    Args:
        secret: the key.
        identity: the user's raw Ed25519 public key, 32 bytes.
    """
    values = _challenges(secret.public, identity)
    return KeyProof(tuple(secret.residue_root(value) for value in values))


def check_public_key(
    modulus: int,
    proof: KeyProof,
    identity: bytes,
    *,
    bits: int | None = None,
    known_moduli: Collection[Digest] = (),
    rules: KeyRules = PRODUCT_KEYS,
) -> PublicKey:
    """The public key of a modulus that passes all checks.

    Owner, proxy and user run this check before anything else.

    Args:
        modulus: n, untrusted.
        proof: untrusted.
        identity: the raw Ed25519 key of the data user that signed the manifest.
        bits: the exact agreed length, or None for any length that `rules` allow.
        known_moduli: SHA-256 of n, big-endian, for every n that this party has seen in another study.
        rules: which lengths are accepted.

    Raises:
        CryptographicError: `unfit-modulus`, with the first reason found.

    Guarantee: n is odd, has the right length, has no prime factor below 2²⁰, is not a prime or a perfect
        power, and gcd(n, φ(n)) = 1 except with probability 2⁻¹²⁸. A factor of 21 bits or more is not
        excluded.
    """
    length = modulus.bit_length()
    if modulus <= 0 or not rules.allow(length) or bits not in (None, length):
        wanted = str(bits or rules)
        raise _unfit(f"the modulus has {length} bits instead of {wanted}")
    public = PublicKey(mpz(modulus))
    _check_factors(public.modulus)
    digest = Digest.of(public.encode())
    if digest.hex() in PUBLISHED_MODULI:
        raise _unfit("the modulus is a test key whose factors are public")
    if digest in known_moduli:
        raise _unfit("the modulus was used in another study: each study needs its own key")
    _check_proof(public, proof, identity)
    return public


def _check_factors(modulus: mpz) -> None:
    if gmpy2.is_even(modulus):
        raise _unfit("the modulus is even")
    if gmpy2.gcd(modulus, _small_prime_product()) != 1:
        raise _unfit("the modulus has a prime factor below 2²⁰")
    if gmpy2.is_prime(modulus, _PRIME_ROUNDS):
        raise _unfit("the modulus is a prime")
    if gmpy2.is_power(modulus):
        raise _unfit("the modulus is a perfect power")
    root = gmpy2.isqrt(modulus)
    for step in range(1, _FERMAT_ROUNDS + 1):
        if gmpy2.is_square((root + step) ** 2 - modulus):
            raise _unfit("the factors of the modulus are too close together")


def _check_proof(public: PublicKey, proof: KeyProof, identity: bytes) -> None:
    modulus = public.modulus
    if len(proof.roots) != ROOT_COUNT:
        raise _unfit(f"the proof must have {ROOT_COUNT} roots, not {len(proof.roots)}")
    if not all(0 < root < modulus for root in proof.roots):
        raise _unfit("a root of the proof is not between 0 and the modulus")
    for root, value in zip(proof.roots, _challenges(public, identity), strict=True):
        if gmpy2.powmod(root, modulus, modulus) != value:
            raise _unfit("the proof that gcd(n, φ(n)) = 1 is invalid for this modulus and identity")


def _challenges(public: PublicKey, identity: bytes) -> list[mpz]:
    """The first ROOT_COUNT units among SHAKE-256(tag ‖ n ‖ identity ‖ counter) mod n."""
    if len(identity) != _IDENTITY_BYTES:
        raise UsageError(
            "wrong-length", f"an identity key must have {_IDENTITY_BYTES} bytes, not {len(identity)}"
        )
    tag = _PROOF_TAG + public.encode() + identity
    values: list[mpz] = []
    counter = 0
    while len(values) < ROOT_COUNT:
        value = hash_to_residue(tag, public.modulus, public.modulus_bytes, counter)
        if gmpy2.gcd(value, public.modulus) == 1:
            values.append(value)
        counter += 1
    return values


@lru_cache(maxsize=1)
def _small_prime_product() -> mpz:
    return gmpy2.primorial(_TRIAL_LIMIT)


def _unfit(reason: str) -> CryptographicError:
    return CryptographicError(
        "unfit-modulus", reason, "do not take part; ask the data user for a study with a new key"
    )
