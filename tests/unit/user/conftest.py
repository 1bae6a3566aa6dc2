"""A finished study of four columns in plain integers: what the data user would have after decryption."""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from dpdpca_protocol.paillier.keys import SecretKey, generate_secret_key
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.release.release import NoisyScatter, triangle_index
from dpdpca_protocol.result.components import EncodedSpace, fit_components
from dpdpca_protocol.terms.parties import Participant, Party, ProxyParty
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_user.planning.draft import complete_draft
from dpdpca_user.results.model import Contribution, Model, Provenance, TrailEntry
from dpdpca_user.results.reliability import assess_release

FEATURES: list[dict[str, Any]] = [
    {"name": "height", "lower": 100, "upper": 220, "unit": "cm"},
    {"name": "weight", "lower": 20, "upper": 180, "centre": 75},
    {"name": "<b>sex</b>", "levels": ["f", "m"]},
    {"name": "age", "lower": 0, "upper": 110},
]


@pytest.fixture(scope="session")
def real_key() -> SecretKey:
    return generate_secret_key(2048, OS_RANDOMNESS)


@pytest.fixture(scope="session")
def people() -> dict[str, list[Any]]:
    source = random.Random(5)
    height = [source.gauss(170, 12) for _ in range(4000)]
    return {
        "age": [source.uniform(5, 95) for _ in height],
        "<b>sex</b>": ["m" if h + source.gauss(0, 15) > 170 else "f" for h in height],
        "weight": [0.9 * h - 80 + source.gauss(0, 8) for h in height],
        "height": height,
        "not asked for": ["secret"] * len(height),
    }


@pytest.fixture(scope="session")
def make_model(real_key: SecretKey, people: dict[str, list[Any]]) -> Callable[..., Model]:
    """make_model(**changes of the draft): the model of a study on `people`."""
    user, proxy = IdentityKey.generate(), IdentityKey.generate()
    owners = [IdentityKey.generate() for _ in range(3)]
    proof = prove_key(real_key, user.public.ed25519)

    def make(**changes: Any) -> Model:
        draft: dict[str, Any] = {
            "title": "People <script>alert(1)</script>",
            "purpose": "To see what varies together.",
            "features": FEATURES,
            "clip_norm": 1,
            "release": "joint",
            "epsilon": 2,
            "max_records": 5000,
            "missing": "midpoint",
            "closes_at": datetime(2030, 1, 1, tzinfo=UTC),
        }
        manifest = complete_draft(
            draft | changes,
            Party("Institute", user.public.ed25519, user.public.x25519),
            ProxyParty("Relay", "http://127.0.0.1:8080", proxy.public.ed25519, proxy.public.x25519),
            [
                Participant(f"Hospital <{letter}>", owner.public.ed25519)
                for letter, owner in zip("ABC", owners, strict=True)
            ],
            real_key.public,
            proof,
        )
        figures = manifest.figures
        moments = SecondMoments(figures.encoded_features, figures.record_bound)
        moments.add(RecordEncoder(manifest).encode(people).z)
        d = figures.encoded_features
        if manifest.release == "joint":
            noise = figures.mechanism.draw(1)
        else:
            noise = [0] * (1 + d) + figures.mechanism.draw(1)
        n, *rest = [value + drawn for value, drawn in zip(moments.values(), noise, strict=True)]
        total, triangle = rest[:d], rest[d:]
        scaled = tuple(
            tuple(
                n * triangle[triangle_index(d, min(i, j), max(i, j))] - total[i] * total[j] for j in range(d)
            )
            for i in range(d)
        )
        noisy = NoisyScatter(n, scaled, tuple(total) if manifest.release == "joint" else None)
        components = fit_components(noisy, figures, EncodedSpace.of(manifest), owners=3)
        return Model(
            manifest.study_id,
            manifest,
            components,
            Provenance(
                manifest="aa" * 32,
                release="bb" * 32,
                cohort="cc" * 32,
                owners=tuple(
                    Contribution(f"{index:064x}", f"Hospital <{letter}>", 1, f"{index:064x}")
                    for index, letter in enumerate("ABC")
                ),
                trail=(TrailEntry("2029-01-01T00:00:00Z", "manifest", "aa" * 32),),
                seconds={"key": 1.5, "decrypt": 0.25},
            ),
            reliability=assess_release(noisy, figures, components, OS_RANDOMNESS, owners=3),
        )

    return make


@pytest.fixture(scope="session")
def joint_model(make_model: Callable[..., Model]) -> Model:
    return make_model()


@pytest.fixture(scope="session")
def masked_model(make_model: Callable[..., Model]) -> Model:
    return make_model(release="masked")


@pytest.fixture
def encoded_people(people: dict[str, list[Any]]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """The first rows as the d encoded columns, in the manifest's order."""
    sex = people["<b>sex</b>"][:50]
    return np.column_stack(
        [
            people["height"][:50],
            people["weight"][:50],
            [float(value == "f") for value in sex],
            [float(value == "m") for value in sex],
            people["age"][:50],
        ]
    )
