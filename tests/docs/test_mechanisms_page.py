"""docs/mechanisms.md names every mechanism as the code does, and only tests that exist."""

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dpdpca_lab.central.exponential import exponential_components
from dpdpca_lab.central.gibbs import gibbs_components
from dpdpca_lab.central.power import power_components
from dpdpca_lab.central.published_power import published_power_components
from dpdpca_lab.mechanisms import PUBLISHED, NoGuarantee
from dpdpca_protocol.privacy.mechanisms import MECHANISMS, Mechanism, Quantity, Setting

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")


def row_of(start: str) -> str:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {start}")]
    return row


@pytest.mark.parametrize("mechanism", [*MECHANISMS, *PUBLISHED])
def test_every_mechanism_has_its_row(mechanism: type[Mechanism]) -> None:
    row = row_of(f"`{mechanism.name}`, {'as-published' if mechanism in PUBLISHED else 'proved'} |")
    fitted = mechanism.calibrated(Setting(Quantity.SECOND_MOMENT, 64, 2**40, Fraction(1), Fraction(1, 10**6)))
    assert ("**none**" in row) == isinstance(fitted.guarantee, NoGuarantee)
    assert ("(v, R)" in row) == (Quantity.JOINT in mechanism.quantities)


def test_central_mechanisms_have_their_rows() -> None:
    moment = np.eye(3)
    results = [
        exponential_components(moment, 4, Fraction(1), 1),
        gibbs_components(moment, 4, Fraction(1), 1, sweeps=1),
        power_components(moment.astype(np.int64), 4, Fraction(1), Fraction(1, 1000), 1),
        published_power_components(moment, 4, Fraction(1), Fraction(1, 1000), 1, 1),
    ]
    for result in results:
        row = row_of(f"`{result.mechanism}`")
        assert ("**none**" in row) == isinstance(result.guarantee, NoGuarantee)
        assert result.sampling.partition(":")[0] in row


def test_figures_of_what_the_lab_has_no_code_for() -> None:
    """SULQ: √8·d·ln(d/δ)/ε at d = 10, ε = 1, δ = 10⁻⁶."""
    assert f"{math.sqrt(8) * 10 * math.log(10 / 1e-6):.1f} at d = 10" in PAGE


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert len(named) == 14
    assert all((ROOT / name).is_file() for name in named)
