"""Chains for many features at a data user's service, with owners that join every study at once.

What counts as many is lowered, so that chains are fast: see `few_are_many`.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from user_world import UserWorld
from wide_rounds import Floats, deliver, factor_records, terms

from dpdpca_protocol.study import ReleaseKind
from dpdpca_user.planning import wide, wide_chain
from dpdpca_user_service.chains import create_chain
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.chains import ChainRow, ChainState

D, N = 60, 1500
BASE: dict[str, Any] = {
    "title": "What varies together",
    "purpose": "A test.",
    "participants": "enrolled",
    "closing": "when-complete",
    "min_owners": 2,
    "sketch": {"rows": 32},
    "lift": {"columns": 2},
} | {name: value for name, value in terms(D).items() if name != "clip_norm"}
RECORDS = factor_records(N, D, (0.3, 0.15), offset=0.002)
ROUNDS = ["pre-study", "sketch", "lift", "scores"]


class WideWorld(UserWorld):
    """A service with a chain, and owners that join every study as soon as it is open."""

    restarts = False
    records: Floats
    delivered: set[str]

    def begin_chain(self, records: Floats, draft: dict[str, Any], **options: Any) -> str:
        """The id of a chain that has no round yet."""
        self.records, self.delivered = records, set()
        encoded = json.dumps(draft).encode()
        return str(create_chain(self.service, encoded, "application/json", None, **options)["id"])

    def run_chain(self, records: Floats, draft: dict[str, Any], **options: Any) -> ChainRow:
        chain = self.begin_chain(records, draft, **options)
        return self.turn_until(chain, lambda found: found.state is not ChainState.RUNNING)

    def turn_until(self, chain: str, arrived: Callable[[ChainRow], bool]) -> ChainRow:
        for _ in range(60):
            if arrived(found := self.turn(chain)):
                return found
        raise AssertionError("the chain did not come so far")

    def turn(self, chain: str) -> ChainRow:
        """One turn of everybody."""
        if self.restarts:
            self.reopen()
        self.driver.advance_chain(self.service.chains.find(chain))
        for row in self.service.store.unfinished():
            self.driver.advance(row)
            now = self.row(row.id)
            if now.stage is Stage.OPEN and now.id not in self.delivered:
                self.delivered.add(now.id)
                deliver(self.opened(now), self.records, self.components)
        return self.service.chains.find(chain)

    @property
    def components(self) -> Floats | None:
        """What the owners got of the lift."""
        lifts = [row for row in self.service.store.modelled() if row.release == ReleaseKind.LIFT]
        if not lifts or lifts[0].stage is not Stage.PUBLISHED:
            return None
        return self.service.model_of(lifts[0].id).components.vectors


def few_are_many(monkeypatch: pytest.MonkeyPatch, *, only_lifts: bool = False) -> None:
    """D features get a sketch, and then perhaps a lift; with `only_lifts` never a full matrix."""
    monkeypatch.setattr(wide, "FULL_UP_TO", D - 1)
    if only_lifts:
        monkeypatch.setattr(wide_chain, "COMPARED_UP_TO", D - 1)
