"""Addresses of studies, and the address that a proxy announces."""

import re
from dataclasses import dataclass

from dpdpca_protocol.errors import UsageError, printable
from dpdpca_protocol.wire.address import normal_address, refuse_path, split_address
from dpdpca_protocol.wire.identifiers import StudyId

_STUDY_PATH = re.compile(r"(?P<prefix>.*?)(?:/v1/studies)?/(?P<study>[0-9a-f]{64})/?")


@dataclass(frozen=True, slots=True)
class StudyAddress:
    """A study on a proxy.

    Attributes:
        proxy: the proxy's address in canonical form.
        study: the study's id.
    """

    proxy: str
    study: StudyId

    def __str__(self) -> str:
        return f"{self.proxy}/{self.study.hex()}"


def parse_study_address(text: str) -> StudyAddress:
    """Parses `text` as PROXY/STUDY: https://HOST:PORT/ and 64 hex digits, perhaps with /v1/studies between.

    Raises:
        UsageError: the text has any other form.
    """
    address, path = split_address(text)
    match = _STUDY_PATH.fullmatch(path)
    if match is None:
        raise UsageError(
            "bad-address",
            "this value is not the address of a study",
            "give https://HOST:PORT/STUDY, where STUDY is 64 hex digits",
        )
    if match["prefix"]:
        refuse_path(match["prefix"])
    return StudyAddress(str(address), StudyId.parse(match["study"]))


def address_note(announced: str, used: str) -> str | None:
    """A note for people if a proxy announces another address than the one that was used to reach it."""
    if normal_address(announced) == used:
        return None
    announced = printable(announced, 200)
    return f"this proxy announces the address {announced}, but it also answers at {used}, which is used here"
