"""Fast arithmetic for the masked release: T_{i,J} = N·R_{i,J} + v_i·B_J + b_i·V_J + b_i·B_J + H_{i,J}.

One ciphertext takes three powers and a re-randomiser. E[v_i] is raised to every B_J of its row, so each row
has tables of its powers. E[V_J] is raised to every b_i, so each block of columns has tables too. All powers
for one ciphertext share their squarings. In B_J only the β bits of each b cost work, not the empty bits up to
the slot width. An offset makes signed b unsigned. One factor for each row and each block removes the offset
again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import islice

import gmpy2
from gmpy2 import mpz

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.packing import BlockLayout, pack
from dpdpca_protocol.paillier.cipher import pack_ciphertexts
from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.paillier.products import SegmentShape, Steps, SubsetTables, product_of_steps
from dpdpca_protocol.paillier.residues import ResidueProducts, uniform_residue
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.release.prefetch import Shared, prefetch_results

_TASK_CIPHERTEXTS = 16
"""The least number of ciphertexts that a worker makes at a time."""
POOL_BYTES = 128 * 2**20
_BLOCK_BYTES = 32 * 2**20
_ROW_BYTES = 16 * 2**20
_ALL_POOLS_BYTES = 512 * 2**20
"""The size of the pool's tables in all processes together."""

NoiseRow = Callable[[int, range], list[int]]
"""(row, columns) → H at these entries."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How a release is computed. The result does not depend on these options.

    Attributes:
        residues: uniform n-th residues that were made in advance, one for each ciphertext in the order of the
            release. These residues are secret and used once. If the residues run out, more are made.
        pool: `pool_size` uniform n-th residues, secret and for this release only. Further residues are
            products over the pool. If the pool is empty, each further residue is a full power.
        executor: processes, or None for this process.
        workers: the number of processes.
        on_done: called with the number of ciphertexts that are new since the last call.
    """

    residues: Iterable[mpz] = ()
    pool: Sequence[mpz] = ()
    executor: Executor | None = None
    workers: int = 1
    on_done: Callable[[int], None] = lambda count: None

    @property
    def ahead(self) -> int:
        return 3 * self.workers


def masked_ciphertexts(
    public: PublicKey,
    layout: BlockLayout,
    aggregate: Iterable[mpz],
    count: int,
    mask: Sequence[int],
    noise_row: NoiseRow,
    randomness: Randomness,
    speed: Speed,
) -> Iterator[mpz]:
    """E[v′] and E[T] in the order of the release, while they are computed, each under a fresh n-th residue.

    Args:
        public: the key.
        layout: the layout of the shares.
        aggregate: the products over the cohort in share order; read when needed.
        count: N > 0.
        mask: b, length d.
        noise_row: gives H.
        randomness: for the re-randomisation.
        speed: how to compute.

    Raises:
        UsageError: the aggregate does not fit the layout.
    """
    remaining = iter(aggregate)
    head = list(islice(remaining, 1 + layout.d))
    if len(head) != 1 + layout.d or len(mask) != layout.d:
        raise UsageError("wrong-shape", "the aggregate or the mask does not fit the layout")
    sums = head[1:]
    blocks = [[sums[j] for j in layout.columns(block)] for block in range(layout.column_blocks)]
    packing = (partial(pack_ciphertexts, public, block, layout.slot_bits) for block in blocks)
    packed = tuple(prefetch_results(speed.executor, speed.ahead, packing))
    terms = _Terms(public, layout, count, tuple(mask), packed, tuple(speed.pool), speed.workers)
    make = partial(_make_here, terms) if speed.executor is not None else _Maker(terms).make
    tasks = _tasks(terms, sums, remaining, noise_row, iter(speed.residues))
    calls = (partial(make, task, randomness) for task in tasks)
    for made in prefetch_results(speed.executor, speed.ahead, calls):
        speed.on_done(len(made))
        yield from made


@dataclass(frozen=True, slots=True)
class _Terms(Shared):
    """What all tasks share. These terms are hashable, so that a worker recognises them."""

    public: PublicKey
    layout: BlockLayout
    count: int
    mask: tuple[int, ...]
    packed_sums: tuple[mpz, ...]
    pool: tuple[mpz, ...]
    workers: int

    def __reduce__(self) -> tuple[Callable[..., "_Terms"], tuple[object, ...]]:
        # Of fixed size, because whoever keeps calls may see their sizes.
        width = _mask_bytes(self.layout)
        mask = b"".join(b.to_bytes(width, "big", signed=True) for b in self.mask)
        given = (self.public, self.layout, self.count, mask, self.packed_sums, self.pool, self.workers)
        return _terms, given

    @property
    def mask_bits(self) -> int:
        """β′ with b in [−2^(β′−1), 2^(β′−1)) for all b."""
        return 1 + max(max(b, -b - 1).bit_length() for b in self.mask)


