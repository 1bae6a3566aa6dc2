"""`make reference`: writes the reference pages from the code."""

import sys
from collections.abc import Callable
from pathlib import Path

from reference_pages import (
    commands,
    messages,
    papers,
    problems,
    python_api,
    requests,
    rest,
    scale,
    settings,
    terms,
)

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


PAPERS = FOLDER.parent / "papers.md"
SCALE = FOLDER.parent / "scale.md"
SPECIFICATION = FOLDER.parent / "spec.md"
_GENERATED: dict[str, Callable[[], str]] = {"requests": requests.section, "messages": messages.section}
"""Parts of the specification, between two marks that name them."""


def written(name: str) -> str:
    """The page as the code generates it."""
    mark = _MARK if name.endswith(".md") else ""
    return f"{mark}{PAGES[name]().rstrip()}\n"


def papers_page() -> str:
    """The page on the papers, from the declared experiments and the results beside it."""
    return f"{_MARK}{papers.page().rstrip()}\n"


def scale_page() -> str:
    """The page on large studies, from the model and the measurements beside it."""
    return f"{_MARK}{scale.page().rstrip()}\n"


def completed(specification: str) -> str:
    """The specification with its generated parts between their marks."""
    for name, section in _GENERATED.items():
        begin, end = f"<!-- {name}: written by `make reference` -->", f"<!-- end of {name} -->"
        before, has_begin, rest = specification.partition(begin)
        _, has_end, after = rest.partition(end)
        assert has_begin, f"the mark at the start of the {name} is missing"
        assert has_end, f"the mark at the end of the {name} is missing"
        specification = f"{before}{begin}\n\n{section()}\n\n{end}{after}"
    return specification


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / name).write_text(written(name), encoding="utf-8")
        sys.stdout.write(f"docs/reference/{name}\n")
    PAPERS.write_text(papers_page(), encoding="utf-8")
    sys.stdout.write("docs/papers.md\n")
    SCALE.write_text(scale_page(), encoding="utf-8")
    sys.stdout.write("docs/scale.md\n")
    SPECIFICATION.write_text(completed(SPECIFICATION.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write("docs/spec.md\n")


if __name__ == "__main__":
    main()
