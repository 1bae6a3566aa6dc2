"""The proxy's two web applications: the public one, and the operator's page and metrics."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib.metadata import version

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES
from dpdpca_proxy.carried import CarriedAnswers
from dpdpca_proxy.jobs import Jobs
from dpdpca_proxy.page.overview import overview_of
from dpdpca_proxy.page.render import FOLDER, render_failure, render_overview
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.routes import events, feature_lists, inbox, parties, releases, shares, studies
from dpdpca_proxy.routes.callers import check_addressed_here
from dpdpca_proxy.routes.contract import SECURITY
from dpdpca_proxy.routes.events import event_stream
from dpdpca_proxy.store.studies import list_readable, list_studies
from dpdpca_proxy.watch import Watch
from dpdpca_proxy.worker import COURTESY
from dpdpca_runtime.asgi.contract import describe, operation_id
from dpdpca_runtime.asgi.limits import InFlightLimit, LargeBodies
from dpdpca_runtime.asgi.observe import Labels, ObserveMiddleware, install_health
from dpdpca_runtime.asgi.pages import PAGE_HEADERS, install_docs, install_files, install_style
from dpdpca_runtime.asgi.problems import install_problem_handlers, status_of
from dpdpca_runtime.asgi.rate import AddressLimit, RateLimit
from dpdpca_runtime.asgi.stall import StallWatch
from dpdpca_runtime.asgi.traces import OWN_TRACES_ONLY
from dpdpca_runtime.cluster.address import Cluster
from dpdpca_runtime.workers import Background, BackgroundProcesses

PROBE_SECONDS = 5.0
"""The shortest time between two storage checks for readiness."""

_HEAVY_AT_ONCE = 2
"""How many requests check ciphertexts or proofs at the same time.

