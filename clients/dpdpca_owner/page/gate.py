"""Who may use the page: the browser of the person who has the start link, and nobody else.

1. The request names this machine as its host. A page of another site that has its own name point here (DNS
   rebinding) names that site.
2. The browser has a session. It gets one for the token in the start link. A link works once; the next one is
   written to a private file. All pages and the session's cookie are below a random path. Browsers send the
   cookies of a host to all of its ports, but only below their path. Another user's server on this machine
   does not know this path. It does not know the cookie's name either, which is random too. Otherwise it could
   set a cookie of this name for all paths, and lock the person out.
3. What changes something is a POST from one of our own forms: the browser says that it comes from here, and
   the form has the session's second secret.
"""

import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from dpdpca_protocol.errors import (
    AuthenticationError,
    LimitError,
    MessageError,
    NotAllowedError,
    NotFoundError,
)
from dpdpca_runtime.asgi.limits import read_body
from dpdpca_runtime.files import remove_private
from dpdpca_runtime.own_files import load, save

SESSION_SECONDS = 12 * 3600.0
_MOST_SESSIONS = 16
_FORM_BYTES, _FORM_FIELDS = 256 * 1024, 500
_FORM = "application/x-www-form-urlencoded"
_LOCAL_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})

Form = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Session:
    """One browser. `form_token` is in each of its forms; `until` is on the monotonic clock."""

    form_token: str
    until: float

    def __repr__(self) -> str:
        return "Session(…)"


class StartLink:
    """The link that opens the page in a browser. Each link works once.

    Args:
        path: the private file with the present link.
        address: of the page, such as http://127.0.0.1:8460.
    """

    def __init__(self, path: Path, address: str) -> None:
        self._path, self._address = path, address
        self.renew()

    @property
    def url(self) -> str:
        return f"{self._address}/start?token={self._token}"

    def redeem(self, token: str) -> bool:
        """Whether `token` is that of the present link. If so, another link takes its place."""
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return False
        self.renew()
        return True

    def renew(self) -> None:
        self._token = secrets.token_urlsafe(32)
        save(self._path, {"url": self.url})

    def close(self) -> None:
        """Remove the file, because no page can be opened any more."""
        if self._path.exists():
            remove_private(self._path)


def read_link(path: Path, *, is_agent_running: bool) -> str:
    """The present link of a running agent. Raises NotFoundError `no-page`.

    The file of an agent that was killed is still there, so its presence is not enough.
    """
    if not (is_agent_running and path.exists()):
        raise NotFoundError(
            "no-page", "no agent with a page is running in this home", "run: dpdpca owner serve"
        )
    return str(load(path, "url")["url"])


class Gate:
    """Lets in the requests described at the top of this module.

    Args:
        link: the start link.
        clock: monotonic seconds.

    Attributes:
        root: the path above all pages.
    """

    def __init__(self, link: StartLink, clock: Callable[[], float] = time.monotonic) -> None:
        self._link, self._clock = link, clock
        self.root = f"/{secrets.token_urlsafe(12)}"
        self._cookie = f"dpdpca-owner-{secrets.token_hex(12)}"
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._opening = threading.Lock()

    def check_host(self, request: Request) -> None:
        """Raises AuthenticationError `wrong-address` unless the request names this machine."""
        hosts = request.headers.getlist("host")
        name, _, port = hosts[0].rpartition(":") if len(hosts) == 1 else ("", "", "")
        if not port.isdigit():
            name = hosts[0] if len(hosts) == 1 else ""
        if name.lower() not in _LOCAL_HOSTS:
            raise AuthenticationError(
                "wrong-address",
                "this page is only for this machine, and the request is addressed to another one",
                "open it as http://127.0.0.1, also through an SSH tunnel",
            )

    def start(self, request: Request) -> Response:
        """Exchange the token in the link for a session, and lead away from the link.

        Raises:
            AuthenticationError: `no-session`, the link is not the present one.
        """
        with self._opening:
            if not self._link.redeem(request.query_params.get("token", "")):
                raise no_session("this link was used before, or belongs to an agent that has ended")
            return self._open()

    def need(self, request: Request) -> Session:
        """The browser's session. Raises AuthenticationError `no-session`."""
        session = self._sessions.get(_key(request.cookies.get(self._cookie, "")))
        if session is None or session.until <= self._clock():
            raise no_session("this browser has not opened the page with its link yet")
        return session

    async def read_form(self, request: Request, session: Session) -> Form:
        """The fields of a form that the person sent from one of our pages.

        Raises:
            NotAllowedError: `foreign-form`, the form comes from elsewhere, or from an earlier session.
            MessageError, LimitError: it is no form of ours.
        """
        _check_origin(request)
        form = _parse(await read_body(request, _FORM, _FORM_BYTES))
        given = field(form, "form_token")
        if not hmac.compare_digest(given.encode(), session.form_token.encode()):
            raise _foreign("the form belongs to another session")
        return form

    def _open(self) -> Response:
        now, name = self._clock(), secrets.token_urlsafe(32)
        for key in [key for key, session in self._sessions.items() if session.until <= now]:
            del self._sessions[key]
        while len(self._sessions) >= _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        self._sessions[_key(name)] = Session(secrets.token_urlsafe(32), now + SESSION_SECONDS)
        response = RedirectResponse(f"{self.root}/", 303)
        response.set_cookie(self._cookie, name, httponly=True, samesite="strict", path=self.root)
        return response


def _key(name: str) -> bytes:
    """Sessions are found by a digest, so the time of the search tells nothing of their names."""
    return sha256(name.encode()).digest()


def _check_origin(request: Request) -> None:
    """Our pages send no referrer, so some browsers name no origin; all present ones say `Sec-Fetch-Site`."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = f"http://{request.headers['host']}"
    if origin not in (None, "null", own) or site not in (None, "same-origin"):
        raise _foreign("the form was sent by a page of another site")
    if origin != own and site is None:
        raise _foreign("the browser does not say which page sent the form; use a newer browser")


def _parse(body: bytes) -> Form:
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_FORM_FIELDS
        )
    except UnicodeDecodeError as error:
        raise MessageError("malformed", "the form is not in UTF-8", "send the form again") from error
    except ValueError as error:
        raise LimitError("too-large", "the form has too many fields", "send the form again") from error
    form: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        form[name] = (*form.get(name, ()), value)
    return form


def field(form: Form, name: str) -> str:
    """The value of a field; empty if the form does not have it. Raises MessageError if it has several."""
    values = form.get(name, ("",))
    if len(values) != 1:
        raise MessageError("malformed", f"the form has several fields '{name}'", "open the page again")
    return values[0]


def no_session(problem: str) -> AuthenticationError:
    """The refusal of a browser without a session, with what to do."""
    return AuthenticationError("no-session", problem, "run: dpdpca owner serve --link")


def _foreign(problem: str) -> NotAllowedError:
    return NotAllowedError(
        "foreign-form", f"nothing was changed: {problem}", "open the page again, and send its form"
    )
