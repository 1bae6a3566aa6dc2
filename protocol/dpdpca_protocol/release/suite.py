"""The suites of flat releases: how owners hide values so that the data user can open only their sum.

Both suites have one interface. Outside this module and the manifest's parser, nothing about a flat release
depends on slots, moduli or pads. `PaillierSuite` encrypts packed values under the data user's Paillier key.
`PadsSuite` adds a pad to each value modulo 2⁶⁴, and seals the key of the pads to the data user. The masked
release multiplies values, so it needs Paillier and has its own modules.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from hashlib import blake2b
from operator import index as exact
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import CryptographicError, DpdpcaError, MessageError, UsageError
from dpdpca_protocol.layout.blocks import Values
from dpdpca_protocol.layout.packing import FlatLayout
from dpdpca_protocol.pads import chunks as padded
from dpdpca_protocol.pads.keys import SEALED_KEY_BYTES, PadsSecret, ShareKeys, open_pad_key, seal_pad_key
from dpdpca_protocol.pads.streams import VALUE_BYTES, PadKey
from dpdpca_protocol.paillier.chunks import (
    CHUNK_CIPHERTEXTS,
    chunk_count,
    chunk_length,
    decode_chunk,
    encode_chunk,
    parse_chunk,
)
from dpdpca_protocol.paillier.cipher import Encryptor, add_plain
from dpdpca_protocol.paillier.keys import PublicKey, SecretKey
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.release.aggregate import multiply_shares
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.wire.identifiers import Content, PartyId, StudyId
from dpdpca_protocol.wire.salts import salted_chunk

OnDone = Callable[[int], None]
_ADDITION_SECONDS = 2e-4
_CHUNKS_FOR_THREADS = 32
"""Chunks to open, of all owners, from which two threads are faster than one."""
_MULTIPLICATIONS_A_SECOND = 120_000  # with a key of 3072 bits, on one core

PendingChunk = Callable[[OnDone], Content]
"""Ends the work on a chunk of a share and returns the chunk with its salt.

