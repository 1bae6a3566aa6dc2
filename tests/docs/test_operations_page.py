"""docs/operations.md names every metric of the proxy; settings and error types have pages of their own."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
SOURCES = [
    path.read_text()
    for folder in (
        "services/dpdpca_proxy",
        "runtime/dpdpca_runtime/asgi",
        "runtime/dpdpca_runtime/workers.py",
    )
    for path in sorted((ROOT / folder).rglob("*.py")) or [ROOT / folder]
]


def found(pattern: str) -> list[str]:
    return sorted({match for source in SOURCES for match in re.findall(pattern, source)})


@pytest.mark.parametrize("name", found(r'"(dpdpca_\w+)", ?(?:route|slug|transaction|seconds|lambda)'))
def test_every_metric_has_its_line(name: str) -> None:
    assert f"`{name}`" in PAGE
