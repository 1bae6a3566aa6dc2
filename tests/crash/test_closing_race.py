"""Completing a share while the study closes, at two processes of one proxy: a receipt and in, or neither."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from promises import Promise
from proxy_process import ProcessWorld, started_world
from proxy_world import values_of, wait_for
from quick_folder import quick_folder
from store_checks import row_of
from study_parties import Parties

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.messages.study_messages import StudyAct
from dpdpca_protocol.wire.signing import Statement
from dpdpca_proxy.store.studies import frozen_cohort

_MOST_DELAY_SECONDS = 0.02


@pytest.fixture
def world(parties: Parties) -> Iterator[ProcessWorld]:
    with quick_folder() as folder, started_world(folder, parties, processes=2) as world:
        yield world


def race(world: ProcessWorld, source: random.Random, pool: ThreadPoolExecutor) -> bool:
    """Whether the late owner was in time; its receipt and the cohort say the same."""
    world.with_new_key()
    study = world.open_study(3, min_owners=1, release="masked")
    study.deliver(world.owners[0], values_of(3, 0))
    late = world.owners[1]
    chunks = study.plain_chunks(values_of(3, 1))
    study.upload(late, chunks)
    claim = study.claim(late, chunks)
    close = StudyAct("close", study.study).sign(world.user)
    here, there = source.sample(world.served, 2)
    completing, closing = world.client_of(here, late), world.client_of(there, world.user)
    start = Barrier(2)
    delay = source.uniform(-_MOST_DELAY_SECONDS, _MOST_DELAY_SECONDS)

    def complete() -> Statement | None:
        start.wait()
        time.sleep(max(0.0, delay))
        try:
            return completing.complete_share(study.study, claim)
        except ConflictError as error:
            if error.slug != "study-closed":
                raise
            return None

    def shut() -> None:
        start.wait()
        time.sleep(max(0.0, -delay))
        closing.close_study(study.study, close)

    receipt, _ = pool.submit(complete), pool.submit(shut).result()
    wait_for(lambda: row_of(study).cohort_digest is not None)
    with world.proxy.database.reading("test: cohort") as connection:
        cohort = {member.owner: member.statement for member in frozen_cohort(connection, study.study)}
    held = receipt.result()
    assert (held is not None) == (late.public.party_id in cohort)
    assert world.owners[0].public.party_id in cohort
    if held is not None:
        assert cohort[late.public.party_id] == claim.digest
    return held is not None


@pytest.mark.parametrize("races", [10, pytest.param(500, marks=pytest.mark.nightly)])
def test_completing_and_closing_agree(world: ProcessWorld, promise: Promise, races: int) -> None:
    source, tried, inside = random.Random(races), 0, 0
    with ThreadPoolExecutor(2) as pool:
        while tried < races or (inside in (0, tried) and tried < 10 * races):
            inside += race(world, source, pool)
            tried += 1
    assert 0 < inside < tried, "there was no race"
    promise(
        "P6",
        counted=f"{tried} races of completing and closing at two processes, {inside} in time",
        result="each with receipt and in, or neither",
    )
