"""For operators: logs with an allow-list of fields, metrics without content, health and readiness. Traces are
in `traces`.

A log line is one JSON object with a time, a level, the logger's name and an event. The only other fields that
are printed are those in `LOG_FIELDS`. Of messages from other libraries only the template is printed, never
the arguments. So names, keys, bodies and path parameters cannot be logged by accident. `file` is a file of
the service that is damaged or cannot be written.
"""

import json
import logging
import sys
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dpdpca_runtime.asgi.contract import operation
from dpdpca_runtime.asgi.traces import METHOD, NO_TRACES, ROUTE, STATUS, Traces, begin
from dpdpca_runtime.bodies import Health, NotReady, Readiness

LOG_FIELDS: Final = (
    "route",
    "method",
    "status",
    "milliseconds",
    "slug",
    "incident",
    "error_class",
    "place",
    "file",
    "study",
    "party",
    "phase",
    "state",
    "count",
    "address",
    "reason",
    "expires_at",
)
_OUR_LOGGERS = "dpdpca"
_BUCKETS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)

Labels = tuple[tuple[str, str], ...]


class AllowListFormatter(logging.Formatter):
    """One JSON object for each line: time, level, logger, event, and the present fields of `LOG_FIELDS`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": str(record.msg)[:120] if isinstance(record.msg, str) else "event",
        }
        if record.name.partition(".")[0] == _OUR_LOGGERS:
            for field in LOG_FIELDS:
                value = getattr(record, field, None)
                if value is not None:
                    line[field] = value if isinstance(value, int | float) else str(value)[:200]
        elif record.exc_info and record.exc_info[0] is not None:
            line["error_class"] = record.exc_info[0].__name__
        return json.dumps(line, ensure_ascii=True)


def configure_logging(level: str = "INFO") -> None:
    """Sends all log lines of this process through the allow-list to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(AllowListFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_OUR_LOGGERS).setLevel(level)
    # uvicorn's access log would repeat paths. Our own line has the route's template instead.
    logging.getLogger("uvicorn.access").disabled = True


class Metrics:
    """Counters, gauges and histograms, and their text format for Prometheus.

    Labels come from fixed sets (route templates, states, slugs), never from requests.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._buckets: dict[str, dict[Labels, list[int]]] = defaultdict(dict)
        self._sums: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._gauges: dict[str, Callable[[], Mapping[Labels, float]]] = {}

    def count(self, name: str, /, by: float = 1, **labels: str) -> None:
        with self._lock:
            self._counters[name][tuple(sorted(labels.items()))] += by

    def measure(self, name: str, seconds: float, /, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            buckets = self._buckets[name].setdefault(key, [0] * (len(_BUCKETS) + 1))
            buckets[bisect_left(_BUCKETS, seconds)] += 1
            self._sums[name][key] += seconds

    def gauge(self, name: str, read: Callable[[], Mapping[Labels, float]]) -> None:
        """Adds a gauge. `read` is called when the metrics are requested."""
        self._gauges[name] = read

    def text(self) -> str:
        lines: list[str] = []
        with self._lock:
            for name, series in sorted(self._counters.items()):
                lines.append(f"# TYPE {name} counter")
                lines += [f"{name}{_labels(key)} {value:g}" for key, value in sorted(series.items())]
            for name, histograms in sorted(self._buckets.items()):
                lines.append(f"# TYPE {name} histogram")
                for key, buckets in sorted(histograms.items()):
                    lines += _histogram(name, key, buckets, self._sums[name][key])
            gauges = sorted(self._gauges.items())
        for name, read in gauges:
            lines.append(f"# TYPE {name} gauge")
            lines += [f"{name}{_labels(key)} {value:g}" for key, value in sorted(read().items())]
        return "\n".join(lines) + "\n"


class ObserveMiddleware:
    """One log line, one measurement and one span for each request, by the route's template."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, clock: Callable[[], float], traces: Traces = NO_TRACES
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock
        self._traces = traces
        self._logger = logging.getLogger("dpdpca.requests")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, began = begin(), self._clock()
        status = 0

        async def watching_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watching_send)
        finally:
            seconds = self._clock() - began
            route = str(getattr(scope.get("route"), "path", "unmatched"))
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.count("dpdpca_requests_total", route=route, method=method, status=str(status))
            self._metrics.measure("dpdpca_request_seconds", seconds, route=route)
            answered = {STATUS: status} if status else {}  # there is no answer if the client is gone
            attributes = {METHOD: method, ROUTE: route, **answered}
            self._traces.end(begun, f"{method} {route}", attributes, failed=status == 0 or status >= 500)
            self._logger.info(
                "request",
                extra={
                    "route": route,
                    "method": method,
                    "status": status,
                    "milliseconds": round(seconds * 1000, 1),
                },
            )


_METHODS = frozenset({"GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"})


def install_health(app: FastAPI, ready: Callable[[], str | None], problems: Sequence[str] = ()) -> None:
    """Adds `/healthz` (the process answers) and `/readyz` (it can do its work).

    Args:
        app: the application.
        ready: called in a thread. `ready` returns None if all is well, else the reason, without secrets.
        problems: the problems that both routes can give besides `internal`.
    """

    @app.get(
        "/healthz",
        tags=["health"],
        summary="Check that the process answers",
        **operation(Health, ["internal", *problems], described="The process answers.", is_open=True),
    )
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get(
        "/readyz",
        tags=["health"],
        summary="Check that the service can do its work",
        **operation(
            Readiness,
            ["internal", *problems],
            described="The service can do its work.",
            is_open=True,
            otherwise={503: NotReady},
        ),
    )
    async def readyz(_request: Request) -> Response:
        reason = await run_in_threadpool(ready)
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not-ready", "reason": reason}, status_code=503)


def _labels(key: Labels) -> str:
    if not key:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in key) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _histogram(name: str, key: Labels, buckets: list[int], total: float) -> list[str]:
    lines = []
    below = 0
    for edge, hits in zip((*map(str, _BUCKETS), "+Inf"), buckets, strict=True):
        below += hits
        lines.append(f"{name}_bucket{_labels((*key, ('le', edge)))} {below}")
    return [*lines, f"{name}_sum{_labels(key)} {total:g}", f"{name}_count{_labels(key)} {below}"]
