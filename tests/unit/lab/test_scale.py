"""The model of large studies: its arithmetic, its walls, and the simulation that checks it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpdpca_lab.scale import model
from dpdpca_lab.scale.checked import FIGURES, WIDE_FEATURES, Checked, Row
from dpdpca_lab.scale.commands import app
from dpdpca_lab.scale.model import QUESTIONS, Kind, Prices, Study, Units
from dpdpca_lab.scale.simulation import simulate
from dpdpca_lab.scale.sizes import Sizes
from dpdpca_lab.scale.walls import WALLS, first_wall
from dpdpca_protocol.errors import CryptographicError, IntegrityError, UsageError
from dpdpca_protocol.release.suite import PadsSuite
from reference_pages.__main__ import SCALE, scale_page
from reference_pages.scale import MEASURED

NOTHING = Units(*[0.0] * len(fields(Units)))
EMPTY = replace(Sizes(*[0.0] * len(fields(Sizes))), packed=3.0)
UNITS = Checked.load(MEASURED).units


def made(
    kind: Kind = Kind.FULL, owners: int = 11, d: int = 2, regional: bool = False, **costs: float
) -> Study:
    """A study with only the named unit costs and sizes."""
    names = {field.name for field in fields(Units)}
    units = {name: cost for name, cost in costs.items() if name in names}
    of_messages = {name: cost for name, cost in costs.items() if name not in names}
    return Study(owners, d, kind, replace(NOTHING, **units), regional, replace(EMPTY, **of_messages))


def test_the_page_is_as_the_model_and_the_measurements_would_have_it() -> None:
    assert SCALE.read_text(encoding="utf-8") == scale_page(), "run: make reference (docs/scale.md)"


def test_the_measurements_go_up_to_what_the_page_says() -> None:
    rows = Checked.load(MEASURED).rows
    assert [row.owners for row in rows] == [100, 1000, 10_000, 100_000, 10_000]
    assert (rows[-1].kind, rows[-1].features, rows[-1].regional) == (Kind.SKETCH, WIDE_FEATURES, True)


def test_each_unit_cost_is_charged_where_it_belongs() -> None:
    assert made(owner_share=1, owner_value=10).owner_seconds == 61
    assert made(Kind.BLINDED, pair_share=1, pair_value=10).owner_seconds == 10 * 61
    assert made(pair_share=1, pair_value=10).owner_seconds == 0
    assert made(proxy_share=1, proxy_value=10).proxy_seconds == 11 * 61
    assert made(request=1, request_byte=10).proxy_seconds == 11 * (2 + 480)
    assert made(answer=1).proxy_seconds == 11 * QUESTIONS
    assert made(user_share=1, user_value=10).user_seconds == 11 * 61
    costs: dict[str, Any] = {"encrypt": 1.0, "multiply": 1.0, "decrypt": 1.0}
    assert made(Kind.PAILLIER, **costs).owner_seconds == 2
    assert made(Kind.PAILLIER, **costs).proxy_seconds == 22
    assert made(Kind.PAILLIER, **costs).user_seconds == 2


def test_each_size_is_sent_where_it_belongs() -> None:
    assert made(share=1, chunk=10, digest=100).owner_bytes == 48 + 111
    assert made(told=1, digest=10).user_bytes == 11 * 11 + 48
    assert made(Kind.PAILLIER, share=10, pad=1).owner_bytes == 9
    assert made(Kind.PAILLIER, ciphertext=1).owner_bytes == 2
    assert made(manifest=1, feature=10, blinded=100).told_bytes == 21
    assert made(Kind.BLINDED, manifest=1, feature=10, blinded=100).told_bytes == 1121
    assert made(party=1, proved=10, seen=100).told_bytes == 11 + 550
    assert made(Kind.BLINDED, party=1, proved=10, seen=100).told_bytes == 110 + 550


def test_a_byte_of_an_answer_costs_what_its_kind_costs() -> None:
    assert made(list_byte=1, party=1, seen=2, manifest=5).proxy_seconds == 11 * 22
    assert made(file_byte=1, party=1, seen=2, manifest=5).proxy_seconds == 11 * 5


def test_a_sketch_has_three_rounds_and_its_list_is_sent_once() -> None:
    for d, manifests, listed in ((5_000, 3 * 5_000, 0), (50_000, 0, 50_000)):
        study = made(Kind.SKETCH, d=d, feature=1)
        assert (sum(study.manifests), study.list_bytes) == (manifests, listed)
    study = made(Kind.SKETCH, d=5_000, manifest=1, entry=10)
    assert study.manifests == (1, 1 + 10 * study.columns * study.rows, 1)
    with_keys, without = made(Kind.SKETCH, d=5_000, key=1), made(Kind.SKETCH, d=5_000)
    assert with_keys.told_bytes - without.told_bytes == 11
    assert made(Kind.SKETCH, d=5_000, party=1).told_bytes - without.told_bytes == 33


def test_a_region_passes_on_one_sum_and_lists_only_its_owners() -> None:
    owners = 3 * model.OF_A_REGION
    costs: dict[str, Any] = {"proxy_share": 1.0, "user_share": 1.0, "told": 1.0}
    flat, regional = (made(Kind.PAILLIER, owners, regional=each, **costs) for each in (False, True))
    assert (flat.proxies, regional.proxies) == (1, 3)
    assert (flat.proxy_seconds, regional.proxy_seconds) == (owners, owners + 3)
    assert (flat.user_seconds, regional.user_seconds) == (owners, 3)
    assert made(owners=owners, regional=True, **costs).user_seconds == owners  # each pad must be opened
    assert made(owners=owners, party=1).told_bytes == owners
    assert made(owners=owners, regional=True, party=1).told_bytes == model.OF_A_REGION


def test_the_bill_is_the_sum_of_what_is_used() -> None:
    study = made(owners=2, d=1, proxy_share=3600.0, told=1e9, manifest=5e8)
    sent = (2e9 + 24 + 2 * 5e8) / 1e9
    assert study.sent_bytes == sent * 1e9
    assert study.dollars(Prices(1.0, 10.0, 0.0)) == pytest.approx(2 + 10 * sent)
    assert study.dollars(Prices(0.0, 0.0, 3e9, 1 / 3)) == pytest.approx(48.0)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("is_rule", [True, False])
def test_a_wall_is_where_the_first_study_is_beyond_it(kind: Kind, is_rule: bool) -> None:
    found = first_wall(1000, kind, UNITS, is_rule=is_rule)
    assert found is not None
    owners, wall = found
    walls = [each for each in WALLS if each.is_rule == is_rule]
    assert wall.used(Study(owners, 1000, kind, UNITS)) > 1
    assert all(each.used(Study(owners - 1, 1000, kind, UNITS)) <= 1 for each in walls)


def test_a_full_matrix_of_very_many_features_is_allowed_to_nobody() -> None:
    found = first_wall(100_000, Kind.FULL, UNITS, is_rule=True)
    assert found is not None
    assert found[0] == 1
    assert first_wall(100_000, Kind.SKETCH, UNITS, is_rule=True) != found


@pytest.mark.parametrize(
    "study",
    [
        Study(40, 20, Kind.FULL, UNITS),
        Study(40, WIDE_FEATURES, Kind.SKETCH, UNITS, regional=True),
    ],
)
def test_a_simulation_meets_the_bytes_of_the_model(study: Study) -> None:
    row = Row.of(study)
    ratios = row.ratios(UNITS)
    assert ratios["owner_bytes"] == pytest.approx(1, rel=0.01)
    assert ratios["user_bytes"] == pytest.approx(1, rel=0.01)
    assert min(ratios[name] for name in FIGURES) > 0


def test_regional_sums_add_up_to_the_sum_of_all() -> None:
    assert simulate(7, 10, regions=3).owners == 7  # it compares the sum itself


@pytest.mark.parametrize("regions", [1, 2])
def test_a_simulation_notices_a_wrong_sum(monkeypatch: pytest.MonkeyPatch, regions: int) -> None:
    real = PadsSuite.add

    def without_the_first(suite: PadsSuite, contents: list[bytes]) -> bytes:
        return real(suite, contents[1:] or contents)

    monkeypatch.setattr(PadsSuite, "add", without_the_first)
    with pytest.raises(CryptographicError) as refused:
        simulate(4, 10, regions)
    assert refused.value.slug == "wrong-sum"


def test_a_place_that_cannot_be_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["--save", str(tmp_path / "missing" / "measured.json")])
    assert isinstance(refused.exception, UsageError)
    assert "missing does not exist" in refused.exception.problem
    assert "Measuring" not in refused.stderr


@pytest.mark.parametrize("content", ["{}", "[]", '{"units": {"owner_share": 1}, "rows": []}', "no JSON"])
def test_a_file_without_measurements_is_named(content: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("scale") / "measured.json"
    file.write_text(content)
    with pytest.raises(IntegrityError) as refused:
        Checked.load(file)
    assert str(file) in refused.value.problem
