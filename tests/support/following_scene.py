"""Three owners with registered records, a real proxy and the data user's service, in one process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chain_world import Chain
from proxy_world import ProxyWorld
from user_world import TOY_BITS, InlineWorkers, UserWorld

from dpdpca_owner.actions import Desk
from dpdpca_owner.agent import Agent
from dpdpca_owner.following import Follower, Records, share_at
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.sources import RegisteredSource
from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.study import ShareState
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.studies import StudyRow
from dpdpca_user_service.work import make_key

N, D = 1800, 3
TERMS: dict[str, Any] = {
    "epsilon": 4,
    "delta": "0.00001",
    "max_records": 5000,
    "min_records": 10,
    "missing": "midpoint",
    "clip_norm": "1.73",
}
PRE: dict[str, Any] = {"release": "pre-study", "blocks": {"norms": "1"}, **TERMS}
POLICY = "[study]\nmax_delta = 1e-5\nmin_owners = 2\n[budget]\nepsilon = 9\ndelta = 1e-4\n"


class KeyMakers(InlineWorkers):
    """A fresh toy key for every study, as in the product."""

    def call(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        if function is make_key:
            return make_key(TOY_BITS, args[1], KeyRules(TOY_BITS))
        return super().call(function, *args, **options)


class ManyKeys(UserWorld):
    def new_workers(self) -> InlineWorkers:
        return KeyMakers([])


@dataclass
class Scene:
    """The three owners, each with its records registered as "patients"."""

    chain: Chain

    def address(self, row: StudyRow) -> StudyAddress:
        return self.chain.address(row)

    def follower(self, row: StudyRow, owner: int = 0, *, is_approved: bool = False) -> Follower:
        records = Records(DataLocation(str(self.chain.data[owner])), "people")
        return Follower(self.chain.desks[owner], self.address(row), records, is_approved=is_approved)

    def turn(self, row: StudyRow) -> StudyRow:
        self.chain.user.driver.advance(self.chain.user.row(row.id))
        return self.chain.user.row(row.id)

    def finish(self, row: StudyRow) -> StudyRow:
        """The other owners join, and the data user has its result."""
        for owner in (1, 2):
            self.chain.join(row, owner)
        return self.chain.user.advance_to(row, Stage.FITTED, Stage.PUBLISHED)

    def shares(self, owner: int = 0) -> int:
        """How many studies have a share of this owner."""
        return len(self.chain.desks[owner].home.joined())


@contextmanager
def three_owners(world: ProxyWorld, folder: Path) -> Iterator[Scene]:
    """Owners, records and data user in `folder`, at a proxy where they are enrolled."""
    user = ManyKeys(world, folder / "user")
    rng = np.random.default_rng(5)  # noqa: TID251  # data, not noise
    shared = rng.normal(0, 0.25, (N, 1))
    records = shared * [1.0, -0.7, 0.2] + rng.normal(0, 0.03, (N, D)) + [0.1, 0.2, 0.3]
    made = Chain.make(world, user, folder, np.clip(records, -1, 1))
    for desk, data in zip(made.desks, made.data, strict=True):
        desk.home.policy_path.write_text(POLICY)
        desk.home.sources.add(RegisteredSource("patients", str(data), data_set="people"), {})
    yield Scene(made)
    user.service.close()


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(DpdpcaError) as caught:
        act()
    return caught.value.slug


def agent(desk: Desk) -> tuple[Agent, list[str]]:
    told: list[str] = []
    return Agent(replace(desk, say=told.append), {}), told


class Killed(BaseException):
    """The owner's process ended."""


def killed(*_: object, **__: object) -> None:
    raise Killed


def has_sent(home: OwnerHome, address: StudyAddress) -> bool:
    """Whether this machine holds the proxy's receipt for a share of the study."""
    return share_at(home, address) is ShareState.COMPLETE
