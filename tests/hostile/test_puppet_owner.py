"""A proxy enrols an owner of its own, which delivers zeros and so receives the sealed components.

The proxy drew the noise, and takes it off. A study that names nobody carries a second noise, so that nothing
is gained; a study names all that are enrolled only if that is said, and then it says whom.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from proxy_world import ProxyWorld, Values
from user_world import UserWorld, share_values

from dpdpca_protocol.errors import ConflictError, UnavailableError
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.result.components import Components
from dpdpca_protocol.result.publication import parse_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.sealing import components_info, open_sealed
from dpdpca_protocol.wire.signing import IdentityKey, verify_statement
from dpdpca_proxy.store.files import draw_name
from dpdpca_proxy.worker import draw
from dpdpca_runtime.http.answers import PartyFacts
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.words import fingerprint_words
from dpdpca_user_service.operations import close_study, create_study, model_facts, publish_study
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.studies import StudyRow

D = 3
NOBODY: dict[str, Any] = {"participants": None, "closing": "at-time"}
"""A draft that is silent on whom it is for."""


@dataclass
class Scene:
    """A proxy that keeps what it draws, and that has enrolled an owner of its own."""

    user: UserWorld
    puppet: IdentityKey = field(default_factory=IdentityKey.generate)
    noise: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.user.world.enrol(self.puppet, "owner", "Hospital D")
        worker = self.user.world.worker
        call = worker.call

        def watched(function: Any, /, *given: Any, **options: Any) -> Any:
            answer = call(function, *given, **options)
            if function is draw:
                files = given[0]
                kept = files.read_bytes(draw_name(files.study, answer)).partition(b"\n")[2]
                self.noise[:] = np.frombuffer(kept, dtype="<i8").tolist()
            return answer

        worker.call = watched  # type: ignore[method-assign] # for this test alone

    def run(self, **changes: Any) -> StudyRow:
        """A study of two honest owners, and of the puppet with its zeros, to published components."""
        row = self.user.advance_to(self.user.create(**changes), Stage.OPEN)
        self.deliver(row)
        return self.user.advance_to(row, Stage.PUBLISHED)

    def deliver(self, row: StudyRow) -> None:
        study = self.user.opened(row)
        self.honest = [share_values(study, seed) for seed in range(2)]
        for owner, values in zip(self.user.world.owners[:2], self.honest, strict=True):
            study.deliver(owner, values)
        study.deliver(self.puppet, Values(0, [0] * D, [0] * (D * (D + 1) // 2)))
        close_study(self.user.service, row.id)

    def received(self, row: StudyRow) -> Components:
        """What the puppet gets, and gives to the proxy."""
        published = self.user.world.client(self.puppet).components(row.known_study)
        statement = verify_statement("components", published, self.user.world.user.public.ed25519)
        copy = SealedComponents.parse(statement).sealed[self.puppet.public.party_id]
        plain = open_sealed(copy, self.puppet.opening_key, components_info(row.known_study))
        return parse_components(plain, row.known_study)

    def errors(self, row: StudyRow) -> tuple[float, float]:
        """The attack: how far from the exact sums v and second moments R the proxy is, in grid units."""
        components, grid = self.received(row), self.user.opened(row).manifest.figures.grid
        n, mean = components.count, components.mean
        assert mean is not None
        noisy_sum = np.asarray(mean) * n * grid  # the bounds are −1 and 1
        scatter = components.vectors.T @ np.diag(components.eigenvalues) @ components.vectors
        noisy_moment = scatter * (n - 1) * grid**2 + np.outer(noisy_sum, noisy_sum) / n
        own_sum, own_moment = np.array(self.noise[1 : 1 + D]), np.array(self.noise[1 + D :])
        found_sum = noisy_sum - own_sum
        found_moment = noisy_moment[np.triu_indices(D)] - own_moment
        true_sum = np.sum([values.sums for values in self.honest], axis=0)
        true_moment = np.sum([values.upper for values in self.honest], axis=0)
        return (
            float(np.abs(found_sum - true_sum).max()),
            float(np.abs(found_moment - true_moment).max()),
        )


@pytest.fixture
def scene(world: ProxyWorld, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(UserWorld(world, tmp_path / "user"))
    yield made
    made.user.service.close()


def scale(scene: Scene, row: StudyRow) -> float:
    """t, in grid units; a distance below a ten-thousandth of it has a chance of 10⁻¹² at most."""
    return float(scene.user.opened(row).manifest.figures.noise_scale)


def test_nobodys_study_gives_the_puppet_nothing_that_the_proxy_can_take_its_noise_off(scene: Scene) -> None:
    row = scene.run(**NOBODY)
    assert scene.user.opened(row).manifest.participants == ()
    sums, moments = scene.errors(row)
    assert moments > 1e-4 * scale(scene, row)
    assert sums > 1
    facts = model_facts(scene.user.service, row.id)
    assert (facts["privacy"]["noise_draws"], row.in_clear) == (2, True)
    assert "against the proxy too" in facts["claim"]


def test_without_the_second_noise_the_proxy_has_the_exact_sums(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: v to the last unit, and R up to the rounding of doubles."""
    monkeypatch.setattr(Manifest, "needs_second_noise", False)
    row = scene.run(**NOBODY)
    sums, moments = scene.errors(row)
    assert sums < 1e-3
    assert moments < 1e-7 * scale(scene, row)


