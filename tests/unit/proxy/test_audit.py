"""An audit notices every row and event that is gone, added or altered, in every state of a study.

All studies lie in one home, whose proxy has stopped. Each change is made in a transaction that is undone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from promises import Promise
from proxy_world import (
    TOY_BITS,
    InlineWorker,
    OpenStudy,
    ProxyWorld,
    copy_with_generation,
    values_of,
    wait_for,
)
from sqlalchemy import Column, Connection, Integer, LargeBinary, Table, text
from sqlalchemy.exc import IntegrityError
from study_parties import Parties
from tampering import tampering, without_references

from dpdpca_cli import main as cli
from dpdpca_protocol.messages.software import Software, SoftwareKind, telling_software
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.messages.transcript import KINDS
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.sealing import seal
from dpdpca_proxy import jobs
from dpdpca_proxy.audit import HOLDS, Check, audit_study, audit_trail
from dpdpca_proxy.proxy import data_key_info, open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.columns import DigestColumn, PartyColumn, StudyColumn, TimeColumn
from dpdpca_proxy.store.files import chunk_name
from dpdpca_proxy.store.log import append_entry, last_mark
from dpdpca_proxy.store.studies import StudyRow, append_event, load_study
from dpdpca_proxy.store.tables import chunks, data_keys, metadata
from dpdpca_proxy.studies import fail
from dpdpca_proxy.trail import Trail

Act = Callable[[OpenStudy], None]
Change = tuple[str, Callable[[Connection], None]]

UNFINISHED = 3
"""Version of the share whose upload is not complete."""
LATER = datetime(2040, 1, 1, tzinfo=UTC)
ENDED = ("cancelled", "failed", "released", "published")

TRANSIENT = {"leases"}
"""Who works on a study at this moment; nothing rests on it."""
FREE = {
    # shown to people, and of no consequence
    ("studies", "epsilon"),
    ("studies", "delta"),
    ("studies", "revision"),
    ("studies", "failure_detail"),
    ("draws", "drawn_at"),
    ("contradictions", "time"),
    # which version an owner is about to send: its own client knows
    ("shares", "upload_version"),
}


class HoldingWorker(InlineWorker):
    """Does no step whose name is held."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()

    def call(
        self, function: Callable[..., Any], /, *args: Any, progress: Callable[..., None] | None = None
    ) -> Any:
        if function.__name__ in self.held:
            raise RuntimeError("held")
        return super().call(function, *args, progress=progress)


class UndoError(Exception):
    """Rolls a transaction back."""


def deliver(study: OpenStudy) -> None:
    for seed, owner in enumerate(study.world.owners[:2]):
        study.deliver(owner, values_of(study.d, seed))


def publish(study: OpenStudy) -> None:
    copies = {owner.public.party_id: b"for you" for owner in study.world.owners[:2]}
    user = study.world.client(study.world.user)
    study.state_opened()
    user.publish_components(study.study, SealedComponents(study.study, copies).sign(study.world.user))


def answer(study: OpenStudy) -> None:
    study.world.client(study.world.user).answer_count(study.study, study.count_answer(study.challenge()))


def busy(study: OpenStudy) -> None:
    """Replaces, withdraws, contradicts itself, and begins once more."""
    first, second, third = study.world.owners
    study.deliver(first, values_of(3, 0))
    study.deliver(second, values_of(3, 1))
    study.deliver(second, values_of(3, 4), version=2)
    study.deliver(third, values_of(3, 2))
    study.withdraw(third, 2)
    other = study.claim(first, study.plain_chunks(values_of(3, 7)))
    world = study.world
    assert world.request(first, "POST", f"{study.path}/share/complete", other.encoded).status_code == 409
    study.upload(second, study.plain_chunks(values_of(3, 5)), version=UNFINISHED)


