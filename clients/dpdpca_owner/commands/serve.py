"""`dpdpca owner serve`: the agent and its page."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dpdpca_owner.commands.parts import (
    PASSPHRASE_VARIABLE,
    Home,
    Passphrase,
    find_home,
    make_owners_desk,
    print_facts,
    say,
)
from dpdpca_runtime.command_options import AsJson, CaFile
from dpdpca_runtime.passphrase import unlock

if TYPE_CHECKING:
    from dpdpca_owner.following import Joined, Result

EXAMPLE = "Example: dpdpca owner serve"
_ENDINGS = (signal.SIGINT, signal.SIGTERM)


def serve(
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="The port of the agent's page, on this machine only.")
    ] = 8460,
    link: Annotated[
        bool,
        typer.Option(
            "--link", help="Only print the link that opens the page of the agent that is running here."
        ),
    ] = False,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    every: Annotated[
        float, typer.Option(min=0.2, help="How many seconds to wait before the proxies are asked again.")
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Follow all studies that you approved on the page or with join --follow --source, until you stop it.

    It joins only what you, or a rule in your policy, approved. It continues after a restart, and after a time
    without a network. It notices new keys (dpdpca owner rotate), and a changed policy or source. It prints a
    link that opens its page in a browser on this machine. A link works once; --link prints the next one. With
    --json, it prints one line for each share that a proxy has received, and for each study's components.
    """
    place = find_home(home)
    place.check_made()
    if link:
        from dpdpca_owner.agent import is_agent_running
        from dpdpca_owner.page.gate import read_link

        typer.echo(read_link(place.page_link_path, is_agent_running=is_agent_running(place)))
        return
    from dpdpca_owner.agent import Agent, only_agent
    from dpdpca_owner.page.activity import Activity
    from dpdpca_owner.page.beside import page_beside

    with only_agent(place), ended_by_signals():
        passphrase = unlock(place.keys, passphrase_file, PASSPHRASE_VARIABLE)
        desk = make_owners_desk(place, passphrase, ca_file)
        activity = Activity(desk.now, say)
        news = print_line if as_json else _keep_quiet
        agent = Agent(replace(desk, say=activity.note), os.environ, passphrase, news, activity.watching)
        beside = make_owners_desk(find_home(home), passphrase, ca_file)
        with page_beside(agent, activity, beside, os.environ, port) as page:
            say(f"the agent of {desk.owner.name} is running; you can stop it at any time")
            _tell_link(page.url, as_json)
            agent.run(page.sleep, every)


def _tell_link(url: str, as_json: bool) -> None:
    """Print the link for a person. It is a secret, so a log or another program does not get it."""
    if as_json or "JOURNAL_STREAM" in os.environ:
        say("for a link to its page, run: dpdpca owner serve --link")
    else:
        say("its page opens with this link, which works once:")
        typer.echo(url)
        sys.stdout.flush()


def print_line(news: "Joined | Result") -> None:
    """One line of JSON for other programs."""
    from dpdpca_owner.following import Joined

    facts: dict[str, object] = {"address": str(news.address), "records": news.records}
    if isinstance(news, Joined):
        facts |= {"event": "joined", "title": news.title, "sent_bytes": news.sent_bytes}
        facts |= {"receipt_time": news.receipt_time, "seconds": round(news.seconds, 3)}
    else:
        facts |= {"event": "components", "out": str(news.path)}
    print_facts(True, facts, "")


def _keep_quiet(news: "Joined | Result") -> None:
    """The agent tells people on stderr."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the process at once with status 0, also as the first process of a container."""
    before = {number: signal.signal(number, _end) for number in _ENDINGS}
    try:
        yield
    except SystemExit:
        say("the agent has stopped; it continues at its next start")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
