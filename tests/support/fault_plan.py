"""Named points at every write of a server, and what may go wrong at one of them, the k-th of its name.

A `FaultPlan` is installed in a process that serves and does nothing else: it wraps the file functions, the
statements and commits of the database, the writing and deleting of objects, and the sending of answers. The
product has no switch for it.

Modes: `die` kills the process with what it has written so far (files may be torn, the page cache survives);
`power` also takes away every file, folder and name that was not synced; `lie` does the same where each sync
of a file was only pretended; `error` lets the one act fail as a bad disk or a lost connection would.
"""

import errno
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.engine.default import DefaultDialect
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from dpdpca_protocol.errors import UnavailableError
from dpdpca_runtime.database import Database

DIE, POWER, LIE, ERROR = "die", "power", "lie", "error"
_CHANGES = ("INSERT", "UPDATE", "DELETE")


class Point(NamedTuple):
    """By its name, since work in the background moves what a count of all points would say."""

    name: str
    turn: int = 1


class FaultPlan:
    """Points that were passed since `arm`, and the one at which something happens."""

    def __init__(self, tell: Callable[[], None]) -> None:
        """Args: tell: called at the point at which something happens, just before it does."""
        self._tell = tell
        self._lock = threading.RLock()
        self._at: Point | None = None
        self._mode = DIE
        self._passed: list[Point] = []
        self._torn: set[Path] = set()
        """Files whose content is not on the disk yet."""
        self._new: dict[Path, bytes | None] = {}
        """Names that are not on the disk yet, and what stood there before."""

    def arm(self, at: Point | None, mode: str = DIE) -> None:
        """From now on notes points; at this one does as `mode` says, then nothing more."""
        with self._lock:
            self._passed, self._at, self._mode = [], at, mode
            self._torn, self._new = set(), {}

    def disarm(self) -> list[Point]:
        """Lets nothing happen any more; the points that were passed."""
        with self._lock:
            self._at = None
            return list(self._passed)

    def so_far(self) -> list[Point]:
        """Points that were passed; not while the process is on its way out."""
        with self._lock:
            return list(self._passed)

    def point(self, name: str, failure: Callable[[], BaseException]) -> None:
        """Passes a point; where it is the one, and the mode is `error`, raises `failure`."""
        with self._lock:
            point = Point(name, 1 + sum(earlier.name == name for earlier in self._passed))
            self._passed.append(point)
            if point != self._at:
                return
            self._tell()
            if self._mode == ERROR:
                raise failure()
            if self._mode in (POWER, LIE):
                self._lose_power()
            os.kill(os.getpid(), signal.SIGKILL)

    def _lose_power(self) -> None:
        for path in self._torn:
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)
        for path, before in reversed(self._new.items()):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif before is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(before)

    # files

    def opened(self, path: Path) -> None:
        with self._lock:
            self._torn.add(path)
            self._new[path] = None

    def synced(self, path: Path) -> None:
        with self._lock:
            if self._mode == LIE:
                return
            self._torn.discard(path)
            if path.is_dir():
                self._new = {name: old for name, old in self._new.items() if name.parent != path}

    def renamed(self, path: Path, target: Path, before: bytes | None) -> None:
        with self._lock:
            if path in self._torn:
                self._torn.remove(path)
                self._torn.add(target)
            self._new.pop(path, None)
            self._new[target] = before

    def made_folder(self, path: Path) -> None:
        with self._lock:
            self._new[path] = None


def _io_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


def _database_error(engine: str) -> Exception:
    """Of a disk that fails, as the driver of this engine says it."""
    if engine == "postgresql":
        from psycopg.errors import IoError

        return IoError("could not write")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


def _store_error() -> UnavailableError:
    return UnavailableError("storage-failing", "the object storage does not answer, or fails")


class _LostAnswerError(Exception):
    """Stands for an answer that does not arrive."""


class _TornFile:
    """A file whose content is written in two halves, with a point between them."""

    def __init__(self, plan: FaultPlan, file: Any) -> None:
        self._plan, self._file = plan, file

    def __enter__(self) -> "_TornFile":
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, content: bytes) -> int:
        half = len(content) // 2
        self._file.write(content[:half])
        self._file.flush()
        self._plan.point("write", _io_error)
        self._file.write(content[half:])
        return len(content)


def install(plan: FaultPlan) -> None:
    """Puts the points into this process, for good."""
    _wrap_files(plan)
    _wrap_database(plan)
    _wrap_objects(plan)
    _wrap_answers(plan)


