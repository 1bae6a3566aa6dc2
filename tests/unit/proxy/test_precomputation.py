"""What the proxy does ahead for an open study serves its release, and nothing but the time rests on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flat_releases import open_joint_release
from folders import files_below
from proxy_world import InlineWorker, OpenStudy, ProxyWorld, Values, values_of, wait_for

from dpdpca_protocol.layout.packing import BlockLayout, symmetric_rows
from dpdpca_protocol.paillier.chunks import decode_chunk
from dpdpca_protocol.release import masked
from dpdpca_protocol.release.release import NoisyScatter, open_masked_release
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_proxy import precomputation, precomputed
from dpdpca_proxy.precomputation import study_files
from dpdpca_proxy.precomputed import read_groups, usable_groups
from dpdpca_proxy.store.files import sealed_folder

pytestmark = pytest.mark.usefixtures("noiseless")


@pytest.fixture
def groups_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precomputation, "GROUP_SHARES", 2)
    monkeypatch.setattr(precomputation, "_PAUSE_SECONDS", 0.05)


def sealed(study: OpenStudy, kind: str) -> list[Path]:
    folder: Path = study.world.home / "studies" / sealed_folder(study.study) / kind
    return [path for path in files_below(folder) if not path.name.startswith(".")]


def released(study: OpenStudy) -> NoisyScatter:
    study.close()
    world = study.world
    client = world.client(world.user)
    if study.manifest.release == "masked":
        client.answer_count(study.study, study.count_answer(study.challenge()))
    study.wait_state("released")
    count = -(-study.manifest.figures.ciphertext_count // 1024)
    ciphertexts = [
        ciphertext
        for position in range(count)
        for ciphertext in decode_chunk(
            client.release_chunk(study.study, position, 2_000_000), world.secret.public
        )
    ]
    figures = study.manifest.figures
    wait_for(lambda: not sealed(study, ""))  # the release is told a moment before the files go
    if study.manifest.release == "joint":
        vectors = PaillierVectors(world.secret.public, figures.slot_bits)
        return open_joint_release(vectors, world.secret, ciphertexts, study.d, 5000)
    layout = BlockLayout(study.d, figures.slot_bits, figures.slots)
    return open_masked_release(world.secret, layout, ciphertexts, 15)


def expected(d: int, shares: list[Values]) -> list[list[int]]:
    count = sum(share.count for share in shares)
    sums = [sum(column) for column in zip(*(share.sums for share in shares), strict=True)]
    rows = symmetric_rows(d, [sum(column) for column in zip(*(s.upper for s in shares), strict=True)])
    return [[count * rows[i][j] - sums[i] * sums[j] for j in range(d)] for i in range(d)]


@pytest.mark.parametrize("pooled", [False, True])
def test_residues_that_were_made_ahead_are_those_of_the_release(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch, pooled: bool
) -> None:
    monkeypatch.setattr(precomputed, "is_worth_a_pool", lambda public, outgoing: pooled)
    monkeypatch.setattr(precomputed, "_PRODUCTS_AT_ONCE", 7)
    monkeypatch.setattr(precomputed, "_POWERS_AT_ONCE", 40 if pooled else 7)
    study = world.open_study(9, release="masked")
    layout = BlockLayout(9, study.manifest.figures.slot_bits, study.manifest.figures.slots)
    parts = -(-layout.release_count // 7)
    wait_for(lambda: len(sealed(study, "residues")) == parts)
    assert bool(sealed(study, "pool")) == pooled

    def never(*_: object) -> None:
        raise AssertionError("all of them were there")

    monkeypatch.setattr(masked, "uniform_residue", never)
    monkeypatch.setattr(masked, "ResidueProducts", never)
    shares = [values_of(9, seed) for seed in range(3)]
    for owner, share in zip(world.owners, shares, strict=True):
        study.deliver(owner, share)
    assert [list(row) for row in released(study).scaled_scatter] == expected(9, shares)


class UnhelpfulWorker(InlineWorker):
    """Does nothing ahead, or only the first `steps` steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if function.__name__ in ("prepare_residues", "multiply_group"):
            if not self.steps:
                return False
            self.steps -= 1
        return super().call(function, *args, **options)


