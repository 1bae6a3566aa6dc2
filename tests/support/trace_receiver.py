"""A collector of traces on loopback: it takes what an OTLP exporter sends, and keeps every span."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class Received:
    """One span, and the attributes of the service that sent it."""

    resource: dict[str, object]
    scope: str
    span: Span

    @property
    def attributes(self) -> dict[str, object]:
        return plain(self.span.attributes)


@dataclass
class Receiver:
    """What has arrived.

    Attributes:
        url: what a service names as its collector.
        spans: in the order of arrival.
        bodies: of all requests, as they came.
        paths: of all requests.
        status: what requests are answered with.
        hold: cleared while requests are not to be answered.
    """

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    status: int = 200
    hold: threading.Event = field(default_factory=threading.Event)

    def of(self, service: str) -> list[Received]:
        return [each for each in self.spans if each.resource["service.name"] == service]

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        self.bodies.append(body)
        if path != "/v1/traces":
            return
        for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = plain(sent.resource.attributes)
            for scope in sent.scope_spans:
                self.spans += [Received(resource, scope.scope.name, span) for span in scope.spans]


def plain(attributes: Iterable[KeyValue]) -> dict[str, object]:
    """Attributes as Python values."""
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A collector that answers at once, until the block ends."""
    receiver = Receiver()
    receiver.hold.set()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.take(self.path, body)
            receiver.hold.wait(60)
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.hold.set()
        server.shutdown()
        server.server_close()
