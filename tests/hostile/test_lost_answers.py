"""An answer that does not arrive is harmless: the k-th is lost, for every k of a study, at each role."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from federation.relay import Relay, relaying
from owner_world import desk_of, make_owner_home
from promises import Promise
from proxy_world import ProxyWorld, free_port, wait_for
from user_world import UserWorld, share_values

from dpdpca_owner import actions
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.terms.parties import KeyTerms
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.retry import Patience
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.steps import decode_bundle
from dpdpca_user_service.work import MadeKey

MOST_REQUESTS = 100
PATIENCE = Patience(seconds=20.0, first_seconds=0.01, longest_seconds=0.05)


@dataclass
class Lossy:
    """A proxy behind a relay, its data user's service, and the records of its first owner."""

    world: ProxyWorld
    relay: Relay
    url: str
    user: UserWorld
    data: Path
    folder: Path
    lost: int = 0

    def lose(self, place: int) -> None:
        """The answer to the `place`-th request from now on is lost."""
        passed = 0
        self.lost = 0

        def is_the_one(method: str, path: str) -> bool:
            nonlocal passed
            passed += 1
            self.lost += passed == place
            return passed == place

        self.relay.lose = is_the_one

    def study(self, role: str, place: int, release: str) -> None:
        """A whole study whose `role` loses one answer; it ends as if it had not."""
        world, user = self.world, self.user
        world.with_new_key()
        key = KeyTerms.of(world.secret.public, world.proof)
        user.workers.keys.append(MadeKey(world.secret.to_bytes(), key))
        self.lose(place)
        world.via = self.url if role == "user" else None
        row = user.advance_to(user.create(release=release), Stage.OPEN)
        world.via = None
        study = user.opened(row)
        for seed, owner in enumerate(world.owners[1:], 1):
            study.deliver(owner, share_values(study, seed))
        home = make_owner_home(self.folder / f"{role}-{place}" / "owner", world, self.url)
        address = StudyAddress(self.url if role == "owner" else world.url, study.study)
        desk = desk_of(home, PATIENCE)
        if role == "user":
            desk.home.pins.pin_proxy(world.url, world.proxy.card)
        actions.join(
            desk, address, actions.prepare_join(desk, address, DataLocation(str(self.data))), Watcher()
        )
        world.via = self.url if role == "user" else None
        row = user.advance_to(row, Stage.PUBLISHED)
        world.via = None
        facts = world.client(world.user).study(study.study)
        assert {member.owner for member in facts.cohort_members} == {o.public.party_id for o in world.owners}
        kept = decode_bundle(user.service.store.need(row.id, "bundle"))
        assert kept.release == world.client(world.user).release(study.study).release
        wait_for(lambda: {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS})


@pytest.fixture
def lossy(stopped_world: ProxyWorld, tmp_path: Path) -> Iterator[Lossy]:
    world, port = stopped_world, free_port()
    world.settings |= {
        "also_known_as": (f"127.0.0.1:{port}",), "party_requests": 10_000, "address_requests": 10_000
    }  # fmt: skip
    world.patience = PATIENCE
    world.start()
    world.enrol_all()
    data = tmp_path / "records.csv"
    rows = "\n".join(f"0.{i}1,0.{9 - i}5,0.5" for i in range(10))
    data.write_text(f"f0,f1,f2\n{rows}\n", encoding="utf-8")
    with relaying(port, world.port) as relay:
        user = UserWorld(world, tmp_path / "user")
        user.workers.keys.clear()
        yield Lossy(world, relay, f"http://127.0.0.1:{port}", user, data, tmp_path)
        user.service.close()


@pytest.mark.parametrize(
    ("role", "release", "stride"),
    [
        ("owner", "joint", 2),
        ("user", "joint", 3),
        *(
            pytest.param(role, release, 1, marks=pytest.mark.nightly)
            for role in ("owner", "user")
            for release in ("joint", "masked")
        ),
    ],
)
def test_every_answer_may_be_lost_once(
    lossy: Lossy, promise: Promise, role: str, release: str, stride: int
) -> None:
    lost = 0
    for place in range(1, MOST_REQUESTS, stride):
        lossy.study(role, place, release)
        if not lossy.lost:
            break
        lost += 1
    else:
        raise AssertionError("there is no end of requests")
    assert place > 5
    promise(
        "P5",
        counted=f"{release}: {lost} of the first {place - 1} answers to the {role} lost,"
        " each in a study of its own",
        result="every study ends alike, nothing done by hand",
    )
