"""Settings of the data user's service: environment variables DPDPCA_USER_…, then defaults.

Nothing here can weaken the protocol: the shortest key is a constant of the core.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from dpdpca_protocol.paillier.keys import LEAST_BITS, MOST_BITS
from dpdpca_runtime.settings import ServiceSettings, load_service_settings

PREFIX = "DPDPCA_USER_"


class Settings(ServiceSettings):
    """What whoever runs the service can set."""

    model_config = SettingsConfigDict(env_prefix=PREFIX)
    role = "user"

    port: int = Field(8450, ge=1, le=65535, description="Port on which it listens.")
    passphrase_file: Path | None = Field(None, description="Seals the keys of studies at rest.")
    key_bits: Annotated[
        int,
        Field(ge=LEAST_BITS, le=MOST_BITS, multiple_of=8, description="Length of the keys of new studies."),
    ] = 3072
    closes_after_days: int = Field(30, ge=1, description="Closing time of drafts that name none.")
    poll_seconds: float = Field(2.0, gt=0, description="How often an open study is looked at.")
    max_requests: int = Field(64, ge=1, description="Requests under way at once; more get 503.")

    def check_listener(self) -> None:
        """That the bearer token never travels in clear beyond this machine.

        Raises:
            UsageError: says which setting to change.
        """
        self.check_tls("service")


def load_settings(home: Path | None = None, **options: object) -> Settings:
    """Settings for the service in `home`; options that are not None win over everything.

    Raises:
        UsageError: names the setting that is wrong, never its value.
    """
    return load_service_settings(Settings, home, options)
