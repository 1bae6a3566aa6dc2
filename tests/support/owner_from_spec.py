"""An owner that follows docs/spec.md with general libraries alone: numbers in brackets are its sections.

Nothing of the product may be imported here: whatever this module needs and the page does not say is a fault
of the page. It joins joint and masked studies in which the proxy draws the noise, and refuses all others.
"""

import base64
import hashlib
import json
import math
import re
import secrets
import struct
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import httpx
import numpy as np
import phe
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

Json = dict[str, Any]
HPKE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
KEM_BYTES, ML_KEM_BYTES = 1216, 1184
CHUNK = 1024
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
        body = {**body, "format": 2}
        signature = key.sign(_domain(kind, 2) + canonical(body)).hex()
        signer = key.public_key().public_bytes_raw()
        envelope = {"body": body, "kind": kind, "signature": signature, "signer": signer.hex()}
        return cls(kind, body, signer, canonical(envelope))

    @classmethod
    def verify(
        cls, kind: str, untrusted: bytes | Json, members: set[str], signer: bytes | None = None
    ) -> "Statement":
        """The statement in bytes, or in a member of another body, with these members and perhaps a `log`."""
        content = untrusted if isinstance(untrusted, bytes) else canonical(untrusted)
        envelope = parse(content)
        demand(envelope.keys() == {"body", "kind", "signature", "signer"}, "this is no statement")
        body, signed_by = envelope["body"], raw(envelope["signer"], 32)
        demand(envelope["kind"] == kind, f"this is no {kind}")
        demand(signer in (None, signed_by), f"another key has signed the {kind}")
        formats = (1, 2) if kind in ("proxy", "enrolment", "rotation") else (2,)
        demand(body.get("format") in formats, "this is another format")
        demand(body.keys() - {"log"} == members | {"format"}, f"a {kind} has other members")
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
    "key",
    "slot_bits",
}
OPTIONAL = {
    "calibration",
    "nonnegative",
    "cohort_distance",
    "rho_share",
    "pre_studies",
    "blocks",
}


@dataclass(frozen=True)
class Terms:
    """What an owner computes from a manifest that it has checked."""

    study: bytes
    body: Json
    d: int
    q: int
    K: int
    w: int
    modulus: int

    @property
    def slots(self) -> int:
        return (self.modulus.bit_length() - 2) // self.w

    @property
    def ciphertext_bytes(self) -> int:
        return self.modulus.bit_length() // 4

    @property
    def proxy(self) -> bytes:
        """The key with which the proxy signs in this study."""
        return raw(self.body["proxy"]["ed25519"], 32)


def read_manifest(content: bytes, study: bytes, least_bits: int, other_moduli: Sequence[int] = ()) -> Terms:
    """A manifest after every check that needs nobody else. `least_bits` is 2048 outside tests."""
    envelope = parse(content)
    given = set(envelope["body"]) - {"format"}
    demand(REQUIRED <= given <= REQUIRED | OPTIONAL, "the manifest has other members")
    statement = Statement.verify("manifest", content, given)
    demand(statement.digest == study, "this is the manifest of another study")
    body = statement.body
    demand(raw(body["user"]["ed25519"], 32) == statement.signer, "not the data user has signed")
    plain = body["release"] in ("joint", "masked") and body["noise_by"] == "proxy"
    plain = plain and body["mechanism"] == "gaussian" and "rho_share" not in body and "blocks" not in body
    demand(plain and body["relation"] == "replace-one", "this owner does not take part in such studies")
    modulus = _read_key(body, statement.signer, least_bits)
    demand(modulus not in other_moduli, "the modulus was used in another study")
    terms = _figures(body, study, modulus)
    _check_limits(body, terms)
    return terms


