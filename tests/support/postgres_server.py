"""A PostgreSQL server of Debian's package for tests, with a data folder and a socket of its own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from installed import missing

FOLDER_VARIABLE = "POSTGRES_OF_TESTS"
"""Names the folder of a running server to the plugin `on_postgres`."""
_PROGRAMS = Path("/usr/lib/postgresql")
_SUPERUSER = "postgres"
_START_SECONDS = 60


def programs() -> Path:
    """The folder of the newest server's programs."""
    found = sorted(_PROGRAMS.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else missing("PostgreSQL", "Debian: postgresql")


class PostgresServer:
    """A server that only listens on a socket in its folder, and syncs its commits."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        self._binaries = binaries
        self._data, self._log = folder / "data", folder / "log"
        # A server refuses to run as root; Debian's package makes a user for it.
        self._as_user = ["runuser", "-u", _SUPERUSER, "--"] if os.geteuid() == 0 else []
        self._count = 0

    def make(self) -> None:
        if self._as_user:
            shutil.chown(self.folder, _SUPERUSER)
        self._run(
            "initdb",
            "--auth=trust",
            f"--username={_SUPERUSER}",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--data-checksums",
            "-D",
            str(self._data),
        )

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder}"
        log = str(self._log)
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-o", options, "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """`immediate` is like a crash: the next start recovers from the log."""
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def break_connections(self, database: str) -> None:
        """Ends every connection to a database."""
        # waits for their end, for at most so many milliseconds
        ending = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        self.execute(f"{ending} WHERE datname = '{database}' AND pid <> pg_backend_pid()")

    def dump(self, database: str, file: Path) -> None:
        """As an operator makes a backup."""
        self._run("pg_dump", "--format=custom", f"--file={file}", self.url(database))

    def restore(self, database: str, file: Path) -> None:
        """As an operator puts a backup back, in place of what the database has."""
        self.break_connections(database)
        self._run("dropdb", f"--maintenance-db={self.url('postgres')}", database)
        self.execute(f"CREATE DATABASE {database} TEMPLATE template0 ENCODING 'UTF8'")
        self._run("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={self.url(database)}", str(file))

    def kill(self) -> None:
        """Like a crash: the next start recovers from the log."""
        self.stop("immediate")

    def url(self, database: str) -> str:
        return f"postgresql://{_SUPERUSER}@/{database}?host={self.folder}"

    def new_database(self, like: str | None = None, encoding: str = "UTF8") -> str:
        """The name of a new database, empty or a copy of one. Whoever is connected to that is cut off."""
        self._count += 1
        name = f"test_{os.getpid()}_{self._count}"
        template = like or "template0"
        if like is not None:
            self.break_connections(like)
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} ENCODING '{encoding}'")
        return name

    def execute(self, statement: str, database: str = "postgres") -> None:
        """As an administrator, outside of any transaction."""
        with self.connect(database) as connection:
            connection.execute(statement.encode())

    def connect(self, database: str) -> psycopg.Connection:
        return psycopg.connect(
            host=str(self.folder), user=_SUPERUSER, dbname=database, autocommit=True, connect_timeout=10
        )

    def _run(self, program: str, *arguments: str) -> None:
        call = [*self._as_user, str(self._binaries / program), *arguments]
        done = subprocess.run(
            call,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,  # the server keeps it open
            stderr=subprocess.STDOUT,
            timeout=_START_SECONDS,
            check=False,
        )
        log = self._log.read_text() if self._log.exists() else ""
        assert done.returncode == 0, (program, done.stdout, log[-2000:])


@contextmanager
def running_server(binaries: Path) -> Iterator[PostgresServer]:
    """A server that is gone at the end, with everything that it stored."""
    # Not below a folder of pytest, which the server's user may not enter. A socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="dpdpca-pg-"))
    server = PostgresServer(folder, binaries)
    try:
        server.make()
        server.start()
        yield server
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
