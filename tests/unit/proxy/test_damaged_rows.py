"""Rows that changed without anybody's signature: nothing is done with them, and an operator is told.

SQLite has no checksums: a turned bit in a row is an ordinary value to it.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from proxy_world import TOY_BITS, InlineWorker, OpenStudy, ProxyWorld, copy_with_generation, values_of
from sqlalchemy import text
from study_parties import Parties
from tampering import tampering, without_references

from dpdpca_cli import main as cli
from dpdpca_protocol.errors import IntegrityError, UnavailableError
from dpdpca_protocol.messages.study_messages import StudyAct
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import sign_statement
from dpdpca_proxy import jobs
from dpdpca_proxy.jobs import Jobs
from dpdpca_proxy.loss import accept_loss
from dpdpca_proxy.proxy import Proxy, open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.parties import PartyRow, find_party
from dpdpca_proxy.store.studies import load_study
from dpdpca_proxy.store.tables import leases, metadata, studies
from dpdpca_proxy.studies import cancel, detail, summaries
from dpdpca_runtime.workers import WorkerFailedError

IRREVOCABLE = {"draw", "make_release"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "_LOOKING_SECONDS", 3600.0)  # on a busy machine, one check can take a second


def taken_up(world: ProxyWorld) -> Proxy:
    """The proxy of this home in this process, its jobs not started."""
    settings = load_settings(world.home, port=world.port, log_level="ERROR")
    return open_proxy(settings, now=world.clock, key_rules=KeyRules(TOY_BITS))


def delivered(world: ProxyWorld, **terms: Any) -> OpenStudy:
    study = world.open_study(3, **terms)
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    return study


@pytest.fixture(scope="module", params=["joint", "masked"])
def closed_study(
    tmp_path_factory: pytest.TempPathFactory,
    parties: Parties,
    enrolled_home: Path,
    request: pytest.FixtureRequest,
) -> OpenStudy:
    """A closed study on a proxy that has stopped; nothing was done with it since."""
    home = copy_with_generation(enrolled_home, tmp_path_factory.mktemp("closed") / "proxy")
    world = ProxyWorld(home, parties.user, list(parties.owners), parties.secret, parties.proof)
    world.start()
    study = delivered(world, release=request.param)
    world.stop()
    proxy = taken_up(world)
    world.clock.ahead = timedelta(hours=2)
    Jobs(proxy, InlineWorker())._close_and_tidy()
    assert state_of(study, proxy) == StudyState.CLOSED
    proxy.database.close()
    return study


@pytest.fixture
def closed(closed_study: OpenStudy, tmp_path: Path) -> OpenStudy:
    """The same on a copy that a test may alter."""
    return replace(closed_study, world=closed_study.world.on_copy(tmp_path / "proxy"))


def state_of(study: OpenStudy, proxy: Proxy) -> StudyState:
    with proxy.database.reading("state") as connection:
        return load_study(connection, study.study).state


def user_of(world: ProxyWorld, proxy: Proxy) -> PartyRow:
    with proxy.database.reading("find user") as connection:
        row = find_party(connection, world.user.public.party_id)
    assert row is not None
    return row


def work(runner: Jobs) -> None:
    while runner._round(lambda: False):
        pass


ROW = {"sqlite": "rowid", "postgresql": "ctid"}
"""What both engines have beside the columns; PostgreSQL's changes with the row."""


def turned(value: Any, at: int) -> Any:
    """The value with the lowest bit of one byte turned; of an integer, of the integer."""
    if isinstance(value, int):
        return value ^ 1
    raw = value if isinstance(value, bytes) else value.encode()
    place = at % len(raw)
    changed = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
    return changed if isinstance(value, bytes) else changed.decode()


