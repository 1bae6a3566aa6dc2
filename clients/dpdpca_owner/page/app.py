"""The page as a web application.

Every answer, also an error, has the same strict headers. A view runs in a thread, so a slow one holds up
neither the others nor the agent.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dpdpca_owner.page import ledger, policy, requests, rules, studies, words
from dpdpca_owner.page.gate import Form, Gate, no_session
from dpdpca_owner.page.office import Office
from dpdpca_owner.page.render import STATIC, problem_page, unexpected_page
from dpdpca_protocol.errors import DpdpcaError, MessageError, NotFoundError
from dpdpca_runtime.asgi.problems import log_incident

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

View = Callable[[Office, Request], Response]
Act = Callable[[Office, Request, Form], Response]


def create_page(office: Office, gate: Gate) -> ASGIApp:
    """The application of one agent."""
    study, result = "/requests/{proxy}/{study}", "/studies/{proxy}/{study}"
    made = Pages(office, gate)
    static = [Route(f"/{name}", _static(name)) for name in STATIC]
    pages = [
        *static,
        Route("/", made.view(requests.show_requests)),
        Route(study, made.view(requests.show_sheet)),
        Route(f"{study}/dry-run", made.act(requests.start_dry_run), methods=["POST"]),
        Route(f"{study}/approve", made.act(requests.approve), methods=["POST"]),
        Route(f"{study}/decline", made.act(requests.decline), methods=["POST"]),
        Route("/studies", made.view(studies.show_studies)),
        Route(f"{result}/components", made.view(studies.show_result)),
        Route(f"{result}/components.npz", made.view(studies.download_result)),
        Route("/ledger", made.view(ledger.show_ledger)),
        Route("/words", made.view(words.show_words)),
        Route("/words/compared", made.act(words.note_compared), methods=["POST"]),
        Route("/policy", made.view(policy.show_policy)),
        Route("/policy/change", made.act(policy.change_policy), methods=["POST"]),
        Route("/policy/rules", made.view(rules.show_rules)),
        Route("/policy/rules/add", made.act(rules.add_rule), methods=["POST"]),
        Route("/policy/rules/remove", made.act(rules.remove_rule), methods=["POST"]),
    ]
    routes = [*static, Route("/start", made.start), Route("/", _ask_for_link), Mount(gate.root, routes=pages)]
    app = Starlette(routes=routes, exception_handlers={DpdpcaError: _on_error, HTTPException: _on_error})
    return _Shell(app, gate)


class Pages:
    """Wraps the views: each one needs a session, and each act needs a form of ours."""

    def __init__(self, office: Office, gate: Gate) -> None:
        self._office, self._gate = office, gate

    def view(self, show: View) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            self._enter(request)
            return await run_in_threadpool(show, self._office, request)

        return answer

    def act(self, do: Act) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            self._enter(request)
            form = await self._gate.read_form(request, request.state.session)
            return await run_in_threadpool(do, self._office, request, form)

        return answer

    async def start(self, request: Request) -> Response:
        return await run_in_threadpool(self._gate.start, request)

    def _enter(self, request: Request) -> None:
        request.state.session = self._gate.need(request)
        request.state.owner = self._office.desk.owner.name


class _Shell:
    """The outermost layer: refuses what is not addressed to this machine, sets the headers, and answers what
    nobody has planned for."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_safely(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        request = Request(scope)
        try:
            self._gate.check_host(request)
            await self._app(scope, receive, send_safely)
        except DpdpcaError as error:
            await problem_page(request, error)(scope, receive, send_safely)
        except ClientDisconnect:
            return
        except Exception as error:
            incident = log_incident(error)
            if not begun:
                await unexpected_page(request, incident)(scope, receive, send_safely)


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        response = problem_page(request, _framework_error(error), error.status_code)
        response.headers.update(error.headers or {})
        return response
    assert isinstance(error, DpdpcaError)
    return problem_page(request, error)


async def _ask_for_link(_request: Request) -> Response:
    raise no_session("this page opens with the agent's link")


def _framework_error(error: HTTPException) -> DpdpcaError:
    if error.status_code == 404:
        return NotFoundError("not-found", "there is no such page", "go back to the requests")
    return MessageError("malformed", "this page does not take such a request", "go back to the requests")


def _static(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_request: Request) -> Response:
        return Response(STATIC[name], media_type=_TYPES[name.rpartition(".")[2]])

    return answer
