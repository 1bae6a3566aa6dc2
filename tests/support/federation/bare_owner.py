"""An owner without its commands: shares made and sent by the test, in one process and within a second."""

from collections.abc import Sequence

from streamed import encrypted

from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.paillier.chunks import encode_chunks
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.salts import salted_chunk
from dpdpca_protocol.wire.sealing import chunk_info, seal
from dpdpca_protocol.wire.signing import IdentityKey, Statement
from federation.bare_user import BareStudy
from federation.records import Sums


def make_chunks(study: BareStudy, sums: Sums) -> list[bytes]:
    """The chunks of a share, unsealed, freshly encrypted."""
    public, figures = study.secret.public, study.manifest.figures
    d, encryptor = figures.encoded_features, Encryptor(public, figures.ciphertext_count)
    if study.manifest.release == "joint":
        upper = [sums.second_moment[i][j] for i in range(d) for j in range(i, d)]
        vectors = PaillierVectors(public, figures.slot_bits)
        ciphertexts = encrypted(vectors, [sums.count, *sums.sum, *upper], encryptor)
    else:
        layout = BlockLayout(d, figures.slot_bits, figures.slots)
        plains = layout.pack_share(sums.count, sums.sum, sums.second_moment)
        ciphertexts = encryptor.encrypt_many(list(plains))
    return [salted_chunk(chunk, OS_RANDOMNESS) for chunk in encode_chunks(ciphertexts, public)]


def seal_chunk(study: BareStudy, key: IdentityKey, chunk: bytes, version: int, position: int) -> bytes:
    """The body of a PUT of this chunk by the holder of `key`."""
    info = chunk_info(study.id, key.public.party_id, version, position)
    return seal(chunk, study.manifest.proxy.kem, info)


def claim(study: BareStudy, key: IdentityKey, chunks: Sequence[bytes], version: int = 1) -> Statement:
    """The owner's statement that these are all chunks of this version."""
    public, digests = key.public, tuple(Digest.of(chunk) for chunk in chunks)
    seen = study.seen_head()
    return ShareStatement(study.id, public.ed25519, version, digests, public.sealing_key, seen).sign(key)


def upload(study: BareStudy, key: IdentityKey, chunks: Sequence[bytes], version: int = 1) -> None:
    with study.user.federation.client(key) as client:
        for position, chunk in enumerate(chunks):
            client.put_chunk(study.id, version, position, seal_chunk(study, key, chunk, version, position))


def deliver(study: BareStudy, key: IdentityKey, sums: Sums, version: int = 1) -> Statement:
    """A whole share; the proxy's receipt."""
    chunks = make_chunks(study, sums)
    upload(study, key, chunks, version)
    with study.user.federation.client(key) as client:
        return client.complete_share(study.id, claim(study, key, chunks, version))
