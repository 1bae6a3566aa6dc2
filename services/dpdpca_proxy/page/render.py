"""Makes the page from its template, which escapes every text."""

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dpdpca_protocol.errors import DpdpcaError, printable
from dpdpca_proxy.page import words
from dpdpca_proxy.page.overview import Overview

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
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    made.filters["size"] = words.size
    made.filters["counted"] = words.counted
    made.filters["when"] = _when
    return made


def _printable(value: Any) -> Any:
    """Texts from outside stay on one line and hide nothing."""
    return printable(value, _TEXT) if type(value) is str else value


def _when(time: datetime) -> Markup:
    return Markup('<time datetime="{:%Y-%m-%dT%H:%M:%SZ}">{:%Y-%m-%d %H:%M} UTC</time>').format(time, time)
