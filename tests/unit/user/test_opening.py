"""What opens a release in clear draws the second noise from the study's secret, and from the release."""

from typing import Any

import numpy as np
import pytest
from streamed import encrypted
from study_parties import MakeManifest

from dpdpca_protocol.layout.packing import BlockLayout, symmetric_rows
from dpdpca_protocol.paillier.chunks import encode_chunks
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user_service.work import open_pre_study, open_release

N = 40
SUMS = [30, -7, 11]
UPPER = [90_000, 400, -800, 70_000, 200, 60_000]


def released(manifest: Manifest, key: SecretKey) -> list[bytes]:
    """The chunks of a release without noise of the proxy's."""
    figures, public = manifest.figures, key.public
    if figures.rules.is_masked:
        layout = BlockLayout(3, figures.slot_bits, figures.slots)
        scaled = [[N * x for x in row] for row in symmetric_rows(3, UPPER)]
        centred = (np.array(scaled) - np.outer(SUMS, SUMS)).tolist()
        upper = [centred[i][j] for i in range(3) for j in range(i, 3)]
        plains = list(layout.pack_share(0, [0, 0, 0], symmetric_rows(3, upper)))[1:]
        return list(encode_chunks(Encryptor(public, 8).encrypt_many(plains), public))
    vectors = PaillierVectors(public, figures.slot_bits)
    values = [N, *SUMS] if figures.blocks[-1].name == "sum" else [N, *SUMS, *UPPER]
    return list(encode_chunks(encrypted(vectors, values), public))


@pytest.mark.parametrize("release", ["joint", "masked", "pre-study"])
def test_the_second_noise_follows_the_secret_and_the_release(
    make_manifest: MakeManifest, toy_key: SecretKey, release: str
) -> None:
    """p and q in either order are the same key and two secrets. With the same chunks all else is the same."""
    changes: dict[str, Any] = {"blocks": {"sum": "1"}} if release == "pre-study" else {}
    manifest = make_manifest(release=release, **changes)
    secrets = [SecretKey(toy_key.p, toy_key.q).to_bytes(), SecretKey(toy_key.q, toy_key.p).to_bytes()]
    one, other = released(manifest, toy_key), released(manifest, toy_key)

    def opened(secret: bytes, chunks: list[bytes]) -> bytes:
        body = manifest.to_body()
        if release == "pre-study":
            return str(open_pre_study(secret, body, chunks, 3)[0]).encode()
        return open_release(secret, body, chunks, N if release == "masked" else None, 3, True).components

    found = [opened(secrets[0], one), opened(secrets[1], one), opened(secrets[0], other)]
    assert len(set(found)) == 3
    assert opened(secrets[0], one) == found[0]
