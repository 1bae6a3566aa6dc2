"""A1: two releases whose cohorts differ by one owner, subtracted.

The number of records is exact, so that noise hides nothing of that owner's size. No such pair gets out.
"""

from typing import Any

import pytest
from promises import Promise
from proxy_world import InlineWorker, OpenStudy, ProxyWorld, refused, values_of, wait_for

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.messages.study_messages import ReleaseStatement
from dpdpca_protocol.paillier.chunks import decode_chunk
from dpdpca_protocol.paillier.keys import KeyRules, generate_secret_key
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_proxy import jobs
from dpdpca_proxy.store import cohorts

COUNTS = (40, 70, 1234)


def next_study(world: ProxyWorld, who: str, d: int = 3, **changes: Any) -> OpenStudy:
    """A study under a key of its own, with shares of these owners ("ABC"), closed."""
    world.secret = generate_secret_key(512, OS_RANDOMNESS, rules=KeyRules(512))
    world.proof = prove_key(world.secret, world.user.public.ed25519)
    study = world.open_study(d, named=False, min_owners=1, **changes)
    for place, letter in enumerate("ABC"):
        if letter in who:
            study.deliver(world.owners[place], values_of(d, place, COUNTS[place]))
    study.close()
    return study


def counted(study: OpenStudy) -> int:
    """N, as the data user decrypts it."""
    world = study.world
    client = world.client(world.user)
    said = ReleaseStatement.parse(
        verify_statement("release", client.release(study.study).release, world.proxy_key)
    )
    vectors = PaillierVectors(world.secret.public, study.manifest.figures.slot_bits)
    ciphertexts = [
        c
        for k in range(len(said.chunk_digests))
        for c in decode_chunk(client.release_chunk(study.study, k, 2_000_000), world.secret.public)
    ]
    return vectors.decrypt_vector(world.secret, ciphertexts, 1 + study.d + study.d * (study.d + 1) // 2)[0]


def failure(study: OpenStudy) -> str | None:
    assert study.wait_state("failed", "released") in ("failed", "released")
    return study.world.client(study.world.user).study(study.study).failure


def test_an_owner_is_not_found_by_subtraction(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    worker = world.worker
    assert isinstance(worker, InlineWorker)
    first = next_study(world, "ABC")
    assert failure(first) is None
    everybody = counted(first)
    draws = worker.calls.count("draw")
    second = next_study(world, "AB")
    assert failure(second) == "cohort-too-close"
    assert worker.calls.count("draw") == draws
    assert refused(lambda: world.client(world.user).release(second.study)).slug == "wrong-state"
    detail = world.client(world.owners[0]).study(second.study).failure_detail
    assert detail is not None
    assert "differs by 1 owner" in detail
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "check_distance", lambda connection, row: None)
        third = next_study(world, "AB")
        assert failure(third) is None
        assert everybody - counted(third) == COUNTS[2]  # the attack, without its defence
    promise(
        "P11", counted="2 cohorts that differ by 1 owner", result="refused; without the rule N₁ − N₂ is it"
    )


def test_what_may_be_released_beside_an_earlier_cohort(world: ProxyWorld) -> None:
    assert failure(next_study(world, "ABC")) is None
    assert failure(next_study(world, "ABC")) is None  # the same again: the ledgers' matter
    assert failure(next_study(world, "BC")) == "cohort-too-close"
    assert failure(next_study(world, "B")) is None
    assert failure(next_study(world, "C", cohort_distance=3)) == "cohort-too-close"
    other = [{"name": "other", "lower": 0, "upper": 1}]
    assert failure(next_study(world, "AC", features=other, d=1)) is None
    assert failure(next_study(world, "A", features=[{"name": "F1", "lower": 0, "upper": 9}], d=1)) is None
    assert (
        failure(next_study(world, "AB", features=[{"name": "F1", "lower": 0, "upper": 9}], d=1)) is not None
    )


def test_the_larger_distance_of_two_manifests_holds(world: ProxyWorld) -> None:
    assert failure(next_study(world, "ABC", cohort_distance=3)) is None
    assert failure(next_study(world, "C")) == "cohort-too-close"


def test_a_count_that_was_asked_for_counts_as_seen(world: ProxyWorld) -> None:
    """In a masked study the data user learns N before anything is released; cancelling takes nothing back."""
    others = next_study(world, "ABC", features=[{"name": "x", "lower": 0, "upper": 1}], d=1)
    assert failure(others) is None
    world.secret = generate_secret_key(512, OS_RANDOMNESS, rules=KeyRules(512))
    world.proof = prove_key(world.secret, world.user.public.ed25519)
    asked = world.open_study(3, release="masked", max_owners=3)
    for place in (0, 1):
        asked.deliver(world.owners[place], values_of(3, place, COUNTS[place]))
    asked.close()
    asked.challenge()
    asked.cancel()
    assert failure(next_study(world, "ABC")) == "cohort-too-close"


def test_two_that_close_at_once_are_not_both_released(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever draws first: the rule is in the transaction of the draw."""
    worker = world.worker
    assert isinstance(worker, InlineWorker)
    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.05)

    def hold(name: str) -> None:
        if name == "draw":
            raise RuntimeError

    worker.before = hold
    pair = [next_study(world, "ABC"), next_study(world, "AB")]
    wait_for(lambda: worker.calls.count("draw") >= 2)
    worker.before = lambda name: None
    assert sorted(study.wait_state("failed", "released") for study in pair) == ["failed", "released"]


def test_the_error_is_a_rule_of_ours() -> None:
    assert issubclass(cohorts.CohortTooCloseError, PolicyError)
