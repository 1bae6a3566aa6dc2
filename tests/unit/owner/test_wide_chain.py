"""A chain for many features through a real proxy: the sketch, the lift and the scores of three owners."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import wide_studies as wide
from chain_world import keep_policy
from proxy_world import OpenStudy, ProxyWorld
from scripted import STEPS
from wide_world import COUNTS, POLICY, WideChain, directions

from dpdpca_owner import actions
from dpdpca_owner.accounts.budget import Cost
from dpdpca_owner.following import Follower, Records
from dpdpca_owner.projection import Wanted
from dpdpca_owner.share_chunks import share_values
from dpdpca_protocol.errors import ConflictError, DpdpcaError
from dpdpca_protocol.privacy.mechanisms import LiftGaussian, Mechanism
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import Pads
from dpdpca_protocol.wire.identifiers import Digest


@pytest.fixture
def chain(world: ProxyWorld, tmp_path: Path) -> WideChain:
    return WideChain.make(world, tmp_path)


@pytest.fixture
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy draws the noise that the reference draws."""

    def known(honest: Callable[..., list[int]]) -> Callable[..., list[int]]:
        return lambda self, count, _sample=STEPS: honest(self, count, STEPS)

    for kind in (Mechanism, LiftGaussian):
        monkeypatch.setattr(kind, "draw", known(kind.draw))


def reference(study: OpenStudy, chain: WideChain, vectors: Any = None) -> list[int]:
    projection = projection_of(study.manifest, vectors)
    found = run_study(study.manifest, chain.records, OS_RANDOMNESS, STEPS, Pads(OS_RANDOMNESS), projection)
    assert isinstance(found, dict)
    return [value for block in found.values() for value in np.atleast_1d(block).tolist()]


def refusal(act: Any) -> str:
    with pytest.raises(DpdpcaError) as caught:
        act()
    return caught.value.slug


