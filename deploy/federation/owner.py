"""An owner of a trial federation: enrols once, then joins every open study that it has not joined yet.

A real owner reviews each study before it joins (`dpdpca owner review`); this one consents to all, for its
records are public. It holds its part of the bundled records.
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
from dpdpca_protocol.errors import DpdpcaError, NotFoundError, UnavailableError
from dpdpca_runtime.files import private_dir

OWNER_COUNT = 3
LOOK_SECONDS = 2.0
SECRETS = Path("/run/dpdpca/secrets")


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
    mark.touch()


def has_keys(home: Path) -> bool:
    try:
        OwnerHome(home).load(None)
    except NotFoundError:
        return False
    return True


def open_studies(home: Path, url: str) -> list[str]:
    """The studies that wait for shares, as the proxy lists them."""
    place = OwnerHome(home)
    with make_desk(place, place.load(None), None).client(url) as client:
        return [facts.study.hex() for facts in client.studies() if facts.state == "open"]


def main() -> None:
    # The first process of a container has no default for this signal: without a handler, stopping takes long.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    home, url = Path(os.environ["DPDPCA_OWNER_HOME"]), os.environ["PROXY_URL"]
    enrol(home, url)
    (records,) = (home / "records").glob("owner-*.parquet")
    joined: set[str] = set()
    while True:
        try:
            waiting = open_studies(home, url)
        except UnavailableError as error:
            say(f"the proxy is away: {error}")
            waiting = []
        except DpdpcaError as error:
            sys.exit(str(error))
        for study in waiting:
            if study not in joined and dpdpca("join", f"{url}/{study}", "--data", str(records), "--yes"):
                joined.add(study)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
