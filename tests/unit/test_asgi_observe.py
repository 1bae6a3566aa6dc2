"""Logs by allow-list, metrics in Prometheus' text form, health."""

import json
import logging

from dpdpca_asgi.observe import AllowListFormatter, Metrics


def line(name: str, message: str, *args: object, **extra: object) -> dict[str, object]:
    record = logging.getLogger(name).makeRecord(name, logging.INFO, "f", 1, message, args, None, extra=extra)
    formatted = json.loads(AllowListFormatter().format(record))
    assert isinstance(formatted, dict)
    return formatted


def test_only_allowed_fields_are_printed() -> None:
    shown = line("dpdpca.x", "request", route="/v1/studies", status=200, token="4711", milliseconds=1.5)
    assert (shown["event"], shown["route"], shown["status"], shown["milliseconds"]) == (
        "request",
        "/v1/studies",
        200,
        1.5,
    )
    assert "4711" not in json.dumps(shown)


def test_arguments_of_other_libraries_are_dropped() -> None:
    shown = line("uvicorn.error", "Invalid request from %s", "4711", route="/4711")
    assert "4711" not in json.dumps(shown)
    assert shown["event"] == "Invalid request from %s"


def test_metrics_have_prometheus_text_form() -> None:
    metrics = Metrics()
    metrics.count("hits_total", route='a"b')
    metrics.count("hits_total", 2, route='a"b')
    metrics.measure("seconds", 0.03, route="x")
    metrics.measure("seconds", 100.0, route="x")
    metrics.gauge("level", lambda: {(("state", "open"),): 3.0})
    lines = metrics.text().splitlines()
    assert r'hits_total{route="a\"b"} 3' in lines
    assert 'seconds_bucket{route="x",le="0.025"} 0' in lines
    assert 'seconds_bucket{route="x",le="0.1"} 1' in lines
    assert 'seconds_bucket{route="x",le="+Inf"} 2' in lines
    assert 'seconds_count{route="x"} 2' in lines
    assert 'level{state="open"} 3' in lines
    assert "# TYPE seconds histogram" in lines
