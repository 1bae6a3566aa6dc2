"""The page beside the agent: they end together, and the link is told to a person only."""

import socket
import threading
import time
from contextlib import ExitStack

import httpx
import pytest
from owner_scene import OwnerCommands
from page_scene import PageScene
from starlette.types import Receive, Scope, Send

from dpdpca_cli.federation.processes import free_port
from dpdpca_owner.agent import only_agent
from dpdpca_owner.commands.serve import _tell_link
from dpdpca_owner.page.gate import StartLink
from dpdpca_protocol.errors import UnavailableError
from dpdpca_runtime.asgi.serving import Listener, serving_beside

SECRET = "http://127.0.0.1:8460/start?token=secret"


def get(port: int) -> int:
    return httpx.get(f"http://127.0.0.1:{port}/page.css", trust_env=False, timeout=60).status_code


def test_it_is_served_while_the_agent_works_and_only_then(page: PageScene) -> None:
    port, died = free_port(), threading.Event()
    with serving_beside(Listener("the page", page.app, "127.0.0.1", port), died.set):
        assert get(port) == 200
        with (
            pytest.raises(UnavailableError, match="cannot listen"),
            serving_beside(Listener("another page", page.app, "127.0.0.1", port), died.set),
        ):
            pass
    with pytest.raises(httpx.ConnectError):
        get(port)
    assert not died.is_set()


def test_the_agent_learns_that_its_page_has_died() -> None:
    async def broken(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise RuntimeError

    died = threading.Event()
    with serving_beside(Listener("the page", broken, "127.0.0.1", free_port()), died.set):
        assert died.wait(60)


def test_whoever_connects_cannot_use_up_the_files_that_the_agent_may_open(
    page: PageScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdpca_runtime.asgi.serving._MOST_BESIDE", 8)
    monkeypatch.setattr("dpdpca_runtime.asgi.limits.HEAD_SECONDS", 600.0)
    port, died = free_port(), threading.Event()
    with serving_beside(Listener("the page", page.app, "127.0.0.1", port), died.set):
        with ExitStack() as held:
            for _ in range(8):
                held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            with pytest.raises(httpx.TransportError):
                get(port)
        until = time.monotonic() + 60
        while not is_open(port):  # the server notices one after another that they are gone
            assert time.monotonic() < until
    assert not died.is_set()


def is_open(port: int) -> bool:
    try:
        return get(port) == 200
    except httpx.TransportError:
        return False


def test_the_link_is_printed_for_a_person_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    _tell_link(SECRET, as_json=False)
    told = capsys.readouterr()
    assert told.out == f"{SECRET}\n"
    assert "secret" not in told.err
    _tell_link(SECRET, as_json=True)
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    _tell_link(SECRET, as_json=False)
    told = capsys.readouterr()
    assert told.out == ""
    assert "secret" not in told.err
    assert told.err.count("dpdpca owner serve --link") == 2


def test_the_link_of_a_running_agent_is_printed_on_request(run: OwnerCommands) -> None:
    home = run.scene.desk.home
    link = StartLink(home.page_link_path, "http://127.0.0.1:8460")
    status, out, err = run("serve", "--link")
    assert (status, out) == (1, "")
    assert "no agent with a page is running" in err
    with only_agent(home):
        assert run("serve", "--link")[:2] == (0, f"{link.url}\n")
