"""The cost of a study by role, from measured unit costs and the sizes of messages: pure arithmetic.

All seconds are of one core. A proxy's work and an owner's can be shared by any number of cores. The data user
opens pads on as many cores as it has. An owner's work on its records is not here: see docs/performance.md.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import ceil

from dpdpca_lab.scale.sizes import Sizes, sizes
from dpdpca_protocol.pads.chunks import chunk_count
from dpdpca_protocol.pads.streams import VALUE_BYTES
from dpdpca_protocol.paillier.chunks import chunk_count as chunks_of_ciphertexts
from dpdpca_protocol.result.wide_publication import most_bytes
from dpdpca_protocol.terms.features import MAX_ENCODED_FEATURES
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES
from dpdpca_user.planning.wide import SketchNoise, sketch_rows
from dpdpca_user.planning.wide_chain import DEFAULT_COLUMNS

MOST_OWNERS = 10_000_000
OF_A_REGION = 5000
"""Owners of one regional proxy."""
QUESTIONS = 6
"""What an owner that joins asks the proxy in each round: for the manifest, the enrolled parties, the state of
the study and that of its own share, and twice for the proxy's card."""
_MANY_RECORDS = SketchNoise(records=10**9, rho=1.0)
"""So many that the planner gives a sketch all the rows that it ever gives one."""
_BASE64 = 4 / 3


class Kind(StrEnum):
    """What is released, and how owners hide it."""

    FULL = "full matrix, pads"
    BLINDED = "full matrix, blinded"
    PAILLIER = "full matrix, Paillier"
    SKETCH = "sketch and lift, pads"


@dataclass(frozen=True, slots=True)
class Units:
    """Measured unit costs: seconds of one core.

    Attributes:
        owner_share, owner_value: an owner's work for a share, and for each of its values.
        proxy_share, proxy_value: the proxy's checks, keys and sums.
        user_share, user_value: the data user's checks, and the opening of pads.
        pair_share, pair_value: blinding, for each other owner.
        request, request_byte: the proxy's work to take in a part of a share, without that above.
        answer: the proxy's work to answer a short question.
        list_byte, file_byte: for each byte of a list that is made for the answer, and of what is kept as it
            is sent.
        encrypt, multiply, decrypt: of one Paillier ciphertext.
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
    answer: float
    list_byte: float
    file_byte: float
    encrypt: float
    multiply: float
    decrypt: float


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars. These are round figures of public clouds, not offers."""

    core_hour: float = 0.04
    gigabyte_sent: float = 0.09
    gigabyte_month: float = 0.023
    months_kept: float = 1 / 30


