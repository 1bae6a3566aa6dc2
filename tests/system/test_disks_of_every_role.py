"""Every role with its home on a disk of its own, which is full, read-only, or fails under a running server.

The disks are small file systems of files (needs root). Whatever a command has to write, it refuses in words
that name the cause, and leaves the home as it was; afterwards the study goes on to its end.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from federation.processes import Machine, Outcome, Server, wait_for
from federation.records import draft, patients, write_csv
from federation.world import Federation, tree
from promises import Promise

MEGABYTES = 16
RECORDS = 100
NO_ROOM = re.compile("No space left on device|disk (of the database )?is full")
CANNOT_WRITE = re.compile("Read-only file system|database cannot be (opened|written|read or written)")


def system(*words: str | Path) -> None:
    subprocess.run(list(map(str, words)), check=True, capture_output=True)


@dataclass(frozen=True)
class Disk:
    """An ext4 file system in a file; the home is a folder in it."""

    folder: Path

    @property
    def image(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.img")

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def make(self) -> None:
        self.folder.mkdir(0o700)
        with self.image.open("wb") as file:
            file.truncate(MEGABYTES << 20)
        system("mkfs.ext4", "-q", "-m", "0", self.image)
        self.mount()

    def mount(self) -> None:
        system("mount", "-o", "loop", self.image, self.folder)

    def unmount(self) -> None:
        system("umount", self.folder)

    def fill(self, leave_bytes: int = 0) -> None:
        """To be repeated while servers tidy up, since what they delete makes room again."""
        room = os.statvfs(self.folder)
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            file.write(bytes(max(0, room.f_bavail * room.f_frsize - leave_bytes)))
            while leave_bytes == 0:
                file.write(bytes(512))  # a long write that does not fit stops short, without an error

    @contextmanager
    def full(self, leave_bytes: int = 0) -> Iterator[None]:
        try:
            self.fill(leave_bytes)
            yield
        finally:
            self._ballast.unlink(missing_ok=True)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        system("mount", "-o", "remount,ro", self.folder)
        try:
            yield
        finally:
            system("mount", "-o", "remount,rw", self.folder)

    def fail(self) -> None:
        """Read-only at once, open files or not, as ext4 does upon an error of its device."""
        system("mount", "-o", "remount,abort", self.folder)

    def mend(self) -> None:
        """Checked and mounted again; nobody may have a file of it open."""
        self.unmount()
        subprocess.run(["e2fsck", "-p", "-f", self.image], check=False, capture_output=True)
        self.mount()


class DiskFederation(Federation):
    """Each home is on a disk of its own."""

    disks: dict[Path, Disk]

    def __init__(self, folder: Path) -> None:
        self.disks = {}
        super().__init__(folder)

    def _machine(self, role: str, name: str) -> Machine:
        machine = super()._machine(role, name)
        disk = Disk(machine.home.with_name(f"{machine.home.name}-disk"))
        home = disk.folder / "home"
        disk.make()
        self.disks[home] = disk
        return replace(machine, home=home)

    def unmount(self) -> None:
        for disk in self.disks.values():
            subprocess.run(["umount", "-l", disk.folder], check=False, capture_output=True)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskFederation]:
    federation = DiskFederation(tmp_path_factory.mktemp("disks") / "federation")
    try:
        federation.serve(federation.proxy)
        yield federation
    finally:
        federation.end()
        federation.unmount()


@dataclass(frozen=True)
class World:
    """A federation with two owners, their data and a draft of a study between them."""

    federation: DiskFederation
    folder: Path

    @property
    def data(self) -> list[Path]:
        return [write_csv(self.folder / f"{place}.csv", patients(RECORDS, place)) for place in range(2)]

    def begun(self, release: str) -> str:
        """The id of an open study that the first owner is in."""
        owners = self.federation.owners(2)
        names = [owner.name for owner in owners]
        terms = draft(participants=names, min_owners=2, closing="when-complete", release=release)
        (self.folder / "draft.json").write_text(json.dumps(terms))
        study = self.federation.user.create_study(terms)
        owners[0].join(f"{self.federation.url}/{study}", self.data[0])
        return study

    def ended(self, study: str) -> None:
        """The second owner comes in, and the study ends well."""
        user, proxy = self.federation.user, self.federation.proxy_machine
        self.federation.owners(2)[1].join(f"{self.federation.url}/{study}", self.data[1])
        # A full disk asks for a minute of patience.
        user.wait_state(study, "published", seconds=180.0)
        assert user.ask("user", "result", study)["records"] == 2 * RECORDS
        assert user.ask("user", "verify", study)["verified"]
        wait_for(lambda: proxy.ask("proxy", "audit", study)["holds"] is True, "the audit holds", pause=1.0)

    def place(self, role: str) -> "Place":
        federation = self.federation
        if role == "owner":
            owner = federation.owners(2)[1]
            return Place(owner, None, federation.disks[owner.home])
        machine = federation.user if role == "user" else federation.proxy_machine
        server = federation.user.service if role == "user" else federation.proxy
        return Place(machine, server, federation.disks[machine.home])

    def run(self, role: str, command: str, study: str) -> Outcome:
        """One of the commands below; done, or refused in one sentence of ours."""
        words = command.format(
            study=study,
            address=f"{self.federation.url}/{study}",
            data=self.folder / "1.csv",
            draft=self.folder / "draft.json",
        )
        outcome = self.place(role).machine.run(role, *words.split())
        assert "Traceback" not in outcome.err
        if outcome.status != 0:
            assert outcome.status == 1, outcome.err
            assert outcome.err.strip().splitlines()[-1].startswith("dpdpca: "), outcome.err
            assert "unexpected" not in outcome.err
        return outcome


@dataclass(frozen=True)
class Place:
    """Where a role lives, and what serves there."""

    machine: Machine
    server: Server | None
    disk: Disk

    def kept(self) -> dict[str, bytes]:
        """What the home holds, but for empty locks, the database and what it last saw of the proxy's log."""
        files = tree(self.machine.home).items()
        passing = ("lock", ".sqlite3", "marks.json")
        return {name: content for name, content in files if not any(part in name for part in passing)}


