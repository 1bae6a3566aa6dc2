"""The work of the worker process: large products, draws and releases, from files to files.

The functions do not use the database or the identity key. The functions read and write sealed files under
given names and return digests, which the caller commits. A crash in between leaves an unused file.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.paillier.chunks import encode_chunk, encode_chunks
from dpdpca_protocol.paillier.cipher import rerandomize
from dpdpca_protocol.paillier.residues import forget_products
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.masked import Speed, masked_ciphertexts, multiplications
from dpdpca_protocol.release.prefetch import prefetch_results
from dpdpca_protocol.release.release import draw_mask, noise_row
from dpdpca_protocol.release.suite import multiplication_seconds
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.salts import salted_chunk
from dpdpca_proxy.precomputed import residues_for
from dpdpca_proxy.store.files import draw_name, product_name, release_name
from dpdpca_proxy.study_files import StudyFiles

Progress = Callable[[int, int], None]

_GROUP_CHUNKS = 32
"""How many chunks are multiplied at a time."""
COURTESY = 10
"""The niceness of long work, so that requests come first."""


def multiply_chunks(files: StudyFiles, wanted: list[tuple[int, list[str]]]) -> list[Digest]:
    """For each position, multiplies the chunks of the cohort's shares and stores the product.

    Args:
        files: the files of the study.
        wanted: for each position of chunks, the names of the files to multiply.

    Returns:
        Digests of the products, in the order of `wanted`.
    """
    chunks = sum(len(names) for _, names in wanted)
    digests = []
    with files.processes(chunks * files.suite.chunk_seconds) as (executor, workers):
        # this is also fast with few groups, because their products are multiplied here
        size = max(1, min(_GROUP_CHUNKS, -(-chunks // (4 * workers)))) if executor else chunks
        groups = [
            [names[start : start + size] for start in range(0, len(names), size)] for _, names in wanted
        ]
        calls = (partial(files.add, group) for position in groups for group in position)
        products = prefetch_results(executor, 3 * workers, calls)
        for (position, _), parts in zip(wanted, groups, strict=True):
            encoded = files.suite.add(next(products) for _ in parts)
            # Without a salt, whoever has the release and a stolen database could guess the noise between.
            product = salted_chunk(encoded, OS_RANDOMNESS)
            digests.append(Digest.of(product))
            files.write(product_name(files.study, position, digests[-1]), product)
    return digests


def rerandomized_count(files: StudyFiles, name: str) -> bytes:
    """E[N] from the first product, under a fresh uniform n-th residue, encoded as in messages."""
    return encode_chunk([rerandomize(files.public, files.read(name)[0], OS_RANDOMNESS)], files.public)


def draw(files: StudyFiles, figures: Figures, records: int | None) -> str:
    """Draws noise and, in a masked study, the mask. Stores both sealed, and returns the token of the file.

    Args:
        files: the files of the study.
        figures: the figures of the manifest.
        records: N in a masked study, else None.
    """
    mask: list[int] = []
    noise: list[int] = []
    if figures.noise_by is NoiseBy.OWNERS:
        pass  # the shares contain the noise
    elif not figures.rules.is_masked:
        noise = figures.mechanism.draw(1)
    else:
        assert records is not None
        mask = draw_mask(figures.encoded_features, figures.mask_bits, OS_RANDOMNESS)
        noise = figures.mechanism.draw(records)
    token = secrets.token_hex(16)
    # All samples fit 64 bits. As Python integers, a large draw would take several times the memory.
    drawn = np.array(noise, dtype="<i8")
    noise.clear()
    # Spaces fill the line, so that whoever sees the size of the file learns nothing about the mask.
    longest = json.dumps([-(1 << (figures.mask_bits - 1))] * len(mask)) if mask else "[]"
    line = json.dumps(mask).ljust(len(longest)).encode()
    files.write(draw_name(files.study, token), line + b"\n" + drawn.tobytes())
    return token


def make_release(
    files: StudyFiles,
    figures: Figures,
    records: int | None,
    products: list[str],
    token: str,
    progress: Progress = lambda done, total: None,
) -> tuple[str, tuple[Digest, ...]]:
    """Computes the release, and stores its chunks one by one in one new folder.

    Args:
        files: the files of the study.
        figures: the figures of the manifest.
        records: N in a masked study, else None.
        products: the names of the product files, in order.
        token: the token of the committed draw.
        progress: called with (done, total) ciphertexts.

    Returns:
        The folder's token and the digests of its chunks.
    """
    mask_line, _, noise_bytes = files.read_bytes(draw_name(files.study, token)).partition(b"\n")
    noise = np.frombuffer(noise_bytes, dtype="<i8")
    folder, digests = secrets.token_hex(16), []
    with ExitStack() as stack:
        if figures.rules.is_masked:
            assert records is not None
            mask = json.loads(mask_line)
            aggregate = (ciphertext for name in products for ciphertext in files.read(name))
            released = _masked(stack, files, figures, records, aggregate, mask, noise, progress)
            chunks = encode_chunks(released, files.public)
        else:
            chunks = _flat_chunks(files, figures, products, noise)
        for position, chunk in enumerate(chunks):
            files.store.write(release_name(files.study, folder, position), chunk)
            digests.append(Digest.of(chunk))
    return folder, tuple(digests)


def _flat_chunks(
    files: StudyFiles, figures: Figures, products: list[str], noise: NDArray[np.int64]
) -> Iterator[bytes]:
    """The aggregate, with the proxy's noise if the proxy draws it.

    No re-randomisation is needed. Under Paillier the randomness is a sum of the owners' and reveals nothing
    about the data; under pads there is none.
    """
    for index, name in enumerate(products):
        content = files.read_content(name)
        if figures.noise_by is NoiseBy.OWNERS:
            yield content
        else:
            at = files.suite.chunk_values(index)
            yield files.suite.add_known(content, noise[at.start : at.stop])


def _masked(
    stack: ExitStack,
    files: StudyFiles,
    figures: Figures,
    records: int,
    aggregate: Iterable[mpz],
    mask: list[int],
    noise: NDArray[np.int64],
    progress: Progress,
) -> Iterator[mpz]:
    layout = BlockLayout(figures.encoded_features, figures.slot_bits, figures.slots)
    outgoing, done = layout.release_count, 0
    work = multiplications(files.public, layout, figures.mask_bits, records)
    seconds = work * multiplication_seconds(files.public)
    executor, workers = stack.enter_context(files.processes(seconds))
    stack.callback(forget_products)
    residues, pool = residues_for(files, outgoing, executor, workers)

    def on_done(count: int) -> None:
        nonlocal done
        done += count
        progress(done, outgoing)

    return masked_ciphertexts(
        files.public,
        layout,
        aggregate,
        records,
        mask,
        partial(noise_row, noise, layout.d),
        OS_RANDOMNESS,
        Speed(residues, pool, executor, workers, on_done),
    )