def _read_key(body: Json, identity: bytes, least_bits: int) -> int:
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
    r, most = decimal(body["clip_norm"]), body["max_records"]
    epsilon, delta = decimal(body["epsilon"]), decimal(body["delta"])
    masked = body["release"] == "masked"
    K = math.floor((r * q) ** 2)
    V = _ceil_root(Fraction(K))
    a = decimal(body["sum_weight"]) * K
    beta = 65
    while masked and 4 ** (beta - 65) < most**2 * d * K:
        beta += 1
    outside = (2 + Fraction(math.exp(epsilon))) / 2**80
    if masked:
        outside += Fraction(2 * _ceil_root(Fraction(d * K)), 2**beta)
    demand(delta - outside >= delta / 2, "too little of delta is left")
    rho = _rho(float(epsilon), float(delta - outside))
    if masked:
        least = K * math.sqrt((3 if body.get("nonnegative") else 8) / rho)
    else:
        least = float(2 * K + a) / (2 * math.sqrt(rho))
    t = decimal(body["noise_scale"])
    # The recomputed scale is right to about 12 digits here, and the stated one is 2⁻³¹ above it.
    demand(1 <= float(t) / least <= 1 + 2**-30, f"noise_scale is {float(t)}, but the terms give {least}")
    if masked:
        T, T_v = math.ceil(KAPPA * most * t), 0
        w = max(2 * beta, ((most * V + 2 ** (beta - 1)) ** 2 + T).bit_length() + 1)
    else:
        T, T_v = math.ceil(KAPPA * t), _ceil_root(KAPPA**2 * t**2 / a)
        w = max(most * K + T, most * V + T_v, most).bit_length() + 1
    demand(body["slot_bits"] == w, f"slot_bits is {body['slot_bits']}, but the terms give {w}")
    demand(most * K < 2**62 and max(T, T_v) < 2**63 - 1, "the sums are too large")
    demand(4 * r**2 * q**2 > d, "the clip norm is below the rounding error")
    demand(0 < delta * most < 1, "delta is not below 1/max_records")
    demand(modulus.bit_length() - 2 >= w, "a slot does not fit")
    return Terms(study, body, d, q, K, w, modulus)


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
    demand(owners or body["release"] == "joint", "a masked study names its owners")
    demand((body["release"] == "joint") == (0 < decimal(body["sum_weight"]) <= 2), "sum_weight is wrong")
    names = [_name(feature["name"]) for feature in body["features"]]
    demand(len(set(names)) == len(names) and 1 <= terms.d <= 10_000, "the features are wrong")
    longest = Fraction(0)
    for feature in body["features"]:
        if feature["kind"] == "categorical":
            longest += 1
            continue
        lower, upper, centre, unit = _numeric(feature, body)
        demand(lower <= centre <= upper and lower < upper, "bounds and centre are wrong")
        longest += (max(upper - centre, centre - lower) / unit) ** 2
        spacing = Fraction(math.ulp(float(max(abs(lower), abs(upper)))))
        levels = math.ceil((upper - lower) * terms.q / unit)
        demand(math.floor((upper - lower) / spacing) >= levels, "doubles do not resolve the grid")
        demand("nonnegative" not in body or centre == lower, "a value can be negative")
    demand(decimal(body["clip_norm"]) ** 2 <= max(Fraction(terms.d), longest), "the clip norm is too large")


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


def _name(text: str) -> str:
    return unicodedata.normalize("NFC", text.removeprefix("\ufeff")).strip()


# Encoding records (4)


