"""Whole blinded studies over HTTP: owners' commands, a proxy and a data user's service, all real."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from chain_world import Chain, keep_policy
from proxy_world import ProxyWorld
from user_world import UserWorld

from dpdpca_owner import actions
from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_user_service.stages import Stage

D, EACH = 3, 500
POLICY = "[study]\nmax_epsilon = 40\nmin_owners = 2\n[budget]\nrho = 60\ndelta = 1e-4\n"
TERMS = {
    "features": [{"name": f"f{index}", "lower": -1, "upper": 1} for index in range(D)],
    "blinding": "pairwise",
    "suite": None,
    "min_owners": None,
    "closing": None,
    "epsilon": 20,
    "max_records": 20_000,
    "min_records": 100,
    "missing": "midpoint",
    "clip_norm": "1.73",
}


def chain_of(stopped: ProxyWorld, folder: Path, owners: int) -> Chain:
    stopped.owners[:] = [IdentityKey.generate() for _ in range(owners)]
    stopped.start()
    stopped.enrol_all()
    user = UserWorld(stopped, folder / "user")
    rng = np.random.default_rng(20181210)  # noqa: TID251  # data, not noise
    shared = rng.normal(0, 0.25, (EACH * owners, 1))
    records = shared * [1.0, -0.7, 0.2] + rng.normal(0, 0.03, (EACH * owners, D))
    made = Chain.make(stopped, user, folder, np.clip(records, -1, 1))
    for desk in made.desks:
        keep_policy(desk.home, POLICY)
    return made


@pytest.fixture
def chain(stopped_world: ProxyWorld, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Chain]:
    made = chain_of(stopped_world, tmp_path, request.param)
    yield made
    made.user.service.close()


@pytest.mark.parametrize("chain", [2, 3, 5, pytest.param(20, marks=pytest.mark.nightly)], indirect=True)
def test_a_blinded_study_gives_the_components_of_all_records(chain: Chain) -> None:
    row = chain.run(release="joint", **TERMS)
    model = chain.user.service.model_of(row.id)
    assert model.manifest.is_blinded
    assert model.components.count == len(chain.records)
    _, vectors = np.linalg.eigh(np.cov(chain.records.T))
    assert abs(model.components.vectors[0] @ vectors[:, -1]) > 0.95
    for desk in chain.desks:
        folder = desk.home.study(row.known_study)
        assert folder.secrets() is not None  # until the owner sees that the study has ended


@pytest.mark.parametrize("chain", [3], indirect=True)
def test_one_owner_can_stop_a_study_and_all_who_sent_have_paid(chain: Chain) -> None:
    row = chain.open(release="joint", **TERMS)
    for owner in range(2):
        chain.join(row, owner)
    actions.withdraw(chain.desks[0], chain.address(row))
    with pytest.raises(ConflictError, match="failed"):
        chain.join(row, 2)
    chain.user.advance_to(row, Stage.FAILED)
    client = chain.world.client(chain.world.user)
    facts = client.study(row.known_study)
    assert (facts.state, facts.failure) == (StudyState.FAILED, "cohort-incomplete")
    for desk, paid in zip(chain.desks, (True, True, False), strict=True):
        spend = desk.home.ledger.read().spend(row.known_study)
        assert (spend is not None and spend.is_live) == paid
