"""Settings of a service: options, then environment variables, then a file in its home, then defaults."""

import codecs
import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.wire.address import is_loopback
from dpdpca_runtime.home_folder import RoleName, home_folder


class ServiceSettings(BaseSettings):
    """What every service has: a home, a listener with TLS or without, and a log.

    Attributes:
        role: whose home it is, for `home_folder`.
        settings_file: the name of the file in the home; None where there is none.
    """

    model_config = SettingsConfigDict(env_ignore_empty=True, extra="forbid", frozen=True)
    role: ClassVar[RoleName]
    settings_file: ClassVar[str | None] = None

    home: Path = Field(description="Folder with its keys, its database and its data.")
    host: str = Field("127.0.0.1", description="Address on which it listens.")
    port: int = Field(ge=1, le=65535, description="Port on which it listens.")
    tls_cert: Path | None = Field(None, description="PEM file with its certificate; read again at SIGHUP.")
    tls_key: Path | None = Field(
        None, description="PEM file with the certificate's key, without a passphrase."
    )
    behind_tls: bool = Field(False, description="A reverse proxy ends TLS in front of this listener.")
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="Of its own lines.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        if cls.settings_file is None:
            return init_settings, env_settings
        path = Path(str(init_settings()["home"])) / cls.settings_file
        return init_settings, env_settings, InitSettingsSource(settings_cls, read_settings_file(path))

    @classmethod
    def prefix(cls) -> str:
        """What the names of its environment variables begin with."""
        return str(cls.model_config["env_prefix"])

    def check_tls(self, who: str) -> None:
        """That nothing listens beyond this machine without TLS; `who` says what would listen.

        Raises:
            UsageError: says which setting to change.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("bad-settings", "a TLS certificate and its key go together", "give both or none")
        if not is_loopback(self.host) and self.tls_cert is None and not self.behind_tls:
            raise UsageError(
                "tls-required",
                f"the {who} would listen on {self.host} without TLS",
                "give --tls-cert and --tls-key,"
                f" or set {self.prefix()}BEHIND_TLS=true where TLS ends before it",
            )


Settings = TypeVar("Settings", bound=ServiceSettings)


def load_service_settings(kind: type[Settings], home: Path | None, options: Mapping[str, object]) -> Settings:
    """The settings of the service in `home`; options that are not None win over everything.

    Raises:
        UsageError: names the setting that is wrong, never its value.
    """
    folder = home_folder(kind.role, home, os.environ)
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return kind(home=folder, **given)  # type: ignore[arg-type]  # pydantic judges the values
    except ValidationError as error:
        names = sorted({_named(kind, item) for item in error.errors() if item["loc"]})
        file = f" and at {kind.settings_file} in the {kind.role}'s home" if kind.settings_file else ""
        raise UsageError(
            "bad-settings",
            f"not a valid setting: {', '.join(names)}",
            f"look at {kind.prefix()}… in the environment{file}",
        ) from error


def read_settings_file(path: Path) -> dict[str, Any]:
    """What a settings file says; nothing where there is none.

    Raises:
        UsageError: `bad-settings`, it cannot be read, or is not TOML in UTF-8.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreadable(
            path, f"cannot be read ({error.strerror})", "check what it is, and its mode"
        ) from error
    if content.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        kind = "UTF-8" if content.startswith(codecs.BOM_UTF8) else "UTF-16 or UTF-32"
        raise _unreadable(path, f"begins with the byte-order mark of {kind}", "store it as UTF-8 without one")
    if b"\0" in content:
        raise _unreadable(path, "holds NUL bytes, so it is no text in UTF-8", "store it as UTF-8")
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, f"is not UTF-8 in line {line}", "store it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(path, f"is not TOML: {_place(error)}", "correct it") from error


def _unreadable(path: Path, problem: str, next_step: str) -> UsageError:
    return UsageError("bad-settings", f"{path} {problem}", next_step)


def _place(error: tomllib.TOMLDecodeError) -> str:
    """Where, in the parser's words, and never what stands there."""
    return str(error).rpartition("(")[2].removesuffix(")")


def _named(kind: type[ServiceSettings], item: Mapping[str, Any]) -> str:
    name, known = str(item["loc"][0]), kind.model_fields
    near = difflib.get_close_matches(name, known, 1) if name not in known else []
    return f"{name} (is it {near[0]}?)" if near else name
