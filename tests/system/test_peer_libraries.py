"""The libraries that we compare with: that they fit, and that what we say about them is so.

Each lives in an environment of its own, which this test makes where it is missing. If one of these tests
fails after a new version was locked, then `dpdpca_lab.peers.declared` says something that is no longer so.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq

from dpdpca_lab.peers.declared import LIBRARIES, Library
from dpdpca_lab.peers.process import Limits, fits

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
TOP, EPSILON, D, DRAWS = 12.0, 4.0, 4, 3000
"""The eigenvalue and ε of the measured law of one eigenvector, its dimension, and the number of draws."""

DRAW = {
    "diffprivlib": f"""
from diffprivlib.mechanisms import Bingham
sampler = Bingham(epsilon={EPSILON})
draw = lambda: sampler.randomise(C)
""",
    "opendp": f"""
import opendp.prelude as dp
from opendp.extras.numpy import _sscp_domain
from opendp.extras.sklearn._make_eigenvector import make_private_eigenvector
dp.enable_features("contrib", "idealized-numerics", "honest-but-curious")
space = _sscp_domain(num_features={D}, norm=1.0, p=2, T=float)
sampler = make_private_eigenvector(space, dp.symmetric_distance(), {EPSILON})
draw = lambda: np.asarray(sampler(C))
""",
}
MEAN = f"""
import numpy as np
C = np.diag([{TOP}] + [0.0] * {D - 1})
{{}}
print(float(np.mean([draw()[0] ** 2 for _ in range({DRAWS})])))
"""


@pytest.fixture(scope="module", params=sorted(LIBRARIES))
def peer(request: pytest.FixtureRequest) -> Library:
    found = LIBRARIES[request.param]
    made = ["make", "-s", "-C", str(ROOT), f"PYTHON={sys.executable}", f"{found.environment.name}/stamp"]
    subprocess.run(made, check=True)
    assert found.is_installed
    return found


def said(peer: Library, code: str) -> object:
    python = str(peer.program[0])
    words = [python, "-E", "-s", "-W", "ignore", "-c", code]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def test_it_fits_in_the_locked_version(peer: Library) -> None:
    rows = np.diag([1.0, 0.5, 0.25, 0.1]).repeat(50, axis=0)
    found = fits(peer.program, rows, 1.0, 2, 3, Limits(60, 120))
    assert (found.note, len(found.components)) == ("", 3)
    lock = (ROOT / "requirements" / f"peers-{peer.package}.txt").read_text()
    assert f"\n{peer.package}=={found.version} " in lock


def test_its_eigenvectors_follow_another_law_than_that_of_its_source(peer: Library) -> None:
    """The mean of u₁² under density ∝ exp(−a sin²), a = ε·12/4, and with the factor (1 + 2a/b sin²)^(−d)."""
    a = EPSILON * TOP / 4
    b = brentq(lambda b: 1 / b + (D - 1) / (b + 2 * a) - 1, 1, D)

    def mean(power: int) -> float:
        def density(angle: float) -> float:
            sine = np.sin(angle) ** 2
            return float(np.exp(-a * sine) * (1 + 2 * a / b * sine) ** -power * sine ** (D / 2 - 1))

        whole = quad(density, 0, np.pi)[0]
        return float(quad(lambda angle: density(angle) * np.cos(angle) ** 2, 0, np.pi)[0] / whole)

    right, inverted = mean(0), mean(D)
    assert (right, inverted) == pytest.approx((0.868, 0.973), abs=0.001)
    assert said(peer, MEAN.format(DRAW[peer.package])) == pytest.approx(inverted, abs=0.004)


def test_the_pca_class_of_opendp_spends_twice_its_epsilon() -> None:
    code = """
import opendp.prelude as dp
dp.enable_features("contrib", "idealized-numerics", "honest-but-curious")
pca = dp.sklearn.decomposition.PCA(epsilon=1.0, row_norm=1.0, n_samples=500, n_features=6, n_components=2)
print(pca.measurement().map(2))
"""
    made = ["make", "-s", "-C", str(ROOT), f"PYTHON={sys.executable}", ".venv-peers-opendp/stamp"]
    subprocess.run(made, check=True)
    assert said(LIBRARIES["opendp"], code) == pytest.approx(2)


def test_one_record_moves_that_law_by_twenty_times_the_claim() -> None:
    """1,803 rows on two of 64 axes, ε = 1; one row goes from the first axis to the second."""
    assert loss((903, 900), (902, 901), factor_inverted=True) == pytest.approx(20.3, abs=0.2)
    assert loss((903, 900), (902, 901), factor_inverted=False) == pytest.approx(0.27, abs=0.01)


def loss(before: tuple[int, int], after: tuple[int, int], factor_inverted: bool, d: int = 64) -> float:
    """The largest change of a log density, on a grid of the angle in the plane and the share outside it."""
    angles, logs = np.linspace(0, np.pi / 2, 201), np.linspace(-8, 0, 401)
    angle, outside = np.meshgrid(angles, 10.0**logs)
    shares = (1 - outside) * np.cos(angle) ** 2, (1 - outside) * np.sin(angle) ** 2, outside
    densities = []
    for first, second in (before, after):
        gaps = (max(first, second) - np.array([first, second, 0.0])) / 4  # A at ε = 1
        every = np.array([*gaps[:2], *[gaps[2]] * (d - 2)])
        shift = brentq(lambda b, every=every: (1 / (b + 2 * every)).sum() - 1, 1e-9, d)
        exponent = -sum(gap * share for gap, share in zip(gaps, shares, strict=True))
        if factor_inverted:
            omega = sum((1 + 2 * gap / shift) * share for gap, share in zip(gaps, shares, strict=True))
            exponent = exponent - d * np.log(omega)
        weighted = exponent + (d - 2) / 2 * np.log(outside)  # the measure of the share, over its logarithm
        most = weighted.max()
        whole = np.trapezoid(np.trapezoid(np.exp(weighted - most), angles, axis=1), logs)
        densities.append(exponent - most - np.log(whole))
    return float(np.abs(densities[0] - densities[1]).max())
