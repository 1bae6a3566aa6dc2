"""Each ciphertext of the zoo that nobody may work with, where a role first meets it, signed as is due.

The proxy meets it in an owner's chunk, the data user in the count challenge and in the release of a proxy
that signs anything. An owner reads none but its own, whose digest it keeps (tests/unit/owner/test_upload.py).
"""

import json
import secrets
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from gmpy2 import mpz
from promises import Promise
from proxy_world import OpenStudy, ProxyWorld, dump, refused, values_of
from study_parties import Parties

from dpdpca_protocol.messages.study_messages import CountChallenge, ReleaseStatement
from dpdpca_protocol.paillier import proof as proof_module
from dpdpca_protocol.paillier.chunks import CHUNK_CIPHERTEXTS, decode_chunk, encode_chunk, parse_chunk
from dpdpca_protocol.paillier.keys import KeyRules, SecretKey
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.salts import salted_chunk, unsalted
from dpdpca_user.evidence import check_chunk, verify_challenge

ZOO = json.loads((Path(__file__).parent / "ciphertext_zoo.json").read_text(encoding="utf-8"))
SECRET = SecretKey(mpz(int(ZOO["p"], 16)), mpz(int(ZOO["q"], 16)))
PUBLIC = SECRET.public
CHECKED = [operation for operation in ZOO["operations"] if operation["step"] == "check-ciphertexts"]
FIT = [operation for operation in CHECKED if operation["must_succeed"] and operation["ciphertexts"]]
UNFIT = [operation for operation in CHECKED if not operation["must_succeed"]]
FEATURES = 40
"""So many that a share has more ciphertexts than any operation of the zoo."""


def ciphertexts(operation: dict[str, Any]) -> list[mpz]:
    """Those that this key's fixed width can state at all: twice n² does not fit."""
    values = [mpz(int(written, 16)) for written in operation["ciphertexts"]]
    return [value for value in values if value.bit_length() <= 8 * PUBLIC.ciphertext_bytes]


def spoilt(chunk: bytes, operation: dict[str, Any]) -> bytes:
    """A chunk's ciphertexts, the first of them replaced by those of the operation."""
    values = ciphertexts(operation)
    return encode_chunk(values + decode_chunk(chunk, PUBLIC)[len(values) :], PUBLIC)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, parties: Parties) -> Iterator[OpenStudy]:
    proof = prove_key(SECRET, parties.user.public.ed25519)
    home = tmp_path_factory.mktemp("zoo") / "proxy"
    world = ProxyWorld(home, parties.user, list(parties.owners), SECRET, proof)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            proof_module, "PUBLISHED_MODULI", frozenset()
        )  # the zoo's key is public, like its values
        world.start()
        world.enrol_all()
        yield world.open_study(FEATURES, release="masked")
        world.stop()


@pytest.fixture(scope="module")
def zoo() -> list[dict[str, Any]]:
    stated = [
        operation for operation in UNFIT if len(ciphertexts(operation)) == len(operation["ciphertexts"])
    ]
    assert len(stated) >= len(UNFIT) - 1 >= 10
    return stated


def test_the_proxy_takes_none_from_an_owner(
    study: OpenStudy, zoo: list[dict[str, Any]], promise: Promise
) -> None:
    owner = study.world.owners[0]
    chunk = unsalted(study.plain_chunks(values_of(FEATURES, 1))[0])
    before = dump(study.world.proxy)
    for operation in zoo:
        bad = salted_chunk(spoilt(chunk, operation), OS_RANDOMNESS)
        error = refused(partial(study.upload, owner, [bad]))
        assert error.slug == operation["error"], operation["name"]
    assert dump(study.world.proxy) == before
    for version, operation in enumerate(FIT, 1):
        study.upload(owner, [salted_chunk(spoilt(chunk, operation), OS_RANDOMNESS)], version)
    promise(
        "P21", counted=f"{len(zoo)} bad ciphertexts in an owner's chunk", result="each refused for one reason"
    )


def signed_of(study: OpenStudy) -> SignedManifest:
    return open_manifest(study.statement.encoded, key_rules=KeyRules(PUBLIC.bits))


def test_the_data_user_decrypts_none_from_a_proxy(
    study: OpenStudy, zoo: list[dict[str, Any]], promise: Promise
) -> None:
    """Neither as E[N] nor in a release whose digests are those that the proxy signed."""
    signed, proxy = signed_of(study), study.world.proxy.key
    chunk = unsalted(study.plain_chunks(values_of(FEATURES, 2))[0])
    chunk = encode_chunk(decode_chunk(chunk, PUBLIC)[1:], PUBLIC)

    def release_of(chunk: bytes) -> ReleaseStatement:
        return ReleaseStatement(
            study.study, signed.manifest.release, (), Digest.of(b""), None, (Digest.of(chunk),)
        )

    for operation in zoo:
        bad = spoilt(chunk, operation)
        assert refused(partial(check_chunk, bad, 0, signed, release_of(bad))).slug == operation["error"]
        last = ciphertexts(operation)[-1]
        if operation["error"] != "ciphertext-repeated":
            asked = CountChallenge(study.study, Digest.of(b""), encode_chunk([last], PUBLIC)).sign(proxy)
            assert refused(partial(verify_challenge, asked.encoded, signed)).slug == operation["error"]
    for operation in FIT:
        good = spoilt(chunk, operation)
        check_chunk(good, 0, signed, release_of(good))
    promise(
        "P21",
        counted=f"{len(zoo)} bad ciphertexts signed by the proxy, in a release and as E[N]",
        result="refused by the data user before its key is used",
    )


def test_checking_a_chunk_takes_less_than_twice_what_multiplying_it_takes(promise: Promise) -> None:
    """So that nobody can keep a proxy busy with chunks that it refuses."""
    square = PUBLIC.ciphertext_modulus
    values = [mpz(secrets.randbelow(int(square))) for _ in range(2 * CHUNK_CIPHERTEXTS)]
    first, second = values[:CHUNK_CIPHERTEXTS], values[CHUNK_CIPHERTEXTS:]
    chunk = encode_chunk(first, PUBLIC)
    checks, products = [], []
    for _ in range(21):
        begin = time.thread_time()
        parse_chunk(chunk, PUBLIC, 0, CHUNK_CIPHERTEXTS)
        between = time.thread_time()
        for one, other in zip(first, second, strict=True):
            one * other % square
        products.append(time.thread_time() - between)
        checks.append(between - begin)
    ratio = median(checks) / median(products)
    assert ratio < 2
    promise("P21", counted="a chunk of 1,024, median of 21", result=f"check / multiplication {ratio:.2f}")
