"""`dpdpca owner serve`: the agent and its page."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from dpdpca_owner.commands.parts import Home, Passphrase, find_home, open_desk, say
from dpdpca_runtime.command_options import CaFile

EXAMPLE = "Example: dpdpca owner serve"
_HOST = "127.0.0.1"

Port = Annotated[int, typer.Option(min=1, max=65535, help="The port of the page, on this machine only.")]
Link = Annotated[
    bool,
    typer.Option("--link", help="Print the link to the page of the agent that is running here, and end."),
]


def serve(
    port: Port = 8460,
    link: Link = False,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
) -> None:
    """Follow all studies that you joined with --follow and --source or approved on the page, until you stop
    this command.

    It joins only rounds that you approved. It continues after a restart, and after a time without a network.
    Its page opens with the link that it prints. Each link works once; --link prints the next one.
    """
    from dpdpca_owner.page.gate import read_link

    place = find_home(home)
    place.check_made()
    if link:
        typer.echo(read_link(place.page_link_path))
        return
    from dpdpca_owner.agent import only_agent

    with only_agent(place):
        desk = open_desk(home, ca_file, passphrase_file)
        with _ending_at_signals():
            _run(desk, open_desk(home, ca_file, passphrase_file), port)


def _run(desk: Any, page_desk: Any, port: int) -> None:
    """The agent in this thread, its page beside it. The two desks share nothing but files."""
    from dataclasses import replace

    from dpdpca_owner.agent import Agent
    from dpdpca_owner.page.activity import Activity
    from dpdpca_owner.page.app import create_page
    from dpdpca_owner.page.gate import Gate, StartLink
    from dpdpca_owner.page.office import Office
    from dpdpca_runtime.asgi.serving import Listener, serving_beside

    activity, woken = Activity(desk.now, say), threading.Event()
    agent = Agent(replace(desk, say=activity.note), os.environ, activity.watching)
    office = Office(page_desk, os.environ, activity, agent.problems, woken.set)
    start_link = StartLink(page_desk.home.page_link_path, f"http://{_HOST}:{port}")
    try:
        listener = Listener("the agent's page", create_page(office, Gate(start_link, port)), _HOST, port)
        with serving_beside(listener, _end_this_process):
            say(f"the agent of {desk.owner.name} is running; you can stop it at any time")
            _tell_link(start_link.url)
            agent.run(_sleeping(woken))
    finally:
        start_link.close()


def _tell_link(url: str) -> None:
    """Print the link for a person. A log must not keep it."""
    if "JOURNAL_STREAM" in os.environ and not sys.stdout.isatty():
        say("its page: dpdpca owner serve --link")
    else:
        say("its page opens with this link, which works once:")
        typer.echo(url)
        sys.stdout.flush()


def _sleeping(woken: threading.Event) -> Callable[[float], object]:
    def sleep(seconds: float) -> None:
        woken.wait(seconds)
        woken.clear()

    return sleep


@contextmanager
def _ending_at_signals() -> Iterator[None]:
    """SIGINT and SIGTERM end the block, wherever it is. Everything that it knows is in the home."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_this_process() -> None:
    signal.raise_signal(signal.SIGTERM)
