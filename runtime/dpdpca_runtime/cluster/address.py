"""Where a Dask cluster is, and how one connects to it. Nothing here imports Dask."""

import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dpdpca_protocol.errors import NotFoundError, UnavailableError, UsageError
from dpdpca_protocol.wire.address import is_loopback
from dpdpca_protocol.wire.sealing import DATA_KEY_BYTES
from dpdpca_runtime.files import read_private
from dpdpca_runtime.home_folder import expanded

VARIABLE = "DPDPCA_EXECUTOR"
"""The variable with the address. The variables of the files begin with it."""
SEAL_KEY_VARIABLE = f"{VARIABLE}_SEAL_KEY"
LEAST_SECONDS = 2.0
"""Work that takes one core less than this stays on this machine, unless a setting says otherwise."""

_SETTINGS = ("TLS_CA", "TLS_CERT", "TLS_KEY", "SEAL_KEY", "LEAST_SECONDS")
_SCHEME = "dask://"
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_PROBE_SECONDS = 3.0
_RETRY_AFTER_SECONDS = 10


@dataclass(frozen=True, slots=True)
class ClusterTls:
    """The PEM files of a party of the cluster: the cluster's authority, and its own certificate and key."""

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Dask cluster for long work.

    Attributes:
        host: the scheduler's host.
        port: the scheduler's port.
        seal_key: the file with the key under which calls pass the scheduler. All workers have the same.
        tls: the files for TLS, or None for plain TCP on this machine.
        least_seconds: work that takes one core less than this is not given to the cluster.
    """

    host: str
    port: int
    seal_key: Path
    tls: ClusterTls | None = None
    least_seconds: float = LEAST_SECONDS

    @property
    def url(self) -> str:
        """The scheduler's address as Dask writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'tcp'}://{host}:{self.port}"

    def check(self) -> None:
        """Checks that Dask is installed, and that the files can be read.

        Raises:
            UsageError: `bad-settings`, the error names the file.
            PolicyError: others can read the seal key.
        """
        self.check_installed()
        load_seal_key(self.seal_key)
        if self.tls is not None:
            self._context(self.tls)

    @staticmethod
    def check_installed() -> None:
        """Raises UsageError `bad-settings`: Dask is not installed."""
        if find_spec("distributed") is None:
            raise UsageError(
                "bad-settings",
                "a Dask cluster needs distributed, which is not installed",
                "install it with: pip install 'dpdpca[dask]'",
            )

    def probe(self) -> None:
        """Connects to the scheduler's port, with TLS if it is set.

        Raises:
            UnavailableError: `cluster-unreachable`.
        """
        try:
            with socket.create_connection((self.host, self.port), _PROBE_SECONDS) as link:
                if self.tls is not None:
                    with self._context(self.tls).wrap_socket(link):
                        pass
        except OSError as error:
            raise self.unreachable() from error

    def unreachable(self, problem: str = "does not answer") -> UnavailableError:
        return UnavailableError(
            "cluster-unreachable",
            f"the Dask scheduler {self.url} {problem}",
            "start the scheduler, and check the address and the certificates; the work is tried again",
            retry_after_seconds=_RETRY_AFTER_SECONDS,
        )

    @staticmethod
    def _context(tls: ClusterTls) -> ssl.SSLContext:
        """As in Dask, the authority decides who belongs to the cluster, and names are not compared."""
        try:
            context = ssl.create_default_context(cafile=str(tls.ca))
            context.check_hostname = False
            context.load_cert_chain(tls.cert, tls.key)
        except OSError as error:
            raise UsageError(
                "bad-settings",
                "a certificate or key for the Dask cluster cannot be loaded",
                f"check the PEM files {tls.ca}, {tls.cert} and {tls.key}",
            ) from error
        return context


