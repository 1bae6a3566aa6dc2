"""A proxy in a process of its own that a test can kill, starve and restart; keys stay small.

The child is the product's own application under uvicorn, with long work in the same process, so that its
writes have failpoints too. A line of control leads to it: arm a fault, ask which points were passed. Noise
that goes into a release is noted beside the proxy's home, by this test's child alone.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import uvicorn
from children import CHILDREN, start_child
from fault_plan import DIE, FaultPlan, Point, install
from proxy_world import TOY_BITS, InlineWorker, ProxyWorld, free_port, wait_for
from study_parties import Parties

from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy import jobs
from dpdpca_proxy.app import create_app
from dpdpca_proxy.proxy import make_home, open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.files import draw_name
from dpdpca_proxy.study_files import StudyFiles
from dpdpca_runtime.asgi.limits import DeadlineProtocol
from dpdpca_runtime.asgi.observe import configure_logging
from dpdpca_runtime.http.client import ProxyClient

KILLED = -signal.SIGKILL
START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_FELL = "fell"
_LAST_OF_TIDYING = {Point("remove"), Point("probed")}
"""A file that was written to see whether the storage works is taken back; or object storage was tried."""
_NEVER_SECONDS = 3600.0
"""Between two tidyings after the one at the start, whose writes would be taken for those of an act."""
_NO_LIMIT = 1_000_000
"""Of requests in a second: tests send as many as they can, and the limits have tests of their own."""
_RETRY_SECONDS = 0.1
"""In place of the minute that the jobs wait after failures."""


class DeadProxyError(Exception):
    """The process died before it could answer."""


@dataclass(frozen=True)
class _Orders:
    home: Path
    port: int
    settings: dict[str, Any]
    noise_log: Path


@dataclass
class ServedProxy:
    """One process that serves a home; there may be several of one home."""

    home: Path
    port: int
    settings: dict[str, Any]
    _process: BaseProcess | None = None
    _control: Connection | None = None
    _fell: bool = False
    _is_tidy: bool = False

    @property
    def pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def start(self) -> None:
        ours, theirs = CHILDREN.Pipe()
        orders = _Orders(self.home, self.port, self.settings, noise_log(self.home))
        self._process = start_child(_serve, orders, theirs, daemon=True)
        theirs.close()
        self._control, self._fell, self._is_tidy = ours, False, False
        assert ours.poll(START_SECONDS), "the proxy does not start"
        try:
            assert ours.recv() == "ready"
        except EOFError:
            raise AssertionError("the proxy died when it started") from None

    def arm(self, at: Point | None, mode: str = DIE) -> None:
        """Notes points from now on; at this one, does as `mode` says. Waits until a start is over."""
        if not self._is_tidy:
            wait_for(lambda: bool(_LAST_OF_TIDYING & set(self.passed())))
            self._is_tidy = True
        self._ask(("arm", at, mode))
        self._fell = False

    def disarm(self) -> list[Point]:
        """Nothing happens from now on; the points that were passed. Raises DeadProxyError."""
        points = self._ask(("disarm",))
        assert isinstance(points, list)
        return points

    def passed(self) -> list[Point]:
        """Points that were passed since the start or `arm`. Raises DeadProxyError."""
        points = self._ask(("passed",))
        assert isinstance(points, list)
        return points

    def fell(self) -> bool:
        """Whether it came to the point at which it dies or something fails."""
        assert self._control is not None
        with suppress(EOFError, ConnectionResetError):
            while self._control.poll():
                self._note(self._control.recv())
        return self._fell

    def _ask(self, order: tuple[Any, ...]) -> Any:
        assert self._control is not None
        try:
            self._control.send(order)
            while True:
                assert self._control.poll(START_SECONDS), "the proxy does not answer its control"
                answer = self._control.recv()
                if not self._note(answer):
                    return answer
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise DeadProxyError from None

    def _note(self, message: Any) -> bool:
        """Keeps that it came to its end; whether the message says so."""
        self._fell = self._fell or message == _FELL
        return bool(message == _FELL)

    def wait_dead(self, seconds: float) -> bool:
        """Whether it is dead by then."""
        assert self._process is not None
        self._process.join(seconds)
        return not self._process.is_alive()

    def kill(self) -> None:
        """Now, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._forget()

    def stop(self) -> None:
        """As an operator would."""
        assert self._process is not None
        self._process.terminate()
        self._process.join(_STOP_SECONDS)
        assert not self._process.is_alive(), "the proxy did not stop"
        self._forget()

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        self._process = self._control = None


