"""Reads and changes studies.

Every write names the stage that it expects. If the stage differs, nothing changes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from dpdpca_protocol.errors import ConflictError, IntegrityError, NotFoundError
from dpdpca_protocol.messages.log import LogEntry
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import Statement
from dpdpca_runtime.database import Database, as_written, change_one, readable, rows_damaged
from dpdpca_user_service.stages import ENDED, MODELLED, Stage, check_move
from dpdpca_user_service.store.log import append_entry, entries, head_of
from dpdpca_user_service.store.tables import chunks, studies

_BLOBS = ("draft", "manifest", "secret", "challenge", "answer", "bundle", "opened", "model", "published")
_LIGHT = [column for column in studies.columns if column.name not in _BLOBS]


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A study without its blobs."""

    id: str
    created_at: str
    title: str
    release: str
    media_type: str
    proxy_url: str
    stage: Stage
    updated_at: str
    publish: bool
    in_clear: bool
    study: StudyId | None
    cancel_due: bool
    facts: Mapping[str, Any]
    seconds: Mapping[str, float]
    problem_slug: str | None
    problem: str | None

    @property
    def has_model(self) -> bool:
        return self.stage in MODELLED and not self.is_pre_study

    @property
    def has_result(self) -> bool:
        """Whether the released numbers of a pre-study have arrived."""
        return self.stage in MODELLED and self.is_pre_study

    @property
    def is_pre_study(self) -> bool:
        return not ReleaseKind(self.release).has_components

    @property
    def is_to_publish(self) -> bool:
        return self.publish and not self.is_pre_study

    @property
    def known_study(self) -> StudyId:
        assert self.study is not None, "a study has an id as soon as its manifest is signed"
        return self.study


