"""A sample of what would leave: it looks like a share, belongs to nobody, and no command sends it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from folders import files_below
from owner_scene import MakeScene, OwnerCommands, Scene

from dpdpca_owner import actions
from dpdpca_owner.agent import Agent
from dpdpca_owner.commands.app import app
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import CryptographicError, DpdpcaError, UsageError
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_protocol.wire.sealing import chunk_info, open_sealed
from dpdpca_protocol.wire.signing import verify_statement

OWNERS = {"noise_by": "owners", "max_colluding": 1}
KINDS: list[dict[str, Any]] = [
    {"release": "masked"},
    {"release": "joint"},
    {"release": "joint", "suite": "pads", **OWNERS},
    {"release": "joint", **OWNERS, "blinding": "pairwise"},
    {"release": "pairs"},
    {"release": "pre-study", "blocks": {"norms": 0.5, "octaves": 0.5}},
]


def sampled(scene: Scene, folder: Path) -> dict[str, bytes]:
    """The files of a sample, by name."""
    actions.review(scene.desk, scene.address, scene.location, save=folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def statement_of(files: dict[str, bytes]) -> ShareStatement:
    return ShareStatement.parse(verify_statement("share", files["statement.json"]))


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_a_sample_has_the_files_and_sizes_of_a_share(
    make_scene: MakeScene, tmp_path: Path, changes: dict[str, Any]
) -> None:
    scene = make_scene(**changes)
    sheet = actions.review(scene.desk, scene.address, None)
    files = sampled(scene, tmp_path / "sample")
    chunks = [content for name, content in files.items() if name.startswith("chunk-")]
    assert set(files) == {*(f"chunk-{n}.bin" for n in range(len(chunks))), "statement.json", "README.txt"}
    assert sum(map(len, chunks)) == sheet.sealed_bytes
    assert len(chunks) == sheet.manifest.figures.chunk_count
    assert len(statement_of(files).chunk_digests) == len(chunks)
    assert (statement_of(files).pad is not None) == (sheet.manifest.figures.ciphertext_count == 0)
    assert "nobody can open the sample" in " ".join(files["README.txt"].decode().split())


@pytest.mark.parametrize("changes", [KINDS[1], KINDS[3]], ids=str)
def test_a_sample_names_no_key_and_nobody_opens_it(
    make_scene: MakeScene, tmp_path: Path, changes: dict[str, Any]
) -> None:
    scene = make_scene(**changes)
    files = sampled(scene, tmp_path / "sample")
    key, proxy = scene.desk.owner.key, scene.parties.proxy
    identities = [each.public for each in (key, scene.parties.user, proxy, *scene.parties.owners)]
    named = [bytes(scene.address.study), scene.desk.home.ledger.read().last]
    for each in identities:
        named += [each.ed25519, each.party_id, *((each.kem,) if each.kem else ())]
    content = b"".join(files.values())
    assert not any(secret in content or secret.hex().encode() in content for secret in named if secret)
    statement = statement_of(files)
    for info in (
        chunk_info(scene.address.study, key.public.party_id, 1, 0),
        chunk_info(statement.study, PartyId.of(statement.owner), 1, 0),
    ):
        with pytest.raises(CryptographicError):
            open_sealed(files["chunk-0.bin"], proxy.opening_key, info)


def test_every_sample_has_new_keys(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene(**KINDS[3])
    first, second = (statement_of(sampled(scene, tmp_path / name)) for name in ("one", "two"))
    assert len({first.owner, second.owner}) == 2
    assert len({first.study, second.study}) == 2
    assert len({first.pad, second.pad}) == 2
    assert not set(first.chunk_digests) & set(second.chunk_digests)


def test_a_sample_changes_nothing_here_and_a_share_can_follow(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene(**KINDS[3])
    home = scene.desk.home.path
    before = {path: path.read_bytes() for path in files_below(home)}
    sampled(scene, tmp_path / "sample")
    assert {path: path.read_bytes() for path in files_below(home)} == before
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    assert actions.join(scene.desk, scene.address, prepared, Watcher()).receipt.subject == "share"


def test_a_sample_needs_data_and_a_folder_of_its_own(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene()
    with pytest.raises(UsageError) as caught:
        actions.review(scene.desk, scene.address, None, save=tmp_path / "sample")
    assert caught.value.slug == "no-data"
    for taken in (tmp_path, Path(scene.location.data)):
        with pytest.raises(UsageError) as caught:
            actions.review(scene.desk, scene.address, scene.location, save=taken)
        assert caught.value.slug == "folder-in-use"


def lines_with(command: Any, address: str, data: str, sample: Path) -> Iterator[list[str]]:
    """Command lines with a file or the folder of a sample in one place, and what is right in all others."""
    options = [each for each in command.params if each.param_type_name == "option"]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    named = {each.name for each in options}
    usual = {"data": data, "out": str(sample.parent / "out.npz")}
    right = [address, "Hospital B"][: len(arguments)]
    right += ["--yes"] if "yes" in named else []
    for place in (sample, sample / "chunk-0.bin"):
        yield [str(place), *right[1:]] if arguments else right
        for option in options:
            if option.is_flag or option.name in ("decimal", "encoding"):
                continue
            words = [*right, option.opts[0], str(place)]
            for name in sorted(usual.keys() & named - {option.name}):
                words += [f"--{name}", usual[name]]
            yield words


def look_once(agent: Agent, *pace: object) -> None:
    """An agent would look for ever."""
    agent.look()
    raise typer.Exit


def test_no_command_sends_a_sample(
    run: OwnerCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command of an owner gets the sample in every place where it takes a text or a path."""
    monkeypatch.setattr(Agent, "run", look_once)
    scene, folder = run.scene, tmp_path / "sample"
    files = sampled(scene, folder)
    sent: list[bytes] = []

    def listen(request: httpx.Request) -> None:
        sent.append(str(request.url).encode() + request.read())

    scene.proxy.interfere = listen
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # the app is a group
    assert {"join", "review", "withdraw"} <= set(commands)
    for name in sorted(commands, key=lambda name: name == "withdraw"):
        for words in lines_with(commands[name], str(scene.address), scene.location.data, folder):
            run(name, *words)
    assert scene.proxy.receipt is not None, "with the owner's data in their place, a share was sent"
    statement = statement_of(files)
    marks = [files["chunk-0.bin"][:64], statement.owner, statement.study, statement.chunk_digests[0]]
    for body in sent:
        assert not any(mark in body or mark.hex().encode() in body for mark in marks)


def test_a_proxy_does_not_open_a_sample(make_scene: MakeScene, tmp_path: Path) -> None:
    """Somebody who writes a program for it gets no further than the seal of the first chunk."""
    scene = make_scene()
    files = sampled(scene, tmp_path / "sample")
    with scene.desk.client(scene.address.proxy) as client, pytest.raises(DpdpcaError):
        client.put_chunk(scene.address.study, 1, 0, files["chunk-0.bin"])
    assert scene.proxy.upload is None
    statement = statement_of(files)
    assert statement.study != scene.address.study
    assert statement.owner not in {owner.public.ed25519 for owner in scene.parties.owners}
