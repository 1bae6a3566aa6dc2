"""Owners without software of their own in the rounds of a chain for many features, at a real proxy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from proxy_world import OpenStudy, Values
from user_world import UserWorld

from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.reference import owner_sums
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.studies import StudyRow

Floats = NDArray[np.float64]


def factor_records(
    count: int, d: int, spreads: Sequence[float], seed: int = 7, offset: float = 0.02
) -> Floats:
    """Records within ±1 that vary along a few directions, and a little everywhere.

    Args:
        spreads: the standard deviations along these directions.
        offset: how far the mean of a feature usually is from 0.
    """
    rng = np.random.default_rng(seed)  # noqa: TID251  # data, not noise
    directions = np.linalg.qr(rng.normal(size=(d, len(spreads))))[0].T
    scores = rng.normal(size=(count, len(spreads))) * spreads
    mean = rng.normal(size=d) * offset
    records: Floats = np.clip(scores @ directions + 0.01 * rng.normal(size=(count, d)) + mean, -1, 1)
    return records


def terms(d: int, **changes: Any) -> dict[str, Any]:
    """The members of a draft that all rounds share."""
    return {
        "features": [{"name": f"f{i}", "lower": -1, "upper": 1} for i in range(d)],
        "suite": "pads",
        "missing": "midpoint",
        "clip_norm": "0.8",
        "epsilon": 30,
        "delta": "0.00001",
        "max_records": 5000,
        "max_owners": 3,
    } | changes


def share(manifest: Manifest, records: Floats, components: Floats | None = None) -> Values:
    """The sums of an owner over its records, before noise."""
    columns = {name: records[:, i] for i, name in enumerate(manifest.encoded_names)}
    encoded = RecordEncoder(manifest).encode(columns)
    projection = projection_of(manifest, components)
    count, *rest = owner_sums(manifest.figures, encoded.z, encoded.long, projection)
    return Values(count, rest, [])


def deliver(study: OpenStudy, records: Floats, components: Floats | None = None) -> None:
    """Every owner of the study delivers its part of the records."""
    owners = study.world.owners
    for owner, part in zip(owners, np.array_split(records, len(owners)), strict=True):
        study.deliver(owner, share(study.manifest, part, components))


def run_round(user: UserWorld, records: Floats, components: Floats | None = None, **draft: Any) -> StudyRow:
    """A study from its draft to its result."""
    publish = draft.setdefault("publish", False)
    row = user.advance_to(user.create(**draft), Stage.OPEN)
    deliver(user.opened(row), records, components)
    return user.advance_to(row, Stage.PUBLISHED if publish else Stage.FITTED)
