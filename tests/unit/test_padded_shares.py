"""Shares under pads as they are sent: chunks with their salts, and sealed pad keys."""

import hmac

import numpy as np
import pytest
from plain_chacha import chacha20_stream

from dpdpca_protocol.errors import CryptographicError, MessageError, UsageError
from dpdpca_protocol.pads.chunks import (
    MAGNITUDE_LIMIT,
    add_up,
    check_chunk,
    decode,
    encode,
    integers,
    open_chunk,
    share_chunk,
)
from dpdpca_protocol.pads.keys import SEALED_KEY_BYTES, PadsSecret, ShareKeys, open_pad_key, seal_pad_key
from dpdpca_protocol.pads.streams import CHUNK_VALUES, chunk_salt
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.salts import SALT_BYTES
from dpdpca_protocol.wire.sealing import open_sealed, seal

STUDY, OWNER = StudyId.of(b"study"), PartyId.of(b"owner")
KEYS = ShareKeys(bytes(range(32)), bytes(range(32, 64)))


# --- chunks -----------------------------------------------------------------------------------------------


def test_a_salt_is_an_hmac_of_the_index() -> None:
    tagged = b"dpdpca/salt/v2\x00" + b"\x00\x00\x01\x02"
    assert chunk_salt(KEYS.salt, 258) == hmac.digest(KEYS.salt, tagged, "sha256")
    keys = KEYS.salt, ShareKeys.draw(OS_RANDOMNESS).salt
    assert len({chunk_salt(key, index) for key in keys for index in range(50)}) == 100


def test_a_full_chunk_has_the_size_of_the_specification() -> None:
    chunk = share_chunk(KEYS, 0, np.zeros(CHUNK_VALUES, dtype=np.int64))
    assert len(chunk) == 786_464
    check_chunk(bytes(chunk), CHUNK_VALUES, 0, SALT_BYTES)


def test_a_chunk_is_its_salt_and_little_endian_values_with_their_pads() -> None:
    values = [0, 1, -1, 2**62 - 1, 1 - 2**62, 12345678901]
    stream = chacha20_stream(KEYS.pad, (7).to_bytes(12, "big"), 0, 8 * len(values))
    expected = b"".join(
        ((value + int.from_bytes(stream[8 * i : 8 * i + 8], "little")) % 2**64).to_bytes(8, "little")
        for i, value in enumerate(values)
    )
    assert share_chunk(KEYS, 7, integers(values)) == chunk_salt(KEYS.salt, 7) + expected


@pytest.mark.parametrize("off", [-8, -1, 1, 8])
def test_a_chunk_of_another_length_is_refused(off: int) -> None:
    check_chunk(bytes(SALT_BYTES + 24), 3, 0, SALT_BYTES)
    check_chunk(bytes(24), 3, 0)
    with pytest.raises(MessageError):
        check_chunk(bytes(24 + off), 3, 0)
    with pytest.raises(MessageError):
        check_chunk(bytes(SALT_BYTES + 24 + off), 3, 0, SALT_BYTES)


def test_a_value_of_2_to_the_62_is_not_sent() -> None:
    share_chunk(KEYS, 0, integers([MAGNITUDE_LIMIT - 1, 1 - MAGNITUDE_LIMIT]))
    with pytest.raises(UsageError):
        share_chunk(KEYS, 0, integers([0, MAGNITUDE_LIMIT]))


def test_what_was_sent_opens_to_the_sum() -> None:
    keys = [ShareKeys.draw(OS_RANDOMNESS) for _ in range(2)]
    chunks = [share_chunk(each, 3, integers([5, -7])) for each in keys]
    padded = encode(add_up(decode(chunk[SALT_BYTES:]) for chunk in chunks))
    assert open_chunk(decode(padded), [each.pad for each in keys], 3).tolist() == [10, -14]


# --- keys -------------------------------------------------------------------------------------------------


def test_a_pad_key_opens_in_its_study_for_its_owner_and_version_alone() -> None:
    secret, other = (PadsSecret.generate(OS_RANDOMNESS) for _ in range(2))
    sealed = seal_pad_key(KEYS.pad, secret.public, STUDY, OWNER, 3)
    assert len(sealed) == SEALED_KEY_BYTES
    assert open_pad_key(sealed, secret, STUDY, OWNER, 3) == KEYS.pad
    for key, study, owner, version in (
        (other, STUDY, OWNER, 3),
        (secret, StudyId.of(b"another"), OWNER, 3),
        (secret, STUDY, PartyId.of(b"another"), 3),
        (secret, STUDY, OWNER, 2),
    ):
        with pytest.raises(CryptographicError):
            open_pad_key(sealed, key, study, owner, version)
    with pytest.raises(CryptographicError):
        open_pad_key(sealed[:-1], secret, STUDY, OWNER, 3)


def test_the_info_of_a_pad_key_is_byte_exact() -> None:
    secret = PadsSecret.generate(OS_RANDOMNESS)
    info = b"dpdpca/pad/v2" + STUDY + OWNER + b"\x00\x00\x01\x02"
    assert open_sealed(seal_pad_key(KEYS.pad, secret.public, STUDY, OWNER, 258), secret.kem, info) == KEYS.pad
    with pytest.raises(MessageError):
        open_pad_key(seal(b"short", secret.public, info), secret, STUDY, OWNER, 258)


def test_no_two_keys_are_alike() -> None:
    keys, others = ShareKeys.draw(OS_RANDOMNESS), ShareKeys.draw(OS_RANDOMNESS)
    assert len({keys.pad, keys.salt, others.pad, others.salt}) == 4
    secrets = [PadsSecret.generate(OS_RANDOMNESS) for _ in range(2)]
    assert len({secret.public for secret in secrets}) == 2
    assert len({secret.second_noise for secret in secrets}) == 2


def test_secrets_survive_storage_and_show_nothing() -> None:
    keys, secret = ShareKeys.draw(OS_RANDOMNESS), PadsSecret.generate(OS_RANDOMNESS)
    assert ShareKeys.from_bytes(keys.to_bytes()) == keys
    again = PadsSecret.from_bytes(secret.to_bytes())
    assert (again.public, again.second_noise) == (secret.public, secret.second_noise)
    assert repr(keys) == "ShareKeys(…)"
    assert repr(secret) == "PadsSecret(…)"
    for stored in (b"", bytes(63), bytes(65)):
        with pytest.raises(MessageError):
            ShareKeys.from_bytes(stored)
        with pytest.raises(MessageError):
            PadsSecret.from_bytes(stored)
