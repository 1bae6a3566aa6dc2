"""The roles' own code from an owner's file to the data user's numbers, each step held against the reference.

Files, chunks and sealed draws are the real ones; what is left out are requests and statements between them.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from certificates import answering
from gmpy2 import mpz
from small_studies import CASES, OWNERS
from study_parties import PADS_SECRET, MakeManifest, Parties

from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.shuffle import Shuffle
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.share_chunks import repeatable_chunks, share_chunks, share_values
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.layout.blocks import cut_blocks, whole_numbers
from dpdpca_protocol.layout.packing import symmetric_rows
from dpdpca_protocol.paillier.chunks import decode_chunk
from dpdpca_protocol.paillier.keys import KeyRules, SecretKey
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.pairing import pairing_seed
from dpdpca_protocol.records.seeded_noise import owners_noise_seed, seeded_samplers
from dpdpca_protocol.reference import (
    block_layout,
    flat_layout,
    flat_release,
    masked_release,
    owner_sums,
    plaintexts,
)
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.release import check_count, flat_scatter, unmask
from dpdpca_protocol.release.suite import Cohort, CohortShare
from dpdpca_protocol.result.components import EncodedSpace, fit_components
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.terms.figures import Figures, NoiseBy
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest, sign_manifest
from dpdpca_protocol.terms.terms import SuiteName
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.salts import unsalted
from dpdpca_proxy.store.files import FolderStore, draw_name, product_name, release_name, sealed_folder
from dpdpca_proxy.study_files import StudyFiles
from dpdpca_proxy.worker import draw, make_release, multiply_chunks, rerandomized_count
from dpdpca_user_service.work import open_count, open_release


@pytest.fixture(params=CASES)
def signed(request: pytest.FixtureRequest, make_manifest: MakeManifest, parties: Parties) -> SignedManifest:
    manifest = make_manifest(**CASES[request.param], min_records=1)
    return open_manifest(sign_manifest(manifest, parties.user).encoded, key_rules=KeyRules(512))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ciphertexts or values a chunk, so that small shares have several."""
    monkeypatch.setattr("dpdpca_protocol.pads.chunks.CHUNK_VALUES", 3)
    for module in (
        "dpdpca_owner.share_chunks",
        "dpdpca_protocol.paillier.chunks",
        "dpdpca_protocol.release.suite",
    ):
        monkeypatch.setattr(f"{module}.CHUNK_CIPHERTEXTS", 3)


@pytest.fixture(autouse=True)
def no_cluster_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A data user's machine may name a Dask cluster, for an owner on it. Secret keys do not go there."""
    seal_key = tmp_path / "seal.key"
    seal_key.touch(mode=0o600)
    seal_key.write_text("00" * 32)
    with answering(lambda link: None) as server:
        monkeypatch.setenv("DPDPCA_EXECUTOR", f"dask://127.0.0.1:{server.port}")
        monkeypatch.setenv("DPDPCA_EXECUTOR_SEAL_KEY", str(seal_key))
        monkeypatch.setenv("DPDPCA_EXECUTOR_LEAST_SECONDS", "0")
        yield
    assert not server.connections


@dataclass
class Share:
    """What an owner sends of its file, and the integers in it: the reference's sums, and its noise if any."""

    chunks: list[bytes]
    plains: list[int]
    said: CohortShare


