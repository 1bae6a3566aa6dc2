"""Numbers that a person typed into a form, written into the policy file exactly as they were typed."""

import re

import tomlkit
from tomlkit.items import Item

from dpdpca_protocol.errors import UsageError, printable

_REAL = re.compile(r"(0|[1-9][0-9]{0,17})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_SHOWN = 40


def number(given: str, label: str, *, is_whole: bool) -> Item:
    """The number as TOML. Raises UsageError `bad-policy`."""
    if (_WHOLE if is_whole else _REAL).fullmatch(given) is None:
        what = "a whole number, such as 3" if is_whole else "a number, such as 0.5 or 1e-5"
        raise UsageError("bad-policy", f"{label}: '{printable(given, _SHOWN)}' is not {what}")
    return tomlkit.value(given)
