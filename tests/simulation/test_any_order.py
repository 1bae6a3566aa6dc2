"""Anything that owners, a data user and the network may do to a proxy, in any order; what must hold, holds.

Hypothesis makes up the order, loses requests and answers, repeats earlier requests, moves the clock and
restarts the proxy. After each step receipts, rows, files and states must agree; at the end of a study its
release must be the exact sum of those in its cohort.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from promises import Promise
from proxy_world import InlineWorker, OpenStudy, ProxyWorld, Values, slug, unlike_before, values_of, wait_for
from quick_folder import quick_folder
from store_checks import check_rows, check_store, check_sum, row_of, wait_on_disk
from study_parties import Parties

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.messages.share import Receipt, Withdrawal
from dpdpca_protocol.messages.study_messages import SealedComponents, StudyAct
from dpdpca_protocol.study import ReleaseKind, StudyState
from dpdpca_protocol.wire.signing import IdentityKey, Statement, verify_statement
from dpdpca_proxy.store.files import draw_name
from dpdpca_proxy.store.shares import find_share
from dpdpca_proxy.store.studies import complete_members, frozen_cohort, list_events, load_blob, load_study

LEAST_OWNERS = 2
MINUTES_TO_CLOSING = 3
_MOST_MINUTES_AHEAD = 4
"""Clients sign by the machine's clock, and five minutes are allowed."""
JSON, BYTES = "application/json", "application/octet-stream"
_ORDER = {
    StudyState.OPEN: 0, StudyState.CLOSED: 1, StudyState.COUNTED: 2, StudyState.RELEASED: 3,
    StudyState.PUBLISHED: 4, StudyState.CANCELLED: 9, StudyState.FAILED: 9,
}  # fmt: skip
OWNER = st.integers(0, 2)
LOST = st.sampled_from(["nothing", "nothing", "nothing", "request", "answer"])


