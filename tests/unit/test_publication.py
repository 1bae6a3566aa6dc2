import json
from dataclasses import fields

import numpy as np
import pytest

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.result.components import Components, EncodedSpace
from dpdpca_protocol.result.publication import encode_components, parse_components
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.identifiers import StudyId

STUDY = StudyId(bytes(range(32)))


def some_components(with_mean: bool) -> Components:
    space = EncodedSpace(("a", "b = <x>", "ç"), np.array([0.1, 0.0, -5.5]), np.array([3.0, 1.0, 1e-3]), False)
    return Components(
        space=space,
        count=17,
        vectors=np.array([[1.0, 0.0, 0.0], [0.0, 2**-0.5, -(2**-0.5)]]),
        eigenvalues=np.array([0.3, -0.1]),
        noise_edges=np.array([0.2, 0.2]),
        captured=np.array([0.29, 0.0]),
        signals=np.array([0.295, 0.0]),
        overlaps=np.array([0.9, 0.0]),
        noise_scale=1 / 3,
        noise_edge=0.2,
        total_variance=-0.01,
        mean=np.array([1.0, 0.5, 0.25]) if with_mean else None,
    )


@pytest.mark.parametrize("with_mean", [True, False])
def test_components_come_back_bit_for_bit(with_mean: bool) -> None:
    before = some_components(with_mean)
    encoded = encode_components(STUDY, before)
    after = parse_components(encoded, STUDY)
    assert encode_components(STUDY, after) == encoded
    assert after.space.names == before.space.names
    for field in fields(Components):
        if field.name != "space":
            assert np.array_equal(getattr(after, field.name), getattr(before, field.name)), field.name


def test_components_of_another_study_are_refused() -> None:
    with pytest.raises(MessageError, match="another study"):
        parse_components(encode_components(StudyId(bytes(32)), some_components(False)), STUDY)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("eigenvalues", np.array([np.nan, 0.1]).tobytes().hex()),
        ("noise_edge", np.array([np.inf]).tobytes().hex()),
        ("half_range", np.array([1.0, 0.0, 1.0]).tobytes().hex()),
        ("vectors", "00" * 40),
        ("vectors", 5),
        ("eigenvalues", ""),
        ("names", []),
        ("names", ["a", "b", 3]),
        ("common", 0),
        ("count", 0),
        ("count", True),
        ("extra", 1),
        ("format", 1),
    ],
)
def test_malformed_components_are_refused(member: str, value: object) -> None:
    body = json.loads(encode_components(STUDY, some_components(False))) | {member: value}
    with pytest.raises(MessageError):
        parse_components(canonical_json(body), STUDY)


def test_the_leading_ones_are_the_same_components() -> None:
    whole = some_components(True)
    first = whole.leading(1)
    assert first.component_count == 1
    assert np.array_equal(first.vectors, whole.vectors[:1])
    again = parse_components(encode_components(STUDY, first), STUDY)
    row = np.array([[1.0, 2.0, 3.0]])
    assert np.array_equal(again.scores(row), whole.scores(row)[:, :1])
    assert again.captured_share(1) == whole.captured_share(1)
