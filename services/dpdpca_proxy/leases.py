"""Leases: which process works on which study, if several processes share one database.

A lease has a holder, an end by the clock of the database, and a number that rises whenever the study is
taken. A step commits its result only if its own lease is still the last one. A lease ends when its holder
gives it back or has not renewed it for half a minute, and at once if the holder has died and had the same
home.
"""

import threading
import time
from dataclasses import dataclass

from sqlalchemy import Connection

from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.leases import (
    Lease,
    end_lease,
    find_lease,
    has_ended,
    is_last_lease,
    prolong_lease,
    take_lease,
)
from dpdpca_runtime.presence import Presence

_LEASE_SECONDS = 30
_RENEWAL_SECONDS = 10.0
_PROCESSES_FOLDER = "processes"


@dataclass(slots=True)
class _Held:
    """A lease of this process, and when it is to be renewed, by the monotonic clock."""

    number: int
    renewal: float


class StudyLeases:
    """The leases of this process."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._presence = Presence(proxy.settings.home / _PROCESSES_FOLDER)
        self._lock = threading.Lock()
        self._held: dict[StudyId, _Held] = {}

    def take(self, study: StudyId) -> bool:
        """Whether this process got the study, so that no other process works on it until `give_back`."""
        holder, asked_at = self._presence.name, time.monotonic()
        with self._proxy.database.transaction("take lease", study) as connection:
            present = find_lease(connection, study)
            if present is not None and self._is_others(connection, present):
                return False
            number = take_lease(connection, study, holder, _LEASE_SECONDS, present)
        with self._lock:
            self._held[study] = _Held(number, asked_at + _RENEWAL_SECONDS)
        return True

    def give_back(self, study: StudyId) -> None:
        with self._lock:
            held = self._held.pop(study, None)
        if held is not None:
            with self._proxy.database.transaction("give back lease", study) as connection:
                end_lease(connection, study, held.number)

    def renew(self) -> None:
        """Renews leases in time, and takes a name at the first call.

        A process must call this method repeatedly while a step takes long.
        """
        _ = self._presence.name
        now = time.monotonic()
        with self._lock:
            due = {study: held for study, held in self._held.items() if held.renewal <= now}
        for study, held in due.items():
            with self._proxy.database.transaction("renew lease", study) as connection:
                if prolong_lease(connection, study, held.number, _LEASE_SECONDS):
                    held.renewal = now + _RENEWAL_SECONDS

    def is_held(self, connection: Connection, study: StudyId) -> bool:
        """Whether nobody else took the study since this process did. A step asks this when it commits."""
        with self._lock:
            held = self._held.get(study)
        return held is not None and is_last_lease(connection, study, held.number)

    def close(self) -> None:
        """Gives back the name of this process."""
        self._presence.end()

    def _is_others(self, connection: Connection, lease: Lease) -> bool:
        if (
            lease.is_free
            or lease.holder == self._presence.name
            or has_ended(connection, lease, _LEASE_SECONDS)
        ):
            return False
        return self._presence.may_be_running(lease.holder)
