"""The cost of a study by role, from measured unit costs: pure arithmetic.

All seconds are of one core. A proxy's work and an owner's can be shared by any number of cores. The data user
opens pads on as many cores as it has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import ceil

from dpdpca_protocol.pads.chunks import chunk_count
from dpdpca_protocol.pads.keys import SEALED_KEY_BYTES
from dpdpca_protocol.terms.features import MAX_ENCODED_FEATURES
from dpdpca_protocol.terms.members import MAX_OWNERS, MAX_PARTICIPANTS
from dpdpca_protocol.wire.http import MANIFEST_LIMIT_BYTES

COMPONENTS = 10
"""k of the sketch's second round."""
SKETCH_ROWS = 656
MOST_OWNERS = 10_000_000
OF_A_REGION = 5000
"""Owners of one regional proxy."""


class Kind(StrEnum):
    """What is released, and how owners hide it."""

    FULL = "full matrix, pads"
    BLINDED = "full matrix, blinded"
    PAILLIER = "full matrix, Paillier"
    SKETCH = "sketch and lift, pads"


@dataclass(frozen=True, slots=True)
class Units:
    """Measured unit costs: seconds of one core, and bytes.

    Attributes:
        owner_share, owner_value: an owner's work for a share, and for each of its values.
        proxy_share, proxy_value: the proxy's checks, keys and sums.
        user_share, user_value: the data user's checks, and the opening of pads.
        pair_share, pair_value: blinding, for each other owner.
        request, request_byte: the proxy's work to serve a request, without that above.
        encrypt, multiply, decrypt: of one Paillier ciphertext.
        packed, ciphertext_bytes: values in a ciphertext, and its size.
        share_bytes, chunk_bytes: what an owner sends besides its values, for a share and for each chunk.
        statement_bytes: what the data user receives about each owner.
        feature_bytes, named_bytes, blinded_bytes: of a manifest, for each feature, for each named owner, and
            for each named owner of a blinded study.
    """

    owner_share: float
    owner_value: float
    proxy_share: float
    proxy_value: float
    user_share: float
    user_value: float
    pair_share: float
    pair_value: float
    request: float
    request_byte: float
    encrypt: float
    multiply: float
    decrypt: float
    packed: float
    ciphertext_bytes: float
    share_bytes: float
    chunk_bytes: float
    statement_bytes: float
    feature_bytes: float
    named_bytes: float
    blinded_bytes: float


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars. These are round figures of public clouds, not offers."""

    core_hour: float = 0.04
    gigabyte_sent: float = 0.09
    gigabyte_month: float = 0.023
    months_kept: float = 1 / 30


@dataclass(frozen=True)
class Study:
    """A study whose cost is asked for.

    Attributes:
        owners: L.
        features: d.
        regional: whether each `OF_A_REGION` owners have a proxy of their own, which passes on one sum.
    """

    owners: int
    features: int
    kind: Kind
    units: Units
    regional: bool = False

    @cached_property
    def rounds(self) -> tuple[int, ...]:
        """The number of values in a share, for each round. Pre-studies of norms and means are left out: they
        have at most d values."""
        d, k = self.features, COMPONENTS
        if self.kind is not Kind.SKETCH:
            return (1 + d + d * (d + 1) // 2,)
        m = max(16, min(SKETCH_ROWS, d // 4))
        return tuple(
            1 + each for each in (m + m * (m + 1) // 2, d * k + k * (k + 1) // 2, k + k * (k + 1) // 2)
        )

    @property
    def values(self) -> int:
        return sum(self.rounds)

    @property
    def _ciphertexts(self) -> float:
        return self.values / self.units.packed

    @property
    def _chunks(self) -> int:
        return sum(map(chunk_count, self.rounds))

    @property
    def proxies(self) -> int:
        """Proxies that owners send to."""
        return ceil(self.owners / OF_A_REGION) if self.regional else 1

    @property
    def content_bytes(self) -> float:
        """The content of an owner's shares."""
        if self.kind is Kind.PAILLIER:
            return self._ciphertexts * self.units.ciphertext_bytes
        return 8.0 * self.values

    @property
    def owner_bytes(self) -> float:
        """What an owner sends."""
        u = self.units
        return self.content_bytes + len(self.rounds) * u.share_bytes + self._chunks * u.chunk_bytes

    @property
    def owner_seconds(self) -> float:
        u, rounds = self.units, len(self.rounds)
        if self.kind is Kind.PAILLIER:
            return u.owner_share + self._ciphertexts * u.encrypt
        own = rounds * u.owner_share + self.values * u.owner_value
        if self.kind is not Kind.BLINDED:
            return own
        return own + (self.owners - 1) * (rounds * u.pair_share + self.values * u.pair_value)

    @property
    def proxy_seconds(self) -> float:
        """Of all proxies together. The root of regional ones handles one share from each of them."""
        u = self.units
        requests = self._chunks + len(self.rounds)
        served = requests * u.request + self.content_bytes * u.request_byte + len(self.rounds) * u.proxy_share
        work = self._ciphertexts * u.multiply if self.kind is Kind.PAILLIER else self.values * u.proxy_value
        senders = self.owners + (self.proxies if self.regional else 0)
        return senders * (served + work)

    @property
    def received_bytes(self) -> float:
        """By one proxy that owners send to."""
        return self.owners / self.proxies * self.owner_bytes

    @property
    def stored_bytes(self) -> float:
        """By one such proxy until the release, in the largest round."""
        return self.owners / self.proxies * self.content_bytes * max(self.rounds) / self.values

    @property
    def _known(self) -> int:
        """Signed shares that the data user must know: under pads every owner's, for the key of its pads."""
        return self.proxies if self.regional and self.kind is Kind.PAILLIER else self.owners

    @property
    def bundle_bytes(self) -> float:
        """What one release says about its cohort."""
        pad = 2 * SEALED_KEY_BYTES if self.kind is Kind.PAILLIER else 0
        return self._known * (self.units.statement_bytes - pad)

    @property
    def user_bytes(self) -> float:
        return len(self.rounds) * self.bundle_bytes + self.content_bytes

    @property
    def user_seconds(self) -> float:
        u, checks = self.units, len(self.rounds) * self._known * self.units.user_share
        if self.kind is Kind.PAILLIER:
            return checks + self._ciphertexts * u.decrypt
        return checks + self.owners * self.values * u.user_value

    @property
    def manifest_bytes(self) -> float:
        u = self.units
        named = self.owners * u.blinded_bytes if self.kind is Kind.BLINDED else 0.0
        listed = 0.0 if self.kind is Kind.SKETCH else self.features * u.feature_bytes
        return named + listed

    def dollars(self, prices: Prices = Prices()) -> float:
        """The services' bill; an owner's own machine is not in it."""
        hours = (self.proxy_seconds + self.user_seconds) / 3600
        stored = self.proxies * self.stored_bytes / 1e9 * prices.gigabyte_month * prices.months_kept
        passed = self.proxies * self.content_bytes if self.regional else 0.0
        return hours * prices.core_hour + (self.user_bytes + passed) / 1e9 * prices.gigabyte_sent + stored


