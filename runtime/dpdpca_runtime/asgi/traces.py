"""Traces for operators: one span for each request and for each step of a job, over OTLP/HTTP.

Off unless the operator names a collector; until then nothing of OpenTelemetry is imported. Spans carry only
the attributes in `ATTRIBUTES`, whose values come from fixed sets: route templates, methods, statuses, phases.
No span has ids, sizes, addresses, headers, events or links. Every span is the root of a trace of its own:
trace context that clients send is not read, and none is sent to anybody. Times are in whole milliseconds, so
that they tell less about work with secrets. Spans go to a bounded queue, and a thread exports them. If the
collector is slow or away, spans are lost and nothing else happens.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.wire.address import parse_address

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer  # only services with a collector load it

METHOD, ROUTE, STATUS, PHASE = (
    "http.request.method",
    "http.route",
    "http.response.status_code",
    "dpdpca.phase",
)
ATTRIBUTES: Final = frozenset({METHOD, ROUTE, STATUS, PHASE})
"""All attributes that a span may have."""
OWN_TRACES_ONLY: Final[dict[str, Any]] = {
    "telemetry": dict.fromkeys(("auto_configure", "logs", "metrics", "operation_spans", "tracing"), False)
}
"""Options of every FastAPI application. Newer versions can export paths, messages of exceptions and stack
traces by themselves, if variables of the environment say so. Older versions ignore the option."""

_MOST_WAITING = 2048
"""Spans in the queue; further ones are dropped."""
_BATCH = 256
_EVERY_MILLISECONDS = 2000
_EXPORT_SECONDS = 5.0
_STOP_SECONDS = 3.0
"""How long a service that ends waits for the last spans to leave."""


class Begun(NamedTuple):
    """When something began: by the wall clock, and by the clock that measures its duration."""

    wall_ns: int
    steady_ns: int


def begin() -> Begun:
    """Now. Every span begins with this, also while traces are off."""
    return Begun(time.time_ns(), time.monotonic_ns())


class Traces:
    """Where spans go. This one drops them."""

    def end(
        self, begun: Begun, name: str, attributes: Mapping[str, str | int], *, failed: bool = False
    ) -> None:
        """Records a span that ends now.

        Args:
            begun: from `begin`.
            name: from a fixed set, like the attributes.
            attributes: those that are not in `ATTRIBUTES` are left out.
            failed: whether the operation failed. Why it failed is not recorded.
        """

    @contextmanager
    def step(self, phase: str) -> Iterator[None]:
        """A span for one step of a job, which fails if the block raises."""
        begun, failed = begin(), True
        try:
            yield
            failed = False
        finally:
            self.end(begun, f"step {phase}", {PHASE: phase}, failed=failed)


NO_TRACES: Final = Traces()


class _Exported(Traces):
    """Spans for a collector."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer

    def end(
        self, begun: Begun, name: str, attributes: Mapping[str, str | int], *, failed: bool = False
    ) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import StatusCode

        allowed = {key: value for key, value in attributes.items() if key in ATTRIBUTES}
        start = _milliseconds(begun.wall_ns)
        span = self._tracer.start_span(name, Context(), attributes=allowed, start_time=start)
        if failed:
            span.set_status(StatusCode.ERROR)
        span.end(start + _milliseconds(time.monotonic_ns() - begun.steady_ns))


def _milliseconds(ns: int) -> int:
    """A time in nanoseconds, cut to whole milliseconds."""
    return ns - ns % 1_000_000


@contextmanager
def open_traces(collector: str | None, service: str) -> Iterator[Traces]:
    """Where the spans of a service go while the context lasts.

    Args:
        collector: the address of an OpenTelemetry collector, from the settings; None for no traces. What the
            collector demands besides, such as headers or an authority, is in the exporter's own variables
            OTEL_EXPORTER_OTLP_….
        service: the name of the service.

    Raises:
        UsageError: `bad-address`, `tls-required`.
        ModuleNotFoundError: the extra `otel` is not installed.
    """
    if collector is None:
        yield NO_TRACES
        return
    try:
        address = parse_address(collector)
    except UsageError as error:
        raise UsageError(error.slug, f"traces: {error.problem}", error.next_step) from error
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    session = requests.Session()
    session.trust_env = False  # no proxy and no password from the environment
    exporter = OTLPSpanExporter(f"{address}/v1/traces", timeout=_EXPORT_SECONDS, session=session)
    # A bare resource: the usual one adds whatever the environment says of the machine.
    resource = Resource({"service.name": service, "service.version": version("dpdpca")})
    provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, _MOST_WAITING, _EVERY_MILLISECONDS, _BATCH, _EXPORT_SECONDS * 1000)
    )
    try:
        yield _Exported(provider.get_tracer("dpdpca"))
    finally:
        # In a thread of its own: a collector that does not answer must not keep the service from ending.
        ending = threading.Thread(target=provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(_STOP_SECONDS)
        if ending.is_alive():
            # Ends its retries; the remaining spans are lost.
            exporter.shutdown()  # type: ignore[no-untyped-call] # it has no types
