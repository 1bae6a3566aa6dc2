"""The report of an audit: what was claimed, and what was found."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpdpca_lab.audit.bound import EpsilonBound
from dpdpca_lab.audit.checks import Check
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.statements import privacy_statements


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim that the audit tries to refute.

    Attributes:
        epsilon: the claimed ε.
        delta: the claimed δ, at which bounds are computed.
        shift: √(2ρ), the largest distance of a pair in standard deviations of the noise; None if the claim
            does not bound it.
        words: mechanism, relation and so on, for people.
        statements: what every output says about the study's noise.
    """

    epsilon: Fraction
    delta: Fraction
    shift: float | None
    words: dict[str, str]
    statements: tuple[str, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> "Claim":
        """What is proved for a study's terms."""
        figures = manifest.figures
        guarantee, event = figures.guarantee, figures.event
        return cls(
            guarantee.epsilon,
            guarantee.delta,
            math.sqrt(2 * event.rho) if event.pure_epsilon is None else None,
            {
                "release": str(manifest.release),
                "mechanism": f"discrete {manifest.mechanism}, noise by the {manifest.noise_by}",
                "relation": str(manifest.relation),
            },
            privacy_statements(figures),
        )


@dataclass(frozen=True, slots=True)
class PlayedPair:
    """The result for one pair.

    Attributes:
        name, encoded: as in the pair.
        runs: number of releases of each data set.
        distance: μ according to the stated noise.
        bound: the lower bound, which makes no assumption.
        estimate, error: μ̂ and its standard error.
        epsilon_if_gaussian: ε at δ of a Gaussian with the smallest μ that the runs allow, assuming that the
            noise is Gaussian; None if another distribution is stated.
    """

    name: str
    encoded: bool
    runs: int
    distance: float
    bound: EpsilonBound
    estimate: float
    error: float
    epsilon_if_gaussian: float | None


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The claim, and what was found.

    Attributes:
        claim: the claim that was tested.
        records, features: N and d of the game.
        whole_features: d of the whole releases; 0 if there were none.
        pairs: the result for each pair.
        checks: the checks, by the pair or the part to which they belong.
        alpha: how often an audit refutes a true claim.
        largest: the largest bound that this number of runs can show.
    """

    claim: Claim
    records: int
    features: int
    whole_features: int
    pairs: tuple[PlayedPair, ...]
    checks: tuple[tuple[str, Check], ...]
    alpha: float
    largest: float

    @property
    def epsilon(self) -> float:
        """The best lower bound on ε."""
        return max(pair.bound.epsilon for pair in self.pairs)

    @property
    def is_refuted(self) -> bool:
        """Whether the bound exceeds the claim."""
        return self.epsilon > self.claim.epsilon

    @property
    def failed(self) -> tuple[tuple[str, Check], ...]:
        """The checks that failed: if all were as stated, each would fail with less than its share of α."""
        level = self.alpha / 2 / len(self.checks)
        return tuple((part, check) for part, check in self.checks if check.p_value < level)

    @property
    def holds(self) -> bool:
        return not self.is_refuted and not self.failed

    def facts(self) -> dict[str, Any]:
        """The report as plain JSON."""
        failed = self.failed
        return {
            "claim": {
                "epsilon": float(self.claim.epsilon),
                "delta": float(self.claim.delta),
                **self.claim.words,
                "statements": list(self.claim.statements),
            },
            "epsilon_lower_bound": self.epsilon,
            "largest_bound_possible": self.largest,
            "confidence": 1 - self.alpha,
            "holds": self.holds,
            "records": self.records,
            "features_played": self.features,
            "features_checked_whole": self.whole_features,
            "pairs": [
                {
                    "name": pair.name,
                    "through_the_encoder": pair.encoded,
                    "runs_each": pair.runs,
                    "distance": pair.distance,
                    "epsilon_lower_bound": pair.bound.epsilon,
                    "event": pair.bound.event,
                    "event_runs": pair.bound.runs,
                    "event_counts": [pair.bound.likelier, pair.bound.rarer],
                    "measured_shift": _finite(pair.estimate),
                    "measured_shift_error": pair.error,
                    "epsilon_if_gaussian": _finite(pair.epsilon_if_gaussian),
                }
                for pair in self.pairs
            ],
            "checks": [
                {
                    "part": part,
                    "name": check.name,
                    "passed": (part, check) not in failed,
                    "p_value": check.p_value,
                    "measured": check.measured,
                }
                for part, check in self.checks
            ],
        }


def _finite(value: float | None) -> float | None:
    """None for infinity, which JSON does not have; a shift without noise is infinite."""
    return value if value is not None and math.isfinite(value) else None
