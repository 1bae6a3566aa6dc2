"""Every page of the agent: its structure for keyboards and screen readers, its colours, and its sources."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from html.parser import HTMLParser

import numpy as np
import pytest
from page_scene import PageScene, words_of
from rule_texts import key_line, rule_for

from dpdpca_owner.accounts.budget import Budget
from dpdpca_owner.accounts.charge import Spend, SpendState
from dpdpca_owner.accounts.spending import changes_of
from dpdpca_owner.actions import join, prepare_join
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.page.ledger import HEIGHT, WIDTH, draw
from dpdpca_owner.page.office import path_of
from dpdpca_owner.page.render import STATIC, day_of
from dpdpca_owner.upload import Watcher

LANDMARKS = {"header", "main", "footer"}
EMPTY = {"meta", "link", "img", "input", "br", "line", "path", "circle"}


@dataclass
class Structure(HTMLParser):
    """What a page consists of."""

    def __post_init__(self) -> None:
        super().__init__()

    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    headings: list[int] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)
    buttons: list[str] = field(default_factory=list)
    open_tags: list[str] = field(default_factory=list)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        if tag not in EMPTY:
            self.open_tags.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "label":
            self.labels.add(given["for"])
        if tag == "button":
            self.buttons.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if "button" in self.open_tags:
            self.buttons[-1] += data.strip()

    def of(self, *names: str) -> list[dict[str, str]]:
        return [given for tag, given in self.tags if tag in names]


@pytest.fixture
def full(page: PageScene) -> PageScene:
    """A page with something in every part: a running share, a result, messages and a problem."""
    scene = page.scene
    prepared = prepare_join(scene.desk, scene.address, scene.location, "patients")
    join(scene.desk, scene.address, prepared, Watcher())
    names = ["age <years>", "weight"]
    np.savez(
        scene.desk.home.study(scene.address.study).path / "components.npz",
        components=np.eye(2),
        explained_variance=np.array([2.0, 1.0]),
        noise_edges=np.array([1.5, 1.5]),
        trusted_components=np.array(1),
        names=np.array(names),
        records=np.array(120),
    )
    scene.desk.home.followed.add(FollowedStudy(scene.address, "patients", "patients"))
    page.activity.note("joined")
    page.problems[scene.address] = "the proxy does not answer"
    return page


def every_page(page: PageScene) -> Iterator[tuple[str, str]]:
    result = f"/studies/{path_of(page.scene.address)}/components"
    for path in ("/", page.study_path, "/studies", result, "/ledger", "/words", "/policy", "/policy?saved"):
        yield path, page.show(path)
    page.register()
    user = key_line(page.scene.parties.user.public.ed25519)
    page.scene.desk.home.policy_path.write_text(rule_for(user), encoding="utf-8")
    page.look_again()
    yield "/policy/rules?saved", page.show("/policy/rules?saved")
    removal = page.form("/policy/rules", "/policy/rules/remove")
    yield "effect of a rule", page.without_root(page.send("/policy/rules/remove", removal).text)
    form = page.form("/policy", "/policy/change")
    yield "effect", page.without_root(page.send("/policy/change", form | {"max_epsilon": ["0.01"]}).text)
    yield "bad value", page.send("/policy/change", form | {"max_epsilon": ["x"]}).text
    yield "not found", page.browser.get("/nowhere").text
    yield "stranger", page.stranger.get("/").text
    page.scene.desk.home.policy_path.write_text("oops")
    yield "broken policy", page.browser.get("/policy").text


def test_every_page_is_well_formed_for_everybody(full: PageScene) -> None:
    for name, html in every_page(full):
        found = Structure()
        found.feed(html)
        assert not found.open_tags, name
        tags = [tag for tag, _ in found.tags]
        assert set(tags) >= LANDMARKS, name
        assert ("nav" in tags) == (name not in ("stranger", "not found")), name
        assert found.of("html") == [{"lang": "en"}]
        assert found.headings.count(1) == 1, name
        assert found.headings[0] == 1, name
        for before, after in zip(found.headings, found.headings[1:], strict=False):
            assert after <= before + 1, (name, found.headings)
        ids = [given["id"] for _, given in found.tags if "id" in given]
        assert len(ids) == len(set(ids)), name
        for given in found.of("input", "select", "textarea"):
            if given.get("type") != "hidden":
                assert given["id"] in found.labels, (name, given)
        assert all(found.buttons), name
        assert all("alt" in given for given in found.of("img"))
        assert tags.count("table") == tags.count("caption")
        assert all(given.get("scope") in ("col", "row") for given in found.of("th"))
        assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in found.of("meta")
        for _, given in found.tags:
            for reference in ("aria-labelledby", "aria-describedby"):
                assert set(given.get(reference, "").split()) <= set(ids), name
        assert '<a class="skip" href="#content">' in html
        if name not in ("stranger", "not found", "bad value", "effect", "broken policy"):
            assert sum("aria-current" in given for given in found.of("a")) == 1, name


def test_no_page_has_inline_code_or_loads_from_elsewhere(full: PageScene) -> None:
    for name, html in every_page(full):
        found = Structure()
        found.feed(html)
        assert "style" not in [tag for tag, _ in found.tags]
        assert all(given.get("src") for given in found.of("script"))
        for tag, given in found.tags:
            assert not [each for each in given if each.startswith("on") or each == "style"], (name, tag)
            for reference in ("src", "href", "action", "data-live"):
                assert re.match(r"/(?!/)|#|$", given.get(reference, "")), (name, given)
    for content in STATIC.values():
        assert not re.search(rb"https?://(?!www\.w3\.org/)|@import|url\(|innerHTML =|eval", content)


def test_the_other_pages_show_what_there_is(full: PageScene) -> None:
    studies = words_of(full.show("/studies"))
    for part in ("components arrived", "The proxy does not answer", "joined"):
        assert part in studies
    part = full.show("/studies?part")
    assert part.lstrip().startswith('<div id="live" data-live=')
    path = f"/studies/{path_of(full.scene.address)}/components"
    shown = full.show(path)
    assert "1 of 2 components are above the noise" in words_of(shown)
    assert "age &lt;years&gt;" in shown
    assert "The variances are those of shortened records: what was longer than the clip norm" in words_of(
        shown
    )
    saved = full.browser.get(f"{path}.npz")
    assert saved.headers["content-disposition"].startswith('attachment; filename="components-')
    assert saved.content[:2] == b"PK"
    ledger = words_of(full.show("/ledger"))
    assert "your budget: ε = 10" in ledger
    assert full.office.sheet(full.scene.address, None).manifest.title in ledger


def test_what_is_not_there_is_said(page: PageScene) -> None:
    for path in (
        f"/studies/{path_of(page.scene.address)}/components",
        "/requests/x/y",
        f"{page.study_path}0",
    ):
        assert page.browser.get(path).status_code == 404
    assert "Nothing has been spent yet" in page.show("/ledger")
    assert "No study is running" in page.show("/studies")
    page.scene.desk.home.sources.remove("patients")
    assert "dpdpca owner data add" in page.show("/")
    assert "/approve" not in page.show(page.study_path)


def test_the_picture_of_the_budget_is_exact() -> None:
    """Steps up at each booking, down at a refund, and the budget where it belongs."""
    begin, budget = datetime(2026, 1, 1, tzinfo=UTC), Budget.of_rho(Fraction(1), Fraction("1e-6"))
    spends = [spend_of("A", begin, 0.25), spend_of("B", begin + timedelta(days=50), 0.25, refunded=25)]
    changes = changes_of(spends, Fraction(0))
    picture = draw(changes, Fraction(0), budget, begin + timedelta(days=100))
    (first, second, third) = picture.dots
    assert [round((x - picture.left) / (picture.right - picture.left), 6) for x, _, _ in picture.dots] == [
        0,
        0.5,
        0.75,
    ]
    base = picture.base
    heights = [base - y for _, y, _ in picture.dots]
    expected = [float(budget.epsilon_of(Fraction(rho))) for rho in ("0.25", "0.5", "0.25")]
    scale = (base - picture.limit) / float(budget.epsilon_of(Fraction(1)))
    assert np.allclose(heights, [scale * each for each in expected])
    assert second[1] < first[1] == third[1]
    assert picture.limit > 0
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y, _ in picture.dots)
    empty = draw([], Fraction(0), budget, begin)
    assert not empty.dots
    for top in (0.003, 0.5, 3, 40, 1000, 10**6):
        ticks = draw([], Fraction(0), Budget.of_rho(Fraction(str(top)), Fraction("1e-6")), begin).up
        assert 2 <= len(ticks) <= 7, top


def test_the_page_shows_the_day_when_a_party_was_met_and_its_changed_key() -> None:
    met = "2026-11-01T10:00:00Z"
    assert day_of(met) == "2026-11-01"
    assert day_of(f"{met}; it has changed its key since") == "2026-11-01; it has changed its key since"


def test_a_refund_follows_its_booking_in_the_same_second() -> None:
    spend = spend_of("A", datetime(2026, 1, 1, tzinfo=UTC), 0.25, refunded=0)
    changes = changes_of([spend], Fraction("0.5"))
    assert [(each.is_refund, each.rho) for each in changes] == [
        (False, Fraction("0.75")),
        (True, Fraction("0.5")),
    ]


def spend_of(title: str, at: datetime, rho: float, refunded: int | None = None) -> Spend:
    from types import SimpleNamespace
    from typing import Any, cast

    charge: Any = SimpleNamespace(title=title, cost=SimpleNamespace(rho=Fraction(rho)))
    moment = f"{at:%Y-%m-%dT%H:%M:%SZ}"
    if refunded is None:
        return Spend(cast(Any, charge), "x", SpendState.COMMITTED, 1, moment)
    settled = f"{at + timedelta(days=refunded):%Y-%m-%dT%H:%M:%SZ}"
    return Spend(cast(Any, charge), "x", SpendState.WITHDRAWN, 1, moment, settled)


TEXT_ON = {
    "ink": ("page", "card", "tint", "warn-tint", "bad-tint", "good-tint"),
    "soft": ("page", "card"),
    "accent": ("page", "card"),
    "on-accent": ("accent",),
    "good": ("page", "card"),
    "bad": ("page", "card", "bad-tint"),
    "warn": ("card",),
}


def test_colours_have_enough_contrast_in_light_and_dark() -> None:
    """WCAG 2.2 AA: 4.5 for text, 3 for the borders of fields and the focus."""
    css = STATIC["page.css"].decode()
    light, dark = (colours(part) for part in re.findall(r":root \{(.*?)\}", css, re.DOTALL))
    assert light.keys() == dark.keys()
    for palette in (light, dark):
        for text, grounds in TEXT_ON.items():
            for ground in grounds:
                assert contrast(palette[text], palette[ground]) >= 4.5, (text, ground)
        for ground in ("page", "card"):
            assert contrast(palette["edge"], palette[ground]) >= 3
            assert contrast(palette["accent"], palette[ground]) >= 3
    assert ":focus-visible" in css
    assert not re.search(r"outline:\s*(0|none)", css)
    assert not re.search(r"#[0-9a-f]{3,8}", css.partition("* { box-sizing")[2])  # no colour besides these


def colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", css))


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
