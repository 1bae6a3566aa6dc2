"""Leases: which process works on which study, if several processes share one database.

A lease only avoids duplicate work; correctness does not depend on it, because a step commits its result only
if the study has not changed. A lease ends when its process has died or has not renewed it for half a minute.
"""

import os
import secrets
import threading

from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.leases import Lease, find_lease, remove_lease, set_lease
from dpdpca_runtime.system import may_be_running

_LEASE_SECONDS = 30


class StudyLeases:
    """The leases of this process."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._holder = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._held: dict[StudyId, int] = {}

    def take(self, study: StudyId) -> bool:
        """Whether this process got the study, so that no other process works on it until `give_back`."""
        now = self._seconds()
        with self._proxy.database.transaction("take lease") as connection:
            present = find_lease(connection, study)
            if present is not None and self._is_others(present, now):
                return False
            set_lease(connection, study, self._holder, now + _LEASE_SECONDS, present)
        with self._lock:
            self._held[study] = now + _LEASE_SECONDS
        return True

    def give_back(self, study: StudyId) -> None:
        with self._lock:
            self._held.pop(study, None)
        with self._proxy.database.transaction("give back lease") as connection:
            remove_lease(connection, study, self._holder)

    def renew(self) -> None:
        """Renews leases that would end soon. A process must call this method repeatedly while a step takes
        long."""
        now = self._seconds()
        with self._lock:
            ending = [study for study, until in self._held.items() if until < now + _LEASE_SECONDS // 2]
        for study in ending:
            self.take(study)

    def _is_others(self, lease: Lease, now: int) -> bool:
        return lease.holder != self._holder and lease.until >= now and _is_alive(lease.holder)

    def _seconds(self) -> int:
        return int(self._proxy.now().timestamp())


def _is_alive(holder: str) -> bool:
    """Whether the process of this lease still runs. All processes of one database run on this machine."""
    number = holder.partition("-")[0]
    if not (number.isascii() and number.isdigit()):
        return False  # a damaged row
    process = int(number)
    if process == os.getpid():
        return False  # an earlier process with our number: in a container it is the same after each restart
    return may_be_running(process)