class NotingWorker(InlineWorker):
    """Remembers draws and the noise that went into releases, by study."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: Counter[str] = Counter()
        self.noise: dict[str, dict[str, list[int]]] = {}

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        study = args[0].study.hex()
        if function.__name__ == "make_release":
            place, token = args[0], args[4]
            _, _, drawn = place.read_bytes(draw_name(place.study, token)).partition(b"\n")
            self.noise.setdefault(study, {})[token] = [
                int.from_bytes(drawn[at : at + 8], "little", signed=True) for at in range(0, len(drawn), 8)
            ]
        outcome = super().call(function, *args, **options)
        self.draws[study] += function.__name__ == "draw"
        return outcome


@dataclass
class Asked:
    """A request, the headers under which it was sent first, and the answers that it got."""

    kind: str
    key: IdentityKey
    method: str
    path: str
    body: bytes | None
    media_type: str = JSON
    owner: int | None = None
    headers: httpx.Headers | None = None
    answers: list[httpx.Response] = field(default_factory=list)


class Disorder(RuleBasedStateMachine):
    """One study on a proxy that goes on from one to the next."""

    world: ClassVar[ProxyWorld]
    steps: ClassVar[Counter[str]] = Counter()
    ends: ClassVar[Counter[str]] = Counter()

    @initialize(
        release=st.sampled_from(["joint", "masked"]),
        closing=st.sampled_from(["at-time", "when-complete"]),
        delivered=st.integers(0, 3),
    )
    def begin(self, release: str, closing: str, delivered: int) -> None:
        self.world.clock.ahead = timedelta()
        self.world.with_new_key()
        closes_at = self.world.clock() + timedelta(minutes=MINUTES_TO_CLOSING)
        self.study: OpenStudy = self.world.open_study(
            release=release, closing=closing, closes_at=closes_at, features=unlike_before(3)
        )
        self.asked: list[Asked] = []
        self.values: dict[tuple[int, int], Values] = {}
        self.chunks: dict[tuple[int, int], list[bytes]] = {}
        self.claims: dict[tuple[int, int], Statement] = {}
        self.receipts: dict[tuple[int, int], Statement] = {}
        self.signed: dict[int, int] = {}
        self.state = StudyState.OPEN
        self.events: list[bytes] = []
        self.challenge: bytes | None = None
        self.served: set[bytes] = set()
        for owner in range(delivered):
            self.deliver(owner, "nothing", "nothing")

    # what is sent

    def ask(self, asked: Asked, lost: str) -> httpx.Response | None:
        """Sends a request that may not arrive, or whose answer may not."""
        self.asked.append(asked)
        return self.send(asked, lost)

    def send(self, asked: Asked, lost: str = "nothing") -> httpx.Response | None:
        self.steps[asked.kind] += 1
        if lost == "request":
            self.steps["request lost"] += 1
            return None

        def keep(request: httpx.Request) -> None:
            asked.headers = request.headers

        answer = self.world.request(asked.key, asked.method, asked.path, asked.body, asked.media_type, keep)
        self.judge(asked, answer)
        if lost == "answer":
            self.steps["answer lost"] += 1
            return None
        if asked.kind in ("complete", "withdraw") and answer.is_success:
            receipt = verify_statement("receipt", answer.content, self.world.proxy_key)
            assert asked.owner is not None
            version = Receipt.parse(receipt).version
            assert self.receipts.setdefault((asked.owner, version), receipt).encoded == receipt.encoded
        return answer

    def judge(self, asked: Asked, answer: httpx.Response) -> None:
        """Every refusal is a planned one, and what was said once is said again."""
        assert answer.status_code < 500, answer.text
        if not answer.is_success:
            slug(answer)
            return
        if asked.kind != "count":
            asked.answers.append(answer)
        if asked.kind in ("complete", "withdraw", "close", "cancel", "upload", "publish"):
            assert {one.content for one in asked.answers} == {answer.content}

    def owner(self, place: int) -> IdentityKey:
        return self.world.owners[place]

    # owners

    @rule(owner=OWNER, newer=st.integers(0, 2), lost=LOST)
    def upload(self, owner: int, newer: int, lost: str) -> None:
        version = max(1, self.signed.get(owner, 0) + newer)
        key, place = self.owner(owner), (owner, version)
        if place not in self.chunks:
            self.values[place] = values_of(3, 10 * owner + version)
            self.chunks[place] = self.study.plain_chunks(self.values[place])
        sealed = self.study.seal(key, self.chunks[place][0], version, 0)
        path = f"{self.study.path}/share/chunks/0?version={version}"
        self.ask(Asked("upload", key, "PUT", path, sealed, BYTES, owner), lost)

    @rule(owner=OWNER, lost=LOST, then_lost=LOST)
    def deliver(self, owner: int, lost: str, then_lost: str) -> None:
        """The two acts of an honest owner, one after the other."""
        self.upload(owner, 1, lost)
        self._complete(owner, max(1, self.signed.get(owner, 0) + 1), then_lost)

    @precondition(lambda self: bool(self.chunks))
    @rule(data=st.data(), lost=LOST)
    def complete(self, data: st.DataObject, lost: str) -> None:
        self._complete(*data.draw(st.sampled_from(sorted(self.chunks))), lost)

    def _complete(self, owner: int, version: int, lost: str) -> None:
        key = self.owner(owner)
        place = owner, version
        if place not in self.claims:
            self.claims[place] = self.study.claim(key, self.chunks[place], version)
        claim = self.claims[place].encoded
        self.ask(
            Asked("complete", key, "POST", f"{self.study.path}/share/complete", claim, JSON, owner), lost
        )

    @rule(owner=OWNER, newer=st.integers(0, 1), lost=LOST)
    def withdraw(self, owner: int, newer: int, lost: str) -> None:
        key, version = self.owner(owner), max(1, self.signed.get(owner, 0) + newer)
        wish = Withdrawal(self.study.study, key.public.ed25519, version).sign(key)
        self.ask(
            Asked("withdraw", key, "DELETE", f"{self.study.path}/share", wish.encoded, JSON, owner), lost
        )

    # the data user

    @precondition(lambda self: len(self.signed) >= LEAST_OWNERS)
    @rule(lost=LOST)
    def close(self, lost: str) -> None:
        self._act("close", "POST", f"{self.study.path}/close", lost)

    @precondition(lambda self: len(self.asked) > 8)
    @rule(lost=LOST, whim=st.integers(0, 5))
    def cancel(self, lost: str, whim: int) -> None:
        if whim == 0:
            self._act("cancel", "DELETE", self.study.path, lost)

    def _act(self, kind: Any, method: str, path: str, lost: str) -> None:
        user = self.world.user
        self.ask(Asked(kind, user, method, path, StudyAct(kind, self.study.study).sign(user).encoded), lost)

    @precondition(lambda self: self.challenge is not None)
    @rule(lie=st.sampled_from([0, 0, 0, 1, -1, 7]), lost=LOST)
    def count(self, lie: int, lost: str) -> None:
        assert self.challenge is not None
        challenge = verify_statement("count-challenge", self.challenge, self.world.proxy_key)
        answer = self.study.count_answer(challenge, lie)
        told = self.ask(
            Asked("count", self.world.user, "POST", f"{self.study.path}/count", answer.encoded), lost
        )
        if told is not None and lie:
            assert slug(told) in ("count-proof-false", "count-already-answered", "wrong-state")

    @precondition(lambda self: self.state is not StudyState.OPEN)
    @rule()
    def read(self) -> None:
        told = self.send(Asked("read", self.world.user, "GET", f"{self.study.path}/release", None))
        if told is not None and told.is_success:
            self.served.add(told.content)
            assert len(self.served) == 1, "two releases of one study"

    @precondition(lambda self: self.state in (StudyState.RELEASED, StudyState.PUBLISHED))
    @rule(lost=LOST)
    def open(self, lost: str) -> None:
        path, statement = f"{self.study.path}/opened", self.study.opened()
        self.ask(Asked("open", self.world.user, "PUT", path, statement.encoded), lost)

    @precondition(lambda self: self.state in (StudyState.RELEASED, StudyState.PUBLISHED))
    @rule(size=st.integers(100, 101), lost=LOST)
    def publish(self, size: int, lost: str) -> None:
        with self.world.proxy.database.reading("test: cohort") as connection:
            owners = [member.owner for member in frozen_cohort(connection, self.study.study)]
        statement = SealedComponents(self.study.study, dict.fromkeys(owners, bytes(size))).sign(
            self.world.user
        )
        path = f"{self.study.path}/components"
        self.ask(Asked("publish", self.world.user, "PUT", path, statement.encoded), lost)

    # the world

    @precondition(lambda self: bool(self.asked))
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        self.send(data.draw(st.sampled_from(self.asked)))

    @precondition(lambda self: any(asked.headers is not None for asked in self.asked))
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        """A request that was recorded on its way; nobody but its signer can make another one of it."""
        self.steps["replay"] += 1
        asked = data.draw(st.sampled_from([one for one in self.asked if one.headers is not None]))

        def as_recorded(request: httpx.Request) -> None:
            assert asked.headers is not None
            request.headers = asked.headers

        answer = self.world.request(None, asked.method, asked.path, asked.body, asked.media_type, as_recorded)
        assert slug(answer) == "replayed-request"

    @rule(minutes=st.integers(0, 2))
    def advance_clock(self, minutes: int) -> None:
        if minutes and self.world.clock.ahead + timedelta(minutes=minutes) <= timedelta(
            minutes=_MOST_MINUTES_AHEAD
        ):
            self.steps["clock"] += 1
            self.world.clock.ahead += timedelta(minutes=minutes)
            self.world.proxy.wake()

    @rule(whim=st.integers(0, 3))
    def restart(self, whim: int) -> None:
        if whim == 0:
            self.steps["restart"] += 1
            self.world.restart()

    # what must hold

    def is_quiet(self) -> bool:
        """Whether the proxy has done all that it does by itself: what comes next hangs on that alone."""
        with self.world.proxy.database.reading("test: is it quiet") as connection:
            row = load_study(connection, self.study.study)
            if row.state is StudyState.OPEN:
                all_in = len(complete_members(connection, row.study)) == len(self.world.owners)
                return self.world.clock() < row.closes_at and not (row.closing == "when-complete" and all_in)
            if row.state is StudyState.CLOSED and row.release_kind is ReleaseKind.MASKED:
                return load_blob(connection, row.study, "challenge") is not None
            return row.state not in (StudyState.CLOSED, StudyState.COUNTED)

    @invariant()
    def everything_agrees(self) -> None:
        wait_for(self.is_quiet)
        check_rows(self.study, self.world.owners, list(self.receipts.values()))
        worker = self.world.worker
        assert isinstance(worker, NotingWorker)
        assert len(worker.noise.get(self.study.study.hex(), {})) <= 1
        with self.world.proxy.database.reading("test: look") as connection:
            row_now, events = row_of(self.study), list_events(connection, self.study.study)
            self.challenge = load_blob(connection, self.study.study, "challenge")
            for place, key in enumerate(self.world.owners):
                version = find_share(connection, self.study.study, key.public.party_id).signed_version
                assert version >= self.signed.get(place, 0), "a share rolled back"
                if version:
                    self.signed[place] = version
        assert _ORDER[row_now.state] >= _ORDER[self.state], "a study went back"
        assert self.state not in (StudyState.CANCELLED, StudyState.FAILED) or row_now.state == self.state
        assert events[: len(self.events)] == self.events, "the past was rewritten"
        self.state, self.events = row_now.state, events

    def teardown(self) -> None:
        """The study is brought to its end, if it has one."""
        if not hasattr(self, "study"):
            return
        if row_of(self.study).state == StudyState.OPEN:
            try:
                self.study.close()
            except DpdpcaError as error:
                if error.slug not in ("cohort-too-small", "wrong-state", "study-closed"):
                    raise
        if row_of(self.study).state in (StudyState.CLOSED, StudyState.COUNTED):
            self.finish()
        if row_of(self.study).state in (StudyState.RELEASED, StudyState.PUBLISHED):
            self.check_end()
        check_store(self.study, self.world.owners, list(self.receipts.values()))
        self.ends[str(row_of(self.study).state)] += 1

    def finish(self) -> None:
        user = self.world.client(self.world.user)
        if self.study.manifest.release == "masked" and row_of(self.study).records is None:
            user.answer_count(self.study.study, self.study.count_answer(self.study.challenge()))
        wait_on_disk(self.study, "released", "published")

    def check_end(self) -> None:
        self.read()
        with self.world.proxy.database.reading("test: cohort") as connection:
            cohort = {member.owner: member.version for member in frozen_cohort(connection, self.study.study)}
        owners = {key.public.party_id: place for place, key in enumerate(self.world.owners)}
        worker = self.world.worker
        assert isinstance(worker, NotingWorker)
        (noise,) = worker.noise[self.study.study.hex()].values()
        assert worker.draws[self.study.study.hex()] == 1
        check_sum(
            self.study, [self.values[owners[party], version] for party, version in cohort.items()], noise
        )


@pytest.fixture
def world(parties: Parties) -> Iterator[ProxyWorld]:
    with quick_folder() as folder:
        world = ProxyWorld(
            folder / "proxy", parties.user, list(parties.owners), parties.secret, parties.proof
        )
        world.worker = NotingWorker()
        world.settings |= {"party_requests": 1_000_000, "address_requests": 1_000_000}
        world.start()
        world.enrol_all()
        yield world
        world.stop()


def test_any_order_of_acts(world: ProxyWorld, promise: Promise) -> None:
    play(world, promise, 6, 30, nightly=False)


@pytest.mark.nightly
@pytest.mark.parametrize("proxy", range(3))
def test_any_order_of_acts_at_length(world: ProxyWorld, promise: Promise, proxy: int) -> None:
    play(world, promise, 100, 50, nightly=True)


def play(world: ProxyWorld, promise: Promise, studies: int, steps: int, *, nightly: bool) -> None:
    """Studies at one proxy, each by made-up acts in a made-up order."""
    Disorder.world, Disorder.steps, Disorder.ends = world, Counter(), Counter()
    run_state_machine_as_test(
        Disorder,
        settings=settings(
            max_examples=studies,
            stateful_step_count=steps,
            deadline=None,
            derandomize=not nightly,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
    total, ends = (
        sum(Disorder.steps.values()),
        ", ".join(f"{n} {end}" for end, n in sorted(Disorder.ends.items())),
    )
    counted = f"{total} acts in any order in {sum(Disorder.ends.values())} studies ({ends})"
    lost = f"{Disorder.steps['request lost']} requests and {Disorder.steps['answer lost']} answers lost"
    promise("P1", counted=f"{counted}, {lost}", result="receipts = cohort, every sum exact")
    promise("P4", counted=f"{Disorder.steps['replay']} recorded requests again", result="0 taken")
    promise("P6", counted=counted, result="0 studies went back")
    promise(
        "P9",
        counted=f"{Disorder.steps['read']} reads, {Disorder.steps['restart']} restarts",
        result="1 noise each",
    )