def test_all_enrolled_are_named_only_if_that_is_said_and_then_the_puppet_is_shown(scene: Scene) -> None:
    """What remains: who names an owner that works with the proxy gives it the components (A2)."""
    drafted = scene.user.draft(closing="at-time")
    told = create_study(scene.user.service, "0f" * 16, drafted, "application/json", None, True)
    assert {owner["name"]: owner["words"] for owner in told["participants"]}["Hospital D"] == (
        fingerprint_words(scene.puppet.public.ed25519)
    )
    row = scene.user.advance_to(scene.user.row("0f" * 16), Stage.OPEN)
    scene.deliver(row)
    row = scene.user.advance_to(row, Stage.PUBLISHED)
    assert not row.in_clear
    sums, _ = scene.errors(row)
    assert sums < 1e-3


def test_a_study_in_clear_withstands_a_named_puppet(scene: Scene) -> None:
    row = scene.run(closing="at-time", in_clear=True)
    sums, moments = scene.errors(row)
    assert (sums > 1, moments > 1e-4 * scale(scene, row)) == (True, True)


def test_the_proxy_cannot_put_another_key_under_a_name_that_was_shown(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers honestly while a person looks, and with its puppet under that name when the key is made."""
    row = scene.user.create(participants=["Hospital A", "Hospital B"], closing="at-time")
    parties = ProxyClient.parties

    def swapped(client: ProxyClient, *, with_statements: bool = False) -> tuple[PartyFacts, ...]:
        listed = parties(client, with_statements=with_statements)
        return tuple(
            replace(party, ed25519=self_made.ed25519) if party.name == "Hospital B" else party
            for party in listed
        )

    self_made = scene.puppet.public
    monkeypatch.setattr(ProxyClient, "parties", swapped)
    row = scene.user.advance_to(row, Stage.OPEN)
    named = [party.ed25519 for party in scene.user.opened(row).manifest.participants]
    assert named == [owner.public.ed25519 for owner in scene.user.world.owners[:2]]


def test_nobody_is_named_unseen_while_the_proxy_does_not_answer(scene: Scene) -> None:
    scene.user.world.stop()
    with pytest.raises(UnavailableError):
        scene.user.create()
    assert scene.user.service.store.all() == []
    scene.user.create(**NOBODY)
    scene.user.world.start()


def test_a_model_of_an_earlier_version_without_the_second_noise_is_not_published(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(Manifest, "needs_second_noise", False)
        row = scene.user.advance_to(scene.user.create(publish=False, **NOBODY), Stage.OPEN)
        scene.deliver(row)
        row = scene.user.advance_to(row, Stage.FITTED)
    scene.user.reopen()
    with pytest.raises(ConflictError, match="names nobody and the proxy drew the noise"):
        publish_study(scene.user.service, row.id)
    scene.user.service.store.note(row, publish=True)  # as an earlier version left it
    row = scene.user.advance(row)
    assert (row.stage, row.publish, row.problem_slug) == (Stage.FITTED, False, "wrong-state")
    assert scene.user.service.store.unfinished() == []
    assert scene.user.service.store.blob(row.id, "published") is None
