"""Every type in which NumPy and Arrow can hold a column, with what each stands for in a numeric and in a
categorical feature: numbers, levels, or a refusal.
"""

import datetime
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pyarrow as pa

RECORDS = 3
HALF = Fraction(1, 2)
DAY, NEXT = datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)
TIME_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")
_UUIDS = [uuid.UUID(int=1), None, uuid.UUID(int=2)]


@dataclass(frozen=True)
class Stored:
    """A column of three records.

    Attributes:
        numbers: what they are in a numeric feature, None for a missing one; None if the column is refused.
        levels: the same in a categorical feature.
    """

    name: str
    array: Any
    numbers: Sequence[Fraction | int | None] | None
    levels: Sequence[str | None] | None


def numpy_columns() -> Iterator[Stored]:
    """Every kind and width of NumPy, both byte orders where there are two, and no bytes at all."""
    orders: tuple[Literal["<", ">"], ...] = ("<", ">")
    for code in "bhilqBHILQ":
        for order in orders:
            whole = np.array([1, 0, 3]).astype(np.dtype(code).newbyteorder(order))
            yield Stored(f"{order}{code}", whole, (1, 0, 3), ("1", "0", "3"))
    for code in "efdg":
        for order in orders:
            real = np.array([1, np.nan, 0.5]).astype(np.dtype(code).newbyteorder(order))
            yield Stored(f"{order}{code}", real, (1, None, HALF), ("1", None, "0.5"))
    infinite = np.array([np.inf, -np.inf, -0.0])
    yield Stored("infinities", infinite, (None, None, 0), (None, None, "0"))
    yield Stored("longdouble", infinite.astype(np.longdouble), (None, None, 0), (None, None, "0"))
    tenths = np.array([0.1, 0.25, 1000], "f4")
    exact = tuple(Fraction(x) for x in tenths.tolist())
    yield Stored("a tenth in float32", tenths, exact, ("0.1", "0.25", "1000"))
    yield Stored("bool", np.array([True, False, True]), (1, 0, 1), ("true", "false", "true"))
    for dtype in ("S3", "<U3", ">U3"):
        texts = np.array(["A", "", "1"]).astype(dtype)
        yield Stored(f"text {dtype}", texts, None, ("A", None, "1"))
        yield Stored(f"no text {dtype}", np.zeros(3, dtype), (None,) * 3, (None,) * 3)
    for kind, count in (("M8", [0, "NaT", 1]), ("m8", [0, "NaT", 1])):
        for unit in TIME_UNITS:
            times = np.array(count, f"{kind}[{unit}]")
            is_date = times.dtype == np.dtype("M8[D]")
            dates = ("1970-01-01", None, "1970-01-02") if is_date else None
            yield Stored(f"{kind}[{unit}]", times, None, dates)
            yield Stored(f"no {kind}[{unit}]", np.full(3, "NaT", times.dtype), (None,) * 3, (None,) * 3)
        yield Stored(kind, np.zeros(3, "i8").view(kind), None, None)
        yield Stored(f"{kind}[25s]", np.array(count, f"{kind}[25s]"), None, None)
    for code in "FDG":
        yield Stored(f"complex {code}", np.array([1, 2, 3], code), None, None)
    yield Stored("void", np.zeros(3, "V3"), None, None)
    yield Stored("no bytes", np.zeros(3, "V0"), None, None)
    yield Stored("structure", np.zeros(3, [("a", "i4"), ("b", "f8")]), None, None)


def arrow_columns() -> Iterator[Stored]:
    """Every type of Arrow, by itself, behind a dictionary, and in runs."""
    plain = list(_plain_arrow_columns())
    yield from plain
    for stored in plain:
        coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), stored.array)
        yield Stored(f"dictionary of {stored.name}", coded, stored.numbers, stored.levels)
        runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int32()), stored.array)
        yield Stored(f"runs of {stored.name}", runs, stored.numbers, stored.levels)


