"""Settings of the proxy: from variables DPDPCA_PROXY_…, then proxy.toml in its home, then defaults.

No setting can weaken the protocol: key sizes, noise and randomness are not settings.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.messages.software import DIGEST_PATTERN
from dpdpca_protocol.wire.address import Address, is_loopback, parse_address
from dpdpca_proxy.store.bucket import parse_bucket
from dpdpca_runtime.asgi.addressed import KnownAddresses
from dpdpca_runtime.cluster.address import LEAST_SECONDS, Cluster, cluster_variables, parse_cluster
from dpdpca_runtime.home_folder import expanded
from dpdpca_runtime.settings import ServiceSettings, load_service_settings

SETTINGS_FILE = "proxy.toml"
PREFIX = "DPDPCA_PROXY_"


class Settings(ServiceSettings):
    """The operator's settings. `home` is the folder with identity, database and data."""

    model_config = SettingsConfigDict(env_prefix=PREFIX)
    role = "proxy"
    settings_file = SETTINGS_FILE

    name: str = Field(
        "dpdpca proxy", min_length=1, max_length=200, description="Name of the proxy, as others see it."
    )
    url: str | None = Field(
        None, description="Public address of the proxy; default: the address of the listener."
    )
    also_known_as: tuple[str, ...] = Field(
        (), description="Further hosts, as host[:port], under which clients reach the proxy."
    )
    port: int = Field(8440, ge=1, le=65535, description="Port of the public listener.")
    passphrase_file: Path | None = Field(
        None, description="File with the passphrase of the proxy's keys, if they are sealed."
    )
    operator_host: str = Field("127.0.0.1", description="Address of the operator's listener.")
    operator_port: int = Field(8441, ge=1, le=65535, description="Port of the operator's listener.")
    operator_beyond: bool = Field(
        False,
        description="Lets the operator's page, which has no login or TLS, listen beyond this machine.",
    )
    max_requests: int = Field(
        256, ge=1, description="Most requests at the same time; further ones get status 503."
    )
    party_requests: int = Field(
        100, ge=1, description="Most requests of one party in a second; further ones get status 429."
    )
    address_requests: int = Field(
        100, ge=1, description="Most requests from one address in a second; further ones get status 429."
    )
    max_streams: int = Field(256, ge=1, description="Most open event streams; further ones get status 503.")
    generation_file: Path | None = Field(
        None,
        description="File that records the newest entry of the proxy's log. Keep it outside the home and its "
        "backups.",
    )
    invitation_hours: int = Field(168, ge=1, description="Hours for which an invitation is valid.")
    store: str | None = Field(
        None,
        description="Bucket for chunks, products, draws and releases, as s3://BUCKET/PREFIX; default: the "
        "folder `studies` in the home.",
    )
    executor: str | None = Field(
        None,
        description="Scheduler of a Dask cluster for long work, as dask://HOST:PORT; default: worker "
        "processes of the proxy. `DPDPCA_EXECUTOR` says the same to all roles, and so do the variables of "
        "the next five settings without `PROXY_`.",
    )
    executor_tls_ca: Path | None = Field(
        None, description="PEM file with the authority of the Dask cluster, which should have no other use."
    )
    executor_tls_cert: Path | None = Field(
        None, description="PEM file with the proxy's certificate for the Dask cluster."
    )
    executor_tls_key: Path | None = Field(
        None, description="PEM file with the key of this certificate, without a passphrase."
    )
    executor_seal_key: Path | None = Field(
        None,
        description="File with the key under which calls pass the Dask scheduler, as 64 hex digits; all "
        "workers have the same key.",
    )
    executor_least_seconds: float = Field(
        LEAST_SECONDS,
        ge=0,
        description="Work that takes one core less than this many seconds is not given to the Dask cluster.",
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
        options, environment, *files = super().settings_customise_sources(
            settings_cls, init_settings, env_settings, dotenv_settings, file_secret_settings
        )
        of_all_roles = InitSettingsSource(settings_cls, cluster_variables(os.environ))
        return options, environment, of_all_roles, *files

    image_digest: str | None = Field(
        None,
        pattern=DIGEST_PATTERN,
        description="Digest of the container image that runs, `sha256:` and 64 hex digits. The card and the "
        "releases name it; default: the digest of the installed wheel.",
    )

    @property
    def witness_path(self) -> Path:
        """The file that holds the proxy's generation."""
        if self.generation_file is not None:
            return expanded(self.generation_file)
        # The folder needs a real name; ".." is not one.
        home = self.home.absolute() if self.home.name != ".." else self.home.resolve()
        return home.with_name(f"{home.name}-generation") / "generation.json"

    @field_validator("url")
    @classmethod
    def _canonical_url(cls, url: str | None) -> str | None:
        with _naming("url"):
            return None if url is None else str(parse_address(url))

    @field_validator("store")
    @classmethod
    def _canonical_store(cls, store: str | None) -> str | None:
        with _naming("store"):
            return None if store is None else str(parse_bucket(store))

    @model_validator(mode="after")
    def _check_executor(self) -> Self:
        with _naming("executor"):
            _ = self.cluster
        return self

    @property
    def cluster(self) -> Cluster | None:
        """The cluster for long work, or None. Raises UsageError: its settings do not fit together."""
        if self.executor is None:
            return None
        return parse_cluster(
            self.executor,
            ca=_at(self.executor_tls_ca),
            cert=_at(self.executor_tls_cert),
            key=_at(self.executor_tls_key),
            seal_key=_at(self.executor_seal_key),
            least_seconds=self.executor_least_seconds,
        )

    @model_validator(mode="after")
    def _check_other_addresses(self) -> Self:
        with _naming("also_known_as"):
            KnownAddresses(parse_address(self.url or f"{self.scheme}://localhost"), self.also_known_as)
        return self

    @property
    def address(self) -> Address:
        """The public address.

        Raises:
            UsageError: the proxy listens beyond this machine, but no public address is set.
        """
        if self.url is not None:
            return parse_address(self.url)
        if not is_loopback(self.host):
            raise UsageError(
                "bad-settings",
                "a proxy that listens beyond this machine needs its public address",
                f"set {PREFIX}URL, or url in {SETTINGS_FILE}",
            )
        host = self.host.strip("[]")
        return parse_address(f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}")

    @property
    def public_url(self) -> str:
        return str(self.address)

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert or self.behind_tls else "http"

    @cached_property
    def known_addresses(self) -> KnownAddresses:
        """All addresses to which a request may be sent."""
        return KnownAddresses(self.address, self.also_known_as)

    def check_listener(self) -> None:
        """Checks that nothing listens beyond this machine without TLS, and that the public address is not
        plain http if the listener uses TLS.

        Raises:
            UsageError: the error says which setting to change.
        """
        self.check_tls("proxy")
        if not is_loopback(self.operator_host) and not self.operator_beyond:
            raise UsageError(
                "tls-required",
                f"the operator's page would listen on {self.operator_host}, without TLS and without a login",
                f"keep the page on loopback, or set {PREFIX}OPERATOR_BEYOND=true if a firewall keeps"
                " strangers out",
            )
        if self.address.scheme != self.scheme and self.tls_cert is not None:
            raise UsageError(
                "bad-settings",
                f"the public address {self.address} uses plain http, but the listener uses TLS",
                f"set url to https://{self.address.authority}",
            )


def _at(path: Path | None) -> Path | None:
    return None if path is None else expanded(path).absolute()


@contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Adds to an error which setting is wrong."""
    try:
        yield
    except UsageError as error:
        where = f"the value comes from {PREFIX}{setting.upper()}, from {SETTINGS_FILE} or from an option"
        raise UsageError(error.slug, f"{setting}: {error.problem}", f"{error.next_step}; {where}") from error


def load_settings(home: Path | None = None, **options: object) -> Settings:
    """The settings of the proxy in `home`. Options that are not None override everything else.

    Raises:
        UsageError: the error names the wrong setting, never its value.
    """
    try:
        settings = load_service_settings(Settings, home, options)
    except SettingsError as error:
        raise UsageError(
            "bad-settings",
            f"{PREFIX}ALSO_KNOWN_AS is not a JSON list",
            'write the list like ["relay.example:8443"], in single quotes in a shell',
        ) from error
    _check_generation_file(settings)
    return settings


def _check_generation_file(settings: Settings) -> None:
    if settings.generation_file is None:
        return
    path = settings.witness_path
    if not path.is_absolute():
        raise UsageError(
            "bad-settings",
            f"generation_file is {path}, which is relative to the working folder",
            "give an absolute path",
        )
    if settings.home.resolve() in path.resolve().parents:
        raise UsageError(
            "bad-settings",
            f"generation_file is {path}, which is inside the home and so in its backups",
            "move the file to a folder outside the home, and set generation_file to its new path",
        )
