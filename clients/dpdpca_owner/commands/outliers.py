"""What `transform` says about outlier scores: their limits, and what a reader has to know."""

from typing import Any

from dpdpca_owner.projection import Wanted
from dpdpca_protocol.result.outliers import OutlierScores

_CONFIDENCES = (0.95, 0.99)
_UNKNOWN = "none: the components span all features, or too few are known, as always after a lift"


def outlier_facts(outliers: OutlierScores, wanted: Wanted) -> dict[str, Any]:
    """Plain JSON. A limit is null if it is not known."""
    limits: dict[str, dict[str, float | None]] = {}
    if wanted.t2:
        limits["t2"] = {f"{level:g}": outliers.t2_limit(level) for level in _CONFIDENCES}
    if wanted.spe:
        limits["spe"] = {f"{level:g}": outliers.spe_limit(level) for level in _CONFIDENCES}
    return {"components": outliers.k, "limits": limits, "warnings": list(outliers.warnings())}


def outlier_lines(facts: dict[str, Any]) -> list[str]:
    """The same for people."""
    said = [f"outlier scores use the first {facts['components']} components, those nearest to the true ones"]
    for name, limits in facts["limits"].items():
        known = ", ".join(
            f"{float(level):.0%}: {limit:.4g}" for level, limit in limits.items() if limit is not None
        )
        said.append(f"limits of {'T²' if name == 't2' else 'SPE'}  {known or _UNKNOWN}")
    return [*said, *(f"note: {line}" for line in facts["warnings"])]
