"""The operator's page as the server writes it: what it says of each study; strangers' texts stay text."""

import errno
import re
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser

import pytest
from proxy_world import InlineWorker, OpenStudy, ProxyWorld, unlike_before, values_of, wait_for
from sqlalchemy import text
from starlette.testclient import TestClient

from dpdpca_protocol.messages.share import Decline
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy import app
from dpdpca_proxy.page import overview, words

NAME = '"><img src=x onerror=alert(1)> {{ 7*7 }} & <script>acted()</script>'


class Reader(HTMLParser):
    """Collects the words of each study, and every element of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.studies: dict[str, str] = {}
        self.words = ""
        self._study: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "article":
            self._study = dict(attrs)["data-study"]
            assert self._study is not None
            self.studies[self._study] = ""

    def handle_endtag(self, tag: str) -> None:
        self.handle_data(" " if tag in ("dt", "dd", "p", "li") else "")
        if tag == "article":
            self._study = None

    def handle_data(self, data: str) -> None:
        self.words += data
        if self._study is not None:
            self.studies[self._study] += data


@pytest.fixture
def operator(world: ProxyWorld) -> Iterator[TestClient]:
    client = TestClient(world.operator(), base_url="http://127.0.0.1:8441")
    yield client
    client.close()


def read(operator: TestClient) -> Reader:
    answer = operator.get("/")
    assert answer.status_code == 200
    reader = Reader()
    reader.feed(answer.text)
    reader.studies = {study: " ".join(words.split()) for study, words in reader.studies.items()}
    reader.words = " ".join(reader.words.split())
    return reader


def said(operator: TestClient, study: OpenStudy) -> str:
    return read(operator).studies[study.study.hex()]


def opened(world: ProxyWorld, **terms: object) -> OpenStudy:
    world.with_new_key()
    return world.open_study(3, features=unlike_before(3), **terms)


def test_an_empty_page_says_who_opens_a_study(operator: TestClient) -> None:
    reader = read(operator)
    assert "There is no study yet." in reader.words
    assert not reader.studies


def test_an_open_study_names_its_owners_and_what_they_have_done(
    world: ProxyWorld, operator: TestClient
) -> None:
    study = opened(world, title="Weights", closes_at=world.clock() + timedelta(days=2, hours=3, minutes=1))
    first, second, third = world.owners[:3]
    study.deliver(first, values_of(3, 1))
    chunks = study.plain_chunks(values_of(3, 2))
    study.upload(second, chunks)
    decline = Decline(study.study, third.public.ed25519, "2026-11-29T08:00:00Z", "our board is against it")
    world.client(third).decline(study.study, decline.sign(third))
    page = said(operator, study)
    assert page.startswith("Weights open for shares Data user: Institute")
    assert "Time left 2 days 3 hours (until " in page
    assert "1 of 3 delivered; 2 needed, 3 at most" in page
    assert "Hospital A delivered Hospital B sending Hospital C declined" in page
    assert "Hospital A delivered its share." in page
    assert "The data user opened the study." in page
    share = study.manifest.figures.share_bytes
    assert f"{words.size(share)} for each share; {words.size(2 * share)} of shares stored" in page
    assert "board" not in page
    assert "Remind" not in page  # there is time

    study.withdraw(first, 2)
    page = said(operator, study)
    assert "Hospital A withdrawn" in page
    assert page.index("Hospital A withdrew its share.") < page.index("Hospital A delivered its share.")


def test_a_failed_study_has_its_remedy(world: ProxyWorld, operator: TestClient) -> None:
    study = opened(world, title="Too few")
    study.deliver(world.owners[0], values_of(3, 1))
    assert words.FEW_OWNERS[1] in said(operator, study)  # it closes in an hour
    world.clock.ahead = timedelta(hours=2)
    wait_for(lambda: "Too few failed" in said(operator, study))
    page = said(operator, study)
    assert page.startswith("Too few failed Data user: Institute")
    assert "Too few owners had complete shares at the closing time." in page
    assert "Ask the data user to create a new study that closes later, and remind the owners." in page
    assert "Hospital A delivered Hospital B not delivered Hospital C not delivered" in page
    assert "no shares are stored" in page
    assert "Time left" not in page
    assert "The study failed." in page


def test_a_masked_study_waits_for_its_data_user(world: ProxyWorld, operator: TestClient) -> None:
    study = opened(world, release="masked")
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    study.close()
    study.challenge()
    page = said(operator, study)
    assert words.WAITS_FOR_COUNT in page
    assert words.DATA_USER_AWAY[1] not in page
    assert f"The study closed with {len(world.owners)} owners (by the data user)." in page
    world.clock.ahead = timedelta(hours=2)
    assert words.DATA_USER_AWAY[1] in said(operator, study)


def test_a_step_that_fails_is_told_with_its_study(world: ProxyWorld, operator: TestClient) -> None:
    def broken(_name: str) -> None:
        raise ValueError("a bug")

    assert isinstance(world.worker, InlineWorker)
    other, study = opened(world, title="Other"), opened(world)
    world.worker.before = broken
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    study.close()
    wait_for(lambda: words.TROUBLE["step-failing"][1] in said(operator, study))
    assert "fails again and again" not in said(operator, other)


def test_a_running_step_shows_how_far_it_is(world: ProxyWorld, operator: TestClient) -> None:
    study = opened(world)
    during: dict[str, Reader] = {}
    assert isinstance(world.worker, InlineWorker)
    world.worker.before = lambda name: during.update({name: read(operator)})
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    study.close()
    study.wait_state("released")
    total = study.manifest.figures.chunk_count
    reader = during["multiply_chunks"]
    assert f"adding up the shares: 0 of {total}" in reader.studies[study.study.hex()]
    (bar,) = (attributes for tag, attributes in reader.elements if tag == "progress")
    assert (bar["value"], bar["max"]) == ("0", str(total))
    assert "making the release" in during["make_release"].studies[study.study.hex()]
    wait_for(lambda: "progress" not in {tag for tag, _ in read(operator).elements})


def test_a_cancelled_and_a_released_study(world: ProxyWorld, operator: TestClient) -> None:
    cancelled, released = opened(world), opened(world)
    cancelled.cancel()
    for seed, owner in enumerate(world.owners):
        released.deliver(owner, values_of(3, seed))
    released.close()
    released.wait_state("released")
    assert "cancelled by the data user" in said(operator, cancelled)
    page = said(operator, released)
    assert "released; the data user has published no components yet" in page
    assert "The proxy released the sum with noise." in page
    assert page.count(" delivered ") >= len(world.owners)


def test_a_chain_is_one_thing(world: ProxyWorld, operator: TestClient) -> None:
    first = opened(world, title="Chain", release="pre-study", blocks={"sum": "1"}, rho_share=0.1)
    for seed, owner in enumerate(world.owners):
        first.deliver(owner, values_of(3, seed))
    world.with_new_key()
    other = opened(world, title="Alone")
    terms = {"rho_share": 0.9, "pre_studies": [first.study.hex()]}
    second = opened(world, title="Chain", **terms)
    reader = read(operator)
    assert reader.studies.keys() == {second.study.hex(), other.study.hex()}
    page = reader.studies[second.study.hex()]
    assert page.startswith(
        "Chain open for shares Data user: Institute. A chain of 2 rounds. Round 1: pre-study"
    )
    assert page.index("Round 1: pre-study") < page.index("Round 2: joint release")
    assert first.study.hex() in page
    assert "Round" not in reader.studies[other.study.hex()]


def test_another_data_user_cannot_claim_a_study_as_its_round(world: ProxyWorld, operator: TestClient) -> None:
    theirs = opened(world, title="Theirs")
    world.user = IdentityKey.generate()
    world.enrol(world.user, "user", "Institute")
    mine = opened(world, title="Mine", rho_share=0.9, pre_studies=[theirs.study.hex()])
    assert read(operator).studies.keys() == {theirs.study.hex(), mine.study.hex()}


def test_texts_of_strangers_stay_text(world: ProxyWorld, operator: TestClient) -> None:
    plain = opened(world)
    known = {tag for tag, _ in read(operator).elements}
    plain.cancel()
    with world.proxy.database.transaction("rename") as connection:
        connection.execute(text("UPDATE parties SET name = :name"), {"name": NAME})
        connection.execute(text("UPDATE studies SET title = :name"), {"name": NAME})
    answer = operator.get("/")
    reader = read(operator)
    assert {tag for tag, _ in reader.elements} <= known | {"div", "strong"}
    assert reader.words.count(NAME) >= 1 + 1 + len(world.owners)  # title, data user, owners
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]
    scripts = [attributes for tag, attributes in reader.elements if tag == "script"]
    assert [each.get("src") for each in scripts] == ["/page.js"]
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"https?://|style=", answer.text)


def test_the_page_is_bounded(
    world: ProxyWorld, operator: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "MOST_STUDIES", 2)
    monkeypatch.setattr(overview, "MOST_OWNERS", 1)
    studies = [opened(world, title=f"Study {number}") for number in range(4)]
    reader = read(operator)
    assert len(reader.studies) == 2
    assert set(reader.studies) <= {study.study.hex() for study in studies}
    assert "2 older studies are not shown here." in reader.words
    assert reader.words.count(f"and {len(world.owners) - 1} others") == 2


def test_a_damaged_study_hides_no_other(world: ProxyWorld, operator: TestClient) -> None:
    whole, lost, damaged = opened(world, title="Whole"), opened(world), opened(world, title="Damaged")
    for owner in world.owners[:1]:
        damaged.deliver(owner, values_of(3, 1))
    with world.proxy.database.transaction("damage") as connection:
        connection.execute(
            text("UPDATE shares SET state = 'eaten' WHERE study = :study"), {"study": damaged.study.hex()}
        )
        connection.execute(
            text("UPDATE studies SET state = 'eaten' WHERE study = :study"), {"study": lost.study.hex()}
        )
    reader = read(operator)
    assert words.TROUBLE["state-corrupt"][1] in reader.studies[damaged.study.hex()]
    assert "Hospital A expected" in reader.studies[whole.study.hex()]
    assert "The stored rows of 1 study are damaged." in reader.words
    assert lost.study.hex() in reader.words


def test_a_proxy_that_cannot_work_says_so(
    world: ProxyWorld, operator: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_args: object, **_options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(app, "PROBE_SECONDS", 0.0)
    assert "cannot do its work" not in read(operator).words
    monkeypatch.setattr("dpdpca_proxy.store.files.write_private", refusing)
    assert "The proxy cannot do its work: the storage cannot be written." in read(operator).words


def test_a_database_that_cannot_be_read_is_told_on_the_page(world: ProxyWorld, operator: TestClient) -> None:
    opened(world, title="Out of reach")
    with world.proxy.database.transaction("damage") as connection:
        connection.execute(text("ALTER TABLE studies RENAME TO elsewhere"))
    answer = operator.get("/")
    assert answer.status_code >= 500
    assert answer.headers["content-type"].startswith("text/html")
    assert "The proxy cannot read its studies" in answer.text
    assert "Out of reach" not in answer.text


@pytest.mark.parametrize(
    ("left", "shown"),
    [
        ({"days": 2, "hours": 3, "minutes": 59}, "2 days 3 hours"),
        ({"days": 1, "minutes": 5}, "1 day"),
        ({"hours": 1, "minutes": 1}, "1 hour 1 minute"),
        ({"minutes": 5, "seconds": 59}, "5 minutes"),
        ({"seconds": 59}, "less than a minute"),
        ({"seconds": -1}, "none; it closes now"),
    ],
)
def test_time_left_has_its_two_largest_units(left: dict[str, int], shown: str) -> None:
    assert words.time_left(timedelta(**left)) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (38_520, "38.5 kB"), (2 * 10**15, "2000.0 TB")],
)
def test_sizes_have_a_unit(count: int, shown: str) -> None:
    assert words.size(count) == shown


def test_every_kind_of_release_has_words() -> None:
    assert set(words.RELEASES) == set(ReleaseKind)
