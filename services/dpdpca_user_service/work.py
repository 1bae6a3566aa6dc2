"""Work that runs in a separate process: making keys, answering the count, opening releases.

The functions take and return plain values. Secrets reach a worker through its pipe, stay in its memory, and
vanish with it. If a worker dies, the work is repeated from stored data.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gmpy2 import mpz

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.layout.blocks import BlockName, Values, whole_numbers
from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.paillier.chunks import decode_chunk
from dpdpca_protocol.paillier.keys import KeyRules, KeySearch, SecretKey, generate_secret_key
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.release import answer_count, checked_blocks, flat_scatter, open_masked_release
from dpdpca_protocol.release.suite import Cohort, Suite
from dpdpca_protocol.result.components import EncodedSpace, check_scatter, fit_components
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.feature_list import FeatureLists, no_lists
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import KeyTerms, PadsKeyTerms, StudyKey
from dpdpca_protocol.terms.signed_manifest import parse_manifest, suite_of
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_runtime.workers import WorkerThreads, core_count
from dpdpca_user.planning.prestudy import PreStudyResult, check_blocks
from dpdpca_user.results.model import Model
from dpdpca_user.results.reliability import Reliability, assess_release
from dpdpca_user.results.second_noise import own_samplers, with_second_draw, with_second_noise
from dpdpca_user.results.wide.fitted import FittedLift, fit_lift, fit_scores, lift_noise
from dpdpca_user.results.wide.lift import LiftReading

MAX_COMPONENTS = 256
"""The most components in a model. If a study has more features, its model has only the leading components."""


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A new study key and its public form. Its repr shows nothing."""

    secret: bytes
    public: StudyKey

    def __repr__(self) -> str:
        return "MadeKey(…)"


def make_key(
    bits: int, identity: bytes, rules: KeyRules, *, progress: Callable[[KeySearch], None] | None = None
) -> MadeKey:
    """A new Paillier key and its proof, which is bound to the data user's raw Ed25519 key `identity`."""
    secret = generate_secret_key(bits, OS_RANDOMNESS, progress, rules)
    return MadeKey(secret.to_bytes(), KeyTerms.of(secret.public, prove_key(secret, identity)))


def make_pads_key() -> MadeKey:
    """A new key for one study under pads."""
    secret = PadsSecret.generate(OS_RANDOMNESS)
    return MadeKey(secret.to_bytes(), PadsKeyTerms(secret.public))


def open_count(secret: bytes, ciphertext: bytes) -> tuple[int, bytes]:
    """N from E[N], and its proof, big-endian, with the length of the modulus."""
    key = SecretKey.from_bytes(secret)
    count, root = answer_count(key, mpz(int.from_bytes(ciphertext, "big")))
    return count, int(root).to_bytes(key.public.modulus_bytes, "big")


@dataclass(frozen=True, slots=True)
class FittedModel:
    """Encoded components, their reliability, and the seconds for opening and fitting."""

    components: bytes
    reliability: Reliability
    decrypt_seconds: float
    fit_seconds: float


def open_release(
    secret: bytes,
    manifest_body: dict[str, Any],
    chunks: list[bytes],
    records: int | None,
    cohort: Cohort,
    in_clear: bool,
    feature_lists: FeatureLists = no_lists,
) -> FittedModel:
    """Decrypts a verified release, refuses one that honest records cannot give, and computes components.

    Args:
        secret: the study's key.
        manifest_body: the body of the verified manifest.
        chunks: the chunks of the verified release, in order.
        records: N as answered in a masked study, else None.
        cohort: the shares that the release contains.
        in_clear: whether the components may be published in clear. If the proxy drew the noise, publication
            in clear needs a second draw of our own, and nothing leaves this process without it.
        feature_lists: gives the list that the manifest may name.

    Raises:
        CryptographicError: the release does not decrypt to a symmetric matrix within its slots;
        `release-implausible`.
        PolicyError: `cohort-too-small`. In a joint study, N is known only after decryption.
    """
    begin = time.monotonic()
    manifest = parse_manifest(manifest_body, feature_lists)
    suite, figures, owners = suite_of(manifest), manifest.figures, len(cohort.shares)
    d = figures.encoded_features
    if figures.rules.is_masked:
        assert records is not None
        key = SecretKey.from_bytes(secret)
        ciphertexts = [ciphertext for chunk in chunks for ciphertext in decode_chunk(chunk, key.public)]
        layout = BlockLayout(d, figures.slot_bits, figures.slots)
        # Threads, because the secret key stays in this process and other threads can run during its powers.
        with WorkerThreads(core_count()) as threads:
            noisy = open_masked_release(key, layout, ciphertexts, records, threads)
        check_scatter(noisy, figures, owners)
        if in_clear:
            noisy, figures = with_second_noise(
                noisy, figures, own_samplers(suite.noise_secret(secret, cohort), chunks)
            )
    else:
        blocks = _open_blocks(suite, secret, figures, chunks, cohort)
        noisy = flat_scatter(blocks.noised, d)
        check_scatter(noisy, blocks.figures, owners)
        if in_clear:
            figures = blocks.figures
        else:
            noisy = flat_scatter(blocks.released, d)
    _check_records(manifest, 2 * noisy.count if noisy.of_pairs else noisy.count)
    opened = time.monotonic()
    space = EncodedSpace.of(manifest)
    components = fit_components(noisy, figures, space, min(d, MAX_COMPONENTS), owners)
    reliability = assess_release(noisy, figures, components, OS_RANDOMNESS, owners)
    encoded = encode_components(manifest.study_id, components)
    return FittedModel(encoded, reliability, opened - begin, time.monotonic() - opened)


