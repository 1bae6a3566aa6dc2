"""A whole study under pads in one process, with as many owners as asked for.

Every owner makes a real share, with keys, signature and seal of its own. Its proxy opens, checks, stores and
adds each share. Regional proxies pass on their sums to one that adds them. The data user opens the sum of
all. Only HTTP, the database and the disk are missing, and the
noise, whose cost does not depend on the number of owners. The opened sum is compared with the exact one.
"""

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.messages.log import LogEntry
from dpdpca_protocol.messages.share import CohortMember, Receipt, ShareStatement
from dpdpca_protocol.messages.transcript import FIRST, Event
from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.suite import CohortShare, PadsSuite
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.fields import read_time
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.kem import KemKey
from dpdpca_protocol.wire.salts import unsalted
from dpdpca_protocol.wire.sealing import chunk_info, open_at_rest, open_sealed, seal, seal_at_rest
from dpdpca_protocol.wire.signing import IdentityKey, verify_statement

_STUDY = StudyId.of(b"simulated")
_NOW = "2026-01-01T00:00:00Z"
_CONTEXT = b"chunk"
_LOG = Digest.of(b"log")
_GROUP = 32
"""Shares that the proxy adds at once."""
_DISTINCT_IDENTITIES = 64
"""An identity is made once in a party's life, so owners beyond these take turns with their identities."""


@dataclass(slots=True)
class Spent:
    """What one role spent.

    Attributes:
        seconds: CPU time.
        bytes: sent by an owner, received by the data user, kept by the proxy until the release.
    """

    seconds: float = 0.0
    bytes: int = 0
    _begun: float = field(default=0.0, repr=False)

    def __enter__(self) -> "Spent":
        self._begun = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._begun


@dataclass(frozen=True, slots=True)
class Simulated:
    """A finished simulation.

    Attributes:
        owners: L.
        values: number of values in a share.
        owner: all owners together.
        proxy, user: the two services.
    """

    owners: int
    values: int
    owner: Spent
    proxy: Spent
    user: Spent


def simulate(owners: int, values: int, regions: int = 1) -> Simulated:
    """Run a study of `owners` shares of `values` values each, which they send to `regions` proxies in turn.

    Raises:
        CryptographicError: the opened sum is not the sum of the owners' values.
    """
    secret, kem = PadsSecret.generate(OS_RANDOMNESS), KemKey.generate()
    suite = PadsSuite(secret.public, _STUDY, values)
    identities = [IdentityKey.generate() for _ in range(min(owners, _DISTINCT_IDENTITIES))]
    owner, of_proxies, user = Spent(), Spent(), Spent()
    proxies = [_Proxy(suite, kem, IdentityKey.generate(), of_proxies) for _ in range(regions)]
    exact = np.zeros(values, dtype=np.int64)
    cohort: list[CohortShare] = []
    for number in range(owners):
        mine = np.arange(values, dtype=np.int64) * (number % 1000 + 1) - 7 * number
        exact += mine
        identity, party = identities[number % len(identities)], PartyId.of(b"owner %d" % number)
        with owner:
            sealed, statement = _share(suite, kem.public, identity, party, mine)
        owner.bytes += sum(map(len, sealed)) + len(statement)
        with of_proxies:
            event, entry = proxies[number % regions].take(sealed, statement, party)
        with user:
            verify_statement("event", event)
            signed = ShareStatement.parse(verify_statement("share", statement))
            cohort.append(CohortShare(party, signed.version, signed.pad))
        user.bytes += len(statement) + len(event) + len(entry)
    with of_proxies:
        sums = [proxy.sums() for proxy in proxies]
        chunks = [suite.add(list(of_regions)) for of_regions in zip(*sums, strict=True)]
    with user:
        opened = suite.open_sum(secret.to_bytes(), chunks, cohort)
    user.bytes += sum(map(len, chunks))
    if not np.array_equal(np.asarray(opened, dtype=np.int64), exact):
        raise CryptographicError("wrong-sum", "the opened sum is not the sum of the owners' values")
    return Simulated(owners, values, owner, of_proxies, user)


def _share(
    suite: PadsSuite, kem: bytes, identity: IdentityKey, party: PartyId, values: NDArray[np.int64]
) -> tuple[list[bytes], bytes]:
    """The sealed chunks of an owner's share, and its signed statement."""
    begun = suite.begin(party, 1, OS_RANDOMNESS)
    make = suite.chunk_maker(begun.secrets, OS_RANDOMNESS)
    sealed, digests = [], []
    for index, at in enumerate(map(suite.chunk_values, range(suite.chunk_count))):
        chunk = make(index, values[at.start : at.stop])(lambda count: None)
        digests.append(Digest.of(chunk))
        sealed.append(seal(chunk, kem, chunk_info(_STUDY, party, 1, index)))
    public = identity.public
    statement = ShareStatement(
        _STUDY, public.ed25519, 1, tuple(digests), public.sealing_key, _LOG, log=_LOG, pad=begun.pad
    )
    return sealed, statement.sign(identity).encoded


class _Proxy:
    """What the proxy does with a share, from the request's body to the sum."""

    def __init__(self, suite: PadsSuite, kem: KemKey, key: IdentityKey, spent: Spent) -> None:
        self.spent = spent
        self._kept: list[list[bytes]] = [[] for _ in range(suite.chunk_count)]
        self._suite, self._kem, self._key = suite, kem, key
        self._data_key = OS_RANDOMNESS.bytes(32)
        self._last, self._index = FIRST, 0

    def take(self, sealed: list[bytes], statement: bytes, party: PartyId) -> tuple[bytes, bytes]:
        """Check and store a share, and add it. Returns the signed event, and its entry in the proxy's log."""
        signed = verify_statement("share", statement)
        claim = ShareStatement.parse(signed)
        self._suite.check_member(claim.pad)
        for index, body in enumerate(sealed):
            chunk = open_sealed(body, self._kem, chunk_info(_STUDY, party, 1, index))
            if Digest.of(chunk) != claim.chunk_digests[index]:
                raise CryptographicError("wrong-sum", "a chunk differs from its signed digest")
            stored = seal_at_rest(chunk, self._data_key, _CONTEXT, OS_RANDOMNESS)
            self.spent.bytes += len(stored)
            content = unsalted(open_at_rest(stored, self._data_key, _CONTEXT))
            self._suite.check_chunk(content, index)
            self._kept[index].append(content)
            if len(self._kept[index]) == _GROUP:
                self._kept[index] = [self._suite.add(self._kept[index])]
        Receipt(_STUDY, party, 1, "share", signed.digest, _NOW).sign(self._key)
        member = CohortMember(party, 1, signed.digest)
        event = Event(_STUDY, self._index, self._last, _NOW, "receipt", member.to_body()).sign(self._key)
        self._last, self._index = event.digest, self._index + 1
        entry = LogEntry(self._index, _LOG, read_time(_NOW, "time"), "event", event.digest)
        return event.encoded, canonical_json(entry.to_body())

    def sums(self) -> list[bytes]:
        """The chunks of the sum over all shares."""
        return [self._suite.add(kept) for kept in self._kept]
