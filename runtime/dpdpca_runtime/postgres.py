"""PostgreSQL as the engine of a `Database`: its address, its transactions, and the meaning of its errors.

Before it reads, a writer takes advisory locks for what it is about: a shared lock of the database and of each
larger thing, and an exclusive lock of the thing itself. So writers of different studies run side by side, and
a writer about everything runs alone, as with `BEGIN IMMEDIATE` in SQLite. Readers see one state from
beginning to end and wait for nobody. The server syncs a commit to its disk before it confirms the commit, and
only then frees the locks.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import ClassVar, Final

import psycopg  # SQLAlchemy loads it later; without it, nothing here works
from sqlalchemy import URL, Connection, create_engine, make_url
from sqlalchemy.exc import ArgumentError

from dpdpca_protocol.errors import DpdpcaError, UnavailableError, UsageError
from dpdpca_protocol.wire.address import is_loopback
from dpdpca_runtime.engine import BUSY_SECONDS, DatabaseEngine, busy, refused_statement

SECONDS: Final = "SELECT CAST(floor(extract(epoch FROM clock_timestamp())) AS BIGINT)"
"""The clock of the database, in seconds since 1970. `now()` would stand still during a transaction."""

_DRIVER: Final = "postgresql+psycopg"
_EXAMPLE: Final = "write it like postgresql://dpdpca@db.example.org/dpdpca?sslmode=verify-full"
_KNOWN: Final = frozenset({"host", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl"})
"""Parameters of an address. All others could weaken the connection or the guarantees of a commit."""
_VERIFYING: Final = frozenset({"verify-ca", "verify-full"})

_WRITERS: Final = 0x6470_6470_6361
"""The key of the lock of everything. PostgreSQL keeps the locks of each database apart, and keys of 64 bits
apart from keys of twice 32 bits, which all other things have."""
TURN: Final = f"SELECT pg_advisory_xact_lock({_WRITERS + 1})"
"""Takes the lock of `wait_turn`. It is always the last lock that a transaction takes."""
_CONNECTIONS, _MORE_CONNECTIONS = 8, 8
_WRITERS_AT_ONCE = _CONNECTIONS
"""Of one process. The other connections are for readers, even if all writers wait for a lock."""
_SESSION: Final = {
    "synchronous_commit": "on",
    "lock_timeout": f"{BUSY_SECONDS}s",
    # A machine that vanishes must not keep its locks.
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_CONNECT: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "client_encoding": "utf8",
    "application_name": "dpdpca",
    "options": " ".join(f"-c {name}={value}" for name, value in _SESSION.items()),
    # A prepared plan would not survive an upgrade of the schema by another process.
    "prepare_threshold": None,
}
_NEEDED: Final = {"fsync": "on", "server_encoding": "UTF8"}

_FULL: Final = frozenset({"53100"})
_PASSING: Final = {
    "40001": "is busy",
    "40P01": "is busy",
    "55P03": "is busy",
    "57014": "is busy",
    "25P03": "waited too long for this program",
    "53300": "has no free connection",
    "57P03": "is starting or stopping",
}
_FAILING: Final = {
    "25006": "cannot be written",
    "53200": "has no memory left",
    "58030": "cannot be read or written",
    "42501": "does not let this user do this",
    "3D000": "does not exist",
}
_FAILING_CLASSES: Final = {
    "08": "cannot be reached",
    "28": "does not accept this user",
    "53": "has no resources left",
    "57": "has ended the connection",
    "58": "cannot be read or written",
}
_AWAY_CLASSES, _AWAY_SECONDS = frozenset({"08", "57"}), 5
"""A server that restarts is back soon."""
_CORRUPT_CLASSES: Final = {"23": "contradicts itself", "XX": "is damaged"}

_logger = logging.getLogger("dpdpca.store")


class Postgres(DatabaseEngine):
    """A database on a server.

    Args:
        url: from `postgres_url`.
    """

    driver_errors = psycopg.Error
    restore: ClassVar[str] = (
        "stop the service, keep a copy of its home and of the database, then restore both from the newest "
        "backup"
    )

    def __init__(self, url: URL) -> None:
        folder = {"host": url.query["host"]} if "host" in url.query else {}  # of a socket
        parts = url.username, None, url.host, url.port, url.database, folder  # without a password
        self.place = URL.create("postgresql", *parts).render_as_string()
        self.engine = create_engine(
            url,
            pool_size=_CONNECTIONS,
            max_overflow=_MORE_CONNECTIONS,
            pool_timeout=BUSY_SECONDS,
            pool_pre_ping=True,  # after a restart of the server, its old connections are replaced unnoticed
            connect_args=_CONNECT,
        )
        self._writers = self.engine.execution_options(isolation_level="READ COMMITTED")
        self._writing = threading.BoundedSemaphore(_WRITERS_AT_ONCE)
        self._readers = self.engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )

    def make(self) -> None:
        """An administrator makes the database itself."""

    def check_whole(self) -> None:
        """Raises UsageError if the server could lose a commit, or could not store every text."""
        with self.reading() as connection:
            for name, needed in _NEEDED.items():
                found = connection.exec_driver_sql(f"SHOW {name}").scalar_one()
                if found != needed:
                    raise UsageError(
                        "bad-settings",
                        f"the database server has {name} = {found}, but this program needs {needed}",
                        "change the setting of the server"
                        if name == "fsync"
                        else "make a database with the encoding UTF8",
                        place=self.place,
                    )

    def claim(self, connection: Connection, role: str) -> None:
        """Writes the role into the comment of a table, because two roles may be given one address."""
        asked = "SELECT obj_description('alembic_version'::regclass, 'pg_class')"
        mine, found = f"dpdpca {role}", connection.exec_driver_sql(asked).scalar_one()
        if found is None:
            connection.exec_driver_sql(f"COMMENT ON TABLE alembic_version IS '{mine}'")
        elif found != mine:
            raise UsageError(
                "bad-settings",
                "the database belongs to another role",
                "give each role a database of its own",
                place=self.place,
            )

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A consistent view for reading."""
        with self.errors_translated(), self._readers.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self, about: Sequence[bytes] = ()) -> Iterator[Connection]:
        """A transaction that waits for all others that it excludes before it reads anything.

        Every statement sees what was committed before it. As long as the locks are held, that is nothing new
        in the rows of what the transaction is about. A snapshot of the whole transaction would be older than
        the locks.
        """
        with (
            self._writing,
            self.errors_translated(),
            self._writers.connect() as connection,
            connection.begin(),
        ):
            connection.exec_driver_sql(f"SELECT {', '.join(_locks(about))}")
            yield connection

    def forget_deleted(self) -> bool:
        """Does nothing. A client cannot remove deleted rows from a server's files, logs and replicas."""
        return True

    def translated(self, error: BaseException | None) -> DpdpcaError:
        state = getattr(error, "sqlstate", None) or ""
        lost = not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        _logger.error("database", extra={"reason": state, "error_class": type(error).__name__})
        if state in _FULL:
            return UnavailableError(
                "storage-full",
                "the disk of the database is full",
                "make room on the disk of the database server; nothing else is needed",
                retry_after_seconds=60,
                place=self.place,
            )
        if state in _PASSING:
            return busy(f"the database {_PASSING[state]}")
        failing = "cannot be reached" if lost else _FAILING.get(state) or _FAILING_CLASSES.get(state[:2])
        is_away = lost or state[:2] in _AWAY_CLASSES
        if failing:
            return UnavailableError(
                "storage-failing",
                f"the database {failing}",
                "check the address, the password and the certificate of the database, its server and the "
                "server's log, then try again",
                retry_after_seconds=_AWAY_SECONDS if is_away else 60,
                place=self.place,
            )
        if state[:2] in _CORRUPT_CLASSES:
            return self.corrupt(_CORRUPT_CLASSES[state[:2]])
        return refused_statement(self.place, "pg_amcheck")


