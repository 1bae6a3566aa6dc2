"""A draft, the records of three owners, and the protocol of a joint study in one process, pads included.

In a real study these are five processes of five organisations, and nobody sees more than its own part. This
program shows what each part computes. The masks that each two owners of a blinded study share are left out:
they vanish in the sum. Run: python examples/federation.py
"""

from datetime import UTC, datetime

import numpy as np

from dpdpca_protocol.privacy.mechanisms.samplers import EXACT
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import Pads
from dpdpca_protocol.result.components import EncodedSpace, fit_components
from dpdpca_user.planning.lint import lint_alone

# What a data user writes: the terms of the study.
DRAFT = {
    "title": "Blood pressure and weight",
    "purpose": "Which measurements vary together?",
    "release": "joint",
    "participants": ["Hospital A", "Hospital B", "Hospital C"],
    "blinding": "pairwise",
    "max_colluding": 1,
    "epsilon": 1,
    "clip_norm": 0.9,
    "max_records": 4000,
    "features": [
        {"name": "age", "unit": "years", "lower": 18, "upper": 100},
        {"name": "weight", "unit": "kg", "lower": 30, "upper": 150},
        {"name": "pressure", "unit": "mmHg", "lower": 80, "upper": 200},
    ],
}

source = np.random.default_rng()


def records(count: int) -> dict[str, np.ndarray]:
    """Made-up patients of one hospital, by column."""
    age, weight = source.uniform(20, 90, count), source.normal(80, 15, count)
    return {"age": age, "weight": weight, "pressure": 70 + age / 2 + weight / 4 + source.normal(0, 8, count)}


owners = [records(1500), records(1000), records(800)]

# The complete terms: noise scale and all other figures follow from the draft.
terms = lint_alone(DRAFT, datetime.now(UTC))

# Owners encode, add up, draw their part of the noise and hide everything under pads. The proxy adds up what
# they sent. The data user takes the pads off the sum.
released = run_study(terms, owners, OS_RANDOMNESS, EXACT, Pads(OS_RANDOMNESS))
components = fit_components(released, terms.figures, EncodedSpace.of(terms), owners=len(owners))

print("records:", components.count)
print("components above the noise:", components.trusted_count, "of", components.component_count)
for name, loading in zip(components.space.names, components.vectors[0], strict=True):
    print(f"first component, {name}: {loading:.2f}")
