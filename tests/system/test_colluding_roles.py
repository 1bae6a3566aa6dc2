"""Proxy, data user and half of the owners work together in a whole study, with all that their processes have.

The test hands the attack their keys, the secret of the study out of the data user's database, and everything
that owners sent to the proxy. Without blinding it gives the exact values of every other share. With blinding
it gives uniform values whose sum is that of the honest owners (docs/claims.md, C14).
"""

import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from collusion import looks_uniform, undo, wrapped
from federation.records import draft
from federation.relay import Relay, relaying
from federation.world import Federation, Owner, User
from folders import files_below
from promises import Promise

from dpdpca_owner.home import OwnerHome
from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.share_chunks import share_values
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.pads.masks import pair_keys
from dpdpca_protocol.pads.streams import PadKey
from dpdpca_protocol.release.suite import CohortShare
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.salts import unsalted
from dpdpca_protocol.wire.sealing import chunk_info, open_sealed
from dpdpca_protocol.wire.signing import IdentityKey, verify_statement

COLUMNS, RECORDS = 60, 80
HONEST = 2
TERMS = {
    "features": [{"name": f"c{index}", "lower": 0, "upper": 1} for index in range(COLUMNS)],
    "clip_norm": 5,
    "min_owners": 4,
    "max_colluding": 2,
    "noise_by": "owners",
    "closing": "when-complete",
}
BLINDED = {"blinding": "pairwise"}
OPEN = {"suite": "pads", "max_owners": 4}


@dataclass(frozen=True)
class Sent:
    """What one owner sent: the sealed chunks, and its signed statement."""

    sealed: list[bytes]
    statement: bytes


@dataclass(frozen=True)
class Loot:
    """What the attackers have together."""

    signed: SignedManifest
    secret: bytes
    proxy: IdentityKey
    colluding: list[IdentityKey]

    def values(self, sent: Sent) -> list[int]:
        """The attack on one share."""
        study = self.signed.study_id
        said = ShareStatement.parse(verify_statement("share", sent.statement))
        share = CohortShare(PartyId.of(said.owner), said.version, said.pad)
        contents = [
            unsalted(
                open_sealed(
                    body, self.proxy.opening_key, chunk_info(study, share.owner, share.version, index)
                )
            )
            for index, body in enumerate(sent.sealed)
        ]
        shared = [pair for key in self.colluding for pair in shared_with(self.signed, key, share.owner)]
        return undo(self.signed.suite, self.secret, contents, share, shared)


def shared_with(signed: SignedManifest, key: IdentityKey, other: PartyId) -> tuple[PadKey, ...]:
    """The key of two owners of a blinded study, from the private keys of the first; none without blinding."""
    if not signed.manifest.is_blinded:
        return ()
    named = {PartyId.of(each.ed25519): each.x25519 or b"" for each in signed.manifest.participants}
    return pair_keys(key.blinding_key, key.public.party_id, {other: named[other]}, signed.study_id)


@pytest.mark.parametrize("terms", [BLINDED, OPEN], ids=["blinded", "not blinded"])
def test_what_the_operators_and_half_of_the_owners_get_of_the_others(
    federation: Federation, tmp_path: Path, promise: Promise, terms: dict[str, Any]
) -> None:
    user, kind = federation.user, "blinded" if terms is BLINDED else "open"
    with relaying(federation.relay_port, federation.port) as relay:
        owners = [federation.new_owner(f"Hospital {x}, {kind}", federation.relay_url) for x in "ABCD"]
        study = user.create_study(
            draft(title=kind, participants=[owner.name for owner in owners], **TERMS, **terms)
        )
        secret = secret_of(user, study)
        data = [write_wide(tmp_path / f"{seed}.csv", seed) for seed in range(4)]
        sent = [join(relay, federation, owner, study, file) for owner, file in zip(owners, data, strict=True)]
    facts = user.wait_state(study, "published")
    assert facts["state"] == "published"
    assert user.ask("user", "result", study)["records"] == 4 * RECORDS

    manifest = federation.client(user.key()).manifest(StudyId.parse(study))
    signed = open_manifest(manifest)
    proxy = IdentityKey.from_pem((federation.proxy_home / "identity.pem").read_bytes())
    loot = Loot(signed, secret, proxy, [owner.key() for owner in owners[HONEST:]])
    exact = [values_of(signed, owner, file) for owner, file in zip(owners, data, strict=True)]
    views = [loot.values(each) for each in sent[:HONEST]]
    if terms is OPEN:
        assert views == exact[:HONEST]
    else:
        total = [sum(column) for column in zip(*exact[:HONEST], strict=True)]
        assert wrapped([sum(column) for column in zip(*views, strict=True)]) == total
        assert all(map(looks_uniform, views))
        assert not any(map(looks_uniform, exact))
        (pair,) = shared_with(signed, owners[0].key(), owners[1].key().public.party_id)
        machines = [federation.proxy_home, user.home, *(owner.home for owner in owners[HONEST:])]
        hidden = [pair.key, *(owner.key().blinding_key.private_bytes_raw() for owner in owners[:HONEST])]
        kept = [path.read_bytes() for machine in machines for path in files_below(machine)]
        for needle in hidden:
            assert not any(needle in content or needle.hex().encode() in content for content in kept)
    promise(
        "P15",
        counted=f"{HONEST} shares of a whole {kind} study, against proxy, data user and {4 - HONEST} owners",
        result="exact, as stated" if terms is OPEN else "uniform but for their sum",
    )


def join(relay: Relay, federation: Federation, owner: Owner, study: str, data: Path) -> Sent:
    before = len(relay.seen)
    owner.join(f"{federation.relay_url}/{study}", data)
    new = list(zip(relay.seen[before:], relay.bodies[before:], strict=True))
    chunks = [body for (method, path), body in new if method == "PUT" and "/share/chunks/" in path]
    (statement,) = [body for (_, path), body in new if path.endswith("/share/complete")]
    return Sent(chunks, statement)


def secret_of(user: User, study: str) -> bytes:
    """The data user keeps it in the clear where it has no passphrase; the byte before it says so."""
    with sqlite3.connect(f"file:{user.home / 'user.sqlite3'}?mode=ro", uri=True) as database:
        (stored,) = database.execute("SELECT secret FROM studies WHERE study = ?", (study,)).fetchone()
    database.close()
    return bytes(stored[1:])


def values_of(signed: SignedManifest, owner: Owner, data: Path) -> list[int]:
    """The values of the owner's share, with its own part of the noise, from its records and its ledger."""
    key = OwnerHome(owner.home).ledger.key()
    contribution = read_contribution(DataLocation(str(data)), signed.manifest, key)
    values: list[int] = share_values(signed, contribution.sums, contribution.own_noise()).tolist()
    return values


def write_wide(path: Path, seed: int) -> Path:
    source = random.Random(seed)
    rows = [",".join(f"c{index}" for index in range(COLUMNS))]
    rows += [",".join(f"{source.random():.3f}" for _ in range(COLUMNS)) for _ in range(RECORDS)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path
