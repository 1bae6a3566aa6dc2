"""Passphrases of keys at rest: from a file, or asked for at a terminal; never on a command line."""

import getpass
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dpdpca_disk.home import expanded
from dpdpca_disk.identity import IdentityFiles
from dpdpca_protocol.errors import AuthenticationError, PolicyError, UsageError


def read_passphrase(
    file: Path | None, variable: str, environment: Mapping[str, str] = os.environ
) -> bytes | None:
    """The line in `file`, else in the file that the environment names in `variable`, else None.

    Raises:
        UsageError: the file cannot be read.
        PolicyError: it is empty.
    """
    named = file or (Path(environment[variable]) if environment.get(variable) else None)
    if named is None:
        return None
    try:
        passphrase = expanded(named).read_bytes().strip()
    except OSError as error:
        raise UsageError(
            "no-passphrase-file", f"the passphrase file {named} cannot be read", "check its name and mode"
        ) from error
    if not passphrase:
        raise PolicyError(
            "empty-passphrase", f"the passphrase file {named} is empty", "write one line into it"
        )
    return passphrase


def new_passphrase(file: Path | None, variable: str, *, ask: bool) -> bytes | None:
    """The passphrase for keys that are to be made, or None for none.

    Raises:
        PolicyError: the two entries differ, or are empty.
    """
    passphrase = read_passphrase(file, variable)
    if passphrase is not None or not ask:
        return passphrase
    first, second = _ask("Passphrase: "), _ask("Again: ")
    if first != second or not first:
        raise PolicyError("empty-passphrase", "the two entries differ, or are empty", "try again")
    return first


def unlock(files: IdentityFiles, file: Path | None, variable: str) -> bytes | None:
    """The passphrase of keys that are there; asked for where they need one and no file is named.

    Raises:
        AuthenticationError: they need one, and nobody is at a terminal.
    """
    passphrase = read_passphrase(file, variable)
    if passphrase is not None or not files.exist or not files.need_passphrase:
        return passphrase
    if not sys.stdin.isatty():
        raise AuthenticationError(
            "wrong-passphrase",
            "the key is encrypted and nobody can be asked",
            f"name a file with its passphrase: --passphrase-file or {variable}",
        )
    return _ask("Passphrase: ")


def _ask(prompt: str) -> bytes:
    return getpass.getpass(prompt, stream=sys.stderr).encode()
