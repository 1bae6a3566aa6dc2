"""Addresses of studies as people type them."""

import pytest

from dpdpca_protocol.errors import UsageError
from dpdpca_runtime.http.address import address_note, parse_study_address

STUDY = "ab" * 32


@pytest.mark.parametrize(
    ("text", "proxy"),
    [
        (f"https://proxy.example:8443/{STUDY}", "https://proxy.example:8443"),
        (f"https://proxy.example/{STUDY}/", "https://proxy.example"),
        (f"http://127.0.0.1:8000/v1/studies/{STUDY}", "http://127.0.0.1:8000"),
        (f"http://[::1]:8000/{STUDY}", "http://[::1]:8000"),
        (f" http://localhost:8000/{STUDY}\n", "http://localhost:8000"),
        (f"HTTPS://Proxy.Example.:443/{STUDY}", "https://proxy.example"),
        (f"https://bücher.example/v1/studies/{STUDY}/", "https://xn--bcher-kva.example"),
    ],
)
def test_both_forms_of_a_study_address(text: str, proxy: str) -> None:
    address = parse_study_address(text)
    assert (address.proxy, address.study.hex()) == (proxy, STUDY)
    assert parse_study_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "https://proxy.example", "https://proxy.example/abc", f"https://proxy.example/{STUDY.upper()}",
        f"https://proxy.example/x/{STUDY}", f"ftp://proxy.example/{STUDY}", f"proxy.example/{STUDY}",
        f"https://user:secret@proxy.example/{STUDY}", f"https://proxy.example/{STUDY}?x=1",
        f"https://proxy.example/{STUDY}#x", f"https://proxy.example:99999/{STUDY}", "",
    ],
)  # fmt: skip
def test_anything_else_is_wrong_usage_and_not_echoed(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_study_address(text)
    assert "secret" not in str(caught.value)


def test_a_path_prefix_is_refused_in_words() -> None:
    with pytest.raises(
        UsageError, match="path, but this one has /dpdpca; a proxy is always served at the root"
    ):
        parse_study_address(f"https://proxy.example/dpdpca/{STUDY}")


def test_a_proxy_that_announces_another_address_is_noted() -> None:
    assert address_note("https://Relay.example:443/", "https://relay.example") is None
    note = address_note("https://relay.example:8443", "https://relay.example")
    assert note == (
        "this proxy announces the address https://relay.example:8443, but it also answers at"
        " https://relay.example, which is used here"
    )
    assert (address_note("https://b\x1b[31mad", "https://relay.example") or "").isprintable()
