import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical

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
        b'{"a":"' + b"[" * 20 + b'"}',
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
