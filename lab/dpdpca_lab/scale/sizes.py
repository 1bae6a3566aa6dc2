"""How many bytes messages have. Each size is of a message that this version makes, so none is measured."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np

from dpdpca_lab.benchmarks.phases import Size
from dpdpca_protocol.messages.log import LogEntry
from dpdpca_protocol.messages.share import CHUNK_OVERHEAD_BYTES, CohortMember, ShareStatement
from dpdpca_protocol.messages.study_messages import Enrolment, SealedComponents
from dpdpca_protocol.messages.transcript import FIRST, Event
from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.suite import PadsSuite
from dpdpca_protocol.result.components import Components, EncodedSpace
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import PadsKeyTerms, Participant, Party, ProxyParty
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.terms.wide import ENTRY_LIMIT
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.bodies import OwnerInStudy, PartyBody
from dpdpca_user.planning.draft import complete_draft

_NAME = "Owner 1,000,000"
_STUDY, _DIGEST = StudyId.of(b"sizes"), Digest.of(b"sizes")
_TIME = datetime(2026, 1, 1, tzinfo=UTC)
_TIME_TEXT = "2026-01-01T00:00:00Z"
_HEX_OF_A_BYTE = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of messages.

    Attributes:
        share, chunk: what an owner sends besides its values, for a share under pads and for each chunk.
        pad: the part of a share that a study under Paillier lacks.
        told: what the data user receives about each owner, besides a digest for each chunk.
        digest: of a chunk, in the statement about the share.
        manifest: what a manifest has for any number of features and owners.
        feature: of a manifest or a list, for each feature: a site of the genome with a centre.
        blinded: of a manifest, for each owner of a blinded study.
        entry: of a lift's manifest, for each number of its matrix, at most.
        party, proved: of the list of enrolled parties, for each, without and with the statement of its keys.
        seen: of what the proxy says of a study, for each owner that is in it.
        key: of the published components of a lift, for each owner.
        copied: of the published components of a full matrix, for each owner and feature, if it is one
            component.
        ciphertext, packed: of a Paillier ciphertext, and the values in it.
    """

    share: float
    chunk: float
    pad: float
    told: float
    digest: float
    manifest: float
    feature: float
    blinded: float
    entry: float
    party: float
    proved: float
    seen: float
    key: float
    copied: float
    ciphertext: float
    packed: float


@cache
def sizes() -> Sizes:
    """The sizes of this version's messages."""
    owner, packed = IdentityKey.generate(), Size(200, 2, 3072, ReleaseKind.JOINT, 1, 1).figures
    share, manifest = _share(owner, 0), manifest_of(1, owner)
    feature = _in_a_list(manifest.features[0].to_body())
    party = PartyBody(
        ed25519="00" * 32, name=_NAME, role="owner", enrolled_at=_TIME_TEXT, party="00" * 32, successor=None
    ).model_dump(exclude={"statement"})
    enrolment = Enrolment("owner", _NAME, owner.public, bytes(32)).sign(owner)
    seen = OwnerInStudy(name=_NAME, owner="00" * 32, state="complete", version=1)
    return Sizes(
        share=share,
        chunk=float(CHUNK_OVERHEAD_BYTES),
        pad=share - _share(owner, 0, has_pad=False),
        told=share + _event(owner),
        digest=_share(owner, 3) - _share(owner, 2),
        manifest=len(sign_manifest(manifest, owner).encoded) - feature,
        feature=feature,
        blinded=_in_a_list(Participant(_NAME, bytes(32), bytes(32)).to_body()),
        entry=len(f"{1 - ENTRY_LIMIT},"),
        party=_in_a_list(party),
        proved=_in_a_list(party | {"statement": parse_canonical(enrolment.encoded)}),
        seen=_in_a_list(seen.model_dump()),
        key=_components(owner, 2) - _components(owner, 1),
        copied=_HEX_OF_A_BYTE * (_one_component(2) - _one_component(1)),
        ciphertext=packed.share_bytes / packed.ciphertext_count,
        packed=packed.value_count / packed.ciphertext_count,
    )


def _in_a_list(body: dict[str, Any]) -> float:
    """With the comma after it."""
    return len(canonical_json(body)) + 1.0


def _share(owner: IdentityKey, chunks: int, *, has_pad: bool = True) -> float:
    """The statement about a share of so many chunks."""
    begun = PadsSuite(PadsSecret.generate(OS_RANDOMNESS).public, _STUDY, 1).begin(
        owner.public.party_id, 1, OS_RANDOMNESS
    )
    public, pad = owner.public, begun.pad if has_pad else None
    said = ShareStatement(
        _STUDY, public.ed25519, 1, (_DIGEST,) * chunks, public.sealing_key, _DIGEST, log=_DIGEST, pad=pad
    )
    return float(len(said.sign(owner).encoded))


def _event(proxy: IdentityKey) -> float:
    """What transcript and log of the proxy say of a share."""
    member = CohortMember(PartyId.of(b"sizes"), 1, _DIGEST)
    event = Event(_STUDY, 99_999, FIRST, _TIME_TEXT, "receipt", member.to_body()).sign(proxy)
    entry = LogEntry(99_999, _DIGEST, _TIME, "event", _DIGEST)
    return len(event.encoded) + 1 + _in_a_list(entry.to_body())


def manifest_of(features: int, user: IdentityKey) -> Manifest:
    """A joint study of so many sites of the genome, under pads, that anybody may join."""
    proxy = IdentityKey.generate("proxy").public
    sites = [f"12:{10_000_000 + number}:A:G" for number in range(features)]
    return complete_draft(
        {
            "title": "Sizes",
            "purpose": "To measure.",
            "features": [{"name": name, "lower": 0, "upper": 2, "centre": "0.4321"} for name in sites],
            "clip_norm": 1,
            "release": "joint",
            "epsilon": 1,
            "min_records": 1,
            "max_records": 100_000,
            "min_owners": 2,
            "max_owners": 100_000,
        },
        Party("Institute", user.public.ed25519),
        ProxyParty("Relay", "https://relay.example.org", proxy.ed25519, proxy.sealing_key),
        [],
        PadsKeyTerms(PadsSecret.generate(OS_RANDOMNESS).public),
        closes_at=_TIME,
    )


def _components(owner: IdentityKey, owners: int) -> float:
    """The statement about components that are there once, with a key for each owner."""
    keys = {PartyId.of(b"%d" % number): owner.public.sealing_key for number in range(owners)}
    return float(len(SealedComponents.seal_once(_STUDY, b"sizes", keys).sign(owner).encoded))


def _one_component(features: int) -> float:
    """The first component of a full matrix, before it is sealed to an owner."""
    one, each = np.ones(1), np.ones(features)
    space = EncodedSpace(("12:10000000:A:G",) * features, each, each, False)
    found = Components(
        space=space,
        count=1,
        vectors=each[None, :],
        eigenvalues=one,
        noise_edges=one,
        captured=one,
        signals=one,
        overlaps=one,
        noise_scale=1.0,
        noise_edge=1.0,
        total_variance=1.0,
        mean=each,
    )
    return float(len(encode_components(_STUDY, found)))
