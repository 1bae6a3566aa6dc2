"""Manifests with one fault, at each role: every unfit modulus and false proof of the zoo; noise of the lab.

Owner, proxy and data user refuse them by the code that they open manifests with, for the same reason.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from owner_world import make_owner_home
from promises import Promise
from proxy_world import ProxyWorld

from dpdpca_owner.home import OwnerHome
from dpdpca_owner.study_checks import open_study
from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.paillier import proof as proof_module
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.terms.parties import KeyTerms, Participant, Party, ProxyParty
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import sign_statement
from dpdpca_proxy.enrolment import party_of
from dpdpca_proxy.studies import accept_manifest
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_user.evidence import verify_manifest
from dpdpca_user.planning.draft import complete_draft

FOLDER = Path(__file__).parent
BAD = [
    operation
    for operation in json.loads((FOLDER / "key_zoo.json").read_text(encoding="utf-8"))["operations"]
    if operation["step"] == "check-public-key"
    and not operation["must_succeed"]
    # What was agreed on or seen before is each role's own memory, and the shipped list is emptied below.
    and not (operation["seen"] or operation.get("bits") or operation.get("published"))
]
ODD_LENGTHS = [operation for operation in BAD if int(operation["modulus"], 16).bit_length() % 8]
"""A manifest cannot even state these: they are no whole number of bytes."""
ZOO = [operation for operation in BAD if operation not in ODD_LENGTHS]


class OneManifest:
    """A proxy that serves this manifest under any id."""

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded

    def manifest(self, _study: StudyId) -> bytes:
        return self.encoded

    def feature_list(self, _digest: Digest) -> bytes:
        raise AssertionError("these manifests name no list")


def manifest_of(world: ProxyWorld, operation: dict[str, Any]) -> tuple[bytes, StudyId]:
    """A signed manifest with the operation's key; its figures are those of that key."""
    user, proxy = world.user.public, world.proxy.key.public
    draft = world.manifest(3).to_body()
    manifest = complete_draft(
        {
            "title": "t", "purpose": "p", "features": draft["features"], "clip_norm": 1, "release": "joint",
            "suite": "paillier",
            "epsilon": 1.0, "max_records": 5000, "participants": "enrolled",
        },
        Party("Institute", user.ed25519),
        ProxyParty(world.proxy.settings.name, world.url, proxy.ed25519, proxy.sealing_key),
        [
            Participant(f"Hospital {letter}", owner.public.ed25519)
            for letter, owner in zip("ABC", world.owners, strict=True)
        ],
        KeyTerms(int(operation["modulus"], 16), tuple(int(root, 16) for root in operation["proof"])),
        closes_at=world.manifest(3).closes_at,
    )  # fmt: skip
    return sign_manifest(manifest, world.user).encoded, manifest.study_id


def refusal(act: Callable[[], object]) -> DpdpcaError:
    with pytest.raises(DpdpcaError) as refused:
        act()
    return refused.value


RefusedAlike = Callable[[bytes, StudyId], DpdpcaError]


@pytest.fixture
def refused_alike(world: ProxyWorld, tmp_path: Path) -> RefusedAlike:
    """The one refusal that all three roles have for a manifest."""
    home = OwnerHome(make_owner_home(tmp_path / "owner", world), tmp_path / "witness")
    user, proxy = world.user.public, world.proxy.key.public
    caller = party_of(world.proxy, user.party_id)
    assert caller is not None

    def refused(encoded: bytes, study: StudyId) -> DpdpcaError:
        address = StudyAddress(world.url, study)
        refusals = [
            refusal(lambda: open_study(address, home, OneManifest(encoded))),  # type: ignore[arg-type] # all it asks
            refusal(lambda: accept_manifest(world.proxy, caller, encoded)),
            refusal(lambda: verify_manifest(encoded, study, [proxy.ed25519], [user.ed25519])),
        ]
        assert len({(error.slug, error.problem) for error in refusals}) == 1
        return refusals[0]

    return refused


def test_each_role_refuses_each_bad_key_for_its_reason(
    world: ProxyWorld, refused_alike: RefusedAlike, promise: Promise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_module, "PUBLISHED_MODULI", frozenset())
    object.__setattr__(world.proxy, "key_rules", KeyRules(2048))
    for operation in ZOO:
        error = refused_alike(*manifest_of(world, operation))
        assert error.slug == "unfit-modulus", operation["name"]
        assert operation["reason"] in error.problem, operation["name"]
    for operation in ODD_LENGTHS:
        body = world.manifest(3).to_body()
        body["key"] |= {"modulus": operation["modulus"]}
        statement = sign_statement("manifest", body, world.user)
        assert "modulus" in refused_alike(statement.encoded, StudyId(statement.digest)).problem
    keys = len(ZOO) + len(ODD_LENGTHS)
    assert keys >= 20
    promise("P22", counted=f"{keys} bad keys at owner, proxy and user", result="each refused for one reason")


@pytest.mark.parametrize(
    ("member", "name"), [("mechanism", "wishart"), ("mechanism", "mod-sulq"), ("calibration", "as-published")]
)
def test_each_role_refuses_noise_without_a_proof_of_privacy(
    world: ProxyWorld, refused_alike: RefusedAlike, member: str, name: str
) -> None:
    statement = sign_statement("manifest", world.manifest(3).to_body() | {member: name}, world.user)
    error = refused_alike(statement.encoded, StudyId(statement.digest))
    assert error.slug == "manifest-refused"
    assert error.problem == f"{member} {name} has no proof of privacy here; it exists only in the lab"
    assert "dpdpca experiments list" in error.next_step
