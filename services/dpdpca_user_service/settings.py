"""Settings of the data user's service: environment variables DPDPCA_USER_…, then defaults.

Nothing here can weaken the protocol: the shortest key is a constant of the core.
"""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.paillier.keys import LEAST_BITS, MOST_BITS
from dpdpca_protocol.wire.address import is_loopback
from dpdpca_runtime.home_folder import home_folder

PREFIX = "DPDPCA_USER_"


class Settings(BaseSettings):
    """What whoever runs the service can set."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True)

    home: Path
    host: str = "127.0.0.1"
    port: int = Field(8450, ge=1, le=65535)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_tls: bool = Field(False, description="A reverse proxy ends TLS in front of this listener.")
    passphrase_file: Path | None = Field(None, description="Seals the keys of studies at rest.")
    key_bits: Annotated[int, Field(ge=LEAST_BITS, le=MOST_BITS, multiple_of=8)] = 3072
    closes_after_days: int = Field(30, ge=1, description="Closing time of drafts that name none.")
    poll_seconds: float = Field(2.0, gt=0, description="How often an open study is looked at.")
    max_requests: int = Field(64, ge=1, description="Requests under way at once; more get 503.")
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")

    def check_listener(self) -> None:
        """That the bearer token never travels in clear beyond this machine.

        Raises:
            UsageError: says which setting to change.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("bad-settings", "a TLS certificate and its key go together", "give both or none")
        if not is_loopback(self.host) and self.tls_cert is None and not self.behind_tls:
            raise UsageError(
                "tls-required",
                f"the service would listen on {self.host} without TLS",
                f"give --tls-cert and --tls-key, or set {PREFIX}BEHIND_TLS=true where TLS ends before it",
            )


def load_settings(home: Path | None = None, **options: object) -> Settings:
    """Settings for the service in `home`; options that are not None win over everything.

    Raises:
        UsageError: names the setting that is wrong, never its value.
    """
    folder = home_folder("user", home, os.environ)
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return Settings(home=folder, **given)  # type: ignore[arg-type]  # pydantic judges the values
    except ValidationError as error:
        names = sorted({str(item["loc"][0]) for item in error.errors() if item["loc"]})
        raise UsageError(
            "bad-settings",
            f"not a valid setting: {', '.join(names)}",
            f"look at {PREFIX}… in the environment",
        ) from error