def encode(terms: Terms, columns: Mapping[str, Sequence[Any]]) -> list[list[int]]:
    """The owner's records as rows of integers in grid units."""
    own = {_name(name): column for name, column in columns.items()}
    body, q, K = terms.body, terms.q, terms.K
    count = len(next(iter(own.values())))
    scaled: list[list[float]] = []
    missing = np.zeros(count, dtype=bool)
    for feature in body["features"]:
        column = own[_name(feature["name"])]
        if feature["kind"] == "categorical":
            read = [_level(value) for value in column]
            missing |= np.array([level is None for level in read])
            scaled += [[float(level == each) for level in read] for each in feature["levels"]]
            continue
        lower, upper, centre, unit = map(float, _numeric(feature, body))
        numbers = [_number(value) for value in column]
        missing |= np.array([number is None for number in numbers])
        scaled.append(
            [
                0.0 if number in (None, UNUSABLE) else (min(max(number, lower), upper) - centre) / unit
                for number in numbers
            ]
        )
    u = np.array(scaled).T * q
    if body["missing"] == "reject":
        u = u[~missing]
    most = (float(decimal(body["clip_norm"])) - math.sqrt(terms.d) / (2 * q)) * q
    norms = np.sqrt((u**2).sum(axis=1))
    long = norms > most
    u[long] *= (most / norms[long])[:, None]
    rows = []
    for record in u:
        z = [int(value) for value in np.rint(record)]
        if sum(value * value for value in z) > K:
            z = [int(value) for value in np.trunc(record)]
        if sum(value * value for value in z) > K or ("nonnegative" in body and min(z) < 0):
            z = [0] * terms.d
        rows.append(z)
    return rows


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
        return None
    return number if math.isfinite(number) else None


def _level(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{Decimal(repr(value)).normalize():f}" if math.isfinite(value) else None
    text = "" if value is None else unicodedata.normalize("NFC", str(value)).strip()
    return text or None


@dataclass(frozen=True)
class Sums:
    """N, v and R of the encoded records."""

    count: int
    sum: list[int]
    second_moment: list[list[int]]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], d: int) -> "Sums":
        products = [[sum(row[i] * row[j] for row in rows) for j in range(d)] for i in range(d)]
        return cls(len(rows), [sum(row[i] for row in rows) for i in range(d)], products)


# A share (5, 6)


