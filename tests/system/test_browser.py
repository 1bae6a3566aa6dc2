"""What the demo leaves, and the pages in a real browser: the demo's report without a network, and the
operator's page of the proxy.

`dpdpca demo` is run as people run it: five processes, real HTTP, real data, full-size keys.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from federation.demo import FinishedDemo, left_behind
from plain_study import made_people, plain_model
from proxy_world import ProxyWorld, unlike_before, values_of, wait_for
from web_browser import Browser, answers, started_browser

from dpdpca_cli.federation.processes import ChildProcesses, free_port
from dpdpca_protocol.paillier.keys import KeyRules, generate_secret_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_user.results.report import render_report


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Browser:
    """The browser at an empty page with an empty console: the page of the test before asks no more."""
    one_browser.open("about:blank")
    one_browser.complaints()
    return one_browser


@pytest.fixture(scope="module")
def report(demo: FinishedDemo) -> Path:
    return demo.report


def test_demo_runs_its_studies_and_writes_its_report(demo: FinishedDemo) -> None:
    studies = demo.said["studies"]
    assert [study["release"] for study in studies] == ["masked", "joint", "auto (joint)"]
    *earlier, last = studies[2]["rounds"]
    assert (set(earlier), last) == ({"pre-study"}, "joint")
    promise = f"(ε, δ) = (1, 1.6e-09), replace-one, over {len(earlier) + 1} rounds"
    assert studies[2]["promise"] == promise
    assert [study["agents"] for study in studies] == [0, 0, 3]
    captured = [study["captured_variance"][-1] for study in studies]
    assert captured[2] > max(captured[:2])
    for study in studies:
        assert study["records"] == 20_000
        assert study["promise"].startswith("(ε, δ) = (1, 1.6e-09), replace-one")
        assert study["privacy"]["relation"] == "replace-one"
        best = study["captured_variance_without_privacy"]
        # The noise is random; at this size it costs about one part in a hundred, and never gains anything.
        for found, optimum in zip(study["captured_variance"], best, strict=True):
            assert 0.9 * optimum < found <= optimum + 1e-9
        assert study["trusted_components"] >= 3
        assert len(study["bytes"]["owners"]) == 3

    assert demo.said["report"] == str(demo.report)
    page = demo.report.read_text()
    assert not re.search(r"(?:src|href)\s*=|url\((?!#)|@import|https?://(?!www\.w3\.org/)", page)
    assert "noise edge" in page
    assert "Biplot" in page
    assert "What is guaranteed" in page
    assert "each owner approved once, by one command" in page
    assert list(demo.temporary.iterdir()) == []
    assert left_behind(demo.temporary) == []


def test_report_shows_its_drawings_without_a_network(browser: Browser, report: Path) -> None:
    browser.resize(1200, 900)
    browser.open(report.as_uri())
    assert browser.complaints() == []
    # three studies, two drawings each
    for drawing in ("Scree plot", "Correlation circle", "Biplot"):
        found = browser.ask(f"return document.querySelectorAll('svg[aria-label^=\"{drawing}\"]').length")
        assert found == 3, drawing  # one for each study
    text = browser.ask("return document.body.innerText")
    for part in ("noise edge", "Biplot", "What is guaranteed, and against whom", "without privacy"):
        assert part in text
    loaded = "return performance.getEntriesByType('resource').length"
    assert browser.ask(loaded) == 0


ACTING = (
    "<script>window.acted=1</script>",
    '"><img src=x onerror="window.acted=1">',
    "' onmouseover='window.acted=1' style='position:fixed;inset:0",
    "<svg onload=window.acted=1><animate onbegin=window.acted=1>",
    "</title></style><script>window.acted=1</script>",
    "javascript:window.acted=1//",
    "]]>--><iframe srcdoc='<script>parent.acted=1</script>'>",
    "&lt;b&gt; &#x3c;i&#x3e; {{acted}} ${acted}",
    "url(javascript:acted) expression(acted=1)",
)
"""What a name could do in a page that took it for markup."""
FROM_THE_RIGHT = "\u05d1\u05d9\u05ea \u05d7\u05d5\u05dc\u05d9\u05dd 12"
"""A hospital with a number, in Hebrew: what stands behind it must not slip in front."""
LONG = "W" * 78
NAMES = (*ACTING, FROM_THE_RIGHT, "\u0645\u0633\u062a\u0634\u0641\u0649 \u0661\u0662", LONG)
IS_INERT = """
    const outlaws = document.querySelectorAll('script:not([src]),img,iframe,object,embed,animate');
    const handlers = [...document.querySelectorAll('*')].flatMap(e => [...e.attributes])
        .filter(a => a.name.startsWith('on') || /javascript:/i.test(a.value) && a.name !== 'title');
    return [typeof window.acted, outlaws.length, handlers.length];