def turn_bit(world: ProxyWorld, study: StudyId, column: str, at: int = 0) -> Callable[[], None]:
    """Turns a bit in the last row of the study, and returns what turns it back."""
    table, _, name = column.partition(".")
    with tampering(world.home) as connection:
        row = ROW[connection.dialect.name]
        asked = f"SELECT {row}, {name} FROM {table} WHERE study = :study ORDER BY {row} DESC LIMIT 1"
        place, value = connection.execute(text(asked), {"study": study.hex()}).one()

    def write(content: Any) -> None:
        nonlocal place
        change = f"UPDATE {table} SET {name} = :content WHERE {row} = :place RETURNING {row}"
        with tampering(world.home) as connection:
            place = connection.execute(text(change), {"content": content, "place": place}).scalar_one()

    write(turned(value, at))
    return lambda: write(value)


AT_THE_KEY_OF_THE_BODY = 2
DECISIVE = [
    ("studies.manifest", AT_THE_KEY_OF_THE_BODY),
    ("studies.manifest", -90),
    ("studies.state", 2),
    ("studies.release_kind", 1),
    ("studies.min_owners", 0),
    ("studies.cohort_distance", 0),
    ("studies.cohort_digest", 0),
    ("studies.closed_at", -2),
    ("cohort.version", 0),
    ("cohort.statement_digest", 9),
    ("events.time", 3),
    ("events.kind", 0),
    ("events.digest", 5),
    ("events.statement", 40),
    ("data_keys.sealed", 20),
    ("chunks.digest", 7),
    ("chunks.position", 0),
    ("study_features.name", 0),
]


@pytest.mark.parametrize(("column", "at"), DECISIVE)
def test_a_turned_bit_of_a_closed_study_is_told_and_nothing_is_done(
    closed: OpenStudy, column: str, at: int
) -> None:
    world, worker = closed.world, InlineWorker()
    turn_back = turn_bit(world, closed.study, column, at)
    proxy = taken_up(world)
    runner = Jobs(proxy, worker)
    work(runner)
    assert runner.trouble is not None
    assert not IRREVOCABLE & set(worker.calls)
    turn_back()
    work(runner)
    assert runner.trouble is None
    expected = StudyState.RELEASED if closed.manifest.release == "joint" else StudyState.CLOSED
    assert state_of(closed, proxy) == expected
    proxy.database.close()


@pytest.mark.parametrize(
    ("column", "at"),
    [
        ("studies.closes_at", 0),
        ("studies.closing", 0),
        ("studies.max_owners", 0),
        ("shares.state", 0),
        ("shares.signed_version", 0),
        ("statements.digest", 3),
        ("events.time", 0),
        ("participants.owner", 5),
    ],
)
def test_an_open_study_that_was_altered_is_told_and_does_not_close(
    world: ProxyWorld, column: str, at: int
) -> None:
    study = delivered(world)
    world.stop()
    turn_back = turn_bit(world, study.study, column, at)
    proxy = taken_up(world)
    runner = Jobs(proxy, InlineWorker())
    runner._close_and_tidy()
    assert runner.trouble == "state-corrupt"
    world.clock.ahead = timedelta(hours=2)
    runner._close_and_tidy()
    assert runner.trouble == "state-corrupt"
    assert state_of(study, proxy) == StudyState.OPEN
    turn_back()
    runner._close_and_tidy()
    assert runner.trouble is None
    assert state_of(study, proxy) == StudyState.CLOSED
    proxy.database.close()


