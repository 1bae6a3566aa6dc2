import pytest

from dpdpca_protocol.errors import AuthenticationError, CryptographicError, IntegrityError
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.sealing import (
    SEALING_OVERHEAD_BYTES,
    chunk_info,
    open_at_rest,
    open_sealed,
    open_with_passphrase,
    seal,
    seal_at_rest,
    seal_with_passphrase,
)
from dpdpca_protocol.wire.signing import IdentityKey

KEY = IdentityKey.generate()
STUDY = StudyId.of(b"study")
OWNER = PartyId.of(b"owner")


def test_a_chunk_opens_for_its_recipient_in_its_place_alone() -> None:
    sealed = seal(b"chunk", KEY.public.sealing_key, chunk_info(STUDY, OWNER, 1, 0))
    assert len(sealed) == 5 + SEALING_OVERHEAD_BYTES
    assert open_sealed(sealed, KEY.opening_key, chunk_info(STUDY, OWNER, 1, 0)) == b"chunk"
    elsewhere = [
        (IdentityKey.generate(), chunk_info(STUDY, OWNER, 1, 0)),
        (KEY, chunk_info(STUDY, OWNER, 2, 0)),
        (KEY, chunk_info(STUDY, OWNER, 1, 1)),
        (KEY, chunk_info(STUDY, PartyId.of(b"another"), 1, 0)),
        (KEY, chunk_info(StudyId.of(b"another"), OWNER, 1, 0)),
    ]
    for key, info in elsewhere:
        with pytest.raises(CryptographicError):
            open_sealed(sealed, key.opening_key, info)
    for broken in (sealed[:-1], sealed + b"x", b"", sealed[:1135], bytes(len(sealed))):
        with pytest.raises(CryptographicError):
            open_sealed(broken, KEY.opening_key, chunk_info(STUDY, OWNER, 1, 0))


def test_the_info_of_a_chunk_is_byte_exact() -> None:
    assert chunk_info(STUDY, OWNER, 1, 258) == b"dpdpca/chunk/v3" + STUDY + OWNER + b"\0\0\0\x01\0\0\x01\x02"


def test_what_is_sealed_at_rest_opens_under_its_key_and_context_alone() -> None:
    key = OS_RANDOMNESS.bytes(32)
    sealed = seal_at_rest(b"noise", key, b"noise of s", OS_RANDOMNESS)
    assert open_at_rest(sealed, key, b"noise of s") == b"noise"
    for wrong_key, context in ((OS_RANDOMNESS.bytes(32), b"noise of s"), (key, b"mask of s")):
        with pytest.raises(IntegrityError):
            open_at_rest(sealed, wrong_key, context)
    with pytest.raises(IntegrityError):
        open_at_rest(sealed[:5], key, b"noise of s")


def test_a_passphrase_opens_what_it_sealed() -> None:
    sealed = seal_with_passphrase(b"secret", b"pass", b"key", OS_RANDOMNESS)
    assert b"secret" not in sealed
    assert open_with_passphrase(sealed, b"pass", b"key") == b"secret"
    with pytest.raises(AuthenticationError):
        open_with_passphrase(sealed, b"Pass", b"key")


@pytest.mark.parametrize("low_order", [bytes(32), b"\x01" + bytes(31)])
def test_nothing_is_sealed_to_a_key_of_low_order(low_order: bytes) -> None:
    with pytest.raises(CryptographicError) as caught:
        seal(b"components", KEY.public.sealing_key[:-32] + low_order, b"")
    assert caught.value.slug == "unfit-sealing-key"
