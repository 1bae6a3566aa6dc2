"""Chains and single studies on real tables, with real encoding and noise but without encryption.

All rounds of a chain together spend the same ε as a single study.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from operator import add
from typing import Any

from dpdpca_lab.reference_data import Table
from dpdpca_protocol.privacy.gaussian import discrete_gaussian
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import EncodedSpace, fit_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import Party, ProxyParty
from dpdpca_protocol.wire.kem import PREVIEW_KEM
from dpdpca_user.planning.lint import lint
from dpdpca_user.planning.rehearsal import Rehearsal, captured, play_chain, play_round

USER = Party("user", b"\xfe" * 32)
PROXY = ProxyParty("proxy", "https://proxy.example", b"\xff" * 32, PREVIEW_KEM)


def complete(draft: Mapping[str, Any]) -> Manifest:
    return lint(draft, USER, PROXY, datetime(2030, 1, 1, tzinfo=UTC), 3072)


def base_of(table: Table, epsilon: float) -> dict[str, Any]:
    features = [
        {"name": f"x{i}", "lower": float(low), "upper": float(high)}
        for i, (low, high) in enumerate(zip(table.lower, table.upper, strict=True))
    ]
    return {
        "title": table.name,
        "purpose": "To measure.",
        "participants": "enrolled",
        "features": features,
        "epsilon": epsilon,
        "max_records": len(table.rows),
        "missing": "midpoint",
    }


def owners_of(table: Table, count: int = 3) -> list[dict[str, Any]]:
    return [{f"x{i}": table.rows[start::count, i] for i in range(table.d)} for start in range(count)]


def chain(table: Table, epsilon: float, scales: bool = False, owners: int = 3, **terms: Any) -> Rehearsal:
    """A chain in which the proxy draws the noise and the result is sealed, unless `terms` say otherwise."""
    base = base_of(table, epsilon) | terms
    return play_chain(base, complete, owners_of(table, owners), OS_RANDOMNESS, scales)


def with_noise_of_owners(table: Table, epsilon: float, owners: int) -> Rehearsal:
    """A chain in which these owners draw the noise, and at most one of them colludes with the proxy."""
    return chain(
        table,
        epsilon,
        owners=owners,
        noise_by="owners",
        max_colluding=1,
        min_owners=owners,
        max_owners=owners,
    )


def in_clear(played: Rehearsal, table: Table) -> Rehearsal:
    """The same chain with its last round played again for a result in clear, with a second draw of noise."""
    figures = replace(played.main.figures, draws=2)
    noisy = run_study(played.main, owners_of(table), OS_RANDOMNESS, _TWICE, UNENCRYPTED)
    assert isinstance(noisy, NoisyScatter)
    return replace(played, components=fit_components(noisy, figures, EncodedSpace.of(played.main)))


def _drawn_twice(variance: Fraction, count: int, bound: int) -> list[int]:
    return list(map(add, *(discrete_gaussian(variance, count, bound) for _ in range(2))))


_TWICE = Samplers(gaussian=_drawn_twice)


def naive(table: Table, epsilon: float) -> float:
    """cv_5 of one joint study whose centre is the middle of the bounds, without clipping."""
    norm = math.floor(math.sqrt(table.d) * 1000) / 1000
    manifest = complete(base_of(table, epsilon) | {"release": "joint", "clip_norm": str(norm)})
    noisy = play_round(manifest, owners_of(table), OS_RANDOMNESS)
    assert isinstance(noisy, NoisyScatter)
    components = fit_components(noisy, manifest.figures, EncodedSpace.of(manifest))
    return captured(components, manifest, whole(table), 5)


def whole(table: Table) -> dict[str, Any]:
    return {f"x{i}": table.rows[:, i] for i in range(table.d)}


def captured_by(played: Rehearsal, table: Table) -> float:
    return captured(played.components, played.main, whole(table), 5)
