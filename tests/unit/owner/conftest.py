"""The first owner of the small study, before a proxy in memory."""

import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from given_keys import give_key
from memory_proxy import URL, MemoryProxy
from owner_scene import MakeScene, OwnerCommands, Scene
from page_scene import PageScene
from study_parties import MakeManifest, Parties

from dpdpca_cli import main as cli
from dpdpca_owner import actions
from dpdpca_owner.actions import Desk
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.messages.study_messages import Enrolment, ProxyCard
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.canonical import parse_canonical
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience

TOY_BITS = 512


@pytest.fixture
def make_scene(tmp_path: Path, parties: Parties, make_manifest: MakeManifest) -> MakeScene:
    """make_scene(**changes of the draft): the first owner of the small study, enrolled."""

    def make(**changes: Any) -> Scene:
        manifest = make_manifest(**changes)
        statement = sign_manifest(manifest, parties.user)
        home = OwnerHome(tmp_path / "home")
        owner = home.create("Hospital A", None)
        # The study names the session's first owner: this home gets that key.
        key = parties.owners[0]
        give_key(home.path, key)
        owner = home.load()
        proxy = MemoryProxy(parties.proxy, statement, key.public.party_id)
        proxy.enrolled = [("user", manifest.user.name, parties.user.public)]
        proxy.enrolled += [
            ("owner", participant.name, owner.public)
            for participant, owner in zip(parties.participants, parties.owners, strict=True)
        ]

        for name, signer in zip("ABC", parties.owners, strict=True):
            signed = Enrolment("owner", f"Hospital {name}", signer.public, parties.proxy.public.ed25519).sign(
                signer
            )
            proxy.statements[signer.public.ed25519] = parse_canonical(signed.encoded)

        def connect(url: str, key: IdentityKey, pinned: bytes | None, _seconds: float) -> ProxyClient:
            transport = httpx.MockTransport(proxy.answer)
            patience = Patience(0, sleep=lambda seconds: None)
            return ProxyClient(url, key, pinned, transport, patience=patience)

        desk = Desk(
            home, owner, connect, lambda: datetime(2026, 1, 1, tzinfo=UTC), key_rules=KeyRules(TOY_BITS)
        )
        home.pins.pin_proxy(URL, ProxyCard("Relay", URL, parties.proxy.public).sign(parties.proxy))
        data = tmp_path / "records.csv"
        lower = [float(feature.lower or 0) for feature in manifest.features]
        upper = [float(feature.upper or 0) for feature in manifest.features]
        rows = np.random.default_rng(7).uniform(lower, upper, (40, len(lower)))  # noqa: TID251  # data, not noise
        header = ",".join(feature.name for feature in manifest.features)
        np.savetxt(data, rows, delimiter=",", header=header, comments="", encoding="utf-8")
        return Scene(desk, proxy, StudyAddress(URL, proxy.study), DataLocation(str(data)), parties)

    return make


@pytest.fixture
def page(make_scene: MakeScene, tmp_path: Path) -> PageScene:
    """The agent's page of the first owner. Its records are registered as "patients"."""
    made = PageScene(make_scene(), tmp_path / "page-link.json")
    made.register()
    return made


@pytest.fixture
def run(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> OwnerCommands:
    """run("join", …) → exit status, output, errors; of an owner whose proxy is the one in memory."""
    scene = make_scene()
    monkeypatch.setenv("DPDPCA_OWNER_HOME", str(scene.desk.home.path))

    def make_desk(home: OwnerHome, *_: Any) -> Desk:
        return replace(scene.desk, home=home, owner=home.load())

    monkeypatch.setattr(actions, "make_desk", make_desk)

    def run_command(words: Sequence[str], given: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        with pytest.raises(SystemExit) as left:
            cli.main(["owner", *words])
        output = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, output.out, output.err

    return OwnerCommands(scene, run_command)
