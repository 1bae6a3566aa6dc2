"""Creates a proxy: its home folder, settings file, identity and database."""

import json
from pathlib import Path

from dpdpca_protocol.wire.fields import read_text
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.proxy import key_files, make_home, passphrase_of
from dpdpca_proxy.settings import PREFIX, SETTINGS_FILE, Settings, load_settings
from dpdpca_runtime.files import private_dir, write_private
from dpdpca_runtime.passphrase import new_passphrase


def initialise(
    home: Path | None,
    name: str | None,
    url: str | None,
    passphrase_file: Path | None = None,
    *,
    ask_passphrase: bool = False,
) -> tuple[Settings, IdentityKey, bool]:
    """Creates the parts of the proxy in `home` that are missing. An existing identity is kept.

    Args:
        home: its folder; None for the usual one.
        name: written to the settings file, if given.
        url: likewise, in its canonical form.
        passphrase_file: seals a new identity; the settings may name one too.
        ask_passphrase: asks for a passphrase if no file is named.

    Returns:
        Settings, identity, and whether the identity is new.

    Raises:
        UsageError: a setting is wrong, such as an address that no client could reach.
        PolicyError, MessageError: the name could mislead a reader.
    """
    if name is not None:
        read_text(name, "the name", 200)
    settings = load_settings(home, name=name, url=url, passphrase_file=passphrase_file)
    _ = settings.address  # the given address, or that of a listener on this machine
    files = key_files(settings)
    if files.exist:
        passphrase = passphrase_of(settings)
    else:
        passphrase = new_passphrase(settings.passphrase_file, f"{PREFIX}PASSPHRASE_FILE", ask=ask_passphrase)
    fresh = make_home(settings, passphrase)
    if name is not None or url is not None:
        _write_settings(settings, {"name": name, "url": settings.url if url is not None else None})
    return settings, files.load(passphrase).current, fresh


def _write_settings(settings: Settings, given: dict[str, str | None]) -> None:
    """Sets the given members of the settings file and keeps its other lines."""
    path = private_dir(settings.home) / SETTINGS_FILE
    lines = (
        path.read_text(encoding="utf-8").splitlines()
        if path.exists()
        else ["# Settings of this proxy. The documentation describes them."]
    )
    for member, value in given.items():
        if value is None:
            continue
        # A TOML basic string and a JSON string are the same for printable text.
        line = f"{member} = {json.dumps(value, ensure_ascii=False)}"
        at = next((i for i, old in enumerate(lines) if old.partition("=")[0].strip() == member), None)
        if at is None:
            lines.append(line)
        else:
            lines[at] = line
    write_private(path, ("\n".join(lines) + "\n").encode())
