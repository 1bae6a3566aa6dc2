"""Templates of pages. They escape every text, because names and titles come from strangers."""

from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dpdpca_protocol.errors import printable


def template_environment(folder: Path, longest_text: int) -> Environment:
    """The templates in a folder, with the filter `when` for times in UTC.

    A text from outside stays on one line, cannot turn the direction of what stands beside it, and is cut
    after `longest_text` characters.
    """

    def finalize(value: Any) -> Any:
        return printable(value, longest_text) if type(value) is str else value

    made = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    made.filters["when"] = _when
    return made


def _when(time: datetime) -> Markup:
    return Markup('<time datetime="{:%Y-%m-%dT%H:%M:%SZ}">{:%Y-%m-%d %H:%M} UTC</time>').format(time, time)
