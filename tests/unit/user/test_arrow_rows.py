"""Rows in an Arrow stream: measured before they are unpacked, and read as owners' columns are."""

import datetime
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from arrow_bombs import (
    FlatBuffer,
    claiming,
    growing_dictionary,
    messages_of,
    nested_bomb,
    noted_message,
    repeated_text,
    schema_bomb,
    stream_of,
    zeros,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_service import LEVELS, made_model

from dpdpca_protocol.errors import DpdpcaError, InputError, LimitError, MessageError
from dpdpca_user.results.tables import rows_of_table
from dpdpca_user_service.transform import arrow_metadata
from dpdpca_user_service.transform.arrow_metadata import StreamSize, measure_stream
from dpdpca_user_service.transform.arrow_rows import (
    MOST_DICTIONARY_VALUES,
    MOST_TEXT_BYTES,
    _check_texts,
    arrow_blocks,
)

MANY = 1 << 40
MANIFEST = made_model(LEVELS).manifest
DAY = datetime.date(2026, 1, 2)


def read(stream: bytes, block_rows: int = 7, most_rows: int = 10_000, most_bytes: int = 1 << 26) -> Any:
    blocks = list(arrow_blocks(stream, MANIFEST, most_rows, most_bytes, block_rows))
    assert all(0 < len(block) <= block_rows for block in blocks)
    return np.concatenate(blocks)


def batch_of(**columns: Any) -> pa.RecordBatch:
    plain = {"f0": [0.5, None, -1.0], "f1": [1, 2, 3], "f2": [0, 0, 1], "ward": ["a", "ä", None]}
    return pa.record_batch(plain | columns)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_blocks_are_the_rows_of_the_table(compression: str | None) -> None:
    batches = [batch_of(), batch_of().slice(1, 2), batch_of().slice(0, 0)] * 9
    expected = rows_of_table(pa.Table.from_batches(batches), MANIFEST)
    assert len(expected) == 45
    for block_rows in (1, 2, 100):
        assert np.array_equal(read(stream_of(batches, compression=compression), block_rows), expected)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([3, -4, None], pa.int8()),
        pa.array([3, 2**63, None], pa.uint64()),
        pa.array([0.5, None, float("nan")], pa.float16()),
        pa.array([0.5, None, float("inf")], pa.float32()),
        pa.array([Decimal("0.25"), None, Decimal("-3.5")]),
        pa.array([True, None, False]),
        pa.nulls(3),
        pa.array([1.5, None, 1.5]).dictionary_encode(),
        pa.array(["", None, ""]),
    ],
    ids=lambda column: str(column.type),
)
def test_numbers_are_what_python_reads(column: pa.Array) -> None:
    batch = batch_of(f1=column)
    assert np.array_equal(read(stream_of([batch])), rows_of_table(pa.Table.from_batches([batch]), MANIFEST))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "ä", None], pa.large_string()),
        pa.array(["a", "ä", None], pa.string_view()),
        pa.array([b"a", "ä".encode(), b""]),
        pa.array([b"a", b"b", None], pa.binary(1)),
        pa.array(["b", "ä", "b"]).dictionary_encode(),
        pa.array(["b", None, "a\N{COMBINING DIAERESIS}"], pa.string_view()),
        pa.nulls(3),
    ],
    ids=lambda column: str(column.type),
)
def test_levels_are_what_python_reads(column: pa.Array) -> None:
    batch = batch_of(ward=column)
    assert np.array_equal(read(stream_of([batch])), rows_of_table(pa.Table.from_batches([batch]), MANIFEST))


def test_dates_are_levels() -> None:
    manifest = made_model([{"name": "day", "levels": [str(DAY)]}]).manifest
    stream = stream_of([pa.record_batch({"day": [DAY, None]})])
    (rows,) = arrow_blocks(stream, manifest, 10, 1 << 20, 10)
    assert rows.tolist() == [[1.0], [0.0]]


