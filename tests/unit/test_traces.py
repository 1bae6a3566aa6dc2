"""Traces: what a span may say, who is believed, and that a collector which fails harms nobody."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from opentelemetry import propagate
from opentelemetry.trace import get_current_span
from starlette.testclient import TestClient
from trace_receiver import Receiver, receiving

from dpdpca_cli import main as cli
from dpdpca_protocol.errors import UsageError
from dpdpca_runtime.asgi.observe import Metrics, ObserveMiddleware
from dpdpca_runtime.asgi.traces import ATTRIBUTES, METHOD, NO_TRACES, PHASE, ROUTE, STATUS, begin, open_traces

STUDY = "ab" * 32
FOREIGN = {
    "traceparent": f"00-{'1c' * 16}-{'2d' * 8}-01",
    "tracestate": "vendor=hospital",
    "baggage": "patient=4711",
}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def served(receiver: Receiver, *paths: str) -> list[dict[str, str]]:
    """Requests to a small service with traces; returns what its handlers would have passed on."""
    passed_on: list[dict[str, str]] = []
    app = FastAPI()

    @app.get("/v1/studies/{study}/share")
    def share(study: str) -> dict[str, str]:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        passed_on.append(carrier)
        assert not get_current_span().get_span_context().is_valid
        if study == "failing":
            raise ValueError(f"a secret of {study}")
        return {}

    with open_traces(receiver.url, "dpdpca-proxy") as traces:
        app.add_middleware(ObserveMiddleware, metrics=Metrics(), clock=time.monotonic, traces=traces)
        client = TestClient(app, raise_server_exceptions=False)
        for path in paths:
            client.get(path, headers=FOREIGN)
    return passed_on


def test_a_request_is_told_by_its_template(receiver: Receiver) -> None:
    served(receiver, f"/v1/studies/{STUDY}/share?version=7", f"/v1/{STUDY}", "/v1/studies/failing/share")
    told = [each.attributes for each in receiver.spans]
    route = "/v1/studies/{study}/share"
    assert told == [
        {METHOD: "GET", ROUTE: route, STATUS: 200},
        {METHOD: "GET", ROUTE: "unmatched", STATUS: 404},
        {METHOD: "GET", ROUTE: route},  # the handler raised an error
    ]
    assert [each.span.name for each in receiver.spans] == [f"GET {route}", "GET unmatched", f"GET {route}"]
    assert [each.span.status.code for each in receiver.spans] == [0, 0, 2]
    assert not any(each.span.events or each.span.status.message for each in receiver.spans)
    sent = b"".join(receiver.bodies)
    for secret in (STUDY, "failing", "secret", "version=7", "testserver", "hospital", "patient"):
        assert secret.encode() not in sent


def test_context_of_others_is_not_believed_and_none_is_passed_on(receiver: Receiver) -> None:
    passed_on = served(receiver, *(f"/v1/studies/{STUDY}/share" for _ in range(3)))
    assert passed_on == [{}, {}, {}]
    traces = {each.span.trace_id for each in receiver.spans}
    assert len(traces) == 3  # each request is a trace of its own
    assert bytes.fromhex("1c" * 16) not in traces
    assert all(not each.span.parent_span_id for each in receiver.spans)
    assert all(not each.span.trace_state and not each.span.links for each in receiver.spans)


def test_only_listed_attributes_leave_and_times_are_whole_milliseconds(receiver: Receiver) -> None:
    with open_traces(receiver.url, "dpdpca-user") as traces:
        traces.end(begin(), "step fit", {PHASE: "fit", "study": STUDY, "http.url": "/x", "records": 7})
        with pytest.raises(ZeroDivisionError), traces.step("draw"):
            1 / 0  # noqa: B018 # what a step may do
    fit, draw = receiver.spans
    assert fit.attributes == {PHASE: "fit"}
    assert (draw.span.name, draw.attributes, draw.span.status.code) == ("step draw", {PHASE: "draw"}, 2)
    assert not draw.span.events
    for each in receiver.spans:
        assert set(each.resource) == {"service.name", "service.version"}
        assert each.span.start_time_unix_nano % 1_000_000 == each.span.end_time_unix_nano % 1_000_000 == 0
        assert each.span.start_time_unix_nano <= each.span.end_time_unix_nano
    assert {METHOD, ROUTE, STATUS, PHASE} == ATTRIBUTES


def test_the_environment_adds_nothing(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=ward-7,service.instance.id=4711")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "another")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with open_traces(receiver.url, "dpdpca-user") as traces, traces.step("fit"):
        pass
    (only,) = receiver.spans
    assert only.resource["service.name"] == "dpdpca-user"
    assert b"ward-7" not in b"".join(receiver.bodies)


@pytest.mark.parametrize("fault", ["refuses", "answers with an error", "never answers", "is not there"])
def test_a_collector_that_fails_neither_stops_nor_slows_anything(receiver: Receiver, fault: str) -> None:
    collector = "http://127.0.0.1:9" if fault == "is not there" else receiver.url
    receiver.status = {"refuses": 403, "answers with an error": 503}.get(fault, 200)
    if fault == "never answers":
        receiver.hold.clear()
    begun = time.monotonic()
    with open_traces(collector, "dpdpca-proxy") as traces:
        for _ in range(20_000):  # many times what the queue holds
            traces.end(begin(), "GET /healthz", {METHOD: "GET"})
    # A request that waited for the collector even once in a hundred times would take minutes.
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("collector", "slug"),
    [
        ("http://collector.example:4318", "tls-required"),
        ("collector:4318", "bad-address"),
        ("https://user:hidden@collector.example", "bad-address"),
        ("https://collector.example/v1/traces", "bad-address"),
    ],
)
def test_a_collector_that_cannot_be_is_refused_at_the_start(collector: str, slug: str) -> None:
    with pytest.raises(UsageError) as refusal, open_traces(collector, "dpdpca-proxy"):
        pass
    assert refusal.value.slug == slug
    assert "traces:" in str(refusal.value)
    assert "hidden" not in str(refusal.value)


def test_without_the_extra_a_service_refuses_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPDPCA_PROXY_HOME", str(tmp_path / "proxy"))
    monkeypatch.setenv("DPDPCA_PROXY_TRACES", "http://127.0.0.1:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SystemExit) as left:
        cli.main(["proxy", "serve"])
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert "is not installed" in said
    assert "pip install '.[otel]'" in said


def test_without_a_collector_no_exporter_is_imported() -> None:
    """FastAPI itself imports the empty interface of OpenTelemetry."""
    code = (
        "import sys, dpdpca_proxy.serve, dpdpca_user_service.app\n"
        "from dpdpca_runtime.asgi.traces import begin, open_traces\n"
        "with open_traces(None, 'x') as traces, traces.step('draw'):\n"
        "    traces.end(begin(), 'y', {})\n"
        "print([name for name in sys.modules if '.sdk' in name or '.exporter' in name])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with open_traces(None, "x") as traces:
        assert traces is NO_TRACES