The argument is called with the number of values that are done since the last call.
"""
ChunkMaker = Callable[[int, Values], PendingChunk]
"""(index, the values at these positions) → the chunk that is being made."""


@dataclass(frozen=True, slots=True, repr=False)
class BegunShare:
    """What one version of an owner's share needs besides its values. Its repr shows nothing.

    Attributes:
        secrets: stored on the owner's disk before the first chunk leaves, and deleted with the receipt.
        pad: the member `pad` of the share statement, or None if the suite has no such member.
    """

    secrets: bytes
    pad: bytes | None

    def __repr__(self) -> str:
        return "BegunShare(…)"


@dataclass(frozen=True, slots=True)
class CohortShare:
    """What the data user knows about one share of a cohort, from its signed statement."""

    owner: PartyId
    version: int
    pad: bytes | None


@dataclass(frozen=True, slots=True)
class Cohort:
    """The shares that a release contains, each once, and the digest of their list."""

    shares: tuple[CohortShare, ...]
    digest: bytes


class Suite(Protocol):
    """One study's suite, made from public terms alone.

    The values of a share, of an aggregate and of a release are one list in the order of the blocks. They are
    cut into chunks, which are numbered from 0. A chunk of a share begins with a salt.
    """

    @property
    def chunk_count(self) -> int:
        """The number of chunks in a share, and in a release."""

    @property
    def is_repeatable(self) -> bool:
        """Whether the secrets of a share and its values always give the same chunks."""

    @property
    def is_quick(self) -> bool:
        """Whether making and adding chunks takes so little time that nothing is worth preparing."""

    @property
    def chunk_seconds(self) -> float:
        """About how long one core needs to add one full chunk."""

    def chunk_values(self, index: int) -> range:
        """The positions of the values in a chunk. Raises MessageError if no chunk has this index."""

    def chunk_bytes(self, index: int) -> int:
        """The length of a chunk without a salt. Raises MessageError like `chunk_values`."""

    def begin(self, owner: PartyId, version: int, randomness: Randomness) -> BegunShare:
        """New secrets for one version of an owner's share. They serve one list of values only."""

    def chunk_maker(
        self,
        secrets: bytes,
        randomness: Randomness,
        executor: Executor | None = None,
        workers: int = 1,
        pairs: Sequence[PadKey] = (),
    ) -> ChunkMaker:
        """Makes the chunks of one version of a share.

        Args:
            secrets: of this version.
            randomness: for chunks that are not repeatable.
            executor: processes that start at once; None makes a chunk when it is needed, in this process.
            workers: the number of these processes.
            pairs: the keys that this owner shares with the others in a blinded study, which needs pads.
        """

    def check_member(self, untrusted: bytes | None) -> None:
        """Refuses the member `pad` of a share statement if the suite needs another one, or none."""

    def check_chunk(self, untrusted: bytes, index: int, salt_bytes: int = 0) -> None:
        """Refuses a chunk that is not well formed.

        Raises:
            MessageError: its length is wrong, or no chunk has this index.
            CryptographicError: its content cannot be added up.
        """

    def check_share(self, contents: Iterable[bytes]) -> None:
        """Refuses a share whose chunks do not fit together, though each was checked by itself.

        Raises:
            CryptographicError: `ciphertext-repeated`.
        """

    def add(self, contents: Iterable[bytes]) -> bytes:
        """One chunk of the aggregate. The same chunk of each share was checked, and its salt removed."""

    def add_known(self, content: bytes, values: Values) -> bytes:
        """A chunk's content with known values added, such as noise."""

    def fits(self, secret: bytes) -> bool:
        """Whether a data user's secret belongs to this study."""

    def noise_secret(self, secret: bytes, cohort: Cohort) -> bytes:
        """The bytes from which the data user's own draw of noise for this cohort is derived."""

    def open_sum(
        self,
        secret: bytes,
        contents: Sequence[bytes],
        cohort: Sequence[CohortShare],
        executor: Executor | None = None,
    ) -> Values:
        """All values of a release.

        Args:
            secret: the data user's, of this study.
            contents: all chunks of the release, checked.
            cohort: the shares that it contains, each once.
            executor: threads.

        Raises:
            CryptographicError: the release cannot be opened.
            UsageError: the secret belongs to another study.
        """


