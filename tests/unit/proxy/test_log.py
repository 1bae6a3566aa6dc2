"""The proxy's log: no record, no act; one chain; what is altered in it is found."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from promises import Promise
from proxy_world import InlineWorker, OpenStudy, ProxyWorld, dump, slug, values_of, wait_for
from sqlalchemy import event, exc, text
from tampering import tampering

from dpdpca_protocol.messages.study_messages import Enrolment, StudyAct
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.signing import IdentityKey, verify_statement
from dpdpca_proxy import enrolment, jobs
from dpdpca_proxy.audit import HOLDS, audit_study, contradictions_of
from dpdpca_proxy.enrolment import invite
from dpdpca_proxy.store import studies
from dpdpca_proxy.store.log import entries, last_mark

LOG_CHECK = "log: every link, and the transcript in it"
CAUSES = {
    "full": (sqlite3.SQLITE_FULL, "53100", 507, "storage-full"),
    "read-only": (sqlite3.SQLITE_READONLY, "25006", 503, "storage-failing"),
    "locked": (sqlite3.SQLITE_BUSY, "55P03", 503, "busy"),
}
"""What each engine says: SQLite by a code, PostgreSQL by a state."""


def failing(world: ProxyWorld, cause: str) -> Callable[..., Any]:
    code, state, *_ = CAUSES[cause]

    def fail(*_: Any, **__: Any) -> Any:
        raise exc.OperationalError("INSERT INTO log", None, said())

    def said() -> Exception:
        if world.proxy.database._engine.dialect.name == "postgresql":
            from psycopg import errors

            return errors.lookup(state)("no")
        original = sqlite3.OperationalError("no")
        original.sqlite_errorcode = code
        return original

    return fail


@contextmanager
def pragma_on_every_connection(world: ProxyWorld, *pragmas: str) -> Iterator[None]:
    def set_them(connection: sqlite3.Connection, *_: object) -> None:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    engine = world.proxy.database._engine
    event.listen(engine, "checkout", set_them)
    try:
        yield
    finally:
        event.remove(engine, "checkout", set_them)


def everything(world: ProxyWorld) -> Any:
    return dump(world.proxy)


def enrolment_body(world: ProxyWorld, key: IdentityKey, token: str) -> bytes:
    statement = Enrolment("owner", "Hospital D", key.public, world.proxy_key).sign(key)
    return canonical_json({"enrolment": parse_canonical(statement.encoded), "invitation": token})


def two_delivered(world: ProxyWorld) -> OpenStudy:
    study = world.open_study(3)
    for seed, owner in enumerate(world.owners[:2]):
        study.deliver(owner, values_of(3, seed))
    return study


@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_without_its_record_nothing_is_done(
    world: ProxyWorld, cause: str, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    *_, status, problem = CAUSES[cause]
    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.05)
    worker = world.worker
    assert isinstance(worker, InlineWorker)
    study = two_delivered(world)
    token, late = invite(world.proxy, "owner", "Hospital D").token, IdentityKey.generate()
    body = enrolment_body(world, late, token)
    act = StudyAct("close", study.study).sign(world.user).encoded
    before = everything(world)
    with monkeypatch.context() as patch:
        for module in (studies, enrolment):
            patch.setattr(module, "append_entry", failing(world, cause))
        answers = [
            world.request(None, "POST", "/v1/parties", body),
            world.request(world.user, "POST", f"{study.path}/close", act),
        ]
        assert [(answer.status_code, slug(answer)) for answer in answers] == [(status, problem)] * 2
        assert all(answer.headers["retry-after"] for answer in answers)
        assert everything(world) == before
    assert world.request(None, "POST", "/v1/parties", body).status_code == 201
    # The release: made, but not recorded, and so not given.
    with monkeypatch.context() as drawing, monkeypatch.context() as releasing:
        drawing.setattr(jobs, "append_entry", failing(world, cause))
        study.close()
        wait_for(lambda: worker.calls.count("draw") >= 2)
        assert study.state() == "closed"
        assert world.request(world.user, "GET", f"{study.path}/release").status_code == 409
        releasing.setattr(studies, "append_entry", failing(world, cause))  # before the draw may be recorded
        drawing.undo()
        wait_for(lambda: worker.calls.count("make_release") >= 2)
        assert study.state() == "closed"
        assert world.request(world.user, "GET", f"{study.path}/release").status_code == 409
    study.wait_state("released")
    wait_for(lambda: {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS})
    promise(
        "P17",
        counted=f"log {cause}: enrolment, closing, draw, release",
        result=f"{status} or nothing to fetch, 0 rows changed",
    )


def test_a_database_that_cannot_be_written_refuses_whole(world: ProxyWorld, promise: Promise) -> None:
    study = two_delivered(world)
    token, late = invite(world.proxy, "owner", "Hospital D").token, IdentityKey.generate()
    body = enrolment_body(world, late, token)
    before = everything(world)
    with pragma_on_every_connection(world, "query_only=ON"):
        read_only = world.request(None, "POST", "/v1/parties", body)
        assert world.request(None, "GET", "/readyz").status_code == 503
    with pragma_on_every_connection(world, "query_only=OFF", "busy_timeout=50"):
        lock = sqlite3.connect(world.home / "proxy.sqlite3", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        locked = world.request(None, "POST", "/v1/parties", body)
        lock.execute("ROLLBACK")
        lock.close()
    with pragma_on_every_connection(world, "query_only=OFF", "busy_timeout=20000"):
        assert [(one.status_code, slug(one)) for one in (read_only, locked)] == [
            (503, "storage-failing"),
            (503, "busy"),
        ]
        assert everything(world) == before
        assert world.request(None, "POST", "/v1/parties", body).status_code == 201
        assert world.request(None, "GET", "/readyz").status_code == 200
        study.close()
        study.wait_state("released")
    promise("P17", counted="database read-only and locked by another", result="503, 0 rows changed")


def test_every_act_is_an_entry_of_one_chain(world: ProxyWorld) -> None:
    study = two_delivered(world)
    study.close()
    study.wait_state("released")
    with world.proxy.database.reading("log") as connection:
        listed = list(entries(connection))
        last = last_mark(connection)
    kinds = [entry.kind for entry, _ in listed]
    assert kinds == [*["enrolment"] * 4, "manifest", "receipt", "receipt", "closed", "draw", "release"]
    assert [entry.position for entry, _ in listed] == list(range(1, len(kinds) + 1))
    assert all(entry.digest == digest for entry, digest in listed)
    assert (last.generation, last.head) == (len(kinds), listed[-1][1])
    bundle = world.client(world.user).release(study.study)
    closing = verify_statement("event", bundle.transcript[-1], world.proxy_key)
    assert closing.body["detail"]["log"] == listed[-2][1].hex()  # the head that the release closed over


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE log SET kind = 'receipt' WHERE kind = 'draw'",
        "DELETE FROM log WHERE position = 6",
        "DELETE FROM log WHERE kind = 'release'",
        "UPDATE log SET subject = '" + "0" * 64 + "' WHERE kind = 'closed'",
        "UPDATE log SET digest = '" + "0" * 64 + "' WHERE position = 3",
    ],
)
def test_an_altered_log_is_found(world: ProxyWorld, change: str) -> None:
    study = two_delivered(world)
    study.close()
    study.wait_state("released")
    world.stop()
    with tampering(world.home) as connection:
        assert connection.execute(text(change)).rowcount == 1
    world.start()
    wrong = {check.what for check in audit_study(world.proxy, study.study) if check.outcome != HOLDS}
    assert wrong >= {LOG_CHECK}
    assert wrong <= {
        LOG_CHECK,
        "log: everything that is stored, and nothing else",
        "generation: the newest database",
    }


def test_two_statements_under_one_version_are_kept_as_evidence(world: ProxyWorld, promise: Promise) -> None:
    """A14: the second is refused, whatever it says, and both can be shown to anybody."""
    study, owner = world.open_study(3), world.owners[0]
    study.deliver(owner, values_of(3, 0))
    others = [study.claim(owner, study.plain_chunks(values_of(3, seed))) for seed in (1, 2)]
    path = f"{study.path}/share/complete"
    for other in (*others, others[0]):
        answer = world.request(owner, "POST", path, other.encoded)
        assert (answer.status_code, slug(answer)) == (409, "statement-differs")
    (kept,) = contradictions_of(world.proxy, study.study)
    signed = [verify_statement("share", one, owner.public.ed25519) for one in (kept.statement, kept.other)]
    assert {one.body["version"] for one in signed} == {1}
    assert signed[0].digest != signed[1].digest == others[0].digest
    assert (kept.owner, kept.version) == (owner.public.party_id, 1)
    with world.proxy.database.reading("log") as connection:
        assert [entry.kind for entry, _ in entries(connection)].count("contradiction") == 1
    promise("P20", counted="3 second statements under one version", result="409, first one kept as evidence")
