"""The reference pages are as the code would have them, and leave nothing out."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpdpca_cli.variables import known_variables
from dpdpca_proxy.settings import Settings as ProxySettings
from dpdpca_runtime.asgi.problem_table import PROBLEMS
from dpdpca_user_service.settings import Settings as UserSettings
from reference_pages.__main__ import FOLDER, PAGES, written
from reference_pages.command_errors import COMMAND_ERRORS
from reference_pages.python_api import PACKAGES
from reference_pages.settings import CLIENT_VARIABLES

ROOT = Path(__file__).parents[2]
WINGS = ("protocol", "runtime", "services", "clients")
COMPOSED = {
    f"{who}-key-{what}" for who in ("proxy", "user", "owner") for what in ("changed", "rolled-back")
} | {
    "study-cancelled",
    "study-failed",
}
"""Names that the code puts together."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_would_have_it(name: str) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    assert page == written(name), f"run: make reference (docs/reference/{name})"


def test_no_page_is_left_over() -> None:
    assert {page.name for page in FOLDER.iterdir()} == set(PAGES)


def slugs() -> Iterator[str]:
    """Names of errors that stand where the code raises them."""
    for wing in WINGS:
        for path in (ROOT / wing).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error") and node.args:
                    first = node.args[0]
                    if isinstance(first, ast.Constant) and re.fullmatch("[a-z]+(-[a-z]+)+", str(first.value)):
                        yield str(first.value)


def test_every_error_has_its_row() -> None:
    assert set(slugs()) - PROBLEMS.keys() - COMMAND_ERRORS.keys() == set()


def test_every_row_is_of_an_error_that_there_is() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for wing in WINGS for path in (ROOT / wing).rglob("*.py")
    )
    assert [slug for slug in COMMAND_ERRORS if slug not in COMPOSED and f'"{slug}"' not in sources] == []


def test_every_error_says_what_to_do() -> None:
    assert [slug for slug, kind in PROBLEMS.items() if not kind.remedy] == []
    assert [slug for slug, texts in COMMAND_ERRORS.items() if not all(texts)] == []


def test_every_variable_has_its_row() -> None:
    of_services = {
        settings.prefix() + name.upper()
        for settings in (ProxySettings, UserSettings)
        for name in settings.model_fields
    }
    assert known_variables() - of_services == CLIENT_VARIABLES.keys()


@pytest.mark.parametrize("settings", [ProxySettings, UserSettings])
def test_every_setting_says_what_it_means(settings: type[ProxySettings] | type[UserSettings]) -> None:
    assert [name for name, field in settings.model_fields.items() if not field.description] == []


def test_every_package_with_a_public_api_has_its_section() -> None:
    packages = [
        path.name for wing in (*WINGS, "lab") for path in (ROOT / wing).glob("dpdpca_*") if path.is_dir()
    ]
    public = {package for package in packages if getattr(importlib.import_module(package), "__all__", None)}
    assert public <= set(PACKAGES)
