"""A proxy from a wheel names the digest that its owners have computed from this wheel, and lists decide.

The wheel is built, installed into an environment of its own, and run from there. Everybody else runs from the
source folder, as in the other tests.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from federation.processes import Outcome, Server, wait_for
from federation.records import draft, patients, write_csv
from federation.world import POLICY, Federation, Owner
from terminal import ROOT, copy_of_checkout, lend_packages

from dpdpca_protocol.messages.software import Software, SoftwareKind
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_runtime.http.client import ProxyClient

IMAGE = f"sha256:{'1a' * 32}"
STRANGE = f"sha256:{'2b' * 32}"


@dataclass
class InstalledServer(Server):
    """A server whose commands are those of another installation."""

    environment_folder: Path = Path()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.environment_folder / "bin" / "dpdpca", *self.arguments],
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self._is_ready, f"{self.name} is ready", 60.0)


@dataclass
class World:
    """A federation whose proxy runs from a wheel."""

    federation: Federation
    wheel: Path
    environment: Path

    def card(self) -> Software:
        with ProxyClient(self.federation.url, self.federation.user.key()) as client:
            card: ProxyCard = client.card()[0]
        assert card.software is not None
        return card.software

    def digest(self) -> str:
        """What an owner's IT computes from the wheel."""
        told = self.federation.user.ask("version", "--wheel", self.wheel)
        assert told["kind"] == "wheel"
        return str(told["digest"])

    def restart(self, **variables: str) -> None:
        proxy = self.federation.proxy
        proxy.environment = {**proxy.environment, **variables}
        proxy.restart()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("software")
    checkout = copy_of_checkout(folder)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", folder, checkout], check=True)
    (wheel,) = folder.glob("dpdpca-*.whl")
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    lend_packages(environment)
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([environment / "bin" / "python", *install, wheel], check=True)
    federation = Federation(folder / "federation")
    proxy = federation.proxy
    federation.proxy = InstalledServer(**vars(proxy), environment_folder=environment)
    try:
        federation.serve(federation.proxy)
        yield World(federation, wheel, environment)
    finally:
        federation.end()


def accept(owner: Owner, *digests: str) -> None:
    listed = ", ".join(f'"{digest}"' for digest in digests)
    text = POLICY.replace("min_owners = 1", f"min_owners = 1\nsoftware = [{listed}]")
    (owner.home / "policy.toml").write_text(text)


def refused(outcome: Outcome, *said: str) -> None:
    assert outcome.status == 1
    assert "this owner's policy refuses the study" in outcome.err
    for each in said:
        assert each in outcome.err


def test_a_whole_study_at_a_proxy_from_a_reviewed_wheel(world: World, tmp_path: Path) -> None:
    federation, digest = world.federation, world.digest()
    card = world.card()
    assert (card.kind, card.digest) == (SoftwareKind.WHEEL, digest)
    owners = [federation.new_owner(f"Hospital {number}") for number in "123"]
    features = [{"name": name, "lower": 0, "upper": 300} for name in ("weight", "age")]
    terms = {"participants": [owner.name for owner in owners], "min_owners": 3, "closing": "when-complete"}
    study = federation.user.create_study(draft(**terms, features=features, clip_norm="1.4"))
    address = f"{federation.url}/{study}"
    files = [write_csv(tmp_path / f"{seed}.csv", patients(60, seed)) for seed in range(3)]
    for owner in owners:
        accept(owner, STRANGE, digest)
    accept(owners[0], STRANGE)
    sheet = owners[0].ask("owner", "review", address)
    assert sheet["proxy"]["software"] == card.to_body()
    refused(owners[0].run("owner", "join", address, "--data", files[0], "--yes"), digest, STRANGE)
    assert owners[0].status(address)["receipt"] is None
    accept(owners[0], digest)
    for owner, file in zip(owners, files, strict=True):
        owner.join(address, file)
    federation.user.wait_state(study, "published")
    verified = federation.user.run("user", "verify", study)
    assert f"release and transcript name the same software: {card}" in " ".join(verified.out.split())
    told = owners[1].status(address)["software"]
    assert told["is_accepted"] is True
    assert digest in told["text"]
    accept(owners[1], STRANGE)
    assert owners[1].status(address)["software"]["is_accepted"] is False
    audit = federation.proxy_machine.run("proxy", "audit", study)
    assert audit.status == 0, audit.err


def test_an_operator_may_name_the_image_and_not_just_anything(world: World) -> None:
    proxy = world.federation.proxy
    before = dict(proxy.environment)
    try:
        world.restart(DPDPCA_PROXY_IMAGE_DIGEST=IMAGE)
        assert (world.card().kind, world.card().digest) == (SoftwareKind.IMAGE, IMAGE)
        proxy.stop()
        command = [str(world.environment / "bin" / "dpdpca"), *proxy.arguments]
        environment = {**before, "DPDPCA_PROXY_IMAGE_DIGEST": "latest"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert "image_digest" in done.stderr
    finally:
        proxy.environment = before
        proxy.start()


def test_a_proxy_whose_files_were_changed_says_so_and_gets_nothing(world: World, tmp_path: Path) -> None:
    federation, digest = world.federation, world.digest()
    (changed,) = world.environment.glob("lib/*/site-packages/dpdpca_proxy/__init__.py")
    owner = federation.new_owner("Hospital 4")
    accept(owner, digest)
    features = [{"name": name, "lower": 0, "upper": 300} for name in ("weight", "pressure")]
    terms = {"participants": [owner.name], "min_owners": 1, "closing": "when-complete"}
    study = federation.user.create_study(draft(**terms, features=features, clip_norm="1.4"))
    address, file = f"{federation.url}/{study}", write_csv(tmp_path / "records.csv", patients(60, 9))
    changed.write_text(changed.read_text() + "# a colleague's quick change\n")
    world.restart()
    card = world.card()
    assert card.kind is SoftwareKind.ALTERED
    assert card.digest not in (None, digest)
    assert "installed files differ from the wheel" in federation.proxy.log.read_text()
    join = owner.run("owner", "join", address, "--data", file, "--yes")
    refused(join, "altered after the installation", str(card.digest), digest)
    assert federation.requests("PUT", "/v1/studies/{study}/share/chunks/{position}") == 0


def test_the_printed_recipe_computes_the_digest(world: World, tmp_path: Path) -> None:
    """docs/operations.md prints it, for whoever does not trust this program."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (recipe,) = [line for line in page.splitlines() if "xargs sha256sum | sha256sum" in line]
    subprocess.run([sys.executable, "-m", "zipfile", "-e", world.wheel, tmp_path], check=True)
    said = subprocess.run(
        ["sh", "-c", recipe], cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ}
    ).stdout
    assert f"sha256:{said.split()[0]}" == world.digest()
