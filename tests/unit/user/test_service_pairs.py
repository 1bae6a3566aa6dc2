"""Pairs and pre-studies through real owners, a real proxy and the data user's service; and chains of them."""

from collections.abc import Iterator
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chain_world import Chain
from present import present
from proxy_world import ProxyWorld
from user_world import UserWorld

from dpdpca_protocol.errors import ConflictError, PolicyError
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user_service.operations import model_facts, publish_study, report_of, result_of, study_facts
from dpdpca_user_service.stages import Stage

N, D = 600, 3
TERMS: dict[str, Any] = {
    "epsilon": 20,
    "delta": "0.00001",
    "max_records": 2000,
    "min_records": 100,
    "missing": "midpoint",
    "clip_norm": "1.73",
}


@pytest.fixture
def chain(world: ProxyWorld, tmp_path: Path) -> Iterator[Chain]:
    user = UserWorld(world, tmp_path / "user")
    rng = np.random.default_rng(20181210)  # noqa: TID251  # data, not noise
    shared = rng.normal(0, 0.25, (N, 1))
    # Sorted, so that neighbours in a file are alike: pairs must not be.
    records = np.sort(shared, axis=0) * [1.0, -0.7, 0.2] + rng.normal(0, 0.03, (N, D)) + [0.1, 0.2, 0.3]
    dealt = np.concatenate([records[owner::3] for owner in range(3)])
    made = Chain.make(world, user, tmp_path, np.clip(dealt, -1, 1))
    for desk in made.desks:
        text = desk.home.policy_path.read_text().replace("max_epsilon = 10 ", "max_epsilon = 30 ")
        text = text.replace("epsilon = 10\n", "epsilon = 25\n").replace("min_owners = 3", "min_owners = 2")
        desk.home.policy_path.write_text(text.replace("delta = 1e-6", "delta = 1e-4"))
    yield made
    user.service.close()


