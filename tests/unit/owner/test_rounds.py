"""Lift and scores against the owner's own copies of earlier rounds, and the components that scores need."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wide_studies as wide
from study_parties import MakeManifest, Parties
from wide_world import made_up, with_fewer_features

from dpdpca_owner.home import Owner, OwnerHome
from dpdpca_owner.rounds import check_earlier_rounds, components_of_lift, lift_before, misfit
from dpdpca_protocol.errors import ConflictError, DpdpcaError, NotAllowedError, PolicyError, UnavailableError
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.result.components import Components
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import Statement

VECTORS = np.eye(wide.K, wide.D)


@dataclass
class Client:
    """Gives one answer about components."""

    answer: bytes | DpdpcaError

    def components(self, _study: StudyId) -> bytes:
        if isinstance(self.answer, DpdpcaError):
            raise self.answer
        return self.answer


@pytest.fixture
def home(tmp_path: Path) -> OwnerHome:
    return OwnerHome(tmp_path / "home")


def keep(home: OwnerHome, manifest: Manifest, parties: Parties) -> None:
    """As after joining the study."""
    home.study(manifest.study_id).save_manifest(sign_manifest(manifest, parties.user))


def published(lift: Manifest, parties: Parties, components: Components | None = None) -> Statement:
    key, study = parties.owners[0].public, lift.study_id
    plain = encode_components(study, components or made_up(lift, VECTORS))
    keys = {key.party_id: key.sealing_key}
    return SealedComponents.seal_once(study, plain, keys).sign(parties.user)


def scores_on(make_manifest: MakeManifest, lift: Manifest, statement: Statement, columns: int) -> Manifest:
    named = {"columns": columns, "study": lift.study_id.hex(), "components": statement.digest.hex()}
    return wide.scores(make_manifest, scores=named | {"norm": "1.5"})


@pytest.mark.parametrize("of", ["records", "pairs"])
def test_rounds_that_fit_are_accepted(
    of: str, home: OwnerHome, make_manifest: MakeManifest, parties: Parties
) -> None:
    sketch, lift, scores = (make(make_manifest, of) for make in wide.CHAIN.values())
    keep(home, sketch, parties)
    check_earlier_rounds(sketch, home)
    check_earlier_rounds(lift, home)
    assert misfit(scores, home) is not None
    keep(home, lift, parties)
    assert misfit(scores, home) is None
    assert lift_before(scores, home).manifest == lift


@pytest.mark.parametrize(
    "changes",
    [
        {"clip_norm": "1.5"},
        {"fraction_bits": 12},
        {"sketch": {"rows": wide.M, "seed": "ff" * 32}},
        {"of": "pairs", "lift": {"columns": wide.K, "matrix": wide.MATRIX, "offset": [0] * wide.K}},
    ],
)
def test_a_lift_that_differs_from_its_sketch_is_refused(
    changes: dict[str, Any], home: OwnerHome, make_manifest: MakeManifest, parties: Parties
) -> None:
    keep(home, wide.sketch(make_manifest), parties)
    with pytest.raises(PolicyError) as caught:
        check_earlier_rounds(wide.lift(make_manifest, **changes), home)
    assert caught.value.slug == "wrong-round"


def test_a_copy_that_is_missing_or_was_exchanged_counts_as_none(
    home: OwnerHome, make_manifest: MakeManifest, parties: Parties
) -> None:
    sketch, lift = wide.sketch(make_manifest), wide.lift(make_manifest)
    with pytest.raises(PolicyError, match="not one"):
        check_earlier_rounds(lift, home)
    other = wide.sketch(make_manifest, title="Another")
    home.study(sketch.study_id).save_manifest(sign_manifest(other, parties.user))
    with pytest.raises(PolicyError, match="not one"):
        check_earlier_rounds(lift, home)


@dataclass
class Ready:
    """An owner that took part in sketch and lift. `ask` answers about components as the proxy would."""

    lift: Manifest
    ask: Callable[..., Components]


@pytest.fixture
def ready(home: OwnerHome, make_manifest: MakeManifest, parties: Parties) -> Ready:
    lift = wide.lift(make_manifest)
    for each in (wide.sketch(make_manifest), lift):
        keep(home, each, parties)
    owner = Owner("Hospital A", parties.owners[0])

    def ask(answer: Statement | DpdpcaError, named: Statement | None = None) -> Components:
        statement = named or (answer if isinstance(answer, Statement) else published(lift, parties))
        scores = scores_on(make_manifest, lift, statement, wide.K)
        said = answer.encoded if isinstance(answer, Statement) else answer
        client: Any = Client(said)
        return components_of_lift(scores, lift_before(scores, home), client, owner)

    return Ready(lift, ask)


def test_the_components_of_the_lift_are_opened(ready: Ready, parties: Parties) -> None:
    np.testing.assert_array_equal(ready.ask(published(ready.lift, parties)).vectors, VECTORS)


def test_components_that_are_not_there_yet(ready: Ready) -> None:
    with pytest.raises(ConflictError) as caught:
        ready.ask(ConflictError("not-ready", "no components are published yet", ""))
    assert caught.value.slug == "no-components-yet"
    for other in (NotAllowedError("not-in-the-cohort", "", ""), UnavailableError("busy", "", "")):
        with pytest.raises(type(other)) as passed:
            ready.ask(other)
        assert passed.value is other


def test_scores_that_name_another_statement_are_refused(ready: Ready, parties: Parties) -> None:
    """The same components sealed again are another statement."""
    answer, named = published(ready.lift, parties), published(ready.lift, parties)
    with pytest.raises(PolicyError) as caught:
        ready.ask(answer, named)
    assert caught.value.slug == "wrong-round"


@pytest.mark.parametrize(
    ("vectors", "change", "slug"),
    [
        (np.eye(1, wide.D), lambda found: found, "wrong-round"),
        (np.eye(wide.K + 1, wide.D), lambda found: found, "components-differ"),
        (VECTORS, with_fewer_features, "malformed"),
    ],
)
def test_components_of_something_else_are_refused(
    vectors: Any, change: Callable[[Components], Components], slug: str, ready: Ready, parties: Parties
) -> None:
    with pytest.raises(DpdpcaError) as caught:
        ready.ask(published(ready.lift, parties, change(made_up(ready.lift, vectors))))
    assert caught.value.slug == slug
