"""`make reference`: writes the reference pages from the code."""

import sys
from collections.abc import Callable
from pathlib import Path

from reference_pages import commands, messages, problems, python_api, rest, settings, terms

FOLDER = Path(__file__).resolve().parents[1] / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "draft.md": terms.draft_page,
    "draft.schema.json": terms.draft_schema_file,
    "errors.md": problems.page,
    "manifest.md": terms.manifest_page,
    "proxy-api.md": rest.proxy_page,
    "python.md": python_api.page,
    "settings.md": settings.page,
    "user-api.md": rest.user_page,
}
_MARK = "<!-- Written by `make reference` from the code: do not edit. -->\n\n"


SPECIFICATION = FOLDER.parent / "spec.md"
_BEGIN = "<!-- messages: written by `make reference` -->"
_END = "<!-- end of messages -->"


def written(name: str) -> str:
    """The page as the code generates it."""
    mark = _MARK if name.endswith(".md") else ""
    return f"{mark}{PAGES[name]().rstrip()}\n"


def with_messages(specification: str) -> str:
    """The specification with the tables of all messages between its two marks."""
    before, begin, rest = specification.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin, "the mark at the start of the messages is missing"
    assert end, "the mark at the end of the messages is missing"
    return f"{before}{_BEGIN}\n\n{messages.section()}\n\n{_END}{after}"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / name).write_text(written(name), encoding="utf-8")
        sys.stdout.write(f"docs/reference/{name}\n")
    SPECIFICATION.write_text(with_messages(SPECIFICATION.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write("docs/spec.md\n")


if __name__ == "__main__":
    main()
