"""Settings of a service: from options, then environment variables, then a file in its home, then defaults."""

import codecs
import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.wire.address import is_loopback
from dpdpca_runtime.home_folder import RoleName, home_folder

if TYPE_CHECKING:
    from dpdpca_runtime.database import Place  # commands that open no database do not load SQLAlchemy


class ServiceSettings(BaseSettings):
    """The settings of every service: a home, a listener with or without TLS, and a log.

    Attributes:
        role: the role of the home, for `home_folder`.
        settings_file: the name of the settings file in the home, or None.
    """

    model_config = SettingsConfigDict(env_ignore_empty=True, extra="forbid", frozen=True)
    role: ClassVar[RoleName]
    settings_file: ClassVar[str | None] = None

    home: Path = Field(description="Folder with the keys, the database and the data.")
    host: str = Field("127.0.0.1", description="Address on which the service listens.")
    port: int = Field(ge=1, le=65535, description="Port on which the service listens.")
    tls_cert: Path | None = Field(None, description="PEM file with the certificate; SIGHUP reloads it.")
    tls_key: Path | None = Field(
        None, description="PEM file with the key of the certificate, without a passphrase."
    )
    database: SecretStr | None = Field(
        None,
        description="Address of a PostgreSQL database, `postgresql://USER@HOST/NAME`, for the service to use "
        "instead of the SQLite file in its home.",
    )
    behind_tls: bool = Field(False, description="Whether a reverse proxy ends TLS in front of this listener.")
    log_level: str = Field(
        "INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="Level of the service's own log lines."
    )
    traces: str | None = Field(
        None,
        description="Address of an OpenTelemetry collector for traces, over OTLP/HTTP; default: no traces.",
    )

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

    @field_validator("database")
    @classmethod
    def _check_database(cls, address: SecretStr | None) -> SecretStr | None:
        if address is not None:
            from dpdpca_runtime.postgres import postgres_url  # only services with PostgreSQL need its driver

            try:
                postgres_url(address.get_secret_value())
            except UsageError as error:
                where = f"the value comes from {cls.prefix()}DATABASE"
                if cls.settings_file is not None:
                    where += f" or from {cls.settings_file}"
                raise UsageError(
                    error.slug, f"database: {error.problem}", f"{error.next_step}; {where}"
                ) from error
        return address

    def database_or(self, file: Path) -> "Place":
        """Where the service's database is: at the address in the settings, else in `file`."""
        if self.database is None:
            return file
        from dpdpca_runtime.postgres import postgres_url

        return postgres_url(self.database.get_secret_value())

    @classmethod
    def prefix(cls) -> str:
        """The prefix of its environment variables."""
        return str(cls.model_config["env_prefix"])

    def check_tls(self, who: str) -> None:
        """Checks that nothing listens beyond this machine without TLS. `who` names the listener.

        Raises:
            UsageError: the error says which setting to change.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError(
                "bad-settings",
                "a TLS certificate needs its key, and a key needs its certificate",
                "set both or none",
            )
        if not is_loopback(self.host) and self.tls_cert is None and not self.behind_tls:
            raise UsageError(
                "tls-required",
                f"the {who} would listen on {self.host} without TLS",
                f"give --tls-cert and --tls-key, or set {self.prefix()}BEHIND_TLS=true if a reverse proxy "
                "ends TLS in front of it",
            )


Settings = TypeVar("Settings", bound=ServiceSettings)


def load_service_settings(kind: type[Settings], home: Path | None, options: Mapping[str, object]) -> Settings:
    """The settings of the service in `home`. Options that are not None override everything else.

    Raises:
        UsageError: the error names the wrong setting, never its value.
    """
    folder = home_folder(kind.role, home, os.environ)
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return kind(home=folder, **given)  # type: ignore[arg-type] # pydantic checks the values
    except ValidationError as error:
        names = sorted({_named(kind, item) for item in error.errors() if item["loc"]})
        file = f" and {kind.settings_file} in the {kind.role}'s home" if kind.settings_file else ""
        raise UsageError(
            "bad-settings",
            f"these settings are not valid: {', '.join(names)}",
            f"check {kind.prefix()}… in the environment{file}",
        ) from error


def read_settings_file(path: Path) -> dict[str, Any]:
    """The content of a settings file; empty if there is none.

    Raises:
        UsageError: `bad-settings`, the file cannot be read, or is not TOML in UTF-8.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreadable(
            path, f"cannot be read ({error.strerror})", "check that it is a file, and check its mode"
        ) from error
    if content.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        kind = "UTF-8" if content.startswith(codecs.BOM_UTF8) else "UTF-16 or UTF-32"
        raise _unreadable(
            path, f"begins with the byte-order mark of {kind}", "save it as UTF-8 without a byte-order mark"
        )
    if b"\0" in content:
        raise _unreadable(path, "contains NUL bytes, so it is not text in UTF-8", "save it as UTF-8")
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, f"is not UTF-8 in line {line}", "save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(path, f"is not valid TOML: {_place(error)}", "correct the file") from error


def _unreadable(path: Path, problem: str, next_step: str) -> UsageError:
    return UsageError("bad-settings", f"{path} {problem}", next_step)


def _place(error: tomllib.TOMLDecodeError) -> str:
    """The place of the error in the parser's words, without the content there."""
    return str(error).rpartition("(")[2].removesuffix(")")


def _named(kind: type[ServiceSettings], item: Mapping[str, Any]) -> str:
    name, known = str(item["loc"][0]), kind.model_fields
    near = difflib.get_close_matches(name, known, 1) if name not in known else []
    return f"{name} (did you mean {near[0]}?)" if near else name
