"""The files of a study as the worker sees them, and processes for long work."""

import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field

from gmpy2 import mpz

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.paillier.chunks import decode_chunk
from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.suite import PaillierSuite, Suite
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.salts import unsalted
from dpdpca_proxy.store.files import FileStore, calls_folder, is_salted
from dpdpca_runtime.cluster.address import Cluster
from dpdpca_runtime.cluster.carrier import Carrier
from dpdpca_runtime.cluster.executor import ClusterExecutor
from dpdpca_runtime.workers import WorkerProcesses, core_count


@dataclass(frozen=True, slots=True)
class StudyFiles:
    """Where the files of a study are, and the key that opens them. The repr of this value shows no key.

    Attributes:
        store: the store of all studies.
        study: the id of the study.
        suite: computes with chunks.
        data_key: seals the files.
        cluster: executes long work, if it is set.
    """

    store: FileStore
    study: StudyId
    suite: Suite
    data_key: bytes
    cluster: Cluster | None = None

    def __repr__(self) -> str:
        return f"StudyFiles({self.study!r})"

    @property
    def public(self) -> PublicKey:
        """The Paillier key. Raises UsageError in a study under pads."""
        if not isinstance(self.suite, PaillierSuite):
            raise UsageError("wrong-key", "a study under pads has no Paillier key")
        return self.suite.public

    def read(self, name: str) -> list[mpz]:
        """The ciphertexts in a file, without the salt of a share's chunk or of a product."""
        return decode_chunk(self.read_content(name), self.public)

    def read_content(self, name: str) -> bytes:
        """The content of a chunk, without the salt of a share's chunk or of a product."""
        content = self.read_bytes(name)
        return unsalted(content) if is_salted(name) else content

    def read_bytes(self, name: str) -> bytes:
        return self.store.read_sealed(name, self.data_key)

    def write(self, name: str, content: bytes) -> None:
        self.store.write_sealed(name, content, self.data_key, OS_RANDOMNESS)

    def add(self, names: Iterable[str]) -> bytes:
        """The sum of the chunks in these files. Only one chunk is in memory at a time."""
        return self.suite.add(map(self.read_content, names))

    @contextmanager
    def processes(self, seconds: float) -> Iterator[tuple[Executor | None, int]]:
        """Processes for this much work, and their number; None and 1 if starting processes would take longer
        than the work.

        The processes are on the cluster, if one is set.

        Args:
            seconds: about how long one core needs for the work.

        Raises:
            UnavailableError: the cluster cannot be reached, or has no worker.
        """
        workers = min(core_count(), int(seconds))
        if self.cluster is not None and seconds >= self.cluster.least_seconds:
            with self._on_cluster(self.cluster) as (executor, count):
                yield executor, count
        elif self.cluster is not None or workers < 2:
            yield None, 1
        else:
            with WorkerProcesses(workers) as processes:
                yield processes, workers

    @contextmanager
    def processes_elsewhere(self) -> Iterator[tuple[Executor | None, int]]:
        """The processes of the cluster, for work that takes about a second; None and 1 without a cluster.

        Raises like `processes`.
        """
        if self.cluster is None:
            yield None, 1
        else:
            with self._on_cluster(self.cluster) as (executor, count):
                yield executor, count

    @contextmanager
    def _on_cluster(self, cluster: Cluster) -> Iterator[tuple[Executor, int]]:
        carrier = CallFiles(self.store, self.data_key, calls_folder(self.study, secrets.token_hex(16)))
        with ClusterExecutor(cluster, carrier) as executor:
            yield executor, executor.workers


@dataclass(frozen=True, slots=True)
class CallFiles(Carrier):
    """Carries calls and results in sealed files of a study. The repr of this value shows no key."""

    store: FileStore
    data_key: bytes = field(repr=False)
    folder: str

    def put(self, content: bytes) -> bytes:
        name = f"{self.folder}/{secrets.token_hex(16)}"
        self.store.write_sealed(name, content, self.data_key, OS_RANDOMNESS)
        return name.encode()

    def get(self, ticket: bytes) -> bytes:
        return self.store.read_sealed(ticket.decode(), self.data_key)

    def close(self) -> None:
        self.store.remove(self.folder)
