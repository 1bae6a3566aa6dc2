"""Makes pages from the templates, which escape every text."""

from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from dpdpca_owner.summary import percent_up
from dpdpca_protocol.errors import DpdpcaError, UsageError
from dpdpca_runtime.asgi.problems import status_of
from dpdpca_runtime.asgi.templates import template_environment

_FOLDER: Final = Path(__file__).parent
STATIC: Final = {path.name: path.read_bytes() for path in (_FOLDER / "static").iterdir() if path.is_file()}
_TEXT = 4000
_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def page(template: str, request: Request, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A page. `template` is the name of a file without its ending; the page's path marks its menu."""
    session = getattr(request.state, "session", None)
    shared: dict[str, Any] = {
        "root": root_of(request),
        "path": request.scope["path"].removeprefix(root_of(request)),
        "form_token": "" if session is None else session.form_token,
        "owner": getattr(request.state, "owner", ""),
        "is_open": session is not None,
    }
    return HTMLResponse(_templates().get_template(f"{template}.html").render(shared | context), status)


def go_to(request: Request, path: str) -> RedirectResponse:
    """Leads to another page after a form."""
    return RedirectResponse(root_of(request) + path, 303)


def root_of(request: Request) -> str:
    """The path above all pages; empty for who has no session."""
    return str(request.scope.get("root_path", ""))


def problem_page(request: Request, error: DpdpcaError, status: int | None = None) -> HTMLResponse:
    """What is wrong and what to do, with the status of the error unless another one is given."""
    # The person who reads it owns this machine, so the page may say what a terminal would.
    if status is None:
        status = 400 if isinstance(error, UsageError) else status_of(error)
    return page("problem", request, status=status, problem=str(error), title=error.slug.replace("-", " "))


def unexpected_page(request: Request, incident: str) -> HTMLResponse:
    text = f"unexpected internal error; the agent's terminal or log says more under {incident}"
    return page("problem", request, status=500, problem=text, title="internal error")


@cache
def _templates() -> Environment:
    made = template_environment(_FOLDER / "templates", _TEXT)
    made.filters["percent_up"] = percent_up
    made.filters["short"] = short
    made.filters["share_of"] = _share_of
    made.filters["capitalize_first"] = lambda text: str(text)[:1].upper() + str(text)[1:]
    made.filters["day_of"] = day_of
    return made


def short(value: Fraction | float) -> str:
    """Four significant digits, such as 0.25, 10⁻⁶ and 4 × 10⁻⁸."""
    digits, _, power = f"{float(value):.4g}".partition("e")
    if not power:
        return digits
    times = "" if digits == "1" else f"{digits}\u00a0×\u00a0"
    return f"{times}10{str(int(power)).translate(_RAISED)}"


def day_of(met: str) -> str:
    """When a party was first met (`PinnedParty.met`), without the time of day."""
    return met[: len("2026-11-01")] + met[len("2026-11-01T10:00:00Z") :]


def _share_of(count: int, total: int) -> str:
    return f"{count:,} ({float(Fraction(count, total)):.1%})" if count and total else f"{count:,}"
