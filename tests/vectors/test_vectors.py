"""Runs every vector; a second reader, which uses phe alone, opens the ciphertexts again."""

import importlib.util
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import phe
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from gmpy2 import mpz
from promises import Promise

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.layout.packing import pack, unpack
from dpdpca_protocol.pads.chunks import integers, share_chunk
from dpdpca_protocol.pads.keys import ShareKeys
from dpdpca_protocol.pads.masks import pair_keys
from dpdpca_protocol.paillier import proof as proof_module
from dpdpca_protocol.paillier.bases import derive_base
from dpdpca_protocol.paillier.cipher import Encryptor, check_ciphertexts
from dpdpca_protocol.paillier.keys import PublicKey, SecretKey, generate_secret_key
from dpdpca_protocol.paillier.proof import KeyProof, check_public_key, prove_key
from dpdpca_protocol.paillier.published_moduli import PUBLISHED_MODULI
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.result.components import EncodedSpace
from dpdpca_protocol.result.wide_publication import encode_wide_components, parse_wide_components
from dpdpca_protocol.terms.feature_list import FeatureListRef, encode_features, listed_features
from dpdpca_protocol.terms.parties import KeyTerms
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_protocol.terms.sketch_matrix import SketchMatrix
from dpdpca_protocol.terms.wide_rules import check_rounds
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId

FOLDER = Path(__file__).parent
BUG_TYPES = {
    "NON_UNIT",
    "OUT_OF_RANGE",
    "UNFIT_MODULUS",
    "UNFIT_BLINDING_KEY",
    "NOT_CANONICAL",
    "ROLLBACK",
    "REPLAY",
    "WRONG_STUDY",
    "SLOT_OVERFLOW",
    "UNFIT_TERMS",
}

Operation = dict[str, Any]


def load(name: str) -> dict[str, Any]:
    return dict(json.loads((FOLDER / name).read_text(encoding="utf-8")))


def operations(name: str) -> list[Any]:
    return [pytest.param(operation, id=operation["name"]) for operation in load(name)["operations"]]


CIPHERTEXTS = load("ciphertext_zoo.json")
SECRET = SecretKey(mpz(int(CIPHERTEXTS["p"], 16)), mpz(int(CIPHERTEXTS["q"], 16)))
# Other tests read the homes of earlier versions and the vector from another implementation.
FILES = [
    path.name
    for path in sorted(FOLDER.glob("*.json"))
    if "_home_" not in path.name and not path.name.startswith("hpke_")
]


def run(operation: Operation) -> None:
    """Performs the step of a vector; raises what the product raises."""
    match operation["step"]:
        case "check-public-key":
            roots = tuple(mpz(int(root, 16)) for root in operation["proof"])
            check_public_key(
                int(operation["modulus"], 16),
                KeyProof(roots),
                bytes.fromhex(operation["identity"]),
                bits=operation.get("bits"),
                known_moduli=[Digest.parse(digest) for digest in operation["seen"]],
            )
        case "parse-key":
            KeyTerms.parse({"modulus": operation["modulus"], "proof": operation["proof"]}, "key")
        case "derive-base":
            assert f"{int(derive_base(SECRET.public)):x}" == operation["base"].lstrip("0")
        case "decrypt":
            (ciphertext,) = (mpz(int(text, 16)) for text in operation["ciphertexts"])
            check_ciphertexts(SECRET.public, [ciphertext])
            assert SECRET.decrypt(ciphertext) == int(operation["plain"])
        case "check-ciphertexts":
            check_ciphertexts(SECRET.public, [mpz(int(text, 16)) for text in operation["ciphertexts"]])
        case "unpack":
            values = unpack(int(operation["plain"]), operation["slot_bits"], operation["slots"])
            assert values == [int(value) for value in operation["values"]]
            assert pack(values, operation["slot_bits"]) == int(operation["plain"])
        case "parse-manifest":
            manifest = parse_manifest(operation["body"])
            assert manifest.study_id.hex() == operation["study"]
            assert manifest.figures.ciphertext_count == operation["ciphertexts"]
        case "parse-feature-list":
            reference = FeatureListRef.parse({n: operation[n] for n in ("sha256", "bytes", "count")}, "list")
            content = bytes.fromhex(operation["list"])
            assert encode_features(listed_features(reference, lambda _digest: content)) == content
        case "read-components":
            read_components(operation)
        case "sketch-matrix":
            check_sketch_matrix(operation)
        case "blind":
            assert blinded_chunk(operation) == operation["chunk"]
        case other:
            raise AssertionError(other)


def read_components(operation: Operation) -> None:
    """Compares each number with the one that the vector gives."""
    names, study = operation["features"], StudyId(bytes.fromhex(operation["study"]))
    d, content = len(names), bytes.fromhex(operation["components"])
    read = parse_wide_components(content, study, EncodedSpace(tuple(names), np.zeros(d), np.ones(d), False))
    lifted = read.lifted
    assert lifted is not None
    counts = [read.count, lifted.trusted_count, lifted.above_count]
    assert counts == [operation[name] for name in ("count", "trusted", "above")]
    numbers = [read.noise_edge, read.noise_scale, read.total_variance, lifted.unseen_variance]
    assert numbers == operation["numbers"]
    rows: list[Any] = [read.eigenvalues, read.noise_edges, read.captured, read.signals, read.overlaps]
    rows += [lifted.singular_values, lifted.of_span]
    assert [row.tolist() for row in rows] == operation["rows"]
    for values, name in ((lifted.deviations, "deviations"), (read.mean, "mean"), (read.vectors, "vectors")):
        assert (None if values is None else values.tolist()) == operation[name]
    assert encode_wide_components(study, read, lifted) == content