def test_the_size_is_that_of_the_buffers() -> None:
    batch = batch_of(ward=pa.array(["a", "b", "a"]).dictionary_encode())
    arrays = [*(batch.column(name) for name in batch.schema.names[:3]), batch.column("ward").indices]
    dictionary = batch.column("ward").dictionary
    expected = sum(buffer.size for array in (*arrays, dictionary) for buffer in array.buffers() if buffer)
    for compression in (None, "zstd", "lz4"):
        size = measure_stream(stream_of([batch], compression=compression), MANY, MANY)
        assert size.rows == 3
        assert expected - 64 <= size.unpacked_bytes <= expected + 64
    assert measure_stream(stream_of([zeros(1000)], compression="zstd"), MANY, MANY) == StreamSize(
        1000, 24_000
    )
    assert measure_stream(stream_of([zeros(1000)] * 3), MANY, MANY).rows == 3000


def test_limits_are_exact() -> None:
    stream = stream_of([zeros(1000), zeros(500)], compression="zstd")
    assert measure_stream(stream, 1500, 36_000) == StreamSize(1500, 36_000)
    for most_rows, most_bytes in ((1499, 36_000), (1500, 35_999)):
        with pytest.raises(LimitError):
            measure_stream(stream, most_rows, most_bytes)


def test_a_dictionary_that_grows_counts_as_often_as_it_is_copied() -> None:
    grown = measure_stream(growing_dictionary(10, 1000), MANY, MANY).unpacked_bytes
    whole = measure_stream(growing_dictionary(1, 10_000), MANY, MANY).unpacked_bytes
    assert 4 * whole < grown < 7 * whole


def test_so_many_batches_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_metadata, "MOST_MESSAGES", 10)
    assert measure_stream(stream_of([zeros(1)] * 9), MANY, MANY).rows == 9
    with pytest.raises(LimitError, match="more than 10 batches"):
        measure_stream(stream_of([zeros(1)] * 10), MANY, MANY)


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (pa.array([[1.0]]), "lists"),
        (pa.array([[1.0]], pa.large_list(pa.float64())), "large lists"),
        (pa.array([[1.0]], pa.list_(pa.float64(), 1)), "lists of one length"),
        (pa.array([[1.0]], pa.list_view(pa.float64())), "list views"),
        (pa.array([{"x": 1.0}]), "structs"),
        (pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int8())), "maps"),
        (pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([1.0])), "run-end encoded"),
        (pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]), "unions"),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "intervals"),
    ],
)
def test_columns_that_are_not_flat_are_refused_by_name(column: pa.Array, named: str) -> None:
    with pytest.raises(
        InputError, match=f"column 2 of the Arrow stream is {named}, which is not a type of a feature"
    ):
        measure_stream(stream_of([pa.record_batch({"f0": [1.0], "f1": column})]), MANY, MANY)


