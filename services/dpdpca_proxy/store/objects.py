"""Files in object storage (S3), through obstore.

One PUT writes a whole object, so that an object only appears complete. It is conditional (If-None-Match): two
writers never overwrite each other. If there is an object already, its content must be the same. The store
checks a SHA-256 of what arrives, and after each write this module asks for the size of the object. Sealed
content and the digests in the database show every other change when the object is read.

Requests are repeated for a limited time; then the error is `storage-failing` or `storage-full`. S3 promises
that what was written can be read and listed at once. A store that is behind gets some seconds before a
missing object counts as damage. Deleted objects are looked for afterwards. A bucket that keeps old versions
is refused, because a deletion there only hides the object.
"""

import os
import posixpath
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from dpdpca_protocol.errors import IntegrityError, UnavailableError, UsageError
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.store.bucket import parse_bucket
from dpdpca_proxy.store.credentials import credentials_from_file
from dpdpca_proxy.store.files import FileStore
from dpdpca_runtime.object_endpoint import given_endpoint, uses_http

try:
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        PermissionDeniedError,
        UnauthenticatedError,
    )
    from obstore.store import S3Store
except ImportError as error:
    raise UsageError(
        "bad-settings",
        "object storage needs obstore, which is not installed",
        "install it with: pip install 'dpdpca[s3]'",
    ) from error

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult

_REQUEST = timedelta(seconds=60)
"""For one request, with the largest chunk."""
_RETRYING = timedelta(seconds=20)
"""After this time no request is repeated."""
_RETRIES = 6
_WAITS: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds in which a store has to show what was written, and to stop showing what was deleted."""
_RETRY_AFTER_SECONDS = 10
_FULL: Final = ("507 Insufficient", "QuotaExceeded", "StorageFull", "InsufficientCapacity")
"""How stores say that they are full; S3 itself never is."""
_NO_BUCKET: Final = "NoSuchBucket"
_PROBE_BYTES = 4096

Answer = TypeVar("Answer")


class Objects(Protocol):
    """What this module needs of a bucket: the methods of obstore's stores."""

    def put(self, path: str, file: bytes, *, mode: Any = None) -> "PutResult": ...

    def get(self, path: str) -> Any: ...

    def head(self, path: str) -> "ObjectMeta": ...

    def delete(self, paths: str | Sequence[str]) -> None: ...

    def list(self, prefix: str | None = None) -> Iterable[Sequence["ObjectMeta"]]: ...


class UnfitStoreError(UnavailableError):
    """The store works, but cannot keep what a `FileStore` promises."""


