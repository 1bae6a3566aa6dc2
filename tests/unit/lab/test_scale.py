"""The model of large studies: its arithmetic, its walls, and the simulation that checks it."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpdpca_lab.scale import model
from dpdpca_lab.scale.checked import Checked, compared
from dpdpca_lab.scale.commands import app
from dpdpca_lab.scale.model import WALLS, Kind, Prices, Study, Units, first_wall
from dpdpca_lab.scale.simulation import simulate
from dpdpca_protocol.errors import CryptographicError, IntegrityError, UsageError
from dpdpca_protocol.release.suite import PadsSuite
from reference_pages.__main__ import SCALE, scale_page
from reference_pages.scale import MEASURED

NOTHING = Units(*[0.0] * len(fields(Units)))
UNITS = Checked.load(MEASURED).units


def test_the_page_is_as_the_model_and_the_measurements_would_have_it() -> None:
    assert SCALE.read_text(encoding="utf-8") == scale_page(), "run: make reference (docs/scale.md)"


def test_the_measurements_go_up_to_what_the_page_says() -> None:
    rows = Checked.load(MEASURED).rows
    assert [row["owners"] for row in rows] == [100, 1000, 10_000, 100_000]


def test_sizes_are_those_of_the_releases() -> None:
    assert Study(3, 617, Kind.FULL, UNITS).rounds == (1 + 617 + 617 * 309,)
    sketch, lift, scores = Study(3, 22_684, Kind.SKETCH, UNITS).rounds
    assert (8 * sketch / 1e6, 8 * lift / 1e6) == pytest.approx((1.73, 1.82), abs=0.01)
    assert scores == 66


def test_each_unit_cost_is_charged_where_it_belongs() -> None:
    def study(kind: Kind, **costs: float) -> Study:
        return Study(11, 2, kind, replace(NOTHING, packed=3.0, **costs))

    assert study(Kind.FULL, owner_share=1, owner_value=10).owner_seconds == 61
    assert study(Kind.BLINDED, pair_share=1, pair_value=10).owner_seconds == 10 * 61
    assert study(Kind.FULL, pair_share=1, pair_value=10).owner_seconds == 0
    assert study(Kind.FULL, proxy_share=1, proxy_value=10).proxy_seconds == 11 * 61
    assert study(Kind.FULL, request=1, request_byte=10).proxy_seconds == 11 * (2 + 480)
    assert study(Kind.FULL, user_share=1, user_value=10).user_seconds == 11 * 61
    assert study(Kind.PAILLIER, encrypt=1, multiply=1, decrypt=1).owner_seconds == 2
    assert study(Kind.PAILLIER, encrypt=1, multiply=1, decrypt=1).proxy_seconds == 22
    assert study(Kind.PAILLIER, encrypt=1, multiply=1, decrypt=1).user_seconds == 2
    assert study(Kind.FULL, share_bytes=1, chunk_bytes=10).owner_bytes == 48 + 11
    assert study(Kind.FULL, statement_bytes=1).user_bytes == 11 + 48


def test_a_region_passes_on_one_sum() -> None:
    owners = 3 * model.OF_A_REGION
    units = replace(NOTHING, packed=1.0, proxy_share=1.0, user_share=1.0, statement_bytes=5000.0)
    flat, regional = (Study(owners, 2, Kind.PAILLIER, units, regional) for regional in (False, True))
    assert (flat.proxies, regional.proxies) == (1, 3)
    assert (flat.proxy_seconds, regional.proxy_seconds) == (owners, owners + 3)
    assert (flat.user_seconds, regional.user_seconds) == (owners, 3)
    assert Study(owners, 2, Kind.FULL, units, True).user_seconds == owners  # each pad must be opened


def test_the_bill_is_the_sum_of_what_is_used() -> None:
    units = replace(NOTHING, proxy_share=3600.0, statement_bytes=1e9)
    study = Study(2, 1, Kind.FULL, units)
    sent = (2e9 + 24) / 1e9
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


def test_a_simulation_meets_the_bytes_of_the_model() -> None:
    study = Study(40, 20, Kind.FULL, UNITS)
    row = compared(study, simulate(study.owners, study.values))
    assert row["owner_bytes"] == pytest.approx(row["predicted_owner_bytes"], rel=0.01)
    assert row["user_bytes"] == pytest.approx(row["predicted_user_bytes"], rel=0.01)
    assert min(row["owner_seconds"], row["proxy_seconds"], row["user_seconds"]) > 0


def test_a_simulation_notices_a_wrong_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PadsSuite.add

    def without_the_first(suite: PadsSuite, contents: list[bytes]) -> bytes:
        return real(suite, contents[1:])

    monkeypatch.setattr(PadsSuite, "add", without_the_first)
    with pytest.raises(CryptographicError) as refused:
        simulate(3, 10)
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
