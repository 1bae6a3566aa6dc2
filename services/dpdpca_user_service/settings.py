"""Settings of the data user's service: from environment variables DPDPCA_USER_…, then defaults.

No setting can weaken the protocol: the shortest key is a constant of the core.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from dpdpca_protocol.paillier.keys import LEAST_BITS, MOST_BITS
from dpdpca_runtime.settings import ServiceSettings, load_service_settings

PREFIX = "DPDPCA_USER_"


class Settings(ServiceSettings):
    """The settings for the person who runs the service."""

    model_config = SettingsConfigDict(env_prefix=PREFIX)
    role = "user"

    port: int = Field(8450, ge=1, le=65535, description="Port on which the service listens.")
    passphrase_file: Path | None = Field(
        None, description="File with the passphrase that seals the keys of studies on the disk."
    )
    key_bits: Annotated[
        int,
        Field(ge=LEAST_BITS, le=MOST_BITS, multiple_of=8, description="Length of the keys of new studies."),
    ] = 3072
    closes_after_days: int = Field(
        30, ge=1, description="Days after which a study closes if its draft names no closing time."
    )
    poll_seconds: float = Field(2.0, gt=0, description="Seconds between two checks of an open study.")
    max_requests: int = Field(
        64, ge=1, description="Most requests at the same time; further ones get status 503."
    )

    def check_listener(self) -> None:
        """Checks that the bearer token is never sent in clear beyond this machine.

        Raises:
            UsageError: the error says which setting to change.
        """
        self.check_tls("service")


def load_settings(home: Path | None = None, **options: object) -> Settings:
    """The settings of the service in `home`. Options that are not None override everything else.

    Raises:
        UsageError: the error names the wrong setting, never its value.
    """
    return load_service_settings(Settings, home, options)
