"""What the worker can do for a study while it is open, in steps of about a second.

Re-randomisers of a masked release: first a pool of uniform n-th residues, then random products over it, one
for each ciphertext that will leave; for a small release a whole power each. Partial products of shares that
are in, so that closing leaves little to multiply; a share that is taken back takes its group's product with
it. Everything is sealed, serves one release, and goes with the study's sealed files. Whatever is not done
when the study closes is done then.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from gmpy2 import mpz

from dpdpca_protocol.messages.share import encode_chunk
from dpdpca_protocol.paillier.residues import (
    is_worth_a_pool,
    pool_size,
    residue_products,
    uniform_residues,
)
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.masked import POOL_BYTES
from dpdpca_protocol.release.prefetch import prefetch_results
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_proxy.store.files import sealed_folder
from dpdpca_proxy.study_files import StudyFiles

GROUP_SHARES = 32
"""How many shares go into one product made early: closing then multiplies that many times fewer factors."""
_PRODUCTS_AT_ONCE = 512
_POWERS_AT_ONCE = 32


def prepare_residues(files: StudyFiles, outgoing: int) -> bool:
    """One step towards `outgoing` re-randomisers; whether there was one to take.

    Args:
        files: where.
        outgoing: ciphertexts of the release.
    """
    pooled = is_worth_a_pool(files.public, outgoing)
    if pooled:
        size, there = pool_size(files.public, outgoing), _parts(files, "pool")
        part = len(there)
        if part * _POWERS_AT_ONCE < size:
            count = min(_POWERS_AT_ONCE, size - part * _POWERS_AT_ONCE)
            _write_part(files, "pool", part, uniform_residues(files.public, count, OS_RANDOMNESS))
            return True
    at_once = _PRODUCTS_AT_ONCE if pooled else _POWERS_AT_ONCE
    part = len(_parts(files, "residues"))
    count = min(at_once, outgoing - part * at_once)
    if count <= 0:
        return False
    if pooled:
        pool = tuple(_read_parts(files, "pool"))
        made = residue_products(files.public, pool, outgoing, POOL_BYTES, count, OS_RANDOMNESS)
    else:
        made = uniform_residues(files.public, count, OS_RANDOMNESS)
    _write_part(files, "residues", part, made)
    return True


def residues_for(
    files: StudyFiles, outgoing: int, executor: Executor | None, workers: int
) -> tuple[Iterator[mpz], tuple[mpz, ...]]:
    """The re-randomisers that are there, and a pool for the others if there are many.

    Args:
        files: where.
        outgoing: ciphertexts of the release.
        executor: finishes the pool.
        workers: how many they are.
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
    """Names of the parts that are there without a gap, in order; of two that processes made at once, one."""
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
    """Shares whose products were made ahead, for some positions or all."""

    folder: str
    members: frozenset[Member]
    positions: frozenset[int]

    def product_name(self, position: int) -> str:
        return f"{self.folder}/{position}"


def read_groups(files: StudyFiles) -> list[Group]:
    """The groups of a study; a folder that is no whole group is removed."""
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


def multiply_group(files: StudyFiles, group: Group, position: int, names: Sequence[str]) -> None:
    """Stores the product of a group's chunks at a position, if they are all there."""
    if len(names) == len(group.members):
        files.write(group.product_name(position), files.multiply(names))


def usable_groups(groups: Sequence[Group], cohort: frozenset[Member]) -> list[Group]:
    """Groups that lie whole in the cohort, no two with a share in common."""
    used: set[Member] = set()
    usable = []
    for group in sorted(groups, key=lambda group: group.folder):
        if group.members <= cohort and not group.members & used:
            usable.append(group)
            used |= group.members
    return usable
