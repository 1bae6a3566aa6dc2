"""An owner that follows docs/spec.md with general libraries alone: numbers in brackets are its sections.

Nothing of the product may be imported here: whatever this module needs and the page does not say is a fault
of the page. It takes part in studies of every release and suite, whoever draws the noise, and in blinded
studies; it refuses those with Laplace noise.
"""

import base64
import hashlib
import hmac
import json
import math
import re
import secrets
import struct
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import httpx
import numpy as np
import phe
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

Json = dict[str, Any]
HPKE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
KEM_BYTES, ML_KEM_BYTES = 1216, 1184
CHUNK = 1024
PADDED_CHUNK = 98_304
SALT_BYTES = 32
KAPPA = 13


class BrokenPromiseError(Exception):
    """Another party sent something that docs/spec.md does not allow, or that contradicts what it signed."""


class RefusedError(Exception):
    """The proxy refused a request (11)."""

    def __init__(self, problem: Json) -> None:
        super().__init__(problem["detail"])
        self.name = str(problem["type"]).removeprefix("urn:dpdpca:problem:")
        self.status = int(problem["status"])


def demand(holds: object, otherwise: str) -> None:
    if not holds:
        raise BrokenPromiseError(otherwise)


# Encodings (2)


def canonical(value: Mapping[str, Any]) -> bytes:
    """RFC 8785 for the values that messages have; all names of members are ASCII."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def parse(content: bytes) -> Json:
    """The object with exactly this canonical form; a repeated member has another one."""
    value = json.loads(content)
    demand(isinstance(value, dict) and canonical(value) == content, "the message is not canonical")
    return dict(value)


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def raw(text: object, length: int) -> bytes:
    demand(isinstance(text, str) and re.fullmatch("[0-9a-f]*", text), "this is not lower-case hex")
    content = bytes.fromhex(str(text))
    demand(len(content) == length, f"this has {len(content)} bytes instead of {length}")
    return content


def decimal(text: object) -> Fraction:
    form = r"-?(0|[1-9][0-9]{0,29})(\.[0-9]{0,39}[1-9])?"
    demand(isinstance(text, str) and re.fullmatch(form, text) and text != "-0", f"{text!r} is no decimal")
    return Fraction(str(text))


def party_id(ed25519: bytes) -> bytes:
    return sha256(ed25519)


_LASTING = ("proxy", "enrolment", "rotation")
"""What outlives studies has a format of its own."""


@dataclass(frozen=True)
class Statement:
    """A signed message."""

    kind: str
    body: Json
    signer: bytes
    content: bytes

    @property
    def digest(self) -> bytes:
        return sha256(canonical(self.body))

    @classmethod
    def sign(cls, kind: str, body: Json, key: Ed25519PrivateKey) -> "Statement":
        number = 2 if kind in _LASTING else 3
        body = {**body, "format": number}
        signature = key.sign(_domain(kind, number) + canonical(body)).hex()
        signer = key.public_key().public_bytes_raw()
        envelope = {"body": body, "kind": kind, "signature": signature, "signer": signer.hex()}
        return cls(kind, body, signer, canonical(envelope))

    @classmethod
    def verify(
        cls, kind: str, untrusted: bytes | Json, members: set[str], signer: bytes | None = None
    ) -> "Statement":
        """The statement in bytes, or in a member of another body, with these members or one more."""
        content = untrusted if isinstance(untrusted, bytes) else canonical(untrusted)
        envelope = parse(content)
        demand(envelope.keys() == {"body", "kind", "signature", "signer"}, "this is no statement")
        body, signed_by = envelope["body"], raw(envelope["signer"], 32)
        demand(envelope["kind"] == kind, f"this is no {kind}")
        demand(signer in (None, signed_by), f"another key has signed the {kind}")
        formats = (1, 2) if kind in _LASTING else (3,)
        demand(body.get("format") in formats, "this is another format")
        optional = {"software"} if kind in ("proxy", "release") else {"log"}
        demand(body.keys() - optional == members | {"format"}, f"a {kind} has other members")
        signed = _domain(kind, body["format"]) + canonical(body)
        Ed25519PublicKey.from_public_bytes(signed_by).verify(raw(envelope["signature"], 64), signed)
        return cls(kind, body, signed_by, content)


def _domain(kind: str, version: int) -> bytes:
    return f"dpdpca/{kind}/v{version}\0".encode()


# The manifest and its figures (3)

REQUIRED = {
    "title",
    "purpose",
    "user",
    "proxy",
    "participants",
    "features",
    "missing",
    "scaling",
    "clip_norm",
    "fraction_bits",
    "mechanism",
    "release",
    "relation",
    "epsilon",
    "delta",
    "noise_by",
    "max_colluding",
    "sum_weight",
    "noise_scale",
    "min_owners",
    "min_records",
    "max_records",
    "max_owners",
    "closing",
    "closes_at",
    "suite",
    "key",
}
OPTIONAL = {
    "blinding",
    "slot_bits",
    "calibration",
    "nonnegative",
    "cohort_distance",
    "rho_share",
    "pre_studies",
    "blocks",
    "clip_share",
    "clip_cap",
}


@dataclass(frozen=True)
class Terms:
    """What an owner computes from a manifest that it has checked; w and modulus are 0 under pads."""

    study: bytes
    body: Json
    d: int
    q: int
    K: int
    w: int
    modulus: int

    @property
    def is_padded(self) -> bool:
        return bool(self.body["suite"] == "pads")

    @property
    def is_blinded(self) -> bool:
        return "blinding" in self.body

    @property
    def shares(self) -> int:
        """m, the owners on whose noise the calibration relies; 0 if the proxy draws it."""
        body = self.body
        return int(body["min_owners"] - body["max_colluding"]) if body["noise_by"] == "owners" else 0

    @property
    def slots(self) -> int:
        return (self.modulus.bit_length() - 2) // self.w if self.w else 0

    @property
    def ciphertext_bytes(self) -> int:
        return self.modulus.bit_length() // 4

    @property
    def proxy(self) -> bytes:
        """The key with which the proxy signs in this study."""
        return raw(self.body["proxy"]["ed25519"], 32)


def read_manifest(content: bytes, study: bytes, least_bits: int, other_keys: Sequence[str] = ()) -> Terms:
    """A manifest after every check that needs nobody else. `least_bits` is 2048 outside tests."""
    envelope = parse(content)
    given = set(envelope["body"]) - {"format"}
    demand(REQUIRED <= given <= REQUIRED | OPTIONAL, "the manifest has other members")
    statement = Statement.verify("manifest", content, given)
    demand(statement.digest == study, "this is the manifest of another study")
    body = statement.body
    demand(raw(body["user"]["ed25519"], 32) == statement.signer, "not the data user has signed")
    plain = body["mechanism"] == "gaussian" and body["relation"] == "replace-one"
    demand(plain, "this owner does not take part in such studies")
    by_owners = body["noise_by"] == "owners"
    demand(by_owners or body["noise_by"] == "proxy", "nobody draws the noise")
    demand(not by_owners or body["release"] != "masked", "owners draw no noise of a masked release")
    least, colluding = int(by_owners), body["max_colluding"]
    most = body["min_owners"] - 1 if by_owners else 0
    demand(type(colluding) is int and least <= colluding <= most, "max_colluding is wrong")
    suites = {"masked": {"paillier"}, "joint": {"paillier", "pads"}, "pairs": {"pads"}, "pre-study": {"pads"}}
    demand(body["suite"] in suites.get(body["release"], ()), "this release does not have this suite")
    members = {"kem"} if body["suite"] == "pads" else {"modulus", "proof"}
    demand(body["key"].keys() == members, f"this is no key of {body['suite']}")
    demand(key_text(body) not in other_keys, "the key was used in another study")
    if body["suite"] == "pads":
        recipient(raw(body["key"]["kem"], KEM_BYTES))
        modulus = 0
    else:
        modulus = _read_modulus(body, statement.signer, least_bits)
    terms = _figures(body, study, modulus)
    _check_limits(body, terms)
    return terms


def key_text(body: Json) -> str:
    """The study's own key, by which it is known in other studies."""
    return str(body["key"]["kem" if body["suite"] == "pads" else "modulus"])