@pytest.fixture(scope="module")
def studies(parties: Parties, tmp_path_factory: pytest.TempPathFactory) -> dict[str, OpenStudy]:
    """One study in each state that there is, by name, on a proxy that has stopped."""
    worker, made = HoldingWorker(), dict[str, OpenStudy]()
    world = ProxyWorld(
        tmp_path_factory.mktemp("audit") / "proxy",
        parties.user,
        list(parties.owners),
        parties.secret,
        parties.proof,
        worker=worker,
    )

    def begin(name: str, release: str = "joint", fill: Act = deliver, **changes: Any) -> OpenStudy:
        world.with_new_key()
        made[name] = world.open_study(3, release=release, **changes)
        fill(made[name])
        return made[name]

    def closed(name: str, release: str = "joint", *, answered: bool = False) -> OpenStudy:
        study = begin(name, release)
        study.close()
        if answered:
            answer(study)
        return study

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.05)
        world.start()
        world.enrol_all()
        for name, release in (("released", "joint"), ("released masked", "masked")):
            closed(name, release, answered=release == "masked").wait_state("released")
        closed("published").wait_state("released")
        publish(made["published"])
        begin("cancelled").cancel()
        worker.held = {"make_release"}
        wait_for(has("noise_drawn_at", closed("closed, noise drawn")))
        worker.held = {"make_release", "draw"}
        wait_for(has("aggregate_chunks", closed("closed")))
        wait_for(has("challenge", closed("closed masked", "masked")))
        closed("counted", "masked", answered=True)
        closed("cancelled after closing").cancel()
        failing = closed("failed after closing")
        fail(world.proxy, load(failing), "ciphertext-repeated", "two chunks have one ciphertext")
        begin("open", fill=busy)
        begin("failed", fill=lambda study: None, closes_at=world.clock() + timedelta(seconds=60))
        world.clock.ahead = timedelta(seconds=120)
        made["failed"].wait_state("failed")
        wait_for(lambda: all(study.is_swept() for study in made.values() if study.state() in ENDED))
        world.stop()
    assert {load(study).state for study in made.values()} == set(StudyState)
    return made


def load(study: OpenStudy) -> StudyRow:
    with study.world.proxy.database.reading("test") as connection:
        return load_study(connection, study.study)


def has(name: str, study: OpenStudy) -> Callable[[], bool]:
    def is_stored() -> bool:
        with study.world.proxy.database.reading("test") as connection:
            return name in Trail(study.world.proxy, connection, study.study).stored

    return is_stored


def audited(study: OpenStudy, change: Callable[[Connection], None]) -> Check | None:
    """The first check that does not hold after `change`, which is undone."""
    wrong: Check | None = None
    with suppress(UndoError), study.world.proxy.database.transaction("test") as connection:
        without_references(connection)
        try:
            change(connection)
        except IntegrityError:
            wrong = Check("the database", "a constraint forbids it")
            raise UndoError from None
        checks = audit_trail(Trail(study.world.proxy, connection, study.study))
        wrong = next((check for check in checks if check.outcome != HOLDS), None)
        raise UndoError
    return wrong


def rows(study: OpenStudy, table: Table) -> list[dict[str, Any]]:
    """The rows of a study as they lie there."""
    with study.world.proxy.database.reading("test") as connection:
        found = connection.execute(
            text(f"SELECT * FROM {table.name} WHERE study = :study"), {"study": study.study.hex()}
        ).all()
    return [dict(row._mapping) for row in found]


def run_sql(statement: str, *values: Any) -> Callable[[Connection], None]:
    """Changes one row; each ? in the statement is one of the values."""
    parts = statement.split("?")
    named = "".join(f"{part}:v{place}" for place, part in enumerate(parts[:-1])) + parts[-1]
    given = {f"v{place}": value for place, value in enumerate(values)}

    def change(connection: Connection) -> None:
        assert connection.execute(text(named), given).rowcount == 1, statement

    return change


def run_sql_at(
    table: Table, row: dict[str, Any], statement: str, *values: Any
) -> Callable[[Connection], None]:
    """Changes this row of the table."""
    key = [column.name for column in table.primary_key.columns]
    where = " AND ".join(f'"{name}" = ?' for name in key)
    return run_sql(f"{statement} WHERE {where}", *values, *(row[name] for name in key))


def other_value(column: Column[Any], value: Any) -> Any:
    """Another value of the same kind; nothing where there is something that may be missing."""
    if column.nullable and value is not None:
        return None
    if isinstance(column.type, DigestColumn | PartyColumn | StudyColumn):
        return Digest.of(str(value).encode()).hex()
    if isinstance(column.type, TimeColumn):
        return "2026-01-01T00:00:00Z"
    if isinstance(column.type, LargeBinary):
        return bytes([(value or b"x")[0] ^ 1]) + (value or b"x")[1:]
    return (value or 0) + 1 if isinstance(column.type, Integer) else f"{value or ''}0"


