"""Small Arrow streams that ask their reader for gigabytes, and what they are made with."""

import io
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

MB = 1024 * 1024
MANY = 10_000_000


def stream_of(batches: Sequence[pa.RecordBatch], **options: Any) -> bytes:
    """The batches as an Arrow stream; options are those of Arrow's writer, such as `compression`."""
    sink = io.BytesIO()
    written = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, batches[0].schema, options=written) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def zeros(rows: int, columns: int = 3) -> pa.RecordBatch:
    return pa.record_batch({f"f{index}": np.zeros(rows) for index in range(columns)})


def messages_of(stream: bytes) -> list[bytes]:
    """The schema, dictionaries and batches of a stream, each with its length in front; no end mark."""
    messages, at = [], 0
    while at < len(stream):
        (size,) = struct.unpack_from("<I", stream, at + 4)
        if size == 0:
            break
        begin, at = at, at + 8 + size
        at += pa.ipc.read_message(pa.py_buffer(stream[begin:])).body.size
        messages.append(stream[begin:at])
    return messages


def claiming(stream: bytes, size: int) -> bytes:
    """A compressed stream whose first buffer says that it unpacks to `size` bytes."""
    schema, batch, *rest = messages_of(stream)
    body = 8 + struct.unpack_from("<I", batch, 4)[0]
    changed = bytearray(batch)
    changed[body : body + 8] = struct.pack("<q", size)
    return b"".join([schema, changed, *rest])


class FlatBuffer:
    """Tables and lists written one after the other, with what points to them put in afterwards."""

    def __init__(self) -> None:
        self.data = bytearray(8)  # the root's offset

    def table(self, **fields: tuple[str, int]) -> int:
        """A table whose fields are named `_0`, `_1` …, each a struct format and a number; its place."""
        places = {int(name[1:]): form for name, (form, _) in fields.items()}
        self._align()
        vtable, slots = len(self.data), [0] * (1 + max(places, default=-1))
        for index, field in enumerate(sorted(places)):
            slots[field] = 8 + 8 * index
        self.data += struct.pack(f"<HH{len(slots)}H", 4 + 2 * len(slots), 8 + 8 * len(places), *slots)
        self._align()
        table = len(self.data)
        self.data += struct.pack("<iI", table - vtable, 0)
        for name in sorted(fields, key=lambda name: int(name[1:])):
            form, value = fields[name]
            self.data += struct.pack(f"<{form}", value).ljust(8, b"\0")
        return table

    def point(self, table: int, field: int, target: int) -> None:
        """Puts the offset of `target`, which stands behind, into a field of `table`."""
        (back,) = struct.unpack_from("<i", self.data, table)
        (slot,) = struct.unpack_from("<H", self.data, table - back + 4 + 2 * field)
        struct.pack_into("<I", self.data, table + slot, target - table - slot)

    def text(self, content: bytes) -> int:
        self._align()
        place = len(self.data)
        self.data += struct.pack("<I", len(content)) + content + b"\0"
        return place

    def same(self, count: int) -> tuple[int, int]:
        """A list of `count` offsets that `finish_same` points to one target; its place."""
        self._align()
        place = len(self.data)
        self.data += struct.pack("<I", count) + bytes(4 * count)
        return place, count

    def finish_same(self, listed: tuple[int, int], target: int) -> None:
        place, count = listed
        spots = place + 4 + 4 * np.arange(count, dtype=np.int64)
        self.data[place + 4 : place + 4 + 4 * count] = (target - spots).astype("<u4").tobytes()

    def message(self, root: int) -> bytes:
        """The whole as the metadata of one message without a body."""
        struct.pack_into("<I", self.data, 0, root)
        self._align()
        return struct.pack("<II", 0xFFFFFFFF, len(self.data)) + bytes(self.data)

    def _align(self) -> None:
        self.data += bytes(-len(self.data) % 8)


_VERSION = ("h", 4)


def schema_bomb(fields: int, name: bytes = b"f0", notes: int = 0, note: bytes = b"") -> bytes:
    """A schema of `fields` null columns that are one in the bytes, with one note repeated `notes` times."""
    flat = FlatBuffer()
    root = flat.table(_0=_VERSION, _1=("B", 1), _2=("I", 0), _3=("q", 0))
    schema = flat.table(_1=("I", 0))
    flat.point(root, 2, schema)
    listed = flat.same(fields)
    flat.point(schema, 1, listed[0])
    field = flat.table(_0=("I", 0), _1=("B", 1), _2=("B", 1), _3=("I", 0), _5=("I", 0), _6=("I", 0))
    flat.finish_same(listed, field)
    flat.point(field, 0, flat.text(name))
    flat.point(field, 3, flat.table())
    flat.point(field, 5, flat.same(0)[0])
    repeated = flat.same(notes)
    flat.point(field, 6, repeated[0])
    pair = flat.table(_0=("I", 0), _1=("I", 0))
    flat.finish_same(repeated, pair)
    flat.point(pair, 0, flat.text(b"k"))
    flat.point(pair, 1, flat.text(note))
    return flat.message(root)


