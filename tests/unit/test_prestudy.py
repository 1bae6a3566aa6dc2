"""What a pre-study's numbers say, in which units, and that they survive their JSON."""

import copy
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from present import present
from study_parties import MakeManifest

from dpdpca_protocol.errors import CryptographicError, MessageError, UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.planning.prestudy import PreStudyResult, check_blocks
from dpdpca_user.results.second_noise import with_second_draw

BLOCKS = dict.fromkeys(("norms", "pair-norms", "sum", "octaves", "far-pairs"), "0.2")


@pytest.fixture(scope="module")
def manifest(make_manifest: MakeManifest) -> Manifest:
    return make_manifest(
        release="pre-study", blocks=BLOCKS, clip_norm="1.5", rho_share="0.1", pre_studies=["ab" * 32]
    )


@pytest.fixture
def released(manifest: Manifest) -> dict[BlockName, list[int]]:
    values = {block.name: [0] * block.length for block in manifest.figures.blocks}
    values[BlockName.COUNT] = [1000]
    values[BlockName.NORMS][48] = 990
    values[BlockName.SUM] = [1000 * manifest.figures.grid, -500 * manifest.figures.grid, 0]
    values[BlockName.OCTAVES][12 + 3] = 7
    values[BlockName.FAR_PAIRS] = [321]
    return values


def test_numbers_are_in_scaled_units_with_the_noise_of_both_draws(
    manifest: Manifest, released: dict[BlockName, list[int]]
) -> None:
    result = PreStudyResult.of(manifest, released, 3)
    scale = float(manifest.figures.noise_scale)
    assert (result.records, result.encoded_features) == (1000, 3)
    assert result.norms is not None
    assert result.norms.edges[48] == 1.5
    assert result.norms.edges[0] == pytest.approx(1.5 / 2**12)
    assert result.norms.counts[48] == 990
    # D² = 2, a fifth of the round's ρ, two draws.
    assert result.norms.noise == pytest.approx(math.sqrt(2 * 2 * 5) * scale)
    assert result.total is not None
    assert result.total.mean == (1.0, -0.5, 0.0)
    bound, grid = manifest.figures.record_bound, manifest.figures.grid
    assert result.total.noise == pytest.approx(math.sqrt(2 * 4 * bound * 5) * scale / 1000 / grid)
    assert result.octaves is not None
    assert [histogram.counts.index(7) for histogram in result.octaves if 7 in histogram.counts] == [3]
    assert result.octaves[1].counts[3] == 7
    assert result.octaves[0].edges == tuple(2.0**k for k in range(-11, 1))
    assert result.octaves[0].noise == pytest.approx(math.sqrt(2 * 6 * 5) * scale)
    assert result.far_pairs is not None
    assert result.far_pairs.count == 321
    assert result.far_pairs.noise == pytest.approx(math.sqrt(2 * 1 * 5) * scale)
    assert result.centre == (50, 120, 126.5)
    assert result.half_range == (50, 100, 124)
    assert result.rho <= result.rho_total * 0.1
    assert [study.hex() for study in result.pre_studies] == ["ab" * 32]


def test_a_result_survives_its_json(manifest: Manifest, released: dict[BlockName, list[int]]) -> None:
    result = PreStudyResult.of(manifest, released, 3)
    assert PreStudyResult.parse(json.loads(json.dumps(result.to_json()))) == result
    assert PreStudyResult.parse(result.to_json() | {"title": "more"}) == result
    of_an_earlier_version = {name: value for name, value in result.to_json().items() if name != "far_pairs"}
    assert PreStudyResult.parse(of_an_earlier_version) == replace(result, far_pairs=None)


def test_blocks_that_were_not_asked_for_are_none(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(release="pre-study", blocks={"sum": "1"})
    result = PreStudyResult.of(manifest, {BlockName.COUNT: [10], BlockName.SUM: [1, 2, 3]}, 3)
    assert (result.norms, result.pair_norms, result.octaves, result.far_pairs) == (None,) * 4
    assert PreStudyResult.parse(result.to_json()) == result


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1},
        {"release": "joint"},
        {"records": "many"},
        {"records": 0},
        {"records": math.inf},
        {"records": 10**400},
        {"rho_total": 0.0},
        {"noise_draws": math.nan},
        {"norms": {"edges": [1, 2], "counts": [1, math.inf], "noise": 1}},
        {"sum": {"mean": [0, 0, 1e200], "noise": 1, "clip_norm": 1}},
        {"sum": {"mean": [0, 0, 0], "noise": 1, "clip_norm": 0}},
        {"norms": {"edges": [1, 2], "counts": [1], "noise": 1}},
        {"norms": {"edges": [2, 1], "counts": [1, 1], "noise": 1}},
        {"octaves": 3},
        {"far_pairs": {"count": "many", "noise": 1.0}},
        {"study": "ab"},
        {"rho_share": 0.1},
        {"noise_by": "nobody"},
    ],
)
def test_anything_else_is_refused(
    manifest: Manifest, released: dict[BlockName, list[int]], change: dict[str, Any]
) -> None:
    body = copy.deepcopy(PreStudyResult.of(manifest, released, 3).to_json()) | change
    with pytest.raises(MessageError):
        PreStudyResult.parse(body)
    with pytest.raises(MessageError):
        PreStudyResult.parse(list(body))


def test_the_second_noise_is_on_every_number_but_the_count(
    manifest: Manifest, released: dict[BlockName, list[int]]
) -> None:
    drawn, _ = with_second_draw(
        released, manifest.figures, Samplers(gaussian=lambda v, count, b: [3] * count)
    )
    assert drawn[BlockName.COUNT] == [1000]
    assert drawn[BlockName.SUM][2] == 3
    for name in map(BlockName, BLOCKS):
        assert all(new - old == 3 for new, old in zip(drawn[name], released[name], strict=True))


def test_noise_by_owners_grows_with_the_cohort(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(
        release="pre-study", blocks=BLOCKS, noise_by="owners", participants=None, max_owners=9
    )
    released = {block.name: [1] * block.length for block in manifest.figures.blocks}
    scale = float(manifest.figures.noise_scale)
    for owners in (3, 9):
        result = PreStudyResult.of(manifest, released, owners)
        # D² = 2, a fifth of ρ, L owners of whom two are assured.
        assert present(result.norms).noise == pytest.approx(math.sqrt(2 * 5 * owners / 2) * scale)
        assert (result.noise_by, result.noise_draws) == ("owners", owners / 2)
        assert PreStudyResult.parse(json.loads(json.dumps(result.to_json()))) == result
    # Room for the largest cohort: κ·√(max_owners/m).
    for block in manifest.figures.blocks[1:]:
        assert block.tail == math.ceil(
            13 * math.sqrt(manifest.figures.block_variance(block.name, owners=9)) - 1e-9
        )
    with pytest.raises(UsageError, match="the number of owners is needed"):
        manifest.figures.block_variance(BlockName.SUM)


def test_numbers_that_no_records_make_are_refused(
    manifest: Manifest, released: dict[BlockName, list[int]]
) -> None:
    for draws in (1, 2):
        figures = replace(manifest.figures, draws=draws)
        check_blocks(released, figures)
        for block in figures.blocks[1:]:
            most = block.bound + draws * block.tail
            check_blocks(released | {block.name: [most] * block.length}, figures)
            for value in (most + 1, -most - 1):
                with pytest.raises(CryptographicError, match=f"an entry of {block.name} is out of range"):
                    check_blocks(released | {block.name: [value] * block.length}, figures)
