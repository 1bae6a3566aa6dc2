"""Strict readers: one form for everything, and nothing that acts when it is shown."""

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest

from dpdpca_protocol.errors import DpdpcaError, MessageError, PolicyError
from dpdpca_protocol.wire.fields import (
    check_members,
    check_unique,
    decimal_text,
    read_choice,
    read_decimal,
    read_integer,
    read_list,
    read_text,
    read_time,
    read_url,
    read_wide_hex,
    time_text,
)

DECIMALS = ["0", "1", "-1", "0.5", "-0.5", "10", "123456789.000000001", "0." + "0" * 39 + "1", "9" * 30]


@pytest.mark.parametrize("text", DECIMALS)
def test_a_decimal_has_one_form(text: str) -> None:
    value = read_decimal(text, "x")
    assert value == Fraction(text)
    assert decimal_text(value) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        ".",
        "+1",
        "1.0",
        "1.",
        ".5",
        "01",
        "00",
        "-0",
        "-0.0",
        "1e3",
        "1E-3",
        "0x1",
        " 1",
        "1 ",
        "1,5",
        "NaN",
        "inf",
        "Infinity",
        "1_000",
        "١",
        "1\n",
        "9" * 31,
        "0." + "0" * 40 + "1",
        1,
        1.0,
        True,
        None,
        [],
        {},
    ],
)
def test_any_other_form_is_refused(text: object) -> None:
    with pytest.raises(MessageError, match="x must be a decimal"):
        read_decimal(text, "x")


def test_a_third_has_no_decimal() -> None:
    with pytest.raises(MessageError):
        decimal_text(Fraction(1, 3))
    with pytest.raises(MessageError):
        decimal_text(Fraction(1, 2**41))


HOSTILE = {
    "nul": "a\x00b",
    "escape": "\x1b[31mred",
    "newline": "two\nlines",
    "tab": "a\tb",
    "c1 control": "a\x9bb",
    "bidi override": "abc\u202edcb",
    "bidi isolate": "a\u2066b\u2069",
    "left-to-right mark": "a\u200eb",
    "zero width space": "a\u200bb",
    "soft hyphen": "a\u00adb",
    "byte-order mark": "\ufeffa",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
    "private use": "a\ue000b",
    "unassigned": "a\u0378b",
    "noncharacter": "a\uffffb",
    "lone surrogate": "a\ud800b",
    "tag characters": "a\U000e0041b",
    "decomposed": "e\u0301",
    "leading space": " qqq",
    "trailing space": "qqq ",
    "trailing no-break space": "a\u00a0",
    "empty": "",
    "too long": "a" * 101,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_text_that_could_act_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_text(text, "title", 100)
    assert caught.value.slug == "manifest-refused"
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["a", "Größe in cm²", "年齢", "<b>=SUM(A1)</b>", "a" * 100, "x ≤ 5 °C", "😀"]
)
def test_plain_text_passes(text: str) -> None:
    assert read_text(text, "title", 100) == text


@pytest.mark.parametrize("value", [None, 1, True, [], {}])
def test_text_must_be_text(value: object) -> None:
    with pytest.raises(MessageError):
        read_text(value, "title", 100)


def test_choices() -> None:
    assert read_choice("a", "x", ("a", "b")) == "a"
    with pytest.raises(PolicyError, match="x must be one of a, b"):
        read_choice("c", "x", ("a", "b"))
    with pytest.raises(PolicyError, match="'c' is not available in this version"):
        read_choice("c", "x", ("a", "b"), not_offered=("c",))
    with pytest.raises(MessageError):
        read_choice(1, "x", ("a",))


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, [1]])
def test_an_integer_is_an_integer(value: object) -> None:
    with pytest.raises(MessageError):
        read_integer(value, "x", 0)


def test_integers_keep_their_range() -> None:
    assert [read_integer(value, "x", 0) for value in (0, 2**53 - 1)] == [0, 2**53 - 1]
    for value in (-1, 2**53):
        with pytest.raises(PolicyError):
            read_integer(value, "x", 0)


def test_times() -> None:
    value = datetime(2026, 11, 27, 22, tzinfo=UTC)
    assert read_time("2026-11-27T22:00:00Z", "x") == value
    assert time_text(value) == "2026-11-27T22:00:00Z"
    assert time_text(value.astimezone(timezone(timedelta(hours=2)))) == "2026-11-27T22:00:00Z"
    with pytest.raises(MessageError):
        time_text(datetime(2026, 11, 27))


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-27",
        "2026-11-27T22:00:00",
        "2026-11-27T22:00:00+00:00",
        "2026-11-27t22:00:00z",
        "2026-02-30T00:00:00Z",
        "2026-11-27T24:00:00Z",
        "2026-11-27T22:00:60Z",
        "2026-11-27T22:00:00.0Z",
        "0000-01-01T00:00:00Z",
        "",
        0,
        None,
    ],
)
def test_any_other_time_is_refused(text: str | int | None) -> None:
    with pytest.raises(MessageError):
        read_time(text, "x")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080", "https://proxy.example.org/dpdpca", "https://[::1]:443/"]
)
def test_addresses(url: str) -> None:
    assert read_url(url, "x") == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://a",
        "javascript:alert(1)",
        "https://user@host",
        "https://user:pw@host/",
        "https://host/?q=1",
        "https://host/#f",
        "https://host name",
        "https://höst",
        "https://",
        "HTTPS://host",
        "https://h\n",
        None,
        1,
    ],
)
def test_any_other_address_is_refused(url: str | int | None) -> None:
    with pytest.raises(MessageError):
        read_url(url, "x")


def test_wide_hex() -> None:
    assert read_wide_hex("00ff", "x", 4) == 255
    for text in ("", "f", "FF", "0x", "gg", "00ff00", "-1", " f", 15, None):
        with pytest.raises(MessageError):
            read_wide_hex(text, "x", 4)


def test_members() -> None:
    check_members({"a": 1}, "it", ("a",), ("b",))
    with pytest.raises(MessageError, match="it lacks a, b"):
        check_members({}, "it", ("a", "b"))
    with pytest.raises(MessageError, match=r"it has 1 unknown member") as caught:
        check_members({"a": 1, "\x1b[0m": 2}, "it", ("a",))
    assert "\x1b" not in str(caught.value)
    with pytest.raises(MessageError, match="it must be an object"):
        check_members([], "it", ())


def test_lists_and_repeats() -> None:
    assert read_list([1], "x", 1) == [1]
    with pytest.raises(MessageError):
        read_list({}, "x", 1)
    with pytest.raises(PolicyError):
        read_list([1, 2], "x", 1)
    check_unique(["a", "b"], "x")
    with pytest.raises(DpdpcaError):
        check_unique(["a", "a"], "x")