@dataclass(frozen=True)
class Study:
    """A study, or a sketch with its lift and scores, whose cost is asked for.

    Attributes:
        owners: L.
        features: d.
        regional: whether each `OF_A_REGION` owners have a proxy of their own, which passes on one sum.
        sizes: of messages.
    """

    owners: int
    features: int
    kind: Kind
    units: Units
    regional: bool = False
    sizes: Sizes = field(default_factory=sizes)

    @cached_property
    def rows(self) -> int:
        """m of a sketch."""
        return sketch_rows(self.features, _MANY_RECORDS)

    @property
    def columns(self) -> int:
        """k of a lift."""
        return min(DEFAULT_COLUMNS, self.features)

    @cached_property
    def rounds(self) -> tuple[int, ...]:
        """The number of values in a share, for each round. Pre-studies of norms and means are left out: they
        have at most d values."""
        d, k, m = self.features, self.columns, self.rows
        if self.kind is not Kind.SKETCH:
            return (1 + d + _triangle(d),)
        return (1 + m + _triangle(m), 1 + d * k + _triangle(k), 1 + k + _triangle(k))

    @property
    def values(self) -> int:
        return sum(self.rounds)

    @property
    def _is_paillier(self) -> bool:
        return self.kind is Kind.PAILLIER

    @property
    def _ciphertexts(self) -> int:
        return ceil(self.values / self.sizes.packed)

    @property
    def _chunks(self) -> int:
        if self._is_paillier:
            return chunks_of_ciphertexts(self._ciphertexts)
        return sum(map(chunk_count, self.rounds))

    @property
    def proxies(self) -> int:
        """Proxies that owners send to."""
        return ceil(self.owners / OF_A_REGION) if self.regional else 1

    @property
    def of_a_proxy(self) -> int:
        """The most owners that send to one proxy."""
        return min(self.owners, OF_A_REGION) if self.regional else self.owners

    # What owners send

    @property
    def content_bytes(self) -> float:
        """The content of an owner's shares."""
        return self._ciphertexts * self.sizes.ciphertext if self._is_paillier else VALUE_BYTES * self.values

    @property
    def _without_pad(self) -> float:
        return self.sizes.pad if self._is_paillier else 0.0

    @property
    def owner_bytes(self) -> float:
        """What an owner sends."""
        s = self.sizes
        statements = len(self.rounds) * (s.share - self._without_pad)
        return self.content_bytes + statements + self._chunks * (s.chunk + s.digest)

    @property
    def received_bytes(self) -> float:
        """By one proxy that owners send to."""
        return self.of_a_proxy * self.owner_bytes

    @property
    def stored_bytes(self) -> float:
        """By one such proxy until the release, in the largest round."""
        return self.of_a_proxy * self.content_bytes * max(self.rounds) / self.values

    # What proxies send

    @property
    def manifests(self) -> tuple[float, ...]:
        """Bytes of the manifest of each round. Of all ways, only a blinded study names its owners here."""
        s = self.sizes
        features = 0.0 if self.list_bytes else self.features * s.feature
        if self.kind is not Kind.SKETCH:
            named = self.owners * s.blinded if self.kind is Kind.BLINDED else 0.0
            return (s.manifest + features + named,)
        of_a_lift = self.columns * self.rows * s.entry
        return tuple(s.manifest + features + rule for rule in (0.0, of_a_lift, 0.0))

    @property
    def list_bytes(self) -> float:
        """The list of features that the manifests name if they cannot hold so many."""
        is_listed = self.kind is Kind.SKETCH and self.features > MAX_ENCODED_FEATURES
        return self.features * self.sizes.feature if is_listed else 0.0

    @property
    def components_bytes(self) -> float:
        """The components of the lift, which each owner needs before the scores; with a key for each owner."""
        if self.kind is not Kind.SKETCH:
            return 0.0
        return _BASE64 * most_bytes(self.features, self.columns) + self.of_a_proxy * self.sizes.key

    @property
    def parties_bytes(self) -> float:
        """The list of the parties that are enrolled at an owner's proxy. In a blinded study, each owner must
        know the keys of all others, wherever they are enrolled."""
        s = self.sizes
        return self.owners * s.proved if self.kind is Kind.BLINDED else self.of_a_proxy * s.party

    @property
    def _lists_bytes(self) -> float:
        """The lists of a round: of the parties, and of the owners in the study, half of which are in when an
        owner joins."""
        return self.parties_bytes + self.of_a_proxy / 2 * self.sizes.seen

    @property
    def _files_bytes(self) -> float:
        return sum(self.manifests) + self.list_bytes + self.components_bytes

    @property
    def told_bytes(self) -> float:
        """What an owner receives."""
        return len(self.rounds) * self._lists_bytes + self._files_bytes

    @property
    def _known(self) -> int:
        """Signed shares that the data user must know: under pads every owner's, for the key of its pads."""
        return self.proxies if self.regional and self._is_paillier else self.owners

    @property
    def bundle_bytes(self) -> float:
        """What the largest release says about its cohort."""
        told = self.sizes.told - self._without_pad
        chunks = self._chunks if self._is_paillier else chunk_count(max(self.rounds))
        return self._known * (told + chunks * self.sizes.digest)

    @property
    def user_bytes(self) -> float:
        """What the data user receives."""
        s = self.sizes
        told = len(self.rounds) * (s.told - self._without_pad) + self._chunks * s.digest
        return self._known * told + self.content_bytes

    @property
    def sent_bytes(self) -> float:
        """What all proxies send: to owners, to the data user, and sums to the proxy above them."""
        passed = self.proxies * self.content_bytes if self.regional else 0.0
        return self.owners * self.told_bytes + self.user_bytes + passed

    # What it takes

    @property
    def owner_seconds(self) -> float:
        """An owner's work on its shares, without that on its records."""
        u, rounds = self.units, len(self.rounds)
        if self._is_paillier:
            return u.owner_share + self._ciphertexts * u.encrypt
        own = rounds * u.owner_share + self.values * u.owner_value
        if self.kind is not Kind.BLINDED:
            return own
        return own + (self.owners - 1) * (rounds * u.pair_share + self.values * u.pair_value)

    @property
    def share_seconds(self) -> float:
        """A proxy's checks and sums for an owner, without its requests."""
        u = self.units
        work = self._ciphertexts * u.multiply if self._is_paillier else self.values * u.proxy_value
        return len(self.rounds) * u.proxy_share + work

    @property
    def _request_seconds(self) -> float:
        """A proxy's work to take in what an owner sends."""
        requests = self._chunks + len(self.rounds)
        return requests * self.units.request + self.content_bytes * self.units.request_byte

    @property
    def _answer_seconds(self) -> float:
        """A proxy's work to answer an owner's questions."""
        u, rounds = self.units, len(self.rounds)
        answers = rounds * (QUESTIONS * u.answer + self._lists_bytes * u.list_byte)
        return answers + self._files_bytes * u.file_byte

    @property
    def proxy_seconds(self) -> float:
        """Of all proxies together. The root of regional ones handles one share from each of them."""
        senders = self.owners + (self.proxies if self.regional else 0)
        return senders * (self.share_seconds + self._request_seconds) + self.owners * self._answer_seconds

    @property
    def user_seconds(self) -> float:
        u, checks = self.units, len(self.rounds) * self._known * self.units.user_share
        if self._is_paillier:
            return checks + self._ciphertexts * u.decrypt
        return checks + self.owners * self.values * u.user_value

    def dollars(self, prices: Prices = Prices()) -> float:
        """The bill of proxies and data user; an owner's own machine is not in it."""
        hours = (self.proxy_seconds + self.user_seconds) / 3600
        stored = self.proxies * self.stored_bytes / 1e9 * prices.gigabyte_month * prices.months_kept
        return hours * prices.core_hour + self.sent_bytes / 1e9 * prices.gigabyte_sent + stored


def most_published_to(features: int) -> int:
    """The most owners who can get one component of a full matrix: each gets a copy of its own."""
    s = sizes()
    return int(COMPONENTS_LIMIT_BYTES / (features * s.copied + s.key))


def _triangle(n: int) -> int:
    """The values in a symmetric matrix with n rows."""
    return n * (n + 1) // 2