def plaintexts(terms: Terms, sums: Sums) -> list[int]:
    """P = Σ x_k·2^(w k), in the order of the release's layout."""
    d, s = terms.d, terms.slots

    def pack(values: Sequence[int]) -> int:
        return sum(value << (terms.w * k) for k, value in enumerate(values))

    if terms.body["release"] == "joint":
        upper = [sums.second_moment[i][j] for i in range(d) for j in range(i, d)]
        flat = [sums.count, *sums.sum, *upper]
        return [pack(flat[start : start + s]) for start in range(0, len(flat), s)]
    blocks = [
        pack(sums.second_moment[i][J * s : (J + 1) * s]) for i in range(d) for J in range(i // s, -(-d // s))
    ]
    return [sums.count, *sums.sum, *blocks]


def make_chunks(terms: Terms, sums: Sums) -> list[bytes]:
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
DETAILS: Mapping[str, set[str]] = {
    "manifest": {"statement"},
    "receipt": {"owner", "version", "statement"},
    "withdrawal": {"owner", "version", "statement"},
    "closed": {"cohort", "owners", "reason"},
    "count": {"challenge", "answer"},
    "release": {"statement", "owners", "log"},
    "components": {"statement"},
    "cancelled": set(),
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
    "components": {"release"},
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
    "components": "published",
    "cancelled": "cancelled",
    "failed": "failed",
}


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
    moduli: dict[bytes, int] = field(default_factory=dict)
    events: dict[bytes, list[Statement]] = field(default_factory=dict)
    generation: int = 0

    def __post_init__(self) -> None:
        # Loading the authorities of the machine takes longer than a request, and there is no TLS in tests.
        self.http = httpx.Client(base_url=self.url, verify=False, trust_env=False, timeout=60)
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
            f';nonce="{secrets.token_hex(16)}";tag="dpdpca"'
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
        others = [modulus for other, modulus in self.moduli.items() if other != study]
        terms = read_manifest(content, study, self.least_bits, others)
        self.moduli[study] = terms.modulus
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
        return terms

    # A share

    def join(self, study: bytes, columns: Mapping[str, Sequence[Any]]) -> Sums:
        """Encodes the records, sends their sums, and keeps the receipt."""
        terms = self.read(study)
        sums = Sums.of(encode(terms, columns), terms.d)
        version = (self.share(study)["version"] or 0) + 1
        chunks = make_chunks(terms, sums)
        for position, chunk in enumerate(chunks):
            self.put(terms, version, position, chunk)
        arrived = self.share(study)
        demand(arrived["version"] == version, "another version arrived")
        demand(arrived["chunks"] == list(range(len(chunks))), "a chunk is missing")
        self.complete(terms, version, [sha256(chunk) for chunk in chunks])
        return sums

    def share(self, study: bytes) -> Json:
        """What the proxy holds, with its receipt compared with ours."""
        status = self.ask(f"/v1/studies/{study.hex()}/share")
        demand(status.keys() >= {"chunks", "receipt", "state", "version"}, "a member is missing")
        ours = self.receipts.get(study)
        demand(status["receipt"] == (json.loads(ours.content) if ours else None), "another receipt")
        return status

    def put(self, terms: Terms, version: int, position: int, chunk: bytes) -> None:
        info = b"dpdpca/chunk/v2" + terms.study + self.id + struct.pack(">II", version, position)
        kem = raw(terms.body["proxy"]["kem"], KEM_BYTES)
        key = MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(kem[:ML_KEM_BYTES]),
            X25519PublicKey.from_public_bytes(kem[ML_KEM_BYTES:]),
        )
        path = f"/v1/studies/{terms.study.hex()}/share/chunks/{position}?version={version}"
        answer = self.send("PUT", path, HPKE.encrypt(chunk, key, info), "application/octet-stream")
        demand(answer == b"", "an answer 204 has no body")

    def complete(self, terms: Terms, version: int, digests: Sequence[bytes]) -> Statement:
        claim = Statement.sign(
            "share",
            {
                "study": terms.study.hex(),
                "owner": self.public.hex(),
                "version": version,
                "chunk_count": len(digests),
                "chunk_digests": [digest.hex() for digest in digests],
                "kem": self.sealing.hex(),
            },
            self.ed25519,
        )
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

    def transcript(self, terms: Terms) -> list[Statement]:
        """The events of a study, each link verified, as a continuation of those that were seen before."""
        path = f"/v1/studies/{terms.study.hex()}/transcript"
        members = {"study", "index", "previous", "time", "kind", "detail"}
        events = [
            Statement.verify("event", event, members, terms.proxy) for event in self.ask(path)["events"]
        ]
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
            demand(detail.keys() - {"log"} == DETAILS[kind] - {"log"}, f"the detail of a {kind} differs")
            before = event
        demand(events[0].body["detail"]["statement"] == terms.study.hex(), "this is another manifest")
        seen = self.events.get(terms.study, [])
        demand([e.content for e in events[: len(seen)]] == [e.content for e in seen], "an event is gone")
        self.events[terms.study] = events
        return events

    def is_included(self, study: bytes) -> bool | None:
        """Whether the cohort has this owner's share; None before the study closes."""
        terms = self.read(study)
        facts = self.ask(f"/v1/studies/{study.hex()}")
        members = {"study", "state", "generation", "head", "time"}
        mark = Statement.verify("mark", facts["mark"], members, terms.proxy).body
        demand(mark["study"] == study.hex() and mark["generation"] >= self.generation, "the proxy forgot")
        self.generation = mark["generation"]
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
        demand(sha256(b"dpdpca/cohort/v2\0" + b"".join(rows)).hex() == closed[0], "this is another cohort")
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
        content = parse(HPKE.decrypt(sealed, key, b"dpdpca/components/v2" + study))
        plain = ("format", "study", "names", "common", "count")
        opened = {
            name: value if name in plain else np.frombuffer(bytes.fromhex(value), "<f8").tolist()
            for name, value in content.items()
        }
        demand((opened["format"], opened["study"]) == (2, study.hex()), "these components are from elsewhere")
        names: list[str] = []
        centres: list[float] = []
        units: list[float] = []
        for feature in terms.body["features"]:
            if feature["kind"] == "categorical":
                levels = feature["levels"]
                names += [f"{feature['name']} = {level}" for level in levels]
                centres, units = centres + [0.0] * len(levels), units + [1.0] * len(levels)
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
