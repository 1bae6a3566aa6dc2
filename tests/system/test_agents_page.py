"""A whole study through the pages of three agents, in a real browser, as three data managers would do it.

Each owner enrols and registers its records by command. Everything else happens on its page.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from federation.agent import Agent
from federation.processes import wait_for
from federation.records import draft, patients, write_csv
from federation.world import Federation
from web_browser import Browser, answers, started_browser

SIZES = (400, 301, 350)
PAGES = ("/", "/studies", "/ledger", "/words", "/policy", "/policy/rules")


@dataclass
class Scene:
    """A study that asks for three owners, each with an agent."""

    federation: Federation
    study: str
    agents: list[Agent]
    pictures: Path


@pytest.fixture(scope="module")
def scene(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("agents")
    owners = federation.owners(3)
    agents = []
    for seed, (owner, size) in enumerate(zip(owners, SIZES, strict=True)):
        data = write_csv(folder / f"{seed}.csv", patients(size, seed))
        owner.ask("owner", "data", "add", "patients", "--data", data)
        agent = Agent.of(federation, owner, f"agent-{seed}")
        agents.append(agent)
    study = federation.user.create_study(
        draft(participants=[owner.name for owner in owners], closing="when-complete")
    )
    return Scene(federation, study, agents, folder)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def sign_in(browser: Browser, agent: Agent) -> str:
    """Open the agent's link. Returns the address above all of its pages."""
    browser.open(agent.link)
    assert "token" not in browser.url
    assert browser.url.startswith(agent.url)
    return browser.url.rstrip("/")


def approve(browser: Browser, agent: Agent) -> str:
    """The data manager opens the link, reads the request, and approves it."""
    root = sign_in(browser, agent)
    browser.click("article h3 a")
    browser.click("form[action$='/approve'] button")
    browser.wait_for_url(f"{root}/studies")
    return root


def test_a_study_is_read_approved_and_followed_in_the_browser(
    scene: Scene, browser: Browser, tmp_path: Path
) -> None:
    first, second, third = scene.agents
    browser.pretend_screen(1280, 900)
    root = sign_in(browser, first)
    assert "Blood pressure and stature" in browser.source
    picture(browser, scene, "requests")
    browser.click("article h3 a")
    sheet = browser.url
    browser.click("form[action$='/dry-run'] button")
    browser.wait_for("return document.body.innerText.includes('records were read')", 120)
    assert f"{SIZES[0]} records were read" in browser.ask("return document.body.innerText")
    picture(browser, scene, "sheet")
    browser.click("form[action$='/approve'] button")
    browser.wait_for_url(f"{root}/studies")
    browser.wait_for("return document.body.innerText.includes('The proxy has the share')", 120)
    picture(browser, scene, "studies")

    approve(browser, second)
    with started_browser(tmp_path / "plain profile", scripts=False) as plain:
        root_of_third = approve(plain, third)
        plain.open(f"{root_of_third}/studies")
        assert "Blood pressure and stature" in plain.source

    scene.federation.user.wait_state(scene.study, "published", seconds=240)
    for agent in scene.agents:
        components = agent.owner.home / "studies" / scene.study / "components.npz"
        wait_for(components.exists, f"{agent.name} has the components", 120)
    browser.open(f"{root}/studies")
    browser.wait_for("return document.querySelector('a[href$=\"/components\"]') !== null", 60)
    browser.click("a[href$='/components']")
    browser.wait_for("return document.body.innerText.includes('Component 1')")
    picture(browser, scene, "components")
    for path in PAGES:
        browser.open(root + path)
        picture(browser, scene, path.strip("/").replace("/", " ") or "requests after")
    browser.open(f"{root}/policy")
    browser.fill("#max_epsilon", "1")
    browser.click("button.main")
    browser.wait_for_url(f"{root}/policy/change")
    picture(browser, scene, "policy effect")
    browser.click("button.main")
    browser.wait_for_url(f"{root}/policy?saved")
    assert re.search(r"^max_epsilon = 1$", (first.owner.home / "policy.toml").read_text(), re.MULTILINE)
    browser.open(sheet)
    assert "Approve this study" not in browser.source  # it is over
    assert browser.complaints() == []


def picture(browser: Browser, scene: Scene, name: str) -> None:
    """The page on a desk and on a phone, in light and in dark. It never scrolls sideways."""
    for label, width, dark in (("desk", 1280, False), ("phone", 390, False), ("dark", 1280, True)):
        browser.pretend_screen(width, 900, dark=dark)
        browser.save_picture(scene.pictures / f"{name} {label}.png")
    browser.pretend_screen(320, 700)
    width, inside = browser.ask("return [document.documentElement.scrollWidth, innerWidth]")
    assert width <= inside, f"{name} is {width} wide on a screen of 320"
    browser.pretend_screen(1280, 900)


def test_one_request_is_declined_and_the_next_is_approved_by_a_rule(scene: Scene, browser: Browser) -> None:
    user, agent = scene.federation.user, scene.agents[1]
    names = [each.owner.name for each in scene.agents]
    declined = user.create_study(draft(title="The first request", participants=names))
    root = sign_in(browser, agent)
    link = "[...document.querySelectorAll('article h3 a')].find(a => a.innerText == 'The first request')"
    browser.open(browser.ask(f"return {link}.href"))
    browser.click("details:has(#why) summary")
    browser.fill("#why", "The board meets in May.")
    browser.click("form[action$='/decline'] button")
    browser.wait_for_url(f"{root}/")
    assert "declined" in browser.ask(f"return {link}.closest('article').innerText")
    picture(browser, scene, "declined")
    assert "The board meets in May." in json.dumps(user.study(declined))

    covered = user.create_study(draft(title="The second request", participants=names))
    wait_for(lambda: "The second request" in reload(browser, root), "the page lists it", 60)
    browser.open(f"{root}/policy/rules")
    words = browser.ask("return document.querySelector('#users option').value")
    written = {
        "name": "yearly",
        "user": "The institute",
        "words": words,
        "max_epsilon": "30",
        "max_delta": "1e-4",
        "month_epsilon": "90",
        "month_delta": "3e-4",
    }
    for name, value in written.items():
        browser.fill(f"#{name}", value)
    browser.click("#source option[value='patients']")
    browser.click("button.main")
    browser.wait_for_url(f"{root}/policy/rules/add")
    shown = browser.ask("return document.body.innerText")
    assert "approved without asking you" in shown
    assert "The first request" not in shown  # it was answered
    picture(browser, scene, "effect of a rule")
    browser.click("button.main")
    browser.wait_for_url(f"{root}/policy/rules?saved")
    browser.open(f"{root}/studies")
    browser.wait_for("return document.body.innerText.includes('The second request')", 60)
    browser.wait_for("return document.body.innerText.includes('The proxy has the share')", 120)
    assert agent.owner.ask("owner", "status", f"{scene.federation.proxy.url}/{covered}")
    picture(browser, scene, "rules after")
    assert browser.complaints() == []


def reload(browser: Browser, root: str) -> str:
    browser.open(f"{root}/")
    return browser.source


def test_an_agent_and_its_page_end_together(scene: Scene) -> None:
    for agent in scene.agents:
        link = agent.owner.home / "page-link.json"
        assert link.stat().st_mode & 0o777 == 0o600
        agent.stop()
        assert not link.exists()
        assert not answers(f"{agent.url}/page.css")
        assert agent.owner.run("owner", "serve", "--link").status == 1