def test_a_study_of_pairs_gives_components_without_a_mean(chain: Chain) -> None:
    row = chain.run(release="pairs", **TERMS | {"clip_norm": 2})
    model = chain.user.service.model_of(row.id)
    components, figures = model.components, model.manifest.figures
    assert components.count == N // 2
    assert components.mean is None
    assert components.origin.tolist() == [0, 0, 0]
    values, vectors = np.linalg.eigh(np.cov(chain.records.T))
    noise = float(figures.noise_scale) / 2 / figures.grid**2 / (N // 2)
    assert components.noise_scale == pytest.approx(noise)
    # Pairs are a sample: the scatter of y yᵀ/2 over N/2 of them has an error of its own, of some 2/√N.
    assert components.eigenvalues[0] == pytest.approx(values[-1], rel=0.3, abs=6 * noise)
    assert abs(components.vectors[0] @ vectors[:, -1]) > 0.98
    facts = model_facts(chain.user.service, row.id)
    assert facts["mean"] is None
    assert "<html" in report_of(chain.user.service, row.id)


def test_rounds_of_a_chain_are_approved_once_and_never_pass_their_total(chain: Chain) -> None:
    service = chain.user.service
    first = chain.open(
        release="pre-study", blocks={"norms": "0.5", "pair-norms": "0.5"}, rho_share="0.2", **TERMS
    )
    prepared = chain.prepare(first)
    assert not prepared.is_approved
    assert any("TOTAL for all rounds" in line for line in prepared.sheet.promise())
    for owner in range(3):
        chain.join(first, owner)
    first = chain.user.advance_to(first, *[first.stage.FITTED])
    numbers = PreStudyResult.parse(result_of(service, first.id))
    assert numbers.records == N
    assert numbers.norms is not None
    assert numbers.pair_norms is not None
    assert abs(sum(numbers.norms.counts) - N) < 7 * 7 * numbers.norms.noise
    assert abs(sum(numbers.pair_norms.counts) - N // 2) < 7 * 7 * numbers.pair_norms.noise
    true = np.linalg.norm(chain.records, axis=1)
    counted, _ = np.histogram(true, [0, *numbers.norms.edges[:-1], 10])
    assert np.abs(np.array(numbers.norms.counts) - counted).max() < 7 * numbers.norms.noise + 3

    second = chain.run(
        release="pre-study",
        blocks={"sum": "0.6", "octaves": "0.4"},
        rho_share="0.2",
        pre_studies=[first.known_study.hex()],
        **TERMS | {"clip_norm": 1},
    )
    numbers = PreStudyResult.parse(result_of(service, second.id))
    assert numbers.total is not None
    assert np.abs(np.array(numbers.total.mean) - chain.records.mean(axis=0)).max() < 7 * numbers.total.noise
    assert numbers.octaves is not None
    assert len(numbers.octaves) == D
    assert numbers.pre_studies == (first.known_study,)

    rounds = [first.known_study.hex(), second.known_study.hex()]
    third = chain.open(release="pairs", rho_share="0.6", pre_studies=rounds, **TERMS)
    assert chain.prepare(third).is_approved
    greedy = chain.open(release="pairs", rho_share="0.61", pre_studies=rounds, **TERMS)
    with pytest.raises(PolicyError, match=r"earlier rounds have taken 0\.4 of the approved total") as caught:
        chain.prepare(greedy)
    assert caught.value.slug == "chain-exceeded"
    for owner in range(3):
        chain.join(third, owner)
    third = chain.user.advance_to(third, third.stage.FITTED)
    assert chain.user.service.model_of(third.id).components.count == N // 2

    for desk in chain.desks:
        ledger = desk.home.ledger.read()
        figures = chain.user.service.model_of(third.id).manifest.figures
        spent = ledger.spent(ledger.data_sets[0])
        assert spent.releases == 3
        assert 0.99 * figures.rho_total < spent.rho <= figures.rho_total


def test_other_terms_are_asked_about_again(chain: Chain) -> None:
    first = chain.open(release="pre-study", blocks={"norms": "1"}, rho_share="0.1", **TERMS)
    chain.join(first, 0)
    assert chain.prepare(first).is_approved  # its own share again
    rounds = {"rho_share": "0.1", "pre_studies": [first.known_study.hex()], **TERMS}
    same = chain.open(release="pre-study", blocks={"sum": "1"}, **rounds)
    assert chain.prepare(same).is_approved
    other = chain.open(release="joint", purpose="Something else.", **rounds)
    assert not chain.prepare(other).is_approved
    # It trusts every owner, so it is a question of its own.
    assert not chain.prepare(chain.open(release="masked", **rounds)).is_approved


def test_a_pre_study_has_no_components(chain: Chain) -> None:
    row = chain.open(release="pre-study", blocks={"norms": "1"}, **TERMS)
    service = chain.user.service
    with pytest.raises(ConflictError, match="has no result"):
        result_of(service, row.id)
    for act in (model_facts, report_of, publish_study):
        with pytest.raises(ConflictError, match="a pre-study gives no components"):
            act(service, row.id)
    facts = study_facts(service, row)
    assert (facts["has_model"], facts["has_result"]) == (False, False)
    joint = chain.open(release="joint", **TERMS)
    with pytest.raises(ConflictError, match="gives components"):
        result_of(service, joint.id)


def test_a_pre_study_with_owners_noise_shows_their_draws_alone(chain: Chain) -> None:
    """Owners, proxy and data user as in the product: the noise is what three ledgers' keys give."""
    row = chain.open(
        release="pre-study",
        blocks={"norms": "0.5", "pair-norms": "0.5"},
        noise_by="owners",
        **TERMS | {"epsilon": 4},
    )
    prepared = [chain.prepare(row, owner) for owner in range(3)]
    for owner in range(3):
        chain.join(row, owner)
    service = chain.user.service
    row = chain.user.advance_to(row, Stage.FITTED)
    result = PreStudyResult.parse(result_of(service, row.id))
    figures = prepared[0].manifest.figures
    sums = [
        map(add, each.contribution.sums.stream(), figures.own_noise(each.contribution.own_noise()))
        for each in prepared
    ]
    expected = [sum(parts) for parts in zip(*sums, strict=True)]
    assert present(result.norms).counts + present(result.pair_norms).counts == tuple(expected[1:])
    assert result.records == expected[0] == N
    assert result.noise_draws == 3 / prepared[0].manifest.terms.assured_shares


def test_an_owner_with_one_record_has_no_pair(chain: Chain) -> None:
    row = chain.open(release="pairs", **TERMS)
    chain.data[0].write_text("f0,f1,f2\n0.1,0.2,0.3\n")
    with pytest.raises(Exception, match="one record, but the study pairs records"):
        chain.prepare(row)


def test_the_same_records_make_the_same_pairs_again(chain: Chain) -> None:
    row = chain.open(release="pairs", **TERMS)
    digests = {chain.prepare(row).contribution.digest for _ in range(2)}
    assert len(digests) == 1
    other = chain.open(release="pairs", **TERMS | {"title": "Another"})
    assert chain.prepare(other).contribution.digest not in digests
