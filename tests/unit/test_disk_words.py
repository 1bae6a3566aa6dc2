"""Fingerprints as words."""

import hashlib

import pytest
from mnemonic import Mnemonic

from dpdpca_protocol.errors import UsageError
from dpdpca_runtime.words import fingerprint_words


def test_twelve_words_that_encode_the_beginning_of_the_party_id() -> None:
    key = bytes(range(32))
    words = fingerprint_words(key)
    assert len(words.split()) == 12
    assert bytes(Mnemonic("english").to_entropy(words)) == hashlib.sha256(key).digest()[:16]
    assert fingerprint_words(bytes(32)) != words


def test_a_key_of_another_length_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(UsageError):
        fingerprint_words(b"short")