def load_seal_key(path: Path) -> bytes:
    """The 32 bytes of the seal key, which a file has as 64 hex digits.

    Raises:
        UsageError: `bad-settings`, there is no such file or no such key in it.
        PolicyError: others can read the file.
    """
    try:
        key = bytes.fromhex(read_private(path).decode("ascii").strip())
    except NotFoundError as error:
        raise _bad_key(path, "is missing") from error
    except ValueError:
        key = b""
    if len(key) != DATA_KEY_BYTES:
        raise _bad_key(path, "does not contain a key")
    return key


def parse_cluster(
    address: str,
    *,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    seal_key: Path | None,
    least_seconds: float = LEAST_SECONDS,
) -> Cluster:
    """The cluster at dask://HOST:PORT.

    Args:
        address: the scheduler's address.
        ca: PEM file with the authority of the cluster.
        cert: PEM file with the certificate of this party.
        key: PEM file with the key of this certificate.
        seal_key: file with the key that all workers have.
        least_seconds: see `Cluster`.

    Raises:
        UsageError: `bad-settings`, or `tls-required` for another machine without TLS.
    """
    found = _ADDRESS.fullmatch(address.removeprefix(_SCHEME)) if address.startswith(_SCHEME) else None
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise UsageError(
            "bad-settings",
            "the address of a Dask scheduler must be dask://HOST:PORT",
            "write the address like dask://scheduler:8786",
        )
    if seal_key is None:
        raise UsageError(
            "bad-settings",
            "a Dask cluster needs a seal key, so that its scheduler cannot read the calls",
            f"set {SEAL_KEY_VARIABLE} to a file with 64 hex digits that all workers have too",
        )
    host, files = found["host"].strip("[]"), (ca, cert, key)
    if None in files and any(files):
        raise UsageError(
            "bad-settings",
            "TLS to a Dask cluster needs three files: authority, certificate and key",
            f"set {VARIABLE}_TLS_CA, {VARIABLE}_TLS_CERT and {VARIABLE}_TLS_KEY, or none of them",
        )
    if ca is None or cert is None or key is None:
        if not is_loopback(host):
            raise UsageError(
                "tls-required",
                f"the Dask scheduler {host} is another machine, and there is no TLS to it",
                f"set {VARIABLE}_TLS_CA, {VARIABLE}_TLS_CERT and {VARIABLE}_TLS_KEY",
            )
        return Cluster(host, int(found["port"]), seal_key, None, least_seconds)
    return Cluster(host, int(found["port"]), seal_key, ClusterTls(ca, cert, key), least_seconds)


def cluster_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of the variables DPDPCA_EXECUTOR…, by their names in a settings file."""
    names = ("", *(f"_{name}" for name in _SETTINGS))
    given = {name: environment.get(f"{VARIABLE}{name}") for name in names}
    return {f"executor{name.lower()}": value for name, value in given.items() if value}


def cluster_from(environment: Mapping[str, str]) -> Cluster | None:
    """The cluster that the variables DPDPCA_EXECUTOR… name, or None. Raises like `parse_cluster`."""
    given = cluster_variables(environment)
    if "executor" not in given:
        return None

    def file(name: str) -> Path | None:
        path = given.get(f"executor_{name}")
        return None if path is None else expanded(Path(path)).absolute()

    seconds = given.get("executor_least_seconds", str(LEAST_SECONDS))
    try:
        least_seconds = float(seconds)
    except ValueError as error:
        raise UsageError(
            "bad-settings",
            f"{VARIABLE}_LEAST_SECONDS is not a number of seconds",
            f"write a number like {LEAST_SECONDS}",
        ) from error
    return parse_cluster(
        given["executor"],
        ca=file("tls_ca"),
        cert=file("tls_cert"),
        key=file("tls_key"),
        seal_key=file("seal_key"),
        least_seconds=least_seconds,
    )


def _bad_key(path: Path, problem: str) -> UsageError:
    return UsageError(
        "bad-settings",
        f"the seal key of the Dask cluster, {path}, {problem}",
        "make a key with: (umask 077; openssl rand -hex 32 > FILE), and copy it to every worker",
    )
