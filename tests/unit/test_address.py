"""Addresses have one canonical form, which httpx puts on the wire as it is; others are refused in words."""

import re

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.wire.address import (
    Address,
    is_loopback,
    normal_address,
    parse_address,
    parse_authority,
)
from dpdpca_protocol.wire.fields import read_url

LONG_LABEL = "a" * 63
LONG_HOST = ".".join([LONG_LABEL, LONG_LABEL, LONG_LABEL, "a" * 61])

SPELLINGS = [
    ("https://relay.example", "https://relay.example"),
    ("https://relay.example/", "https://relay.example"),
    (" https://relay.example:8443\n", "https://relay.example:8443"),
    ("HTTPS://Relay.EXAMPLE:8443", "https://relay.example:8443"),
    ("https://relay.example:443", "https://relay.example"),
    ("https://relay.example:00443", "https://relay.example"),
    ("https://relay.example:08443", "https://relay.example:8443"),
    ("https://relay.example:", "https://relay.example"),
    ("https://relay.example:80", "https://relay.example:80"),
    ("https://relay.example.:8443", "https://relay.example:8443"),
    ("https://proxy:8440", "https://proxy:8440"),
    ("https://r3---a.relay-1.example", "https://r3---a.relay-1.example"),
    ("https://bücher.example", "https://xn--bcher-kva.example"),
    ("https://BÜCHER.example:8443", "https://xn--bcher-kva.example:8443"),
    ("https://XN--BCHER-KVA.example", "https://xn--bcher-kva.example"),
    ("https://bu\u0308cher.example", "https://xn--bcher-kva.example"),
    ("https://faß.example", "https://xn--fa-hia.example"),
    ("https://例え。テスト", "https://xn--r8jz45g.xn--zckzah"),
    ("https://ｒｅｌａｙ．example", "https://relay.example"),
    ("https://παράδειγμα.δοκιμή", "https://xn--hxajbheg2az3al.xn--jxalpdlp"),
    ("https://مثال.example", "https://xn--mgbh0fb.example"),
    ("https://r3---a.bücher.example", "https://r3---a.xn--bcher-kva.example"),
    ("https://192.0.2.1:8443", "https://192.0.2.1:8443"),
    ("https://１９２.0.2.1", "https://192.0.2.1"),
    ("https://[2001:DB8:0:0::1]:443", "https://[2001:db8::1]"),
    ("https://[2001:0db8::0001]:8443", "https://[2001:db8::1]:8443"),
    ("https://1.relay.example", "https://1.relay.example"),
    ("http://LOCALHOST:8440", "http://localhost:8440"),
    ("http://localhost.:80", "http://localhost"),
    ("http://127.0.0.1:8440", "http://127.0.0.1:8440"),
    ("http://127.3.2.1", "http://127.3.2.1"),
    ("http://[0:0:0:0:0:0:0:1]:8440", "http://[::1]:8440"),
    (f"https://{LONG_HOST}", f"https://{LONG_HOST}"),
]


@pytest.mark.parametrize(("text", "canonical"), SPELLINGS)
def test_every_spelling_has_one_canonical_form(text: str, canonical: str) -> None:
    assert str(parse_address(text)) == canonical
    assert str(parse_address(canonical)) == canonical
    assert normal_address(text) == canonical


@pytest.mark.parametrize("canonical", sorted({canonical for _, canonical in SPELLINGS}))
def test_what_is_accepted_reaches_the_wire_unchanged(canonical: str) -> None:
    """The Host header that httpx sends, and what the manifest of a study takes."""
    address = parse_address(canonical)
    with httpx.Client(base_url=canonical) as client:
        request = client.build_request("GET", "/v1/proxy")
    assert request.headers["host"] == address.authority
    assert request.url.raw_host.decode() == address.host
    assert request.url.host  # httpx decodes it to match it against the environment's proxies
    assert read_url(canonical, "proxy.url") == canonical


@pytest.mark.parametrize(("text", "canonical"), SPELLINGS)
def test_httpx_reads_a_spelling_as_the_same_host_wherever_it_takes_it(text: str, canonical: str) -> None:
    try:
        theirs = httpx.URL(text.strip())
    except httpx.InvalidURL:
        return  # it maps less than browsers do, and leaves it to us
    netloc = theirs.netloc.decode().replace(".:", ":").removesuffix(".")
    netloc = netloc.replace("2001:DB8:0:0::1", "2001:db8::1").replace("2001:0db8::0001", "2001:db8::1")
    assert netloc.replace("0:0:0:0:0:0:0:1", "::1") == parse_address(canonical).authority


@given(st.text(max_size=40))
def test_whatever_is_accepted_reaches_the_wire_unchanged(host: str) -> None:
    try:
        address = parse_address(f"https://{host}")
    except UsageError:
        return
    assert httpx.Request("GET", str(address)).headers["host"] == address.authority
    assert parse_address(str(address)) == address


