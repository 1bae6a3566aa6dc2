"""Logs by allow-list, metrics in Prometheus' text form, health."""

import json
import logging
import sys

import pytest
from promises import Promise

from dpdpca_runtime.asgi.observe import LOG_FIELDS, AllowListFormatter, Metrics


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


@pytest.mark.parametrize("name", ["dpdpca.user", "uvicorn.error", "asyncio", "sqlalchemy.engine", "root"])
def test_an_unknown_key_does_not_get_through(name: str, promise: Promise) -> None:
    """Whatever a record carries: other members, arguments, an error's text, a stack, no text at all."""
    secret = "correct-horse-4711"
    logger = logging.getLogger(name)
    try:
        raise ValueError(secret)
    except ValueError:
        failure = sys.exc_info()
    records = [
        logger.makeRecord(
            name, logging.ERROR, "f", 1, "x %s", (secret,), failure, extra={"password": secret}
        ),
        logger.makeRecord(name, logging.ERROR, "f", 1, "x %(a)s", ({"a": secret},), None, sinfo=secret),
        logger.makeRecord(name, logging.ERROR, "f", 1, {"a": secret}, (), None),
        logger.makeRecord(
            name, logging.ERROR, "f", 1, "x", (), None, extra={"Route": secret, "_study": secret}
        ),
        logger.makeRecord(name, logging.ERROR, secret, 1, "x", (), None, func=secret),
    ]
    for record in records:
        shown = AllowListFormatter().format(record)
        assert secret not in shown
        assert set(json.loads(shown)) <= {"time", "level", "logger", "event", *LOG_FIELDS}
    promise(
        "P25",
        counted=f"{len(records)} log records of {name} with what is not allowed",
        result="0 let through",
    )


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
