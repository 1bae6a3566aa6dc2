"""An owner in a process of its own, which a test lets die at any write, sync, rename or send.

Functions here run in children that are forked from a server process: they import quickly, and share nothing
with the test but files and the proxy's socket.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import httpx
from children import start_child
from given_keys import give_key
from proxy_world import ProxyWorld

from dpdpca_owner import actions, sending
from dpdpca_owner.actions import Desk
from dpdpca_owner.carrying import NotCarriedError, carrying, take_receipt
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.sending import SendWatcher
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience

TOY_BITS = 512
_NONE = Patience(seconds=0.0)
DONE, REFUSED, FAILED = 0, 3, 4


@dataclass(frozen=True)
class Errand:
    """What a child is sent to do.

    Attributes:
        act: "join" or "withdraw"; "pack" to join into `folder` without a network, "carry" to send `folder`.
        die_at: the failpoint at which it kills itself, from 1; 0 for none.
    """

    act: str
    home: Path
    url: str
    study: str
    data: Path
    die_at: int = 0
    folder: Path = Path()


def make_owner_home(path: Path, world: ProxyWorld, url: str | None = None, place: int = 0) -> Path:
    """An owner of the world, the first unless `place` says which, enrolled; it knows the proxy by `url`."""
    home, known = OwnerHome(path, path.parent / "witness"), url or world.url
    home.create(f"Hospital {'ABCDEFGH'[place]}", None)
    give_key(path, world.owners[place])
    card = ProxyCard(world.proxy.settings.name, world.url, world.proxy.key.public).sign(world.proxy.key)
    home.pins.pin_proxy(known, card)
    home.policy_path.write_text("[study]\nmin_owners = 2\n")
    return path


def desk_of(home: Path, patience: Patience = _NONE) -> Desk:
    place = OwnerHome(home, home.parent / "witness")
    owner = place.load()

    def connect(url: str, key: IdentityKey, pinned: bytes | None, _seconds: float) -> ProxyClient:
        return ProxyClient(url, key, pinned, patience=patience)

    return Desk(place, owner, connect, key_rules=KeyRules(TOY_BITS))


def run(errand: Errand, barrier: Barrier | None = None) -> None:
    """The child's whole life; its exit status is _NONE = Patience(seconds=0.0)
    DONE, REFUSED (by the budget) or FAILED."""
    try:
        do(errand, barrier)
    except DpdpcaError as error:
        sys.stderr.write(f"{errand.act}: {error.slug}: {error}\n")
        os._exit(REFUSED if error.slug == "budget-exceeded" else FAILED)
    os._exit(DONE)


def do(errand: Errand, barrier: Barrier | None = None) -> None:
    """The errand in this process; it waits at the barrier once everything is read and shown."""
    if errand.act == "carry":
        _set_failpoints(errand.die_at)
        sending.send(errand.folder, SendWatcher(), patience=_NONE)
        return
    desk, address = desk_of(errand.home), StudyAddress(errand.url, StudyId.parse(errand.study))
    if errand.act == "pack":
        _set_failpoints(errand.die_at)
        pack(desk, address, errand)
        return
    if errand.act == "withdraw":
        _set_failpoints(errand.die_at)
        actions.withdraw(desk, address)
        return
    prepared = actions.prepare_join(desk, address, DataLocation(str(errand.data)))
    if barrier is not None:
        barrier.wait(60)
    _set_failpoints(errand.die_at)
    actions.join(desk, address, prepared, Watcher())


def pack(desk: Desk, address: StudyAddress, errand: Errand) -> None:
    """What `dpdpca owner join --to FOLDER` does. It ends well if the folder is to be sent."""
    with (
        suppress(NotCarriedError),
        carrying(
            desk.home,
            desk.owner,
            errand.folder,
            address.proxy,
            address.study,
            key_rules=desk.key_rules,
        ) as carried,
    ):
        if take_receipt(carried, address) is None:
            prepared = actions.prepare_join(carried, address, DataLocation(str(errand.data)))
            actions.join(carried, address, prepared, Watcher())


def send(errand: Errand) -> int:
    """Run an errand in a child; its exit status, −9 where it died."""
    child = start_child(run, errand)
    child.join(60)
    assert child.exitcode is not None, "the child hangs"
    return child.exitcode


def _set_failpoints(die_at: int) -> None:
    """Before each write, sync and rename of a file and each request; the `die_at`-th is not made any more."""
    passed = 0

    def point() -> None:
        nonlocal passed
        passed += 1
        if passed == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*args: Any, **options: Any) -> Any:
            point()
            return act(*args, **options)

        return acting

    if die_at:
        # Set on the modules themselves: this process does nothing else any more.
        for owner, name in ((os, "write"), (os, "fsync"), (Path, "replace"), (httpx.Client, "send")):
            setattr(owner, name, watched(getattr(owner, name)))
