"""Where a role keeps its state: an option, else DPDPCA_<ROLE>_HOME, else the configuration folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import platformdirs

from dpdpca_protocol.errors import UsageError

RoleName = Literal["owner", "proxy", "user"]


def home_folder(role: RoleName, option: Path | None, environment: Mapping[str, str]) -> Path:
    """The folder of `role`. The folder is not created here.

    Args:
        role: the role.
        option: the value from the command line. The option overrides everything else.
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
    """The folder with copies of the heads of owners' ledgers, outside the owners' own folders.

    These copies show when an owner's folder was restored from an older backup.

    Args:
        environment: usually `os.environ`. DPDPCA_OWNER_WITNESS can name another place, such as another disk.
    """
    named = environment.get("DPDPCA_OWNER_WITNESS")
    if named:
        return expanded(Path(named))
    return platformdirs.user_state_path("dpdpca", appauthor=False) / "owner-ledgers"


def expanded(path: Path) -> Path:
    """`path` with a leading ~ or ~USER expanded.

    Raises:
        UsageError: `bad-path`, there is no such user.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UsageError(
            "bad-path",
            f"{path} begins with ~, but there is no such user",
            "if the folder's name really begins with ~, give its absolute path",
        ) from error
