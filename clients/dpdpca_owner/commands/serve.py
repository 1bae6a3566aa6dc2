"""`dpdpca owner serve`: the agent."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    every: Annotated[
        float, typer.Option(min=0.2, help="How many seconds to wait before the proxies are asked again.")
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Follow all studies that you joined with --follow and --source, until you stop this command.

    It joins only rounds that you approved. It continues after a restart, and after a time without a network.
    It notices new keys (dpdpca owner rotate), and a changed policy or source. With --json, it prints one line
    for each share that a proxy has received, and for each study's components.
    """
    from dpdpca_owner.agent import Agent, only_agent

    place = find_home(home)
    place.check_made()
    with only_agent(place), ended_by_signals():
        passphrase = unlock(place.keys, passphrase_file, PASSPHRASE_VARIABLE)
        desk = make_owners_desk(place, passphrase, ca_file)
        say(f"the agent of {desk.owner.name} is running; you can stop it at any time")
        news = print_line if as_json else _keep_quiet
        Agent(desk, os.environ, passphrase, news).run(time.sleep, every)


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
