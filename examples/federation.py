"""A draft, the records of three owners, and the whole protocol in one process, encryption included.

In a real study these are five processes of five organisations, and nobody sees more than its own part. This
program shows what each part computes. Run: python examples/federation.py
"""

from datetime import UTC, datetime

import numpy as np

from dpdpca_protocol.paillier.keys import KeyRules, generate_secret_key
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import Paillier
from dpdpca_protocol.result.components import EncodedSpace, fit_components
from dpdpca_user.planning.lint import lint_alone

# What a data user writes: the terms of the study.
DRAFT = {
    "title": "Blood pressure and weight",
    "purpose": "Which measurements vary together?",
    "release": "joint",
    "participants": "enrolled",
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

# Owners encode and encrypt, the proxy adds up and adds noise, the data user decrypts. The short key is quick
# and only for a demonstration; the product takes no key below 2,048 bits.
key = generate_secret_key(512, OS_RANDOMNESS, rules=KeyRules(512))
released = run_study(terms, owners, OS_RANDOMNESS, EXACT, Paillier(key, OS_RANDOMNESS))
components = fit_components(released, terms.figures, EncodedSpace.of(terms))

print("records:", components.count)
print("components above the noise:", components.trusted_count, "of", components.component_count)
for name, loading in zip(components.space.names, components.vectors[0], strict=True):
    print(f"first component, {name}: {loading:.2f}")