"""


def test_report_takes_names_for_text(browser: Browser, tmp_path: Path) -> None:
    """Titles, features, levels and parties by strangers: nothing acts, and every name is read as it is."""
    features = [{"name": name, "lower": 0, "upper": 1} for name in NAMES[:-2]]
    features.append({"name": "levels", "levels": list(NAMES[-2:])})
    people: dict[str, list[Any]] = {name: [0.25, 0.5, 0.75] * 40 for name in NAMES[:-2]}
    people["levels"] = [*NAMES[-2:], NAMES[-1]] * 40
    key = generate_secret_key(512, OS_RANDOMNESS, rules=KeyRules(512))
    path = tmp_path / "report.html"
    models = [
        plain_model(
            key, people, user=name, proxy=name, owners=NAMES, title=name, purpose=f"{name} for all",
            features=features, clip_norm=3,
        )
        for name in (*ACTING[:3], FROM_THE_RIGHT, LONG)
    ]  # fmt: skip
    path.write_text(render_report(models, "now"), encoding="utf-8")
    browser.resize(500, 900)
    browser.open(path.as_uri())
    assert browser.complaints() == []
    assert browser.ask(IS_INERT) == ["undefined", 0, 0]
    shown = browser.ask("return [...document.querySelectorAll('td,th')].map(e => e.textContent)")
    assert set(NAMES) <= set(shown)
    assert browser.ask("return document.title") == ACTING[0]
    width, inside = browser.ask("return [document.documentElement.scrollWidth, innerWidth]")
    assert width <= inside
    title, kind = browser.ask(
        """
        const heading = [...document.querySelectorAll('h2')].find(e => e.textContent.includes('12'));
        const behind = document.createRange();
        behind.selectNodeContents(heading.lastChild);
        const box = heading.querySelector('bdi').getBoundingClientRect();
        return [box.right, behind.getBoundingClientRect().left];
        """
    )
    assert title <= kind + 1


def test_report_fits_a_small_screen(browser: Browser, report: Path) -> None:
    """Wide tables scroll by themselves: the page does not."""
    browser.resize(500, 900)  # no window of this browser is narrower
    browser.open(report.as_uri())
    width, inside = browser.ask("return [document.documentElement.scrollWidth, innerWidth]")
    assert width <= inside


def test_report_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    """320 pixels, in a frame: the page does not scroll sideways, and no text is a letter a line."""
    key = generate_secret_key(512, OS_RANDOMNESS, rules=KeyRules(512))
    html = render_report([plain_model(key, made_people())], "now")
    path = tmp_path / "phone.html"
    frame = f'<iframe width=320 height=9000 style="border:0" srcdoc="{escape(html)}"></iframe>'
    path.write_text(f'<!doctype html><meta charset="utf-8">{frame}', encoding="utf-8")
    browser.open(path.as_uri())
    width, inside, narrowest = browser.ask(
        """
        const page = document.querySelector('iframe').contentDocument;
        const facts = [...page.querySelectorAll('dd,li,figcaption')];
        return [
            page.documentElement.scrollWidth,
            page.documentElement.clientWidth,
            Math.min(...facts.map(each => each.getBoundingClientRect().width)),
        ];
        """
    )
    assert width <= inside <= 320
    assert narrowest > 80


@pytest.fixture
def operator_url(tmp_path: Path) -> Iterator[str]:
    """The operator's page of a proxy that has just been founded."""
    port = free_port()
    settings = {
        "DPDPCA_PROXY_HOME": str(tmp_path / "home"),
        "DPDPCA_PROXY_PORT": str(free_port()),
        "DPDPCA_PROXY_OPERATOR_PORT": str(port),
    }
    url = f"http://127.0.0.1:{port}/"

    with ChildProcesses(tmp_path, settings) as processes:
        processes.run("init", ["proxy", "init"])
        proxy = processes.start("proxy", ["proxy", "serve"], is_server=True)
        processes.wait_until(lambda: answers(url), 60, proxy, "was not ready")
        yield url


@pytest.fixture
def strangers_url(stopped_world: ProxyWorld) -> Iterator[str]:
    """The operator's page of a proxy with a study under each name."""
    world = stopped_world
    world.start()
    world.enrol_all()
    for name in NAMES:
        world.with_new_key()
        world.open_study(3, title=name, features=unlike_before(3))
    with serving(world) as url:
        yield url


@contextmanager
def serving(world: ProxyWorld) -> Iterator[str]:
    """Serves the operator's page of a proxy; its address."""
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(world.operator(), port=port, lifespan="off", log_config=None, access_log=False)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: answers(f"http://127.0.0.1:{port}/"))
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(20)


def test_proxy_page_takes_titles_for_text(browser: Browser, strangers_url: str) -> None:
    for width, dark in ((1200, False), (320, True)):
        browser.pretend_screen(width, 900, dark=dark)
        browser.open(strangers_url)
        browser.wait_for("return document.getElementById('live').textContent === 'live'")
        assert browser.complaints() == []
        assert browser.ask(IS_INERT) == ["undefined", 0, 0]
        titles = browser.ask("return [...document.querySelectorAll('article h2')].map(e => e.textContent)")
        assert sorted(titles) == sorted(NAMES)
        wide, inside = browser.ask("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide <= inside


def test_proxy_page_needs_no_script(world: ProxyWorld, tmp_path: Path) -> None:
    """A browser that runs no scripts shows each study with its owners and events, and gets news by itself."""
    study = world.open_study(3, title="Blood pressure")
    study.deliver(world.owners[0], values_of(3, 1))
    with serving(world) as url, started_browser(tmp_path / "profile", scripts=False) as plain:
        plain.open(url)
        page = plain.source
    for part in ("Blood pressure", "Hospital A delivered its share.", "open for shares", "Time left"):
        assert part in page
    assert '<meta http-equiv="refresh"' in page


def test_proxy_page_shows_news_as_they_come(browser: Browser, world: ProxyWorld) -> None:
    study = world.open_study(3, title="Blood pressure")
    words = "return [...document.querySelectorAll('.word')].map(e => e.textContent).join()"
    with serving(world) as url:
        browser.open(url)
        browser.wait_for("return document.getElementById('live').textContent === 'live'")
        assert browser.ask(words) == "expected,expected,expected"
        study.deliver(world.owners[1], values_of(3, 1))
        browser.wait_for(f"{words} === 'expected,delivered,expected'")
        assert browser.complaints() == []
        browser.open("about:blank")


def test_proxy_page_goes_live(browser: Browser, operator_url: str) -> None:
    browser.open(operator_url)
    browser.wait_for("return document.getElementById('live').textContent === 'live'")
    assert browser.ask("return document.getElementById('none') !== null")
    assert browser.complaints() == []
