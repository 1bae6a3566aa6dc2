"""Extreme bounds, norms and budgets: refused before anything is spent, or all that comes out is a number."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from study_parties import MakeManifest

from dpdpca_protocol.errors import MessageError, PolicyError
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.records.encoding import RecordEncoder, at_centre
from dpdpca_protocol.result.components import EncodedSpace
from dpdpca_protocol.terms.features import longest_norm_squared
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user import DPPCA
from dpdpca_user.estimator import ParameterError

SHARED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Exact decimals that a manifest has room for, and neighbours where doubles run out of steps.
ANCHORS = ("0", "1e-40", "1e-9", "1", "1e6", "2147483648", "9007199254740992", "1152921504606846976", "1e29")
WIDTHS = ("1e-39", "1e-20", "1e-9", "0.00000095367431640625", "1", "255", "1e6", "9007199254740992", "1e29")
anchors, widths = st.sampled_from(ANCHORS).map(Fraction), st.sampled_from(WIDTHS).map(Fraction)
AWKWARD = [0.0, -0.0, 5e-324, -5e-324, 1.7e308, -1.7e308, 1e-40, math.nan, math.inf]


@st.composite
def features(draw: st.DrawFn) -> list[dict[str, Any]]:
    drawn = []
    for index in range(draw(st.integers(1, 3))):
        sign, anchor, width = draw(st.sampled_from([1, -1])), draw(anchors), draw(widths)
        lower = draw(st.sampled_from([sign * anchor, -width / 2, -width]))
        body: dict[str, Any] = {"name": f"f{index}", "lower": lower, "upper": lower + width}
        if draw(st.booleans()):
            body["centre"] = lower + width * draw(st.sampled_from([Fraction(0), Fraction(1, 4), Fraction(1)]))
        if draw(st.sampled_from([False, False, True])):
            body["scale"] = (
                width / 2 * draw(st.sampled_from([Fraction(1, 2**14), Fraction(1, 10), Fraction(1)]))
            )
        drawn.append(body)
    return drawn


@st.composite
def drafts(draw: st.DrawFn) -> dict[str, Any]:
    release = draw(st.sampled_from(["joint", "masked", "pairs", "pre-study"]))
    changes: dict[str, Any] = {
        "features": draw(features()),
        "release": release,
        "missing": "midpoint",
        "scaling": draw(st.sampled_from(["range", "range", "common"])),
        "clip_norm": draw(
            st.sampled_from(["0.5", "1", "1", "0.0000001", "0.0008", "1.99", "2", "3.4", "100"])
        ),
        "epsilon": draw(st.sampled_from([*["1"] * 6, "0." + "0" * 39 + "1", "37", "9" * 30])),
        "max_records": draw(st.sampled_from([2, 1000, 1000, 1000, 2**53 - 1])),
        "min_records": 2,
    }
    if release == "pre-study":
        names = ("norms", "pair-norms", "sum", "octaves", "far-pairs")
        changes["blocks"] = dict.fromkeys(names, "0.2")
    if draw(st.sampled_from([False, False, True])):
        changes["fraction_bits"] = draw(st.sampled_from([0, 10, 20, 30, 40]))
    if draw(st.sampled_from([False, False, False, True])):
        changes["delta"] = draw(st.sampled_from(["0.5", "0.0000000001", "0." + "0" * 39 + "1"]))
    return changes


@SHARED
@given(changes=drafts())
def test_a_manifest_is_refused_or_encodes_every_value_as_exactly_as_it_says(
    changes: dict[str, Any], make_manifest: MakeManifest
) -> None:
    manifest: Manifest | None = None
    said = ""
    try:
        manifest = make_manifest(**changes)
    except (PolicyError, MessageError) as error:
        said = str(error)
    if manifest is None:
        event("refused")
        if "double precision" in said:
            assert any(f"feature {body['name']} are" in said for body in changes["features"])
        return
    event(f"encoded: {manifest.release}")
    figures = manifest.figures
    assert math.isfinite(float(figures.noise_scale))
    space = EncodedSpace.of(manifest)
    assert np.isfinite(space.centre).all()
    assert (space.half_range > 0).all()
    assert math.isfinite(space.unit**2)
    columns = {
        each.name: np.array([float(each.lower), float(each.upper), float(each.origin), *AWKWARD])
        for each in manifest.features
        if each.lower is not None and each.upper is not None
    }
    z = at_centre(RecordEncoder(manifest).encode(columns).z)
    q, exact = figures.grid, exact_records(manifest, columns)
    longest = [sum(entry * entry for entry in record) for record in exact]
    if manifest.release in ("joint", "masked"):
        assert all(sum(int(x) ** 2 for x in record) <= figures.record_bound for record in z)
        room = max(manifest.clip_norm * q - Fraction(math.isqrt(len(space.names)) + 1, 2), Fraction(0)) - 2
        kept = [norm <= room**2 and room > 0 for norm in longest]
    else:
        kept = [True] * len(exact)
    for record, wanted, is_whole in zip(z.tolist(), exact, kept, strict=True):
        if is_whole:
            assert all(
                abs(x - entry) <= Fraction(1501, 1000) for x, entry in zip(record, wanted, strict=True)
            )
    assert max(longest) <= longest_norm_squared(manifest.features, manifest.scaling) * q**2


def exact_records(manifest: Manifest, columns: dict[str, Any]) -> list[list[Fraction]]:
    """Records in grid units by the specification, neither cut to the norm nor rounded."""
    units, q = manifest.feature_units, manifest.figures.grid
    records: list[list[Fraction]] = [[] for _ in next(iter(columns.values()))]
    for feature, (origin, unit) in zip(manifest.features, units, strict=True):
        assert feature.lower is not None
        assert feature.upper is not None
        for record, value in zip(records, columns[feature.name].tolist(), strict=True):
            inside = (
                min(max(Fraction(value), feature.lower), feature.upper) if math.isfinite(value) else origin
            )
            record.append((inside - origin) / unit * q)
    return records


SMALL = (0.0, -0.0, 5e-324, 1e-310, 1e-160, 2.0**-401, 1e-40, 1.0, 1 + 2**-52, 1e6, 1e6 + 2**-20)
LARGE = (2.0**53, 2.0**60, 2.0**60 + 256, 1e30, 2.0**400, 2.0**401, 1e160, 1.7e308)
extremes = st.sampled_from(SMALL + LARGE)
signed = st.tuples(st.sampled_from([1, -1]), extremes).map(lambda pair: pair[0] * pair[1])
budgets = st.sampled_from([5e-324, 1e-300, 1e-9, 0.1, 1, 2.0, 55.0, 1e3, 1e300, math.inf, 10**400])


class Watched(DPPCA):
    """Notes when it comes to the noise, which is the real one."""

    @property
    def _noise(self) -> Samplers:  # type: ignore[override] # each notes its own
        return Samplers(gaussian=self._drawn)

    def _drawn(self, variance: Fraction, count: int, bound: int) -> list[int]:
        self.drawn = True
        return EXACT.gaussian(variance, count, bound)


@st.composite
def fits(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    d, n = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 60]))
    pairs = [sorted((draw(signed), draw(signed))) for _ in range(d)]
    usual = [(-1.0, 1.0)] * d
    bounds: list[Any] = draw(st.sampled_from([pairs, usual]))
    arguments: dict[str, Any] = {"bounds": bounds, "scaling": draw(st.sampled_from(["range", "common"]))}
    for name in ("epsilon", "delta", "clip_norm", "sum_weight"):
        if draw(st.integers(0, 5)) == 5:
            arguments[name] = draw(budgets)
    if draw(st.booleans()):
        arguments["centres"] = [pair[draw(st.integers(0, 1))] for pair in bounds]
    if draw(st.booleans()):
        arguments["metric"] = "correlation"
    rows = draw(st.lists(st.lists(signed, min_size=d, max_size=d), min_size=n, max_size=n))
    return arguments, np.array(rows)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@SHARED
@given(fit=fits())
def test_dppca_refuses_before_the_noise_or_fits_finite_numbers(fit: tuple[dict[str, Any], Any]) -> None:
    arguments, rows = fit
    estimator, refusal = Watched(**arguments), ""
    try:
        estimator.fit(rows)
    except ParameterError as error:
        refusal = error.slug
    if refusal:
        event(f"refused: {refusal}")
        # Only the noise itself can tell that there is nothing above it.
        assert not hasattr(estimator, "drawn") or refusal == "nothing-above-noise"
        return
    event("fitted")
    reliability = estimator.reliability_
    assert reliability is not None
    fitted = {name: value for name, value in vars(estimator).items() if name.endswith("_")}
    fitted |= {name: getattr(reliability, name) for name in reliability.__dataclass_fields__}
    for name, value in fitted.items():
        if isinstance(value, float | np.ndarray):
            assert np.isfinite(value).all(), name
    k = estimator.n_components_
    np.testing.assert_allclose(estimator.components_ @ estimator.components_.T, np.eye(k), atol=1e-6)
    assert (estimator.explained_variance_ >= 0).all()
    assert 0 <= estimator.explained_variance_ratio_.sum() <= 1 + 1e-9
    assert (estimator.scale_ > 0).all()
    assert (estimator.noise_edges_ >= estimator.noise_edge_ * (1 - 1e-9)).all()
    inside = [np.mean(pair) if abs(pair[0]) < 1e300 else 0.0 for pair in arguments["bounds"]]
    assert np.isfinite(estimator.transform([inside])).all()