def state_of(chain: WideChain, owner: int = 0) -> dict[str, bytes]:
    """Every file of an owner's home."""
    home = chain.desks[owner].home.path
    return {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def test_the_releases_are_those_of_the_reference(chain: WideChain, known_noise: None, tmp_path: Path) -> None:
    """Three sources, three owners, and each round rests on what the earlier ones have released."""
    sketch = chain.open("sketch")
    assert chain.join_all(sketch) == reference(sketch, chain)
    lift = chain.open_lift(sketch)
    released = chain.join_all(lift)
    assert released == reference(lift, chain)
    vectors = directions(released[1 : 1 + wide.D * wide.K])
    scores = chain.open_scores(sketch, lift, chain.publish(lift, vectors))
    assert chain.join_all(scores) == reference(scores, chain, vectors)
    chain.publish(scores, vectors)
    for owner, desk in enumerate(chain.desks):
        booked = desk.home.ledger.read()
        for each in (sketch, lift, scores):
            spend = booked.spend(each.study)
            assert spend is not None
            assert spend.charge.cost == Cost.of(each.manifest.figures)
        out = tmp_path / f"{owner}.parquet"
        wanted = Wanted(t2=True, spe=True)
        done = actions.transform(desk, chain.address(scores), chain.location(owner), out, wanted)
        assert done.records == COUNTS[owner]
        assert done.outliers is not None
        assert done.outliers.spe_limit(0.95) is None
        assert done.outliers.t2_limit(0.95) > 0
        columns = pyarrow.parquet.read_table(out).to_pydict()
        rows = np.array(list(chain.records[owner].values())).T @ vectors.T.astype(np.float32)
        np.testing.assert_allclose(columns["t2"], (rows**2).sum(axis=1))


def test_owners_noise_and_pairs_go_through_the_proxy(chain: WideChain) -> None:
    """Each owner's own draws are known to the test, because the same records always give the same draws."""
    terms: dict[str, Any] = {"noise_by": "owners", "min_owners": 3, "max_colluding": 1}

    def run(study: OpenStudy) -> list[int]:
        shares = []
        for owner in range(3):
            prepared = chain.prepare(study, owner)
            sums, noise = prepared.contribution.sums, prepared.contribution.own_noise()
            shares.append(share_values(prepared.sheet.study.signed, sums, noise))
            assert prepared.contribution.sums.count == COUNTS[owner] // 2
        released = chain.join_all(study)
        assert released == np.sum(shares, axis=0).tolist()
        return released

    sketch = chain.open("sketch", "pairs", **terms)
    run(sketch)
    # A rule that follows from no sketch wastes the budget, and moves no bound.
    rule = {"columns": wide.K, "matrix": [[2**28] * wide.M] * wide.K, "offset": [0] * wide.K}
    lift = chain.open_lift(sketch, "pairs", lift=rule, **terms)
    gram = chain.prepare(lift).contribution.sums.values()[-3:]
    assert gram[0] + gram[2] <= (COUNTS[0] // 2) * 2**20
    vectors = directions(run(lift)[1 : 1 + wide.D * wide.K])
    digest = chain.publish(lift, vectors)
    run(chain.open_scores(sketch, lift, digest, "pairs", **terms))


@pytest.mark.nightly
def test_a_follower_takes_part_in_all_rounds(chain: WideChain, known_noise: None, tmp_path: Path) -> None:
    """One approval, with the sketch, covers the lift and the scores. The lift is not the end."""
    sketch = chain.open("sketch")
    records = Records(chain.location(0), "people")
    follower = Follower(chain.desks[0], chain.address(sketch), records, is_approved=True)
    assert follower.advance() is None
    chain.join(sketch, 1)
    chain.join(sketch, 2)
    sketch.wait_state("released")
    lift = chain.open_lift(sketch)
    assert follower.advance() is None
    chain.join(lift, 1)
    chain.join(lift, 2)
    lift.wait_state("released")
    early = chain.open_scores(sketch, lift, Digest.of(b"to come"))
    before = state_of(chain)
    with pytest.raises(ConflictError) as caught:
        chain.prepare(early)
    assert caught.value.slug == "no-components-yet"
    digest = chain.publish(lift, np.eye(wide.K, wide.D))
    assert refusal(lambda: chain.prepare(early)) == "wrong-round"  # it names another statement
    assert state_of(chain) == before
    early.cancel()
    assert follower.advance() is None
    assert chain.desks[0].home.study(lift.study).components_path.exists()
    scores = chain.open_scores(sketch, lift, digest)
    assert follower.advance() is None
    chain.join(scores, 1)
    assert chain.carry(scores, 2, tmp_path / "carried") == 3  # the terms, the components, the share
    scores.wait_state("released")
    chain.publish(scores, np.eye(wide.K, wide.D))
    result = follower.advance()
    assert result is not None
    assert result.address == chain.address(scores)


def test_a_lift_that_spends_the_rest_is_the_end(chain: WideChain, known_noise: None) -> None:
    sketch = chain.open("sketch")
    records = Records(chain.location(0), "people")
    follower = Follower(chain.desks[0], chain.address(sketch), records, is_approved=True)
    follower.advance()
    chain.join(sketch, 1)
    chain.join(sketch, 2)
    sketch.wait_state("released")
    lift = chain.open_lift(sketch, rho_share="0.8")
    follower.advance()
    chain.join(lift, 1)
    chain.join(lift, 2)
    lift.wait_state("released")
    chain.publish(lift, np.eye(wide.K, wide.D))
    result = follower.advance()
    assert result is not None
    assert result.address == chain.address(lift)


def test_a_lift_without_its_sketch_is_refused_before_anything_is_read(chain: WideChain) -> None:
    """An owner that does not know the sketch cannot tell whether the lift fits it."""
    sketch = chain.open("sketch")
    lift = chain.open_lift(sketch)
    chain.data[0] = Path("/nowhere")
    before = state_of(chain)
    assert refusal(lambda: chain.prepare(lift)) == "wrong-round"
    assert state_of(chain) == before
    sheet = actions.review(chain.desks[0], chain.address(lift), None)
    (warning,) = sheet.summary().warnings
    assert "This owner cannot join: this round does not fit" in warning


def test_a_policy_that_lists_other_releases_refuses(chain: WideChain) -> None:
    lists = '[study]\nreleases = ["pre-study", "joint", "pairs"]\n'
    keep_policy(chain.desks[0].home, POLICY.replace("[study]\n", lists))
    assert refusal(lambda: chain.prepare(chain.open("sketch"))) == "policy-release"
