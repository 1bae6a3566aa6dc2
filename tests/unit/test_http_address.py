"""Addresses as people type them."""

import pytest

from dpdpca_http.address import parse_proxy_url, parse_study_address
from dpdpca_protocol.errors import UsageError

STUDY = "ab" * 32


@pytest.mark.parametrize(
    ("text", "proxy"),
    [
        (f"https://proxy.example:8443/{STUDY}", "https://proxy.example:8443"),
        (f"https://proxy.example/{STUDY}/", "https://proxy.example"),
        (f"http://127.0.0.1:8000/v1/studies/{STUDY}", "http://127.0.0.1:8000"),
        (f"http://[::1]:8000/{STUDY}", "http://[::1]:8000"),
        (f" http://localhost:8000/{STUDY}\n", "http://localhost:8000"),
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


@pytest.mark.parametrize(
    "url", ["http://proxy.example", "http://10.0.0.1:80", "http://127.0.0.1.evil.example"]
)
def test_plain_http_stays_on_this_machine(url: str) -> None:
    with pytest.raises(UsageError, match="plain http"):
        parse_proxy_url(url)


def test_a_proxy_address_has_no_path() -> None:
    assert parse_proxy_url("https://proxy.example:8443/") == "https://proxy.example:8443"
    with pytest.raises(UsageError, match="no path"):
        parse_proxy_url("https://proxy.example/base")
