"""Access to this proxy: invitations, enrolled parties, and the detection of replayed requests."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    MessageError,
    PolicyError,
    UnavailableError,
    UsageError,
)
from dpdpca_protocol.messages.parties import signed_keys
from dpdpca_protocol.messages.study_messages import ROLES, Enrolment
from dpdpca_protocol.pads.masks import check_blinding_key
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.fields import read_text, time_text
from dpdpca_protocol.wire.http import WINDOW_SECONDS
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.signing import OWNER, verify_statement
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.log import append_entry
from dpdpca_proxy.store.parties import (
    PartyRow,
    find_invitation,
    find_party,
    forget_nonces,
    forgotten_before,
    insert_invitation,
    insert_nonce,
    insert_party,
    list_parties,
    list_statements,
    use_invitation,
)

TOKEN_BYTES = 32
NONCE_MEMORY_SECONDS = 3 * 3600
"""How long nonces are remembered.

Signatures are fresh for ±5 minutes; the rest is for a clock that was set back by two hours or more.
"""


_ROLE_WORDS = {"owner": "an owner", "user": "a data user"}


@dataclass(frozen=True, slots=True)
class Invitation:
    """A single-use permission to enrol.

    The token is shown once and stored nowhere. The repr of an invitation hides the token.
    """

    token: str
    role: str
    name: str
    expires_at: datetime

    def __repr__(self) -> str:
        return f"Invitation(role={self.role!r}, name={self.name!r})"


def invite(proxy: Proxy, role: str, name: str) -> Invitation:
    """A new invitation with which one party may enrol in `role`. Others see the party as `name`.

    Raises:
        UsageError: there is no such role.
        PolicyError, MessageError: the name could mislead a reader.
    """
    if role not in ROLES:
        raise UsageError("bad-role", "the role must be owner or user", "use --role owner or --role user")
    read_text(name, "the name", 200)
    token = secrets.token_hex(TOKEN_BYTES)
    now = proxy.now()
    expires_at = now + timedelta(hours=proxy.settings.invitation_hours)
    with proxy.database.transaction("invite") as connection:
        insert_invitation(connection, _token_digest(token), role, name, now, expires_at)
    return Invitation(token, role, name, expires_at)


def enrol(proxy: Proxy, untrusted: bytes) -> PartyRow:
    """Enrols the party whose self-signed enrolment statement and invitation are in `untrusted`.

    A repeated request with the same party and invitation gets the same answer.

    Raises:
        MessageError: the request is malformed, or meant for another proxy.
        CryptographicError: `unfit-sealing-key`, nothing can be sealed to the owner's key;
            `unfit-blinding-key`, its key for blinding has low order.
        AuthenticationError: `bad-signature`, `invitation-unknown`, `invitation-used`, `invitation-expired`.
        ConflictError: `already-enrolled`, under another invitation.
    """
    request = parse_canonical(untrusted)
    if set(request) != {"enrolment", "invitation"} or not isinstance(request["enrolment"], dict):
        raise MessageError("malformed", "an enrolment must have the members enrolment and invitation")
    statement = verify_statement("enrolment", canonical_json(request["enrolment"]))
    enrolment = Enrolment.parse(statement)
    if enrolment.proxy != proxy.key.public.ed25519:
        raise AuthenticationError(
            "wrong-proxy",
            "the enrolment statement is for another proxy",
            "fetch this proxy's card and enrol again",
        )
    kem = None
    if enrolment.role == OWNER:
        kem = enrolment.identity.sealing_key
        check_blinding_key(enrolment.identity.blinding_key)
    token = request["invitation"]
    if not isinstance(token, str) or len(token) != 2 * TOKEN_BYTES or not token.isascii():
        raise AuthenticationError(
            "invitation-unknown", "there is no such invitation", "ask the operator for one"
        )
    party, digest, now = enrolment.identity.party_id, _token_digest(token), proxy.now()
    with proxy.database.reading("is the invitation known") as connection:
        # Strangers may ask this as often as they like. They must not delay writers.
        if find_invitation(connection, digest) is None:
            raise AuthenticationError(
                "invitation-unknown", "there is no such invitation", "ask the operator for one"
            )
    with proxy.database.transaction("enrol") as connection:
        invitation = find_invitation(connection, digest)
        if invitation is None or invitation.role != enrolment.role:
            raise AuthenticationError(
                "invitation-unknown", "there is no such invitation for this role", "ask the operator for one"
            )
        present = find_party(connection, party)
        if present is not None and invitation.used_by == party:
            return present
        if present is not None:
            raise ConflictError(
                "already-enrolled", "this key is already enrolled", "use this key without enrolling again"
            )
        if invitation.used_by is not None:
            raise AuthenticationError(
                "invitation-used", "this invitation was already used", "ask the operator for a new invitation"
            )
        if now >= invitation.expires_at:
            raise AuthenticationError(
                "invitation-expired", "this invitation has expired", "ask the operator for a new invitation"
            )
        row = PartyRow(
            party,
            enrolment.role,
            invitation.name,
            enrolment.identity.ed25519,
            kem,
            now,
        )
        insert_party(connection, row, statement.encoded)
        use_invitation(connection, digest, party, now)
        append_entry(connection, "enrolment", statement.digest, now)
    return row


def check_named_parties(proxy: Proxy, manifest: Manifest) -> None:
    """Checks that a manifest gives its data user and its participants the names that the operator gave them.

    The data user writes the manifest, but owners decide by these names whom they trust with their sums. Each
    participant must also have a `kem`, because it could not join the study without one, and in a blinded
    study the `x25519` in the manifest.

    Raises:
        PolicyError: `manifest-refused`.
    """
    enrolled = {row.party: row for row in all_parties(proxy)}
    _check_named(enrolled, "the data user", "user", manifest.user.name, manifest.user.ed25519)
    for place, owner in enumerate(manifest.participants, 1):
        row = _check_named(enrolled, f"participant {place}", "owner", owner.name, owner.ed25519)
        if row.kem is None:
            raise PolicyError(
                "manifest-refused",
                f"participant {place} of the manifest, {row.name!r}, has keys of an earlier version, and"
                " nothing can be sealed to them",
                "ask this owner to run: dpdpca owner rotate; or name the participants without this owner",
            )
    if manifest.is_blinded:
        _check_blinding_keys(proxy, manifest)


def _check_blinding_keys(proxy: Proxy, manifest: Manifest) -> None:
    statements = party_statements(proxy)
    for place, owner in enumerate(manifest.participants, 1):
        if signed_keys(statements[PartyId.of(owner.ed25519)], owner.ed25519).x25519 != owner.x25519:
            raise _misnamed(f"participant {place} of the manifest is enrolled with another x25519")


def all_parties(proxy: Proxy) -> list[PartyRow]:
    with proxy.database.reading("list parties") as connection:
        return list_parties(connection)


def party_statements(proxy: Proxy) -> dict[PartyId, bytes]:
    """For each party, the enrolment or rotation in which it has signed its keys."""
    with proxy.database.reading("list statements of parties") as connection:
        return list_statements(connection)


def party_of(proxy: Proxy, party: PartyId) -> PartyRow | None:
    with proxy.database.reading("find party") as connection:
        return find_party(connection, party)


def remember_nonce(proxy: Proxy, party: PartyId, nonce: str, now: datetime, created: datetime) -> bool:
    """Whether this nonce is new. A new nonce is on the disk when this function returns.

    Args:
        proxy: stores the nonce.
        party, nonce: the party and its nonce.
        now: by our clock.
        created: when the request was signed.

    Raises:
        UnavailableError: `clock-behind`, nonces of this time were already forgotten.
    """
    with proxy.database.transaction("remember nonce", party + nonce.encode()) as connection:
        forgotten = forgotten_before(connection)
        if created.timestamp() < forgotten + WINDOW_SECONDS:
            raise UnavailableError(
                "clock-behind",
                f"the proxy's clock shows {time_text(now)}, but nonces from before "
                f"{time_text(datetime.fromtimestamp(forgotten + WINDOW_SECONDS, UTC))} were already "
                "deleted",
                "the operator must set the clock of this machine",
                retry_after_seconds=60,
            )
        return insert_nonce(connection, party, nonce, int(now.timestamp()))


def forget_old_nonces(proxy: Proxy) -> None:
    """Deletes nonces that are too old to be replayed.

    This function also stores the time up to which nonces were deleted, in case the clock is set back later.
    """
    with proxy.database.transaction("forget nonces") as connection:
        before = int(proxy.now().timestamp()) - NONCE_MEMORY_SECONDS
        if before > forgotten_before(connection):
            forget_nonces(connection, before)


def _check_named(
    enrolled: Mapping[PartyId, PartyRow], who: str, role: str, name: str, ed25519: bytes
) -> PartyRow:
    row = enrolled.get(PartyId.of(ed25519))
    if row is None or row.role != role:
        raise _misnamed(f"{who} of the manifest is not enrolled at this proxy as {_ROLE_WORDS[role]}")
    if row.successor is not None:
        raise _misnamed(f"{who} of the manifest has replaced the key that the manifest names")
    if row.name != name:
        raise _misnamed(f"{who} of the manifest is enrolled at this proxy under another name, {row.name!r}")
    return row


def _misnamed(problem: str) -> PolicyError:
    return PolicyError(
        "manifest-refused", problem, "take names and keys from the proxy's list of enrolled parties"
    )


def _token_digest(token: str) -> Digest:
    return Digest.of(b"dpdpca/invitation/v1\x00" + token.encode())
