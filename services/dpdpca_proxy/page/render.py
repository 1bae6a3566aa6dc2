"""Makes the page from its template, which escapes every text."""

from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_proxy.page import words
from dpdpca_proxy.page.overview import Overview
from dpdpca_runtime.asgi.templates import template_environment

FOLDER: Final = Path(__file__).parent
_TEXT: Final = 1000


def render_overview(name: str, overview: Overview, not_ready: str | None) -> str:
    """The page of the proxy that is called `name`. `not_ready`: why it cannot do its work."""
    return _page(name=name, overview=overview, not_ready=not_ready, error=None)


def render_failure(name: str, error: DpdpcaError) -> str:
    """The page of a proxy whose database cannot be read."""
    return _page(name=name, overview=None, not_ready=None, error=error)


def _page(**context: Any) -> str:
    return _environment().get_template("overview.html").render(context)


@cache
def _environment() -> Environment:
    made = template_environment(FOLDER / "templates", _TEXT)
    made.filters["size"] = words.size
    made.filters["counted"] = words.counted
    return made
