"""What an owner checks before it joins a blinded study: that the keys of the other owners are genuine.

The data user writes the manifest, so the manifest proves nothing about these keys. Each owner has signed its
key for blinding in its enrolment or in a rotation, with the key whose words people compare.
"""

from collections.abc import Sequence

from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.home import Owner
from dpdpca_protocol.errors import AuthenticationError, ConflictError, PolicyError
from dpdpca_protocol.messages.parties import signed_keys
from dpdpca_protocol.messages.rotation import follow_rotations
from dpdpca_protocol.messages.transcript import verify_transcript
from dpdpca_protocol.pads.masks import pair_keys
from dpdpca_protocol.pads.streams import PadKey
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import Participant
from dpdpca_protocol.wire.fields import read_time
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_runtime.http.answers import PartyFacts
from dpdpca_runtime.http.client import ProxyClient


def check_blinding_keys(manifest: Manifest, listed: Sequence[PartyFacts], client: ProxyClient) -> None:
    """Check that each participant has signed its key for blinding, and had not given up its keys.

    Args:
        manifest: of a blinded study.
        listed: the proxy's parties, with their statements.
        client: asks for the rotations, and for the time at which the study was created.

    Raises:
        AuthenticationError: `blinding-key-unproved`, or a signature does not hold.
        PolicyError: `participant-key-given-up`, a participant had replaced the named key before the study was
            created.
        MessageError: a statement is malformed.
    """
    shown = {party.ed25519: party.statement for party in listed if party.role == "owner"}
    for participant in manifest.participants:
        _check_signed(participant, shown.get(participant.ed25519))
    rotations = client.rotations()
    events = verify_transcript(
        client.transcript(manifest.study_id), manifest.study_id, manifest.proxy.ed25519
    )
    for participant in manifest.participants:
        following = follow_rotations(rotations, "owner", participant.ed25519)
        if following and (
            not events or read_time(following[0].time, "time") < read_time(events[0].time, "time")
        ):
            raise PolicyError(
                "participant-key-given-up",
                f"'{participant.name}' had replaced the named key before the study was created",
                "do not join; ask the data user for a new study",
            )


def check_not_recovered(ledger: Ledger, owner: Owner) -> None:
    """Raises PolicyError `recovered-ledger` if the ledger was recovered while the owner's key was in use.

    A recovered ledger may no longer know what was sent under this key.
    """
    if owner.key.public.party_id in ledger.stale_keys:
        raise PolicyError(
            "recovered-ledger",
            "this ledger was recovered, so it may not know what was sent in blinded studies under these keys",
            "run: dpdpca owner rotate; then ask the data user for a new study",
        )


def shared_keys(manifest: Manifest, owner: Owner) -> tuple[PadKey, ...]:
    """The keys that this owner shares with each other participant; empty unless the study is blinded.

    Raises:
        AuthenticationError: `blinding-key-unproved`, the manifest names another key than this owner's.
        CryptographicError: `unfit-blinding-key`.
    """
    if not manifest.is_blinded:
        return ()
    named = {PartyId.of(each.ed25519): each.x25519 or b"" for each in manifest.participants}
    mine = owner.key.public.party_id
    if named.pop(mine) != owner.key.public.blinding_key:
        raise _unproved(owner.name)
    return pair_keys(owner.key.blinding_key, mine, named, manifest.study_id)


def share_is_final() -> ConflictError:
    """The error for a second share of other values."""
    return ConflictError(
        "blinded-share-is-final",
        "a share of a blinded study cannot be replaced: two shares would show their exact difference",
        "give the records with which you joined, or withdraw, which ends the study for all owners",
    )


def plan_is_lost() -> ConflictError:
    """The error for a share whose plan is gone after something may have been sent."""
    return ConflictError(
        "blinded-plan-lost",
        "a part of this share may have been sent already, and this machine no longer has what it needs to"
        " send the same share again",
        "ask the data user for a new study; what this study costs stays booked",
    )


def _check_signed(participant: Participant, statement: bytes | None) -> None:
    if statement is None or signed_keys(statement, participant.ed25519).x25519 != participant.x25519:
        raise _unproved(participant.name)


def _unproved(name: str) -> AuthenticationError:
    return AuthenticationError(
        "blinding-key-unproved",
        f"the manifest names a key for blinding that '{name}' has not signed",
        "do not join; tell the data user and this owner",
    )
