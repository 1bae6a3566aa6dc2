"""Rows in JSON come out as `json` reads them, wherever the window on the text ends."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdpca_protocol.errors import DpdpcaError, InputError, MessageError
from dpdpca_user_service.transform import json_rows
from dpdpca_user_service.transform.json_rows import json_blocks

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(
    st.lists(VALUES, max_size=5) | st.dictionaries(st.text(max_size=4), VALUES, max_size=5), min_size=1
)
STYLES: list[dict[str, Any]] = [
    {},
    {"separators": (",", ":")},
    {"indent": 1},
    {"ensure_ascii": False},
    {"separators": (" ,\t", " : ")},
]


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "_BLOCK_CHARACTERS", 7)
    monkeypatch.setattr(json_rows, "MOST_ROW_BYTES", 10_000)


def rows_in(body: bytes, most: int = 3) -> list[Any]:
    blocks = list(json_blocks(body, most))
    assert all(1 <= len(block) <= most for block in blocks)
    return [row for block in blocks for row in block]


@given(rows=ROWS, style=st.sampled_from(STYLES), window=st.integers(1, 40))
def test_rows_come_out_as_json_reads_them(rows: list[Any], style: dict[str, Any], window: int) -> None:
    body = json.dumps({"rows": rows}, **style).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_rows, "_BLOCK_CHARACTERS", window)
        assert rows_in(body) == rows


@given(
    rows=ROWS,
    window=st.integers(1, 40),
    at=st.integers(0),
    change=st.binary(max_size=3) | st.sampled_from([b"],", b"},", b"[", b'"', b"{", b",", b"]}"]),
    gone=st.integers(0, 3),
)
def test_what_json_refuses_is_refused(
    rows: list[Any], window: int, at: int, change: bytes, gone: int
) -> None:
    """And what it reads is read alike, if it is of the form that is asked for."""
    body = json.dumps({"rows": rows}).encode()
    at %= len(body)
    body = body[:at] + change + body[at + gone :]
    expected: Any = None
    try:
        parsed = json.loads(body.decode())
        if set(parsed) == {"rows"} and all(isinstance(row, list | dict) for row in parsed["rows"]):
            expected = parsed["rows"] or None
    except (ValueError, TypeError):
        pass
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_rows, "_BLOCK_CHARACTERS", window)
        try:
            found = rows_in(body)
        except (MessageError, InputError):
            # `json` takes the last of members that are named twice.
            assert expected is None or body.count(b'"') > json.dumps({"rows": expected}).count('"')
        else:
            assert found == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"row": [[1]]}',
        b'{"more": 1, "rows": [[1]]}',
        b'{"rows": [[1]], "more": 1}',
        b'{"rows": [[1]]',
        b'{"rows": [[1]',
        b'{"rows": [[1],]}',
        b'{"rows": [[1] [2]]}',
        b'{"rows": [[1]]} x',
        b'{"rows": [[1, 2]], "rows": [[1, 2]]}',
        b'{"rows": [{"a": 1, "a": 1}]}',
        b'{"rows": [{"a": 1}, {"b": [{"a": 1, "\\u0061": 1}]}]}',
        b'{"rows": [[01]]}',
        b'{"rows": [["\xff"]]}',
        b'{"rows": [["\xed\xa0\x80"]]}',
        b"\xef\xbb\xbf" + b'{"rows": [[1]]}',
        '{"rows": [[1]]}'.encode("utf-16"),
        '{"rows": [[1]]}'.encode("utf-16-le"),
        '{"rows": [[1]]}'.encode("utf-32-be"),
        b'{"rows": [[' + b"9" * 5000 + b"]]}",
        b'{"rows": ' + b"[" * 9000 + b"]" * 9000 + b"}",
        b'{"rows": [{"a": ' + b'{"a":' * 9000,
    ],
)
def test_other_bodies_are_refused(body: bytes, small_window: None) -> None:
    with pytest.raises(DpdpcaError) as refusal:
        rows_in(body)
    assert refusal.value.status in (400, 422)


def test_a_row_is_as_long_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "_BLOCK_CHARACTERS", 64)
    monkeypatch.setattr(json_rows, "MOST_ROW_BYTES", 1000)
    for wide in (1000 - len('{"": }'), 900):
        row = {"x": "y" * (wide - 4)}
        assert rows_in(json.dumps({"rows": [row, row, row]}).encode()) == [row] * 3
    with pytest.raises(MessageError, match="longer than 1000"):
        rows_in(json.dumps({"rows": [{"x": "y"}, {"x": "y" * 1200}]}).encode())
