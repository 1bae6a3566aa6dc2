"""Every write in a store names what it expects: the table of transitions, a row as it was read, one row."""

import ast
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from proxy_world import ProxyWorld, dump, refused, values_of

from dpdpca_protocol.errors import ConflictError, UnavailableError
from dpdpca_protocol.study import (
    STUDY_TRANSITIONS,
    ReleaseKind,
    ShareState,
    StudyEvent,
    StudyState,
)
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.store.shares import ShareRow, find_share, set_share
from dpdpca_proxy.store.studies import StudyRow, load_study, move_study, set_study
from dpdpca_proxy.store.tables import studies

SERVICES = Path(__file__).parents[3] / "services"
STORES = [*(SERVICES / "dpdpca_proxy" / "store").glob("*.py")]
STORES += (SERVICES / "dpdpca_user_service" / "store").glob("*.py")


@pytest.mark.parametrize("path", STORES, ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_every_update_counts_the_rows_that_it_changed(path: Path) -> None:
    """An `update` stands inside `change_one`, or in a function that looks at `rowcount`."""
    tree = ast.parse(path.read_text())
    inside = {
        id(call)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.Call) and getattr(outer.func, "id", "") == "change_one"
        for call in ast.walk(outer)
    }
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            counts = any(
                isinstance(node, ast.Attribute) and node.attr == "rowcount" for node in ast.walk(function)
            )
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "update":
                    assert counts or id(call) in inside, f"{path.name}:{call.lineno}"


def put(world: ProxyWorld, study: StudyId, state: StudyState, kind: ReleaseKind) -> StudyRow:
    """The study as if it stood there: the row is set from outside."""
    with world.proxy.database.transaction("set from outside") as connection:
        connection.execute(
            studies.update()
            .where(studies.c.study == study)
            .values(state=str(state), release_kind=str(kind), noise_drawn_at=None)
        )
        return load_study(connection, study)


def test_the_store_moves_studies_by_the_table_alone(world: ProxyWorld) -> None:
    study = world.open_study(3).study
    world.stop()
    moved = kept = 0
    for kind, state, event in product(ReleaseKind, StudyState, StudyEvent):
        row = put(world, study, state, kind)
        following = STUDY_TRANSITIONS[kind].get((state, event))
        try:
            with world.proxy.database.transaction("move") as connection:
                move_study(connection, row, event)
        except ConflictError:
            assert following is None
            kept += 1
        else:
            assert following is not None
            moved += 1
        with world.proxy.database.reading("where") as connection:
            assert load_study(connection, study).state is (following or state)
    assert (moved, kept) == (
        sum(len(table) for table in STUDY_TRANSITIONS.values()),
        len(ReleaseKind) * len(StudyState) * len(StudyEvent) - moved,
    )


def test_a_row_that_changed_since_it_was_read_is_not_written(world: ProxyWorld) -> None:
    study, owner = world.open_study(3), world.owners[0]
    study.deliver(owner, values_of(3, 0))
    world.stop()
    database = world.proxy.database
    with database.reading("read") as connection:
        row = load_study(connection, study.study)
        share = find_share(connection, study.study, owner.public.party_id)
    stale_studies = [
        replace(row, revision=row.revision - 1),
        replace(row, state=StudyState.CLOSED),
    ]
    stale_shares = [
        replace(share, signed_version=share.signed_version + 1),
        replace(share, state=ShareState.PARTIAL),
        replace(share, upload_version=7),
    ]
    before = dump(world.proxy)
    for stale in stale_studies:

        def write(stale: StudyRow = stale) -> None:
            with database.transaction("write") as connection:
                set_study(connection, stale, records=1)

        assert isinstance(refused(write), UnavailableError)
    for other in stale_shares:

        def write_share(other: ShareRow = other) -> None:
            with database.transaction("write") as connection:
                set_share(connection, other, ShareState.WITHDRAWN)

        assert isinstance(refused(write_share), UnavailableError)
    assert dump(world.proxy) == before
