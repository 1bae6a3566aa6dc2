"""Writes a sample of what would leave this machine, made with throw-away keys. Nothing is sent.

The sample has the files, the sizes and the form of a real share of the same records. Every key in it is made
for it and forgotten: those of the owner, of the proxy, of the data user and of the study. So nobody can open
the sample, nobody accepts it, and it does not show whose it is. The masks of a blinded study are left out:
pads alone hide the values, and the form is the same.
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dpdpca_owner.records.contribution import Contribution
from dpdpca_owner.share_chunks import repeatable_chunks, share_chunks, share_values
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.messages.log import EMPTY
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.paillier.keys import KeyRules, generate_secret_key
from dpdpca_protocol.paillier.proof import KeyProof
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.release.suite import BegunShare
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import KeyTerms, PadsKeyTerms, Party, ProxyParty, StudyKey
from dpdpca_protocol.terms.signed_manifest import SignedManifest, sign_manifest
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.sealing import chunk_info, seal
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.files import private_dir, write_private

_VERSION = 1
_ABOUT = """\
This folder is a sample of what would leave your machine if you joined the study

  {title}

chunk-0.bin and so on   the hidden sums and counts of your records, sealed for the proxy
statement.json          the signed statement that lists the digests of the chunks

The files have the form and the sizes of the real ones. They were made from your
records, but with keys that were made for this sample and then forgotten. So
nobody can open the sample, and no proxy accepts it. No command of DPDPCA sends
it. You can inspect it, and you can delete it.
"""


def check_sample_folder(folder: Path) -> None:
    """Raises UsageError `folder-in-use` unless the folder is new or empty."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(
            "folder-in-use", f"{folder} exists and is not empty", "name a new folder for the sample"
        )


def write_sample(
    folder: Path,
    signed: SignedManifest,
    contribution: Contribution,
    randomness: Randomness,
    key_rules: KeyRules,
) -> None:
    """Write a sample of a share of these records in a study.

    Args:
        folder: new or empty.
        signed: the study's manifest, opened and checked.
        contribution: the records' sums. Fresh noise is added to them if the owners draw the noise.
        randomness: for all keys, masks and encryptions.
        key_rules: which moduli are accepted.

    Raises:
        UsageError: `folder-in-use`.
    """
    check_sample_folder(folder)
    owner, proxy = IdentityKey.generate(), IdentityKey.generate("proxy")
    study = _made_up(signed.manifest, proxy, randomness, key_rules)
    ids = study.study_id, owner.public.party_id, _VERSION
    digests, begun = [], BegunShare(b"", None)
    with TemporaryDirectory() as unsealed:
        if study.suite.is_repeatable:
            begun = study.suite.begin(owner.public.party_id, _VERSION, randomness)
            values = share_values(study, contribution.sums, EXACT)
            chunks = repeatable_chunks(study.suite, begun, values, randomness)
        else:
            place = StudyFolder(Path(unsealed) / "study", study.study_id)
            chunks = share_chunks(study, contribution.sums, EXACT, place, randomness)
        private_dir(folder)
        for index, chunk in enumerate(chunks):
            digests.append(Digest.of(chunk))
            sealed = seal(chunk, proxy.public.sealing_key, chunk_info(*ids, index))
            write_private(folder / f"chunk-{index}.bin", sealed)
    statement = ShareStatement(
        study.study_id,
        owner.public.ed25519,
        _VERSION,
        tuple(digests),
        owner.public.sealing_key,
        proxy_log=EMPTY,
        log=Digest.of(study.study_id),  # as long as the head of a ledger
        pad=begun.pad,
    ).sign(owner)
    write_private(folder / "statement.json", statement.encoded)
    write_private(folder / "README.txt", _ABOUT.format(title=signed.manifest.title).encode())


def _made_up(
    manifest: Manifest, proxy: IdentityKey, randomness: Randomness, key_rules: KeyRules
) -> SignedManifest:
    """A study with the same terms whose every key is new."""
    user, key = IdentityKey.generate("user"), _new_key(manifest.key, randomness, key_rules)
    made_up = replace(
        manifest,
        user=Party(manifest.user.name, user.public.ed25519),
        proxy=ProxyParty(
            manifest.proxy.name, manifest.proxy.url, proxy.public.ed25519, proxy.public.sealing_key
        ),
        key=key,
    )
    statement = sign_manifest(made_up, user)
    return SignedManifest(made_up, statement, StudyId(statement.digest))


def _new_key(key: StudyKey, randomness: Randomness, key_rules: KeyRules) -> StudyKey:
    """A key of the same kind and length, without a proof, because nobody checks it."""
    if isinstance(key, PadsKeyTerms):
        return PadsKeyTerms(PadsSecret.generate(randomness).public)
    return KeyTerms.of(generate_secret_key(key.bits, randomness, rules=key_rules).public, KeyProof(()))