def test_extension_types_are_what_they_store() -> None:
    kind = pa.json_(pa.string())
    batch = batch_of(ward=pa.ExtensionArray.from_storage(kind, pa.array(["a", "b", "ä"])))
    assert np.array_equal(read(stream_of([batch])), read(stream_of([batch_of(ward=["a", "b", "ä"])])))
    long = pa.ExtensionArray.from_storage(kind, pa.array(["a", "b", "x" * 5000]))
    with pytest.raises(InputError, match="more than 4096 bytes"):
        read(stream_of([batch_of(ward=long)]))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b", "x" * (MOST_TEXT_BYTES + 1)]),
        pa.array(["a", "b", "x" * (MOST_TEXT_BYTES + 1)], pa.large_string()),
        pa.array(["a", "b", "x" * (MOST_TEXT_BYTES + 1)], pa.string_view()),
        pa.array([b"x" * (MOST_TEXT_BYTES + 1)] * 3, pa.binary(MOST_TEXT_BYTES + 1)),
        pa.array(["a", "b", "x" * (MOST_TEXT_BYTES + 1)]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_long_texts_of_features_are_refused(column: pa.Array) -> None:
    with pytest.raises(InputError, match="feature ward contains a text of more than 4096 bytes") as refusal:
        read(stream_of([batch_of(ward=column)]))
    assert "xxxx" not in str(refusal.value)
    assert read(stream_of([batch_of(other=column)])).shape == (3, 6)


def test_a_view_of_a_missing_text_is_no_text() -> None:
    views = struct.pack("<iiii", 1 << 20, 0, 0, 0) + struct.pack("<i12s", 1, b"a") * 2
    present = pa.py_buffer(b"\x06")
    ward = pa.Array.from_buffers(pa.string_view(), 3, [present, pa.py_buffer(views)])
    assert read(stream_of([batch_of(ward=ward)]))[:, 3].tolist() == [0.0, 1.0, 1.0]
    longer = pa.Array.from_buffers(pa.string_view(), 2, [None, pa.py_buffer(views[16:] + b"odd")])
    _check_texts(longer, MANIFEST.features[3])


def test_a_long_dictionary_of_a_feature_is_refused() -> None:
    words = pa.array([f"{index}" for index in range(MOST_DICTIONARY_VALUES + 1)])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), words)
    with pytest.raises(LimitError, match="dictionary of more than 65536"):
        read(stream_of([batch_of(ward=column)]))
    assert read(stream_of([batch_of(other=column)])).shape == (3, 6)


def test_values_that_python_cannot_hold_are_refused() -> None:
    far = pa.array([2**60, 0, 0], pa.timestamp("s"))
    zone = pa.array([0, 0, 0], pa.timestamp("s", "Nowhere/At_all"))
    fine = pa.array([1, 1, 1], pa.timestamp("ns"))
    for column in (far, zone, fine):
        with pytest.raises(InputError):
            read(stream_of([batch_of(ward=column)]))


def test_records_are_counted_over_batches() -> None:
    with pytest.raises(InputError, match="in record 7"):
        read(stream_of([batch_of(), batch_of(), batch_of(ward=["z", "a", "a"])]), block_rows=2)


def test_streams_without_rows_or_columns_are_refused() -> None:
    empty = batch_of().slice(0, 0)
    for stream in (stream_of([empty]), messages_of(stream_of([empty]))[0]):
        with pytest.raises(InputError, match="no row"):
            read(stream)
    with pytest.raises(InputError, match="4 of 4 features"):
        read(stream_of([pa.record_batch({"other": [1]})]))
    twice = pa.record_batch([pa.array([1.0]), pa.array([1.0])], ["f0", "f0"])
    with pytest.raises(InputError, match="two columns"):
        read(stream_of([twice]))


SAME = pa.record_batch([*zeros(1000).columns, pa.nulls(1000)], ["f0", "f1", "f2", "ward"])


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"\xff" * 64,
        b"ARROW1\0\0" * 8,
        struct.pack("<II", 0xFFFFFFFF, 64),
        struct.pack("<II", 0xFFFFFFFF, 0),
        stream_of([SAME])[:-40],
        stream_of([SAME])[400:],
        b"".join(messages_of(stream_of([SAME])) * 2),
        claiming(stream_of([SAME], compression="zstd"), -2),
        claiming(stream_of([SAME], compression="zstd"), 7999),
        claiming(stream_of([SAME], compression="zstd"), 8001),
    ],
)
def test_what_is_no_stream_is_refused(stream: bytes) -> None:
    with pytest.raises(MessageError, match="not an Arrow stream"):
        read(stream)


def test_nothing_is_read_behind_the_end() -> None:
    assert len(read(stream_of([SAME]) + b"and more")) == 1000
    assert len(read(claiming(stream_of([SAME], compression="zstd"), 8000))) == 1000


