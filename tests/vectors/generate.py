"""Writes the vectors of this folder, and the list of moduli that nobody may use because they are here.

`python tests/vectors/generate.py` rewrites the files; they come out the same on every machine.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from gmpy2 import mpz

from dpdpca_protocol.layout.packing import pack
from dpdpca_protocol.pads.chunks import integers, share_chunk
from dpdpca_protocol.pads.keys import ShareKeys
from dpdpca_protocol.pads.masks import pair_keys
from dpdpca_protocol.pads.streams import apply_pads
from dpdpca_protocol.paillier.bases import Comb, derive_base
from dpdpca_protocol.paillier.cipher import add_plain, raw_encrypt
from dpdpca_protocol.paillier.keys import PublicKey, SecretKey, generate_secret_key
from dpdpca_protocol.paillier.proof import ROOT_COUNT, KeyProof, prove_key
from dpdpca_protocol.result.components import Components, EncodedSpace, Lifted
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.terms.feature_list import encode_features, reference_to
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import KeyTerms, PadsKeyTerms, Participant, Party, ProxyParty
from dpdpca_protocol.terms.sketch_matrix import SketchMatrix
from dpdpca_protocol.terms.terms import SuiteName
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.kem import PREVIEW_KEM
from dpdpca_user.planning.draft import complete_draft, suite_of_draft

FOLDER = Path(__file__).parent
PUBLISHED = FOLDER.parents[1] / "protocol/dpdpca_protocol/paillier/published_moduli.py"
BITS = 2048
HONEST_KEYS = 20
IDENTITY = hashlib.sha256(b"dpdpca vectors: identity of the data user").digest()
OTHER_IDENTITY = hashlib.sha256(b"dpdpca vectors: identity of somebody else").digest()
FEATURES = [{"name": name, "lower": 0, "upper": 100} for name in ("age", "height", "weight")]
CENTRED = [{"name": "age", "kind": "numeric", "lower": "0", "upper": "100", "centre": "50"}]
DRAFT: dict[str, Any] = {
    "title": "Vectors",
    "purpose": "To be held against other implementations.",
    "participants": "enrolled",
    "features": FEATURES,
    "clip_norm": "1.5",
    "epsilon": 1,
    "max_records": 5000,
    "closes_at": "2030-01-01T00:00:00Z",
}
PARTIES = (
    Party("Institute", IDENTITY),
    ProxyParty("Relay", "https://relay.example", hashlib.sha256(b"proxy").digest(), PREVIEW_KEM),
    [
        Participant(
            name,
            hashlib.sha256(name.encode()).digest(),
            X25519PrivateKey.from_private_bytes(hashlib.sha256(b"blinding " + name.encode()).digest())
            .public_key()
            .public_bytes_raw(),
        )
        for name in ("A", "B", "C")
    ],
)
CLIPPING = {"clip_share": "0.005", "clip_cap": "1.5"}
RELEASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("masked", {"release": "masked"}),
    ("joint", {"release": "joint"}),
    ("joint under paillier", {"release": "joint", "suite": "paillier"}),
    ("pairs", {"release": "pairs", "rho_share": "0.9", "pre_studies": ["ab" * 32]}),
    (
        "pre-study",
        {
            "release": "pre-study",
            "rho_share": "0.1",
            "blocks": {
                "norms": "0.2",
                "pair-norms": "0.3",
                "sum": "0.1",
                "octaves": "0.3",
                "far-pairs": "0.1",
            },
        },
    ),
    ("nonnegative", {"release": "masked", "nonnegative": True}),
    ("blinded", {"release": "joint", "blinding": "pairwise", "max_colluding": 1}),
    ("joint with what clipping did", {"release": "joint", "suite": "paillier", **CLIPPING}),
    ("pairs with what clipping did", {"release": "pairs", "blinding": "pairwise", **CLIPPING}),
)
MANY: dict[str, Any] = {
    "features": [{"name": f"1:{position}:A:G", "lower": 0, "upper": 2} for position in range(1, 21)],
    "of": "records",
    "fraction_bits": 11,
}
SKETCH = {"rows": 16, "seed": hashlib.sha256(b"dpdpca vectors: a sketch").hexdigest()}
LIFT = {
    "columns": 2,
    "matrix": [[((7 * i + 5 * j) % 13 - 6) << 10 for j in range(16)] for i in range(2)],
    "offset": [3 << 14, -(1 << 15)],
}
LOW_ORDER = (
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
)
"""Keys for blinding with which everybody shares the same."""
UNFIT = {"must_succeed": False, "bug": "UNFIT_MODULUS", "error": "unfit-modulus"}


class ScriptedRandomness:
    """A stream of SHAKE-256 that depends on a name alone. Lives in the tests, for vectors."""

    def __init__(self, name: str) -> None:
        self._name, self._drawn = name.encode(), 0

    def bytes(self, count: int) -> bytes:
        self._drawn += 1
        return hashlib.shake_256(self._name + b"/" + str(self._drawn).encode()).digest(count)

    def below(self, bound: int) -> int:
        width = (bound.bit_length() + 7) // 8 + 16
        return int.from_bytes(self.bytes(width), "big") % bound


def honest_key(index: int) -> SecretKey:
    return generate_secret_key(BITS, ScriptedRandomness(f"dpdpca vector key {index}"))


def prime_near(value: mpz, name: str) -> mpz:
    """A prime a little above value·(1 + a scripted 2⁻²⁰ at most)."""
    return gmpy2.next_prime(value + value * ScriptedRandomness(name).below(1 << 20) // (1 << 40))


def root_of_two(power: int, root: int) -> mpz:
    """⌈2^(power/root)⌉."""
    return gmpy2.iroot(mpz(1) << power, root)[0] + 1


def key_operation(name: str, modulus: int, proof: KeyProof | None = None, **members: Any) -> dict[str, Any]:
    public = PublicKey(mpz(modulus))
    return {
        "name": name,
        "party": ["owner", "proxy", "user"],
        "step": "check-public-key",
        "modulus": f"{int(modulus):0{2 * public.modulus_bytes}x}",
        "proof": []
        if proof is None
        else [f"{int(root):0{2 * public.modulus_bytes}x}" for root in proof.roots],
        "identity": IDENTITY.hex(),
        "seen": [],
        **members,
    }


def honest_keys(keys: list[SecretKey]) -> list[dict[str, Any]]:
    return [
        key_operation(f"honest key {i}", key.public.modulus, prove_key(key, IDENTITY), must_succeed=True)
        for i, key in enumerate(keys)
    ]


def key_zoo(first: SecretKey, second: SecretKey) -> Iterator[dict[str, Any]]:
    n = first.public.modulus
    proof = prove_key(first, IDENTITY)
    half = root_of_two(BITS - 1, 2)

    def bad(name: str, modulus: int, reason: str, roots: KeyProof | None = None, **members: Any) -> Any:
        return key_operation(name, modulus, roots, **{**UNFIT, "reason": reason, **members})

    for length in (2047, 3071):
        p = prime_near(root_of_two(length - 1, 2), f"a {length}")
        q = prime_near(root_of_two(length - 1, 2), f"b {length}")
        yield bad(f"{length} bits", p * q, f"has {length} bits instead of")
    yield bad("3072 bits where 2048 were agreed", n, "has 2048 bits instead of 3072", bits=3072)
    yield bad("even", 2 * prime_near(mpz(1) << BITS - 2, "even"), "is even")
    yield bad("a prime", prime_near(mpz(1) << BITS - 1, "prime"), "is a prime")
    yield bad("p squared, that is p = q", prime_near(half, "square") ** 2, "is a perfect power")
    yield bad("p cubed", prime_near(root_of_two(BITS - 1, 3), "cube") ** 3, "is a perfect power")
    yield bad(
        "a power of a 22-bit prime", gmpy2.next_prime(root_of_two(BITS - 1, 94)) ** 94, "is a perfect power"
    )
    yield bad("3 q", 3 * prime_near((mpz(1) << BITS - 1) // 3, "three"), "factor below 2²⁰")
    small = mpz(1)
    for index in range(8):
        small *= gmpy2.next_prime((1 << 15) + 4000 * index)
    yield bad(
        "eight 16-bit factors", small * prime_near((mpz(1) << BITS - 1) // small, "eight"), "factor below 2²⁰"
    )
    largest = gmpy2.prev_prime(1 << 20)
    yield bad(
        "a 20-bit factor", largest * prime_near((mpz(1) << BITS - 1) // largest, "twenty"), "factor below 2²⁰"
    )
    p = prime_near(half, "close")
    yield bad("close primes", p * gmpy2.next_prime(p + 1), "too close together")
    yield bad("a modulus of this file", n, "test key", proof, published=True)
    yield bad(
        "a modulus of a study before",
        n,
        "in another study",
        proof,
        seen=[Digest.of(first.public.encode()).hex()],
    )

    # q = k p + 1 is 16 bits longer than p
    p = prime_near(root_of_two(BITS - 1, 2) >> 8, "divides")
    factor = (1 << 16) + (1 << 10)
    while not gmpy2.is_prime(factor * p + 1):
        factor += 2
    yield bad(
        "p divides q − 1",
        p * (factor * p + 1),
        "is invalid for this modulus",
        forged_roots(p * (factor * p + 1)),
    )
    r = prime_near(root_of_two(BITS - 1, 3), "p squared q")
    modulus = r * r * prime_near((mpz(1) << BITS - 1) // (r * r), "q of p squared q")
    yield bad("p squared times q", modulus, "is invalid for this modulus", forged_roots(modulus))
    yield bad("no proof", n, "not 0")
    yield bad("a proof with a root too few", n, "not 7", KeyProof(proof.roots[1:]))
    yield bad(
        "the proof of another modulus", n, "is invalid for this modulus", cut(prove_key(second, IDENTITY), n)
    )
    yield bad(
        "the proof of another identity", n, "is invalid for this modulus", prove_key(first, OTHER_IDENTITY)
    )
    for name, root, reason in (
        ("one root altered", proof.roots[3] ^ 1, "is invalid for this modulus"),
        ("one root negated", n - proof.roots[3], "is invalid for this modulus"),
        ("a root of 0", mpz(0), "is not between"),
        ("a root not below n", n + proof.roots[3] % (2**BITS - n), "is not between"),
    ):
        yield bad(name, n, reason, KeyProof((*proof.roots[:3], root, *proof.roots[4:])))

    p21 = gmpy2.next_prime(1 << 20)
    limit = SecretKey(p21, prime_near((mpz(1) << BITS - 1) // p21, "limit"))
    yield key_operation(
        "a 21-bit factor passes: a known limit",
        limit.public.modulus,
        prove_key(limit, IDENTITY),
        must_succeed=True,
    )


def forged_roots(modulus: mpz) -> KeyProof:
    return KeyProof(
        tuple(mpz(ScriptedRandomness(f"forged {i}").below(int(modulus))) for i in range(ROOT_COUNT))
    )


def cut(proof: KeyProof, modulus: mpz) -> KeyProof:
    return KeyProof(tuple(root % modulus for root in proof.roots))


def key_encodings(first: SecretKey) -> list[dict[str, Any]]:
    encoded = first.public.encode().hex()
    written = {
        "a leading zero byte": "00" + encoded,
        "negative": "-" + encoded[1:],
        "decimal": str(first.public.modulus),
        "upper case": encoded.upper(),
        "a 0x prefix": "0x" + encoded[2:],
        "an odd number of digits": encoded[1:],
        "empty": "",
    }
    return [
        {
            "name": name,
            "party": ["owner", "proxy", "user"],
            "step": "parse-key",
            "modulus": text,
            "proof": [],
            "must_succeed": False,
            "bug": "NOT_CANONICAL",
        }
        for name, text in written.items()
    ]


def ciphertext_zoo(key: SecretKey) -> Iterator[dict[str, Any]]:
    public = key.public
    n, square, width = public.modulus, public.ciphertext_modulus, 2 * public.ciphertext_bytes
    scripted = ScriptedRandomness("dpdpca vector ciphertexts")
    # a shape of its own: the product's follows the amount of work and may be tuned
    comb = Comb(derive_base(public), square, public.bits // 2, 6, 4)
    edge = (n - 1) // 2

    def encrypt(plain: int) -> mpz:
        return add_plain(public, comb.random_power(scripted), plain)

    def wire(values: list[mpz]) -> list[str]:
        return [f"{int(value):0{width}x}" for value in values]

    yield {
        "name": "the base of encryption",
        "party": ["owner"],
        "step": "derive-base",
        "base": f"{int(derive_base(public)):0{width}x}",
        "must_succeed": True,
    }
    for plain in (0, 1, -1, 2**63, -(2**700) + 12345, edge, -edge):
        for how, ciphertext in (
            ("by the comb", encrypt(plain)),
            ("with a unit as randomizer", raw_encrypt(public, plain, scripted.below(int(n)))),
        ):
            yield {
                "name": f"decrypts, {int(plain).bit_length()} bits, {how}",
                "party": ["user"],
                "step": "decrypt",
                "ciphertexts": wire([ciphertext]),
                "plain": str(plain),
                "must_succeed": True,
            }

    good = [encrypt(value) for value in (3, -4, 5)]
    outside = {"0": 0, "1": 1, "n squared": square, "n squared plus 1": square + 1, "above": 2 * square}
    sharing = {"n": n, "2 n": 2 * n, "n (n − 1)": n * (n - 1), "p": key.p, "a multiple of q": key.q * 2**1500}
    cases = [
        ("units", good, None, None),
        ("one unit", good[:1], None, None),
        ("no ciphertext", [], None, None),
        ("−1, an odd but valid unit", [*good, square - 1], None, None),
        *((name, [*good, mpz(c)], "OUT_OF_RANGE", "ciphertext-out-of-range") for name, c in outside.items()),
        *((name, [*good, mpz(c)], "NON_UNIT", "ciphertext-not-a-unit") for name, c in sharing.items()),
        ("the same twice", [*good, good[0]], "REPLAY", "ciphertext-repeated"),
    ]
    for name, ciphertexts, bug, error in cases:
        yield {
            "name": f"accepts or refuses: {name}",
            "party": ["proxy", "user"],
            "step": "check-ciphertexts",
            "ciphertexts": [f"{int(c):x}" for c in ciphertexts],
            "must_succeed": bug is None,
            **({} if bug is None else {"bug": bug, "error": error}),
        }


def packings() -> Iterator[dict[str, Any]]:
    def operation(name: str, plain: int, slot_bits: int, values: list[int], **members: Any) -> dict[str, Any]:
        return {
            "name": name,
            "party": ["user"],
            "step": "unpack",
            "plain": str(plain),
            "slot_bits": slot_bits,
            "slots": len(values),
            "values": [str(value) for value in values],
            "must_succeed": True,
            **members,
        }

    for slot_bits, values in (
        (4, [7, -8, 0, -1, 1]),
        (64, [-(2**63), 2**63 - 1, -1, 0]),
        (13, [-1, -1, -1]),
        (2, [1]),
        (48, [0, 0, 0]),
    ):
        yield operation(
            f"{len(values)} slots of {slot_bits} bits", pack(values, slot_bits), slot_bits, values
        )
    overflow = {"must_succeed": False, "bug": "SLOT_OVERFLOW", "error": "slot-overflow"}
    for name, plain in (
        ("one above the last slot", 1 << 32),
        ("the lowest reading less one", -(1 << 31) - (1 << 23) - (1 << 15) - (1 << 7) - 1),
        ("a borrow above the last slot", -(1 << 32)),
        ("the highest slot just too high", 1 << 31),
    ):
        yield operation(name, plain, 8, [0, 0, 0, 0], **overflow)


def manifests(key: SecretKey) -> Iterator[dict[str, Any]]:
    """One manifest of each release, and what makes each of them one that all parties refuse."""
    proof = prove_key(key, IDENTITY)
    made = {
        name: complete_draft(
            DRAFT | changes,
            *PARTIES,
            PadsKeyTerms(PREVIEW_KEM)
            if suite_of_draft(DRAFT | changes) is SuiteName.PADS
            else KeyTerms.of(key.public, proof),
        )
        for name, changes in RELEASES
    }
    made |= chain_for_many_features()
    for name, manifest in made.items():
        yield {
            "name": f"a manifest: {name}",
            "party": ["owner", "proxy", "user"],
            "step": "parse-manifest",
            "body": manifest.to_body(),
            "study": manifest.study_id.hex(),
            "ciphertexts": manifest.figures.ciphertext_count,
            "must_succeed": True,
        }
    refused = {"must_succeed": False, "bug": "UNFIT_TERMS", "error": "manifest-refused"}
    malformed = {"must_succeed": False, "bug": "NOT_CANONICAL", "error": "malformed"}
    cases: list[tuple[str, str, dict[str, Any], str, dict[str, Any]]] = [
        (
            "pairs of records that may be dropped",
            "pairs",
            {"missing": "reject"},
            "change the other pairs",
            refused,
        ),
        ("pairs with a weight of the sum", "pairs", {"sum_weight": "0.43"}, "no meaning in a pairs", refused),
        ("differences longer than any", "pairs", {"clip_norm": "3.5"}, "above 2·√3", refused),
        ("pairs with less noise", "pairs", {"noise_scale": "1"}, "noise_scale is 1", refused),
        ("blocks that are not all of ρ", "pre-study", {"blocks": {"sum": "0.5"}}, "add up to 1", refused),
        ("a block of another name", "pre-study", {"blocks": {"means": "1"}}, "unknown member", malformed),
        ("pads in a masked study", "masked", {"suite": "pads"}, "pads cannot do", refused),
        ("a pre-study under paillier", "pre-study", {"suite": "paillier"}, "uses suite pads", refused),
        ("pairs under paillier", "pairs", {"suite": "paillier"}, "uses suite pads", refused),
        (
            "the key of the other suite",
            "joint under paillier",
            {"key": {"kem": PREVIEW_KEM.hex()}},
            "not one for suite paillier",
            refused,
        ),
        ("slots under pads", "joint", {"slot_bits": 40}, "no meaning under pads", refused),
        ("a suite of another name", "joint", {"suite": "shamir"}, "suite must be one of", refused),
        ("no block", "pre-study", {"blocks": {}}, "a share for each block", malformed),
        (
            "blocks in a joint study",
            "joint",
            {"blocks": {"sum": "1"}},
            "a pre-study must name blocks",
            refused,
        ),
        ("all of ρ by a share", "pre-study", {"rho_share": "1"}, "not between 0 and 1", refused),
        (
            "a later round that spends everything",
            "joint",
            {"pre_studies": ["ab" * 32]},
            "that they have left",
            refused,
        ),
        ("another share with the noise of this one", "pairs", {"rho_share": "0.5"}, "noise_scale", refused),
        ("false where nothing is said", "masked", {"nonnegative": False}, "true, or omitted", malformed),
        (
            "a joint study of nonnegative records",
            "joint",
            {"nonnegative": True},
            "the noise only in a masked study",
            refused,
        ),
        (
            "a centre above the lower bound",
            "nonnegative",
            {"features": CENTRED},
            "lower bound as centre",
            refused,
        ),
        *(
            (f"noise of the lab: {name}", release, {member: name}, f"{name} has no proof of privacy", refused)
            for release, member, name in (
                ("masked", "mechanism", "wishart"),
                ("joint", "mechanism", "mod-sulq"),
                ("masked", "calibration", "as-published"),
            )
        ),
    ]
    cases += refused_clipping(refused)
    cases += refused_blinding(made, refused)
    cases += refused_for_many_features(refused)
    for name, release, changes, reason, how in cases:
        yield {
            "name": f"no manifest: {name}",
            "party": ["owner", "proxy", "user"],
            "step": "parse-manifest",
            "body": made[release].to_body() | changes,
            **how,
            "reason": reason,
        }


def chain_for_many_features() -> dict[str, Manifest]:
    """A sketch, the lift after it, and scores on the components of that lift."""
    key = PadsKeyTerms(PREVIEW_KEM)

    def complete(**changes: Any) -> Manifest:
        return complete_draft(DRAFT | MANY | changes, *PARTIES, key)

    sketch = complete(release="sketch", rho_share="0.25", sketch=SKETCH)
    before = [sketch.study_id.hex()]
    lift = complete(release="lift", rho_share="0.7", pre_studies=before, sketch=SKETCH, lift=LIFT)
    before.append(lift.study_id.hex())
    named = {"columns": 2, "study": before[1], "components": "ab" * 32, "norm": "1.25"}
    scores = complete(release="scores", rho_share="0.05", pre_studies=before, scores=named)
    return {"sketch": sketch, "lift": lift, "scores": scores}


def refused_for_many_features(
    refused: dict[str, Any],
) -> Iterator[tuple[str, str, dict[str, Any], str, dict[str, Any]]]:
    """What every party refuses about a sketch, a lift and scores."""
    long_rows = [[(1 << 40) - 1] * 16] * 2
    for name, release, changes, reason in (
        ("a sketch of records that may be dropped", "sketch", {"missing": "reject"}, "cannot drop records"),
        ("a sketch with the noise of another part of ρ", "sketch", {"rho_share": "0.3"}, "noise_scale"),
        ("an odd sketch", "sketch", {"sketch": SKETCH | {"rows": 17}}, "odd"),
        ("a sketch of more rows than features", "sketch", {"sketch": SKETCH | {"rows": 22}}, "above the 20"),
        ("a lift of pairs with an offset", "lift", {"of": "pairs"}, "offset is not 0"),
        ("a lift that is not exact", "lift", {"lift": LIFT | {"matrix": long_rows}}, "2⁵²"),
        ("a lift of another sketch size", "lift", {"sketch": SKETCH | {"rows": 18}}, "18 numbers"),
        ("scores after another lift", "scores", {"pre_studies": ["cd" * 32]}, "not among pre_studies"),
        ("a joint study with a sketch", "joint", {"sketch": SKETCH}, "cannot have the member sketch"),
    ):
        yield f"many features: {name}", release, changes, reason, refused


def refused_clipping(
    refused: dict[str, Any],
) -> Iterator[tuple[str, str, dict[str, Any], str, dict[str, Any]]]:
    """What every party refuses about `clip_share` and `clip_cap`."""
    share = {"clip_share": "0.005"}
    for name, release, changes, reason in (
        ("more of ρ than a tenth", "pairs with what clipping did", {"clip_share": "0.11"}, "at most 0.1"),
        ("a negative part of ρ", "pairs with what clipping did", {"clip_share": "-0.1"}, "at most 0.1"),
        ("another part of ρ", "pairs with what clipping did", {"clip_share": "0.01"}, "noise_scale"),
        ("another cap and so another slot", "joint with what clipping did", {"slot_bits": 48}, "slot_bits"),
        ("a cap below the norm", "joint with what clipping did", {"clip_cap": "0.5"}, "below clip_norm"),
        ("a cap alone", "joint", {"clip_cap": "1.5"}, "no meaning without clip_share"),
        ("what clipping did, masked", "masked", share, "does not tell what clipping did"),
        ("what clipping did, in a pre-study", "pre-study", share, "does not tell what clipping did"),
        ("the numbers without their part of ρ", "joint", share, "noise_scale"),
        ("no part of ρ where nothing is said", "joint", {"clip_share": "0"}, "is the default"),
    ):
        yield f"clipping: {name}", release, changes, reason, refused


def refused_blinding(
    made: dict[str, Manifest], refused: dict[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any], str, dict[str, Any]]]:
    """What every party refuses in a blinded study."""
    unfit = {"must_succeed": False, "bug": "UNFIT_BLINDING_KEY", "error": "unfit-blinding-key"}
    named = made["blinded"].to_body()["participants"]

    def with_key(key: bytes) -> dict[str, Any]:
        return {"participants": [{**named[0], "x25519": key.hex()}, *named[1:]]}

    paillier = made["joint under paillier"].to_body()
    for name, changes, reason in (
        ("noise by the proxy", {"noise_by": "proxy", "max_colluding": 0}, "needs noise by the owners"),
        (
            "suite paillier",
            {member: paillier[member] for member in ("suite", "key", "slot_bits")},
            "suite pads",
        ),
        ("closing at a time", {"closing": "at-time"}, "closes when all owners have joined"),
        ("a cohort without one owner", {"min_owners": 2}, "is all of its participants"),
        ("a cohort with another owner", {"max_owners": 4}, "is all of its participants"),
        ("nobody named", {"participants": [], "closing": "at-time"}, "needs named participants"),
        ("an owner without a key", {"participants": [*named[:2], no_key(named[2])]}, "has no x25519"),
    ):
        yield f"blinding with {name}", "blinded", changes, reason, refused
    yield "keys for blinding in another study", "joint", {"participants": named}, "only in a blinded", refused
    yield "blinding of another name", "blinded", {"blinding": "threshold"}, "blinding must be", refused
    yield "none where nothing is said", "joint", {"blinding": "none"}, "is the default", refused
    for index, key in enumerate(LOW_ORDER):
        yield f"a blinding key of low order: {index}", "blinded", with_key(key), "low order", unfit
    yield (
        "a second encoding of a blinding key",
        "blinded",
        with_key((2**255 - 19 + 9).to_bytes(32, "little")),
        "only encoding",
        unfit,
    )
    two = with_key(bytes.fromhex(named[1]["x25519"]))
    yield "one blinding key of two owners", "blinded", two, "same blinding key", unfit


def no_key(participant: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in participant.items() if name != "x25519"}


def feature_lists() -> Iterator[dict[str, Any]]:
    """A list of features and the reference to it, and what makes another list, or none."""
    features = [
        Feature("1:10583:A:G", "numeric", Fraction(0), Fraction(2), Fraction("0.31")),
        Feature('größe "\\ 🦴', "numeric", Fraction(-1, 8), Fraction(3), unit="mm", scale=Fraction(1)),
        Feature("blood", "categorical", levels=("A", "{0}"), description="a ] and a }"),
    ]
    content = encode_features(features)
    named = reference_to(content, features).to_body()

    def operation(name: str, read: bytes, reference: dict[str, Any] | None = None, **members: Any) -> Any:
        told = reference or {"sha256": Digest.of(read).hex(), "bytes": len(read), "count": 3}
        told |= {"name": name, "party": ["owner", "proxy", "user"], "step": "parse-feature-list"}
        return told | {"list": read.hex(), "must_succeed": not members, **members}

    yield operation("three features", content)
    differs: dict[str, Any] = {"bug": "NOT_CANONICAL", "error": "feature-list-differs"}
    yield operation("another byte", content.replace(b"0.31", b"0.32"), {**named}, reason="SHA-256", **differs)
    yield operation("a byte more", content + b" ", {**named}, reason="bytes", **differs)
    yield operation("one feature less than named", content, named | {"count": 4}, reason="3", **differs)
    yield operation("one feature more than named", content, named | {"count": 2}, reason="2", **differs)
    other = encode_features([features[1], features[0], features[2]])
    yield operation("another order", other, {**named}, reason="SHA-256", **differs)
    form: dict[str, Any] = {"bug": "NOT_CANONICAL", "error": "not-canonical"}
    for name, read in (
        ("a space", content.replace(b"},{", b"}, {", 1)),
        (
            "members in another order",
            content.replace(b'"lower":"0","name":"1:10583:A:G"', b'"name":"1:10583:A:G","lower":"0"'),
        ),
        ("an escaped letter", content.replace("ö".encode(), b"\\u00f6")),
        ("a member twice", content.replace(b'"lower":"0"', b'"lower":"0","lower":"0"')),
        ("a number", content.replace(b'"lower":"0"', b'"lower":0')),
        ("an object and no array", b'{"features":' + content + b"}"),
        ("a byte-order mark", b"\xef\xbb\xbf" + content),
        ("no end", content[:-1]),
        ("no feature", b"[]"),
    ):
        assert read != content, name
        yield operation(name, read, **form)
    shape: dict[str, Any] = {"bug": "NOT_CANONICAL", "error": "malformed"}
    yield operation("no UTF-8", content.replace("ö".encode(), b"\xf6"), **shape)
    yield operation("an unknown member", content.replace(b'"unit"', b'"unti"'), **shape)
    rule: dict[str, Any] = {"bug": "UNFIT_TERMS", "error": "manifest-refused"}
    yield operation("bounds the wrong way round", content.replace(b'"upper":"2"', b'"upper":"-2"'), **rule)
    yield operation("a centre out of bounds", content.replace(b"0.31", b"2.31"), **rule)


def masks() -> Iterator[dict[str, Any]]:
    """Masks between two owners, and a chunk that has them."""
    for index in range(8):
        source = ScriptedRandomness(f"masks {index}")
        study = StudyId(source.bytes(32))
        low_id, high_id = sorted(PartyId(source.bytes(32)) for _ in range(2))
        low, high = (X25519PrivateKey.from_private_bytes(source.bytes(32)) for _ in range(2))
        pairs = pair_keys(low, low_id, {high_id: high.public_key().public_bytes_raw()}, study)
        found = np.zeros((2, 2), dtype=np.uint64)
        for words, chunk in zip(found, (0, 7), strict=True):
            apply_pads(words, pairs, chunk)
        keys, values = ShareKeys.draw(source), [index, -index, 2**62 - 1]
        yield {
            "name": f"masks between two owners: {index}",
            "party": ["owner"],
            "step": "blind",
            "study": study.hex(),
            "low_id": low_id.hex(),
            "high_id": high_id.hex(),
            "low": low.private_bytes_raw().hex(),
            "high": high.private_bytes_raw().hex(),
            "masks": [str(int(word)) for word in found.ravel()],
            "pad_key": keys.pad.hex(),
            "salt_key": keys.salt.hex(),
            "values": [str(value) for value in values],
            "chunk": share_chunk(keys, 7, integers(values), pairs).hex(),
            "must_succeed": True,
        }


def wide_components() -> Iterator[dict[str, Any]]:
    """Components of a lift and of scores as bytes, and what no owner accepts in their place."""
    study = StudyId(hashlib.sha256(b"dpdpca vectors: a lift").digest())
    features = ["1:10583:A:G", "größe", "blood = {0}"]
    space = EncodedSpace(tuple(features), np.zeros(3), np.ones(3), False)
    lift = Components(
        space=space,
        count=100_160,
        vectors=np.array([[0.6, 0.8, 0], [0, 0, -1]]),
        eigenvalues=np.array([2.5, 1.25]),
        noise_edges=np.array([0.5, 0.5]),
        captured=np.array([2.25, 1]),
        signals=np.array([2.375, 1.125]),
        overlaps=np.array([0.96875, 0.875]),
        noise_edge=0.25,
        noise_scale=0.125,
        total_variance=7.5,
        mean=None,
        lifted=Lifted(
            trusted_count=1,
            above_count=2,
            singular_values=np.array([3.5, 1.75]),
            deviations=None,
            of_span=np.array([True, False]),
            unseen_variance=0.375,
        ),
    )
    assert lift.lifted is not None
    scores = replace(
        lift,
        mean=np.array([0.5, -0.5, 1 / 3]),
        lifted=replace(lift.lifted, deviations=np.array([0.0625, 0.03125])),
    )

    def operation(name: str, components: bytes, **members: Any) -> dict[str, Any]:
        told = {"name": name, "party": ["owner", "user"], "step": "read-components", "study": study.hex()}
        told |= {"features": features, "components": components.hex()}
        return told | {"must_succeed": "bug" not in members, **members}

    content = {"a lift": encode_components(study, lift), "scores": encode_components(study, scores)}
    for (name, encoded), components in zip(content.items(), (lift, scores), strict=True):
        lifted = components.lifted
        assert lifted is not None
        yield operation(
            name,
            encoded,
            count=components.count,
            trusted=lifted.trusted_count,
            above=lifted.above_count,
            numbers=[lift.noise_edge, lift.noise_scale, lift.total_variance, lifted.unseen_variance],
            rows=[
                each.tolist()
                for each in (
                    *(lift.eigenvalues, lift.noise_edges, lift.captured, lift.signals, lift.overlaps),
                    *(lifted.singular_values, lifted.of_span.astype(float)),
                )
            ],
            deviations=None if lifted.deviations is None else lifted.deviations.tolist(),
            mean=None if components.mean is None else components.mean.tolist(),
            vectors=components.vectors.astype(np.float32).astype(float).tolist(),
        )
    good, d, k, first = content["a lift"], 36, 40, 62
    malformed: dict[str, Any] = {"bug": "NOT_CANONICAL", "error": "malformed"}

    def changed(place: int, put: bytes) -> bytes:
        return good[:place] + put + good[place + len(put) :]

    for name, encoded, reason in (
        ("nothing", b"", "cut off"),
        ("the end is missing", good[:-1], "the length of 2 components"),
        ("a byte more", good + b"\0", "the length of 2 components"),
        ("a mean is announced, but missing", changed(k + 5, b"\1"), "the length of 2 components"),
        ("a mark is 2", changed(k + 4, b"\2"), "must have"),
        ("no component", changed(k, bytes(4)), "must have"),
        ("another number of features", changed(d, b"\0\0\0\4"), "must have"),
        ("another format", changed(0, b"\0\0\0\2"), "not of format 3"),
        ("fewer above the edge than are shown", changed(k + 10, bytes(4)), "counts"),
        ("no records", changed(k + 14, bytes(8)), "counts"),
        ("2⁵³ records", changed(k + 14, (2**53).to_bytes(8, "big")), "counts"),
        ("a figure that is not a number", changed(first, np.array(np.nan, "<f8").tobytes()), "finite"),
        ("a figure that is infinite", changed(first, np.array(np.inf, "<f8").tobytes()), "finite"),
        ("a mark that is neither 0 nor 1", changed(len(good) - 40, np.array(0.5, "<f8").tobytes()), "mark"),
        ("a vector that is too long", changed(len(good) - 4, np.array(-1.001, "<f4").tobytes()), "length"),
        ("a vector of zeros", changed(len(good) - 4, bytes(4)), "length"),
    ):
        assert encoded != good, name
        yield operation(name, encoded, reason=reason, **malformed)
    other = encode_components(StudyId(bytes(32)), lift)
    yield operation("another study", other, bug="WRONG_STUDY", error="malformed", reason="another study")


def sketch_matrices() -> Iterator[dict[str, Any]]:
    """P₀ of three seeds, as digests of the rows and the signs of its entries, column by column."""
    for index in range(3):
        seed = hashlib.sha256(f"dpdpca vectors: a sketch matrix {index}".encode()).digest()
        for d, m in ((1, 16), (17, 16), (100_000, 656)):
            matrix = SketchMatrix.of(seed, d, m)
            yield {
                "name": f"seed {index}, {d} features, {m} rows",
                "party": ["owner", "proxy", "user"],
                "step": "sketch-matrix",
                "seed": seed.hex(),
                "features": d,
                "rows": m,
                "rows_sha256": hashlib.sha256(matrix.rows.T.astype(">u2").tobytes()).hexdigest(),
                "signs_sha256": hashlib.sha256(matrix.signs.T.astype("i1").tobytes()).hexdigest(),
                "must_succeed": True,
            }


def document(title: str, operations: Any, **members: Any) -> str:
    content = {"format": 1, "title": title, **members, "operations": list(operations)}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def published_moduli(keys: list[SecretKey]) -> str:
    """The moduli of `keys`, and those that earlier versions published."""
    former = json.loads((FOLDER / "safe_prime_keys.json").read_text(encoding="utf-8"))["operations"]
    moduli = [key.public.encode() for key in keys]
    moduli += [bytes.fromhex(operation["modulus"]) for operation in former]
    digests = sorted(Digest.of(modulus).hex() for modulus in moduli)
    lines = "".join(f'        "{digest}",\n' for digest in digests)
    return (
        '"""Moduli whose factors anyone can look up; tests/vectors/generate.py writes this file."""\n\n'
        f"PUBLISHED_MODULI: frozenset[str] = frozenset(\n    {{\n{lines}    }}\n)\n"
        '"""SHA-256 of n big-endian, in hex."""\n'
    )


def short_files(first: SecretKey, second: SecretKey) -> dict[Path, str]:
    """The files that need two keys only."""
    return {
        FOLDER / "key_zoo.json": document(
            "moduli and proofs, fit and unfit", [*key_zoo(first, second), *key_encodings(first)]
        ),
        FOLDER / "ciphertext_zoo.json": document(
            "ciphertexts under one key",
            ciphertext_zoo(first),
            modulus=first.public.encode().hex(),
            p=f"{int(first.p):x}",
            q=f"{int(first.q):x}",
        ),
        FOLDER / "manifests.json": document("terms of studies, kept and broken", manifests(first)),
        FOLDER / "feature_lists.json": document("lists of features", feature_lists()),
        FOLDER / "wide_components.json": document("components of lifts and scores", wide_components()),
        FOLDER / "sketch_matrices.json": document("matrices of sketches", sketch_matrices()),
        FOLDER / "masks.json": document("masks between owners", masks()),
        FOLDER / "packings.json": document("slots in plaintexts", packings()),
    }


def main() -> None:
    keys = [honest_key(index) for index in range(HONEST_KEYS)]
    files = short_files(*keys[:2])
    files[FOLDER / "honest_keys.json"] = document("fit moduli with their proofs", honest_keys(keys))
    files[PUBLISHED] = published_moduli(keys)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        print(path.name, len(text))


if __name__ == "__main__":
    main()
