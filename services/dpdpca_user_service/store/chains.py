"""Chains of studies: a base draft, and the rounds chosen so far. Rounds are only appended."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, select, update

from dpdpca_protocol.errors import ConflictError, NotFoundError
from dpdpca_protocol.wire.fields import time_text
from dpdpca_runtime.database import (
    Database,
    as_written,
    change_one,
    conditional_insert,
    readable,
    rows_damaged,
)
from dpdpca_user_service.store.tables import chains


class ChainState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ChainRound:
    """A chosen round. A round is stored before its study is created.

    Attributes:
        row: the draft id of the study, a random id made when the round is chosen. A study with this id is
            this round, whoever creates it.
        release, rho_share: the kind of release, and its fraction of the chain's ρ.
        reasons: the reasons for the choice, for people.
        draft: the draft of the study.
    """

    row: str
    release: str
    rho_share: str
    reasons: tuple[str, ...]
    draft: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChainRow:
    """A chain as it is stored. `rounds` begins with the oldest."""

    id: str
    created_at: str
    title: str
    base: Mapping[str, Any]
    proxy_url: str
    publish: bool
    in_clear: bool
    records: int
    scales: bool
    updated_at: str
    state: ChainState
    rounds: tuple[ChainRound, ...]
    problem_slug: str | None
    problem: str | None


class ChainStore:
    """The chains of one data user."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        chain_id: str,
        title: str,
        base: Mapping[str, Any],
        proxy_url: str,
        now: datetime,
        *,
        publish: bool,
        in_clear: bool,
        records: int,
        scales: bool,
    ) -> None:
        """Stores a chain. If another chain with the same id was stored at the same time, that chain stays."""
        with self._database.transaction("add chain") as connection:
            connection.execute(
                conditional_insert(connection, chains)
                .values(
                    id=chain_id,
                    created_at=time_text(now),
                    updated_at=time_text(now),
                    title=title,
                    base=json.dumps(base).encode(),
                    proxy_url=proxy_url,
                    publish=publish,
                    in_clear=in_clear,
                    records=records,
                    scales=scales,
                    state=str(ChainState.RUNNING),
                    rounds="[]",
                )
                .on_conflict_do_nothing()
            )

    def find(self, chain_id: str) -> ChainRow:
        """The chain with this id. Raises NotFoundError if there is none."""
        with self._database.reading("find chain") as connection:
            found = connection.execute(select(chains).where(chains.c.id == chain_id)).one_or_none()
            if found is None:
                raise NotFoundError(
                    "not-found",
                    "this service has no chain with this id",
                    "to list the chains, run: dpdpca user study chains",
                )
            return _chain(found)

    def all(self) -> list[ChainRow]:
        """All chains whose rows can be read, newest first."""
        return self._listed()[0]

    def check_rows(self) -> None:
        """Raises IntegrityError with the ids of all chains that `all` leaves out because of damaged rows."""
        if damaged := self._listed()[1]:
            raise rows_damaged("chains", [row.id for row in damaged], self._database.place)

    def _listed(self) -> tuple[list[ChainRow], list[Row[Any]]]:
        with self._database.reading("list chains") as connection:
            asked = select(chains).order_by(chains.c.created_at.desc(), chains.c.id)
            return readable(connection.execute(asked).all(), _chain)

    def running(self) -> list[ChainRow]:
        return [chain for chain in self.all() if chain.state is ChainState.RUNNING]

    def append(self, chain: ChainRow, following: ChainRound, now: datetime) -> None:
        """Stores the next round, if the chain is still as in `chain`.

        Raises:
            ConflictError: the chain has changed or ended.
        """
        rounds = [*chain.rounds, following]
        self._change(chain, now, rounds=_written(rounds))

    def end(
        self,
        chain: ChainRow,
        state: ChainState,
        now: datetime,
        problem_slug: str | None = None,
        problem: str | None = None,
    ) -> None:
        """Ends a chain. Raises ConflictError if the chain has changed or already ended."""
        self._change(chain, now, state=str(state), problem_slug=problem_slug, problem=problem)

    def _change(self, chain: ChainRow, now: datetime, **values: Any) -> None:
        with self._database.transaction("change chain") as connection:
            change_one(
                connection,
                update(chains)
                .where(
                    chains.c.id == chain.id,
                    chains.c.state == str(ChainState.RUNNING),
                    chains.c.rounds == _written(chain.rounds),
                )
                .values(updated_at=time_text(now), **values),
                ConflictError("wrong-state", "the chain has changed meanwhile", "read its state again"),
            )


def _written(rounds: "tuple[ChainRound, ...] | list[ChainRound]") -> str:
    return json.dumps(
        [
            {
                "row": each.row,
                "release": each.release,
                "rho_share": each.rho_share,
                "reasons": list(each.reasons),
                "draft": dict(each.draft),
            }
            for each in rounds
        ]
    )


def _chain(found: Row[Any]) -> ChainRow:
    values = dict(found._mapping)
    with as_written():
        values["base"] = json.loads(values["base"])
        values["state"] = ChainState(values["state"])
        values["rounds"] = tuple(
            ChainRound(each["row"], each["release"], each["rho_share"], tuple(each["reasons"]), each["draft"])
            for each in json.loads(values["rounds"])
        )
    return ChainRow(**values)
