"""The address of object storage (S3), as the environment gives it to all S3 programs."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.wire.address import is_loopback

_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def given_endpoint(variables: Mapping[str, str]) -> str | None:
    """The endpoint, or None for Amazon's.

    Raises:
        UsageError: `tls-required`, it has plain http, is beyond this machine, and AWS_ALLOW_HTTP is not set.
    """
    given = next((name for name in _VARIABLES if variables.get(name)), None)
    if given is None:
        return None
    if not uses_http(variables[given]):
        return variables[given]
    is_here = is_loopback(urlsplit(variables[given]).hostname or "")
    if is_here or variables.get("AWS_ALLOW_HTTP", "").lower() == "true":
        return variables[given]
    raise UsageError(
        "tls-required",
        f"{given} is an address of object storage beyond this machine, without TLS",
        "use https, or set AWS_ALLOW_HTTP=true if nobody else can read and write on the network in between",
    )


def uses_http(endpoint: str) -> bool:
    """Whether the endpoint has no TLS."""
    return urlsplit(endpoint).scheme == "http"