def open_pre_study(
    secret: bytes,
    manifest_body: dict[str, Any],
    chunks: list[bytes],
    cohort: Cohort,
    feature_lists: FeatureLists = no_lists,
) -> tuple[PreStudyResult, float]:
    """Decrypts the verified release of a pre-study or a sketch. Returns its numbers and the seconds of this
    call.

    They always have a second draw if the proxy drew the noise, because later manifests depend on them.

    Args:
        secret, manifest_body, chunks, cohort, feature_lists: like in `open_release`.

    Raises:
        CryptographicError: the release does not decrypt to numbers within their slots; `release-implausible`.
        PolicyError: `cohort-too-small`.
    """
    begin = time.monotonic()
    manifest = parse_manifest(manifest_body, feature_lists)
    blocks = _open_blocks(suite_of(manifest), secret, manifest.figures, chunks, cohort)
    owners = len(cohort.shares)
    if manifest.release is ReleaseKind.SKETCH:
        noisy = flat_scatter(blocks.noised, manifest.figures.summed_features)
        check_scatter(noisy, blocks.figures, owners)
    else:
        check_blocks(blocks.noised, blocks.figures)
    result = PreStudyResult.of(manifest, blocks.noised, owners)
    _check_records(manifest, result.records)
    return result, time.monotonic() - begin


@dataclass(frozen=True, slots=True)
class EarlierRounds:
    """What a lift or scores need from the rounds before them.

    Attributes:
        sketch: the stored result of the sketch.
        lift: the model file of the lift; None for a lift.
    """

    sketch: bytes
    lift: bytes | None


def open_wide(
    secret: bytes,
    manifest_body: dict[str, Any],
    chunks: list[bytes],
    cohort: Cohort,
    in_clear: bool,
    before: EarlierRounds,
    feature_lists: FeatureLists = no_lists,
) -> FittedModel:
    """Opens a verified release of a lift or of scores, checks it, and computes components.

    Args:
        secret, manifest_body, chunks, cohort, in_clear, feature_lists: as for `open_release`.
        before: what the earlier rounds have shown.

    Raises:
        CryptographicError: `release-implausible`.
        PolicyError: `cohort-too-small`.
    """
    begin = time.monotonic()
    manifest, owners = parse_manifest(manifest_body, feature_lists), len(cohort.shares)
    blocks = _open_blocks(suite_of(manifest), secret, manifest.figures, chunks, cohort)
    released, figures = (blocks.noised, blocks.figures) if in_clear else (blocks.released, manifest.figures)
    sketch = PreStudyResult.parse(json.loads(before.sketch)).sketch
    assert sketch is not None, "the sketch among pre_studies has this release"
    fitted: FittedLift
    if manifest.release is ReleaseKind.LIFT:
        check_blocks(blocks.noised, blocks.figures)
        (count,) = whole_numbers(released[BlockName.COUNT])
        _check_records(manifest, 2 * count if manifest.rules.of_pairs else count)
        opened = time.monotonic()
        fitted = fit_lift(released, manifest, figures, sketch.reading, owners, OS_RANDOMNESS)
    else:
        k = manifest.figures.summed_features
        check_scatter(flat_scatter(blocks.noised, k), blocks.figures, owners)
        noisy = flat_scatter(released, k)
        _check_records(manifest, 2 * noisy.count if noisy.of_pairs else noisy.count)
        opened = time.monotonic()
        assert before.lift is not None
        lift = _lift_again(Model.from_bytes(before.lift))
        fitted = fit_scores(noisy, manifest, figures, sketch.reading, lift, owners, OS_RANDOMNESS)
    encoded = encode_components(manifest.study_id, fitted.components)
    return FittedModel(encoded, fitted.reliability, opened - begin, time.monotonic() - opened)


def _lift_again(model: Model) -> LiftReading:
    """What the stored model of a lift shows."""
    components = model.components
    assert components.lifted is not None
    noise = lift_noise(model.released_figures, len(model.provenance.owners))
    return LiftReading.of_directions(components.vectors, components.lifted.singular_values, noise)


@dataclass(frozen=True, slots=True)
class _OpenedBlocks:
    """A flat release.

    Attributes:
        released: its blocks as they were opened.
        noised: with a draw of our own, if the proxy drew the noise; otherwise the same blocks.
        figures: the study's, for the noise in `noised`.
    """

    released: dict[BlockName, Values]
    noised: dict[BlockName, Values]
    figures: Figures


def _open_blocks(
    suite: Suite, secret: bytes, figures: Figures, chunks: list[bytes], cohort: Cohort
) -> _OpenedBlocks:
    """Opens a flat release. Every later check must read the noised blocks.

    A proxy that knows its noise can push a value to the edge of a check. Everybody sees whether a release is
    refused, so the refusal may depend on noised numbers only. N has no noise, because it is public.
    """
    with WorkerThreads(core_count()) as threads:
        values = suite.open_sum(secret, chunks, cohort.shares, threads)
    released = checked_blocks(figures.blocks, values)
    if figures.noise_by is NoiseBy.OWNERS:
        return _OpenedBlocks(released, released, figures)
    own = own_samplers(suite.noise_secret(secret, cohort), chunks)
    noised, twice = with_second_draw(released, figures, own)
    return _OpenedBlocks(released, noised, twice)


def _check_records(manifest: Manifest, records: int) -> None:
    if records < manifest.min_records:
        raise PolicyError(
            "cohort-too-small",
            f"the study holds {records} records, fewer than min_records ({manifest.min_records})",
            "the result is not shown; note that only the data user's own software enforces this rule, so "
            "it does not protect against the data user",
        )