def _terms(
    public: PublicKey,
    layout: BlockLayout,
    count: int,
    mask: bytes,
    packed_sums: tuple[mpz, ...],
    pool: tuple[mpz, ...],
    workers: int,
) -> _Terms:
    width = _mask_bytes(layout)
    parts = (mask[start : start + width] for start in range(0, len(mask), width))
    values = tuple(int.from_bytes(part, "big", signed=True) for part in parts)
    return _Terms(public, layout, count, values, packed_sums, pool, workers)


def _mask_bytes(layout: BlockLayout) -> int:
    """Enough for any mask, because a slot holds the product of two of its values."""
    return layout.slot_bits // 8 + 1


@dataclass(frozen=True, slots=True)
class _Row:
    """The input for one row of T: E[v_i], E[R_{i,J}] for its blocks, the packed H, and residues if any.

    H is in bytes of fixed length, because whoever keeps calls may see their sizes.
    """

    index: int
    sum: mpz
    blocks: list[mpz]
    noise: list[bytes]
    residues: list[mpz]


@dataclass(frozen=True, slots=True)
class _Task:
    """A part of the work: either E[v_i] of consecutive rows, which get their mask, or rows of T.

    Attributes:
        first: the row of the first E[v_i].
        sums: E[v_i] of the consecutive rows.
        residues: the residues for `sums`, as far as they were made in advance.
        rows: the rows of T.
    """

    first: int
    sums: list[mpz]
    residues: list[mpz]
    rows: list[_Row]


def _tasks(
    terms: _Terms,
    sums: Sequence[mpz],
    remaining: Iterator[mpz],
    noise_row: NoiseRow,
    residues: Iterator[mpz],
) -> Iterator[_Task]:
    layout = terms.layout
    for first in range(0, layout.d, _TASK_CIPHERTEXTS):
        some = list(sums[first : first + _TASK_CIPHERTEXTS])
        yield _Task(first, some, list(islice(residues, len(some))), [])
    rows: list[_Row] = []
    for i in range(layout.d):
        columns = [columns for _, columns in layout.blocks(i)]
        blocks = list(islice(remaining, len(columns)))
        if len(blocks) != len(columns):
            raise UsageError("wrong-shape", "the aggregate does not fit the layout")
        packed = (pack(noise_row(i, part), layout.slot_bits) for part in columns)
        noise = [value.to_bytes(terms.public.modulus_bytes + 1, "big", signed=True) for value in packed]
        rows.append(_Row(i, sums[i], blocks, noise, list(islice(residues, len(blocks)))))
        if sum(len(row.blocks) for row in rows) >= _TASK_CIPHERTEXTS:
            yield _Task(0, [], [], rows)
            rows = []
    if rows:
        yield _Task(0, [], [], rows)
    if next(remaining, None) is not None:
        raise UsageError("wrong-shape", "the aggregate does not fit the layout")


