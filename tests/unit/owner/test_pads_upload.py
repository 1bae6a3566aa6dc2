"""An owner under pads: one list of values under one key, whatever interrupts it; no secret is left."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from owner_scene import MakeScene, Scene
from present import present
from promises import Promise
from study_parties import PADS_SECRET

from dpdpca_owner import actions
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_owner.upload import Outcome, Settled, Watcher
from dpdpca_protocol.errors import ConflictError, DpdpcaError
from dpdpca_protocol.layout.blocks import whole_numbers
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.pads import chunks
from dpdpca_protocol.pads.keys import ShareKeys, open_pad_key
from dpdpca_protocol.pads.streams import PadKey
from dpdpca_protocol.release.suite import CohortShare
from dpdpca_protocol.terms.signed_manifest import parse_manifest, suite_of
from dpdpca_protocol.wire.salts import unsalted

FEATURES = [{"name": f"f{index}", "lower": 0, "upper": index + 1} for index in range(12)]


@pytest.fixture
def scene(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Twenty values a chunk, so that a small study has five chunks."""
    monkeypatch.setattr("dpdpca_protocol.pads.chunks.CHUNK_VALUES", 20)
    return make_scene(suite="pads", features=FEATURES)


def folder_of(scene: Scene) -> StudyFolder:
    return scene.desk.home.study(scene.address.study)


def join(scene: Scene, watcher: Watcher | None = None) -> Settled:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    return actions.join(scene.desk, scene.address, prepared, watcher or Watcher())


def plain_sums(scene: Scene) -> list[int]:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    return list(prepared.contribution.sums.stream())


def statement_of(scene: Scene, version: int) -> ShareStatement:
    return ShareStatement.parse(present(folder_of(scene).statement("share", version)))


def opened(scene: Scene, version: int = 1) -> list[int]:
    """The values of the share at the proxy, as the data user could open them with the proxy's help."""
    suite = suite_of(parse_manifest(scene.proxy.manifest.body))
    contents = [unsalted(chunk) for _, chunk in sorted(scene.proxy.chunks.items())]
    share = CohortShare(scene.proxy.owner, version, statement_of(scene, version).pad)
    return whole_numbers(suite.open_sum(PADS_SECRET.to_bytes(), contents, [share]))


def pad_key(scene: Scene, version: int) -> bytes:
    pad = present(statement_of(scene, version).pad)
    return open_pad_key(pad, PADS_SECRET, scene.address.study, scene.proxy.owner, version)


def cut(scene: Scene) -> None:
    """A join that fails after the first chunk."""
    seen: list[int] = []

    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PUT":
            seen.append(1)
            if len(seen) > 1:
                raise httpx.ReadError("cut")
        return None

    scene.proxy.interfere = interfere
    with pytest.raises(DpdpcaError):
        join(scene)
    scene.proxy.interfere = lambda request: None


def add_record(scene: Scene) -> None:
    with Path(scene.location.data).open("a", encoding="utf-8") as file:
        file.write(",".join("0" * 12) + "\n")


def test_the_share_opens_to_the_owner_s_integers_and_no_secret_is_left(scene: Scene) -> None:
    made: list[int] = []
    settled = join(scene, Watcher(made.append))
    assert (settled.receipt.version, settled.sent_chunks) == (1, 5)
    assert opened(scene) == plain_sums(scene)
    assert sum(made) == len(plain_sums(scene))
    assert folder_of(scene).secrets() is None
    assert not (folder_of(scene).path / "secrets.json").exists()
    assert not (folder_of(scene).path / "chunks").exists()


def test_an_interrupted_share_goes_on_with_the_same_bytes(scene: Scene) -> None:
    cut(scene)
    before = dict(present(scene.proxy.upload)[1])
    path = folder_of(scene).path / "secrets.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(before) == 1
    assert join(scene).receipt.version == 1
    assert before.items() <= scene.proxy.chunks.items()
    assert opened(scene) == plain_sums(scene)
    assert not path.exists()


def lost_secrets(scene: Scene) -> None:
    folder_of(scene).drop_share()


def damaged_secrets(scene: Scene) -> None:
    (folder_of(scene).path / "secrets.json").write_bytes(b"{}")


@pytest.mark.parametrize("change", [add_record, lost_secrets, damaged_secrets])
def test_other_values_or_lost_secrets_lead_to_a_new_version_with_new_keys(
    scene: Scene, change: Callable[[Scene], None]
) -> None:
    cut(scene)
    first = present(folder_of(scene).secrets()).begun.secrets[:32]
    before = dict(present(scene.proxy.upload)[1])
    change(scene)
    assert join(scene).receipt.version == 2
    assert pad_key(scene, 2) != first
    assert not set(before.values()) & set(scene.proxy.chunks.values())
    assert opened(scene, 2) == plain_sums(scene)


def test_a_chunk_that_differs_at_the_proxy_leads_to_new_keys(scene: Scene) -> None:
    cut(scene)
    first = present(folder_of(scene).secrets()).begun.secrets[:32]
    held = present(scene.proxy.upload)[1]
    (arrived,) = held
    held[arrived] = bytes(len(held[arrived]))
    scene.proxy.interfere = lambda request: None
    shown: list[int] = []

    def claims_to_have_nothing(request: httpx.Request) -> httpx.Response | None:
        if request.method == "GET" and request.url.path.endswith("/share") and not shown:
            shown.append(1)
            facts = {"version": 1, "chunks": [], "state": "partial", "receipt": None}
            return httpx.Response(200, json=facts)
        return None

    scene.proxy.interfere = claims_to_have_nothing
    assert join(scene).receipt.version == 2
    assert pad_key(scene, 2) != first
    assert opened(scene, 2) == plain_sums(scene)