class StudyStore:
    """The studies of one data user."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(
        self,
        row_id: str,
        title: str,
        release: str,
        draft: bytes,
        media_type: str,
        proxy_url: str,
        publish: bool,
        now: datetime,
        *,
        in_clear: bool = False,
    ) -> None:
        with self.database.transaction("add study") as connection:
            connection.execute(
                insert(studies).values(
                    id=row_id,
                    created_at=time_text(now),
                    updated_at=time_text(now),
                    title=title,
                    release=release,
                    draft=draft,
                    media_type=media_type,
                    proxy_url=proxy_url,
                    publish=publish,
                    in_clear=in_clear,
                    stage=str(Stage.DRAFTED),
                    facts="{}",
                    seconds="{}",
                )
            )

    def find(self, name: str) -> StudyRow:
        """The study with the draft id or study id `name`.

        Raises:
            NotFoundError: there is none.
        """
        with self.database.reading("find study") as connection:
            found = connection.execute(
                select(*_LIGHT).where((studies.c.id == name) | (studies.c.study == name))
            ).one_or_none()
            if found is None:
                raise NotFoundError(
                    "not-found",
                    "this service has no study with this id",
                    "list the studies with: dpdpca user study list",
                )
            return _row(found)

    def all(self) -> list[StudyRow]:
        """All studies whose rows can be read, newest first."""
        return self._listed()[0]

    def check_rows(self) -> None:
        """Raises IntegrityError if `all` leaves out any studies. The error names the ids of these studies."""
        if damaged := self._listed()[1]:
            raise rows_damaged("studies", [row.id for row in damaged], self.database.place)

    def _listed(self) -> tuple[list[StudyRow], list[Row[Any]]]:
        with self.database.reading("list studies") as connection:
            asked = select(*_LIGHT).order_by(studies.c.created_at.desc(), studies.c.id)
            return readable(connection.execute(asked).all(), _row)

    def unfinished(self) -> list[StudyRow]:
        """The studies that need further work by the driver."""
        return [
            row
            for row in self.all()
            if row.cancel_due
            or (row.stage not in ENDED and (row.stage is not Stage.FITTED or row.is_to_publish))
        ]

    def modelled(self) -> list[StudyRow]:
        return [row for row in self.all() if row.has_model]

    def blob(self, row_id: str, name: str) -> bytes | None:
        assert name in _BLOBS
        with self.database.reading("read blob") as connection:
            value = connection.execute(select(studies.c[name]).where(studies.c.id == row_id)).scalar_one()
        return None if value is None else bytes(value)

    def need(self, row_id: str, name: str) -> bytes:
        """A blob that must exist at the study's stage."""
        value = self.blob(row_id, name)
        if value is None:
            raise IntegrityError(
                "state-corrupt",
                f"the stored {name} of a study is missing",
                "keep a copy of the home, then restore the home from the newest backup",
                place=self.database.place,
            )
        return value

    def move(
        self, row: StudyRow, following: Stage, now: datetime, subject: Digest | None = None, **values: Any
    ) -> None:
        """Moves a study to the next stage, stores its data, and adds a log entry.

        Args:
            subject: the digest of the statement behind the change, or the study's id if there is none. Never
                the digest of a result: the proxy sees log heads and knows its noise, so it could test guesses
                against them.

        Raises:
            ConflictError: the study is no longer at the stage in `row`.
        """
        check_move(row.stage, following)
        if following in ENDED | MODELLED:
            values["secret"] = None
        if following is not Stage.FAILED:
            values |= {"problem": None, "problem_slug": None}
        with self.database.transaction("move study") as connection:
            self._change_in(connection, row, values | {"stage": str(following), "updated_at": time_text(now)})
            append_entry(connection, following, subject or row.study or Digest.of(row.id.encode()), now)
        if "secret" in values and values["secret"] is None:
            self.database.forget_deleted()

    def keep_opened(self, row: StudyRow, opened: Statement, now: datetime) -> None:
        """Stores the statement that says which release is opened, with a log entry.

        Raises:
            ConflictError: the study is no longer at the stage in `row`, or has such a statement.
        """
        with self.database.transaction("keep opened") as connection:
            change_one(
                connection,
                update(studies)
                .where(studies.c.id == row.id, studies.c.stage == str(row.stage), studies.c.opened.is_(None))
                .values(opened=opened.encoded),
                ConflictError("wrong-state", "the study has changed meanwhile", "read its state again"),
            )
            append_entry(connection, "opened", opened.digest, now)

    def log_head(self) -> Digest:
        with self.database.reading("read the head of the log") as connection:
            return head_of(connection)

    def log_entries(self) -> list[LogEntry]:
        with self.database.reading("read the log") as connection:
            return entries(connection)

    def note(self, row: StudyRow, **values: Any) -> None:
        """Writes columns without changing the stage."""
        with self.database.transaction("note on study") as connection:
            self._change_in(connection, row, values)

    def take_seconds(self, row: StudyRow, step: str, seconds: float) -> None:
        """Stores how long a step took."""
        with self.database.transaction("take seconds") as connection:
            known = json.loads(
                connection.execute(select(studies.c.seconds).where(studies.c.id == row.id)).scalar_one()
            )
            told = known | {step: round(known.get(step, 0.0) + seconds, 3)}
            self._change_in(connection, row, {"seconds": json.dumps(told)})

    def add_chunk(self, row: StudyRow, position: int, content: bytes) -> None:
        """Stores a chunk of the release, if the study is still at the stage of fetching.

        Raises like `move`.
        """
        with self.database.transaction("store chunk of the release") as connection:
            self._change_in(connection, row, {"stage": str(row.stage)})
            connection.execute(delete(chunks).where(chunks.c.id == row.id, chunks.c.position == position))
            connection.execute(insert(chunks).values(id=row.id, position=position, content=content))

    def chunk(self, row: StudyRow, position: int) -> bytes | None:
        with self.database.reading("read chunk of the release") as connection:
            value = connection.execute(
                select(chunks.c.content).where(chunks.c.id == row.id, chunks.c.position == position)
            ).scalar_one_or_none()
        return None if value is None else bytes(value)

    @staticmethod
    def _change_in(connection: Connection, row: StudyRow, values: Mapping[str, Any]) -> None:
        """Writes `values` to the study. Raises ConflictError if the study has left the stage of `row`."""
        change_one(
            connection,
            update(studies).where(studies.c.id == row.id, studies.c.stage == str(row.stage)).values(**values),
            ConflictError("wrong-state", "the study has changed meanwhile", "read its state again"),
        )


def _row(found: Row[Any]) -> StudyRow:
    values = dict(found._mapping)
    with as_written():
        values["stage"] = Stage(values["stage"])
        values["study"] = None if values["study"] is None else StudyId.parse(values["study"])
        values["facts"] = json.loads(values["facts"])
        values["seconds"] = json.loads(values["seconds"])
    return StudyRow(**values)
