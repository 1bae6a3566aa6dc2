"""The worker's precomputation for an open study, in steps of about a second.

For a masked release it makes re-randomisers: first a pool of uniform n-th residues, then one random product
over the pool for each ciphertext of the release. For a small release each re-randomiser is a full power. The
worker also makes partial products of complete shares, so that little is left to multiply when the study
closes. If a share is withdrawn, the product of its group is dropped. All results are sealed, serve one
release only, and are deleted with the study's sealed files. Anything missing when the study closes is
computed then.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from gmpy2 import mpz

from dpdpca_protocol.paillier.chunks import encode_chunk
from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.paillier.residues import (
    is_worth_a_pool,
    pool_size,
    residue_products,
    uniform_residues,
)
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.release.masked import POOL_BYTES
from dpdpca_protocol.release.prefetch import prefetch_results
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_proxy.store.files import sealed_folder
from dpdpca_proxy.study_files import StudyFiles

GROUP_SHARES = 32
"""The number of shares in one partial product. At closing, one product replaces all shares of its group."""
_PRODUCTS_AT_ONCE = 512
_POWERS_AT_ONCE = 32


def prepare_residues(files: StudyFiles, outgoing: int) -> bool:
    """Makes one step towards `outgoing` re-randomisers. Returns whether a step was made.

    Args:
        files: the files of the study.
        outgoing: the number of ciphertexts in the release.
    """
    powers = partial(uniform_residues, files.public)
    if not is_worth_a_pool(files.public, outgoing):
        return _make_parts(files, "residues", powers, outgoing, _POWERS_AT_ONCE)
    if _make_parts(files, "pool", powers, pool_size(files.public, outgoing), _POWERS_AT_ONCE):
        return True
    products = partial(_products, files.public, tuple(_read_parts(files, "pool")), outgoing)
    return _make_parts(files, "residues", products, outgoing, _PRODUCTS_AT_ONCE)


def _products(
    public: PublicKey, pool: tuple[mpz, ...], outgoing: int, count: int, randomness: Randomness
) -> list[mpz]:
    return residue_products(public, pool, outgoing, POOL_BYTES, count, randomness)


def _make_parts(
    files: StudyFiles, kind: str, make: Callable[[int, Randomness], list[mpz]], total: int, at_once: int
) -> bool:
    """Makes the next part of `total` values, or one for each worker of a cluster.

    Returns whether any part was missing.
    """
    missing = range(len(_parts(files, kind)), -(-total // at_once))
    if missing:
        with files.processes_elsewhere() as (executor, workers):
            parts = missing[:workers]
            counts = (min(at_once, total - part * at_once) for part in parts)
            calls = (partial(make, count, OS_RANDOMNESS) for count in counts)
            for part, made in zip(parts, prefetch_results(executor, workers, calls), strict=True):
                _write_part(files, kind, part, made)
    return bool(missing)


def residues_for(
    files: StudyFiles, outgoing: int, executor: Executor | None, workers: int
) -> tuple[Iterator[mpz], tuple[mpz, ...]]:
    """The re-randomisers made so far, and a pool for the others if there are many.

    Args:
        files: the files of the study.
        outgoing: the number of ciphertexts in the release.
        executor: finishes the pool.
        workers: the number of worker processes.
    """
    at_once = _PRODUCTS_AT_ONCE if is_worth_a_pool(files.public, outgoing) else _POWERS_AT_ONCE
    missing = outgoing - len(_parts(files, "residues")) * at_once
    pool: list[mpz] = []
    if missing > 0 and is_worth_a_pool(files.public, missing):
        pool = list(_read_parts(files, "pool"))
        lacking = pool_size(files.public, outgoing) - len(pool)
        slices = [min(8, lacking - start) for start in range(0, lacking, 8)]
        calls = (partial(uniform_residues, files.public, count, OS_RANDOMNESS) for count in slices)
        for made in prefetch_results(executor, 3 * workers, calls):
            pool += made
    return _read_parts(files, "residues"), tuple(pool)


def _parts(files: StudyFiles, kind: str) -> list[str]:
    """The names of the parts up to the first gap, in order.

    If two processes made the same part, only one of its two files is in the list.
    """
    folder = f"{sealed_folder(files.study)}/{kind}"
    found = {int(name.partition("-")[0]): name for name in sorted(files.store.entries(folder))}
    return [f"{folder}/{found[part]}" for part in range(len(found)) if set(range(part + 1)) <= found.keys()]


def _read_parts(files: StudyFiles, kind: str) -> Iterator[mpz]:
    for name in _parts(files, kind):
        yield from files.read(name)


def _write_part(files: StudyFiles, kind: str, part: int, made: Sequence[mpz]) -> None:
    name = f"{sealed_folder(files.study)}/{kind}/{part:06}-{secrets.token_hex(8)}"
    files.write(name, encode_chunk(made, files.public))


# Partial products

Member = tuple[PartyId, int]
"""An owner and the version of its share."""


@dataclass(frozen=True, slots=True)
class Group:
    """Shares whose partial products were precomputed, for some or all positions."""

    folder: str
    members: frozenset[Member]
    positions: frozenset[int]

    def product_name(self, position: int) -> str:
        return f"{self.folder}/{position}"


def read_groups(files: StudyFiles) -> list[Group]:
    """The groups of a study. A folder whose group is incomplete is deleted."""
    top = f"{sealed_folder(files.study)}/partial"
    groups = []
    for entry in files.store.entries(top):
        folder = f"{top}/{entry}"
        names = set(files.store.entries(folder))
        if "members" not in names:
            files.store.remove(folder)
            continue
        members = json.loads(files.read_bytes(f"{folder}/members"))
        groups.append(
            Group(
                folder,
                frozenset((PartyId.parse(owner), version) for owner, version in members),
                frozenset(int(name) for name in names if name.isdecimal()),
            )
        )
    return groups


def begin_group(files: StudyFiles, members: Sequence[Member]) -> Group:
    """A new group of these shares, without products."""
    told = json.dumps([[owner.hex(), version] for owner, version in sorted(members)]).encode()
    folder = f"{sealed_folder(files.study)}/partial/{Digest.of(told).hex()[:32]}"
    files.write(f"{folder}/members", told)
    return Group(folder, frozenset(members), frozenset())


def multiply_group(files: StudyFiles, group: Group, wanted: Sequence[tuple[int, Sequence[str]]]) -> None:
    """Stores the product of a group's chunks at the first position, or at one for each worker of a cluster.

    Args:
        files: the files of the study.
        group: the group.
        wanted: positions with the names of the group's chunks there. A position is left out unless all
            chunks exist.
    """
    with files.processes_elsewhere() as (executor, workers):
        calls = (
            partial(_multiply, files, group.product_name(position), names)
            for position, names in wanted[:workers]
            if len(names) == len(group.members)
        )
        for _ in prefetch_results(executor, workers, calls):
            pass


def _multiply(files: StudyFiles, product: str, names: Sequence[str]) -> None:
    files.write(product, files.add(names))


def usable_groups(groups: Sequence[Group], cohort: frozenset[Member]) -> list[Group]:
    """Groups whose shares are all in the cohort. No two groups have a share in common."""
    used: set[Member] = set()
    usable = []
    for group in sorted(groups, key=lambda group: group.folder):
        if group.members <= cohort and not group.members & used:
            usable.append(group)
            used |= group.members
    return usable
