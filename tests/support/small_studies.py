"""Terms and records of small studies, one of each kind of release.

Half-ranges and values have few binary digits, so that double precision encodes them without rounding twice,
and no record or difference is longer than the clip norm.
"""

from typing import Any

from reference_data import Seeded

FEATURES = [
    {"name": "a", "lower": -8, "upper": 24},
    {"name": "b", "lower": 0, "upper": 1, "centre": "0.25"},
    {"name": "c", "levels": ["x", "y"], "centre": ["0.5", "0.25"]},
]
TERMS: dict[str, Any] = {"features": FEATURES, "missing": "midpoint", "clip_norm": "2", "max_records": 100}
BLOCKS = dict.fromkeys(("norms", "pair-norms", "sum", "octaves", "far-pairs"), "0.2")
KINDS: dict[str, dict[str, Any]] = {
    "joint": TERMS | {"release": "joint"},
    "joint, owners' noise": TERMS | {"release": "joint", "noise_by": "owners"},
    "joint, laplace": TERMS | {"release": "joint", "mechanism": "laplace"},
    "masked": TERMS | {"release": "masked"},
    "masked, laplace": TERMS | {"release": "masked", "mechanism": "laplace"},
    "pairs": TERMS | {"release": "pairs"},
    "pairs, owners' noise": TERMS | {"release": "pairs", "noise_by": "owners"},
    "joint, clipping": TERMS | {"release": "joint", "clip_share": "0.05"},
    "pairs, clipping": TERMS | {"release": "pairs", "clip_share": "0.05", "noise_by": "owners"},
    "pre-study": TERMS | {"release": "pre-study", "blocks": BLOCKS},
    "pre-study, owners' noise": TERMS | {"release": "pre-study", "blocks": BLOCKS, "noise_by": "owners"},
}
CASES = KINDS | {
    f"{kind}, pads": terms | {"suite": "pads"} for kind, terms in KINDS.items() if terms["release"] == "joint"
}
"""Joint studies under both suites, masked ones under Paillier, and the others under pads."""


def records(seed: int, count: int) -> dict[str, Any]:
    """Some out of bounds, some missing."""
    source = Seeded(seed)
    numbers = [[source.below(641) / 16 - 12, source.below(20) / 16 - 0.125] for _ in range(count)]
    levels = [("x", "y", None)[source.below(3)] for _ in range(count)]
    return {"b": [b for _, b in numbers], "a": [a for a, _ in numbers], "c": levels}


OWNERS = [records(seed, count) for seed, count in ((1, 7), (2, 4), (3, 1))]
