"""Reverse proxies, and what each must let through: a whole study whose live events come at once."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from dpdpca_cli.federation.processes import free_port
from dpdpca_protocol.errors import UnavailableError
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_runtime.http.answers import StudyUpdate
from dpdpca_runtime.http.client import ProxyClient
from federation.processes import wait_for
from federation.records import draft, patients, write_csv
from federation.world import Federation

DEPLOY = Path(__file__).parents[3] / "deploy"
HOST = "localhost"
_SIZES = (900, 700, 400)


@dataclass(frozen=True)
class ReverseProxy:
    """A reverse proxy on a port of its own, with a certificate of a throw-away authority.

    Args:
        folder: private to this one.
        program: its path.
        port: where it listens, with TLS.
    """

    folder: Path
    program: str
    port: int

    @classmethod
    def make(cls, folder: Path, program: str) -> Self:
        authority = [sys.executable, str(DEPLOY / "federation" / "authority.py")]
        subprocess.run([*authority, str(folder), f"{HOST}={folder}"], check=True)
        return cls(folder, program, free_port())

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"


def listens(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection((HOST, port), timeout=5):
        return True
    return False


@dataclass
class Listener:
    """A client's live events, kept as they come."""

    client: ProxyClient
    study: StudyId

    def __post_init__(self) -> None:
        self.heard: list[StudyUpdate] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(UnavailableError):  # the reverse proxy ends before the stream does
            for update in self.client.events(self.study):
                self.heard.append(update)

    def wait(self, what: str, is_it: Callable[[StudyUpdate], bool]) -> None:
        wait_for(lambda: any(is_it(update) for update in list(self.heard)), f"the event of {what}")


def run_whole_study(federation: Federation, folder: Path) -> None:
    """A masked study of three owners, from the draft to the components that an owner fetches.

    Every event is waited for before the next thing is done: none may come as late as that.
    """
    user, owners = federation.user, federation.owners(3)
    named = [owner.name for owner in owners]
    study = user.create_study(
        draft(release="masked", participants=named, min_owners=3, closing="when-complete")
    )
    with federation.client(owners[0].key()) as client:
        listener = Listener(client, StudyId.parse(study))

        def has_shares(count: int, update: StudyUpdate) -> bool:
            complete: int | None = update.detail.get("owners_complete")
            return complete == count

        for count, owner in enumerate(owners, start=1):
            part = write_csv(folder / f"{count}.csv", patients(_SIZES[count - 1], seed=count))
            owner.join(f"{federation.url}/{study}", part)
            listener.wait(f"share {count}", partial(has_shares, count))
        user.wait_state(study, "published")
        listener.wait("the end", lambda update: update.detail.get("state") == "published")
    model = user.ask("user", "result", study)
    found = owners[2].ask("owner", "components", f"{federation.url}/{study}")
    assert model["records"] == found["records"] == sum(_SIZES)
    assert found["components"] == model["components"]
    assert user.ask("user", "verify", study)["verified"]
