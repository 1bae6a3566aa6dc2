"""Three owners with homes, records and budgets of their own, a real proxy and a data user's service."""

from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
from given_keys import give_key
from numpy.typing import NDArray
from proxy_world import ProxyWorld
from user_world import TOY_BITS, UserWorld

from dpdpca_owner import actions
from dpdpca_owner.actions import Desk, Prepared
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.upload import Settled, Watcher
from dpdpca_protocol.paillier.keys import KeyRules, generate_secret_key
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.terms.parties import KeyTerms
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.files import private_dir, write_private
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.studies import StudyRow
from dpdpca_user_service.work import MadeKey


@dataclass
class Chain:
    """The owners' desks and their records, and the data user."""

    world: ProxyWorld
    user: UserWorld
    desks: list[Desk]
    data: list[Path]
    records: NDArray[np.float64]

    @classmethod
    def make(cls, world: ProxyWorld, user: UserWorld, folder: Path, records: NDArray[np.float64]) -> "Chain":
        """The world's owners, each with a part of the records."""
        desks, data = [], []
        for index, (key, part) in enumerate(
            zip(world.owners, np.array_split(records, len(world.owners)), strict=True)
        ):
            home = OwnerHome(folder / f"owner-{index}", folder / "witness")
            home.create(f"Hospital {ascii_uppercase[index]}", None)
            give_key(home.path, key)
            home.pins.pin_proxy(world.url, world.client(key).card()[1])
            desks.append(Desk(home, home.load(), _connect, key_rules=KeyRules(TOY_BITS)))
            path = private_dir(folder / "data") / f"{index}.csv"
            header = ",".join(f"f{column}" for column in range(records.shape[1]))
            np.savetxt(path, part, delimiter=",", header=header, comments="", fmt="%.17g")
            data.append(path)
        return cls(world, user, desks, data, records)

    def open(self, **draft: Any) -> StudyRow:
        """A study of its own key that is open at the proxy."""
        secret = generate_secret_key(TOY_BITS, OS_RANDOMNESS, rules=KeyRules(TOY_BITS))
        key = KeyTerms.of(secret.public, prove_key(secret, self.world.user.public.ed25519))
        self.user.workers.keys[:] = [MadeKey(secret.to_bytes(), key)]
        return self.user.advance_to(self.user.create(**{"publish": False, **draft}), Stage.OPEN)

    def address(self, row: StudyRow) -> StudyAddress:
        return StudyAddress(self.world.url, row.known_study)

    def prepare(self, row: StudyRow, owner: int = 0) -> Prepared:
        return actions.prepare_join(
            self.desks[owner], self.address(row), DataLocation(str(self.data[owner])), "people"
        )

    def join(self, row: StudyRow, owner: int) -> Settled:
        return actions.join(self.desks[owner], self.address(row), self.prepare(row, owner), Watcher())

    def run(self, **draft: Any) -> StudyRow:
        """A whole study: every owner joins, and the result is here."""
        row = self.open(**draft)
        for owner in range(len(self.desks)):
            self.join(row, owner)
        return self.user.advance_to(row, Stage.FITTED)


def _connect(url: str, key: IdentityKey, pinned: bytes | None, _seconds: float) -> ProxyClient:
    return ProxyClient(url, key, pinned, patience=Patience(seconds=0.0))


def keep_policy(home: OwnerHome, text: str) -> None:
    """Write an owner's policy."""
    write_private(home.policy_path, text.encode())
