"""Settings of the proxy: environment variables DPDPCA_PROXY_…, then proxy.toml in its home, then defaults.

Nothing here can weaken the protocol: key sizes, noise and randomness are no settings.
"""

import ipaddress
import os
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from dpdpca_asgi.identity import normal_authority
from dpdpca_disk.home import home_folder
from dpdpca_protocol.errors import UsageError

SETTINGS_FILE = "proxy.toml"
PREFIX = "DPDPCA_PROXY_"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Settings(BaseSettings):
    """What an operator can set. `home` is where identity, database and data live."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    home: Path
    name: str = Field("dpdpca proxy", min_length=1, max_length=200, description="How it introduces itself.")
    url: str | None = Field(None, description="The public address; by default that of the listener.")
    also_known_as: tuple[str, ...] = Field((), description="More host[:port] under which clients reach it.")
    host: str = "127.0.0.1"
    port: int = Field(8440, ge=1, le=65535)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    passphrase_file: Path | None = Field(None, description="Opens the proxy's keys, where they are sealed.")
    behind_tls: bool = Field(False, description="A reverse proxy ends TLS in front of this listener.")
    operator_host: str = "127.0.0.1"
    operator_port: int = Field(8441, ge=1, le=65535)
    operator_beyond: bool = Field(
        False, description="The operator's page, without login or TLS, may listen beyond this machine."
    )
    max_requests: int = Field(256, ge=1, description="Requests under way at once; more get 503.")
    party_requests: int = Field(100, ge=1, description="Of one party in a second; more get 429.")
    address_requests: int = Field(100, ge=1, description="From one address in a second; more get 429.")
    max_streams: int = Field(256, ge=1, description="Open event streams; more get 503.")
    generation_file: Path | None = Field(
        None, description="How far the proxy has come; beside the home folder, and in no backup of it."
    )
    invitation_hours: int = Field(168, ge=1, description="How long an invitation can be used.")
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        home = Path(str(init_settings()["home"]))
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, home / SETTINGS_FILE)

    @property
    def witness_path(self) -> Path:
        """Where the proxy's generation is kept."""
        home = self.home.absolute()
        return self.generation_file or home.with_name(f"{home.name}-generation") / "generation.json"

    @property
    def public_url(self) -> str:
        return self.url or f"{self.scheme}://{self._bracketed_host}:{self.port}"

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert or self.behind_tls else "http"

    @property
    def _bracketed_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def authorities(self) -> frozenset[str]:
        """Every host[:port] that a signed request may be addressed to."""
        parts = urlsplit(self.public_url)
        known = {normal_authority(parts.scheme, parts.netloc)}
        known |= {normal_authority(parts.scheme, other) for other in self.also_known_as}
        if is_loopback(parts.hostname or ""):
            port = f":{parts.port}" if parts.port else ""
            known |= {normal_authority(parts.scheme, name + port) for name in _LOOPBACK_NAMES}
        return frozenset(known)

    def check_listener(self) -> None:
        """That nothing listens beyond this machine without TLS, and that the public address is known.

        Raises:
            UsageError: says which setting to change.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("bad-settings", "a TLS certificate and its key go together", "give both or none")
        if not is_loopback(self.host):
            if self.tls_cert is None and not self.behind_tls:
                raise UsageError(
                    "tls-required",
                    f"the proxy would listen on {self.host} without TLS",
                    f"give --tls-cert and --tls-key, or set {PREFIX}BEHIND_TLS=true where TLS ends before it",
                )
            if self.url is None:
                raise UsageError(
                    "bad-settings",
                    "a proxy that listens beyond this machine needs its public address",
                    f"set {PREFIX}URL, or url in {SETTINGS_FILE}",
                )
        if not is_loopback(self.operator_host) and not self.operator_beyond:
            raise UsageError(
                "tls-required",
                f"the operator's page would listen on {self.operator_host}, without TLS and without a login",
                f"keep it on loopback, or set {PREFIX}OPERATOR_BEYOND=true where strangers are kept out",
            )
        parts = urlsplit(self.public_url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.path.strip("/")
            or parts.query
        ):
            raise UsageError("bad-settings", "the public address must be http(s)://host[:port]", "set url")


def load_settings(home: Path | None = None, **options: object) -> Settings:
    """Settings for the proxy in `home`; options that are not None win over everything.

    Raises:
        UsageError: names the setting that is wrong, never its value.
    """
    folder = home_folder("proxy", home, os.environ)
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return Settings(home=folder, **given)  # type: ignore[arg-type] # pydantic judges the values
    except ValidationError as error:
        names = sorted({str(item["loc"][0]) for item in error.errors() if item["loc"]})
        raise UsageError(
            "bad-settings",
            f"not a valid setting: {', '.join(names)}",
            f"look at {PREFIX}… in the environment and at {SETTINGS_FILE} in the proxy's home",
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError("bad-settings", f"{SETTINGS_FILE} is not valid TOML", "correct it") from error


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
