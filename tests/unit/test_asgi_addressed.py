"""For which host and port a request arrived: what is ours, and what is said of everything else."""

import pytest

from dpdpca_protocol.errors import AuthenticationError, MessageError, UsageError
from dpdpca_protocol.wire.address import parse_address
from dpdpca_runtime.asgi.addressed import KnownAddresses

OTHERS = ["relay.internal:8440", "bücher.example"]
RELAY = KnownAddresses(parse_address("https://relay.example:8443"), OTHERS)
SHOWN = "relay.example:8443, relay.internal:8440, xn--bcher-kva.example"
REMEDY = (
    "if you used another address, a reverse proxy changed the Host header; configure it to keep the header"
    " (nginx: proxy_set_header Host $http_host)"
)
OTHER_REMEDY = (
    "; if you used {arrived}, use https://relay.example:8443"
    " instead, or ask the operator to add {arrived} to also_known_as (DPDPCA_PROXY_ALSO_KNOWN_AS)"
)


@pytest.mark.parametrize(
    ("host", "authority"),
    [
        ("relay.example:8443", "relay.example:8443"),
        ("Relay.Example.:08443", "relay.example:8443"),
        ("relay.internal:8440", "relay.internal:8440"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example:443", "xn--bcher-kva.example"),
    ],
)
def test_what_is_ours(host: str, authority: str) -> None:
    assert RELAY.arrived_at([host]).authority == authority


@pytest.mark.parametrize(
    ("host", "difference"),
    [
        ("relay.example", ": the host is right, but its port 8443 is missing"),
        ("RELAY.example", ": the host is right, but its port 8443 is missing"),
        ("relay.example:443", ": the host is right, but the port is not 8443"),
        ("relay.example:8080", ": the host is right, but the port is not 8443"),
        ("xn--bcher-kva.example:8443", ": the host is right, but the port is not 443"),
        ("127.0.0.1:8440", ""),
        ("elsewhere.example:8443", ""),
        ("dpdpca_upstream", ""),  # what nginx sends of its own accord, where it is told nothing
        ("127.1:8443", ""),
        ("a" * 99, ""),
    ],
)
def test_what_is_not_names_what_arrived_and_the_remedies(host: str, difference: str) -> None:
    with pytest.raises(AuthenticationError) as refused:
        RELAY.arrived_at([host])
    assert refused.value.slug == "wrong-address"
    assert refused.value.problem == (
        f"the request is addressed to {host}, but this service is known as {SHOWN}{difference}"
    )
    nobody_asks = host in ("dpdpca_upstream", "127.1:8443", "a" * 99)  # no client takes them for addresses
    assert refused.value.next_step == REMEDY + ("" if nobody_asks else OTHER_REMEDY.format(arrived=host))


def test_a_long_host_is_cut() -> None:
    with pytest.raises(AuthenticationError) as refused:
        RELAY.arrived_at(["a" * 5000])
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize(
    "hosts", [[], ["a", "a"], ["u@relay.example:8443"], ["a b"], ["bücher.example"], [""]]
)
def test_a_host_that_is_none_is_not_shown(hosts: list[str]) -> None:
    with pytest.raises(MessageError, match="one plain Host header"):
        RELAY.arrived_at(hosts)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8440", "https://localhost:8440", "http://[::1]:8440"])
def test_this_machine_is_known_by_all_its_names(url: str) -> None:
    known = KnownAddresses(parse_address(url))
    for host in (
        "localhost:8440",
        "127.0.0.1:8440",
        "[::1]:8440",
        "[0:0:0:0:0:0:0:1]:8440",
        "LOCALHOST:8440",
    ):
        assert known.arrived_at([host]).port == 8440
    with pytest.raises(AuthenticationError, match="its port 8440 is missing"):
        known.arrived_at(["localhost"])


def test_other_addresses_are_checked() -> None:
    with pytest.raises(UsageError):
        KnownAddresses(parse_address("https://relay.example"), ["https://relay.internal"])