REFUSED = [
    ("", "must begin with https"),
    ("relay.example", "must begin with https"),
    ("relay.example:8443", "must begin with https"),
    ("ftp://relay.example", "must begin with https"),
    ("https:relay.example", "must begin with https"),
    ("https:/relay.example", "must begin with https"),
    ("https://", "no host"),
    ("https://:8443", "no host"),
    ("https://.", "no host"),
    ("https://user:secret@relay.example", "a user name or a password"),
    ("https://secret@relay.example", "a user name or a password"),
    ("https://user:secret/x@relay.example", "a user name or a password"),
    ("https://@relay.example", "a user name or a password"),
    ("https://relay.example?", r"must not have a query \(\?\)"),
    ("https://relay.example/?x=1", "must not have a query"),
    ("https://relay.example#x", r"must not have a fragment \(#\)"),
    ("https://relay.example/#", "must not have a fragment"),
    ("https://relay.example/dpdpca", "path, but this one has /dpdpca; a proxy is always served at the root"),
    ("https://relay.example//", "must not have a path"),
    ("https://relay.example/;", "must not have a path"),
    ("https://relay.example:0", "port 0 is not a number from 1 to 65535"),
    ("https://relay.example:65536", "port 65536"),
    ("https://relay.example:https", "port https"),
    ("https://relay.example:-1", "port -1"),
    ("https://relay.example:+1", "port"),
    ("https://relay.example:٣", "port"),
    ("https://relay.example:8443:1", "told apart"),
    ("https://relay..example", "empty part"),
    ("https://.relay.example", "empty part"),
    ("https://relay.example..", "empty part"),
    ("https://relay_1.example", "letters, digits and inner hyphens"),
    ("https://-relay.example", "letters, digits and inner hyphens"),
    ("https://relay-.example", "letters, digits and inner hyphens"),
    ("https://relay%2eexample", "letters, digits and inner hyphens"),
    ("https://relay\\example", "letters, digits and inner hyphens"),
    ("https://relay,example", "letters, digits and inner hyphens"),
    ("https://re lay.example", "without spaces"),
    ("https://re\tlay.example", "without spaces"),
    ("https://relay.example\n.evil.example", "without spaces"),
    ("https://relay.example\x00", "control characters"),
    ("https://relay\u3000.example", "without spaces"),
    (f"https://{'a' * 64}.example", "1 to 63"),
    (f"https://{LONG_HOST}a", "at most 253"),
    (f"https://{LONG_HOST}:8443", "longer than 255"),
    ("https://" + "a" * 3000, "one line"),
    ("https://xn--a.example", "does not encode a valid name"),
    ("https://xn--bcher-.example", "inner hyphens"),
    ("https://xn--abc-.example", "inner hyphens"),
    ("https://xn--ls8h.example", "does not encode a valid name"),
    ("https://💩.example", "not a valid international host name"),
    ("https://a\u202eb.example", "not a valid international host name"),
    ("https://bü\u0300-.example", "not a valid international host name"),
    (f"https://{'ü' * 64}.example", "not a valid international host name"),
    ("https://127.1", "four decimal numbers"),
    ("https://0x7f.1", "four decimal numbers"),
    ("https://0x7f000001", "four decimal numbers"),
    ("https://2130706433", "four decimal numbers"),
    ("https://127.0.0.01", "four decimal numbers"),
    ("https://127.0.0.256", "four decimal numbers"),
    ("https://relay.1", "four decimal numbers"),
    ("https://0.0.0.0", "a single machine"),
    ("https://224.0.0.1", "a single machine"),
    ("https://[::]:8443", "a single machine"),
    ("https://[ff02::1]", "a single machine"),
    ("https://[::1", "told apart"),
    ("https://::1", "told apart"),
    ("https://2001:db8::1", "told apart"),
    ("https://[::1]8443", "told apart"),
    ("https://[]", "not an IPv6 address"),
    ("https://[127.0.0.1]", "not an IPv6 address"),
    ("https://[relay.example]", "not an IPv6 address"),
    ("https://[fe80::1%eth0]:8443", "has a zone"),
    ("https://[fe80::1%25eth0]:8443", "has a zone"),
    ("https://[fe80::1]:8443", "link-local"),
    ("https://[::ffff:127.0.0.1]", "is the IPv4 address 127.0.0.1"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_anything_else_is_refused_in_words(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert caught.value.slug == "bad-address"
    assert re.search(reason, str(caught.value)), str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert normal_address(text) == text


@pytest.mark.parametrize(
    "url",
    [
        "http://relay.example", "http://10.0.0.1:80", "http://127.0.0.1.evil.example",
        "http://a.localhost:8440", "http://localhost.example", "http://[2001:db8::1]", "http://128.0.0.1",
    ],
)  # fmt: skip
def test_plain_http_stays_on_this_machine(url: str) -> None:
    with pytest.raises(UsageError, match="plain http") as caught:
        parse_address(url)
    assert caught.value.slug == "tls-required"


@pytest.mark.parametrize(
    ("text", "scheme", "authority"),
    [
        ("Relay.example.:443", "http", "relay.example"),
        ("relay.example:80", "http", "relay.example:80"),
        ("localhost:80", "http", "localhost"),
        ("LOCALHOST:443", "http", "localhost:443"),
        ("localhost:443", "https", "localhost"),
        ("[0::1]:08440", "http", "[::1]:8440"),
        ("bücher.example:8443", "https", "xn--bcher-kva.example:8443"),
    ],
)
def test_an_authority_beyond_this_machine_is_one_of_https(text: str, scheme: str, authority: str) -> None:
    assert parse_authority(text, scheme).authority == authority


@pytest.mark.parametrize(
    "text", ["", ":1", "https://a", "a/", "a/b", "u:secret@a", "a b", "a\x00", "127.1", "::1", "a#b", "a?b"]
)
def test_an_authority_is_host_and_port_alone(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_authority(text, "https")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "LocalHost.", "127.0.0.1", "127.255.255.254", "::1", "[::1]"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["a.localhost", "0.0.0.0", "::", "10.0.0.1", "relay.example", "", "[]"])
def test_not_this_machine(host: str) -> None:
    assert not is_loopback(host)


def test_an_address_is_a_value() -> None:
    assert parse_address("https://relay.example:443") == Address("https", "relay.example", 443)
