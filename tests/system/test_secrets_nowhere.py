"""A whole study at debug level, with every secret marked and errors provoked, under a umask of nothing.

Afterwards every secret is looked for in all that anybody could come to see: logs, what commands print, pages,
metrics, reports, refusals, arguments and environments of all processes, and every file but its own.
"""

import base64
import contextlib
import itertools
import json
import os
import re
import secrets
import sqlite3
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from federation.bare_user import make_request
from federation.processes import Machine
from federation.records import add_up, draft, patients, write_csv
from federation.world import Federation, Owner, User
from folders import paths_below
from promises import Promise

from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.pads.masks import pair_keys
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.enrolment import invite
from dpdpca_proxy.proxy import open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_runtime.identity_files import IdentityFiles
from dpdpca_user_service.keyring import Keyring


class SealedFederation(Federation):
    """Keys are under passphrases from files, and the servers log all that they ever would."""

    def _machine(self, role: str, name: str) -> Machine:
        machine = super()._machine(role, name)
        file = machine.home.parent / f"{machine.home.name}.passphrase"
        file.write_text(f"passphrase-{secrets.token_hex(12)}\n")
        settings = {**machine.settings, f"DPDPCA_{role.upper()}_PASSPHRASE_FILE": str(file)}
        if role != "owner":
            settings[f"DPDPCA_{role.upper()}_LOG_LEVEL"] = "DEBUG"
        return replace(machine, settings=settings)

    def invitation(self, role: str, name: str) -> str:
        proxy = open_proxy(load_settings(self.proxy_home, passphrase_file=passphrase_file(self.proxy_home)))
        try:
            return invite(proxy, role, name).token
        finally:
            proxy.database.close()


def passphrase_file(home: Path) -> Path:
    return home.parent / f"{home.name}.passphrase"


def keys_of(home: Path) -> IdentityKey:
    return IdentityFiles(home).load(passphrase_file(home).read_bytes().strip()).current


@dataclass
class Search:
    """What must not be found, and what was seen of the world."""

    secrets: dict[str, list[bytes]] = field(default_factory=dict)
    numbers: dict[str, bytes] = field(default_factory=dict)
    seen: dict[str, bytes] = field(default_factory=dict)

    def hide(self, name: str, secret: bytes) -> None:
        """`secret` in each form that it could be written in."""
        encoded = base64.b64encode(secret).rstrip(b"=")
        forms = [secret, secret.hex().encode(), encoded, encoded.replace(b"+", b"-").replace(b"/", b"_")]
        self.secrets[name] = [form for form in forms if len(form) >= 6]

    def see(self, place: str, content: bytes | str) -> None:
        more, seen = content.encode() if isinstance(content, str) else content, self.seen.get(place, b"")
        if more not in seen:  # processes are looked at again and again
            self.seen[place] = seen + more

    def see_process(self, name: str, pid: int) -> None:
        """Arguments and environments of a process and all below it."""
        for process in (pid, *_below(pid)):
            for what in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    self.see(f"{what} of {name}", Path(f"/proc/{process}/{what}").read_bytes())

    def hits(self) -> list[str]:
        return [
            f"{name} in {place}"
            for place, content in self.seen.items()
            for name, found in (
                *((name, any(form in content for form in forms)) for name, forms in self.secrets.items()),
                *((name, _stands_in(number, content)) for name, number in self.numbers.items()),
            )
            if found
        ]


def _stands_in(number: bytes, content: bytes) -> bool:
    """Whether the number stands in `content` by itself: inside hexadecimal or base64 it stands by chance."""
    return number in content and bool(re.search(rb"(?<![\w+/])" + number + rb"(?![\w+/])", content))