def _wrap_files(plan: FaultPlan) -> None:
    real_open, real_fdopen, real_fsync = os.open, os.fdopen, os.fsync
    real_replace, real_unlink, real_mkdir = Path.replace, Path.unlink, Path.mkdir
    real_rmtree = shutil.rmtree

    def opening(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if not flags & os.O_CREAT:
            return real_open(path, flags, *rest, **options)
        plan.point("create", _io_error)
        descriptor = real_open(path, flags, *rest, **options)
        plan.opened(Path(path))
        return descriptor

    def fdopening(descriptor: int, mode: str = "r", *rest: Any, **options: Any) -> Any:
        file = real_fdopen(descriptor, mode, *rest, **options)
        return _TornFile(plan, file) if mode == "wb" else file

    def syncing(descriptor: int) -> None:
        plan.point("sync", _io_error)
        real_fsync(descriptor)
        plan.synced(Path(f"/proc/self/fd/{descriptor}").readlink())

    def replacing(self: Path, target: Any) -> Path:
        plan.point("rename", _io_error)
        target = Path(target)
        before = target.read_bytes() if target.is_file() else None
        result = real_replace(self, target)
        plan.renamed(self, target, before)
        return result

    def unlinking(self: Path, missing_ok: bool = False) -> None:
        if self.exists():
            plan.point("remove", _io_error)
        real_unlink(self, missing_ok=missing_ok)

    def making(self: Path, *arguments: Any, **options: Any) -> None:
        plan.point("folder", _io_error)
        real_mkdir(self, *arguments, **options)
        plan.made_folder(self)

    def removing(path: Any, *arguments: Any, **options: Any) -> None:
        plan.point("remove tree", _io_error)
        files = sorted(Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        for file in files[: len(files) // 2]:
            real_unlink(file, missing_ok=True)  # another thread may remove the same tree, as the product may
        plan.point("remove half a tree", _io_error)
        real_rmtree(path, *arguments, **options)

    for owner, name, act in (
        (os, "open", opening),
        (os, "fdopen", fdopening),
        (os, "fsync", syncing),
        (Path, "replace", replacing),
        (Path, "unlink", unlinking),
        (Path, "mkdir", making),
        (shutil, "rmtree", removing),
    ):
        setattr(owner, name, act)


def _wrap_database(plan: FaultPlan) -> None:
    real_execute, real_many = DefaultDialect.do_execute, DefaultDialect.do_executemany
    real_commit: Callable[..., None] = DefaultDialect.do_commit
    real_forget = Database.forget_deleted
    changed: set[int] = set()

    def changing(real: Callable[..., Any]) -> Callable[..., Any]:
        def executing(self: Any, cursor: Any, statement: str, *rest: Any, **options: Any) -> Any:
            if statement.startswith(_CHANGES):
                changed.add(id(cursor.connection))
                plan.point(" ".join(statement.split()[:3]), lambda: _database_error(self.name))
            return real(self, cursor, statement, *rest, **options)

        return executing

    def committing(self: DefaultDialect, connection: Any) -> None:
        key = id(connection.dbapi_connection if hasattr(connection, "dbapi_connection") else connection)
        if key not in changed:
            real_commit(self, connection)
            return
        plan.point("commit", lambda: _database_error(self.name))
        real_commit(self, connection)
        changed.discard(key)
        plan.point("committed", lambda: _database_error(self.name))

    def forgetting(self: Database) -> bool:
        plan.point("checkpoint", _io_error)
        is_done = real_forget(self)
        plan.point("checkpointed", _io_error)
        return is_done

    _replace(DefaultDialect, do_execute=changing(real_execute), do_executemany=changing(real_many))
    _replace(DefaultDialect, do_commit=committing)
    _replace(Database, forget_deleted=forgetting)


def _wrap_objects(plan: FaultPlan) -> None:
    """Only where the extra `s3` is installed, as in all tests."""
    from dpdpca_proxy.store.objects import ObjectStore

    real_put, real_remove, real_probe = ObjectStore._put, ObjectStore.remove, ObjectStore.probe

    def putting(self: ObjectStore, name: str, content: bytes) -> bool:
        plan.point("put", _store_error)
        is_new = real_put(self, name, content)
        plan.point("have put", _store_error)
        return is_new

    def deleting(self: ObjectStore, name: str) -> None:
        plan.point("delete", _store_error)
        real_remove(self, name)
        plan.point("deleted", _store_error)

    def probing(self: ObjectStore) -> None:
        real_probe(self)
        plan.point("probed", _store_error)

    _replace(ObjectStore, _put=putting, remove=deleting, probe=probing)


def _wrap_answers(plan: FaultPlan) -> None:
    real_send = RequestResponseCycle.send

    async def sending(self: Any, message: Any) -> None:
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        with suppress(_LostAnswerError):
            if message["type"] == "http.response.start":
                plan.point("answer", _LostAnswerError)
            await real_send(self, message)
            if last:
                plan.point("answered", _LostAnswerError)
            return
        self.transport.abort()

    _replace(RequestResponseCycle, send=sending)


def _replace(owner: type, **methods: Callable[..., Any]) -> None:
    for name, method in methods.items():
        setattr(owner, name, method)
