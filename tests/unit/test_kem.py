"""Seals with ML-KEM-768 and X25519, compared with another implementation and computed from their parts."""

import hashlib
import hmac
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpdpca_protocol.errors import CryptographicError, IntegrityError, MessageError
from dpdpca_protocol.wire import kem
from dpdpca_protocol.wire.kem import ENCAPSULATION_BYTES, HPKE, KEM_KEY_BYTES, KemKey, public_pair
from dpdpca_protocol.wire.signing import sealing_key_bytes

STORED = Path(__file__).parents[1] / "vectors" / "hpke_mlkem768_x25519.json"
INFO = b"dpdpca/chunk/v2"


def test_a_vector_of_another_implementation_opens() -> None:
    """The HPKE draft's own implementation in Rust made the keys, the shared secret and the message."""
    stored = json.loads(STORED.read_text())["vector"]
    vector, message = (
        {name: bytes.fromhex(value) for name, value in members.items() if isinstance(value, str)}
        for members in (stored, stored["encryption"])
    )
    expanded = hashlib.shake_256(vector["skRm"]).digest(64 + 32)
    key = KemKey(
        MLKEM768PrivateKey.from_seed_bytes(expanded[:64]), X25519PrivateKey.from_private_bytes(expanded[64:])
    )
    assert key.public == vector["pkRm"]
    assert shared_secret(key, vector["enc"]) == vector["shared_secret"]
    # The library takes no associated data, but the vector's message has some. So the same key and nonce seal
    # the message again without them.
    cipher = ChaCha20Poly1305(vector["key"])
    assert cipher.decrypt(message["nonce"], message["ct"], message["aad"]) == message["pt"]
    body = cipher.encrypt(vector["base_nonce"], message["pt"], b"")
    assert HPKE.decrypt(vector["enc"] + body, key.pair, vector["info"]) == message["pt"]
    assert len(vector["enc"]) == ENCAPSULATION_BYTES


def shared_secret(key: KemKey, enc: bytes) -> bytes:
    ml_kem_enc, x25519_enc = enc[:1088], enc[1088:]
    return hashlib.sha3_256(
        key.ml_kem.decapsulate(ml_kem_enc)
        + key.x25519.exchange(X25519PublicKey.from_public_bytes(x25519_enc))
        + x25519_enc
        + key.x25519.public_key().public_bytes_raw()
        + bytes.fromhex("5c2e2f2f5e5c")  # the label of X-Wing
    ).digest()


def test_what_is_sealed_opens_by_a_computation_from_rfc_and_draft() -> None:
    """ML-KEM, X25519 and the AEAD are the library's. The test computes the rest with hashes."""
    key = KemKey.generate()
    sealed = HPKE.encrypt(b"a share", public_pair(key.public), INFO)
    shared, body = shared_secret(key, sealed[:1120]), sealed[1120:]
    suite = b"HPKE" + bytes.fromhex("647a00010003")

    def extract(salt: bytes, label: bytes, secret: bytes) -> bytes:
        return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + secret, "sha256")

    def expand(secret: bytes, label: bytes, info: bytes, length: int) -> bytes:
        labelled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
        return hmac.digest(secret, labelled + b"\x01", "sha256")[:length]

    context = b"\0" + extract(b"", b"psk_id_hash", b"") + extract(b"", b"info_hash", INFO)
    secret = extract(shared, b"secret", b"")
    cipher = ChaCha20Poly1305(expand(secret, b"key", context, 32))
    assert cipher.decrypt(expand(secret, b"base_nonce", context, 12), body, b"") == b"a share"
    assert len(sealed) == len(b"a share") + ENCAPSULATION_BYTES + 16


def test_a_key_is_read_only_if_something_can_be_sealed_to_it() -> None:
    raw = KemKey.generate().public
    assert sealing_key_bytes(raw.hex(), "kem") == raw
    assert len(raw) == KEM_KEY_BYTES == 1216
    for malformed in (raw.hex()[:-2], raw.hex().upper(), raw[1184:].hex(), None):
        with pytest.raises(MessageError):
            sealing_key_bytes(malformed, "kem")
    out_of_range = b"\xff" * 1184 + raw[1184:]
    for low_order in (bytes(32), b"\x01" + bytes(31)):
        for unfit in (raw[:1184] + low_order, out_of_range):
            with pytest.raises(CryptographicError) as caught:
                sealing_key_bytes(unfit.hex(), "kem")
            assert caught.value.slug == "unfit-sealing-key"


def test_both_parts_are_needed_to_open() -> None:
    key, other = KemKey.generate(), KemKey.generate()
    sealed = HPKE.encrypt(b"a share", public_pair(key.public), INFO)
    for half in (KemKey(key.ml_kem, other.x25519), KemKey(other.ml_kem, key.x25519)):
        with pytest.raises(Exception, match=r"^$"):  # the library says nothing about the reason
            HPKE.decrypt(sealed, half.pair, INFO)
    assert "KemKey(…)" in repr([key])


def test_a_build_without_the_algorithm_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported() -> None:
        raise UnsupportedAlgorithm("ML-KEM-768 is not supported by this backend.")

    with monkeypatch.context() as patch:
        patch.setattr(MLKEM768PrivateKey, "generate", unsupported)
        refused = _start()
    with monkeypatch.context() as patch:
        patch.delattr(hpke, "MLKEM768X25519PublicKey")
        assert _start() == refused
    assert refused == (
        "the installed Python package cryptography has no ML-KEM-768; "
        "install cryptography 48 or newer as a wheel, or build it with OpenSSL 3.5 or newer"
    )


def test_a_command_reports_the_missing_algorithm_and_does_nothing(tmp_path: Path) -> None:
    program = """
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

def generate():
    raise UnsupportedAlgorithm("ML-KEM-768 is not supported by this backend.")

MLKEM768PrivateKey.generate = generate

from dpdpca_cli.main import main

main(["owner", "init", "--name", "Hospital A", "--home", HOME])
"""
    home = tmp_path / "owner"
    ended = subprocess.run(
        [sys.executable, "-c", program.replace("HOME", repr(str(home)))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("dpdpca: the installed Python package cryptography has no ML-KEM-768; ")
    assert ended.stderr.count("\n") == 1
    assert not home.exists()


def _start() -> str:
    """The error that a fresh copy of the module raises on its import."""
    spec = importlib.util.spec_from_file_location("kem_of_a_new_process", kem.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(IntegrityError) as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert caught.value.slug == "unfit-cryptography"
    return str(caught.value)