def recipient(kem: bytes) -> MLKEM768X25519PublicKey:
    """A key to which messages can be sealed (2)."""
    try:
        key = MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(kem[:ML_KEM_BYTES]),
            X25519PublicKey.from_public_bytes(kem[ML_KEM_BYTES:]),
        )
        HPKE.encrypt(b"", key, b"")
    except ValueError:
        raise BrokenPromiseError("nothing can be sealed to this key") from None
    return key


def _read_modulus(body: Json, identity: bytes, least_bits: int) -> int:
    """`check_public_key` (5); whoever knows the published test moduli passes them as used."""
    text, proof = body["key"]["modulus"], body["key"]["proof"]
    n = int.from_bytes(raw(text, len(text) // 2), "big")
    bits = n.bit_length()
    demand(bits % 8 == 0 and least_bits <= bits <= 8192 and len(text) == bits // 4, "n has a wrong size")
    demand(n % 2, "n is even")
    sieve = np.ones(1 << 20, dtype=bool)
    for p in range(2, 1 << 10):
        sieve[p * p :: p] = False
    demand(all(n % int(p) for p in np.flatnonzero(sieve)[2:]), "n has a small factor")
    demand(not _is_prime(n), "n is prime")
    demand(not any(_root(n, k) ** k == n for k in range(2, bits // 20 + 1)), "n is a power")
    start = math.isqrt(n)
    for step in range(1, 111):
        rest = (start + step) ** 2 - n
        demand(math.isqrt(rest) ** 2 != rest, "the factors are too close together")
    demand(len(proof) == 8, "the proof has another number of roots")
    values: list[int] = []
    counter = 0
    while len(values) < 8:
        hashed = b"dpdpca/key-proof/v1" + n.to_bytes(bits // 8, "big") + identity + struct.pack(">I", counter)
        value = int.from_bytes(hashlib.shake_256(hashed).digest(bits // 8 + 16), "big") % n
        values += [value] if math.gcd(value, n) == 1 else []
        counter += 1
    for each, value in zip(proof, values, strict=True):
        root = int.from_bytes(raw(each, bits // 8), "big")
        demand(0 < root < n and pow(root, n, n) == value, "the proof of the key is wrong")
    return n


def _is_prime(n: int) -> bool:
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(25):
        x = pow(secrets.randbelow(n - 3) + 2, odd, n)
        if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(twos - 1)):
            return False
    return True


def _root(n: int, k: int) -> int:
    low, high = 1, 1 << (n.bit_length() // k + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**k <= n else (low, middle - 1)
    return low


def _figures(body: Json, study: bytes, modulus: int) -> Terms:
    d = sum(len(feature.get("levels", [None])) for feature in body["features"])
    q = 1 << body["fraction_bits"]
    r, most, release = decimal(body["clip_norm"]), body["max_records"], body["release"]
    masked = release == "masked"
    K = math.floor((r * q) ** 2)
    V = _ceil_root(Fraction(K))
    a = decimal(body["sum_weight"]) * K
    beta = 65
    while masked and 4 ** (beta - 65) < most**2 * d * K:
        beta += 1
    rho = _rho_of(body, Fraction(2 * _ceil_root(Fraction(d * K)), 2**beta) if masked else Fraction(0))
    s, _, _ = _clipping_terms(body, q)
    m = body["min_owners"] - body["max_colluding"] if body["noise_by"] == "owners" else 0
    if m:
        rho -= _excess_of_shares(body, d, K, a, rho, m)
    rho *= float(1 - _told(body) * s)
    least = {
        "masked": K * math.sqrt((3 if body.get("nonnegative") else 8) / rho),
        "joint": float(2 * K + a) / (2 * math.sqrt(rho)),
        "pairs": K / math.sqrt(rho),
        "pre-study": 1 / math.sqrt(2 * rho),
    }[release]
    t = decimal(body["noise_scale"])
    # The recomputed scale is right to about 12 digits here, and the stated one is 2⁻³¹ above it.
    demand(1 <= float(t) / least <= 1 + 2**-30, f"noise_scale is {float(t)}, but the terms give {least}")
    demand(("slot_bits" in body) == (body["suite"] == "paillier"), "slot_bits belongs to paillier")
    if masked:
        T = math.ceil(KAPPA * most * t)
        tails = [T]
        w = max(2 * beta, ((most * V + 2 ** (beta - 1)) ** 2 + T).bit_length() + 1)
    else:
        blocks = _blocks(body, d, K, V, a, t, Fraction(body["max_owners"], m or body["max_owners"]))
        tails = [tail for _, tail in blocks]
        largest = max(bound + tail for bound, tail in blocks)
        w = largest.bit_length() + 1 if modulus else 0
        demand(modulus or max(largest, K) < 2**62, "the sums reach 2⁶²")
    demand(body.get("slot_bits", 0) == w, f"slot_bits is {body.get('slot_bits')}, but the terms give {w}")
    demand(not modulus or most * K < 2**62, "the sums are too large")
    demand(max(tails) < 2**63 - 1, "the noise is too large")
    demand(4 * r**2 * q**2 > d, "the clip norm is below the rounding error")
    demand(0 < decimal(body["delta"]) * most < 1, "delta is not below 1/max_records")
    demand(not modulus or modulus.bit_length() - 2 >= w, "a slot does not fit")
    return Terms(study, body, d, q, K, w, modulus)


def _clipping_terms(body: Json, q: int) -> tuple[Fraction, int, int]:
    """s, C and e; all 0 if the study does not tell what clipping did."""
    if "clip_share" not in body:
        demand("clip_cap" not in body, "clip_cap belongs to clip_share")
        return Fraction(0), 0, 0
    s, r, of_pairs = decimal(body["clip_share"]), decimal(body["clip_norm"]), body["release"] == "pairs"
    demand(body["release"] in ("joint", "pairs"), "clip_share belongs to joint studies and pairs")
    demand(0 < s <= Fraction(1, 10), "clip_share is out of range")
    longest = max(sum((_reach(feature, body, of_pairs) for feature in body["features"]), Fraction(0)), r**2)
    if "clip_cap" in body:
        cap = decimal(body["clip_cap"])
        demand(r <= cap, "clip_cap is out of range")
        longest = min(cap**2, longest)
    whole = math.floor(longest * q**2)
    e = max(0, whole.bit_length() - min(40, 61 - body["max_records"].bit_length()))
    return s, whole >> e, e


def _told(body: Json) -> int:
    """n, how many numbers are told beside the matrix: two about clipping and, with `midpoint`, the gaps."""
    if "clip_share" not in body:
        return 0
    return 3 if body["missing"] == "midpoint" else 2


def _most_gaps(d: int) -> int:
    """G, how many missing values of one record count."""
    return math.ceil(Fraction(d, 2))


def _told_variances(body: Json, d: int, K: int, a: Fraction, q: int, square: Fraction) -> list[Fraction]:
    """The variances of the noise on what clipping did and on the number of missing values.

    Args:
        square: the square of the scale.
    """
    s, C, _ = _clipping_terms(body, q)
    if not s:
        return []
    unit = square * (1 - _told(body) * s) / (s * _moved(body, K, a))
    return [unit, C**2 * unit, _most_gaps(d) ** 2 * unit][: _told(body)]


def _moved(body: Json, K: int, a: Fraction) -> Fraction:
    """D² of all blocks but the numbers told beside them."""
    return {"joint": (2 * K + a) ** 2 / 2, "pairs": Fraction(2 * K * K), "pre-study": Fraction(1)}[
        body["release"]
    ]


def _own_variances(
    body: Json, d: int, K: int, a: Fraction, square: Fraction, m: int
) -> list[tuple[int, Fraction]]:
    """For each block with noise its number of integers, and the least variance of one owner's noise on them.

    Args:
        square: the square of the scale.
    """
    entries = d * (d + 1) // 2
    if body["release"] == "joint":
        return [(d, square / (a * m)), (entries, square / (2 * m))]
    if body["release"] == "pairs":
        return [(entries, square / (2 * m))]
    lengths = {"norms": 49, "pair-norms": 49, "sum": d, "octaves": 12 * d, "far-pairs": 1}
    parts = {name: decimal(body["blocks"][name]) for name in PRE_STUDY if name in body["blocks"]}
    return [(lengths[name], _squares(d, K)[name] * square / (part * m)) for name, part in parts.items()]


def _squares(d: int, K: int) -> dict[str, int]:
    """D² of each block of a pre-study."""
    return {"norms": 2, "pair-norms": 2, "sum": 4 * K, "octaves": 2 * d, "far-pairs": 1}


def _excess_of_shares(body: Json, d: int, K: int, a: Fraction, rho: float, m: int) -> float:
    """E₀: what the distance of a sum of discrete Gaussians from one of them costs."""
    s, _, _ = _clipping_terms(body, 1 << body["fraction_bits"])
    scale = _moved(body, K, a) / (Fraction(2 * rho) * (1 - _told(body) * s))
    own = _own_variances(body, d, K, a, scale, m)
    told = _told_variances(body, d, K, a, 1 << body["fraction_bits"], scale)
    own += [(1, variance / m) for variance in told]
    demand(min(variance for _, variance in own) >= Fraction(1, 4), "an owner's noise is too small")
    excess = sum(
        length * 10 * sum(math.exp(-2 * math.pi**2 * float(variance) * k / (k + 1)) for k in range(1, m))
        for length, variance in own
    )
    demand(excess <= rho / 64, "an owner's noise is too small")
    return excess


def _rho_of(body: Json, of_mask: Fraction) -> float:
    """The ρ of this study; `of_mask` is the mask's part of δ."""
    epsilon, delta = decimal(body["epsilon"]), decimal(body["delta"])
    outside = (2 + Fraction(math.exp(epsilon))) / 2**80 + of_mask
    if "rho_share" not in body:
        demand("pre_studies" not in body, "pre_studies belongs to a chain")
        demand(delta - outside >= delta / 2, "too little of delta is left")
        return _rho(float(epsilon), float(delta - outside))
    share, before = decimal(body["rho_share"]), body.get("pre_studies", [])
    demand(0 < share < 1, "rho_share is not between 0 and 1")
    demand("pre_studies" not in body or 1 <= len(set(before)) == len(before) <= 7, "pre_studies is wrong")
    demand(8 * outside <= delta / 1024, "delta is too small for a chain")
    return float(share) * _rho(float(epsilon), float(delta * 1023 / 1024))


PRE_STUDY = ("norms", "pair-norms", "sum", "octaves", "far-pairs")
OF_PAIRS = {"pair-norms", "octaves", "far-pairs"}


def _blocks(
    body: Json, d: int, K: int, V: int, a: Fraction, t: Fraction, wider: Fraction
) -> list[tuple[int, int]]:
    """The bounds on the exact integers and on their noise, for each block of a flat release.

    Args:
        wider: the variance of the largest cohort's noise in that of `t`.
    """
    most = body["max_records"]

    def tail(variance: Fraction) -> int:
        return _ceil_root(KAPPA**2 * variance * wider)

    q, rows = 1 << body["fraction_bits"], most // 2 if body["release"] == "pairs" else most
    variances = _told_variances(body, d, K, a, q, t**2)
    _, C, _ = _clipping_terms(body, q)
    bounds_told = (rows, rows * C, most * _most_gaps(d))
    told = [(bound, tail(v)) for bound, v in zip(bounds_told, variances, strict=False)]
    if body["release"] == "joint":
        return [(most, 0), (most * V, tail(t**2 / a)), (most * K, tail(t**2)), *told]
    if body["release"] == "pairs":
        return [(most // 2, 0), (most // 2 * K, tail(t**2)), *told]
    bounds = {"norms": most, "sum": most * V} | dict.fromkeys(OF_PAIRS, most // 2)
    squares = _squares(d, K)
    parts = {name: decimal(part) for name, part in body["blocks"].items()}
    demand(parts.keys() <= bounds.keys() and sum(parts.values()) == 1, "the blocks are wrong")
    demand(min(parts.values()) > 0, "a block has no part")
    return [(most, 0), *((bounds[name], tail(squares[name] * t**2 / part)) for name, part in parts.items())]


def _rho(epsilon: float, delta: float) -> float:
    """The largest ρ for which some α > 1 gives at most δ; ρ at α rises, then falls."""

    def at(log_x: float) -> float:
        x = math.exp(log_x)  # α − 1
        log_power = (1 + x) * math.log1p(-1 / (1 + x))  # (1 − 1/α)^α
        return (epsilon + (math.log(delta) + log_x - log_power) / x) / (1 + x)

    low, high = -30.0, 30.0
    for _ in range(200):
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        low, high = (left, high) if at(left) < at(right) else (low, right)
    return at(low)


def _ceil_root(square: Fraction) -> int:
    """⌈√x⌉."""
    root = math.isqrt(math.floor(square))
    return root if root * root == square else root + 1


def _check_limits(body: Json, terms: Terms) -> None:
    owners = [raw(owner["ed25519"], 32) for owner in body["participants"]]
    keys = [raw(body["user"]["ed25519"], 32), terms.proxy, *owners]
    demand(len(set(keys)) == len(keys), "two parties have one key")
    demand(body["min_owners"] <= body["max_owners"], "min_owners is above max_owners")
    demand(body["min_records"] <= body["max_records"], "min_records is above max_records")
    demand(not owners or body["min_owners"] <= len(owners) <= body["max_owners"], "too few or many owners")
    _check_blinding(body)
    must_name = body["release"] == "masked" or body["closing"] == "when-complete"
    demand(owners or not must_name, "this study must name its owners")
    demand(("blocks" in body) == (body["release"] == "pre-study"), "blocks belongs to a pre-study")
    pairs_up = body["release"] == "pairs" or OF_PAIRS & body.get("blocks", {}).keys()
    demand(not pairs_up or body["missing"] == "midpoint", "pairs must not depend on missing values")
    demand(not pairs_up or body["max_records"] >= 2, "a pair needs two records")
    demand((body["release"] == "joint") == (0 < decimal(body["sum_weight"]) <= 2), "sum_weight is wrong")
    names = [_name(feature["name"]) for feature in body["features"]]
    demand(len(set(names)) == len(names) and 1 <= terms.d <= 10_000, "the features are wrong")
    reach, of_pairs = Fraction(0), body["release"] == "pairs"
    for feature in body["features"]:
        if feature["kind"] == "categorical":
            centres = _level_centres(feature)
            demand("centre" not in feature or any(centres), "the centres of all levels are 0")
            demand(all(0 <= centre <= 1 for centre in centres), "the centre of a level is out of range")
            demand(len(centres) == len(feature["levels"]), "a level has no centre")
            demand("nonnegative" not in body or not any(centres), "a level can be negative")
            reach += len(feature["levels"]) * (2 * terms.q + 2) ** 2
            continue
        lower, upper, centre, unit = _numeric(feature, body)
        demand(lower <= centre <= upper and lower < upper, "bounds and centre are wrong")
        reach += ((upper - lower) / unit * terms.q + 2) ** 2
        spacing = Fraction(math.ulp(float(max(abs(lower), abs(upper)))))
        levels = math.ceil((upper - lower) * terms.q / unit)
        demand(math.floor((upper - lower) / spacing) >= levels, "doubles do not resolve the grid")
        demand("nonnegative" not in body or centre == lower, "a value can be negative")
    longest = sum((_reach(feature, body, of_pairs) for feature in body["features"]), Fraction(0))
    widest = max(Fraction(4 * terms.d if of_pairs else terms.d), longest)
    demand(decimal(body["clip_norm"]) ** 2 <= widest, "the clip norm is too large")
    clips_late = body["release"] in ("pairs", "pre-study")
    demand(not clips_late or reach < 2**62, "squares before clipping are too large")


def _reach(feature: Json, body: Json, of_pairs: bool) -> Fraction:
    """What a feature adds to the squared norm of the longest record or difference."""
    if feature["kind"] == "categorical":
        centres = _level_centres(feature)
        about_centre = 1 - 2 * min(centres) + sum(centre**2 for centre in centres)
        return Fraction(min(len(feature["levels"]), 2)) if of_pairs else Fraction(about_centre)
    lower, upper, centre, unit = _numeric(feature, body)
    return ((upper - lower if of_pairs else max(upper - centre, centre - lower)) / unit) ** 2


def _check_blinding(body: Json) -> None:
    owners = body["participants"]
    members = {"name", "ed25519", "x25519"} if "blinding" in body else {"name", "ed25519"}
    demand(all(owner.keys() == members for owner in owners), "a participant has other members")
    if "blinding" not in body:
        return
    demand(body["blinding"] == "pairwise", "this blinding is not known")
    terms = (body["suite"], body["noise_by"], body["closing"])
    demand(terms == ("pads", "owners", "when-complete"), "blinding does not go with these terms")
    demand(body["min_owners"] == body["max_owners"] == len(owners), "the cohort must be all participants")
    keys = [raw(owner["x25519"], 32) for owner in owners]
    demand(len(set(keys)) == len(keys), "two owners have one blinding key")
    for key in keys:
        demand(int.from_bytes(key, "little") < 2**255 - 19, "a blinding key is not below the prime")
        exchange(X25519PrivateKey.generate(), key)


def exchange(own: X25519PrivateKey, theirs: bytes) -> bytes:
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise BrokenPromiseError("a blinding key has low order") from None


def _numeric(feature: Json, body: Json) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """Lower and upper bound, centre and divisor of a numeric feature."""
    lower, upper = decimal(feature["lower"]), decimal(feature["upper"])
    centre = decimal(feature["centre"]) if "centre" in feature else (lower + upper) / 2
    half = (upper - lower) / 2
    if body["scaling"] == "common":
        unit = max((decimal(each["upper"]) - decimal(each["lower"])) / 2 for each in body["features"])
        demand("scale" not in feature, "a common scaling has no other scale")
    else:
        unit = decimal(feature["scale"]) if "scale" in feature else half
        demand(half / 2**14 <= unit <= half, "the scale is out of range")
    return lower, upper, centre, unit


def _level_centres(feature: Json) -> list[Fraction]:
    return [decimal(each) for each in feature.get("centre", ["0"] * len(feature["levels"]))]


def _name(text: str) -> str:
    return unicodedata.normalize("NFC", text.removeprefix("\ufeff")).strip()


# Encoding records (4)


Row = Sequence[int | None]


def encode(terms: Terms, columns: Mapping[str, Sequence[Any]]) -> list[Row]:
    """The owner's records in grid units. In pairs and pre-studies, None stands where there is no value."""
    (u, there), body = _scaled(terms, columns), terms.body
    if body["release"] in ("pairs", "pre-study"):
        rounded = np.rint(u).astype(int).tolist()
        return [
            [value if has else None for value, has in zip(record, each, strict=True)]
            for record, each in zip(rounded, there.tolist(), strict=True)
        ]
    most, norms = _most(terms), np.sqrt((u**2).sum(axis=1))
    long = norms > most
    u[long] *= (most / norms[long])[:, None]
    rows = [_round(record, terms.K) for record in u]
    return [[0] * terms.d if "nonnegative" in body and min(z) < 0 else z for z in rows]


def clipping(terms: Terms, squares: Sequence[float], limit: float) -> list[int]:
    """What clipping did to rows with these squared lengths in grid units, if the study asks for it."""
    _, C, e = _clipping_terms(terms.body, terms.q)
    long = [min(math.floor(square) >> e, C) for square in squares if square > limit]
    return [len(long), sum(long)] if C else []


def gaps(terms: Terms, counts: Iterable[int]) -> list[int]:
    """The number of values that records lack, of each at most G, if the study asks for it."""
    return [sum(min(count, _most_gaps(terms.d)) for count in counts)] if _told(terms.body) == 3 else []


def joint_sums(terms: Terms, columns: Mapping[str, Sequence[Any]]) -> "Sums":
    """The sums of a joint or masked study."""
    u, there = _scaled(terms, columns)
    squares = (u**2).sum(axis=1).tolist()
    lacking = gaps(terms, (each.count(False) for each in there.tolist()))
    told = [*clipping(terms, squares, _most(terms) ** 2), *lacking]
    return Sums.of(filled(encode(terms, columns)), terms.d, told)


def _most(terms: Terms) -> float:
    """The norm to which a record is clipped, in grid units."""
    return (float(decimal(terms.body["clip_norm"])) - math.sqrt(terms.d) / (2 * terms.q)) * terms.q


def _scaled(terms: Terms, columns: Mapping[str, Sequence[Any]]) -> tuple[Any, Any]:
    """(n, d) scaled records in grid units, before they are clipped to the norm; and where values are."""
    own = {_name(name): column for name, column in columns.items()}
    body, q = terms.body, terms.q
    count = len(next(iter(own.values())))
    scaled: list[list[float]] = []
    missing = np.zeros(count, dtype=bool)
    present: list[list[bool]] = []
    for feature in body["features"]:
        column = own[_name(feature["name"])]
        if feature["kind"] == "categorical":
            read = [_level_of(value, feature["levels"]) for value in column]
            missing |= np.array([level is None for level in read])
            has_level = [level in feature["levels"] for level in read]
            for each, centre in zip(feature["levels"], map(float, _level_centres(feature)), strict=True):
                scaled.append(
                    [(level == each) - centre if level in feature["levels"] else 0.0 for level in read]
                )
                present.append(has_level)
            continue
        lower, upper, centre, unit = map(float, _numeric(feature, body))
        numbers = [_number(value) for value in column]
        missing |= np.array([number is None for number in numbers])
        present.append([number not in (None, UNUSABLE) for number in numbers])
        scaled.append(
            [
                0.0 if number in (None, UNUSABLE) else (min(max(number, lower), upper) - centre) / unit
                for number in numbers
            ]
        )
    u, there = np.array(scaled).T * q, np.array(present).T
    if body["missing"] == "reject":
        u = u[~missing]
    return u, there


def filled(rows: Sequence[Row]) -> list[list[int]]:
    """The rows with 0, the centre, where there is no value."""
    return [[value or 0 for value in row] for row in rows]


def _round(record: Sequence[float], K: int) -> list[int]:
    z = [int(value) for value in np.rint(record)]
    if sum(value * value for value in z) > K:
        z = [int(value) for value in np.trunc(record)]
    return z if sum(value * value for value in z) <= K else [0] * len(z)


UNUSABLE: Any = object()
"""A value that no feature of its kind can have; the record counts, with the centre in its place."""


def _number(value: Any) -> Any:
    """A double, None for a missing value, or UNUSABLE."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, int | float | Fraction | np.number | np.bool_):
        return UNUSABLE
    try:
        number = float(value)
    except OverflowError:
        return math.copysign(sys.float_info.max, value)
    return number if math.isfinite(number) else None


def _level(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{Decimal(repr(value)).normalize():f}" if math.isfinite(value) else None
    text = "" if value is None else unicodedata.normalize("NFC", str(value)).strip()
    return text or None


def _level_of(value: Any, levels: Sequence[str]) -> str | None:
    """The level for which a value stands, None for a missing value, or a text that is no level."""
    text = _level(value)
    if text is None or text in levels:
        return text
    number, by_number = _shortest(text), [_shortest(level) for level in levels]
    spelled = {level.lower(): level for level in levels}
    if text.lower() in ("true", "false") and text.lower() in spelled:
        return spelled[text.lower()]
    if number is not None:
        if number in levels:
            return number
        if by_number.count(number) == 1:
            return levels[by_number.index(number)]
        if {"true", "false"} <= spelled.keys() and not {"1", "0"} & set(levels) and number in ("1", "0"):
            return spelled["true" if number == "1" else "false"]
    elif {"1", "0"} <= set(levels) and not {"true", "false"} & spelled.keys() and text.lower() == "true":
        return "1"
    elif {"1", "0"} <= set(levels) and not {"true", "false"} & spelled.keys() and text.lower() == "false":
        return "0"
    return text


def _shortest(text: str) -> str | None:
    """The shortest decimal of a text that is a number without needless zeros in front."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    digits = text.lstrip("+-")
    if not number.is_finite() or (digits[:1] == "0" and digits[1:2].isdigit()):
        return None
    return f"{number.normalize():f}".removeprefix("-" if number == 0 else "no sign")


@dataclass(frozen=True)
class Sums:
    """N, v and R of the encoded records, and what clipping did, if the study asks for it."""

    count: int
    sum: list[int]
    second_moment: list[list[int]]
    told: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], d: int, told: Sequence[int] = ()) -> "Sums":
        products = [[sum(row[i] * row[j] for row in rows) for j in range(d)] for i in range(d)]
        return cls(len(rows), [sum(row[i] for row in rows) for i in range(d)], products, list(told))

    def pairs(self) -> list[int]:
        """The values of a share of pairs."""
        return [self.count, *self.flat()[1 + len(self.sum) :]]

    def flat(self) -> list[int]:
        """The values of a joint share."""
        d = len(self.sum)
        upper = [self.second_moment[i][j] for i in range(d) for j in range(i, d)]
        return [self.count, *self.sum, *upper, *self.told]


# Sums of pairs and pre-studies (4)


def block_sums(terms: Terms, encoded: Sequence[Row], secret: bytes) -> list[int]:
    """The values of a share of pairs or of a pre-study, in the order in which they are sent (6)."""
    d, K, q = terms.d, terms.K, terms.q
    paired, rows = pairs(encoded, pairing_key(secret, terms.study)), filled(encoded)
    differences = [
        [0 if x is None or y is None else x - y for x, y in zip(*pair, strict=True)] for pair in paired
    ]
    if terms.body["release"] == "pairs":
        told = clipping(terms, [_square(y) for y in differences], K)
        told += gaps(terms, (row.count(None) for row in encoded))
        return Sums.of([_shorten(y, K) for y in differences], d, told).pairs()
    blocks = {
        "norms": lambda: _bins([_square(z) for z in rows], K),
        "pair-norms": lambda: _bins([_square(y) for y in differences], 2 * K),
        "sum": lambda: Sums.of([_shorten(z, K) for z in rows], d).sum,
        "octaves": lambda: [bin for j in range(d) for bin in _octaves([y[j] for y in differences], q)],
        "far-pairs": lambda: [sum(_is_far(*filled(pair)) for pair in paired)],
    }
    named = [blocks[name]() for name in PRE_STUDY if name in terms.body["blocks"]]
    return [len(rows), *(value for block in named for value in block)]


def pairing_key(secret: bytes, study: bytes) -> bytes:
    return sha256(b"dpdpca/pairing/v1\0" + struct.pack(">I", len(secret)) + secret + study)


def pairs(rows: Sequence[Row], key: bytes) -> list[tuple[Row, Row]]:
    """Two records each that are neighbours in the owner's order."""
    stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor()
    buckets: list[list[Row]] = [[] for _ in range(256)]
    for row, place in zip(rows, stream.update(bytes(len(rows))), strict=True):
        buckets[place].append(row)
    order: list[Row] = []
    for bucket in buckets:
        keys = struct.unpack(f"<{len(bucket)}Q", stream.update(bytes(8 * len(bucket))))
        order += [row for _, row in sorted(zip(keys, bucket, strict=True), key=lambda each: each[0])]
    return list(zip(order[::2], order[1::2], strict=False))


def _square(z: Sequence[int]) -> int:
    return sum(value * value for value in z)


def _is_far(z: Sequence[int], x: Sequence[int]) -> bool:
    return 2 * _square([a - b for a, b in zip(z, x, strict=True)]) < _square(z) + _square(x)


def _shorten(z: Sequence[int], K: int) -> list[int]:
    """A row with its norm at most √K."""
    if (square := _square(z)) <= K:
        return list(z)
    factor = (math.sqrt(K) - math.sqrt(len(z)) / 2) / math.sqrt(square)
    return _round([value * factor for value in z], K)


def _bins(squares: Sequence[int], top: int) -> list[int]:
    """A histogram of norms: bin b ends at ⌊top·2^((b−48)/2)⌋, and the last one has no end."""
    edges = [math.isqrt(top * top >> (48 - b)) for b in range(49)]
    return _histogram(squares, edges)


def _octaves(column: Sequence[int], q: int) -> list[int]:
    return _histogram([y * y for y in column], [2 * q * q >> 2 * (11 - o) for o in range(12)])


def _histogram(values: Sequence[int], edges: Sequence[int]) -> list[int]:
    counts = [0] * len(edges)
    for value in values:
        counts[next((bin for bin, edge in enumerate(edges) if value <= edge), len(edges) - 1)] += 1
    return counts


# Noise by the owners (8)


def own_noise(terms: Terms, d: int) -> list[int]:
    """New noise for the values of one flat share."""
    t, m = decimal(terms.body["noise_scale"]), terms.shares
    own = _own_variances(terms.body, d, terms.K, decimal(terms.body["sum_weight"]) * terms.K, t**2, m)
    noise = [0]
    for length, variance in own:
        if length != d * (d + 1) // 2 or terms.body["release"] == "pre-study":
            noise += [_gaussian(variance) for _ in range(length)]
        else:  # a matrix, with twice the variance on its diagonal
            noise += [_gaussian(variance * (1 + (i == j))) for i in range(d) for j in range(i, d)]
    a = decimal(terms.body["sum_weight"]) * terms.K
    told = _told_variances(terms.body, terms.d, terms.K, a, terms.q, t**2)
    return noise + [_gaussian(variance / m) for variance in told]


def _gaussian(variance: Fraction) -> int:
    """A discrete Gaussian, by algorithm 3 of Canonne, Kamath and Steinke 2020."""
    t = math.isqrt(math.floor(variance)) + 1
    while True:
        y = _laplace(t)
        if _happens((abs(y) - variance / t) ** 2 / (2 * variance)) and y * y <= KAPPA**2 * variance:
            return y


def _laplace(t: int) -> int:
    while True:
        u = secrets.randbelow(t)
        if not _happens(Fraction(u, t)):
            continue
        while _happens(Fraction(1)):
            u += t
        if secrets.randbelow(2):
            return u
        if u:
            return -u


def _happens(gamma: Fraction) -> bool:
    """True with probability exp(−γ)."""
    while gamma > 1:
        if not _happens(Fraction(1)):
            return False
        gamma -= 1
    k = 1
    while secrets.randbelow(gamma.denominator * k) < gamma.numerator:
        k += 1
    return bool(k % 2)


# A share (5, 6)


@dataclass(frozen=True)
class Pair:
    """What two owners of a blinded study share; the one with the lower id adds the masks."""

    key: bytes
    sign: int


def pair_with(own: X25519PrivateKey, owner: bytes, other: bytes, theirs: bytes, study: bytes) -> Pair:
    """Args: owner, other: the ids; theirs: the other's public key."""
    mine = own.public_key().public_bytes_raw()
    (low, low_key), (high, high_key) = sorted([(owner, mine), (other, theirs)])
    info = b"dpdpca/blinding/v2" + low + high + low_key + high_key
    key = HKDF(SHA256(), 32, salt=study, info=info).derive(exchange(own, theirs))
    return Pair(key, 1 if owner == low else -1)


def stream(key: bytes, index: int, count: int) -> tuple[int, ...]:
    """The pads, or the masks, of a chunk."""
    # `cryptography` takes the block counter, four bytes little-endian, before the nonce.
    cipher = Cipher(ChaCha20(key, bytes(4) + index.to_bytes(12, "big")), None).encryptor()
    return struct.unpack(f"<{count}Q", cipher.update(bytes(8 * count)))


@dataclass(frozen=True)
class Share:
    """One version of a share: its chunks, and under pads the member `pad` of its statement."""

    chunks: list[bytes]
    pad: bytes | None = None


def make_share(
    terms: Terms, sums: "Sums | list[int]", owner: bytes, version: int, pairs: Sequence[Pair] = ()
) -> Share:
    """The share of an owner under new keys, which serve this version only."""
    if not terms.is_padded:
        return Share(make_chunks(terms, sums))
    values = sums.flat() if isinstance(sums, Sums) else sums
    key, salt_key = secrets.token_bytes(32), secrets.token_bytes(32)
    info = b"dpdpca/pad/v2" + terms.study + owner + struct.pack(">I", version)
    pad = HPKE.encrypt(key, recipient(raw(terms.body["key"]["kem"], KEM_BYTES)), info)
    chunks = []
    for index in range(-(-len(values) // PADDED_CHUNK)):
        part = values[index * PADDED_CHUNK : (index + 1) * PADDED_CHUNK]
        hidden = [value + pad for value, pad in zip(part, stream(key, index, len(part)), strict=True)]
        for pair in pairs:
            masks = stream(pair.key, index, len(part))
            hidden = [word + pair.sign * mask for word, mask in zip(hidden, masks, strict=True)]
        hidden = [word % 2**64 for word in hidden]
        salt = hmac.digest(salt_key, b"dpdpca/salt/v2\0" + struct.pack(">I", index), "sha256")
        chunks.append(salt + struct.pack(f"<{len(hidden)}Q", *hidden))
    return Share(chunks, pad)


def plaintexts(terms: Terms, sums: "Sums | list[int]") -> list[int]:
    """P = Σ x_k·2^(w k), in the order of the release's layout."""
    d, s = terms.d, terms.slots

    def pack(values: Sequence[int]) -> int:
        return sum(value << (terms.w * k) for k, value in enumerate(values))

    if terms.body["release"] == "joint":
        flat = sums.flat() if isinstance(sums, Sums) else sums
        return [pack(flat[start : start + s]) for start in range(0, len(flat), s)]
    assert isinstance(sums, Sums)
    blocks = [
        pack(sums.second_moment[i][J * s : (J + 1) * s]) for i in range(d) for J in range(i // s, -(-d // s))
    ]
    return [sums.count, *sums.sum, *blocks]


def make_chunks(terms: Terms, sums: "Sums | list[int]") -> list[bytes]:
    """A salt, then at most 1,024 ciphertexts."""
    key = phe.PaillierPublicKey(terms.modulus)
    encrypted = [key.raw_encrypt(plain % terms.modulus) for plain in plaintexts(terms, sums)]
    content = [ciphertext.to_bytes(terms.ciphertext_bytes, "big") for ciphertext in encrypted]
    return [
        secrets.token_bytes(SALT_BYTES) + b"".join(content[start : start + CHUNK])
        for start in range(0, len(content), CHUNK)
    ]


# Requests (11)

SUMMARY = {"state", "study", "closes_at", "min_owners", "max_owners", "owners_complete", "release"}
SOFTWARE = {"software_digest", "software_kind", "software_version"}
DETAILS: Mapping[str, set[str]] = {
    "manifest": {"statement"},
    "receipt": {"owner", "version", "statement"},
    "withdrawal": {"owner", "version", "statement"},
    "closed": {"cohort", "owners", "reason"},
    "count": {"challenge", "answer"},
    "release": {"statement", "owners", "log"},
    "opened": {"statement"},
    "components": {"statement"},
    "cancelled": {"statement"},
    "failed": {"reason"},
}
OPEN = {"manifest", "receipt", "withdrawal"}
MAY_FOLLOW: Mapping[str, set[str]] = {
    "manifest": set(),
    "receipt": OPEN,
    "withdrawal": OPEN,
    "closed": OPEN,
    "count": {"closed"},
    "release": {"closed", "count"},
    "opened": {"release"},
    "components": {"opened"},
    "cancelled": OPEN | {"closed", "count"},
    "failed": OPEN | {"closed", "count"},
}
STATES = {
    "manifest": "open",
    "receipt": "open",
    "withdrawal": "open",
    "closed": "closed",
    "count": "counted",
    "release": "released",
    "opened": "released",
    "components": "published",
    "cancelled": "cancelled",
    "failed": "failed",
}


def check_blinding_keys(body: Json, parties: Sequence[Json], rotations: Sequence[Json], began: str) -> None:
    """Each owner of a blinded study has signed its key, and had not given it up when the study began (6).

    Args:
        body: of the manifest.
        parties: as the proxy lists them, with statements.
        rotations: of all parties.
        began: the time of the study's first event.
    """
    shown = {each["ed25519"]: each["statement"] for each in parties}
    keys = {"role", "ed25519", "kem", "x25519"}
    given_up = [
        Statement.verify("rotation", each, keys_of_rotation(each))
        for each in rotations
        if each["body"]["role"] == "owner"
    ]
    for owner in body["participants"]:
        key, statement = raw(owner["ed25519"], 32), shown[owner["ed25519"]]
        demand(statement is not None, "the proxy shows no statement")
        if statement["kind"] == "rotation":
            said = Statement.verify("rotation", statement, keys_of_rotation(statement))
            unsigned = {name: value for name, value in said.body.items() if name != "acceptance"}
            accepted = raw(said.body["acceptance"], 64)
            text = b"dpdpca/rotation-acceptance/v2\0" + canonical(unsigned)
            Ed25519PublicKey.from_public_bytes(key).verify(accepted, text)
        else:
            said = Statement.verify("enrolment", statement, keys | {"name", "proxy"}, key)
        stated = (said.body["ed25519"], said.body["x25519"])
        demand(stated == (owner["ed25519"], owner["x25519"]), "the owner has not signed this blinding key")
        left = [each.body["time"] for each in given_up if each.signer == key]
        demand(not left or min(left) >= began, "the owner had given up this key")


def keys_of_rotation(statement: Json) -> set[str]:
    """The members of a rotation; those of format 1 have no `kem`."""
    own = {"role", "version", "previous", "ed25519", "x25519", "time", "acceptance"}
    return own if statement["body"]["format"] == 1 else own | {"kem"}


@dataclass
class Owner:
    """An owner with its keys, its receipts and what the proxy has shown to it.

    Args:
        url: the proxy's address.
        proxy: the proxy's Ed25519 key, as its operator told it.
        least_bits: the shortest modulus that is accepted.
    """

    url: str
    proxy: bytes
    least_bits: int = 2048
    ed25519: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    ml_kem: MLKEM768PrivateKey = field(default_factory=MLKEM768PrivateKey.generate)
    x25519: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    blinding: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    receipts: dict[bytes, Statement] = field(default_factory=dict)
    claims: dict[tuple[bytes | int, ...], Statement] = field(default_factory=dict)
    keys: dict[bytes, str] = field(default_factory=dict)
    events: dict[bytes, list[Statement]] = field(default_factory=dict)
    endings: dict[bytes, Statement | None] = field(default_factory=dict)
    noisy: dict[tuple[bytes, tuple[int, ...]], list[int]] = field(default_factory=dict)
    final: dict[bytes, tuple[list[int], Share]] = field(default_factory=dict)
    generation: int = 0
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def __post_init__(self) -> None:
        # Loading the authorities of the machine takes longer than a request, and there is no TLS in tests. A
        # connection that was idle for long may be closed by the proxy while a request is on its way.
        idle = httpx.Limits(keepalive_expiry=0.5)
        self.http = httpx.Client(base_url=self.url, verify=False, trust_env=False, timeout=60, limits=idle)
        self.public = self.ed25519.public_key().public_bytes_raw()
        self.sealing = (
            self.ml_kem.public_key().public_bytes_raw() + self.x25519.public_key().public_bytes_raw()
        )
        self.id = party_id(self.public)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        media_type: str = "application/json",
        *,
        signed: bool = True,
    ) -> bytes:
        """The body of a 2xx answer. A refusal that passes is repeated, signed anew."""
        for _ in range(20):
            request = self.http.build_request(method, path, content=body)
            if body is not None:
                request.headers["content-type"] = media_type
            if signed:
                self._sign(request, body)
            answer = self.http.send(request)
            if answer.is_success:
                return answer.content
            problem = answer.json()
            demand(answer.headers["content-type"] == "application/problem+json", "this is no problem")
            refused = RefusedError(problem)
            demand(refused.status == answer.status_code, "two statuses in one answer")
            if refused.status not in (408, 429, 503, 507) and refused.name != "not-ready":
                raise refused
            time.sleep(float(answer.headers.get("retry-after", 1)))
        raise refused

    def _sign(self, request: httpx.Request, body: bytes | None) -> None:
        url = request.url
        values = {
            "@method": request.method,
            "@authority": url.netloc.decode().lower(),
            "@path": url.raw_path.decode().partition("?")[0],
            "@query": f"?{url.query.decode()}",
        }
        if body is not None:
            digest = base64.b64encode(sha256(body)).decode()
            request.headers["content-digest"] = f"sha-256=:{digest}:"
            values |= {name: request.headers[name] for name in ("content-digest", "content-type")}
        covered = " ".join(f'"{name}"' for name in values)
        parameters = (
            f'({covered});created={int(datetime.now(UTC).timestamp())};keyid="{self.id.hex()}";alg="ed25519"'
            f';nonce="{secrets.token_hex(16)}";tag="dpdpca/v3"'
        )
        lines = [f'"{name}": {value}' for name, value in values.items()]
        base = "\n".join([*lines, f'"@signature-params": {parameters}'])
        request.headers["signature-input"] = f"sig1={parameters}"
        signature = base64.b64encode(self.ed25519.sign(base.encode())).decode()
        request.headers["signature"] = f"sig1=:{signature}:"

    def ask(self, path: str) -> Json:
        """An answer that is not signed: a newer proxy may have put more members into it."""
        return dict(json.loads(self.send("GET", path)))

    def enrol(self, name: str, invitation: str) -> None:
        card = self._card(self.send("GET", "/v1/proxy", signed=False))
        body = {
            "role": "owner",
            "name": name,
            "ed25519": self.public.hex(),
            "kem": self.sealing.hex(),
            "x25519": self.blinding.public_key().public_bytes_raw().hex(),
            "proxy": card.signer.hex(),
        }
        statement = Statement.sign("enrolment", body, self.ed25519)
        request = canonical({"enrolment": json.loads(statement.content), "invitation": invitation})
        answer = json.loads(self.send("POST", "/v1/parties", request, signed=False))
        demand(answer["party"] == self.id.hex(), "the proxy enrolled somebody else")
        self._card(answer["proxy"])

    def _card(self, untrusted: bytes | Json) -> Statement:
        card = Statement.verify("proxy", untrusted, {"name", "url", "ed25519", "kem"}, self.proxy)
        demand(raw(card.body["ed25519"], 32) == card.signer, "the card names another key")
        return card

    def studies(self) -> list[bytes]:
        """The open studies."""
        listed = self.ask("/v1/studies")["studies"]
        demand(all(each.keys() >= SUMMARY for each in listed), "a study lacks members")
        return [raw(each["study"], 32) for each in listed if each["state"] == "open"]

    def read(self, study: bytes) -> Terms:
        """The manifest of a study, checked, also against the enrolled parties and the proxy's card."""
        content = self.send("GET", f"/v1/studies/{study.hex()}/manifest")
        others = [key for other, key in self.keys.items() if other != study]
        terms = read_manifest(content, study, self.least_bits, others)
        self.keys[study] = key_text(terms.body)
        body = terms.body
        card = self._card(self.send("GET", "/v1/proxy", signed=False)).body
        demand(all(body["proxy"][name] == card[name] for name in ("ed25519", "kem")), "another proxy")
        parties = self.ask("/v1/parties")["parties"]
        enrolled = {(each["role"], each["name"], each["ed25519"]) for each in parties}
        named = {("user", body["user"]["name"], body["user"]["ed25519"])}
        named |= {("owner", each["name"], each["ed25519"]) for each in body["participants"]}
        demand(named <= enrolled, "the manifest gives somebody another name")
        keys = [each["ed25519"] for each in body["participants"]]
        demand(not keys or self.public.hex() in keys, "the study does not name this owner")
        if terms.is_blinded:
            shown = self.ask("/v1/parties?statements=true")["parties"]
            began = self.transcript(terms)[0].body["time"]
            check_blinding_keys(body, shown, self.ask("/v1/parties/rotations")["rotations"], began)
        return terms

    # A share

    def join(self, study: bytes, columns: Mapping[str, Sequence[Any]]) -> Sums:
        """Encodes the records, sends their sums, and keeps the receipt."""
        terms = self.read(study)
        sums = joint_sums(terms, columns)
        self.deliver(terms, sums)
        return sums

    def join_blocks(self, study: bytes, columns: Mapping[str, Sequence[Any]]) -> list[int]:
        """The same in a study of pairs or a pre-study."""
        terms = self.read(study)
        values = block_sums(terms, encode(terms, columns), self.secret)
        self.deliver(terms, values)
        return values

    def deliver(self, terms: Terms, sums: Sums | list[int]) -> None:
        """Sends a new version of the share; in a blinded study the only one, however often it is asked."""
        version = (self.share(terms.study)["version"] or 0) + 1
        if terms.shares:
            sums = self.with_noise(terms, sums.flat() if isinstance(sums, Sums) else sums)
        if terms.is_blinded:
            assert isinstance(sums, list)
            values, share = self.final.setdefault(
                terms.study, (sums, make_share(terms, sums, self.id, 1, self.pairs(terms)))
            )
            demand(values == sums, "a blinded share has one list of values")
            if terms.study in self.receipts:
                return
            version = 1
        else:
            share = make_share(terms, sums, self.id, version)
        for position, chunk in enumerate(share.chunks):
            self.put(terms, version, position, chunk)
        arrived = self.share(terms.study)
        demand(arrived["version"] == version, "another version arrived")
        demand(arrived["chunks"] == list(range(len(share.chunks))), "a chunk is missing")
        self.complete(terms, version, [sha256(chunk) for chunk in share.chunks], share.pad)

    def with_noise(self, terms: Terms, exact: list[int]) -> list[int]:
        """The values with this owner's noise: the same noise for the same values, and other for others."""
        made = (terms.study, tuple(exact))
        if made not in self.noisy:
            noise = own_noise(terms, terms.d)
            self.noisy[made] = [value + each for value, each in zip(exact, noise, strict=True)]
        return self.noisy[made]

    def pairs(self, terms: Terms) -> list[Pair]:
        others = [each for each in terms.body["participants"] if each["ed25519"] != self.public.hex()]
        return [
            pair_with(
                self.blinding,
                self.id,
                party_id(raw(each["ed25519"], 32)),
                raw(each["x25519"], 32),
                terms.study,
            )
            for each in others
        ]

    def share(self, study: bytes) -> Json:
        """What the proxy holds, with its receipt compared with ours."""
        status = self.ask(f"/v1/studies/{study.hex()}/share")
        demand(status.keys() >= {"chunks", "receipt", "state", "version"}, "a member is missing")
        ours = self.receipts.get(study)
        demand(status["receipt"] == (json.loads(ours.content) if ours else None), "another receipt")
        return status

    def put(self, terms: Terms, version: int, position: int, chunk: bytes) -> None:
        info = b"dpdpca/chunk/v3" + terms.study + self.id + struct.pack(">II", version, position)
        key = recipient(raw(terms.body["proxy"]["kem"], KEM_BYTES))
        path = f"/v1/studies/{terms.study.hex()}/share/chunks/{position}?version={version}"
        answer = self.send("PUT", path, HPKE.encrypt(chunk, key, info), "application/octet-stream")
        demand(answer == b"", "an answer 204 has no body")

    def complete(
        self, terms: Terms, version: int, digests: Sequence[bytes], pad: bytes | None = None
    ) -> Statement:
        made: tuple[bytes | int, ...] = (terms.study, version, *digests)
        if made in self.claims:  # a repeated statement is the same one
            return self._send_claim(terms, self.claims[made])
        _, mark = self.look(terms)
        self.claims[made] = Statement.sign(
            "share",
            {
                "study": terms.study.hex(),
                "owner": self.public.hex(),
                "version": version,
                "chunk_count": len(digests),
                "chunk_digests": [digest.hex() for digest in digests],
                "kem": self.sealing.hex(),
                "proxy_log": mark["head"],
                **({} if pad is None else {"pad": pad.hex()}),
            },
            self.ed25519,
        )
        return self._send_claim(terms, self.claims[made])

    def _send_claim(self, terms: Terms, claim: Statement) -> Statement:
        path = f"/v1/studies/{terms.study.hex()}/share/complete"
        return self._keep_receipt(terms, claim, self.send("POST", path, claim.content))

    def withdraw(self, study: bytes) -> Statement:
        terms = self.read(study)
        version = self.receipts[study].body["version"] + 1
        body = {"study": study.hex(), "owner": self.public.hex(), "version": version}
        wish = Statement.sign("withdrawal", body, self.ed25519)
        answer = self.send("DELETE", f"/v1/studies/{study.hex()}/share", wish.content)
        return self._keep_receipt(terms, wish, answer)

    def _keep_receipt(self, terms: Terms, sent: Statement, answer: bytes) -> Statement:
        members = {"study", "owner", "version", "subject", "statement", "time"}
        receipt = Statement.verify("receipt", answer, members, terms.proxy)
        due = {
            "study": terms.study.hex(),
            "owner": self.id.hex(),
            "version": sent.body["version"],
            "subject": sent.kind,
            "statement": sent.digest.hex(),
        }
        demand(due.items() <= receipt.body.items(), "the receipt is for something else")
        self.receipts[terms.study] = receipt
        return receipt

    # What became of it (7)

    def look(self, terms: Terms) -> tuple[Json, Json]:
        """The study as the proxy describes it, and the mark that the proxy signs."""
        facts = self.ask(f"/v1/studies/{terms.study.hex()}")
        members = {"study", "state", "generation", "head", "time"}
        mark = Statement.verify("mark", facts["mark"], members, terms.proxy).body
        named = mark["study"] == terms.study.hex()
        demand(named and mark["generation"] >= self.generation, "the proxy forgot")
        self.generation = mark["generation"]
        return facts, mark

    def ending(self, terms: Terms, answer: Json, events: Sequence[Statement]) -> Statement | None:
        """The data user's `cancel` or `opened` that an event names."""
        user = raw(terms.body["user"]["ed25519"], 32)
        told = {event.body["kind"]: event.body["detail"] for event in events}
        for kind, named_by, members in (
            ("cancel", "cancelled", {"study"}),
            ("opened", "opened", {"study", "cohort", "release"}),
        ):
            if named_by in told:
                said = Statement.verify(kind, answer[kind], members, user)
                demand(said.body["study"] == terms.study.hex(), f"a `{kind}` of another study")
                demand(said.digest.hex() == told[named_by]["statement"], f"another `{kind}`")
                if kind == "opened":
                    shown = (told["closed"]["cohort"], told["release"]["statement"])
                    demand((said.body["cohort"], said.body["release"]) == shown, "another release is open")
                return said
        return None

    def is_spent(self, study: bytes) -> bool:
        """Whether the owner's share counts as seen: only the data user's signature takes it off the books."""
        terms = self.read(study)
        facts, _ = self.look(terms)
        self.transcript(terms)
        ending, mine = self.endings[study], self.receipts[study]
        if ending is None or study in self.final:
            return True
        if ending.kind == "cancel":
            return False
        members = {each["owner"] for each in facts["cohort_members"]}
        return mine.body["subject"] != "withdrawal" or self.id.hex() in members

    def transcript(self, terms: Terms) -> list[Statement]:
        """The events of a study, each link verified, as a continuation of those that were seen before."""
        path = f"/v1/studies/{terms.study.hex()}/transcript"
        members = {"study", "index", "previous", "time", "kind", "detail"}
        answer = self.ask(path)
        events = [Statement.verify("event", event, members, terms.proxy) for event in answer["events"]]
        before: Statement | None = None
        for index, event in enumerate(events):
            body = event.body
            previous = before.digest if before else bytes(32)
            demand((body["study"], body["index"]) == (terms.study.hex(), index), "an event is elsewhere")
            demand(raw(body["previous"], 32) == previous, "the chain is broken")
            kind, detail = body["kind"], body["detail"]
            demand((before is None) == (kind == "manifest"), "the manifest comes first")
            if before:
                demand(before.body["kind"] in MAY_FOLLOW[kind], "this event may not follow")
                demand(before.body["time"] <= body["time"], "time goes back")
            optional = {"log"} | (SOFTWARE if kind == "release" else set())
            demand(detail.keys() - optional == DETAILS[kind] - {"log"}, f"the detail of a {kind} differs")
            before = event
        demand(events[0].body["detail"]["statement"] == terms.study.hex(), "this is another manifest")
        seen = self.events.get(terms.study, [])
        demand([e.content for e in events[: len(seen)]] == [e.content for e in seen], "an event is gone")
        self.events[terms.study] = events
        self.endings[terms.study] = self.ending(terms, answer, events)
        return events

    def is_included(self, study: bytes) -> bool | None:
        """Whether the cohort has this owner's share; None before the study closes."""
        terms = self.read(study)
        facts, mark = self.look(terms)
        events = self.transcript(terms)
        reached = [STATES[event.body["kind"]] for event in events]
        demand(mark["state"] in reached, "the transcript does not show the state")
        mine = self.receipts.get(study)
        own = {"owner": self.id.hex()}
        if mine:
            kind = {"share": "receipt", "withdrawal": "withdrawal"}[mine.body["subject"]]
            own |= {name: mine.body[name] for name in ("version", "statement")}
            found = [e for e in events if (e.body["kind"], e.body["detail"]) == (kind, own)]
            demand(found, "the receipt is not in the transcript")
        closed = [event.body["detail"]["cohort"] for event in events if event.body["kind"] == "closed"]
        if not closed or mark["state"] == "open":
            return None
        cohort = facts["cohort_members"]
        rows = sorted(
            raw(each["owner"], 32) + struct.pack(">I", each["version"]) + raw(each["statement"], 32)
            for each in cohort
        )
        demand(sha256(b"dpdpca/cohort/v3\0" + b"".join(rows)).hex() == closed[0], "this is another cohort")
        left: dict[str, Json] = {}
        for event in events:
            detail = event.body["detail"]
            if event.body["kind"] == "receipt":
                left[detail["owner"]] = detail
            elif event.body["kind"] == "withdrawal":
                del left[detail["owner"]]
        demand(left == {each["owner"]: each for each in cohort}, "the cohort is not that of the receipts")
        included = self.id.hex() in left
        due = mine is not None and mine.body["subject"] == "share"
        demand(included == due and (not due or left[self.id.hex()] == own), "the share does not count")
        return included

    def first_event(self, study: bytes) -> Json:
        """The state that a stream of events begins with."""
        request = self.http.build_request("GET", f"/v1/studies/{study.hex()}/events")
        self._sign(request, None)
        answer = self.http.send(request, stream=True)
        try:
            demand(answer.headers["content-type"].startswith("text/event-stream"), "this is no stream")
            name = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: ") and name == "state":
                    return dict(json.loads(line.removeprefix("data: ")))
            raise BrokenPromiseError("the stream ended")
        finally:
            answer.close()

    def components(self, study: bytes) -> Json:
        """The published components, opened (14); arrays of doubles are lists."""
        terms = self.read(study)
        answer = self.ask(f"/v1/studies/{study.hex()}/components")["components"]
        user = raw(terms.body["user"]["ed25519"], 32)
        published = Statement.verify("components", answer, {"study", "sealed"}, user).body
        demand(published["study"] == study.hex(), "these components are from another study")
        sealed = bytes.fromhex(published["sealed"][self.id.hex()])
        key = MLKEM768X25519PrivateKey(self.ml_kem, self.x25519)
        content = parse(HPKE.decrypt(sealed, key, b"dpdpca/components/v3" + study))
        plain = ("format", "study", "names", "common", "count")
        opened = {
            name: value if name in plain else np.frombuffer(bytes.fromhex(value), "<f8").tolist()
            for name, value in content.items()
        }
        demand((opened["format"], opened["study"]) == (3, study.hex()), "these components are from elsewhere")
        names: list[str] = []
        centres: list[float] = []
        units: list[float] = []
        for feature in terms.body["features"]:
            if feature["kind"] == "categorical":
                levels = feature["levels"]
                names += [f"{feature['name']} = {level}" for level in levels]
                centres += map(float, _level_centres(feature))
                units += [1.0] * len(levels)
            else:
                _, _, centre, unit = _numeric(feature, terms.body)
                names.append(feature["name"])
                centres, units = [*centres, float(centre)], [*units, float(unit)]
        agreed = (opened["names"], opened["centre"], opened["half_range"])
        demand(agreed == (names, centres, units), "the components have other features")
        demand(opened["common"] == (terms.body["scaling"] == "common"), "the components have another scaling")
        demand(1 <= opened["count"] <= terms.body["max_records"], "the components count too much")
        demand(("mean" in opened) == (terms.body["release"] == "joint"), "a mean is missing or too much")
        return opened
