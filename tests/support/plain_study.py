"""A finished study of four columns in plain integers: what the data user would have after decryption."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from study_parties import key_for

from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.release import NoisyScatter
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


def made_people(count: int = 4000) -> dict[str, list[Any]]:
    """Records of the four features, and a column that nobody asks for."""
    source = random.Random(5)
    height = [source.gauss(170, 12) for _ in range(count)]
    return {
        "age": [source.uniform(5, 95) for _ in height],
        "<b>sex</b>": ["m" if h + source.gauss(0, 15) > 170 else "f" for h in height],
        "weight": [0.9 * h - 80 + source.gauss(0, 8) for h in height],
        "height": height,
        "not asked for": ["secret"] * len(height),
    }


def plain_model(
    key: SecretKey,
    people: dict[str, list[Any]],
    *,
    user: str = "Institute",
    proxy: str = "Relay",
    owners: Sequence[str] = ("Hospital <A>", "Hospital <B>", "Hospital <C>"),
    noise: Samplers = EXACT,
    **changes: Any,
) -> Model:
    """The model of a study on `people`, its parties under these names."""
    identity, relay = IdentityKey.generate(), IdentityKey.generate()
    draft: dict[str, Any] = {
        "title": "People <script>alert(1)</script>",
        "purpose": "To see what varies together.",
        "features": FEATURES,
        "clip_norm": 1,
        "release": "joint",
        "epsilon": 2,
        "max_records": 5000,
        "missing": "midpoint",
        "participants": list(owners),
        "closes_at": datetime(2030, 1, 1, tzinfo=UTC),
    }
    manifest = complete_draft(
        draft | changes,
        Party(user, identity.public.ed25519),
        ProxyParty(proxy, "http://127.0.0.1:8080", relay.public.ed25519, relay.public.sealing_key),
        [Participant(name, IdentityKey.generate().public.ed25519) for name in owners],
        key_for(draft | changes, key, prove_key(key, identity.public.ed25519)),
    )
    figures = manifest.figures
    noisy = run_study(manifest, [people], OS_RANDOMNESS, noise, UNENCRYPTED)
    assert isinstance(noisy, NoisyScatter)
    components = fit_components(noisy, figures, EncodedSpace.of(manifest), owners=len(owners))
    return Model(
        manifest.study_id,
        manifest,
        components,
        Provenance(
            manifest="aa" * 32,
            release="bb" * 32,
            cohort="cc" * 32,
            owners=tuple(
                Contribution(f"{index:064x}", name, 1, f"{index:064x}") for index, name in enumerate(owners)
            ),
            trail=(TrailEntry("2029-01-01T00:00:00Z", "manifest", "aa" * 32),),
            seconds={"key": 1.5, "decrypt": 0.25},
        ),
        reliability=assess_release(noisy, figures, components, OS_RANDOMNESS, owners=len(owners)),
    )