def inserting(table: Table, row: dict[str, Any]) -> Callable[[Connection], None]:
    names = ", ".join(f'"{name}"' for name in row)
    places = ", ".join("?" for _ in row)
    return run_sql(f"INSERT INTO {table.name} ({names}) VALUES ({places})", *row.values())


def of_a_study() -> list[Table]:
    return [
        table for table in metadata.sorted_tables if "study" in table.columns and table.name not in TRANSIENT
    ]


def gone_and_doubled(study: OpenStudy) -> Iterator[Change]:
    """Each row gone, and each once more under another key."""
    for table in of_a_study():
        keys = [column for column in table.primary_key.columns if column.name != "study"]
        for row in rows(study, table):
            if not is_promised(table, row):
                continue
            yield f"{table.name} gone", run_sql_at(table, row, f"DELETE FROM {table.name}")
            if keys:
                again = row | {keys[-1].name: other_value(keys[-1], row[keys[-1].name])}
                yield f"{table.name} twice", inserting(table, again)


def altered(study: OpenStudy) -> Iterator[Change]:
    """Each value of each row another one, or none, or one where there was none."""
    for table in of_a_study():
        for row in rows(study, table):
            for column in table.columns:
                if column.name != "study" and is_promised(table, row, column.name):
                    update = f'UPDATE {table.name} SET "{column.name}" = ?'
                    value = other_value(column, row[column.name])
                    yield f"{table.name}.{column.name} altered", run_sql_at(table, row, update, value)


def not_of_this_state(study: OpenStudy, others: Iterable[OpenStudy]) -> Iterator[Change]:
    """Another state, and rows in each table that holds nothing of this study."""
    state = load(study).state
    for other in StudyState:
        if other is not state:
            update = "UPDATE studies SET state = ? WHERE study = ?"
            yield f"state {other}", run_sql(update, str(other), study.study.hex())
    for table in of_a_study():
        lent = next((found[0] for one in others if (found := rows(one, table))), None)
        may_be = table.name == "aggregate_chunks" and state in (StudyState.CLOSED, StudyState.COUNTED)
        if lent is not None and not rows(study, table) and not may_be:
            yield f"{table.name} added", inserting(table, lent | {"study": study.study.hex()})


def signed_by_the_proxy(study: OpenStudy) -> Iterator[Change]:
    """One more event of each kind, with its entry in the log: state and rows know nothing of it."""
    proxy, digest = study.world.proxy, Digest.of(b"something").hex()
    owner = study.world.owners[0].public.party_id.hex()
    details: dict[str, dict[str, Any]] = {
        "manifest": {"statement": study.statement.digest.hex()},
        "receipt": {"owner": owner, "statement": digest, "version": 9},
        "withdrawal": {"owner": owner, "statement": digest, "version": 9},
        "closed": {"cohort": digest, "owners": 2, "reason": "on time"},
        "count": {"answer": digest, "challenge": digest},
        "release": {"owners": 2, "statement": digest},
        "opened": {"statement": digest},
        "components": {"statement": digest},
        "cancelled": {"statement": digest},
        "failed": {"reason": "too-few-owners"},
    }
    assert set(details) == set(KINDS)
    for kind, detail in details.items():

        def change(connection: Connection, kind: str = kind, detail: dict[str, Any] = detail) -> None:
            append_event(connection, proxy.key, study.study, kind, detail, LATER)

        yield f"event {kind} added", change


def is_promised(table: Table, row: dict[str, Any], column: str | None = None) -> bool:
    """Whether anybody was told of it, so that its loss or change is to be noticed."""
    unfinished = (table.name == "shares" and row["state"] == "partial") or (
        table.name == "chunks" and row["version"] == UNFINISHED
    )
    asked = (table.name, column) == ("studies", "challenge") and row["answer"] is None
    return not (unfinished or asked or table.name == "aggregate_chunks" or (table.name, column) in FREE)


def one_a_state(studies: Mapping[str, OpenStudy]) -> dict[str, OpenStudy]:
    """Of each state the study that has most of all that such a one can have."""
    names = ("open", "closed, noise drawn", "counted", "released masked", "published")
    return {name: studies[name] for name in (*names, "cancelled after closing", "failed after closing")}