def nested_bomb(depth: int, width: int) -> bytes:
    """A schema of structs of structs, each of `width` times the same one: width to the power of depth."""
    flat = FlatBuffer()
    root = flat.table(_0=_VERSION, _1=("B", 1), _2=("I", 0), _3=("q", 0))
    parent, slot = flat.table(_1=("I", 0)), 1
    flat.point(root, 2, parent)
    for level in range(depth):
        listed = flat.same(width if level < depth - 1 else 0)
        flat.point(parent, slot, listed[0])
        field = flat.table(_0=("I", 0), _1=("B", 1), _2=("B", 13), _3=("I", 0), _5=("I", 0))
        flat.finish_same(listed, field)
        flat.point(field, 0, flat.text(b"f0"))
        flat.point(field, 3, flat.table())
        parent, slot = field, 5
    flat.point(parent, slot, flat.same(0)[0])
    return flat.message(root)


def noted_message(notes: int, note: bytes) -> bytes:
    """A message with one note repeated `notes` times."""
    flat = FlatBuffer()
    root = flat.table(_0=_VERSION, _1=("B", 1), _2=("I", 0), _3=("q", 0), _4=("I", 0))
    schema = flat.table(_1=("I", 0))
    flat.point(root, 2, schema)
    flat.point(schema, 1, flat.same(0)[0])
    repeated = flat.same(notes)
    flat.point(root, 4, repeated[0])
    pair = flat.table(_0=("I", 0), _1=("I", 0))
    flat.finish_same(repeated, pair)
    flat.point(pair, 0, flat.text(b"k"))
    flat.point(pair, 1, flat.text(note))
    return flat.message(root)


def growing_dictionary(deltas: int, values: int) -> bytes:
    """A dictionary that grows by `values` texts each time, and is copied as a whole for that."""
    words = pa.array([f"{index:07}" for index in range(deltas * values)])
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True, compression="zstd")
    schema = pa.schema([("ward", pa.dictionary(pa.int32(), pa.string()))])
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for index in range(deltas):
            known = words.slice(0, (index + 1) * values)
            ward = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), known)
            writer.write_batch(pa.record_batch([ward], schema=schema))
    return sink.getvalue()


def repeated_text(rows: int, size: int, kind: str) -> pa.RecordBatch:
    """One text of `size` bytes that stands in every row, once in the bytes."""
    numbers = {f"f{index}": np.zeros(rows) for index in range(3)}
    if kind == "dictionary":
        ward = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array(["x" * size]))
    else:
        views = struct.pack("<i4sii", size, b"xxxx", 0, 0) * rows
        ward = pa.Array.from_buffers(
            pa.string_view(), rows, [None, pa.py_buffer(views), pa.py_buffer(b"x" * size)]
        )
    return pa.record_batch(numbers | {"ward": ward})


def arrow_bombs() -> dict[str, bytes]:
    """By what is wrong with them."""
    packed = stream_of([zeros(MANY // 10)], compression="zstd")
    schema, batch = messages_of(packed)
    ends = pa.array([MANY * 100], pa.int64())
    run = pa.RunEndEncodedArray.from_arrays(ends, pa.array([0.0]))
    lists = pa.FixedSizeListArray.from_arrays(pa.nulls(MANY * 100), MANY)
    return {
        "7,896 bytes of zeros": stream_of([zeros(MANY)], compression="zstd"),
        "a batch of zeros 300 times": schema + 300 * batch,
        "zeros in lz4": stream_of([zeros(MANY)], compression="lz4"),
        "10⁹ rows of nothing": stream_of([pa.record_batch({"f0": pa.nulls(100 * MANY)})]),
        "a claim of 2⁴⁰ bytes": claiming(stream_of([zeros(1000)], compression="zstd"), 1 << 40),
        "a claim of −5 bytes": claiming(stream_of([zeros(1000)], compression="zstd"), -5),
        "a run of 10⁹": stream_of([pa.record_batch({"f0": run})]),
        "100 lists of 10⁷": stream_of([pa.record_batch({"f0": lists})]),
        "a text of 200 MB": stream_of(
            [pa.record_batch({"ward": pa.array(["x" * (200 * MB)])})], compression="zstd"
        ),
        "a text of 60 MB 100,000 times": stream_of(
            [repeated_text(100_000, 60 * MB, "dictionary")], compression="zstd"
        ),
        "a viewed text of 1 MB 100,000 times": stream_of(
            [repeated_text(100_000, MB, "views")], compression="zstd"
        ),
        "a dictionary that grows 200 times": growing_dictionary(200, 1000),
        "4,000,000 columns": schema_bomb(4_000_000),
        "10,000 names of 4 MB": schema_bomb(10_000, b"n" * (4 * MB)),
        "1,000 columns of 100,000 notes": schema_bomb(1000, notes=100_000),
        "3,000 notes of 1 MB": noted_message(3000, b"n" * MB),
        "structs of structs": nested_bomb(60, 2),
    }
