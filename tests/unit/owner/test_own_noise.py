"""An owner that draws its part of the noise: in each value once, whatever interrupts it, and never on N."""

import shutil
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from owner_scene import MakeScene, Scene
from present import present

from dpdpca_owner import actions
from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.paillier.chunks import decode_chunk
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.wire.salts import unsalted


@pytest.fixture
def scene(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr("dpdpca_owner.share_chunks.CHUNK_CIPHERTEXTS", 2)
    features = [{"name": f"f{index}", "lower": 0, "upper": index + 1} for index in range(12)]
    return make_scene(noise_by="owners", max_colluding=1, features=features)


def noise_of(scene: Scene) -> list[int]:
    """What stands in the share at the proxy beyond the owner's integers."""
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    figures, secret = prepared.manifest.figures, scene.parties.secret
    ciphertexts = [
        c
        for _, chunk in sorted(scene.proxy.chunks.items())
        for c in decode_chunk(unsalted(chunk), secret.public)
    ]
    vectors = PaillierVectors(secret.public, figures.slot_bits)
    seen = vectors.decrypt_vector(secret, ciphertexts, figures.value_count)
    return [a - b for a, b in zip(seen, prepared.contribution.sums.stream(), strict=True)]


def join(scene: Scene) -> None:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    actions.join(scene.desk, scene.address, prepared, Watcher())


def assert_one_share(scene: Scene, noise: list[int]) -> None:
    law = actions.review(scene.desk, scene.address, None).manifest.figures.law(1, owners=1)
    assert noise[0] == 0
    assert all(abs(x) <= law.sum_bound for x in noise[1:13])
    assert all(abs(x) <= law.triangle_bound for x in noise[13:])
    assert sum(x != 0 for x in noise) > len(noise) - 3
    # Each value has a draw of its own.
    assert len(set(noise)) > len(noise) - 3


def test_a_share_holds_one_part_of_the_noise(scene: Scene) -> None:
    join(scene)
    assert_one_share(scene, noise_of(scene))


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_share_goes_on_with_the_draws_that_it_has_sent(scene: Scene, after: int) -> None:
    seen: list[int] = []

    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PUT":
            seen.append(1)
            if len(seen) > after:
                raise httpx.ReadError("cut")
        return None

    scene.proxy.interfere = interfere
    with pytest.raises(DpdpcaError):
        join(scene)
    kept = dict(present(scene.proxy.upload)[1])
    folder: StudyFolder = scene.desk.home.study(scene.address.study)
    made = {int(path.stem): folder.chunk(int(path.stem)) for path in (folder.path / "chunks").glob("*.bin")}
    assert kept
    assert kept.items() <= made.items()
    scene.proxy.interfere = lambda request: None
    join(scene)
    # The proxy would have refused another ciphertext for a place that it holds.
    assert scene.proxy.signed_version == 1
    assert made.items() <= scene.proxy.chunks.items()
    assert_one_share(scene, noise_of(scene))


def test_a_lost_share_is_made_again_under_another_version_and_other_draws(scene: Scene) -> None:
    join(scene)
    first = noise_of(scene)
    with Path(scene.location.data).open("a", encoding="utf-8") as file:
        file.write(",".join("0" * 12) + "\n")
    join(scene)
    assert scene.proxy.signed_version == 2
    second = noise_of(scene)
    assert_one_share(scene, second)
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 4


def test_the_same_records_have_the_same_noise_after_everything_on_the_disk_is_lost(scene: Scene) -> None:
    join(scene)
    first = noise_of(scene)
    shutil.rmtree(scene.desk.home.study(scene.address.study).path)
    scene.proxy.chunks.clear()
    scene.proxy.signed_version = 0
    scene.proxy.receipt = None
    join(scene)
    assert noise_of(scene) == first


def test_another_study_has_other_noise(scene: Scene) -> None:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    key = scene.desk.home.ledger.key()
    other = replace(prepared.manifest, title="Another study")
    again, changed = (
        read_contribution(scene.location, manifest, key) for manifest in (prepared.manifest, other)
    )
    assert prepared.contribution.noise_seed == again.noise_seed != changed.noise_seed
    assert prepared.contribution.digest == changed.digest
    assert "noise_seed" not in repr(again)


def test_the_sheet_says_who_draws_and_what_that_changes(scene: Scene) -> None:
    facts = actions.review(scene.desk, scene.address, None).to_json()
    assert (facts["noise_by"], facts["max_colluding"]) == ("owners", 1)
    promise, decrypt = (" ".join(facts["statements"][part]) for part in ("promise", "decrypt"))
    assert "noise drawn by the owners" in promise
    assert "needs 2 owners that do so and keep their noise secret" in promise
    assert "proved privacy: (ε, δ) = (1, " in promise
    assert "neither draws nor knows the noise" in decrypt
    assert "does not hold against the proxy" not in decrypt