The others wait with their body in memory.
"""

_LARGE_BODIES_BYTES = COMPONENTS_LIMIT_BYTES
"""The proxy receives at most this many bytes of components at the same time. Reading them takes five times as
much memory."""

_STATEMENTS_BYTES = 64 * 1024 * 1024
"""The proxy receives at most this many bytes of manifests and share statements at the same time; one caller
may use a quarter."""


def create_app(proxy: Proxy, *, worker: Background | None = None) -> FastAPI:
    """The public application: all routes of the proxy, health, and the OpenAPI page.

    Args:
        proxy: from `open_proxy`.
        worker: where long work runs: one process that is kept, except in tests.

    The application's lifespan runs the jobs and the watch. `app.state` holds proxy, jobs, watch, heavy,
    large, statements, rate and stopping.
    """
    worker = worker or BackgroundProcesses(keep=True, niceness=COURTESY)
    stopping = asyncio.Event()
    bells: list[Callable[[], object]] = []

    def wake() -> None:
        for ring in bells:
            with suppress(RuntimeError):  # the loop has ended, so there is nothing to wake
                ring()

    proxy = replace(proxy, wake=wake)
    jobs = Jobs(proxy, worker)
    watch = Watch(proxy, jobs, proxy.settings.max_streams)
    stalls = StallWatch()
    proxy.metrics.gauge("dpdpca_loop_stall_seconds", lambda: {(): stalls.longest_seconds})

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        bells.append(lambda: loop.call_soon_threadsafe(jobs.wake))
        tasks = [
            asyncio.create_task(jobs.run(stopping), name="jobs"),
            asyncio.create_task(watch.run(stopping), name="watch"),
            asyncio.create_task(stalls.run(stopping), name="stalls"),
        ]
        app.state.tasks = tasks
        try:
            yield
        finally:
            bells.clear()
            stopping.set()
            jobs.wake()
            watch.wake()
            await asyncio.to_thread(worker.close)
            await asyncio.wait(tasks, timeout=10)
            jobs.close()
            proxy.database.close()

    app = FastAPI(
        title="DPDPCA proxy",
        version=version("dpdpca"),
        summary="Collects sealed shares of several owners, adds noise and releases the sum once.",
        description="Bodies are canonical JSON (RFC 8785) unless the route says otherwise. Requests are "
        "signed with the caller's identity key (RFC 9421); only card, rotations, enrolment and health need "
        "no signature. Errors are problem documents (RFC 9457).",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=operation_id,
        **OWN_TRACES_ONLY,
    )
    app.state.proxy, app.state.jobs, app.state.watch = proxy, jobs, watch
    app.state.heavy, app.state.stopping, app.state.tasks = CapacityLimiter(_HEAVY_AT_ONCE), stopping, []
    app.state.large = LargeBodies(_LARGE_BODIES_BYTES, _LARGE_BODIES_BYTES)
    app.state.statements = LargeBodies(_STATEMENTS_BYTES, _STATEMENTS_BYTES // 4)
    app.state.probed_at = time.monotonic()
    app.state.rate = RateLimit(proxy.settings.party_requests, time.monotonic)
    for routes in (parties, inbox, feature_lists, studies, shares, releases, events):
        app.include_router(routes.router, dependencies=[Depends(check_addressed_here)])
    install_health(app, lambda: _not_ready(app), ["too-many"])
    describe(app, SECURITY)
    install_docs(app)
    app.add_middleware(CarriedAnswers, proxy=proxy)
    app.add_middleware(
        InFlightLimit, most=proxy.settings.max_requests, exempt=("/healthz", "/readyz", "/events")
    )
    app.add_middleware(AddressLimit, limit=RateLimit(proxy.settings.address_requests, time.monotonic))
    _install_edge(app, proxy)
    return app


def create_operator_app(public: FastAPI) -> FastAPI:
    """The operator's application: the page at `/`, and `/metrics`.

    It is read-only. This application answers only to the names of its own listener, so that no other web page
    can reach it through an operator's browser.
    """
    proxy, stopping = public.state.proxy, public.state.stopping
    title = "DPDPCA proxy, operator"
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None, **OWN_TRACES_ONLY)
    install_style(app)
    install_files(app, {f"/{name}": FOLDER / "static" / name for name in ("overview.css", "page.js")})
    look = overview_of(proxy, public.state.jobs)
    one_at_a_time = CapacityLimiter(1)
    proxy.metrics.gauge("dpdpca_studies", lambda: _studies_by_state(proxy))
    if (cluster := proxy.settings.cluster) is not None:
        proxy.metrics.gauge("dpdpca_cluster_reachable", lambda: {(): _reachable(cluster)})

    def overview() -> HTMLResponse:
        name = proxy.settings.name
        try:
            page, status = render_overview(name, look(), _not_ready(public)), 200
        except DpdpcaError as error:
            page, status = render_failure(name, error), status_of(error)
        return HTMLResponse(page, status, headers=PAGE_HEADERS)

    @app.get("/")
    async def read_overview() -> Response:
        return await to_thread.run_sync(overview, limiter=one_at_a_time)

    @app.get("/metrics")
    async def read_metrics() -> Response:
        return PlainTextResponse(await run_in_threadpool(proxy.metrics.text))

    @app.get("/events")
    async def read_events() -> Response:
        return await event_stream(public.state.watch.of_all(stopping))

    install_health(app, lambda: _not_ready(public))
    hosts = {"localhost", "127.0.0.1", "[::1]", "::1", proxy.settings.operator_host}
    if proxy.settings.operator_host not in ("0.0.0.0", "::"):  # noqa: S104 # compared, not bound
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=sorted(hosts), www_redirect=False)
    _install_edge(app, proxy)
    return app


def _install_edge(app: FastAPI, proxy: Proxy) -> None:
    install_problem_handlers(app, lambda slug: proxy.metrics.count("dpdpca_problems_total", slug=slug))
    app.add_middleware(ObserveMiddleware, metrics=proxy.metrics, clock=time.monotonic, traces=proxy.traces)


def _not_ready(app: FastAPI) -> str | None:
    """The reason why the proxy cannot do its work, or None. This function runs in a thread."""
    if app.state.jobs.trouble == "state-corrupt":
        return "the stored state contradicts itself; an operator must act"
    _probe(app)
    try:
        app.state.proxy.database.settle_witness()
        with app.state.proxy.database.reading("readiness") as connection:
            list_studies(connection, ())
    except DpdpcaError as error:
        return error.problem
    if app.state.proxy.database.trouble or app.state.proxy.files.trouble:
        return "the storage cannot be written"
    if app.state.jobs.trouble is not None:
        return "a study cannot go on; the log says why, and an operator must act"
    if not app.state.tasks or any(task.done() for task in app.state.tasks):
        return "the jobs are not running"
    return None


def _probe(app: FastAPI) -> None:
    """Writes a small file now and then, so that even an idle proxy notices a failing storage."""
    now = time.monotonic()
    if now - app.state.probed_at >= PROBE_SECONDS:
        app.state.probed_at = now
        with suppress(OSError, DpdpcaError):  # the store remembers the failure
            app.state.proxy.files.probe()


def _reachable(cluster: Cluster) -> float:
    """1 if the Dask scheduler answers, else 0. The proxy can take shares without it, so it stays ready."""
    try:
        cluster.probe()
    except DpdpcaError:
        return 0.0
    return 1.0


def _studies_by_state(proxy: Proxy) -> dict[Labels, float]:
    with proxy.database.reading("count studies") as connection:
        states = Counter(str(row.state) for row in list_readable(connection).rows)
    return {(("state", state),): float(count) for state, count in states.items()}
