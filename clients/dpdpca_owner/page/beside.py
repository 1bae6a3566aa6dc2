"""Serves the page beside an agent that runs in this process."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from dpdpca_owner.actions import Desk
from dpdpca_owner.agent import Agent
from dpdpca_owner.page.activity import Activity
from dpdpca_owner.page.app import create_page
from dpdpca_owner.page.gate import Gate, StartLink
from dpdpca_owner.page.office import Office
from dpdpca_runtime.asgi.serving import Listener, serving_beside

_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Served:
    """A page that is being served. `url` is the start link, which is a secret."""

    url: str = field(repr=False)
    _woken: threading.Event

    def sleep(self, seconds: float) -> None:
        """For `Agent.run`: sleeps until the time is over, or until a person has decided something."""
        self._woken.wait(seconds)
        self._woken.clear()


@contextmanager
def page_beside(
    agent: Agent, activity: Activity, desk: Desk, environment: Mapping[str, str], port: int
) -> Iterator[Served]:
    """Serves the page in a thread of its own while the context lasts.

    Args:
        agent: the agent, which works in another thread.
        activity: receives what the agent says and does.
        desk: of the same owner; it shares nothing but files with the agent's desk.
        environment: may hold a database URL.
        port: on this machine.

    Raises:
        UnavailableError: `cannot-listen`.
    """
    woken = threading.Event()
    office = Office(desk, environment, activity, lambda: agent.desk.owner, agent.problems, woken.set)
    link = StartLink(desk.home.page_link_path, f"http://{_HOST}:{port}")
    try:
        app = create_page(office, Gate(link))
        with serving_beside(Listener("the agent's page", app, _HOST, port), lambda: _end_this_process(woken)):
            yield Served(link.url, woken)
    finally:
        link.close()


def _end_this_process(woken: threading.Event) -> None:
    """An agent whose page has died must not go on unseen."""
    signal.raise_signal(signal.SIGTERM)
    woken.set()  # else the main thread would notice the signal only after its sleep
