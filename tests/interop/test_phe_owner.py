"""An owner written with `phe` alone takes part in a study: the format on the wire is plain Paillier.

Its records are encoded and packed by the loops below, from the protocol's text; its ciphertexts are
`raw_encrypt` of phe; only the request to the proxy and the sealing of chunks are the project's own client.
"""

import secrets
from pathlib import Path

import pytest
from federation.bare_user import BareUser
from federation.checks import assert_release
from federation.records import Sums, add_up, patients, write_csv, write_parquet
from federation.world import Federation
from phe import EncryptedNumber
from promises import Promise

from dpdpca_interop import PheEncryptor, to_phe_private
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.sealing import chunk_info, seal
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience


class PheOwner:
    """An enrolled owner that knows the protocol's text, `phe`, and how to speak to a proxy."""

    def __init__(self, url: str, proxy_key: bytes, name: str, invitation: str) -> None:
        self.name = name
        self.identity = IdentityKey.generate()
        self.client = ProxyClient(url, self.identity, proxy_key, patience=Patience(seconds=0.0))
        self.client.enrol("owner", name, invitation)

    def key(self) -> IdentityKey:
        return self.identity

    def join(self, study: StudyId, sums: Sums) -> int:
        """Sends these sums; the version of the share that the proxy acknowledges."""
        signed = open_manifest(self.client.manifest(study))
        assert signed.study_id == study
        encryptor = PheEncryptor(signed.public_key)
        ciphertexts = [int(encryptor.encrypt(plain)) for plain in _plaintexts(signed, sums)]
        width = signed.manifest.key.bits // 4
        content = b"".join(ciphertext.to_bytes(width, "big") for ciphertext in ciphertexts)
        parts = [content[start : start + 1024 * width] for start in range(0, len(content), 1024 * width)]
        chunks = [secrets.token_bytes(32) + part for part in parts]  # a salt, then the ciphertexts
        for index, chunk in enumerate(chunks):
            info = chunk_info(study, self.identity.public.party_id, 1, index)
            sealed = seal(chunk, signed.manifest.proxy.kem, info)
            self.client.put_chunk(study, 1, index, sealed)
        public, digests = self.identity.public, tuple(Digest.of(chunk) for chunk in chunks)
        claim = ShareStatement(study, public.ed25519, 1, digests, public.sealing_key).sign(self.identity)
        return int(self.client.complete_share(study, claim).body["version"])


def _plaintexts(signed: SignedManifest, sums: Sums) -> list[int]:
    """P = Σ x_k·2^(w k), in the order that each release's layout asks for."""
    d, w = len(sums.sum), signed.manifest.slot_bits
    slots = (signed.manifest.key.bits - 2) // w

    def pack(values: list[int]) -> int:
        return sum(value * 2 ** (w * k) for k, value in enumerate(values))

    if signed.manifest.release == "joint":
        flat = [sums.count, *sums.sum]
        flat += [sums.second_moment[i][j] for i in range(d) for j in range(i, d)]
        return [pack(flat[start : start + slots]) for start in range(0, len(flat), slots)]
    rows = []
    for i in range(d):
        for block in range(i // slots, -(-d // slots)):
            rows.append(pack(sums.second_moment[i][block * slots : (block + 1) * slots]))
    return [sums.count, *sums.sum, *rows]


@pytest.mark.parametrize("release", ["masked", pytest.param("joint", marks=pytest.mark.nightly)])
def test_owner_with_phe_alone_takes_part(
    federation: Federation, tmp_path: Path, release: str, promise: Promise
) -> None:
    user = BareUser(federation, f"Institute beside phe ({release})")
    owners = federation.owners(2)
    token = federation.invitation("owner", f"Hospital with phe ({release})")
    with_phe = PheOwner(federation.url, federation.proxy_key, f"Hospital with phe ({release})", token)
    study = user.open_study([*owners, with_phe], release=release, closing="when-complete")
    records = [patients(count, seed) for seed, count in ((71, 400), (72, 300), (73, 500))]
    owners[0].join(study.address, write_csv(tmp_path / "a.csv", records[0]))
    owners[1].join(study.address, write_parquet(tmp_path / "b.parquet", records[1]))

    assert with_phe.join(study.id, add_up(records[2])) == 1

    study.wait_state("closed", "released")
    expected = add_up(records[0]) + add_up(records[1]) + add_up(records[2])
    assert_release(study.open_release(), expected, study.manifest.figures)
    assert user.client.study(study.id).owners_complete == 3

    # phe reads what the proxy released, too.
    private = to_phe_private(study.secret)
    ciphertext = study.released_ciphertexts()[0]
    mine = int(study.secret.decrypt(ciphertext))
    assert private.decrypt(EncryptedNumber(private.public_key, int(ciphertext))) == mine
    promise(
        "P35",
        counted=f"{release} study of 1,200 records, one owner with phe alone",
        result="N exact, entries within the stated noise",
    )
