"""Credentials for object storage from the file that the AWS tools use, `~/.aws/credentials`.

obstore itself knows the environment's AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, tokens of web identities,
and the roles of containers and machines.
"""

import os
from collections.abc import Callable, Mapping
from configparser import ConfigParser, Error
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dpdpca_protocol.errors import UsageError

if TYPE_CHECKING:
    from obstore.store import S3Credential

_VALID = timedelta(minutes=5)
"""After this time the file is read again, so that new credentials need no restart."""


def credentials_from_file(variables: Mapping[str, str] = os.environ) -> "Callable[[], S3Credential] | None":
    """What reads the credentials of the profile AWS_PROFILE (else `default`) in AWS_SHARED_CREDENTIALS_FILE
    (else `~/.aws/credentials`). None if the environment names other credentials, or if there is no such file.

    Raises:
        UsageError: `bad-settings`, the file has no such profile. The error repeats nothing from the file.
    """
    named = variables.get("AWS_SHARED_CREDENTIALS_FILE")
    path = Path(named or "~/.aws/credentials").expanduser()
    elsewhere = variables.get("AWS_ACCESS_KEY_ID") or variables.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    if elsewhere or (named is None and not path.is_file()):
        return None
    profile = variables.get("AWS_PROFILE", "default")

    def read() -> "S3Credential":
        return _read(path, profile)

    read()
    return read


def _read(path: Path, profile: str) -> "S3Credential":
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
        section = parser[profile]
        return {
            "access_key_id": section["aws_access_key_id"],
            "secret_access_key": section["aws_secret_access_key"],
            "token": section.get("aws_session_token"),
            "expires_at": datetime.now(UTC) + _VALID,
        }
    except (OSError, UnicodeDecodeError, Error, KeyError):
        # The parser's messages repeat lines of the file.
        raise UsageError(
            "bad-settings",
            f"{path} cannot be read, or has no access key with its secret for the profile {profile!r}",
            "correct the file, or set AWS_SHARED_CREDENTIALS_FILE and AWS_PROFILE",
        ) from None