def test_made_schemas_are_what_arrow_reads() -> None:
    """The bombs are refused for their size, not for a fault in how they are made."""
    for made in (schema_bomb(3, b"f0", 2, b"note"), noted_message(2, b"note"), nested_bomb(3, 2)):
        schema = pa.ipc.read_schema(pa.py_buffer(made))
        assert len(schema) in (0, 2, 3)
    assert pa.ipc.read_schema(pa.py_buffer(schema_bomb(3, b"f0", 2, b"n"))).names == ["f0"] * 3
    assert measure_stream(schema_bomb(3), MANY, MANY) == StreamSize(0, 0)
    with pytest.raises(InputError, match="column 1 of the Arrow stream is structs"):
        measure_stream(nested_bomb(3, 2), MANY, MANY)
    assert repeated_text(5, 20, "views").column("ward").to_pylist()[0][:4] == "xxxx"


@pytest.mark.parametrize(
    "made",
    [
        schema_bomb(100_000),
        schema_bomb(10, b"n" * (2 << 20)),
        schema_bomb(1000, notes=1000),
        schema_bomb(1, notes=20, note=b"n" * (1 << 20)),
        noted_message(20, b"n" * (1 << 20)),
    ],
)
def test_a_schema_that_says_one_thing_often_is_refused(made: bytes) -> None:
    with pytest.raises(LimitError, match="names and metadata"):
        measure_stream(made, MANY, MANY)


def test_a_time_zone_counts_as_a_name() -> None:
    flat = FlatBuffer()
    root = flat.table(_0=("h", 4), _1=("B", 1), _2=("I", 0), _3=("q", 0))
    schema = flat.table(_1=("I", 0))
    flat.point(root, 2, schema)
    listed = flat.same(10)
    flat.point(schema, 1, listed[0])
    field = flat.table(_0=("I", 0), _2=("B", 10), _3=("I", 0), _5=("I", 0))
    flat.finish_same(listed, field)
    flat.point(field, 0, flat.text(b"f0"))
    zone = flat.table(_1=("I", 0))
    flat.point(field, 3, zone)
    flat.point(zone, 1, flat.text(b"z" * (2 << 20)))
    flat.point(field, 5, flat.same(0)[0])
    with pytest.raises(LimitError, match="names and metadata"):
        measure_stream(flat.message(root), MANY, MANY)


WHOLES = [
    stream_of([batch_of(), batch_of(ward=["a", "b", "a"])]),
    stream_of([batch_of()] * 2, compression="zstd"),
    stream_of([batch_of(ward=pa.array(["a", "b", "a"]).dictionary_encode())] * 2, compression="lz4"),
    stream_of([batch_of(ward=pa.array(["a", "b", "ä"], pa.string_view()))]),
    growing_dictionary(3, 3),
]
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 3000),
        st.binary(min_size=1, max_size=3)
        | st.integers(-(2**31), 2**31 - 1).map(lambda value: struct.pack("<i", value))
        | st.integers(-(2**63), 2**63 - 1).map(lambda value: struct.pack("<q", value)),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@given(whole=st.sampled_from(WHOLES), changes=CHANGES, end=st.none() | st.integers(0, 3000))
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_altered_and_cut_streams_give_rows_or_a_refusal(
    whole: bytes, changes: list[tuple[int, bytes, bool]], end: int | None
) -> None:
    body = bytearray(whole)
    for at, change, is_more in changes:
        at %= len(body)
        body[at : at if is_more else at + len(change)] = change
    stream = bytes(body[:end])
    rows = refusal = None
    try:
        rows = read(stream)
    except DpdpcaError as error:
        refusal = error
    if refusal is not None:
        assert refusal.status in (400, 413, 422)
        return
    table = pa.ipc.open_stream(stream).read_all()
    table.validate(full=True)
    assert rows is not None
    assert np.array_equal(rows, rows_of_table(table, MANIFEST), equal_nan=True)
