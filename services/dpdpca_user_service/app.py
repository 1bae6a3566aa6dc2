"""The ASGI application: routes behind a bearer token, problems, limits, health, and the driver."""

import hmac
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from dpdpca_protocol.errors import AuthenticationError, DpdpcaError
from dpdpca_runtime.asgi.contract import describe, operation_id
from dpdpca_runtime.asgi.limits import ConcurrencyLimit, InFlightLimit
from dpdpca_runtime.asgi.observe import Metrics, ObserveMiddleware, install_health
from dpdpca_runtime.asgi.pages import DOCS_PATHS, install_docs
from dpdpca_runtime.asgi.problems import install_problem_handlers, problem_response
from dpdpca_runtime.asgi.traces import OWN_TRACES_ONLY
from dpdpca_runtime.probe import StorageProbe
from dpdpca_user_service.driver import Driver
from dpdpca_user_service.routes import chains, drafts, feature_lists, models, studies
from dpdpca_user_service.routes.contract import SCHEMAS, SECURITY
from dpdpca_user_service.service import UserService
from dpdpca_user_service.transform.scores import AT_ONCE, WAIT_SECONDS

_OPEN_PATHS = frozenset({"/healthz", "/readyz", *DOCS_PATHS})


class BearerToken:
    """Refuses requests without the service's token. The comparison takes constant time."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        given = Request(scope).headers.get("authorization", "").encode("latin-1", errors="replace")
        if not hmac.compare_digest(given, self._expected):
            refusal = AuthenticationError(
                "bad-token", "the bearer token is missing or wrong", "use the token in the data user's home"
            )
            await problem_response(refusal, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return
        await self._app(scope, receive, send)


def make_app(service: UserService, *, drive: bool = True) -> FastAPI:
    """The application of an open service.

    Args:
        service: closed when the application shuts down.
        drive: whether the driver runs; off in tests that advance studies themselves.
    """
    driver = Driver(service)
    service = replace(service, wake=driver.wake)
    metrics, storage = Metrics(), StorageProbe(service.settings.home)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if drive:
            driver.start()
        yield
        driver.stop()
        service.close()

    def ready() -> str | None:
        if drive and not driver.is_alive:
            return "the driver has stopped"
        try:
            service.store.check_rows()
            service.chains.check_rows()
        except DpdpcaError as error:
            return error.problem
        return storage.trouble()

    app = FastAPI(
        title="DPDPCA data user",
        version=version("dpdpca"),
        summary="Turns drafts into studies, runs them, and projects rows onto their models.",
        description="Requests need the bearer token from the data user's home; only health and these pages"
        " are open. Errors are problem documents (RFC 9457).",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=operation_id,
        **OWN_TRACES_ONLY,
    )
    app.state.service = service
    app.state.drafts, app.state.transforms = (
        ConcurrencyLimit(1, WAIT_SECONDS),
        ConcurrencyLimit(AT_ONCE, WAIT_SECONDS),
    )
    for routes in (drafts, feature_lists, studies, chains, models):
        app.include_router(routes.router)
    install_health(app, ready)
    describe(app, SECURITY, SCHEMAS)
    install_docs(app)
    app.add_middleware(BearerToken, token=service.token)
    app.add_middleware(InFlightLimit, most=service.settings.max_requests, exempt=("/healthz", "/readyz"))
    app.add_middleware(ObserveMiddleware, metrics=metrics, clock=time.monotonic, traces=service.traces)
    install_problem_handlers(app, lambda slug: metrics.count("dpdpca_problems_total", slug=slug))
    return app
