"""Builders for a small study. Keys are made once a session and small: their size is the point elsewhere."""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from proxy_world import ProxyWorld, copy_with_generation
from study_parties import MakeManifest, Parties, key_for, under_paillier

from dpdpca_protocol.paillier.keys import KeyRules, SecretKey, generate_secret_key
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.privacy.mechanisms import BlockGaussian, Mechanism
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.terms.feature_list import FeatureLists, no_lists
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_user.planning.draft import complete_draft

pytest_plugins = ["declared_problems", "promises", "schema_of_drafts"]

# A slow machine is no fault of the code: time is measured in benchmarks, never asserted here.
settings.register_profile("dpdpca", deadline=None)
settings.load_profile("dpdpca")

TESTS = Path(__file__).parent
FOLDERS_OF_TEST_SYSTEM = {"crash", "statistical", "system"}
FOLDERS_OF_SHORT_FILES = {"docs", "hostile", "properties", "vectors"}
TOY_BITS = 512
CLOSES_AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Short files come last, so that no worker begins a long one when the others have ended."""
    for item in items:
        if folder_of(item) in FOLDERS_OF_TEST_SYSTEM:
            item.add_marker(pytest.mark.system)
    items.sort(key=lambda item: folder_of(item) in FOLDERS_OF_SHORT_FILES)


def folder_of(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


@pytest.fixture(scope="session", autouse=True)
def ledger_witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Owners' ledgers leave no trace in the state folder of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPDPCA_OWNER_WITNESS", str(tmp_path_factory.mktemp("witness")))
        yield


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A command that serves takes over the log of its process, which here is the process of all tests."""
    root, ours = logging.getLogger(), logging.getLogger("dpdpca")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    if root.handlers != handlers:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


@pytest.fixture(scope="session")
def parties() -> Parties:
    user = IdentityKey.generate()
    secret = generate_secret_key(TOY_BITS, OS_RANDOMNESS, rules=KeyRules(TOY_BITS))
    return Parties(
        user,
        IdentityKey.generate("proxy"),
        tuple(IdentityKey.generate() for _ in range(3)),
        secret,
        prove_key(secret, user.public.ed25519),
    )


@pytest.fixture(scope="session")
def toy_key(parties: Parties) -> SecretKey:
    return parties.secret


@pytest.fixture(scope="session")
def draft() -> dict[str, Any]:
    """A joint study of three numeric features; copy before changing."""
    return {
        "title": "Blood pressure and age",
        "purpose": "To see what varies together.",
        "features": [
            {"name": "age", "lower": 0, "upper": 100, "unit": "years"},
            {"name": "systolic", "lower": 60, "upper": 260, "centre": 120},
            {"name": "weight", "lower": "2.5", "upper": 250.5},
        ],
        "participants": "enrolled",
        "clip_norm": 1,
        "release": "joint",
        "epsilon": 1.0,
        "max_records": 5000,
        "closes_at": CLOSES_AT,
    }


@pytest.fixture(scope="session")
def make_manifest(parties: Parties, draft: dict[str, Any]) -> MakeManifest:
    """make_manifest(**changes of the draft), with the three owners named; None takes a member out."""

    def make(*, feature_lists: FeatureLists = no_lists, **changes: Any) -> Manifest:
        changed = under_paillier(
            {member: value for member, value in {**draft, **changes}.items() if value is not None}
        )
        return complete_draft(
            changed,
            parties.user_party,
            parties.proxy_party,
            parties.blinding_participants if "blinding" in changed else parties.participants,
            key_for(changed, parties.secret, parties.proof),
            feature_lists=feature_lists,
        )

    return make


@pytest.fixture
def stopped_world(tmp_path: Path, parties: Parties) -> Iterator[ProxyWorld]:
    """A proxy that a test starts itself, after it has changed what it wants changed."""
    world = ProxyWorld(tmp_path / "proxy", parties.user, list(parties.owners), parties.secret, parties.proof)
    yield world
    if world.is_running:
        world.stop()


@pytest.fixture(scope="session")
def enrolled_home(tmp_path_factory: pytest.TempPathFactory, parties: Parties) -> Path:
    """The home of a stopped proxy, at which the data user and the three owners are enrolled."""
    home = tmp_path_factory.mktemp("enrolled") / "proxy"
    world = ProxyWorld(home, parties.user, list(parties.owners), parties.secret, parties.proof)
    world.start()
    world.enrol_all()
    world.stop()
    return home


@pytest.fixture
def world(stopped_world: ProxyWorld, enrolled_home: Path) -> ProxyWorld:
    """A running proxy with toy keys; its data user and three owners are enrolled."""
    copy_with_generation(enrolled_home, stopped_world.home)
    stopped_world.start()
    return stopped_world


@pytest.fixture
def noiseless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies of this process draw noise of 0, so that a release has the exact sums."""
    for kind in (Mechanism, BlockGaussian):
        monkeypatch.setattr(kind, "draw", _silent(kind.draw))


def _silent(honest: Callable[[Any, int], list[int]]) -> Callable[[Any, int], list[int]]:
    return lambda self, count: [0] * len(honest(self, count))
