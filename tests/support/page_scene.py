"""The agent's page of one owner before a proxy in memory, and a browser without a screen."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
from owner_scene import Scene
from starlette.testclient import TestClient

from dpdpca_owner.page.activity import Activity
from dpdpca_owner.page.app import create_page
from dpdpca_owner.page.gate import Gate, StartLink
from dpdpca_owner.page.office import Office, path_of
from dpdpca_owner.sources import RegisteredSource

PORT = 8460
ADDRESS = f"http://127.0.0.1:{PORT}"
FROM_HERE = {"Sec-Fetch-Site": "same-origin"}


@dataclass
class PageScene:
    """A scene with its page. `woken` counts how often the page has woken the agent."""

    scene: Scene
    link_path: Path
    seconds: float = 0.0
    woken: list[None] = field(default_factory=list)
    problems: dict[Any, str] = field(default_factory=dict)
    registered: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        desk = self.scene.desk
        self.activity = Activity(desk.now)
        self.office = Office(
            desk, {}, self.activity, lambda: desk.owner, self.problems, lambda: self.woken.append(None)
        )
        self.link = StartLink(self.link_path, ADDRESS)
        self.gate = Gate(self.link, lambda: self.seconds)
        self.app = create_page(self.office, self.gate)
        self.stranger = self.new_browser()
        self.browser = self.new_browser()
        self.browser.get(self.link.url)

    def new_browser(self) -> TestClient:
        """Its paths are those below the root of all pages."""
        return TestClient(self.app, base_url=ADDRESS + self.gate.root, follow_redirects=False)

    def register(self, name: str = "patients", **changes: Any) -> RegisteredSource:
        source = RegisteredSource(name, self.scene.location.data, **changes)
        return self.scene.desk.home.sources.add(source, {})

    @property
    def study_path(self) -> str:
        return f"/requests/{path_of(self.scene.address)}"

    def show(self, path: str) -> str:
        """A page as text. The person's browser follows what leads elsewhere."""
        answer = self.browser.get(path, follow_redirects=True)
        assert answer.status_code == 200, answer.text
        return self.without_root(answer.text)

    def without_root(self, html: str) -> str:
        return html.replace(self.gate.root, "")

    def target(self, answer: httpx.Response) -> str:
        """Where an answer leads."""
        assert answer.status_code == 303, answer.text
        return self.without_root(answer.headers["location"])

    def form(self, path: str, action: str) -> dict[str, list[str]]:
        """The fields of the form on a page that is sent to `action`, as they stand."""
        forms = Forms()
        forms.feed(self.without_root(self.browser.get(path).text))
        return forms.found[action]

    def send(self, action: str, form: dict[str, Any], **headers: str) -> httpx.Response:
        sent = FROM_HERE | {name.replace("_", "-"): value for name, value in headers.items()}
        answer: httpx.Response = self.browser.post(action, data=form, headers=sent)
        return answer

    def look_again(self) -> None:
        """The page forgets what it read of the requests."""
        self.office.forget_inbox()


class Forms(HTMLParser):
    """The forms of a page: their fields by action, as a browser would send them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, dict[str, list[str]]] = {}
        self._fields: dict[str, list[str]] = {}
        self._area: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._fields = self.found.setdefault(given["action"], {})
        is_off = given.get("type") in ("checkbox", "radio") and "checked" not in given
        if tag == "input" and "name" in given and not is_off:
            self._fields.setdefault(given["name"], []).append(given.get("value", ""))
        if tag == "textarea":
            self._area = self._fields.setdefault(given["name"], [])
            self._area.append("")

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self._area[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = None


def words_of(html: str) -> str:
    """The visible text of a page, without tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())