def _below(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [process for child in map(int, children) for process in (child, *_below(child))]
    return []


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def sealed(tmp_path: Path, open_umask: None) -> Iterator[SealedFederation]:
    federation = SealedFederation(tmp_path / "world")
    try:
        federation.serve(federation.proxy)
        yield federation
    finally:
        federation.end()


def provoke(federation: Federation, user: User, address: str, search: Search) -> None:
    """Errors of every kind, by peers who put what they should keep to themselves where it may be repeated."""
    token = (user.home / "token").read_text().strip()
    owner, key = federation.owners(1)[0], keys_of(federation.owners(1)[0].home)
    study = address.rpartition("/")[2]
    given = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    wrong = {**given, "authorization": f"Bearer {token}x"}
    body = json.dumps({"rows": [[token]], token: token}).encode()
    asked = [
        (user.service_url, "POST", f"/v1/models/{study}/transform", given, body),
        (user.service_url, "POST", "/v1/studies", given, body),
        (user.service_url, "GET", f"/v1/studies/{token}", given, b""),
        (user.service_url, "GET", "/v1/studies", wrong, b""),
        (federation.url, "POST", f"/v1/parties?x={token}", given, body),
        (federation.url, "GET", f"/v1/studies/{token}", given, b""),
        (federation.url, "PUT", f"/v1/studies/{study}/components", given, body * 10_000),
        (federation.url, "TRACE", f"/{token}", given, b""),
    ]
    with httpx.Client(trust_env=False, timeout=30) as client:
        for number, (url, method, path, headers, content) in enumerate(asked):
            answer = client.request(method, url + path, headers=headers, content=content)
            assert answer.status_code >= 400, path
            search.see(f"refusal {number}", answer.content + str(answer.headers).encode())
        for method, path in (
            ("POST", f"/v1/studies/{study}/share/complete"),
            ("PUT", f"/v1/studies/{study}/share/chunks/0?version=1"),
            ("POST", f"/v1/parties/{key.public.party_id.hex()}/rotations"),
        ):
            media_type = "application/octet-stream" if "chunks" in path else "application/json"
            answer = client.send(make_request(federation, key, method, path, body, media_type))
            assert answer.status_code >= 400
            search.see(f"refusal of {path}", answer.content)
    bad = owner.home.parent / "bad.csv"
    records = patients(30, seed=8)
    lines = write_csv(bad, records).read_text().splitlines()
    lines[7] = lines[7].replace(str(records[6]["age"]), "cell-of-a-patient-4711")
    bad.write_text("\n".join(lines))
    search.hide("a cell", b"cell-of-a-patient-4711")
    unlocked = owner.environment["DPDPCA_OWNER_PASSPHRASE_FILE"]
    for debug in ([], ["--debug"]):
        for arguments in (
            ["owner", "join", address, "--data", str(bad), "--strict", "--yes"],
            ["owner", "join", address + "0", "--data", str(bad), "--yes"],
            ["owner", "status", "--passphrase-file", str(user.home / "token")],
            ["owner", "enrol", federation.url, "--invitation-file", unlocked, "--yes"],
            ["owner", "init", "--name", "again"],
        ):
            outcome = owner.run(*arguments, *debug)
            assert outcome.status != 0 or "enrol" in arguments, arguments


MASKED = {"release": "masked"}
BLINDED = {"release": "joint", "blinding": "pairwise", "max_colluding": 1}


@pytest.mark.parametrize("kind", [MASKED, BLINDED], ids=["masked", "blinded"])
def test_secrets_are_nowhere_but_in_their_own_files(
    sealed: SealedFederation, tmp_path: Path, promise: Promise, kind: dict[str, Any]
) -> None:
    federation, search = sealed, Search()
    user, owners = federation.user, federation.owners(3)
    homes = {"proxy": federation.proxy_home, "user": user.home}
    homes |= {f"owner {number}": owner.home for number, owner in enumerate(owners)}
    terms = draft(closing="when-complete", participants=[o.name for o in owners], **kind)
    study = user.create_study(terms)
    address = f"{federation.url}/{study}"
    for name, home in homes.items():
        search.hide(f"passphrase of {name}", passphrase_file(home).read_bytes().strip())
        key = keys_of(home)
        search.hide(f"signing key of {name}", key.ed25519.private_bytes_raw())
        for part in key.kem.parts if key.kem else ():
            search.hide(f"sealing key of {name}", part.private_bytes_raw())
        if key.x25519 is not None:
            search.hide(f"blinding key of {name}", key.x25519.private_bytes_raw())
    search.hide("bearer token", (user.home / "token").read_bytes().strip())
    for file in federation.folder.glob("*.invitation"):
        search.hide(f"invitation {file.name}", file.read_bytes())
    if kind is MASKED:
        secret = SecretKey.from_bytes(study_secret(user, study))
        for name, prime in (("p", secret.p), ("q", secret.q)):
            search.hide(name, int(prime).to_bytes(int(prime).bit_length() // 8, "big"))
            search.secrets[name].append(str(prime).encode())
    else:
        pads = PadsSecret.from_bytes(study_secret(user, study))
        search.hide("secret of the second noise", pads.second_noise)
        for part in pads.kem.parts:
            search.hide("key of the study", part.private_bytes_raw())
        for number, pair in enumerate(keys_of_pairs(owners, StudyId.parse(study))):
            search.hide(f"key of pair {number}", pair)
    proxy = open_proxy(
        load_settings(federation.proxy_home, passphrase_file=passphrase_file(federation.proxy_home))
    )
    search.hide("data key", proxy.data_key(StudyId.parse(study)))
    proxy.database.close()

    provoke(federation, user, address, search)
    for number, owner in enumerate(owners):
        records = patients(200, seed=number)
        sums = add_up(records)
        numbers = [*sums.sum, *(entry for row in sums.second_moment for entry in row)]
        for at, value in enumerate(numbers):
            if abs(value) > 10**6:  # shorter ones stand anywhere by chance
                search.numbers[f"sum {at} of owner {number}"] = str(abs(value)).encode()
        data = write_csv(tmp_path / f"data-{number}.csv", records)
        join_in_sight(owner, address, data, search)
        see_processes(federation, search)
    federation.proxy.restart(kill=True)
    user.wait_state(study, "published", seconds=120)
    see_processes(federation, search)
    operator = f"http://127.0.0.1:{federation.operator_port}"
    for page in (
        f"{operator}/metrics",
        f"{operator}/",
        f"{federation.url}/openapi.json",
        f"{federation.url}/v1/proxy",
        f"{federation.url}/readyz",
        f"{user.service_url}/readyz",
    ):
        search.see(page.rpartition("/")[2] or "page", httpx.get(page, trust_env=False).content)
    assert user.run("user", "report", study, "--out", tmp_path / "report.html").status == 0
    for words in (["result", study], ["verify", study], ["study", "show", study]):
        assert user.run("user", *words, "--debug").status == 0
    assert owners[0].run("owner", "components", address).status == 0
    no_core_is_written(federation)
    federation.end()

    unprotected = look_at_files(federation, tmp_path, search)
    kinds = len(search.secrets) + len(search.numbers)
    volume = sum(map(len, search.seen.values()))
    assert len(search.seen["cmdline of the proxy"]) > 50
    assert b"--data" in search.seen["cmdline of an owner"]
    assert b"PASSPHRASE_FILE" in search.seen["environ of an owner"]
    assert any("proxy-serve.log" in place for place in search.seen)
    assert search.hits() == []
    promise(
        "P25",
        counted=f"{kinds} marked secrets in {len(search.seen)} places, {volume / 1e6:.1f} MB, at debug level",
        result="0 hits",
    )
    assert unprotected == []
    files = sum(1 for home in homes.values() for _ in home.rglob("*"))
    promise(
        "P26", counted=f"{files} files of 5 homes after a whole study under umask 000", result="0600/0700"
    )


def study_secret(user: User, study: str) -> bytes:
    """The secret of an open study, out of the service's database."""
    with sqlite3.connect(f"file:{user.home / 'user.sqlite3'}?mode=ro", uri=True) as database:
        (stored,) = database.execute("SELECT secret FROM studies WHERE study = ?", (study,)).fetchone()
    passphrase = passphrase_file(user.home).read_bytes().strip()
    return Keyring(passphrase).open(stored, StudyId.parse(study))


def keys_of_pairs(owners: list[Owner], study: StudyId) -> list[bytes]:
    """What each two owners of a blinded study share."""
    found = []
    for one, other in itertools.combinations([keys_of(owner.home) for owner in owners], 2):
        others = {other.public.party_id: other.public.blinding_key}
        (pair,) = pair_keys(one.blinding_key, one.public.party_id, others, study)
        found.append(pair.key)
    return found


def join_in_sight(owner: Owner, address: str, data: Path, search: Search) -> None:
    """As `ps` shows it, with all that it starts, as long as it runs."""
    process = owner.start("owner", "join", address, "--data", data, "--yes", "--debug")
    while process.poll() is None:
        search.see_process("an owner", process.pid)
        time.sleep(0.1)
    said, complained = process.communicate()
    assert process.returncode == 0, complained.decode()
    search.see(f"what join says to {owner.name}", said + complained)


def see_processes(federation: Federation, search: Search) -> None:
    for server in federation._servers:
        if server.process is not None:
            search.see_process(server.name, server.process.pid)


def no_core_is_written(federation: Federation) -> None:
    for server in federation._servers:
        assert server.process is not None
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        (core,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
        assert core.split()[4:6] == ["0", "0"], core


def look_at_files(federation: Federation, folder: Path, search: Search) -> list[str]:
    """Sees every file but those that a secret lives in; returns what others may reach in a home."""
    own = (".passphrase", ".invitation", ".csv", "token")
    unprotected = []
    for path in paths_below(folder):
        relative = str(path.relative_to(folder))
        in_home = any(
            part.endswith(("-owner", "-proxy", "-user", "-generation")) for part in Path(relative).parts
        )
        if in_home and stat.S_IMODE(path.stat().st_mode) & 0o077:
            unprotected.append(relative)
        if path.is_file() and not path.name.endswith(own):
            search.see(relative, path.read_bytes())
    return unprotected
