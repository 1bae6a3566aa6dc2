"""What the operator's page shows. Reads everything from the database at one moment, and decides nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from sqlalchemy import Connection

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.study import ShareState, StudyState
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_proxy.jobs import Jobs
from dpdpca_proxy.page import words
from dpdpca_proxy.progress import JobProgress
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.overview import (
    OwnerRow,
    RecentEvent,
    count_chunks,
    count_owners,
    list_owners,
    name_of,
    recent_events,
)
from dpdpca_proxy.store.studies import StudyRow, list_readable, load_blob
from dpdpca_runtime.database import as_written

MOST_STUDIES: Final = 100
MOST_OWNERS: Final = 60
MOST_EVENTS: Final = 4
_SOON: Final = timedelta(days=1)
_PATIENCE: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Owner:
    name: str
    word: str


@dataclass(frozen=True, slots=True)
class Happened:
    time: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Study:
    """One study in words.

    Attributes:
        row: as stored.
        user: the data user's name.
        state: in words.
        owners: the first ones by name; `more_owners` are not among them.
        expected: how many owners there are, whatever they have delivered.
        time_left: until `closes_at`; None unless the study is open.
        stored_bytes: of all stored chunks, without salts and seals; None if the terms cannot be read.
        events: the newest first.
        problem, remedy: what is wrong and what to do, or None.
        progress: of the running step, with the words for its phase.
    """

    row: StudyRow
    user: str
    state: str
    owners: tuple[Owner, ...] = ()
    expected: int = 0
    complete: int = 0
    time_left: str | None = None
    stored_bytes: int | None = None
    events: tuple[Happened, ...] = ()
    problem: str | None = None
    remedy: str | None = None
    progress: JobProgress | None = None

    @property
    def more_owners(self) -> int:
        return self.expected - len(self.owners)

    @property
    def release(self) -> str:
        return words.RELEASES[self.row.release_kind]

    @property
    def phase(self) -> str | None:
        return None if self.progress is None else words.PHASES.get(self.progress.phase, self.progress.phase)


@dataclass(frozen=True, slots=True)
class Overview:
    """Chains of studies, the newest first; a study that belongs to no chain is alone in its own.

    Attributes:
        chains: the rounds of each, the oldest first.
        older: how many studies are not shown.
        unread: ids of studies whose rows are damaged.
    """

    now: datetime
    chains: tuple[tuple[Study, ...], ...]
    older: int
    unread: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Terms:
    """What the page needs of a manifest, which never changes."""

    earlier: tuple[StudyId, ...]
    chunk_count: int


Look = Callable[[], Overview]


def overview_of(proxy: Proxy, jobs: Jobs) -> Look:
    """Returns a function that reads the present overview. It may be called in any thread.

    That function raises DpdpcaError if the database cannot be read.
    """

    @lru_cache(maxsize=4096)
    def terms(study: StudyId) -> _Terms:
        manifest = proxy.terms(study).manifest
        return _Terms(manifest.pre_studies, manifest.figures.chunk_count)

    def readable_terms(study: StudyId) -> _Terms | None:
        try:
            return terms(study)
        except DpdpcaError:  # damaged, or refused by this version: the study is shown without them
            return None

    def look() -> Overview:
        now = proxy.now()
        with proxy.database.reading("list studies for the operator") as connection:
            listed = list_readable(connection)
        known = {row.study: readable_terms(row.study) for row in listed.rows[-MOST_STUDIES:]}
        chains = _chains(listed.rows, {study: each.earlier for study, each in known.items() if each})
        rounds = [row.study for chain in chains for row in chain]
        known |= {study: readable_terms(study) for study in rounds if study not in known}
        with proxy.database.reading("show studies to the operator") as connection:
            reader = _Reader(connection, jobs, now, known)
            shown = tuple(tuple(_read_study(reader, row) for row in chain) for chain in chains)
        return Overview(now, shown, len(listed.rows) - len(rounds), listed.unread)

    return look


def _chains(
    rows: Sequence[StudyRow], earlier: dict[StudyId, tuple[StudyId, ...]]
) -> list[tuple[StudyRow, ...]]:
    """The newest studies, each with the earlier rounds that its manifest names.

    The first of these rounds tells the chain. A manifest can name any study, so only those of the same data
    user count.
    """
    by_id = {row.study: row for row in rows}
    chains: dict[StudyId, dict[StudyId, StudyRow]] = {}
    for row in rows[-MOST_STUDIES:]:
        named = [by_id[study] for study in earlier.get(row.study, ()) if study in by_id]
        rounds = [*(each for each in named if each.user == row.user), row]
        chains.setdefault(rounds[0].study, {}).update({each.study: each for each in rounds})
    ordered = [
        tuple(sorted(chain.values(), key=lambda row: (len(earlier.get(row.study, ())), row.created_at)))
        for chain in chains.values()
    ]
    return sorted(ordered, key=lambda chain: (chain[-1].created_at, chain[-1].study), reverse=True)


@dataclass(frozen=True, slots=True)
class _Reader:
    connection: Connection
    jobs: Jobs
    now: datetime
    terms: Mapping[StudyId, _Terms | None]


def _read_study(reader: _Reader, row: StudyRow) -> Study:
    try:
        return _study(reader, row)
    except DpdpcaError:
        problem, remedy = words.TROUBLE["state-corrupt"]
        return Study(row, row.user.hex()[:16], words.STATES[row.state], problem=problem, remedy=remedy)


def _study(reader: _Reader, row: StudyRow) -> Study:
    connection, study = reader.connection, row.study
    expected, complete = count_owners(connection, study)
    waits_for_count = (
        row.state is StudyState.CLOSED
        and row.release_kind.needs_count
        and load_blob(connection, study, "challenge") is not None
    )
    problem, remedy = _problem(reader, row, complete, waits_for_count=waits_for_count)
    return Study(
        row=row,
        user=name_of(connection, row.user),
        state=_state_words(row, waits_for_count=waits_for_count),
        owners=tuple(
            Owner(owner.name, _owner_word(owner, row.state))
            for owner in list_owners(connection, study, MOST_OWNERS)
        ),
        expected=expected,
        complete=complete,
        time_left=words.time_left(row.closes_at - reader.now) if row.state is StudyState.OPEN else None,
        stored_bytes=_stored_bytes(reader, row),
        events=tuple(_happened(connection, event) for event in recent_events(connection, study, MOST_EVENTS)),
        problem=problem,
        remedy=remedy,
        progress=reader.jobs.progress(study),
    )


def _state_words(row: StudyRow, *, waits_for_count: bool) -> str:
    if waits_for_count:
        return words.WAITS_FOR_COUNT
    if row.state is StudyState.RELEASED and not row.release_kind.has_components:
        return words.RELEASED_NUMBERS
    return words.STATES[row.state]


def _owner_word(owner: OwnerRow, state: StudyState) -> str:
    if owner.has_declined:
        return words.DECLINED
    if state is not StudyState.OPEN and owner.state in (ShareState.ABSENT, ShareState.PARTIAL):
        return words.NOT_DELIVERED
    return words.SHARES[owner.state]


def _stored_bytes(reader: _Reader, row: StudyRow) -> int | None:
    chunks = count_chunks(reader.connection, row.study)
    if chunks == 0:
        return 0
    terms = reader.terms[row.study]
    return None if terms is None else row.share_bytes * chunks // terms.chunk_count


def _problem(
    reader: _Reader, row: StudyRow, complete: int, *, waits_for_count: bool
) -> tuple[str, str] | tuple[None, None]:
    """What is wrong with a study, and what the operator can do."""
    if row.state is StudyState.FAILED:
        slug = row.failure or ""
        said = row.failure_detail or slug
        return f"{said[:1].upper()}{said[1:]}.", words.failure_remedy(slug)
    if (trouble := reader.jobs.trouble_of(row.study)) is not None:
        return words.TROUBLE[trouble]
    if row.state is StudyState.OPEN and complete < row.min_owners and row.closes_at - reader.now < _SOON:
        return words.FEW_OWNERS
    if waits_for_count and row.closed_at is not None and reader.now - row.closed_at > _PATIENCE:
        return words.DATA_USER_AWAY
    return None, None


def _happened(connection: Connection, event: RecentEvent) -> Happened:
    told: dict[str, str] = {}
    if event.kind in ("receipt", "withdrawal", "closed"):
        with as_written():
            detail = verify_statement("event", event.statement).body["detail"]
            if event.kind == "closed":
                told = {
                    "owners": words.counted(int(detail["owners"]), "owner"),
                    "reason": str(detail["reason"]),
                }
            else:
                told = {"owner": name_of(connection, PartyId.parse(detail["owner"]))}
    return Happened(event.time, words.event_words(event.kind, told))
