"""The person at an owner of a trial federation: enrols once, then approves every study that asks for it.

A real owner reviews each study before it approves (`dpdpca owner review`). This one consents to all, because
its records are public. It holds its part of the bundled records. The owner's agent is a service of its own.
It sends the shares, takes part in the later rounds of an approved chain, and fetches the components.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dpdpca_cli.demo.records import bundled_records, split, write_parts
from dpdpca_owner.actions import make_desk
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.inbox import Request, read_inbox
from dpdpca_protocol.errors import DpdpcaError, NotFoundError
from dpdpca_protocol.study import ShareState
from dpdpca_runtime.files import private_dir

OWNER_COUNT = 3
LOOK_SECONDS = 2.0
SECRETS = Path("/run/dpdpca/secrets")
SOURCE = "records"


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def dpdpca(*words: str) -> bool:
    command = [sys.executable, "-m", "dpdpca_cli.main", "owner", *words]
    return subprocess.run(command, check=False).returncode == 0  # noqa: S603 - our own command, no shell


def enrol(home: Path, url: str) -> None:
    """Keys, enrolment and records, as far as they are not there yet."""
    name, number = os.environ["OWNER_NAME"], int(os.environ["OWNER_NUMBER"])
    mark = home / "enrolled"
    if mark.exists():
        return
    if not has_keys(home) and not dpdpca("init", "--name", name):
        sys.exit(1)
    # The proxy's key and those of the other owners are accepted unseen: here the same hands run everything.
    # People compare the words of all keys.
    if not dpdpca("enrol", url, "--invitation-file", str(SECRETS / "invitation"), "--yes"):
        sys.exit(1)
    folder = private_dir(home / "records")
    for other, path in enumerate(write_parts(split(bundled_records(), OWNER_COUNT), folder), start=1):
        if other != number:
            path.unlink()
    (records,) = folder.glob("owner-*.parquet")
    if not dpdpca("data", "add", SOURCE, "--data", str(records)):
        sys.exit(1)
    mark.touch()


def has_keys(home: Path) -> bool:
    try:
        OwnerHome(home).load(None)
    except NotFoundError:
        return False
    return True


def asking(home: Path) -> list[str]:
    """The addresses of the studies that need this owner's approval."""
    place = OwnerHome(home)
    found = read_inbox(make_desk(place, place.load(None), None))
    for unread in found.unread:
        say(f"{unread.address}: {unread.error}")
    return [request.sheet.address for request in found.requests if needs_approval(request)]


def needs_approval(request: Request) -> bool:
    chain = request.sheet.chain
    return request.share is ShareState.ABSENT and (chain is None or not chain.is_covered)


def main() -> None:
    # The first process of a container has no default for this signal: without a handler, stopping takes long.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    home = Path(os.environ["DPDPCA_OWNER_HOME"])
    enrol(home, os.environ["PROXY_URL"])
    approved: set[str] = set()
    while True:
        try:
            waiting = asking(home)
        except DpdpcaError as error:
            sys.exit(str(error))
        for address in waiting:
            words = ("join", address, "--source", SOURCE, "--follow", "--yes")
            if address not in approved and dpdpca(*words):
                approved.add(address)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