READING = {
    "owner": ["ledger", "review {address}", "review {address} --data {data}"],
    "user": ["study list", "study show {study}"],
    "proxy": ["owners", "studies", "audit {study}"],
}
WRITING = {
    "owner": ["join {address} --data {data} --yes", "prepare {address}", "status {address}"],
    "user": ["study create {draft}"],
    "proxy": ["invite --role owner --name Q"],
}
"""An owner's `status` writes down what the proxy has shown, so that nothing older is taken later."""


@pytest.fixture(scope="module")
def world(federation: DiskFederation, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(federation, tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("role", ["owner", "user", "proxy"])
def test_a_full_disk(world: World, role: str, promise: Promise) -> None:
    study, place = world.begun("masked"), world.place(role)
    before = place.kept()
    with place.disk.full():
        for command in READING[role]:
            assert world.run(role, command, study).status == 0, command
        for command in WRITING[role]:
            place.disk.fill()
            refused = world.run(role, command, study)
            assert refused.status == 1, command
            assert NO_ROOM.search(refused.err), refused.err
        if place.server is not None:
            wait_for(lambda: is_said(world, role, study), "it says so", 60.0)
    assert place.kept() == before
    world.ended(study)
    promise(
        "P18",
        counted=f"{role} on a full disk: {len(READING[role])} to read, {len(WRITING[role])} to write",
        result="done and refused by name, home as before, study published",
    )


@pytest.mark.parametrize("role", ["owner", "user", "proxy"])
def test_a_read_only_disk(world: World, role: str, promise: Promise) -> None:
    """A server does not start on one; it says what cannot be written."""
    study, place = world.begun("joint"), world.place(role)
    if place.server is not None:
        place.server.stop()
    before = place.kept()
    tried = ["serve"] if place.server is not None else READING[role] + WRITING[role]
    tried += WRITING[role] if role == "proxy" else []
    with place.disk.read_only():
        for command in tried:
            outcome = world.run(role, command, study)
            assert outcome.status == (command not in READING[role]), command
            if outcome.status:
                assert CANNOT_WRITE.search(outcome.err), outcome.err
    assert place.kept() == before
    if place.server is not None:
        place.server.start()
    world.ended(study)
    promise(
        "P18",
        counted=f"the {role} on a read-only disk: {len(tried)} commands",
        result="refused by name, home as before, study published",
    )


def is_said(world: World, role: str, study: str) -> bool:
    """Whether readiness is false after another write: small ones may still fit into what a database holds."""
    server = world.place(role).server
    assert server is not None
    return world.run(role, WRITING[role][0], study).status == 1 and readiness(server) == 503


def readiness(server: Server) -> int:
    return httpx.get(f"{server.url}/readyz", trust_env=False).status_code


@pytest.mark.parametrize("role", ["user", "proxy"])
def test_a_disk_that_fails_under_a_server(world: World, role: str, promise: Promise) -> None:
    """Its file system turns read-only while the database is open; mended, the server starts and goes on."""
    study, place = world.begun("masked"), world.place(role)
    server = place.server
    assert server is not None
    place.disk.fail()
    for command in WRITING[role]:
        assert world.run(role, command, study).status == 1, command
    wait_for(lambda: readiness(server) == 503, "it says so")
    server.stop()
    place.disk.mend()
    server.start()
    world.ended(study)
    promise(
        "P18",
        counted=f"the disk of the {role} fails under its server",
        result="readiness false, refused, stops well, goes on when mended",
    )