@pytest.mark.parametrize("steps", [0, 1, 2, 10])
def test_what_is_missing_at_closing_is_made_then(
    stopped_world: ProxyWorld, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    world = stopped_world
    monkeypatch.setattr(precomputed, "is_worth_a_pool", lambda public, outgoing: True)
    monkeypatch.setattr(precomputed, "_PRODUCTS_AT_ONCE", 7)
    world.worker = UnhelpfulWorker(steps)
    world.start()
    world.enrol_all()
    study = world.open_study(9, release="masked")
    shares = [values_of(9, seed) for seed in range(3)]
    for owner, share in zip(world.owners, shares, strict=True):
        study.deliver(owner, share)
    assert [list(row) for row in released(study).scaled_scatter] == expected(9, shares)


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_a_group_s_product_takes_the_place_of_its_shares(
    world: ProxyWorld, groups_of_two: None, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = world.open_study(9, release=release)
    shares = [values_of(9, seed) for seed in range(3)]
    for owner, share in zip(world.owners, shares, strict=True):
        study.deliver(owner, share)
    chunks = study.manifest.figures.chunk_count
    wait_for(lambda: len(sealed(study, "partial")) == 1 + chunks)
    multiplied: list[str] = []

    class Watching(InlineWorker):
        def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            if function.__name__ == "multiply_chunks":
                multiplied.extend(name for _, names in args[1] for name in names)
            return super().call(function, *args, **options)

    world.stop()
    world.worker = Watching()
    world.start()
    assert [list(row) for row in released(study).scaled_scatter] == expected(9, shares)
    assert len(multiplied) == 2 * chunks
    assert sum("/partial/" in name for name in multiplied) == chunks


def test_a_share_that_is_taken_back_takes_its_group_s_product_with_it(
    world: ProxyWorld, groups_of_two: None
) -> None:
    study = world.open_study(3, min_owners=1)
    shares = [values_of(3, seed) for seed in range(3)]
    for owner, share in zip(world.owners[:2], shares[:2], strict=True):
        study.deliver(owner, share)
    wait_for(lambda: len(sealed(study, "partial")) == 2)
    study.withdraw(world.owners[0], 2)
    wait_for(lambda: not sealed(study, "partial"))
    study.deliver(world.owners[0], shares[2], 3)
    wait_for(lambda: len(sealed(study, "partial")) == 2)
    assert [list(row) for row in released(study).scaled_scatter] == expected(3, [shares[1], shares[2]])


def test_a_group_with_a_share_that_is_not_in_the_cohort_is_not_used(
    stopped_world: ProxyWorld, groups_of_two: None
) -> None:
    """The study closes before the group of a withdrawn share was dropped."""
    world = stopped_world
    world.start()
    world.enrol_all()
    study = world.open_study(3, min_owners=1)
    shares = [values_of(3, seed) for seed in range(2)]
    for owner, share in zip(world.owners[:2], shares, strict=True):
        study.deliver(owner, share)
    wait_for(lambda: len(sealed(study, "partial")) == 2)
    world.worker = UnhelpfulWorker(0)
    world.restart()
    world.app.state.jobs._precomputation.step = lambda rows: False
    study.withdraw(world.owners[0], 2)
    assert len(sealed(study, "partial")) == 2
    assert [list(row) for row in released(study).scaled_scatter] == expected(3, [shares[1]])


def test_overlapping_and_broken_groups_are_passed_over(world: ProxyWorld) -> None:
    world.app.state.jobs._precomputation.step = lambda rows: False  # it would drop groups of absent shares
    study = world.open_study(3, min_owners=1)
    place = study_files(world.proxy, study.study)
    owners = [owner.public.party_id for owner in world.owners]
    first = precomputed.begin_group(place, [(owners[0], 1), (owners[1], 1)])
    second = precomputed.begin_group(place, [(owners[1], 1), (owners[2], 1)])
    place.write(f"{sealed_folder(study.study)}/partial/broken/0", b"")
    groups = read_groups(place)
    assert {group.folder for group in groups} == {first.folder, second.folder}
    assert not (world.home / "studies" / sealed_folder(study.study) / "partial" / "broken").exists()
    cohort = frozenset((owner, 1) for owner in owners)
    assert len(usable_groups(groups, cohort)) == 1
    assert usable_groups(groups, cohort - {(owners[1], 1)}) == []
    assert usable_groups(groups, frozenset((owner, 2) for owner in owners)) == []


def test_parts_count_up_to_the_first_gap_and_once_each(world: ProxyWorld) -> None:
    study = world.open_study(3)
    place = study_files(world.proxy, study.study)
    for name in ("000000-b", "000000-a", "000001-c", "000003-d"):
        place.write(f"{sealed_folder(study.study)}/residues/{name}", b"")
    assert [name.rpartition("/")[2] for name in precomputed._parts(place, "residues")] == [
        "000000-b",
        "000001-c",
    ]


def test_a_step_that_fails_is_tried_again_and_hurts_nobody(
    stopped_world: ProxyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stopped_world
    failed: list[int] = []

    class Failing(InlineWorker):
        def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            if function.__name__ == "prepare_residues" and len(failed) < 2:
                failed.append(1)
                raise OSError
            return super().call(function, *args, **options)

    monkeypatch.setattr(precomputation, "_PAUSE_SECONDS", 0.05)
    world.worker = Failing()
    world.start()
    world.enrol_all()
    study = world.open_study(3, release="masked")
    wait_for(lambda: bool(sealed(study, "residues")))
    assert len(failed) == 2
    assert world.app.state.jobs.trouble is None
