import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdpca_protocol.errors import LimitError, MessageError
from dpdpca_protocol.wire.canonical import canonical_json, named_list, parse_canonical, read_object

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXT
TREES = st.recursive(
    LEAVES, lambda t: st.lists(t, max_size=4) | st.dictionaries(TEXT, t, max_size=4), max_leaves=12
)


@given(st.dictionaries(TEXT, TREES, max_size=5))
def test_what_is_encoded_is_parsed_back_and_has_one_encoding(value: dict[str, object]) -> None:
    encoded = canonical_json(value)
    assert parse_canonical(encoded) == value
    assert canonical_json(parse_canonical(encoded)) == encoded


@pytest.mark.parametrize(
    "untrusted",
    [
        b'{"a": 1}',  # a space
        b'{"b":1,"a":2}',  # order
        b'{"a":1,"a":1}',  # a member twice
        b'{"a":1,"a":2}',
        b'{"a":1.0}',
        b'{"a":1e3}',
        b'{"a":1e999}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-0}',
        b'{"a":01}',
        b'{"a":9007199254740993}',
        b'{"a":123456789012345678901234567890}',
        b'{"a":"\\u0041"}',  # an escape that need not be one
        b'{"a":"\\ud800"}',  # a lone surrogate
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        b'{"a":"\xff"}',
        b"[1]",
        b"1",
        b"",
        b"{",
        b'{"a":1}\n',
        b'{"a":1}{"a":1}',
        b'{"a":"\x00"}',
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    ],
)
def test_any_other_encoding_is_refused_with_a_message_error(untrusted: bytes) -> None:
    with pytest.raises(MessageError) as caught:
        parse_canonical(untrusted)
    assert caught.value.slug in {"malformed", "not-canonical"}


@pytest.mark.parametrize("value", [{"a": 0.5}, {"a": 2**53}, {"a": "\ud800"}, {"a": float("nan")}])
def test_what_has_no_canonical_form_is_not_encoded(value: dict[str, object]) -> None:
    with pytest.raises(MessageError):
        canonical_json(value)


def test_brackets_in_texts_do_not_nest() -> None:
    message = {"a": "[" * 20, "b": ['"' + "{" * 20 + "\\"]}
    assert parse_canonical(canonical_json(message)) == message


def test_a_message_that_would_grow_is_refused() -> None:
    for unit in (b"[],", b"{},", b'{"a":0},', b"999,", b"1.5,", b'"ab",'):
        body = b'{"a":[' + unit * (3 * 1024 * 1024 // len(unit)) + b"0]}"
        with pytest.raises(LimitError, match="more than 96 MiB beyond its text"):
            read_object(body)
    assert read_object(b'{"a":"' + b"x" * (20 << 20) + b'"}')  # what is text alone grows little
    wide = '{"a":"' + "x" * (20 << 20)
    assert read_object(f'{wide}é"}}'.encode())
    for letter in "界😀":
        with pytest.raises(LimitError):
            read_object(wide.encode() * 3 + letter.encode())


def test_objects_are_read_as_json_and_not_otherwise() -> None:
    assert read_object(b' {"a": 1.5, "b": [null, {"c": "\\u00e9"}]} ') == {"a": 1.5, "b": [None, {"c": "é"}]}
    for body in (
        b"[]",
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"",
    ):
        with pytest.raises(MessageError):
            read_object(body)


def test_a_list_of_canonical_parts_is_canonical() -> None:
    parts = [canonical_json({"b": 1, "a": index}) for index in range(3)]
    assert b"{" + named_list("events", parts) + b"}" == canonical_json(
        {"events": [{"a": index, "b": 1} for index in range(3)]}
    )
    assert b"{" + named_list("events", []) + b"}" == canonical_json({"events": []})


@pytest.mark.parametrize("end", [b"", b"\\", b'"}'])
def test_a_text_of_escaped_quotes_is_read_in_a_time_that_grows_with_its_length(end: bytes) -> None:
    """With the square of its length, this would take minutes."""
    untrusted = b'{"a":"' + rb"\"" * 200_000 + end
    if end == b'"}':
        assert len(read_object(untrusted)["a"]) == 200_000
    else:
        with pytest.raises(MessageError, match="not UTF-8 JSON"):
            read_object(untrusted)


def test_an_escape_may_widen_a_text_as_a_letter_does() -> None:
    untrusted = b'{"a":"' + b"x" * 100_000 + rb'\ud83d\ude00"}'
    with pytest.raises(LimitError):
        read_object(untrusted, 500_000)
    assert read_object(untrusted, 700_000)
