"""`make docs` builds the site, every link leads somewhere, and no page needs another host."""

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
ADDRESSES = {"href", "src", "srcset", "action", "data", "poster", "content"}


class Page(HTMLParser):
    """What a page refers to, and the places in it that others can refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.policies: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "meta":
            if (given.get("http-equiv") or "").lower() == "content-security-policy":
                self.policies.append(given.get("content") or "")
            return
        self.addresses += [value for name, value in attrs if name in ADDRESSES and value is not None]
        self.anchors |= {value for name, value in attrs if name in ("id", "name") and value}


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    shutil.rmtree(ROOT / "build" / "site", ignore_errors=True)
    subprocess.run(["make", "docs"], cwd=ROOT, check=True, capture_output=True, timeout=300)
    read = {}
    for path in (ROOT / "build" / "site").rglob("*.html"):
        read[path] = Page()
        read[path].feed(path.read_text(encoding="utf-8"))
    return read


def test_every_page_of_the_documentation_is_in_the_site(pages: dict[Path, Page]) -> None:
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert len(sources) > 25
    assert sources <= {path.relative_to(ROOT / "build" / "site") for path in pages}


def test_no_page_refers_to_another_host(pages: dict[Path, Page]) -> None:
    foreign = [
        (path.name, address)
        for path, page in pages.items()
        for address in page.addresses
        if urlsplit(address).netloc
    ]
    assert foreign == []
    assert all(len(page.policies) == 1 and "http" not in page.policies[0] for page in pages.values())


def test_styles_load_nothing_from_another_host(pages: dict[Path, Page]) -> None:
    styles = [path.read_text(encoding="utf-8") for path in (ROOT / "build" / "site").rglob("*.css")]
    assert styles
    assert not [style for style in styles if "@import" in style or "url(http" in style or "url(//" in style]


def test_every_link_leads_to_a_page_and_a_place_in_it(pages: dict[Path, Page]) -> None:
    lost = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its addresses begin at the root of whatever serves it
        for address in page.addresses:
            split = urlsplit(address)
            if split.scheme:
                continue
            target = (path.parent / unquote(split.path)).resolve() if split.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(split.fragment)
            has_place = not anchor or target not in pages or anchor in pages[target].anchors
            if not target.is_file() or not has_place:
                lost.append((path.name, address))
    assert lost == []


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("link", ["nowhere.md", "tutorial.md#nowhere"])
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path, link: str) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    build = [str(ROOT / ".venv-docs" / "bin" / "zensical"), "build", "--clean", "--strict"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.write(f"\n[a link]({link})\n")
    assert subprocess.run(build, cwd=tmp_path, capture_output=True, check=False).returncode != 0