@dataclass
class ProcessWorld(ProxyWorld):
    """A `ProxyWorld` whose proxy lives in other processes.

    `proxy` is this process' own view of the same home, for invitations, looks into the store and audits.
    """

    served: list[ServedProxy] = field(default_factory=list)

    def start(self, processes: int = 1) -> None:
        """Serves the home; the first process under `url`, the others beside it under `served[i].port`."""
        if not self.served:
            ports = [self.port, *(free_port() for _ in range(processes - 1))]
            self.settings |= {"also_known_as": tuple(f"127.0.0.1:{port}" for port in ports), "url": self.url}
            self.settings |= {"party_requests": _NO_LIMIT, "address_requests": _NO_LIMIT}
            self.served = [ServedProxy(self.home, port, self.settings) for port in ports]
            settings = load_settings(self.home, port=self.port, log_level="ERROR", **self.settings)
            make_home(settings)
            self.proxy = open_proxy(settings, now=self.clock, key_rules=KeyRules(TOY_BITS))
        for served in self.served:
            served.start()

    @property
    def first(self) -> ServedProxy:
        return self.served[0]

    @property
    def is_running(self) -> bool:
        return any(served.is_alive for served in self.served)

    def stop(self) -> None:
        for served in self.served:
            served.stop()

    def restart(self) -> None:
        """After a death or before one."""
        for served in self.served:
            served.kill()
            served.start()

    def end(self) -> None:
        for served in self.served:
            served.kill()
        if self.served:
            self.proxy.database.close()

    def client_of(self, served: ServedProxy, key: IdentityKey) -> ProxyClient:
        return ProxyClient(f"http://127.0.0.1:{served.port}", key, self.proxy_key, patience=self.patience)


class RoundRobin(ProcessWorld):
    """Every client that is asked for speaks to the next process, whether that is alive or not."""

    def client(self, key: IdentityKey) -> ProxyClient:
        turn = self.__dict__.setdefault("turn", count())
        return self.client_of(self.served[next(turn) % len(self.served)], key)


@contextmanager
def process_world(*arguments: Any, **options: Any) -> Iterator[ProcessWorld]:
    """A world of processes that are gone at the end."""
    world = ProcessWorld(*arguments, **options)
    try:
        yield world
    finally:
        world.end()


@contextmanager
def started_world(
    folder: Path, parties: Parties, processes: int = 1, **options: Any
) -> Iterator[ProcessWorld]:
    """The same for the small study's parties, serving, with everyone enrolled."""
    people = (parties.user, list(parties.owners), parties.secret, parties.proof)
    with process_world(folder / "proxy", *people, **options) as world:
        world.start(processes=processes)
        world.enrol_all()
        yield world


def noise_log(home: Path) -> Path:
    return home.parent / f"{home.name}.noise"


def released_noise(home: Path, study: str) -> dict[str, list[int]]:
    """Noise that ever went into making the study's release, by the token of its draw."""
    log = noise_log(home)
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return {line["token"]: line["noise"] for line in lines if line["study"] == study}


# In the child


class _Server(uvicorn.Server):
    control: Connection

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.control.send("ready")


def _serve(orders: _Orders, control: Connection) -> None:
    saying = threading.Lock()

    def say(message: Any) -> None:
        with saying:
            control.send(message)

    plan = FaultPlan(lambda: say(_FELL))
    install(plan)
    _note_noise(orders.noise_log)
    jobs._MOST_BACKOFF_SECONDS = _RETRY_SECONDS
    jobs._TIDYING_SECONDS = _NEVER_SECONDS
    settings = load_settings(orders.home, port=orders.port, log_level="ERROR", **orders.settings)
    configure_logging(settings.log_level)
    app = create_app(open_proxy(settings, key_rules=KeyRules(TOY_BITS)), worker=InlineWorker())
    server = _Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=orders.port,
            http=DeadlineProtocol,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=15,
        )
    )
    server.control = control
    threading.Thread(target=_obey, args=(control, say, plan), daemon=True).start()
    server.run()


def _obey(control: Connection, say: Callable[[Any], None], plan: FaultPlan) -> None:
    while True:
        try:
            order, *arguments = control.recv()
        except (EOFError, OSError):
            os._exit(1)  # whoever started this is gone
        if order == "arm":
            plan.arm(*arguments)
            say("armed")
        elif order == "disarm":
            say(plan.disarm())
        else:
            say(plan.so_far())


def _note_noise(log: Path) -> None:
    """Appends the noise of each release that is made, with the token of its draw, to `log`."""
    real = vars(jobs)["make_release"]

    def make_release(
        place: StudyFiles, figures: Any, records: Any, products: Any, token: str, **options: Any
    ) -> Any:
        _, _, drawn = place.read_bytes(draw_name(place.study, token)).partition(b"\n")
        noise = [int.from_bytes(drawn[at : at + 8], "little", signed=True) for at in range(0, len(drawn), 8)]
        line = {"study": place.study.hex(), "token": token, "noise": noise}
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return real(place, figures, records, products, token, **options)

    vars(jobs)["make_release"] = make_release
