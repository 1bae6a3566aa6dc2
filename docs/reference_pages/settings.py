"""Settings of both services and the variables that clients read."""

from typing import Any

from dpdpca_proxy.settings import Settings as ProxySettings
from dpdpca_runtime.settings import ServiceSettings
from dpdpca_user_service.settings import Settings as UserSettings
from reference_pages.markdown import code, plain, table

CLIENT_VARIABLES = {
    "DPDPCA_CA_FILE": "PEM file of the certificate authority that certified the server.",
    "DPDPCA_OWNER_HOME": "Home folder of the owner.",
    "DPDPCA_OWNER_PASSPHRASE_FILE": "File with the passphrase of the owner's keys.",
    "DPDPCA_OWNER_WITNESS": "Folder for a second copy of the ledger's head, outside the owner's folder.",
    "DPDPCA_DATA_URL": "Database URL of an owner's records, used with `--query`.",
    "DPDPCA_EXECUTOR": "Scheduler of a Dask cluster for long work of proxy and owner, as dask://HOST:PORT.",
    "DPDPCA_EXECUTOR_TLS_CA": "PEM file with the authority of the Dask cluster.",
    "DPDPCA_EXECUTOR_TLS_CERT": "PEM file with this party's certificate for the Dask cluster.",
    "DPDPCA_EXECUTOR_TLS_KEY": "PEM file with the key of this certificate.",
    "DPDPCA_EXECUTOR_SEAL_KEY": "File with the key under which calls pass the scheduler, as workers have it.",
    "DPDPCA_EXECUTOR_LEAST_SECONDS": "Shorter work is not given to the Dask cluster.",
    "DPDPCA_USER_SERVICE_URL": "Address of the data user's service, for its commands and for Python.",
    "DPDPCA_USER_TOKEN_FILE": "File with the service's bearer token, if it is not in the data user's folder.",
    "DPDPCA_REFERENCE_DATA": "Folder with the larger reference data sets, for experiments and tests.",
}
"""The variables that clients read. A test compares the names with the code."""

_INTRODUCTION = """
# Settings

A service looks for each setting in this order: the options of its command, the environment variables, the
settings file in its home folder, the defaults. The service takes the first value that it finds. An empty
variable counts as unset. No setting changes noise or randomness, and no setting allows a key that is shorter
than the protocol's minimum.

A variable `DPDPCA_…` that this page does not list is probably misspelt. With such a variable, the commands of
`dpdpca proxy` and `dpdpca user serve` stop and suggest the closest known name. Other commands print a warning
and go on.
"""


def page() -> str:
    lines = [*_INTRODUCTION.strip().splitlines(), ""]
    lines += [
        "## Proxy",
        "",
        "The settings file is `proxy.toml`. The file uses the names in the column `setting`.",
        "",
    ]
    lines += _settings(ProxySettings)
    lines += ["## Data user's service", "", "The data user's service has no settings file.", ""]
    lines += _settings(UserSettings)
    lines += ["## Owners, data users, and all commands", ""]
    lines += table(
        ("variable", "meaning"), ((code(name), plain(meaning)) for name, meaning in CLIENT_VARIABLES.items())
    )
    return "\n".join(lines)


def _settings(kind: type[ServiceSettings]) -> list[str]:
    rows = []
    for name, field in kind.model_fields.items():
        rows.append(
            (
                code(name),
                code(kind.prefix() + name.upper()),
                _default(field.default, field.is_required()),
                plain(field.description or ""),
            )
        )
    return table(("setting", "variable", "default", "meaning"), rows)


def _default(default: Any, is_required: bool) -> str:
    if is_required or default in (None, ()):
        return ""
    return code(str(default).lower() if isinstance(default, bool) else default)