class ObjectStore(FileStore):
    """Objects below the prefix of a bucket.

    Args:
        address: s3://BUCKET/PREFIX, the place that errors name.
        objects: the objects below the prefix. A worker opens the address again.
    """

    listing_cost = 20.0
    """A list is a request that has a price, and there is at least one for each study."""

    def __init__(self, address: str, objects: Objects) -> None:
        self.address = address
        self.trouble: str | None = None
        self._objects = objects
        self._probe = f".probe-{secrets.token_hex(8)}"
        self._probing = threading.Lock()

    def __repr__(self) -> str:
        return f"ObjectStore({self.address!r})"

    def __reduce__(self) -> "tuple[Callable[[str], ObjectStore], tuple[str]]":
        # Credentials do not go through pipes: a worker finds them where this process did.
        return reopened, (self.address,)

    def place(self, name: str) -> str:
        return f"{self.address}/{name}"

    def write(self, name: str, content: bytes) -> None:
        """Raises IntegrityError if the name has other content already. Also raises like `FileStore.write`."""
        self._write(name, content, lambda present: present == content)

    def write_sealed(self, name: str, content: bytes, key: bytes, randomness: Randomness) -> None:
        # Every sealing of the same content gives other bytes.
        self._write(
            name,
            self.sealed(name, content, key, randomness),
            lambda present: self.opened(name, present, key) == content,
        )

    def read(self, name: str) -> bytes:
        found = self._patiently(lambda: self._ask(name, lambda: self._content(name)))
        if found is None:
            raise self.missing(name)
        return found

    def exists(self, name: str) -> bool:
        return self._size(name) is not None

    def remove(self, name: str) -> None:
        """Raises UnavailableError if objects are still there afterwards.

        A store that is behind shows none, so one that shows none is asked again until its time is over.
        """

        def is_gone() -> bool | None:
            left = self._present(name)
            if left:
                self._delete(name, left)
            return None if left else True

        present = self._patiently(lambda: self._present(name) or None)
        self._delete(name, present or [name])
        if self._patiently(is_gone) is None:
            raise self._failing(name, "the object storage still has what was deleted")

    def folders(self, study: StudyId) -> list[str]:
        return [f"{study.hex()}/{name}" for name in self.entries(study.hex())]

    def entries(self, folder: str) -> list[str]:
        return _entries(folder, self._below(folder))

    def entries_of(self, folders: Sequence[str]) -> list[list[str]]:
        if not folders:
            return []
        below: dict[str, list[str]] = {folder: [] for folder in folders}
        parent = posixpath.dirname(folders[0])
        for path in self._below(parent):
            inner = path[len(parent) + 1 :].partition("/")[0]
            below.get(f"{parent}/{inner}", []).append(path)
        return [_entries(folder, paths) for folder, paths in below.items()]

    def age(self, name: str) -> float:
        """The seconds since the newest object below `name` was written, by the clock of the store."""
        times = [meta["last_modified"] for meta in self._listed(name)]
        return (datetime.now(times[0].tzinfo) - max(times)).total_seconds() if times else 0.0

    def probe(self) -> None:
        """Writes an object, tries to overwrite it, reads it and deletes it. Raises like `write`."""
        with self._probing:
            self._try_all()

    def check(self) -> None:
        try:
            self.probe()
        except UnfitStoreError as error:
            raise UsageError("bad-settings", error.problem, error.next_step, place=self.address) from error
        except (UnavailableError, IntegrityError):
            pass  # the proxy starts, and readiness reports it until the store works

    def _try_all(self) -> None:
        name, content = self._probe, bytes(_PROBE_BYTES)
        self._delete(name, [name])  # what a probe that failed has left
        self.write(name, content)
        if self._put(name, content[:-1]):
            raise self._unfit(
                name,
                "the object storage overwrites an object although the request forbids it",
                "use a store that knows conditional writes (If-None-Match)",
            )
        if self.read(name) != content:
            raise self._failing(name, "the object storage gives back other bytes than were written")
        self.remove(name)

    def _write(self, name: str, content: bytes, is_same: Callable[[bytes], bool]) -> None:
        def is_there() -> bool | None:
            if self._put(name, content):
                return self._patiently(lambda: self._size(name)) == len(content)
            present = self._ask(name, lambda: self._content(name))
            if present is None:
                return None  # it was deleted meanwhile
            if not is_same(present):
                raise self.altered(name)
            return True

        if not self._patiently(is_there):
            raise self._failing(name, "the object storage does not have what it has accepted")
        self.trouble = None

    def _put(self, name: str, content: bytes) -> bool:
        """Whether the object was written; False if there is one of this name."""
        try:
            put = self._ask(name, lambda: self._objects.put(name, content, mode="create"))
        except AlreadyExistsError:
            return False
        if put["version"] is not None:
            raise self._unfit(
                name,
                "the bucket keeps old versions of objects, so that nothing in it is ever deleted",
                "use a bucket for which versioning was never switched on",
            )
        return True

    def _content(self, name: str) -> bytes | None:
        try:
            return bytes(self._objects.get(name).bytes())
        except FileNotFoundError as error:
            if _NO_BUCKET in str(error):
                raise  # one object that is missing is damage; a bucket that is missing is a failing store
            return None

    def _size(self, name: str) -> int | None:
        """The size of the object; None if there is none."""

        def size() -> int | None:
            try:
                return self._objects.head(name)["size"]
            except FileNotFoundError:
                return None

        return self._ask(name, size)

    def _delete(self, name: str, paths: list[str]) -> None:
        self._ask(name, lambda: self._objects.delete(paths))

    def _present(self, name: str) -> list[str]:
        """All objects below a name, or the object that has the name."""
        return self._below(name) or ([name] if self.exists(name) else [])

    def _below(self, name: str) -> list[str]:
        return [meta["path"] for meta in self._listed(name)]

    def _listed(self, name: str) -> list["ObjectMeta"]:
        """All objects below a folder."""
        return self._ask(name, lambda: [meta for page in self._objects.list(name) for meta in page])

    def _ask(self, name: str, act: Callable[[], Answer]) -> Answer:
        """The result of a request. Raises UnavailableError; what the store said is not repeated."""
        try:
            return act()
        except AlreadyExistsError:
            raise
        except (PermissionDeniedError, UnauthenticatedError):
            raise self._failing(
                name,
                "the object storage refuses the proxy's credentials",
                "check the credentials and what they may do: get, put, delete and list objects",
            ) from None
        except (BaseError, OSError, ValueError) as error:
            if any(sign in str(error) for sign in _FULL):
                raise self._failing(name, "the object storage is full", slug="storage-full") from None
            raise self._failing(name, "the object storage does not answer, or fails") from None

    def _failing(
        self,
        name: str,
        problem: str,
        next_step: str = "check the object storage",
        slug: str = "storage-failing",
    ) -> UnavailableError:
        self.trouble = problem
        return UnavailableError(
            slug, problem, next_step, retry_after_seconds=_RETRY_AFTER_SECONDS, place=self.place(name)
        )

    def _unfit(self, name: str, problem: str, next_step: str) -> UnfitStoreError:
        self.trouble = problem
        return UnfitStoreError("storage-failing", problem, next_step, place=self.place(name))

    @staticmethod
    def _patiently(ask: Callable[[], Answer | None]) -> Answer | None:
        """What `ask` gives, asked again for some seconds while that is None."""
        for seconds in _WAITS:
            if (answer := ask()) is not None:
                return answer
            time.sleep(seconds)
        return ask()


def _entries(folder: str, paths: Iterable[str]) -> list[str]:
    """The files and folders directly in a folder, from the paths of all objects below it.

    The store could tell the folders itself, but some stores go on to name folders that are empty.
    """
    names = {path[len(folder) + 1 :].partition("/")[0] for path in paths}
    return sorted(name for name in names if not name.startswith("."))


def open_objects(address: str) -> ObjectStore:
    """The store at s3://BUCKET/PREFIX, with the endpoint, region and credentials of the environment.

    Raises:
        UsageError: `bad-settings` for the address or the credentials; `tls-required` for an endpoint with
            plain http beyond this machine.
    """
    bucket = parse_bucket(address)
    objects = S3Store(
        bucket.name,
        prefix=bucket.prefix or None,
        client_options={"allow_http": _may_use_http(os.environ), "timeout": _REQUEST},
        retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRYING},
        credential_provider=credentials_from_file(),
        checksum_algorithm="SHA256",
    )
    return ObjectStore(str(bucket), objects)


@lru_cache(maxsize=4)
def reopened(address: str) -> ObjectStore:
    """The store in a worker process, which keeps its connections from call to call."""
    return open_objects(address)


def _may_use_http(variables: Mapping[str, str]) -> bool:
    """Whether the endpoint may use plain http: on this machine, or if AWS_ALLOW_HTTP says so."""
    endpoint = given_endpoint(variables)
    return endpoint is not None and uses_http(endpoint)
