"""docs/operations.md names every setting, metric and error type of the proxy."""

import re
from pathlib import Path

import pytest

from dpdpca_proxy.settings import Settings

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


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_its_line(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", found(r'"(dpdpca_\w+)", ?(?:route|slug|transaction|seconds|lambda)'))
def test_every_metric_has_its_line(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("slug", found(r'Error\(\s*"([a-z-]+)"') + found(r'^    4\d\d: \("([a-z-]+)"'))
def test_every_error_type_has_its_line(slug: str) -> None:
    assert f"`{slug}`" in PAGE