def _locks(about: Sequence[bytes]) -> list[str]:
    """Calls of the server that take the locks of a transaction, the largest thing first."""
    keys = [f"{_WRITERS}", *(_key(about[:depth]) for depth in range(1, len(about) + 1))]
    return [*(_lock(key, "_shared") for key in keys[:-1]), _lock(keys[-1])]


def _lock(key: str, kind: str = "") -> str:
    return f"pg_advisory_xact_lock{kind}({key})"


def _key(thing: Sequence[bytes]) -> str:
    """Two numbers of 32 bits. If two things had the same, their writers would only wait more often."""
    digest = sha256(b"".join(len(part).to_bytes(4, "big") + part for part in thing)).digest()
    halves = (int.from_bytes(digest[at : at + 4], "big", signed=True) for at in (0, 4))
    return ", ".join(map(str, halves))


def postgres_url(text: str) -> URL:
    """The address of a database, as an operator writes it. Errors never contain the address.

    Raises:
        UsageError: `bad-settings`, the text is no address of a PostgreSQL database, or its connection would
            not be verified TLS to another machine.
    """
    try:
        url = make_url(text)
        hosts = [*([url.host] if url.host else []), *_values(url, "host")]
        _ = url.port
    except (ArgumentError, ValueError) as error:
        raise _unfit("is not the address of a database") from error
    if url.drivername not in ("postgresql", "postgres", _DRIVER):
        raise _unfit("is not the address of a PostgreSQL database")
    if not url.database:
        raise _unfit("does not name a database")
    if len(hosts) != 1 or not hosts[0]:
        raise _unfit("must name exactly one host, or the folder of a socket with ?host=/FOLDER")
    if unknown := sorted(set(url.query) - _KNOWN):
        raise UsageError(
            "bad-settings",
            f"the address of the database has the parameter {unknown[0]!r}, which is not supported",
            f"use only these parameters: {', '.join(sorted(_KNOWN))}",
        )
    (host,) = hosts
    is_near = host.startswith("/") or is_loopback(host)
    if not is_near and not set(_values(url, "sslmode")) & _VERIFYING:
        raise UsageError(
            "tls-required",
            "the connection to the database would leave this machine without verified TLS",
            "add ?sslmode=verify-full to the address, and sslrootcert=FILE if a private authority certified "
            "the server",
        )
    return url.set(drivername=_DRIVER)


def _values(url: URL, name: str) -> tuple[str, ...]:
    return tuple(url.normalized_query.get(name, ()))


def _unfit(how: str) -> UsageError:
    return UsageError("bad-settings", f"the address of the database {how}", _EXAMPLE)
