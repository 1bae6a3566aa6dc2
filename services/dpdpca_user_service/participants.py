"""The owners that a study names: chosen when a draft is submitted, so that a person sees whom it will name.

A draft names owners by their names at the proxy, or all of them with `participants = "enrolled"`. The proxy's
list of parties says which keys these are. The names and keys are stored with the draft before the answer
shows them, and the manifest names exactly these keys, or keys to which their owners' signed rotations lead.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpdpca_protocol.messages.parties import signed_keys
from dpdpca_protocol.messages.rotation import follow_rotations
from dpdpca_protocol.terms.members import ENROLLED
from dpdpca_protocol.terms.parties import Participant
from dpdpca_protocol.wire.signing import Identity
from dpdpca_runtime.http.answers import PartyFacts
from dpdpca_runtime.words import fingerprint_words
from dpdpca_user.home import EnrolledProxy
from dpdpca_user.planning.draft import is_blinded_draft, named_participants
from dpdpca_user_service.service import UserService


def with_chosen_participants(
    service: UserService, proxy: EnrolledProxy, draft: Mapping[str, Any]
) -> dict[str, Any]:
    """The draft with a name and a key for each owner that it names, as the proxy lists them now.

    The proxy is asked only if the draft has a name without a key.

    Raises:
        PolicyError: `manifest-refused`, a name is not that of exactly one owner, or nobody is enrolled.
        UnavailableError, AuthenticationError: the proxy cannot be asked.
    """
    drafted, blinded = draft.get("participants", []), is_blinded_draft(draft)
    if drafted != ENROLLED and not any(isinstance(entry, str) for entry in drafted):
        return dict(draft)
    with service.connect(proxy, service.key) as client:
        known = enrolled_owners(client.parties(with_statements=blinded))
    return {**draft, "participants": [each.to_body() for each in named_participants(drafted, known)]}


def enrolled_owners(listed: Iterable[PartyFacts]) -> list[Participant]:
    """The owners in a proxy's list of parties, without keys that were replaced.

    If the list has the statements in which they signed their keys, they get their keys for blinding.

    Raises:
        MessageError, AuthenticationError, CryptographicError: such a statement does not hold.
    """
    return [
        Participant(party.name, party.ed25519, _blinding_key(party))
        for party in listed
        if party.role == "owner" and party.successor is None
    ]


def _blinding_key(party: PartyFacts) -> bytes | None:
    return None if party.statement is None else signed_keys(party.statement, party.ed25519).x25519


def names_replaced_key(draft: Mapping[str, Any], listed: Iterable[PartyFacts]) -> bool:
    """Whether the draft names a key that its owner has replaced."""
    replaced = {party.ed25519.hex() for party in listed if party.successor is not None}
    return any(entry["ed25519"] in replaced for entry in _with_keys(draft))


def with_current_keys(draft: Mapping[str, Any], rotations: Sequence[bytes]) -> dict[str, Any]:
    """The draft with the keys to which owners' signed rotations lead.

    Raises:
        MessageError, AuthenticationError: a chain of rotations is invalid.
    """
    named = []
    for entry in draft["participants"]:
        if isinstance(entry, Mapping):
            chain = follow_rotations(rotations, "owner", bytes.fromhex(entry["ed25519"]))
            named.append({**entry, **_replaced_keys(entry, chain[-1].identity)} if chain else dict(entry))
        else:
            named.append(entry)
    return {**draft, "participants": named}


def _replaced_keys(entry: Mapping[str, Any], now: Identity) -> dict[str, str]:
    keys = {"ed25519": now.ed25519.hex()}
    return keys | {"x25519": now.blinding_key.hex()} if "x25519" in entry else keys


def participants_facts(draft: Mapping[str, Any]) -> list[dict[str, str]]:
    """Name, key and words of each owner that a stored draft names with its key, as JSON."""
    return [
        {
            "name": entry["name"],
            "ed25519": entry["ed25519"],
            "words": fingerprint_words(bytes.fromhex(entry["ed25519"])),
        }
        for entry in _with_keys(draft)
    ]


def _with_keys(draft: Mapping[str, Any]) -> list[Mapping[str, str]]:
    drafted = draft.get("participants", [])
    return [entry for entry in drafted if isinstance(entry, Mapping)]