class _Maker:
    """Computes the tasks of one release. The tables are built when first needed and serve all tasks."""

    def __init__(self, terms: _Terms) -> None:
        layout, element_bytes = terms.layout, terms.public.ciphertext_bytes
        self._terms = terms
        self._modulus = terms.public.ciphertext_modulus
        self._half = 1 << (terms.mask_bits - 1)
        self._count_bits = [bool(terms.count >> bit & 1) for bit in range(terms.count.bit_length())]
        self._packed_mask = [
            pack([terms.mask[j] for j in layout.columns(block)], layout.slot_bits)
            for block in range(layout.column_blocks)
        ]
        self._block_shape = _block_shape(layout, terms.mask_bits, terms.workers, element_bytes)
        self._blocks: dict[int, tuple[SubsetTables, mpz]] = {}
        self._exponents: dict[tuple[int, SegmentShape], list[list[int]]] = {}

    def make(self, task: _Task, randomness: Randomness) -> list[mpz]:
        with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
            made = [
                self._product([[[self._plain(self._terms.mask[i]), ciphertext]]], residue, randomness)
                for i, (ciphertext, residue) in enumerate(_each(task.sums, task.residues), task.first)
            ]
            for row in task.rows:
                made += self._row(row, randomness)
        return made

    def _row(self, row: _Row, randomness: Randomness) -> Iterator[mpz]:
        terms, layout = self._terms, self._terms.layout
        shape = _row_shape(
            layout.slots,
            terms.mask_bits,
            layout.slot_bits,
            len(row.blocks),
            terms.public.ciphertext_bytes,
        )
        tables = shape.tables(row.sum, self._modulus)
        offsets: dict[int, mpz] = {}
        mask = terms.mask[row.index]
        short = self._block_shape.digits([mask + self._half])
        blocks = zip(layout.blocks(row.index), row.noise, _each(row.blocks, row.residues), strict=True)
        for (block, columns), noise, (scatter, residue) in blocks:
            width, added = len(columns), int.from_bytes(noise, "big", signed=True)
            if width not in offsets:
                offsets[width] = shape.without_offset(tables, width, self._modulus)
            block_tables, block_offset = self._block(block)
            parts = [
                [[self._plain(mask * self._packed_mask[block] + added), offsets[width], block_offset]],
                [[scatter] if bit else [] for bit in self._count_bits],
                tables.steps(self._exponent(block, shape)),
                block_tables.steps(short),
            ]
            yield self._product(parts, residue, randomness)

    def _product(self, parts: Sequence[Steps], residue: mpz | None, randomness: Randomness) -> mpz:
        public = self._terms.public
        if residue is not None:
            hidden: Steps = [[residue]]
        elif self._terms.pool:
            hidden = self._pool.random_steps(randomness)
        else:
            hidden = [[uniform_residue(public, randomness)]]
        return product_of_steps([*parts, hidden], self._modulus)

    @cached_property
    def _pool(self) -> ResidueProducts:
        terms = self._terms
        uses = -(-terms.layout.release_count // terms.workers)
        room = min(POOL_BYTES, _ALL_POOLS_BYTES // terms.workers)
        return ResidueProducts(terms.public, terms.pool, uses, room)

    def _plain(self, value: int) -> mpz:
        """E[value] with randomness 1."""
        modulus = self._terms.public.modulus
        return 1 + value % modulus * modulus

    def _block(self, block: int) -> tuple[SubsetTables, mpz]:
        """The tables of E[V_J], and the factor that removes the offset of its exponents."""
        if block not in self._blocks:
            tables = self._block_shape.tables(self._terms.packed_sums[block], self._modulus)
            self._blocks[block] = tables, self._block_shape.without_offset(tables, 1, self._modulus)
        return self._blocks[block]

    def _exponent(self, block: int, shape: SegmentShape) -> list[list[int]]:
        """The digits of B_J. An offset first makes the entries of b nonnegative."""
        key = block, shape
        if key not in self._exponents:
            columns = self._terms.layout.columns(block)
            self._exponents[key] = shape.digits([self._terms.mask[j] + self._half for j in columns])
        return self._exponents[key]


def _each(ciphertexts: Iterable[mpz], residues: Iterable[mpz]) -> Iterator[tuple[mpz, mpz | None]]:
    residue = iter(residues)
    return ((ciphertext, next(residue, None)) for ciphertext in ciphertexts)


@lru_cache(maxsize=4096)
def _row_shape(slots: int, mask_bits: int, slot_bits: int, uses: int, element_bytes: int) -> SegmentShape:
    return SegmentShape.best(slots, mask_bits, slot_bits, uses, element_bytes, _ROW_BYTES)


def _block_shape(layout: BlockLayout, mask_bits: int, workers: int, element_bytes: int) -> SegmentShape:
    room = _BLOCK_BYTES // layout.column_blocks
    return SegmentShape.best(1, mask_bits, 0, -(-layout.d // workers), element_bytes, room)


def multiplications(
    public: PublicKey, layout: BlockLayout, mask_bits: int, count: int, workers: int = 1
) -> int:
    """The multiplications mod n² in a masked release whose residues were made in advance.

    Args:
        public: the key.
        layout: the layout of the shares.
        mask_bits: β.
        count: N.
        workers: the number of processes. Each process builds the tables of all blocks.
    """
    element_bytes = public.ciphertext_bytes
    short = _block_shape(layout, mask_bits, workers, element_bytes)
    packing = sum(layout.slot_bits * (len(layout.columns(b)) - 1) for b in range(layout.column_blocks))
    total = packing + 2 * layout.d + workers * layout.column_blocks * (short.building() + mask_bits)
    for i in range(layout.d):
        uses = layout.column_blocks - i // layout.slots
        shape = _row_shape(layout.slots, mask_bits, layout.slot_bits, uses, element_bytes)
        squarings = max(shape.steps, short.steps, count.bit_length()) - 1
        factors = shape.table_count * shape.steps + short.table_count * short.steps + count.bit_count() + 4
        total += shape.building() + shape.bits + uses * (squarings + factors)
    return total


@lru_cache(maxsize=1)
def _maker_here(terms: _Terms) -> _Maker:
    """What a worker keeps from task to task."""
    return _Maker(terms)


def _make_here(terms: _Terms, task: _Task, randomness: Randomness) -> list[mpz]:
    return _maker_here(terms).make(task, randomness)
