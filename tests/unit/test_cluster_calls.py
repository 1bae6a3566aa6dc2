"""Calls for a cluster: sealed on their way, executed once or twice with one result, and plain errors."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from certificates import issue
from obstore.store import MemoryStore

from dpdpca_protocol.errors import (
    DpdpcaError,
    IntegrityError,
    PolicyError,
    UnavailableError,
    UsageError,
)
from dpdpca_protocol.release.prefetch import Shared
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.files import FileStore, FolderStore
from dpdpca_proxy.store.objects import ObjectStore
from dpdpca_proxy.study_files import CallFiles
from dpdpca_runtime.cluster import calls
from dpdpca_runtime.cluster.address import Cluster, ClusterTls, cluster_from, load_seal_key, parse_cluster
from dpdpca_runtime.cluster.calls import CallPickler, execute, open_outcome, run_call, seal_call
from dpdpca_runtime.cluster.carrier import Carrier, InMessage
from dpdpca_runtime.workers import WorkerFailedError

KEY, TOKEN = bytes(range(32)), bytes(16)
_stores: dict[str, ObjectStore] = {}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "seal.key"
    path.touch(mode=0o600)
    path.write_text(f"{KEY.hex()}\n")
    return path


def packed(function: Callable[..., Any], *args: Any, carrier: Carrier) -> bytes:
    call = BytesIO()
    CallPickler(call, lambda value: carrier.put(pickle.dumps(value))).dump((function, args, {}))
    return call.getvalue()


def ask(key_file: Path, function: Callable[..., Any], *args: Any, carrier: Carrier | None = None) -> Any:
    carrier = carrier or InMessage()
    ticket = carrier.put(packed(function, *args, carrier=carrier))
    outcome = execute(TOKEN, seal_call(TOKEN, carrier, ticket, KEY), key_file)
    return open_outcome(TOKEN, outcome, carrier, KEY)


def fail(error: Exception) -> None:
    raise error


def test_a_call_gives_its_result(key_file: Path) -> None:
    assert ask(key_file, divmod, 7, 2) == (3, 1)


def test_no_two_envelopes_are_alike(key_file: Path) -> None:
    ticket = packed(divmod, 7, 2, carrier=InMessage())
    envelopes = [seal_call(TOKEN, InMessage(), ticket, KEY) for _ in range(2)]
    assert envelopes[0] != envelopes[1]
    outcomes = [execute(TOKEN, envelope, key_file) for envelope in (envelopes[0], *envelopes)]
    assert len(set(outcomes)) == 3


def test_no_two_kept_calls_are_alike(tmp_path: Path) -> None:
    carrier = CallFiles(FolderStore(tmp_path), bytes(32), "calls")
    names = [carrier.put(b"a call").decode() for _ in range(2)]
    contents = [carrier.store.read(name) for name in names]
    assert len(set(names)) == 2
    assert contents[0] != contents[1]
    assert b"a call" not in contents[0]


def test_all_envelopes_have_one_size(key_file: Path, tmp_path: Path) -> None:
    carrier = CallFiles(FolderStore(tmp_path), bytes(32), "calls")
    tickets = [carrier.put(packed(len, bytes(size), carrier=carrier)) for size in (0, 1000, 100_000)]
    envelopes = [seal_call(TOKEN, carrier, ticket, KEY) for ticket in tickets]
    outcomes = [execute(TOKEN, envelope, key_file) for envelope in envelopes]
    assert len(set(map(len, envelopes))) == len(set(map(len, outcomes))) == 1


def opened(name: str) -> ObjectStore:
    return _stores[name]


class InMemory(ObjectStore):
    """Found again by what is pickled, as the store of a worker is."""

    def __reduce__(self) -> tuple[Callable[[str], ObjectStore], tuple[str]]:
        return opened, (self.address,)


@pytest.fixture(params=["folder", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "files")
    _stores["memory"] = InMemory("memory", MemoryStore())
    return _stores["memory"]


def test_a_call_that_is_executed_twice_has_one_result_for_its_caller(
    store: FileStore, key_file: Path
) -> None:
    """Its executions do not write under one name, so that neither changes what the caller reads."""
    carrier = CallFiles(store, bytes(32), "calls")
    ticket = carrier.put(packed(os.urandom, 16, carrier=carrier))
    envelope = seal_call(TOKEN, carrier, ticket, KEY)
    first, second = execute(TOKEN, envelope, key_file), execute(TOKEN, envelope, key_file)
    before = open_outcome(TOKEN, first, carrier, KEY)
    assert open_outcome(TOKEN, second, carrier, KEY) != before
    assert open_outcome(TOKEN, first, carrier, KEY) == before
    assert len(store.entries("calls")) == 3
    carrier.close()
    assert not store.entries("calls")


def test_a_result_that_is_gone_is_no_damage_of_the_study(store: FileStore, key_file: Path) -> None:
    """The files of calls are short-lived, and a step whose files are gone is tried again."""
    carrier = CallFiles(store, bytes(32), "calls")
    ticket = carrier.put(packed(divmod, 7, 2, carrier=carrier))
    outcome = execute(TOKEN, seal_call(TOKEN, carrier, ticket, KEY), key_file)
    carrier.close()
    assert refused(lambda: open_outcome(TOKEN, outcome, carrier, KEY)) == "worker-refused"


@dataclass(frozen=True)
class Table(Shared):
    content: bytes


def length(table: Table) -> tuple[int, int]:
    return len(table.content), id(table)


def test_a_shared_value_is_read_once(store: FileStore, key_file: Path) -> None:
    carrier, table = CallFiles(store, bytes(32), "calls"), Table(bytes(10_000))
    shared = carrier.put(pickle.dumps(table))
    answers = []
    for _ in range(2):
        call = BytesIO()
        CallPickler(call, lambda value: shared).dump((length, (table,), {}))
        assert len(call.getvalue()) < 1000
        envelope = seal_call(TOKEN, carrier, carrier.put(call.getvalue()), KEY)
        answers.append(open_outcome(TOKEN, execute(TOKEN, envelope, key_file), carrier, KEY))
    assert answers[0] == answers[1], "two copies"
    assert answers[0][0] == 10_000
    calls._shared_here.clear()


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (IntegrityError("state-corrupt", "a stored file is missing"), IntegrityError, "missing"),
        (OSError(28, "secret path"), OSError, "No space"),
        (ValueError("secret"), WorkerFailedError, "ValueError"),
    ],
)
def test_errors_come_back_without_what_they_might_tell(
    key_file: Path, error: Exception, kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told) as raised:
        ask(key_file, fail, error)
    assert "secret" not in str(raised.value)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(DpdpcaError) as error:
        act()
    return error.value.slug


def altered(sealed: bytes) -> bytes:
    return sealed[:-1] + bytes([sealed[-1] ^ 1])


def test_what_was_altered_moved_or_sealed_under_another_key_is_refused(key_file: Path) -> None:
    envelope = seal_call(TOKEN, InMessage(), packed(divmod, 7, 2, carrier=InMessage()), KEY)
    outcome = execute(TOKEN, envelope, key_file)
    other = bytes(15) + b"1"
    assert refused(lambda: execute(other, envelope, key_file)) == "worker-refused"
    assert refused(lambda: execute(TOKEN, altered(envelope), key_file)) == "worker-refused"
    assert refused(lambda: open_outcome(other, outcome, InMessage(), KEY)) == "worker-refused"
    assert refused(lambda: open_outcome(TOKEN, altered(outcome), InMessage(), KEY)) == "worker-refused"
    assert refused(lambda: open_outcome(TOKEN, envelope, InMessage(), KEY)) == "worker-refused"
    key_file.write_text("00" * 32)
    assert refused(lambda: execute(TOKEN, envelope, key_file)) == "worker-refused"
    key_file.unlink()
    assert refused(lambda: execute(TOKEN, envelope, key_file)) == "worker-refused"


def test_a_worker_of_another_version_or_without_the_files_says_so(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = seal_call(TOKEN, CallFiles(FolderStore(tmp_path), KEY, "calls"), b"calls/none", KEY)
    with pytest.raises(UnavailableError, match="cannot read the files"):
        execute(TOKEN, envelope, key_file)
    monkeypatch.setattr(calls, "_version", lambda: "9.9")
    with pytest.raises(UnavailableError, match=r"has dpdpca 9\.9"):
        execute(TOKEN, envelope, key_file)


def test_calls_run_in_a_process_that_ends_when_it_is_idle(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPDPCA_EXECUTOR_SEAL_KEY", str(key_file))
    monkeypatch.setattr(calls, "IDLE_SECONDS", 3600.0)

    def pid() -> Any:
        envelope = seal_call(TOKEN, InMessage(), packed(os.getpid, carrier=InMessage()), KEY)
        return open_outcome(TOKEN, run_call(TOKEN, envelope), InMessage(), KEY)

    first = pid()
    assert first != os.getpid()
    assert pid() == first
    calls._calls_here._end()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert pid() != first
    calls._calls_here._end()
    monkeypatch.delenv("DPDPCA_EXECUTOR_SEAL_KEY")
    with pytest.raises(UnavailableError, match="not set"):
        pid()


# Settings

FILES: dict[str, Any] = {"ca": Path("ca"), "cert": Path("cert"), "key": Path("key")}
NO_FILES: dict[str, Any] = dict.fromkeys(FILES)
SEAL = Path("seal")


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("dask://scheduler:8786", "tls://scheduler:8786"),
        ("dask://10.0.0.7:1", "tls://10.0.0.7:1"),
        ("dask://[fd00::1]:65535", "tls://[fd00::1]:65535"),
    ],
)
def test_another_machine_is_reached_over_tls_alone(address: str, url: str) -> None:
    assert parse_cluster(address, **FILES, seal_key=SEAL).url == url
    assert refused(lambda: parse_cluster(address, **NO_FILES, seal_key=SEAL)) == "tls-required"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_this_machine_may_do_without(host: str) -> None:
    assert parse_cluster(f"dask://{host}:8786", **NO_FILES, seal_key=SEAL).url == f"tcp://{host}:8786"


@pytest.mark.parametrize(
    "address",
    [
        *("scheduler:8786", "tcp://localhost:1", "dask://localhost", "dask://localhost:0", "dask://a:70000"),
        *("dask://user:word@a:1", "dask://a:1/path", "dask://:1", "dask://a b:1", ""),
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    assert refused(lambda: parse_cluster(address, **FILES, seal_key=SEAL)) == "bad-settings"


@pytest.mark.parametrize("missing", FILES)
def test_files_come_together(missing: str) -> None:
    given = {**FILES, missing: None}
    assert refused(lambda: parse_cluster("dask://localhost:1", **given, seal_key=SEAL)) == "bad-settings"
    assert refused(lambda: parse_cluster("dask://localhost:1", **FILES, seal_key=None)) == "bad-settings"


def test_files_are_checked_before_the_service_starts(tmp_path: Path, key_file: Path) -> None:
    made = issue(tmp_path, "member")
    tls = ClusterTls(made.certificate_file, made.certificate_file, made.key_file)
    Cluster("scheduler", 1, key_file, tls).check()
    absent = ClusterTls(tmp_path / "none", made.certificate_file, made.key_file)
    assert refused(Cluster("scheduler", 1, key_file, absent).check) == "bad-settings"


def test_a_service_that_lacks_dask_says_so_before_it_starts(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match="not installed"):
        Cluster("localhost", 1, key_file).check()


def test_a_seal_key_is_private_and_complete(key_file: Path) -> None:
    assert load_seal_key(key_file) == KEY
    key_file.chmod(0o644)
    with pytest.raises(PolicyError, match="other users"):
        load_seal_key(key_file)
    key_file.chmod(0o600)
    for content in ("", "00" * 31, "xx" * 32, "é"):
        key_file.write_text(content)
        assert refused(partial(load_seal_key, key_file)) == "bad-settings"
    key_file.unlink()
    assert refused(partial(load_seal_key, key_file)) == "bad-settings"


def test_one_variable_names_the_cluster_to_every_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster_from({}) is None
    assert load_settings(tmp_path).cluster is None
    variables = {
        "DPDPCA_EXECUTOR": "dask://scheduler:8786",
        "DPDPCA_EXECUTOR_SEAL_KEY": "/keys/seal",
        "DPDPCA_EXECUTOR_TLS_CA": "/keys/ca",
        "DPDPCA_EXECUTOR_TLS_CERT": "/keys/cert",
        "DPDPCA_EXECUTOR_TLS_KEY": "/keys/key",
        "DPDPCA_EXECUTOR_LEAST_SECONDS": "0.5",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tls = ClusterTls(Path("/keys/ca"), Path("/keys/cert"), Path("/keys/key"))
    assert cluster_from(variables) == Cluster("scheduler", 8786, Path("/keys/seal"), tls, 0.5)
    assert load_settings(tmp_path).cluster == cluster_from(variables)
    monkeypatch.setenv("DPDPCA_PROXY_EXECUTOR", "dask://other:1")
    cluster = load_settings(tmp_path).cluster
    assert cluster is not None
    assert cluster.url == "tls://other:1"
    assert (
        refused(lambda: cluster_from({**variables, "DPDPCA_EXECUTOR_LEAST_SECONDS": "x"})) == "bad-settings"
    )


def test_settings_of_a_cluster_that_do_not_fit_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="executor: the Dask scheduler"):
        load_settings(tmp_path, executor="dask://scheduler:8786", executor_seal_key="seal")


def test_a_service_without_a_cluster_does_not_import_dask() -> None:
    program = (
        "import sys, dpdpca_proxy.serve, dpdpca_proxy.worker, dpdpca_owner.records.on_cluster;"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'dask', 'distributed', 'tornado'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