def _plain_arrow_columns() -> Iterator[Stored]:
    for kind in (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64):
        yield Stored(str(kind()), pa.array([1, None, 3], kind()), (1, None, 3), ("1", None, "3"))
    for kind in (pa.float16, pa.float32, pa.float64):
        real = pa.array([None if x is None else np.float16(x) for x in (1, None, 0.5)], kind())
        yield Stored(str(kind()), real, (1, None, HALF), ("1", None, "0.5"))
    for number in (pa.decimal32(5, 2), pa.decimal64(12, 3), pa.decimal128(38, 20), pa.decimal256(76, 40)):
        exact = pa.array([Decimal("1.50"), None, Decimal(3)], number)
        yield Stored(str(number), exact, (3 * HALF, None, 3), ("1.5", None, "3"))
    thousands = pa.array([Decimal(1000), None, Decimal(0)], pa.decimal128(5, -3))
    yield Stored("decimal128(5, -3)", thousands, (1000, None, 0), ("1000", None, "0"))
    yield Stored("bool", pa.array([True, None, False]), (1, None, 0), ("true", None, "false"))
    truth = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([7, None, 0], pa.int8()))
    yield Stored("bool8", truth, (1, None, 0), ("true", None, "false"))
    yield Stored("null", pa.nulls(3), (None,) * 3, (None,) * 3)
    texts = (pa.string, pa.large_string, pa.string_view, pa.binary, pa.large_binary, pa.binary_view)
    for kind in texts:
        text = pa.array(["A", None, " é "]).cast(kind())
        yield Stored(str(kind()), text, None, ("A", None, "é"))
        yield Stored(f"no {kind()}", pa.array(["", None, " "]).cast(kind()), (None,) * 3, (None,) * 3)
    yield Stored("fixed", pa.array([b"A", None, b"1"], pa.binary(1)), None, ("A", None, "1"))
    for kind in (pa.date32, pa.date64):
        dates = pa.array([DAY, None, NEXT], kind())
        yield Stored(str(kind()), dates, None, ("2020-01-01", None, "2020-01-02"))
    ids = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([each and each.bytes for each in _UUIDS], pa.binary(16))
    )
    yield Stored("uuid", ids, None, tuple(None if each is None else str(each) for each in _UUIDS))
    yield from _refused_arrow_columns()


def _refused_arrow_columns() -> Iterator[Stored]:
    def refused(name: str, array: Any) -> Stored:
        return Stored(name, array, None, None)

    for unit in ("s", "ms"):
        yield refused(f"time32 {unit}", pa.array([1, None, 3], pa.int32()).cast(pa.time32(unit)))
    for unit in ("us", "ns"):
        yield refused(f"time64 {unit}", pa.array([1, None, 3]).cast(pa.time64(unit)))
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "Europe/Vienna", "+01:00", "No/Where"):
            for size in (1, 2**62):
                times = pa.array([size, None, -size]).cast(pa.timestamp(unit, zone))
                yield refused(f"timestamp {unit} {zone} {size}", times)
        yield refused(f"duration {unit}", pa.array([1, None, 2**62]).cast(pa.duration(unit)))
    interval = pa.MonthDayNano([1, 2, 3])
    yield refused("interval", pa.array([interval, None, interval], pa.month_day_nano_interval()))
    lists = (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)
    for kind in lists:
        yield refused(str(kind(pa.int64())), pa.array([[1], None, [2]], kind(pa.int64())))
    yield refused("fixed list", pa.array([[1], None, [2]], pa.list_(pa.int64(), 1)))
    yield refused("struct", pa.array([{"a": 1}, None, {"a": 2}]))
    yield refused("map", pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())))
    codes = pa.array([0, 1, 0], pa.int8())
    dense = pa.array([0, 0, 1], pa.int32())
    yield refused("dense union", pa.UnionArray.from_dense(codes, dense, [pa.array([1, 2]), pa.array(["a"])]))
    sparse = [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
    yield refused("sparse union", pa.UnionArray.from_sparse(codes, sparse))
    for kind, storage in (
        (pa.json_(), pa.array(["1", None, "2"])),
        (pa.opaque(pa.int64(), "money", "bank"), pa.array([1, None, 3])),
        (pa.fixed_shape_tensor(pa.int64(), [1]), pa.array([[1], None, [2]], pa.list_(pa.int64(), 1))),
    ):
        yield refused(str(kind), pa.ExtensionArray.from_storage(kind, storage))
