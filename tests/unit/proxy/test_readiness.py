"""`/readyz` tells the truth, also of a proxy that nobody uses."""

import errno
import time
from typing import Any

import pytest
from proxy_world import ProxyWorld

from dpdpca_proxy import app
from dpdpca_proxy.store.files import FolderStore


def readiness(world: ProxyWorld) -> tuple[int, str]:
    answer = world.request(None, "GET", "/readyz")
    return answer.status_code, answer.json().get("reason", "")


def test_a_storage_that_fails_unseen_is_found(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "PROBE_SECONDS", 0.05)
    assert readiness(world) == (200, "")

    def refusing(*_args: object, **_options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr("dpdpca_proxy.store.files.write_private", refusing)
        time.sleep(0.1)
        assert readiness(world) == (503, "the storage cannot be written")
        assert world.request(None, "GET", "/healthz").status_code == 200
    time.sleep(0.1)
    assert readiness(world) == (200, "")


def test_many_questions_are_one_write(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = []
    probe = FolderStore.probe

    def counted(store: FolderStore) -> Any:
        probes.append(1)
        return probe(store)

    monkeypatch.setattr(FolderStore, "probe", counted)
    for _ in range(30):
        assert readiness(world)[0] == 200
    assert len(probes) <= 2