def noticed(
    studies: Mapping[str, OpenStudy], changes: Callable[[OpenStudy], Iterator[Change]], stride: int = 1
) -> str:
    """Tries all changes, or each `stride`-th one, to all studies; how many, by state."""
    tried: Counter[str] = Counter()
    for name, study in studies.items():
        for what, change in islice(changes(study), None, None, stride):
            assert audited(study, change), f"{name}: {what}"
            tried[load(study).state] += 1
    assert set(tried) == set(StudyState)
    return ", ".join(f"{state} {count}" for state, count in sorted(tried.items()))


def test_every_study_passes_its_audit(studies: dict[str, OpenStudy]) -> None:
    for name, study in studies.items():
        assert audited(study, lambda _: None) is None, name


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("changes", [gone_and_doubled, altered, signed_by_the_proxy])
def test_what_is_gone_doubled_altered_or_added_is_noticed_in_every_state(
    studies: dict[str, OpenStudy],
    changes: Callable[[OpenStudy], Iterator[Change]],
    stride: int,
    promise: Promise,
) -> None:
    counted = noticed(one_a_state(studies) if changes is altered else studies, changes, stride)
    promise(
        "P17", counted=f"rows and events {changes.__name__} ({counted})", result="all noticed by an audit"
    )


def test_what_is_not_of_the_state_is_noticed(studies: dict[str, OpenStudy], promise: Promise) -> None:
    counted = noticed(studies, lambda study: not_of_this_state(study, studies.values()))
    promise("P17", counted=f"other states and their rows ({counted})", result="all noticed by an audit")


def test_every_entry_of_the_log_is_missed(studies: dict[str, OpenStudy], promise: Promise) -> None:
    study = studies["published"]
    with study.world.proxy.database.reading("test") as connection:
        last = last_mark(connection).generation
    changes = [run_sql("DELETE FROM log WHERE position = ?", position) for position in range(1, last)]
    changes += [
        run_sql("UPDATE log SET subject = ? WHERE position = ?", Digest.of(b"x").hex(), position)
        for position in range(1, last + 1)
    ]
    for kind, subject in (
        ("components", Digest.of(b"x")),
        ("enrolment", Digest.of(b"x")),
        ("draw", Digest.of(b"x")),
        ("closed", study.statement.digest),
    ):
        changes.append(partial(append_one, kind, subject))
    changes += [
        run_sql("DELETE FROM parties WHERE party = ?", study.world.owners[2].public.party_id.hex()),
        run_sql(
            "UPDATE parties SET enrolment = ? WHERE party = ?", b"{}", study.world.user.public.party_id.hex()
        ),
    ]
    for change in changes:
        assert audited(study, change)
    promise("P17", counted=f"{len(changes)} changes of the log", result="all noticed by an audit")


def append_one(kind: str, subject: Digest, connection: Connection) -> None:
    append_entry(connection, kind, subject, LATER)


@pytest.mark.parametrize("state", ["open", "closed", "counted"])
def test_a_chunk_whose_salt_was_altered_or_that_is_gone_is_noticed(
    studies: dict[str, OpenStudy], state: str
) -> None:
    study = studies[state]
    files, key = study.world.proxy.files, study.world.proxy.data_key(study.study)
    (row, *_) = [found for found in rows(study, chunks) if found["version"] != UNFINISHED]
    place = PartyId.parse(row["owner"]), row["version"], row["position"], Digest.parse(row["digest"])
    path = Path(files.place(name := chunk_name(study.study, *place)))
    before, chunk = path.read_bytes(), files.read_sealed(name, key)
    what = "shares: statements, receipts and their events"
    try:
        files.write_sealed(name, bytes([chunk[0] ^ 1]) + chunk[1:], key, OS_RANDOMNESS)
        assert audited(study, lambda _: None) == Check(what, "a chunk of a share was altered")
        path.unlink()
        missing = audited(study, lambda _: None)
        assert missing is not None
        assert (missing.what, missing.outcome) == (what, f"a stored file is missing ({path})")
    finally:
        path.write_bytes(before)
        path.chmod(0o600)