@dataclass(frozen=True, slots=True)
class PaillierSuite:
    """Values packed into plaintexts and encrypted under the data user's key.

    Chunks are random, so an owner keeps them until the receipt arrives.

    Args:
        public: a checked key.
        slot_bits: w. Sums over a whole cohort, with their noise, are in [−2^(w−1), 2^(w−1)).
        value_count: the number of values.
        ciphertext_count: the number of ciphertexts in a share. A masked share has its own layout; the suite
            checks and adds up its chunks, but does not make or open them.
    """

    public: PublicKey
    slot_bits: int
    value_count: int
    ciphertext_count: int

    @property
    def chunk_count(self) -> int:
        return chunk_count(self.ciphertext_count)

    @property
    def is_repeatable(self) -> bool:
        return False

    @property
    def is_quick(self) -> bool:
        return False

    @property
    def chunk_seconds(self) -> float:
        return CHUNK_CIPHERTEXTS * multiplication_seconds(self.public)

    def chunk_values(self, index: int) -> range:
        chunk_length(self.ciphertext_count, index)
        full = CHUNK_CIPHERTEXTS * self._layout.slots
        return range(index * full, min((index + 1) * full, self.value_count))

    def chunk_bytes(self, index: int) -> int:
        return chunk_length(self.ciphertext_count, index) * self.public.ciphertext_bytes

    def begin(self, owner: PartyId, version: int, randomness: Randomness) -> BegunShare:
        return BegunShare(b"", None)

    def chunk_maker(
        self,
        secrets: bytes,
        randomness: Randomness,
        executor: Executor | None = None,
        workers: int = 1,
        pairs: Sequence[PadKey] = (),
    ) -> ChunkMaker:
        slots = self._layout.slots
        encryptor = Encryptor(self.public, -(-self.ciphertext_count // workers), randomness)

        def begin(index: int, values: Values) -> PendingChunk:
            plains = list(self._vectors.plaintexts(map(exact, values), len(self.chunk_values(index))))
            slices = encryptor.encrypt_slices(plains, executor)

            def finish(on_done: OnDone) -> bytes:
                encoded, done = [], 0
                for ciphertexts in slices:
                    encoded.append(encode_chunk(ciphertexts, self.public))
                    before, done = done, min(done + slots * len(ciphertexts), len(values))
                    on_done(done - before)
                return salted_chunk(b"".join(encoded), randomness)

            return finish

        return begin

    def check_member(self, untrusted: bytes | None) -> None:
        if untrusted is not None:
            raise MessageError("malformed", "a share under paillier has no pad", "leave pad out")

    def check_chunk(self, untrusted: bytes, index: int, salt_bytes: int = 0) -> None:
        parse_chunk(untrusted, self.public, index, self.ciphertext_count, salt_bytes)

    def check_share(self, contents: Iterable[bytes]) -> None:
        width, seen, count = self.public.ciphertext_bytes, set[bytes](), 0
        for content in contents:
            parts = (content[at : at + width] for at in range(0, len(content), width))
            seen.update(blake2b(part, digest_size=16).digest() for part in parts)
            count += len(content) // width
        if len(seen) != count:
            raise CryptographicError(
                "ciphertext-repeated",
                f"{count - len(seen)} ciphertexts appear twice in the share",
                "encrypt the share again with fresh randomness, under a new version",
            )

    def add(self, contents: Iterable[bytes]) -> bytes:
        shares = (decode_chunk(content, self.public) for content in contents)
        return encode_chunk(multiply_shares(shares, self.public), self.public)

    def add_known(self, content: bytes, values: Values) -> bytes:
        plains = self._vectors.plaintexts(map(exact, values), len(values))
        pairs = zip(decode_chunk(content, self.public), plains, strict=True)
        return encode_chunk((add_plain(self.public, c, plain) for c, plain in pairs), self.public)

    def fits(self, secret: bytes) -> bool:
        return SecretKey.from_bytes(secret).public == self.public

    def noise_secret(self, secret: bytes, cohort: Cohort) -> bytes:
        return secret

    def open_sum(
        self,
        secret: bytes,
        contents: Sequence[bytes],
        cohort: Sequence[CohortShare],
        executor: Executor | None = None,
    ) -> list[int]:
        ciphertexts = [
            ciphertext for content in contents for ciphertext in decode_chunk(content, self.public)
        ]
        key = SecretKey.from_bytes(secret)
        return self._vectors.decrypt_vector(key, ciphertexts, self.value_count, executor)

    @property
    def _vectors(self) -> PaillierVectors:
        return PaillierVectors(self.public, self.slot_bits)

    @property
    def _layout(self) -> FlatLayout:
        return self._vectors.layout(self.value_count)


@dataclass(frozen=True, slots=True)
class PadsSuite:
    """Values with pads modulo 2⁶⁴. Every operation is exact, and every content of the right length is valid.

    Args:
        kem: the study's key, to which owners seal the keys of their pads.
        study: the study.
        value_count: the number of values.
    """

    kem: bytes
    study: StudyId
    value_count: int

    @property
    def chunk_count(self) -> int:
        return padded.chunk_count(self.value_count)

    @property
    def is_repeatable(self) -> bool:
        return True

    @property
    def is_quick(self) -> bool:
        return True

    @property
    def chunk_seconds(self) -> float:
        return _ADDITION_SECONDS

    def chunk_values(self, index: int) -> range:
        return padded.chunk_range(self.value_count, index)

    def chunk_bytes(self, index: int) -> int:
        return VALUE_BYTES * len(self.chunk_values(index))

    def begin(self, owner: PartyId, version: int, randomness: Randomness) -> BegunShare:
        keys = ShareKeys.draw(randomness)
        return BegunShare(keys.to_bytes(), seal_pad_key(keys.pad, self.kem, self.study, owner, version))

    def chunk_maker(
        self,
        secrets: bytes,
        randomness: Randomness,
        executor: Executor | None = None,
        workers: int = 1,
        pairs: Sequence[PadKey] = (),
    ) -> ChunkMaker:
        keys = ShareKeys.from_bytes(secrets)

        def begin(index: int, values: Values) -> PendingChunk:
            _check_count(len(values), len(self.chunk_values(index)))

            def finish(on_done: OnDone) -> Content:
                chunk = padded.share_chunk(keys, index, _integers(values), pairs)
                on_done(len(values))
                return chunk

            return finish

        return begin

    def check_member(self, untrusted: bytes | None) -> None:
        if untrusted is None or len(untrusted) != SEALED_KEY_BYTES:
            raise MessageError(
                "malformed",
                f"a share under pads needs a pad of {SEALED_KEY_BYTES} bytes",
                "seal the key of the pads to the study's key",
            )

    def check_chunk(self, untrusted: bytes, index: int, salt_bytes: int = 0) -> None:
        padded.check_chunk(untrusted, self.value_count, index, salt_bytes)

    def check_share(self, contents: Iterable[bytes]) -> None:
        """Every share whose chunks have their lengths is valid."""

    def add(self, contents: Iterable[bytes]) -> bytes:
        return padded.encode(padded.add_up(map(padded.decode, contents)))

    def add_known(self, content: bytes, values: Values) -> bytes:
        return padded.encode(padded.add_known(padded.decode(content), _integers(values)))

    def fits(self, secret: bytes) -> bool:
        return PadsSecret.from_bytes(secret).public == self.kem

    def noise_secret(self, secret: bytes, cohort: Cohort) -> bytes:
        # One release under two cohorts must not get one draw: their difference would be exact.
        return PadsSecret.from_bytes(secret).second_noise + cohort.digest

    def open_sum(
        self,
        secret: bytes,
        contents: Sequence[bytes],
        cohort: Sequence[CohortShare],
        executor: Executor | None = None,
    ) -> NDArray[np.int64]:
        key = PadsSecret.from_bytes(secret)
        if key.public != self.kem:
            raise UsageError("wrong-key", "the secret key does not belong to this study")
        _check_count(len(contents), self.chunk_count)
        pad_keys = [self._pad_key(key, share) for share in cohort]

        values = np.empty(self.value_count, dtype=np.int64)

        def open_part(index: int) -> None:
            self.check_chunk(contents[index], index)
            at = self.chunk_values(index)
            words = padded.decode(contents[index])
            padded.open_chunk(words, pad_keys, index, out=values[at.start : at.stop])

        is_large = self.chunk_count * len(cohort) >= _CHUNKS_FOR_THREADS
        for _ in (executor.map if executor and is_large else map)(open_part, range(self.chunk_count)):
            pass
        return values

    def _pad_key(self, secret: PadsSecret, share: CohortShare) -> bytes:
        try:
            self.check_member(share.pad)
            return open_pad_key(share.pad or b"", secret, self.study, share.owner, share.version)
        except DpdpcaError as error:
            raise CryptographicError(
                "sealed-body-does-not-open",
                f"the pad of owner {share.owner} does not open, so the release does not open either",
                "start a new study without this owner, or ask the owner to repair its software",
            ) from error


def multiplication_seconds(public: PublicKey) -> float:
    """About how long one core needs for a multiplication mod n²."""
    return (public.bits / 3072) ** 2 / _MULTIPLICATIONS_A_SECOND


def _integers(values: Values) -> NDArray[np.int64]:
    """The values as an array. Raises UsageError for a value beyond 64 bits."""
    return values if isinstance(values, np.ndarray) else padded.integers(values)


def _check_count(found: int, expected: int) -> None:
    if found != expected:
        raise UsageError("wrong-length", f"got {found} values or chunks instead of {expected}")
