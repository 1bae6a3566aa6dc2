"""`dpdpca owner serve`: the agent."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, NoReturn

import typer

from dpdpca_owner.commands.parts import (
    PASSPHRASE_VARIABLE,
    Home,
    Passphrase,
    find_home,
    make_owners_desk,
    say,
)
from dpdpca_runtime.command_options import CaFile
from dpdpca_runtime.passphrase import unlock

EXAMPLE = "Example: dpdpca owner serve"
_ENDINGS = (signal.SIGINT, signal.SIGTERM)


def serve(
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    every: Annotated[
        float, typer.Option(min=0.2, help="How many seconds to wait before the proxies are asked again.")
    ] = 10.0,
) -> None:
    """Follow all studies that you joined with --follow and --source, until you stop this command.

    It joins only rounds that you approved. It continues after a restart, and after a time without a network.
    It notices new keys (dpdpca owner rotate), and a changed policy or source.
    """
    from dpdpca_owner.agent import Agent, only_agent

    place = find_home(home)
    place.check_made()
    with only_agent(place), _ended_by_signals():
        passphrase = unlock(place.keys, passphrase_file, PASSPHRASE_VARIABLE)
        desk = make_owners_desk(place, passphrase, ca_file)
        say(f"the agent of {desk.owner.name} is running; you can stop it at any time")
        Agent(desk, os.environ, passphrase).run(time.sleep, every)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
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
