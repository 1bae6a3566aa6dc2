"""Glossary, compatibility, names of files and links of all pages."""

import re
import tomllib
from pathlib import Path

import pytest

from dpdpca_protocol.wire.signing import FORMAT

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def rows(page: str) -> list[list[str]]:
    """The cells of the first table of a page, without its head."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_the_glossary_has_one_line_for_each_word_in_order() -> None:
    words = [row[0] for row in rows("glossary.md")]
    keys = [re.sub(r"^[^ ]+ \((\w+)\)$", r"\1", word) if word[0] in "δερ" else word for word in words]
    assert len(words) > 60
    assert [key.lower() for key in keys] == sorted({key.lower() for key in keys})
    assert all(len(row) == 2 and row[1] for row in rows("glossary.md"))


def test_the_present_version_is_supported_with_its_message_format() -> None:
    series = ".".join(PROJECT["version"].split(".")[:2]) + ".x"
    (present,) = [row for row in rows("compatibility.md") if row[0] == series]
    assert present[1] == str(FORMAT)
    assert present[2] == PROJECT["requires-python"].replace(">=", "") + " or newer"
    assert present[3].startswith("yes")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_wheels_are_named_as_they_are_built(page: Path) -> None:
    named = re.findall(r"dpdpca-([\d.]+)-py3", page.read_text(encoding="utf-8"))
    assert set(named) <= {PROJECT["version"]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    """Places within a page are checked where the site is built."""
    text = re.sub(
        r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    assert [link for link in links if link and "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_list_begins_after_an_empty_line(page: Path) -> None:
    """Without it the site shows the list as running text."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^(?![ \-#]|\d+\. )\S.*\n(?:- |\d+\. ).*", text, re.MULTILINE) == []


def test_no_page_installs_by_name() -> None:
    """A name on a registry that is not ours would be somebody else's program."""
    for page in PAGES:
        for line in re.findall(r"pip install [^\n`]*", page.read_text(encoding="utf-8")):
            assert not re.search(r"install (-\S+ )*['\"]?dpdpca\b(?!-)", line), f"{page.name}: {line}"
