"""Passphrases of stored keys: from a file or from the terminal, never from the command line.

A passphrase consists of the bytes in the file. If the bytes begin with a byte-order mark, they are text in
that encoding, and the passphrase is the same text in UTF-8, as a terminal would give it.
"""

import getpass
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dpdpca_protocol.errors import AuthenticationError, PolicyError, UsageError
from dpdpca_runtime.home_folder import expanded
from dpdpca_runtime.identity_files import IdentityFiles
from dpdpca_runtime.text import marked_encoding


def read_passphrase(
    file: Path | None, variable: str, environment: Mapping[str, str] = os.environ
) -> bytes | None:
    """The passphrase in `file`, else in the file that the environment variable `variable` names, else None.

    Raises:
        UsageError: the file cannot be read.
        PolicyError: it is empty.
    """
    content = _content(file, variable, environment)
    return None if content is None else _as_typed(content)


def _content(file: Path | None, variable: str, environment: Mapping[str, str]) -> bytes | None:
    named = file or (Path(environment[variable]) if environment.get(variable) else None)
    if named is None:
        return None
    try:
        content = expanded(named).read_bytes()
    except OSError as error:
        raise UsageError(
            "no-passphrase-file", f"the passphrase file {named} cannot be read", "check its name and mode"
        ) from error
    if not _as_typed(content):
        raise PolicyError(
            "empty-passphrase", f"the passphrase file {named} is empty", "write one line into it"
        )
    return content


def _as_typed(content: bytes) -> bytes:
    codec = marked_encoding(content)
    if codec is not None:
        with suppress(UnicodeDecodeError):  # not text, but random bytes that begin like a mark
            content = content.decode(codec).encode()
    return content.strip()


def new_passphrase(file: Path | None, variable: str, *, ask: bool) -> bytes | None:
    """The passphrase for new keys, or None for keys without a passphrase.

    Raises:
        PolicyError: the two entries differ, or are empty.
    """
    passphrase = read_passphrase(file, variable)
    if passphrase is not None or not ask:
        return passphrase
    first, second = _ask("Passphrase: "), _ask("Again: ")
    if first != second or not first:
        raise PolicyError("empty-passphrase", "the two entries are different or empty", "try again")
    return first


def unlock(files: IdentityFiles, file: Path | None, variable: str) -> bytes | None:
    """The passphrase of existing keys.

    A person is asked for it if the keys need one and no file is named. Earlier versions of dpdpca did not
    remove a byte-order mark from the passphrase in a file. Keys that were sealed with such a passphrase still
    open.

    Raises:
        AuthenticationError: the keys need a passphrase, and there is no terminal.
    """
    content = _content(file, variable, os.environ)
    sealed = files.exist and files.need_passphrase
    if content is not None:
        typed, as_it_is = _as_typed(content), content.strip()
        is_older = sealed and typed != as_it_is and not files.open_with(typed) and files.open_with(as_it_is)
        return as_it_is if is_older else typed
    if not sealed:
        return None
    if not sys.stdin.isatty():
        raise AuthenticationError(
            "wrong-passphrase",
            "the key is encrypted, and there is no terminal to ask for the passphrase",
            f"name a file with the passphrase, with --passphrase-file or {variable}",
        )
    return _ask("Passphrase: ")


def _ask(prompt: str) -> bytes:
    # Bytes from a terminal that are not UTF-8 are kept unchanged.
    return getpass.getpass(prompt, stream=sys.stderr).encode(errors="surrogateescape")
