"""A relay between one client and the proxy: counts what passes, alters answers, cuts a request in half.

It speaks HTTP and knows no keys, so it can do what anyone on the way could, and no more.
"""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_NOT_FORWARDED = frozenset({"connection", "transfer-encoding", "keep-alive"})
Alter = Callable[[str, bytes], bytes]


@dataclass
class Relay:
    """What the relay has seen, and what it shall do.

    Attributes:
        seen: method and path of every request, in order of arrival.
        bodies: the body of each of them.
        cut: asked before a request is forwarded; where true, half of it is, and the relay falls silent.
        lose: asked when the answer is there; where true, the client's connection is closed without it.
        alter: made of (path, body of an answer), the body that the client gets.
        host: made of the Host header that came, the one that goes on.
        fell_silent: set when a request was cut.
    """

    seen: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    cut: Callable[[str, str], bool] = lambda method, path: False
    lose: Callable[[str, str], bool] = lambda method, path: False
    alter: Alter = lambda path, body: body
    host: Callable[[str], str] = lambda host: host
    fell_silent: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)

    def count(self, method: str, part: str) -> int:
        return sum(method == verb and part in path for verb, path in self.seen)


@contextmanager
def relaying(port: int, to_port: int) -> Iterator[Relay]:
    """A relay on loopback from `port` to `to_port`, until the block ends."""
    relay = Relay()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            relay.seen.append((self.command, self.path))
            relay.bodies.append(body)
            server = http.client.HTTPConnection("127.0.0.1", to_port, timeout=60)
            try:
                server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                server.putheader("host", relay.host(self.headers["host"]))
                for name, value in self.headers.items():
                    if name.lower() not in _NOT_FORWARDED | {"host"}:
                        server.putheader(name, value)
                server.endheaders()
                if relay.cut(self.command, self.path):
                    server.send(body[: len(body) // 2])
                    relay.fell_silent.set()
                    relay._ended.wait()
                    return
                server.send(body)
                answer = server.getresponse()
                content = answer.read()
                if relay.lose(self.command, self.path):
                    self.close_connection = True
                    return
                self._answer(answer, relay.alter(self.path, content))
            finally:
                server.close()

        def _answer(self, answer: http.client.HTTPResponse, content: bytes) -> None:
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _NOT_FORWARDED | {"content-length"}:
                    self.send_header(name, value)
            if answer.status != 204:
                self.send_header("content-length", str(len(content)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(content)

    for method in ("GET", "POST", "PUT", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._pass_on)
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay._ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
