"""Sockets that cannot be opened: the operating system's reason, and what to do about it."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dpdpca_protocol.errors import UnavailableError
from dpdpca_runtime.asgi.listening import listen

WITHOUT_CALLS = Path(__file__).parents[1] / "support" / "without_calls.py"
CHILD = (
    "import sys; from dpdpca_runtime.asgi.listening import listen\n"
    "try: print(len(listen('the service', sys.argv[1], int(sys.argv[2]), '--port')), 'listen')\n"
    "except Exception as error: print(error)"
)


def refusal(host: str, port: int = 8440) -> str:
    with pytest.raises(UnavailableError) as refused:
        listen("the service", host, port, "--port")
    assert refused.value.slug == "cannot-listen"
    return str(refused.value)


def listening_without(rule: str, host: str, port: int) -> str:
    """What a process says that must do without one of its calls."""
    command = [sys.executable, str(WITHOUT_CALLS), rule, "--", sys.executable, "-c", CHILD, host, str(port)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_a_free_port_is_listened_on(free_port: int) -> None:
    (opened,) = listen("the service", "127.0.0.1", free_port, "--port")
    with opened, socket.create_connection(("127.0.0.1", free_port), 20):
        pass


def test_a_name_is_listened_on_wherever_it_leads(free_port: int) -> None:
    """`localhost` may be one address or two; it must be reachable by the name."""
    opened = listen("the service", "localhost", free_port, "--port")
    with socket.create_connection(("localhost", free_port), 20):
        pass
    for each in opened:
        each.close()


def test_a_taken_port(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        said = refusal("127.0.0.1", free_port)
    assert said == (
        f"the service cannot listen on 127.0.0.1:{free_port}: another program is already listening there;"
        " choose a free port with --port, or stop that program"
    )
    with listen("the service", "127.0.0.1", free_port, "--port")[0]:
        pass  # nothing was left open


@pytest.mark.parametrize("host", ["192.0.2.1", "[2001:db8::7]", "2001:db8::7"])
def test_an_address_of_another_machine(host: str) -> None:
    """Addresses for documentation, which no machine has."""
    said = refusal(host)
    if ":" in host and "no IPv6" in said:
        assert said.endswith("this machine has no IPv6; give an IPv4 address, such as 127.0.0.1")
        return
    shown = "[2001:db8::7]" if ":" in host else host
    assert said == (
        f"the service cannot listen on {shown}:8440: this machine has no such address;"
        " give an address of this machine, or 0.0.0.0 for all of IPv4"
    )


@pytest.mark.parametrize("host", ["no-such-machine.invalid", "a" * 300, "a..b", "0x7f.zz"])
def test_a_name_that_is_not_known(host: str) -> None:
    said = refusal(host)
    begin = f"the service cannot listen on {host}:8440: "
    unknown = "the name is unknown; give an IP address, or a name that this machine can resolve"
    without_dns = "the name cannot be resolved now; give an IP address, or repair this machine's DNS"
    assert said in (begin + unknown, begin + without_dns)


@pytest.mark.parametrize("error", ["EAFNOSUPPORT", "EADDRNOTAVAIL"])
def test_a_machine_without_ipv6(free_port: int, error: str) -> None:
    """Where the kernel has none, and where no interface has an address of it."""
    rule = f"socket:AF_INET6={error}"
    assert listening_without(rule, "::1", free_port) == (
        f"the service cannot listen on [::1]:{free_port}: this machine has no IPv6;"
        " give an IPv4 address, such as 127.0.0.1"
    )
    assert listening_without(rule, "localhost", free_port) == "1 listen"


@pytest.mark.parametrize("error", ["EACCES", "EPERM"])
def test_a_port_that_needs_a_privilege(error: str) -> None:
    assert listening_without(f"bind={error}", "127.0.0.1", 443) == (
        "the service cannot listen on 127.0.0.1:443: this user is not allowed to use port 443;"
        " choose a port from 1024 up with --port, or give the process CAP_NET_BIND_SERVICE"
    )


def test_any_other_reason_is_the_systems(free_port: int) -> None:
    said = listening_without("socket:AF_INET=EMFILE", "127.0.0.1", free_port)
    assert said == (
        f"the service cannot listen on 127.0.0.1:{free_port}: Too many open files;"
        " fix the problem that the operating system reports"
    )