def check_sketch_matrix(operation: Operation) -> None:
    seed = bytes.fromhex(operation["seed"])
    matrix = SketchMatrix.of(seed, operation["features"], operation["rows"])
    for entries, form, name in ((matrix.rows, ">u2", "rows_sha256"), (matrix.signs, "i1", "signs_sha256")):
        assert sha256(entries.T.astype(form).tobytes()).hexdigest() == operation[name]


def blinded_chunk(operation: Operation) -> str:
    """Chunk 7 of the owner with the lower id."""
    mine, theirs = (X25519PrivateKey.from_private_bytes(bytes.fromhex(operation[n])) for n in ("low", "high"))
    low_id, high_id = (PartyId(bytes.fromhex(operation[name])) for name in ("low_id", "high_id"))
    others = {high_id: theirs.public_key().public_bytes_raw()}
    pairs = pair_keys(mine, low_id, others, StudyId(bytes.fromhex(operation["study"])))
    keys = ShareKeys(bytes.fromhex(operation["pad_key"]), bytes.fromhex(operation["salt_key"]))
    return share_chunk(keys, 7, integers([int(value) for value in operation["values"]]), pairs).hex()


@pytest.mark.parametrize("operation", [parameter for name in FILES for parameter in operations(name)])
def test_vector(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    if not operation.get("published"):
        # every modulus here is on the shipped list, which would hide what the vector is about
        monkeypatch.setattr(proof_module, "PUBLISHED_MODULI", frozenset())
    if operation["must_succeed"]:
        run(operation)
        return
    with pytest.raises(DpdpcaError) as caught:
        run(operation)
    assert operation["bug"] in BUG_TYPES
    assert caught.value.slug == operation.get("error", caught.value.slug)
    assert operation.get("reason", "") in caught.value.problem


@pytest.mark.parametrize("operation", operations("honest_keys.json") + operations("safe_prime_keys.json"))
def test_the_product_refuses_every_key_of_the_vectors(operation: Operation) -> None:
    with pytest.raises(DpdpcaError, match="test key"):
        run(operation)


def test_the_shipped_list_is_the_keys_of_the_vectors(promise: Promise) -> None:
    moduli = [
        operation["modulus"]
        for name in ("honest_keys.json", "safe_prime_keys.json")
        for operation in load(name)["operations"]
    ]
    assert {Digest.of(bytes.fromhex(modulus)).hex() for modulus in moduli} == PUBLISHED_MODULI
    assert len(PUBLISHED_MODULI) == len(moduli) == 40
    assert PublicKey(mpz(int(CIPHERTEXTS["modulus"], 16))) == SECRET.public
    promise(
        "P22",
        counted=f"{len(load('key_zoo.json')['operations'])} bad and {len(moduli)} honest keys as vectors",
        result="each accepted or refused as stated",
    )


@pytest.mark.parametrize(
    "operation", [p for p in operations("ciphertext_zoo.json") if p.values[0]["step"] == "decrypt"]
)
def test_phe_alone_reads_the_same(operation: Operation) -> None:
    p, q = int(CIPHERTEXTS["p"], 16), int(CIPHERTEXTS["q"], 16)
    private = phe.PaillierPrivateKey(phe.PaillierPublicKey(p * q), p, q)
    (ciphertext,) = operation["ciphertexts"]
    assert private.raw_decrypt(int(ciphertext, 16)) == int(operation["plain"]) % (p * q)


def test_the_files_come_out_of_the_generator_byte_for_byte(promise: Promise) -> None:
    """The twenty honest keys take a while: two of them stand for all."""
    specification = importlib.util.spec_from_file_location("vector_generator", FOLDER / "generate.py")
    assert specification is not None
    assert specification.loader is not None
    generate = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(generate)
    keys = [generate.honest_key(0), generate.honest_key(1)]
    for path, text in generate.short_files(*keys).items():
        assert path.read_text(encoding="utf-8") == text, path.name
    honest = load("honest_keys.json")["operations"]
    assert honest[:2] == generate.honest_keys(keys)
    promise(
        "P21",
        counted=f"{len(load('ciphertext_zoo.json')['operations'])} vectors of ciphertexts",
        result="each accepted or refused as stated",
    )


def test_the_rounds_for_many_features_are_one_chain() -> None:
    named = {each["name"]: each for each in load("manifests.json")["operations"]}
    sketch, lift, scores = (
        parse_manifest(named[f"a manifest: {release}"]["body"]) for release in ("sketch", "lift", "scores")
    )
    check_rounds(lift, [sketch])
    check_rounds(scores, [sketch, lift])
    assert sketch.rho_share + lift.rho_share + scores.rho_share == 1


def test_keys_of_safe_primes_still_work() -> None:
    """Earlier versions made them: their proofs come out the same, and their ciphertexts decrypt."""
    file = load("safe_prime_keys.json")
    secret = SecretKey.from_bytes(bytes.fromhex(file["p"] + file["q"]))
    roots = prove_key(secret, bytes.fromhex(file["operations"][0]["identity"])).roots
    assert [f"{int(root):0512x}" for root in roots] == file["operations"][0]["proof"]
    assert secret.decrypt(Encryptor(secret.public, 1).encrypt(-7)) == -7


@pytest.mark.nightly
def test_two_hundred_fresh_keys_are_all_accepted(promise: Promise) -> None:
    identity = bytes(32)
    seen: list[Digest] = []
    for _ in range(200):
        key = generate_secret_key(2048, OS_RANDOMNESS)
        modulus = int(key.public.modulus)
        check_public_key(modulus, prove_key(key, identity), identity, known_moduli=seen)
        seen.append(Digest.of(key.public.encode()))
    promise("P22", counted=f"{len(set(seen))} fresh keys", result="all accepted")
