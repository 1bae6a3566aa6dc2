"""Three owners with a CSV, a Parquet and a .npy file, a real proxy, and a data user without a service: a
chain for many features from the sketch to the scores."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import wide_studies as wide
from chain_world import keep_policy
from given_keys import give_key
from numpy.typing import NDArray
from proxy_world import OpenStudy, ProxyWorld

from dpdpca_owner import actions
from dpdpca_owner.actions import Desk, Prepared
from dpdpca_owner.carrying import NotCarriedError, carrying, take_receipt
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.sending import SendWatcher, send
from dpdpca_owner.upload import Settled, Watcher
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.result.components import Components, EncodedSpace, Lifted
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.files import private_dir
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience

TOY_BITS = 512
COUNTS = (31, 24, 19)
POLICY = "[study]\nmin_owners = 2\nmax_delta = 1e-5\n[budget]\nepsilon = 9\ndelta = 1e-4\n"
Floats = NDArray[np.float64]


@dataclass
class WideChain:
    """The owners' desks and records, and the rounds so far."""

    world: ProxyWorld
    desks: list[Desk]
    data: list[Path]
    records: list[dict[str, list[float]]]
    said: list[str] = field(default_factory=list)

    @classmethod
    def make(cls, world: ProxyWorld, folder: Path) -> "WideChain":
        """Owners that are enrolled, with records of their own."""
        made = cls(world, [], [], [wide.records(seed, count) for seed, count in enumerate(COUNTS, 1)])
        private_dir(folder / "data")
        for index, (key, write) in enumerate(zip(world.owners, WRITERS, strict=True)):
            home = OwnerHome(folder / f"owner-{index}", folder / "witness")
            home.create(f"Hospital {ascii_uppercase[index]}", None)
            give_key(home.path, key)
            keep_policy(home, POLICY)
            home.pins.pin_proxy(world.url, world.client(key).card()[1])
            made.desks.append(
                Desk(home, home.load(), _connect, key_rules=KeyRules(TOY_BITS), say=made.said.append)
            )
            made.data.append(write(folder / "data" / str(index), made.records[index]))
        return made

    # the data user

    def open(self, release: str, of: str = "records", **changes: Any) -> OpenStudy:
        """A round that is open at the proxy."""
        manifest = self.manifest(release, of, **changes)
        statement = sign_manifest(manifest, self.world.user)
        study = self.world.client(self.world.user).create_study(statement.encoded)
        return OpenStudy(self.world, study, manifest, statement)

    def manifest(self, release: str, of: str = "records", **changes: Any) -> Manifest:
        return wide.CHAIN[release](self.world.manifest, of, **{"closing": "when-complete"} | changes)

    def open_lift(self, sketch: OpenStudy, of: str = "records", **changes: Any) -> OpenStudy:
        return self.open("lift", of, pre_studies=[sketch.study.hex()], **changes)

    def open_scores(
        self,
        sketch: OpenStudy,
        lift: OpenStudy,
        components: Digest,
        of: str = "records",
        *,
        columns: int = wide.K,
        **changes: Any,
    ) -> OpenStudy:
        scores = {"columns": columns, "study": lift.study.hex(), "components": components.hex()}
        return self.open(
            "scores",
            of,
            pre_studies=[sketch.study.hex(), lift.study.hex()],
            scores=scores | {"norm": "1.5"},
            **changes,
        )

    def publish(
        self, study: OpenStudy, vectors: Floats, change: Callable[[Components], Components] | None = None
    ) -> Digest:
        """Publish components of a released study; the digest of the statement."""
        study.state_opened()
        components, world = made_up(study.manifest, vectors), self.world
        plain = encode_components(study.study, change(components) if change else components)
        keys = {each.public.party_id: each.public.sealing_key for each in world.owners}
        statement = SealedComponents.seal_once(study.study, plain, keys).sign(world.user)
        world.client(world.user).publish_components(study.study, statement)
        return statement.digest

    # the owners

    def address(self, study: OpenStudy) -> StudyAddress:
        return StudyAddress(self.world.url, study.study)

    def location(self, owner: int) -> DataLocation:
        return DataLocation(str(self.data[owner]))

    def prepare(self, study: OpenStudy, owner: int = 0) -> Prepared:
        return actions.prepare_join(self.desks[owner], self.address(study), self.location(owner), "people")

    def join(self, study: OpenStudy, owner: int = 0) -> Settled:
        prepared = self.prepare(study, owner)
        return actions.join(self.desks[owner], self.address(study), prepared, Watcher())

    def carry(self, study: OpenStudy, owner: int, folder: Path) -> int:
        """Join without a network; how often the folder had to be sent."""
        desk, address = self.desks[owner], self.address(study)
        for trips in range(9):
            with (
                suppress(NotCarriedError),
                carrying(
                    desk.home,
                    desk.owner,
                    folder,
                    address.proxy,
                    address.study,
                    key_rules=KeyRules(TOY_BITS),
                ) as carried,
            ):
                if take_receipt(carried, address) is not None:
                    return trips
                location = self.location(owner)
                prepared = actions.prepare_join(carried, address, location, "people")
                actions.join(carried, address, prepared, Watcher())
            send(folder, SendWatcher(), patience=Patience(seconds=0.0))
        raise AssertionError("no receipt came back")

    def join_all(self, study: OpenStudy) -> list[int]:
        """The released values after every owner has joined."""
        for owner in range(len(self.desks)):
            self.join(study, owner)
        study.wait_state("released")
        return study.open_values()


def made_up(manifest: Manifest, vectors: Floats) -> Components:
    """Components in the directions of `vectors`, with figures that nobody reads here."""
    space, ones = EncodedSpace.of(manifest), np.ones(len(vectors))
    return Components(
        space=space, count=sum(COUNTS), vectors=vectors, eigenvalues=ones, noise_edges=ones / 2,
        captured=ones, signals=ones, overlaps=ones, noise_scale=0.1, noise_edge=0.2,
        total_variance=float(len(vectors)), mean=space.centre if manifest.rules.has_mean else None,
        lifted=Lifted(len(vectors), len(vectors), ones, None, ones < 0, 0.1),
    )  # fmt: skip


def directions(lifted: list[int]) -> Floats:
    """What a data user makes of the released L: its left singular vectors as rows, (k, d)."""
    matrix = np.array(lifted, dtype=np.float64).reshape(wide.D, wide.K)
    return np.ascontiguousarray(np.linalg.svd(matrix, full_matrices=False)[0].T)


def _csv(path: Path, records: Mapping[str, list[float]]) -> Path:
    rows = np.array(list(records.values())).T
    path = path.with_suffix(".csv")
    np.savetxt(path, rows, delimiter=",", header=",".join(records), comments="", fmt="%.17g")
    return path


def _parquet(path: Path, records: Mapping[str, list[float]]) -> Path:
    path = path.with_suffix(".parquet")
    pa.parquet.write_table(pa.table(dict(records)), path)
    return path


def _npy(path: Path, records: Mapping[str, list[float]]) -> Path:
    path = path.with_suffix(".npy")
    np.save(path, np.array(list(records.values())).T)
    return path


WRITERS = (_csv, _parquet, _npy)
"""Each writes records to a path without an ending, and returns where they are."""


def _connect(url: str, key: IdentityKey, pinned: bytes | None, _seconds: float) -> ProxyClient:
    return ProxyClient(url, key, pinned, patience=Patience(seconds=0.0))


def with_fewer_features(components: Components) -> Components:
    """Components without the last feature."""
    space = replace(components.space, names=components.space.names[:-1])
    return replace(components, space=space, vectors=components.vectors[:, :-1])
