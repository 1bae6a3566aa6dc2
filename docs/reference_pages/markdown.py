"""Pieces of Markdown."""

import re
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(r"([\\*_<>\[\]])")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table whose cells are Markdown; an empty list if there are no rows."""
    lines = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    if not lines:
        return []
    return [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *lines, ""]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def code(text: object) -> str:
    return f"`{text}`"


def plain(text: str) -> str:
    """Text with its markup characters escaped, except between backticks."""
    parts = text.split("`")
    return "`".join(part if index % 2 else _MARKUP.sub(r"\\\1", part) for index, part in enumerate(parts))


def fenced(text: str, language: str = "text") -> list[str]:
    return [f"```{language}", *text.rstrip().splitlines(), "```", ""]


def anchor(words: str) -> str:
    """The anchor of a heading of letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9_]+", "-", words.lower()).strip("-")
