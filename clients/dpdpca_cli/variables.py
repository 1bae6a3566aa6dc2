"""The environment variables DPDPCA_… that this program reads, and what happens with unknown ones.

If a variable is misspelt, its default is used, and nobody notices: the proxy would keep its generation file
elsewhere, and an owner would lose the second copy of its ledger's head. Services run unattended, so they
refuse to start with an unknown variable. The proxy's other commands also refuse to start with one, because
they write the same state as its service. All other commands print a warning and continue.
"""

import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import Final

from dpdpca_protocol.errors import UsageError

PREFIX: Final = "DPDPCA_"
_SETTINGS: Final = {"DPDPCA_PROXY_": "dpdpca_proxy.settings", "DPDPCA_USER_": "dpdpca_user_service.settings"}
"""The module of the settings for each prefix; every member of its settings class is a variable."""
_OTHERS: Final = frozenset(
    {
        "DPDPCA_CA_FILE",
        "DPDPCA_DATA_URL",
        "DPDPCA_EXECUTOR",
        "DPDPCA_EXECUTOR_LEAST_SECONDS",
        "DPDPCA_EXECUTOR_SEAL_KEY",
        "DPDPCA_EXECUTOR_TLS_CA",
        "DPDPCA_EXECUTOR_TLS_CERT",
        "DPDPCA_EXECUTOR_TLS_KEY",
        "DPDPCA_OWNER_HOME",
        "DPDPCA_OWNER_PASSPHRASE_FILE",
        "DPDPCA_OWNER_WITNESS",
        "DPDPCA_REFERENCE_DATA",  # read by the experiments and the tests
        "DPDPCA_USER_SERVICE_URL",
        "DPDPCA_USER_TOKEN_FILE",
    }
)
_NEAR: Final = 0.75


def known_variables() -> frozenset[str]:
    """All variables that the installed roles read."""
    return _OTHERS.union(*(_members(prefix) or () for prefix in _SETTINGS))


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """The names in `environment` that begin with our prefix but are not read by anything."""
    ours = {name for name in environment if name.upper().startswith(PREFIX)} - _OTHERS
    for prefix in _SETTINGS:
        of_role = {name for name in ours if name.startswith(prefix)}
        if of_role:  # loading the settings takes a moment
            members = _members(prefix)
            ours -= of_role if members is None else members
    return sorted(ours)


def check_variables(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The warning about unknown variables to print before the command in `words` runs, or None.

    Raises:
        UsageError: `unknown-variable`, the command refuses to run with unknown variables.
    """
    role, command = [*words, "", ""][:2]
    if role not in ("owner", "proxy", "user") or "--help" in words:
        return None
    unknown = unknown_variables(environment)
    if not unknown:
        return None
    problem = "unknown environment variable " + ", ".join(unknown)
    if role == "proxy" or (role, command) == ("user", "serve"):
        raise UsageError("unknown-variable", problem, _advice(unknown))
    return f"{problem}; {_advice(unknown)}"


def _advice(unknown: Sequence[str]) -> str:
    known = known_variables()
    near = {name: difflib.get_close_matches(name.upper(), known, 1, _NEAR) for name in unknown}
    meant = [match for matches in near.values() for match in matches]
    return f"did you mean {', '.join(meant)}? if not, unset it" if meant else "correct its name, or unset it"


def _members(prefix: str) -> frozenset[str] | None:
    """The variables of a service, or None if it is not installed."""
    try:
        settings = importlib.import_module(_SETTINGS[prefix]).Settings
    except ModuleNotFoundError:
        return None
    return frozenset(prefix + name.upper() for name in settings.model_fields)
