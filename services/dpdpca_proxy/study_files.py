"""The files of a study as the worker sees them, and processes for long work."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gmpy2 import mpz

from dpdpca_protocol.paillier.chunks import decode_chunk, encode_chunk
from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.aggregate import multiply_shares
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.salts import unsalted
from dpdpca_proxy.store.files import FileStore, is_salted
from dpdpca_runtime.workers import WorkerProcesses, core_count

_MULTIPLICATIONS_A_SECOND = 120_000  # with a key of 3072 bits, on one core


@lru_cache(maxsize=4)
def _public(modulus: int) -> PublicKey:
    return PublicKey(mpz(modulus))


@dataclass(frozen=True, slots=True)
class StudyFiles:
    """Where the files of a study are, and the key that opens them. The repr of this value shows no key."""

    root: Path
    study: StudyId
    modulus: int
    data_key: bytes

    def __repr__(self) -> str:
        return f"StudyFiles({self.study!r})"

    @property
    def public(self) -> PublicKey:
        return _public(self.modulus)

    @property
    def store(self) -> FileStore:
        return FileStore(self.root)

    def read(self, name: str) -> list[mpz]:
        """The ciphertexts in a file, without the salt of a share's chunk or of a product."""
        content = self.read_bytes(name)
        return decode_chunk(unsalted(content) if is_salted(name) else content, self.public)

    def read_bytes(self, name: str) -> bytes:
        return self.store.read_sealed(name, self.data_key)

    def write(self, name: str, content: bytes) -> None:
        self.store.write_sealed(name, content, self.data_key, OS_RANDOMNESS)

    def multiply(self, names: Iterable[str]) -> bytes:
        """The product of the chunks in these files. Only one chunk is in memory at a time."""
        return encode_chunk(multiply_shares(map(self.read, names), self.public), self.public)

    @contextmanager
    def processes(self, multiplications: int) -> Iterator[tuple[Executor | None, int]]:
        """Processes for this much work, and their number; None and 1 if starting processes would take longer
        than the work.

        Args:
            multiplications: the approximate number of multiplications mod n².
        """
        seconds = multiplications / _MULTIPLICATIONS_A_SECOND * (self.modulus.bit_length() / 3072) ** 2
        workers = min(core_count(), int(seconds))
        if workers < 2:
            yield None, 1
        else:
            with WorkerProcesses(workers) as processes:
                yield processes, workers