@pytest.mark.parametrize("column", ["studies.state", "studies.closes_at", "studies.study"])
def test_a_damaged_row_stops_no_other_study(
    world: ProxyWorld, column: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = world.open_study(3)
    world.with_new_key()
    good = delivered(world)
    world.stop()
    name = column.partition(".")[2]
    with tampering(world.home) as connection:
        without_references(connection)
        change = f"UPDATE studies SET {name} = 'x' WHERE study = :study"
        connection.execute(text(change), {"study": bad.study.hex()})
    proxy = taken_up(world)
    runner = Jobs(proxy, InlineWorker())
    world.clock.ahead = timedelta(hours=2)
    runner._close_and_tidy()
    work(runner)
    assert state_of(good, proxy) == StudyState.RELEASED
    assert runner.trouble == "state-corrupt"
    assert [listed["study"] for listed in summaries(proxy)] == [good.study.hex()]
    proxy.database.close()
    monkeypatch.setenv("DPDPCA_PROXY_HOME", str(world.home))
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        cli.main(["proxy", "studies", "--json"])
    told = capsys.readouterr()
    assert left.value.code == 1
    assert [listed["study"] for listed in json.loads(told.out)["studies"]] == [good.study.hex()]
    assert ("x" if name == "study" else bad.study.hex()) in told.err


def test_a_lease_of_nobody_holds_nothing_up(closed: OpenStudy) -> None:
    world = closed.world
    lease = {"study": closed.study, "holder": ":23-ab", "until": 99999999999, "number": 7}
    with tampering(world.home) as connection:
        connection.execute(leases.insert().values(lease))
    proxy, worker = taken_up(world), InlineWorker()
    runner = Jobs(proxy, worker)
    work(runner)
    assert (runner.trouble, worker.calls[:1]) == (None, ["multiply_chunks"])
    proxy.database.close()


@pytest.mark.parametrize(
    ("error", "told_after"),
    [
        (KeyError("x"), 1),
        (WorkerFailedError("ZeroDivisionError"), 5),
        (OSError(), 5),
        (UnavailableError("busy", ""), 5),
    ],
)
def test_a_step_that_fails_again_and_again_is_told(
    closed: OpenStudy, error: Exception, told_after: int
) -> None:
    proxy, worker = taken_up(closed.world), InlineWorker()

    def fail(_name: str) -> None:
        raise error

    worker.before = fail
    runner = Jobs(proxy, worker)
    told = []
    for _ in range(told_after):
        told.append(runner.trouble)
        runner._round(lambda: False)
    assert told == [None] * told_after
    assert runner.trouble == "step-failing"
    worker.before = lambda name: None
    runner._round(lambda: False)
    assert runner.trouble is None
    proxy.database.close()


def with_terms(world: ProxyWorld, study: OpenStudy, **terms: Any) -> StudyId:
    """Makes a study one that an earlier version opened, with terms that this version refuses."""
    statement = sign_statement("manifest", {**study.statement.body, **terms}, world.user)
    old = StudyId(statement.digest)
    with tampering(world.home) as connection:
        without_references(connection)
        for table in metadata.sorted_tables:
            if "study" in table.columns:
                connection.execute(table.update().where(table.c.study == study.study).values(study=old))
        connection.execute(studies.update().where(studies.c.study == old).values(manifest=statement.encoded))
    return old


def test_a_study_with_refused_terms_is_left_alone_and_can_be_cancelled(
    closed: OpenStudy, caplog: pytest.LogCaptureFixture
) -> None:
    world = closed.world
    old = with_terms(world, closed, mechanism="wishart")
    proxy, worker = taken_up(world), InlineWorker()
    runner = Jobs(proxy, worker)
    work(runner)
    assert (runner.trouble, worker.calls) == (None, [])
    assert "step failed" in [record.message for record in caplog.records]
    user = user_of(world, proxy)
    assert detail(proxy, user, old)["state"] == "closed"
    cancel(proxy, user, old, StudyAct("cancel", old).sign(world.user).encoded)
    assert detail(proxy, user, old)["state"] == "cancelled"
    proxy.database.close()


def test_a_study_with_refused_terms_does_not_keep_a_loss_from_being_accepted(
    closed: OpenStudy, tmp_path: Path
) -> None:
    world = closed.world
    old = with_terms(world, closed, calibration="as-published")
    proxy = taken_up(world)
    proxy.settings.witness_path.unlink()
    assert accept_loss(proxy) == [old]
    proxy.database.close()


def test_the_manifest_that_a_study_runs_by_is_its_own(closed: OpenStudy) -> None:
    world = closed.world
    other = sign_statement("manifest", {**closed.statement.body, "title": "Another"}, world.user)
    with tampering(world.home) as connection:
        connection.execute(studies.update().values(manifest=other.encoded))
    proxy = taken_up(world)
    for read in (proxy.terms, proxy.signer):
        with pytest.raises(IntegrityError):
            read(closed.study)
    proxy.database.close()
