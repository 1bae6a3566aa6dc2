"""Where a role keeps its state: an option, else DPDPCA_<ROLE>_HOME, else the user's configuration folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import platformdirs

from dpdpca_protocol.errors import UsageError

RoleName = Literal["owner", "proxy", "user"]


def home_folder(role: RoleName, option: Path | None, environment: Mapping[str, str]) -> Path:
    """The folder of `role`, not yet made.

    Args:
        role: whose state.
        option: what the command line says; wins over everything else.
        environment: usually `os.environ`; an empty value counts as absent.

    Raises:
        UsageError: `bad-path`, see `expanded`.
    """
    if option is not None:
        return expanded(option)
    named = environment.get(f"DPDPCA_{role.upper()}_HOME")
    if named:
        return expanded(Path(named))
    return platformdirs.user_config_path("dpdpca", appauthor=False) / role


def witness_folder(environment: Mapping[str, str]) -> Path:
    """Where the heads of owners' ledgers are kept once more, outside of the owners' own folders.

    A folder that is put back from a backup is then seen to be older than it was.

    Args:
        environment: usually `os.environ`; DPDPCA_OWNER_WITNESS names another place, such as another disk.
    """
    named = environment.get("DPDPCA_OWNER_WITNESS")
    if named:
        return expanded(Path(named))
    return platformdirs.user_state_path("dpdpca", appauthor=False) / "owner-ledgers"


def expanded(path: Path) -> Path:
    """`path` with a leading ~ or ~USER spelt out.

    Raises:
        UsageError: `bad-path`, there is no such user.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UsageError(
            "bad-path",
            f"{path} begins with ~ and there is no such user",
            "name a folder of that name by its whole path, from / on",
        ) from error
