"""The file of the proxy's generation is locked while it is written, and nobody waits for it for ever."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from proxy_world import ProxyWorld, values_of

from dpdpca_protocol.errors import ConflictError, UnavailableError
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_proxy.store import witness
from dpdpca_proxy.store.witness import Mark, Witness
from dpdpca_runtime.locks import locked


def held(path: Path) -> AbstractContextManager[None]:
    """As by another process of the proxy."""
    return locked(Path(f"{path}.lock"), patience_seconds=0, busy=ConflictError("busy", "it is held"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "_LOCK_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
def test_a_process_that_hangs_with_the_file_is_named(tmp_path: Path) -> None:
    file = Witness(tmp_path / "marks" / "generation.json")
    first, second = Mark(1, Digest.of(b"1")), Mark(2, Digest.of(b"2"))
    file.raise_to(first)
    with held(file.path):
        for act in (file.raise_to, file.replace):
            with pytest.raises(UnavailableError, match="another process of this proxy") as busy:
                act(second)
            assert busy.value.slug == "busy"
    assert file.read() == first
    file.raise_to(second)
    assert file.read() == second


@pytest.mark.usefixtures("impatient")
def test_an_act_that_could_not_be_witnessed_is_found_done_when_it_is_tried_again(world: ProxyWorld) -> None:
    study, owner = world.open_study(3), world.owners[0]
    chunks = study.plain_chunks(values_of(3, 0))
    study.upload(owner, chunks)
    claim = study.claim(owner, chunks)
    with held(world.proxy.settings.witness_path):
        with pytest.raises(UnavailableError) as busy:
            world.client(owner).complete_share(study.study, claim)
        assert busy.value.slug == "busy"
    world.client(owner).complete_share(study.study, claim)
    assert world.client(world.user).study(study.study).owners_complete == 1
