"""The audit at length: every release at several ε, every mechanism on every quantity, and false claims."""

from fractions import Fraction
from typing import Any

import pytest
from present import present
from study_parties import MakeManifest

from dpdpca_lab.audit.game import ALPHA, audit, audit_manifest
from dpdpca_lab.audit.mechanisms import MechanismRelease
from dpdpca_lab.audit.neighbours import pairs_on_the_bound, searched_pair, worst_shapes
from dpdpca_lab.audit.report import AuditReport, Claim
from dpdpca_lab.mechanisms import PUBLISHED, PublishedGaussian, Wishart
from dpdpca_protocol.privacy.mechanisms import MECHANISMS, Mechanism, Quantity, Setting
from dpdpca_protocol.privacy.mechanisms.interface import Guarantee
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.study import ReleaseKind

from .alpha import level

pytestmark = pytest.mark.nightly

RUNS = 100_000
BLOCK_RUNS = 30_000  # a block has hundreds of values in each run
RECORDS = 500
BOUND = 2**20


@pytest.mark.parametrize("epsilon", [0.5, 1, 3])
@pytest.mark.parametrize("delta", ["0.000001", "0.0009"])
@pytest.mark.parametrize("kind", ["masked", "joint", "pairs"])
def test_a_study_holds_what_it_claims(
    kind: str, delta: str, epsilon: float, make_manifest: MakeManifest
) -> None:
    manifest = make_manifest(release=kind, epsilon=epsilon, delta=delta, max_records=1000)
    report = audit_manifest(manifest, RUNS, alpha=level())
    print(f"{kind} ε {epsilon} δ {delta}: ε ≥ {report.epsilon:.3f} of {report.largest:.2f}")
    assert report.holds, report.facts()


@pytest.mark.parametrize("share", ["1", "0.1"])
@pytest.mark.parametrize("name", ["norms", "pair-norms", "sum", "octaves", "far-pairs"])
def test_a_block_of_a_pre_study_holds_what_it_claims(
    name: str, share: str, make_manifest: MakeManifest
) -> None:
    chain = {} if share == "1" else {"rho_share": share}
    manifest = make_manifest(
        release="pre-study", blocks={name: "1"}, epsilon=2, delta="0.0009", max_records=1000, **chain
    )
    report = audit_manifest(manifest, BLOCK_RUNS, alpha=level())
    print(f"{name} at {share} of ρ: ε ≥ {report.epsilon:.3f} of {report.largest:.2f}")
    assert report.holds, report.facts()


@pytest.mark.parametrize("kind", ["joint", "pairs", "norms", "pair-norms", "sum", "octaves", "far-pairs"])
def test_noise_in_owners_shares_holds_what_is_claimed(kind: str, make_manifest: MakeManifest) -> None:
    """The sum of the shares that are assured; those of all others only add to it."""
    terms = (
        {"release": kind} if kind in ("joint", "pairs") else {"release": "pre-study", "blocks": {kind: "1"}}
    )
    manifest = make_manifest(noise_by="owners", epsilon=1, delta="0.0009", max_records=1000, **terms)
    report = audit_manifest(manifest, RUNS, alpha=level())
    print(f"{kind}, owners' noise: ε ≥ {report.epsilon:.3f} of {report.largest:.2f}")
    assert report.holds, report.facts()


@pytest.mark.parametrize("kind", ["masked", "joint"])
def test_a_study_with_laplace_noise_holds_what_is_proved_of_it(
    kind: str, make_manifest: MakeManifest
) -> None:
    terms = {"mechanism": "laplace", "epsilon": 1, "delta": "0.0009"}
    report = audit_manifest(make_manifest(release=kind, max_records=1000, **terms), RUNS, alpha=level())
    claim = report.claim
    print(
        f"{kind} laplace: ε ≥ {report.epsilon:.3f},"
        f" proved ({float(claim.epsilon):.3f}, {float(claim.delta):.1g})"
    )
    assert report.holds, report.facts()


def played(
    mechanism: type[Mechanism],
    runs: int,
    alpha: float,
    claimed: Guarantee | None = None,
    d: int = 2,
    **setting: Any,
) -> AuditReport:
    """The audit of a mechanism against what is proved of it, or against the claim that is given."""
    made = mechanism.calibrated(Setting(encoded_features=d, record_bound=BOUND, **setting))
    release = MechanismRelease(made)
    kind = ReleaseKind.MASKED if setting["quantity"] is Quantity.SCATTER else ReleaseKind.JOINT
    pairs = pairs_on_the_bound(
        worst_shapes(kind, d, float(setting.get("alpha_squared", 0)) / BOUND), BOUND, RECORDS
    )
    if claimed is None:
        pairs.append(searched_pair(release, BOUND, RECORDS, 300, OS_RANDOMNESS))
    guarantee = claimed or made.guarantee
    return audit(release, pairs, Claim(guarantee.epsilon, guarantee.delta, None, {}), runs, alpha=alpha)


OFFERED = [
    *((mechanism, Quantity.SECOND_MOMENT) for mechanism in MECHANISMS),  # the others are played as studies
    *(
        (mechanism, quantity)
        for mechanism in PUBLISHED
        if mechanism is not Wishart  # nothing is proved of it
        for quantity in sorted(mechanism.quantities)
    ),
]


@pytest.mark.parametrize(("mechanism", "quantity"), OFFERED, ids=[f"{m.__name__}-{q}" for m, q in OFFERED])
def test_a_mechanism_holds_what_is_proved_of_it(mechanism: type[Mechanism], quantity: Quantity) -> None:
    terms: dict[str, Any] = {"quantity": quantity, "epsilon": Fraction(1), "delta": Fraction(1, 1000)}
    if quantity is Quantity.JOINT:
        terms["alpha_squared"] = Fraction(43 * BOUND, 100)
    report = played(mechanism, RUNS, level(), **terms)
    print(
        f"{mechanism.__name__} on {quantity}: ε ≥ {report.epsilon:.3f},"
        f" proved {float(report.claim.epsilon):.3f}"
    )
    assert report.holds, report.facts()


@pytest.mark.parametrize("epsilon", [Fraction(1), Fraction(3)])
def test_the_published_calibration_of_the_scatter_is_refuted(epsilon: Fraction) -> None:
    """Sensitivity 1 where it is 4; δ as in the paper's experiments. One feature shows it as well as more.

    At a claimed ε of 0.5 so many runs show 0.57 on average: too close to 0.5 for a test.
    """
    setting: dict[str, Any] = {"quantity": Quantity.SCATTER, "epsilon": epsilon, "delta": Fraction(1, 10**5)}
    made = PublishedGaussian.calibrated(Setting(encoded_features=1, record_bound=BOUND, **setting))
    report = played(PublishedGaussian, RUNS, ALPHA, made.claim, d=1, **setting)
    print(f"published, claimed {float(epsilon)}: ε ≥ {report.epsilon:.3f}, really {made.real_epsilon:.3f}")
    assert report.is_refuted
    assert report.epsilon <= present(made.real_epsilon)