def test_an_audit_does_not_miss_what_a_running_proxy_deletes(world: ProxyWorld) -> None:
    study = world.open_study(3)
    deliver(study)
    with world.proxy.database.reading("audit") as connection:
        trail = Trail(world.proxy, connection, study.study)
        assert trail.row.state is StudyState.OPEN
        study.withdraw(world.owners[0], 2)
        assert {check.outcome for check in audit_trail(trail)} == {HOLDS}


def test_a_release_whose_event_names_other_software_is_noticed(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Software("9.9.9", SoftwareKind.EDITABLE)
    monkeypatch.setattr(jobs, "telling_software", lambda detail, _: telling_software(detail, other))
    study = world.open_study(3, release="joint")
    deliver(study)
    study.close()
    study.wait_state("released")
    with world.proxy.database.reading("audit") as connection:
        told = [check.outcome for check in audit_trail(Trail(world.proxy, connection, study.study))]
    assert sum("another software" in outcome for outcome in told) == 1


def test_what_is_undone_as_if_it_never_was_is_known_by_the_generation(
    studies: dict[str, OpenStudy], tmp_path: Path
) -> None:
    """The last act of all, taken out of state, transcript and log alike."""
    study = studies["failed"]
    settings = study.world.proxy.settings
    home = copy_with_generation(settings.home, tmp_path / "proxy")
    mine = {"study": study.study.hex()}
    with tampering(home) as connection:
        for undo in (
            "DELETE FROM log WHERE position = (SELECT max(position) FROM log)",
            "DELETE FROM events WHERE study = :study AND kind = 'failed'",
            "UPDATE studies SET state = 'open', failure = NULL, failure_detail = NULL WHERE study = :study",
        ):
            assert connection.execute(text(undo), mine if ":study" in undo else {}).rowcount == 1
        sealed = seal(bytes(32), study.world.proxy.key.public.sealing_key, data_key_info(study.study))
        connection.execute(data_keys.insert().values(study=study.study, sealed=sealed))
    proxy = open_proxy(load_settings(home), key_rules=KeyRules(TOY_BITS))
    wrong = {check.what for check in audit_study(proxy, study.study) if check.outcome != HOLDS}
    proxy.database.close()
    assert wrong == {"generation: the newest database"}


@pytest.mark.parametrize(
    ("damage", "value"),
    [
        ("UPDATE studies SET cohort_digest = :value", "no digest"),
        ("UPDATE studies SET manifest = :value", b"\0\xff"),
        ("UPDATE studies SET state = :value", "lost"),
        ("UPDATE studies SET closed_at = :value", "yesterday"),
        ("UPDATE studies SET challenge = :value", b"{}"),
        ("UPDATE cohort SET owner = :value WHERE owner = (SELECT max(owner) FROM cohort)", "nobody"),
        ("UPDATE events SET digest = :value", "no digest"),
        ("UPDATE events SET time = :value", "7"),
        ("UPDATE events SET statement = :value", "text"),
        ("UPDATE log SET digest = :value WHERE position = 5", "no digest"),
        ("UPDATE log SET time = :value WHERE position = 5", "yesterday"),
        ("UPDATE statements SET digest = :value", "no digest"),
        ("UPDATE release_chunks SET digest = :value", "no digest"),
        ("UPDATE contradictions SET owner = :value", "nobody"),
        ("UPDATE shares SET state = :value", "lost"),
        ("UPDATE parties SET ed25519 = :value", "text"),
        ("UPDATE components SET statement = :value", b"\xff"),
    ],
)
def test_damage_ends_no_audit_without_its_table(
    studies: dict[str, OpenStudy],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: str,
    value: str | bytes,
) -> None:
    study = studies["open" if "contradictions" in damage else "published"]
    settings = study.world.proxy.settings
    home = copy_with_generation(settings.home, tmp_path / "proxy")
    with tampering(home) as connection:
        assert connection.execute(text(damage), {"value": value}).rowcount
    proxy = open_proxy(load_settings(home), key_rules=KeyRules(TOY_BITS))
    checks = audit_study(proxy, study.study)
    proxy.database.close()
    assert {check.outcome for check in checks} > {HOLDS}
    with pytest.raises(SystemExit) as left:
        cli.main(["proxy", "audit", study.study.hex(), "--home", str(home)])
    told = capsys.readouterr()
    assert left.value.code == 1
    assert all(f"{check.what}: " in told.out for check in checks)
    assert f"of {len(checks)} checks failed" in told.err
