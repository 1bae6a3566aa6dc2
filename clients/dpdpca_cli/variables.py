"""Every variable DPDPCA_… that this program reads, and what it says to others.

A misspelt variable leaves a default in its place, and nobody sees it: the proxy would keep its generation
elsewhere, an owner would lose the second place of its ledger. A service runs unattended, so it does not start
with one, and the proxy's other commands write the same state. A person who gives another command reads a
warning, and the command goes on.
"""

import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import Final

from dpdpca_protocol.errors import UsageError

PREFIX: Final = "DPDPCA_"
_SETTINGS: Final = {"DPDPCA_PROXY_": "dpdpca_proxy.settings", "DPDPCA_USER_": "dpdpca_user_service.settings"}
"""Where the settings of a service are; each member of the class is a variable, under this prefix."""
_OTHERS: Final = frozenset(
    {
        "DPDPCA_CA_FILE",
        "DPDPCA_DATA_URL",
        "DPDPCA_OWNER_HOME",
        "DPDPCA_OWNER_PASSPHRASE_FILE",
        "DPDPCA_OWNER_WITNESS",
        "DPDPCA_REFERENCE_DATA",  # of the project's tests
        "DPDPCA_USER_SERVICE_URL",
        "DPDPCA_USER_TOKEN_FILE",
    }
)
_NEAR: Final = 0.75


def known_variables() -> frozenset[str]:
    """All variables that are read, as far as the roles that read them are installed."""
    return _OTHERS.union(*(_members(prefix) or () for prefix in _SETTINGS))


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """The names in `environment` that are like ours and are read by nothing."""
    ours = {name for name in environment if name.upper().startswith(PREFIX)} - _OTHERS
    for prefix in _SETTINGS:
        of_role = {name for name in ours if name.startswith(prefix)}
        if of_role:  # settings take a moment to load
            members = _members(prefix)
            ours -= of_role if members is None else members
    return sorted(ours)


def check_variables(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """What is to be said of unknown variables before the command in `words` runs; None where there are none.

    Raises:
        UsageError: `unknown-variable`, the command is one that does not run with them.
    """
    role, command = [*words, "", ""][:2]
    if role not in ("owner", "proxy", "user") or "--help" in words:
        return None
    unknown = unknown_variables(environment)
    if not unknown:
        return None
    problem = "nothing reads " + ", ".join(unknown)
    if role == "proxy" or (role, command) == ("user", "serve"):
        raise UsageError("unknown-variable", problem, _advice(unknown))
    return f"{problem}; {_advice(unknown)}"


def _advice(unknown: Sequence[str]) -> str:
    known = known_variables()
    near = {name: difflib.get_close_matches(name.upper(), known, 1, _NEAR) for name in unknown}
    meant = [match for matches in near.values() for match in matches]
    return f"is it {', '.join(meant)}? else unset it" if meant else "correct its name, or unset it"


def _members(prefix: str) -> frozenset[str] | None:
    """The variables of a service, or None where it is not installed."""
    try:
        settings = importlib.import_module(_SETTINGS[prefix]).Settings
    except ModuleNotFoundError:
        return None
    return frozenset(prefix + name.upper() for name in settings.model_fields)