def owner_share(signed: SignedManifest, number: int, folder: Path, secret: SecretKey) -> Share:
    manifest, figures, key = signed.manifest, signed.manifest.figures, bytes([number]) * 32
    with (folder / f"{number}.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(OWNERS[number])
        rows.writerows(zip(*OWNERS[number].values(), strict=True))
    contribution = read_contribution(DataLocation(str(folder / f"{number}.csv")), manifest, key, spool=folder)

    encoded = RecordEncoder(manifest).encode(OWNERS[number])
    z = encoded.z
    if figures.mechanism.setting.has_pairs:
        shuffle = Shuffle(z.shape[1], pairing_seed(key, signed.study_id), folder)
        shuffle.add(z)
        z = np.concatenate(list(shuffle.batches()))
    sums = owner_sums(figures, z, gaps=encoded.gaps)
    assert list(contribution.sums.stream()) == sums

    owner = PartyId.of(b"owner %d" % number)
    begun = signed.suite.begin(owner, 1, OS_RANDOMNESS)
    if signed.suite.is_repeatable:
        values = share_values(signed, contribution.sums, contribution.own_noise())
        chunks = [bytes(chunk) for chunk in repeatable_chunks(signed.suite, begun, values, OS_RANDOMNESS)]
    else:
        place = StudyFolder(folder / f"owner {number}", signed.study_id)
        chunks = list(share_chunks(signed, contribution.sums, contribution.own_noise(), place, OS_RANDOMNESS))
    said = CohortShare(owner, 1, begun.pad)
    plains = opened(signed, [unsalted(chunk) for chunk in chunks], [said], secret)
    share = Share(chunks, plains, said)
    if figures.noise_by is NoiseBy.PROXY:
        assert plains == plaintexts(figures, sums)
        return share
    noise = [a - b for a, b in zip(unpacked(figures, plains), sums, strict=True)]
    seed = owners_noise_seed(key, signed.study_id, contribution.digest)
    assert noise == list(figures.own_noise(seeded_samplers(seed)))
    return share


def opened(
    signed: SignedManifest, chunks: list[bytes], cohort: list[CohortShare], secret: SecretKey
) -> list[int]:
    """The plaintexts of a share, an aggregate or a release; under pads these are the values."""
    if signed.manifest.suite is SuiteName.PADS:
        return whole_numbers(signed.suite.open_sum(PADS_SECRET.to_bytes(), chunks, cohort))
    return [int(secret.decrypt(c)) for chunk in chunks for c in decode_chunk(chunk, secret.public)]


def unpacked(figures: Figures, plains: list[int]) -> list[int]:
    return flat_layout(figures).unpack_all(plains) if figures.slots else plains


def count_with_proof(place: StudyFiles, product: str, secret: SecretKey) -> int:
    """The proxy asks, the data user answers, the proxy checks."""
    public = secret.public
    challenge = rerandomized_count(place, product)
    count, root = open_count(secret.to_bytes(), challenge)
    check_count(public, mpz(int.from_bytes(challenge, "big")), count, mpz(int.from_bytes(root, "big")))
    return count


def test_every_step_is_that_of_the_reference(
    signed: SignedManifest, toy_key: SecretKey, tmp_path: Path
) -> None:
    manifest, figures = signed.manifest, signed.manifest.figures
    owners = range(2 if figures.mechanism.setting.has_pairs else 3)  # the third has one record, and no pair
    shares = [owner_share(signed, number, tmp_path, toy_key) for number in owners]
    cohort = [share.said for share in shares]
    place = StudyFiles(
        FolderStore(tmp_path / "proxy"), signed.study_id, signed.suite, OS_RANDOMNESS.bytes(32)
    )
    wanted = []
    for position in range(len(shares[0].chunks)):
        names = [f"{sealed_folder(place.study)}/shares/{number}/{position}" for number in owners]
        for name, share in zip(names, shares, strict=True):
            place.write(name, share.chunks[position])
        wanted.append((position, names))
    digests = multiply_chunks(place, wanted)
    products = [product_name(place.study, position, digest) for position, digest in enumerate(digests)]
    aggregate = [sum(column) for column in zip(*(share.plains for share in shares), strict=True)]
    contents = [unsalted(place.read_bytes(name)) for name in products]
    assert opened(signed, contents, cohort, toy_key) == aggregate

    needs_count = manifest.release.needs_count
    records = count_with_proof(place, products[0], toy_key) if needs_count else None
    token = draw(place, figures, records)
    mask_line, _, drawn = place.read_bytes(draw_name(place.study, token)).partition(b"\n")
    mask, noise = json.loads(mask_line), np.frombuffer(drawn, dtype="<i8").tolist()
    folder, made = make_release(place, figures, records, products, token)
    chunks = [place.store.read(release_name(place.study, folder, index)) for index in range(len(made))]
    if records is not None:
        H = symmetric_rows(figures.encoded_features, noise)
        released = masked_release(figures, aggregate, records, mask, H, UNENCRYPTED)
        noisy = unmask(block_layout(figures), released, records)
    else:
        noise = noise or [0] * figures.value_count
        released = flat_release(figures, aggregate, noise, UNENCRYPTED)
    assert opened(signed, chunks, cohort, toy_key) == released

    if not manifest.release.has_components:
        return  # what the data user reads of it has a second noise: tests/unit/test_prestudy.py
    if records is None:
        blocks = cut_blocks(figures.blocks, unpacked(figures, released))
        noisy = flat_scatter(blocks, figures.encoded_features)
    study_secret = PADS_SECRET if manifest.suite is SuiteName.PADS else toy_key
    named = Cohort(tuple(cohort), Digest.of(b"cohort"))
    read = open_release(study_secret.to_bytes(), manifest.to_body(), chunks, records, named, False)
    components = fit_components(noisy, figures, EncodedSpace.of(manifest), owners=len(owners))
    assert read.components == encode_components(signed.study_id, components)
