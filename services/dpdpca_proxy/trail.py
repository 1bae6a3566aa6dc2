"""Everything that is stored of a study, in one view.

Each part is read when it is first needed. A part that cannot be read fails only the checks that need it, so
an audit of damaged rows still reports the other checks.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property

from sqlalchemy import Connection

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.messages.log import LogEntry
from dpdpca_protocol.messages.share import CohortMember
from dpdpca_protocol.messages.transcript import Event, verify_transcript
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import hex_bytes, verify_statement
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.audit_queries import tables_with_rows
from dpdpca_proxy.store.log import entries
from dpdpca_proxy.store.parties import PartyRow, list_parties
from dpdpca_proxy.store.releases import find_components, find_draw
from dpdpca_proxy.store.shares import (
    Contradiction,
    ShareRow,
    SignedShare,
    list_contradictions,
    list_shares,
    list_signed,
)
from dpdpca_proxy.store.studies import (
    EventRow,
    StudyRow,
    frozen_cohort,
    list_event_rows,
    load_blob,
    load_study,
)

_BLOBS = ("answer", "cancel", "challenge", "opened", "release")
_COLUMNS = (
    "closed_at",
    "cohort_digest",
    "failure",
    "failure_detail",
    "noise_drawn_at",
    "records",
    "release_folder",
    "released_at",
)


class Trail:
    """A study as the proxy has stored it.

    Args:
        proxy: the proxy.
        connection: a connection with a consistent view of the database.
        study: the study.
    """

    def __init__(self, proxy: Proxy, connection: Connection, study: StudyId) -> None:
        self.proxy = proxy
        self.connection = connection
        self.study = study

    @cached_property
    def row(self) -> StudyRow:
        return load_study(self.connection, self.study)

    def has_moved_on(self) -> bool:
        """Whether a running proxy has changed the study since the view was opened."""
        with self.proxy.database.reading("has the study moved on") as connection:
            return load_study(connection, self.study).revision != self.row.revision

    def blob(self, column: str) -> bytes | None:
        """The statement in this column."""
        return load_blob(self.connection, self.study, column)

    @cached_property
    def signed_manifest(self) -> SignedManifest:
        """The manifest, with verified signature and figures."""
        encoded = self.blob("manifest") or b""
        proxy = self.proxy
        return open_manifest(encoded, key_rules=proxy.key_rules, feature_lists=proxy.feature_lists)

    @property
    def manifest(self) -> Manifest:
        return self.signed_manifest.manifest

    @cached_property
    def signer(self) -> bytes:
        """The proxy's key in the manifest. This key need not be the present one."""
        body = verify_statement("manifest", self.blob("manifest") or b"").body
        named = hex_bytes(body["proxy"]["ed25519"], 32, "ed25519")
        if self.proxy.keys.of(named) is None:
            raise MessageError("audit-failed", "the manifest does not name a key of this proxy")
        return named

    @cached_property
    def event_rows(self) -> list[EventRow]:
        return list_event_rows(self.connection, self.study)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The transcript, with verified signatures and links."""
        return verify_transcript([row.statement for row in self.event_rows], self.study, self.signer)

    def events_of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    @cached_property
    def stored(self) -> frozenset[str]:
        """The names of the study's filled columns and of other tables that have rows of it."""
        blobs = {name for name in _BLOBS if self.blob(name) is not None}
        columns = {name for name in _COLUMNS if getattr(self.row, name) is not None}
        return frozenset(blobs | columns | tables_with_rows(self.connection, self.study))

    @cached_property
    def members(self) -> tuple[CohortMember, ...]:
        return frozen_cohort(self.connection, self.study)

    @cached_property
    def parties(self) -> Mapping[PartyId, PartyRow]:
        return {party.party: party for party in list_parties(self.connection)}

    @cached_property
    def shares(self) -> list[ShareRow]:
        return list_shares(self.connection, self.study)

    @cached_property
    def signed(self) -> list[tuple[PartyId, SignedShare]]:
        """The owners' statements with their receipts, by owner and version."""
        return list_signed(self.connection, self.study)

    @cached_property
    def contradictions(self) -> list[Contradiction]:
        return list_contradictions(self.connection, self.study)

    @cached_property
    def components(self) -> tuple[Digest, bytes] | None:
        return find_components(self.connection, self.study)

    @cached_property
    def draw(self) -> str | None:
        return find_draw(self.connection, self.study)

    @cached_property
    def log_begins(self) -> datetime | None:
        """The time of the first log entry; None if the log is empty.

        Earlier events are from a version without a log.
        """
        return self.log[0][0].time if self.log else None

    @cached_property
    def log(self) -> list[tuple[LogEntry, Digest]]:
        """The proxy's whole log, for all studies."""
        return list(entries(self.connection))
