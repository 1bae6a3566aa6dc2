"""A machine whose clock is wrong is told both times, changes nothing, and goes on once its clock is right."""

import dataclasses
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from owner_world import desk_of, make_owner_home
from proxy_world import ProxyWorld
from study_parties import Parties

from dpdpca_owner import actions
from dpdpca_owner.actions import Desk
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.upload import Outcome, Watcher
from dpdpca_protocol.errors import AuthenticationError
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience


@pytest.fixture
def world(tmp_path: Path, parties: Parties) -> Iterator[ProxyWorld]:
    owners = [IdentityKey.generate() for _ in range(2)]
    world = ProxyWorld(tmp_path / "proxy", parties.user, owners, parties.secret, parties.proof)
    world.start()
    world.enrol_all()
    yield world
    world.stop()


def with_clock(desk: Desk, off: timedelta) -> Desk:
    def now() -> datetime:
        return datetime.now(UTC) + off

    def connect(url: str, key: IdentityKey, pinned: bytes | None, _seconds: float) -> ProxyClient:
        return ProxyClient(url, key, pinned, patience=Patience(seconds=0.0), now=now)

    return dataclasses.replace(desk, connect=connect, now=now)


@pytest.mark.parametrize("hours", [-12, 12])
def test_a_clock_that_is_half_a_day_off(world: ProxyWorld, tmp_path: Path, hours: int) -> None:
    study = world.open_study()
    (tmp_path / "r.csv").write_text("f0,f1,f2\n" + "0.1,0.2,0.3\n" * 5, encoding="utf-8")
    location, address = DataLocation(str(tmp_path / "r.csv")), StudyAddress(world.url, study.study)
    right = desk_of(make_owner_home(tmp_path / "owner", world))
    wrong = with_clock(right, timedelta(hours=hours))

    prepared = actions.prepare_join(right, address, location)
    acts = (
        lambda: actions.review(wrong, address, location),
        lambda: actions.prepare_join(wrong, address, location),
        lambda: actions.join(wrong, address, prepared, Watcher()),
    )
    for act in acts:
        with pytest.raises(AuthenticationError) as refusal:
            act()
        said = str(refusal.value)
        here, there = re.findall(r"(?:here|there) (\S+ \S+) UTC", said)
        apart = datetime.fromisoformat(here) - datetime.fromisoformat(there)
        assert abs(apart - timedelta(hours=hours)) < timedelta(hours=1)
        assert ("behind" in said) == (hours < 0)
        assert "correct the wrong clock" in refusal.value.next_step
    assert not right.home.ledger.read().data_sets
    assert actions.join(right, address, prepared, Watcher()).outcome is Outcome.DONE
