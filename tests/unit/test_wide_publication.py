"""Components of a lift or of scores as bytes: one form, of a fixed length, checked before it is read."""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.result.components import Components, EncodedSpace, Lifted
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.result.wide_publication import most_bytes, parse_wide_components
from dpdpca_protocol.terms.members import MAX_OWNERS
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.sealing import DATA_KEY_BYTES, SEALING_OVERHEAD_BYTES
from dpdpca_protocol.wire.signing import FORMAT, IdentityKey, sign_statement, verify_statement

STUDY = StudyId(bytes(range(32)))
D, K = 5, 2
HEAD = 4 + 32 + 4 + 4 + 2 + 4 + 4 + 8
SPACE = EncodedSpace(tuple("abcde"), np.zeros(D), np.full(D, 2.0), False)
VECTORS = np.array([[0.6, 0, 0.8, 0, 0], [0, 1, 0, 0, 0]])


def found(with_mean: bool = True, with_deviations: bool = True) -> Components:
    return Components(
        space=SPACE,
        count=17,
        vectors=VECTORS,
        eigenvalues=np.array([0.3, 0.1]),
        noise_edges=np.array([0.2, 0.2]),
        captured=np.array([0.29, 0.0]),
        signals=np.array([0.295, 0.0]),
        overlaps=np.array([0.9, 0.0]),
        noise_scale=1 / 3,
        noise_edge=0.2,
        total_variance=-0.01,
        mean=np.linspace(-1, 1, D) if with_mean else None,
        lifted=Lifted(
            trusted_count=1,
            above_count=2,
            singular_values=np.array([5e9, 3e9]),
            deviations=np.array([0.01, 0.02]) if with_deviations else None,
            of_span=np.array([False, True]),
            unseen_variance=0.05,
        ),
    )


ENCODED = encode_components(STUDY, found())
REALS = 4 + K * 8 + D


@pytest.mark.parametrize("with_mean", [True, False])
@pytest.mark.parametrize("with_deviations", [True, False])
def test_all_numbers_come_back_and_vectors_as_float32(with_mean: bool, with_deviations: bool) -> None:
    before = found(with_mean, with_deviations)
    encoded = encode_components(STUDY, before)
    after = parse_wide_components(encoded, STUDY, SPACE)
    assert encode_components(STUDY, after) == encoded
    assert np.array_equal(after.vectors, VECTORS.astype(np.float32))
    for kind, first, second in ((Components, before, after), (Lifted, before.lifted, after.lifted)):
        for field in fields(kind):
            if field.name not in ("space", "vectors", "lifted"):
                assert np.array_equal(getattr(first, field.name), getattr(second, field.name)), field.name


def test_the_vectors_are_the_last_bytes_and_the_length_is_known() -> None:
    assert len(ENCODED) == HEAD + 8 * REALS + 4 * K * D == most_bytes(D, K)
    assert ENCODED[-4 * K * D :] == VECTORS.astype("<f4").tobytes()
    other = replace(found(), count=2**40, vectors=np.eye(K, D))
    assert len(encode_components(STUDY, other)) == len(ENCODED)


def real(place: int, value: float) -> Callable[[bytes], bytes]:
    at = HEAD + 8 * place
    return lambda encoded: encoded[:at] + np.array([value], "<f8").tobytes() + encoded[at + 8 :]


def head(at: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda encoded: encoded[:at] + value + encoded[at + len(value) :]


@pytest.mark.parametrize(
    "change",
    [
        lambda encoded: b"",
        lambda encoded: encoded[: HEAD - 1],
        lambda encoded: encoded[:-1],
        lambda encoded: encoded + b"\0",
        lambda encoded: encoded[:-4] + np.array([np.nan], "<f4").tobytes(),
        lambda encoded: encoded[:-4] + np.array([np.inf], "<f4").tobytes(),
        lambda encoded: encoded[:-4] + np.array([0.01], "<f4").tobytes(),
        lambda encoded: encoded[: -4 * D] + bytes(4 * D),
        head(0, (FORMAT - 1).to_bytes(4, "big")),
        head(4, b"\xff"),
        head(36, (D - 1).to_bytes(4, "big")),
        head(40, (0).to_bytes(4, "big")),
        head(40, (2**32 - 1).to_bytes(4, "big")),
        head(44, b"\2"),
        head(45, b"\0"),
        head(46, (3).to_bytes(4, "big")),
        head(50, (3).to_bytes(4, "big")),
        head(54, (0).to_bytes(8, "big")),
        head(54, (2**53).to_bytes(8, "big")),
        real(0, np.nan),
        real(4 + 6 * K, 0.5),
        real(REALS - 1, -np.inf),
    ],
)
def test_other_bytes_are_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(MessageError) as caught:
        parse_wide_components(change(ENCODED), STUDY, SPACE)
    assert caught.value.slug == "malformed"


def test_the_most_numbers_of_a_lift_fit_into_one_statement() -> None:
    """With as many owners as a study that large has had in any of our measurements."""
    body = most_bytes(200_000, 100) + 28
    owners = min(1_000, MAX_OWNERS)
    key = 2 * (DATA_KEY_BYTES + SEALING_OVERHEAD_BYTES) + 100
    assert body * 4 // 3 + owners * key + 4096 < COMPONENTS_LIMIT_BYTES


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6])
def test_a_body_has_one_form(length: int) -> None:
    key = IdentityKey.generate()
    owner, body = PartyId(bytes(32)), bytes([255] * length)
    said = SealedComponents(STUDY, {owner: b"copy"}, None, body).sign(key)
    assert SealedComponents.parse(verify_statement("components", said.encoded)).body == body
    text = str(said.body["body"])
    others = ["", text + "=", text + "\n", text[:-1], " " + text, text + "A", 5, None]
    if length % 3:  # the last letter before the padding has bits that stand for nothing
        others += [text.replace("=", ""), text.rstrip("=")[:-1] + "9" + "=" * (3 - length % 3)]
    for other in others:
        with pytest.raises(MessageError):
            SealedComponents.parse(sign_statement("components", {**said.body, "body": other}, key))
