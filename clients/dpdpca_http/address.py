"""Addresses of proxies and of studies on them, as people type them."""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.identifiers import StudyId

_STUDY_PATH = re.compile(r"(?P<base>.*?)(?:/v1/studies)?/(?P<study>[0-9a-f]{64})/?")


@dataclass(frozen=True, slots=True)
class StudyAddress:
    """A study on a proxy.

    Attributes:
        proxy: the proxy's address without a trailing slash.
        study: the study's id.
    """

    proxy: str
    study: StudyId

    def __str__(self) -> str:
        return f"{self.proxy}/{self.study.hex()}"


def parse_proxy_url(text: str) -> str:
    """`text` as the address of a proxy, without a trailing slash.

    Raises:
        UsageError: not an absolute https address; plain http is for this machine only.
    """
    parts = _split(text)
    if parts.path.strip("/"):
        raise UsageError("bad-address", "a proxy's address has no path", "give https://HOST:PORT")
    return f"{parts.scheme}://{parts.netloc}"


def parse_study_address(text: str) -> StudyAddress:
    """`text` as PROXY/STUDY: https://HOST:PORT/ and 64 hex digits, with or without /v1/studies between.

    Raises:
        UsageError: anything else.
    """
    parts = _split(text)
    match = _STUDY_PATH.fullmatch(parts.path)
    if match is None or match["base"]:
        raise UsageError(
            "bad-address",
            "this is not the address of a study",
            "give https://HOST:PORT/STUDY, where STUDY is 64 hex digits",
        )
    return StudyAddress(f"{parts.scheme}://{parts.netloc}", StudyId.parse(match["study"]))


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine without asking a resolver."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text.strip())
        _ = parts.port
    except ValueError as error:
        raise UsageError("bad-address", "this is not an address", "give https://HOST:PORT") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            "bad-address", "an address begins with https:// and a host", "give https://HOST:PORT"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError("bad-address", "an address holds no user name, query or fragment")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise UsageError(
            "tls-required",
            "plain http is allowed to this machine only",
            "give the proxy's https:// address; name its CA with --ca-file if it is your own",
        )
    return parts
