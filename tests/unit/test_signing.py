import pytest

from dpdpca_protocol.errors import AuthenticationError, DpdpcaError, MessageError
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.signing import (
    FORMAT,
    LASTING_FORMAT,
    LASTING_FORMATS,
    IdentityKey,
    check_members,
    hex_bytes,
    sign_statement,
    verify_statement,
)

KEY = IdentityKey.generate()
OTHER = IdentityKey.generate()


def test_a_statement_verifies_under_its_signer_and_kind() -> None:
    statement = sign_statement("share", {"a": 1}, KEY)
    verified = verify_statement("share", statement.encoded, KEY.public.ed25519)
    assert verified == statement
    assert verified.digest == statement.digest
    assert verify_statement("share", statement.encoded).signer == KEY.public.ed25519


def test_another_kind_or_another_signer_is_refused() -> None:
    statement = sign_statement("share", {"a": 1}, KEY)
    with pytest.raises(MessageError):
        verify_statement("receipt", statement.encoded)
    with pytest.raises(AuthenticationError) as caught:
        verify_statement("share", statement.encoded, OTHER.public.ed25519)
    assert caught.value.slug == "bad-signature"


def test_a_signature_does_not_carry_over_to_another_kind() -> None:
    envelope = parse_canonical(sign_statement("share", {"a": 1}, KEY).encoded)
    with pytest.raises(AuthenticationError):
        verify_statement("receipt", canonical_json(envelope | {"kind": "receipt"}))


def test_every_flipped_bit_is_refused() -> None:
    encoded = sign_statement("share", {"owner": "x", "version": 3}, KEY).encoded
    for position in range(len(encoded)):
        for bit in range(8):
            altered = bytearray(encoded)
            altered[position] ^= 1 << bit
            with pytest.raises((MessageError, AuthenticationError)):
                verify_statement("share", bytes(altered), KEY.public.ed25519)


def test_upper_case_hex_is_not_a_second_encoding() -> None:
    envelope = parse_canonical(sign_statement("share", {"a": 1}, KEY).encoded)
    with pytest.raises(MessageError):
        verify_statement(
            "share", canonical_json(envelope | {"signature": envelope["signature"].upper() + ""})
        )
    with pytest.raises(MessageError):
        hex_bytes("AB", 1, "a value")
    with pytest.raises(MessageError):
        hex_bytes(" a", 1, "a value")


@pytest.mark.parametrize("passphrase", [None, b"correct horse"])
def test_keys_survive_their_pem_form(passphrase: bytes | None) -> None:
    pem = KEY.to_pem(passphrase)
    assert IdentityKey.from_pem(pem, passphrase).public == KEY.public


def test_a_wrong_passphrase_is_said_and_nothing_shown() -> None:
    pem = KEY.to_pem(b"right")
    for wrong in (b"wrong", None):
        with pytest.raises(AuthenticationError) as caught:
            IdentityKey.from_pem(pem, wrong)
        assert "wrong" not in str(caught.value).replace("passphrase", "")
    with pytest.raises(DpdpcaError):
        IdentityKey.from_pem(b"nothing here")
    assert repr(KEY) == "IdentityKey(…)"


def test_a_card_with_the_format_of_messages_is_refused_in_words_that_fit() -> None:
    with pytest.raises(MessageError, match=f"format {FORMAT}, but its kind has {LASTING_FORMAT}"):
        check_members({"format": FORMAT, "name": "Relay"}, "name", formats=LASTING_FORMATS)