def test_a_replaced_share_has_other_keys(scene: Scene) -> None:
    join(scene)
    before, first = dict(scene.proxy.chunks), pad_key(scene, 1)
    add_record(scene)
    assert join(scene).receipt.version == 2
    assert pad_key(scene, 2) != first
    assert not set(before.values()) & set(scene.proxy.chunks.values())


def test_secrets_are_deleted_when_the_study_has_ended(scene: Scene) -> None:
    cut(scene)
    scene.proxy.state = "closed"
    with pytest.raises(ConflictError):
        join(scene)
    assert not (folder_of(scene).path / "secrets.json").exists()


@pytest.fixture
def noisy_scene(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """The same, but the owners draw the noise."""
    monkeypatch.setattr("dpdpca_protocol.pads.chunks.CHUNK_VALUES", 20)
    return make_scene(suite="pads", features=FEATURES, noise_by="owners", max_colluding=1)


def own_noise(scene: Scene, version: int) -> list[int]:
    return [a - b for a, b in zip(opened(scene, version), plain_sums(scene), strict=True)]


def test_a_killed_owner_with_own_noise_goes_on_with_the_same_version_and_bytes(noisy_scene: Scene) -> None:
    scene = noisy_scene
    for _ in range(2):
        cut(scene)
    first = present(folder_of(scene).secrets()).begun.secrets[:32]
    before = dict(present(scene.proxy.upload)[1])
    assert join(scene).receipt.version == 1
    assert pad_key(scene, 1) == first
    assert before.items() <= scene.proxy.chunks.items()
    noise = own_noise(scene, 1)
    assert noise[0] == 0
    assert sum(x != 0 for x in noise) > len(noise) - 3


def test_a_killed_owner_with_own_noise_and_other_records_takes_a_new_version_and_new_keys(
    noisy_scene: Scene,
) -> None:
    scene = noisy_scene
    cut(scene)
    first = present(folder_of(scene).secrets()).begun.secrets[:32]
    before = dict(present(scene.proxy.upload)[1])
    add_record(scene)
    assert join(scene).receipt.version == 2
    assert pad_key(scene, 2) != first
    assert not set(before.values()) & set(scene.proxy.chunks.values())
    assert own_noise(scene, 2)[0] == 0


def test_there_is_nothing_to_prepare(scene: Scene) -> None:
    ahead = actions.work_ahead(scene.desk, scene.address, lambda count: None)
    assert (ahead.made, ahead.total) == (0, 0)


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("suite", ["pads", "paillier"])
def test_what_a_crash_left_behind_its_receipt_is_deleted_by_the_next_join(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch, suite: str
) -> None:
    scene = make_scene(suite=suite, features=FEATURES)

    def die(_: StudyFolder) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(StudyFolder, "drop_share", die)
        with pytest.raises(Killed):
            join(scene)
    left = {path.name for path in folder_of(scene).path.iterdir()} & {"secrets.json", "chunks"}
    assert len(left) == 1
    assert join(scene).outcome is Outcome.ALREADY
    assert not left & {path.name for path in folder_of(scene).path.iterdir()}


@pytest.mark.parametrize(
    ("records_change", "noise_by"),
    [
        (True, "proxy"),
        pytest.param(True, "owners", marks=pytest.mark.nightly),
        pytest.param(False, "proxy", marks=pytest.mark.nightly),
        pytest.param(False, "owners", marks=pytest.mark.nightly),
    ],
)
def test_a_crash_at_any_write_or_request_never_puts_two_lists_of_values_under_one_key(
    make_scene: MakeScene,
    monkeypatch: pytest.MonkeyPatch,
    promise: Promise,
    records_change: bool,
    noise_by: str,
) -> None:
    monkeypatch.setattr("dpdpca_protocol.pads.chunks.CHUNK_VALUES", 40)
    colluding = {"max_colluding": 1} if noise_by == "owners" else {}
    scene = make_scene(suite="pads", features=FEATURES, noise_by=noise_by, **colluding)
    hidden: dict[tuple[bytes, int], set[bytes]] = {}
    share_chunk, fsync = chunks.share_chunk, os.fsync
    left = 0

    def noted(keys: ShareKeys, index: int, values: chunks.Integers, pairs: tuple[PadKey, ...]) -> bytes:
        hidden.setdefault((keys.pad, index), set()).add(values.tobytes())
        return bytes(share_chunk(keys, index, values, pairs))

    def live() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    def synced(descriptor: int) -> None:
        live()
        fsync(descriptor)

    def asked(request: httpx.Request) -> httpx.Response | None:
        live()
        return None

    monkeypatch.setattr(chunks, "share_chunk", noted)
    monkeypatch.setattr(os, "fsync", synced)
    scene.proxy.interfere = asked
    kills, settled = 0, None
    while settled is None:
        kills += 1
        left = kills
        try:
            settled = join(scene, Watcher(on_sent=lambda count: live()))
        except Killed:
            if records_change:
                add_record(scene)
    left = 0
    assert all(len(lists) == 1 for lists in hidden.values())
    assert len({key for key, _ in hidden}) > 5 or not records_change
    assert kills > 10
    if noise_by == "proxy":
        assert opened(scene, settled.receipt.version) == plain_sums(scene)
    assert not (folder_of(scene).path / "secrets.json").exists()
    promise(
        "P2",
        counted=f"{kills - 1} kills of an owner under pads",
        result=f"{len(hidden)} padded chunks: no two lists of values under one key",
    )
