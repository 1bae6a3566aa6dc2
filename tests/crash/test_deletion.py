"""What is deleted with a release is gone from every byte of the folder, while the proxy runs on."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from folders import paths_below
from promises import Promise
from proxy_world import InlineWorker, OpenStudy, ProxyWorld, values_of, wait_for

from dpdpca_proxy.store.files import draw_name
from dpdpca_proxy.study_files import StudyFiles

WIDTH = 32


def windows(contents: Iterable[bytes]) -> set[bytes]:
    """Every run of 32 bytes, at every place."""
    return {content[at : at + WIDTH] for content in contents for at in range(len(content) - WIDTH + 1)}


def hits(home: Path, wanted: set[bytes]) -> tuple[int, int]:
    """How often any of the windows stands in any file, and how many bytes were looked at."""
    found = searched = 0
    for path in home.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            searched += len(content)
            found += sum(content[at : at + WIDTH] in wanted for at in range(len(content) - WIDTH + 1))
    return found, searched


class Spy(InlineWorker):
    """Notes what was drawn, in clear, as the worker has it in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[bytes] = []
        self.held = True

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if function.__name__ == "make_release" and self.held:
            raise RuntimeError
        outcome = super().call(function, *args, **options)
        if function.__name__ == "draw":
            place = args[0]
            assert isinstance(place, StudyFiles)
            self.drawn.append(place.read_bytes(draw_name(place.study, outcome)))
        return outcome


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_shares_noise_and_mask_are_gone(
    stopped_world: ProxyWorld, release: str, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    from dpdpca_proxy import jobs

    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.05)
    world = stopped_world
    world.worker = spy = Spy()
    world.start()
    world.enrol_all()
    study = world.open_study(6, release=release, closing="when-complete")
    clear, sent = deliver_all(study)
    if release == "masked":
        world.client(world.user).answer_count(study.study, study.count_answer(study.challenge()))
    wait_for(lambda: bool(spy.drawn))
    sealed = [path.read_bytes() for path in (world.home / "studies").rglob("*") if path.is_file()]
    with world.proxy.database.reading("key") as connection:
        key = bytes(connection.exec_driver_sql("SELECT sealed FROM data_keys").scalar_one())
    at_rest = windows([*sealed, key])
    before, _ = hits(world.home, at_rest)
    secret = windows([*clear, *sent, *spy.drawn, world.proxy.data_key(study.study)])
    assert hits(world.home, secret)[0] == 0  # in clear it never was there
    spy.held = False
    study.wait_state("released")
    wait_for(lambda: not any(path.name == "sealed" for path in paths_below(world.home / "studies")))
    after, searched = hits(world.home, at_rest | secret)
    assert (before > 1000, after) == (True, 0)
    assert list(world.home.glob("*-wal"))  # the log of the database was among them
    wanted = len(at_rest | secret)
    promise(
        "P24",
        counted=f"{release}: {wanted} windows of 32 bytes in {searched} bytes, {before} before",
        result=f"{after} after the release",
    )


def deliver_all(study: OpenStudy) -> tuple[list[bytes], list[bytes]]:
    """The chunks of all shares, in clear and as they were sent."""
    world, clear, sent = study.world, [], []
    for seed, owner in enumerate(world.owners):
        chunks = study.plain_chunks(values_of(study.d, seed))
        bodies = [study.seal(owner, chunk, 1, position) for position, chunk in enumerate(chunks)]
        client = world.client(owner)
        for position, body in enumerate(bodies):
            client.put_chunk(study.study, 1, position, body)
        client.complete_share(study.study, study.claim(owner, chunks))
        clear += chunks
        sent += bodies
    return clear, sent