@dataclass(frozen=True, slots=True)
class Wall:
    """A limit that a study meets as it grows.

    Attributes:
        name: what is at its limit.
        used: the part of the limit that a study uses; more than 1 is beyond the wall.
        can_move: what would move it.
        is_rule: whether a number in this version sets the limit. Other limits are those of machines.
    """

    name: str
    used: Callable[[Study], float]
    can_move: str
    is_rule: bool = False


_PARSED = 4
"""How many times its text a parsed statement needs."""
_DAY, _CORES, _GIGABIT = 24 * 3600.0, 16, 1e9 / 8
WALLS = (
    Wall(
        "10,000 features of a study",
        lambda s: 0.0 if s.kind is Kind.SKETCH else s.features / MAX_ENCODED_FEATURES,
        "the sketch",
        is_rule=True,
    ),
    Wall("100,000 owners of a study", lambda s: s.owners / s.proxies / MAX_OWNERS, "regional proxies", True),
    Wall(
        "10,000 owners that a manifest names",
        lambda s: s.owners / MAX_PARTICIPANTS if s.kind is Kind.BLINDED else 0.0,
        "masks between neighbours in a sparse graph",
        is_rule=True,
    ),
    Wall(
        "4 MiB of a manifest", lambda s: s.manifest_bytes / MANIFEST_LIMIT_BYTES, "lists by reference", True
    ),
    Wall(
        "16 GB of memory for the statements about a cohort",
        lambda s: _PARSED * s.bundle_bytes / 16e9,
        "an answer in pages",
    ),
    Wall(
        "one hour of an owner's core",
        lambda s: s.owner_seconds / 3600,
        "masks between neighbours in a sparse graph, or the sketch",
    ),
    Wall("1 GB that an owner sends", lambda s: s.owner_bytes / 1e9, "the sketch"),
    Wall(
        "a day of 1 Gbit/s into one proxy", lambda s: s.received_bytes / (_DAY * _GIGABIT), "regional proxies"
    ),
    Wall(
        "10 TB on the disk of one proxy",
        lambda s: s.stored_bytes / 1e13,
        "regional proxies, or sums while the study is open",
    ),
    Wall(
        "a day of 16 cores of one proxy",
        lambda s: s.proxy_seconds / s.proxies / (_DAY * _CORES),
        "more processes, or regional proxies",
    ),
    Wall(
        "a day of 16 cores of the data user",
        lambda s: s.user_seconds / (_DAY * _CORES),
        "Paillier, or pads that regions open",
    ),
)


def first_wall(
    features: int, kind: Kind, units: Units, *, is_rule: bool, regional: bool = False
) -> tuple[int, Wall] | None:
    """The smallest number of owners beyond a wall of this sort, and that wall; None up to `MOST_OWNERS`."""
    walls = [wall for wall in WALLS if wall.is_rule == is_rule]

    def met(owners: int) -> Wall | None:
        study = Study(owners, features, kind, units, regional)
        wall = max(walls, key=lambda each: each.used(study))
        return wall if wall.used(study) > 1 else None

    low, high = 0, MOST_OWNERS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) else (middle, high)
    wall = met(high)
    return None if wall is None else (high, wall)
