"""The address of a bucket, as the setting `store` gives it: s3://BUCKET/PREFIX."""

import re
from dataclasses import dataclass

from dpdpca_protocol.errors import UsageError

_SCHEME = "s3://"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FOLDER = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, and the prefix of all names in it; the prefix may be empty."""

    name: str
    prefix: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.name}/{self.prefix}".rstrip("/")


def parse_bucket(address: str) -> Bucket:
    """Raises UsageError for anything but s3://BUCKET/PREFIX. The error never repeats the address, which may
    contain a password by mistake."""
    if not address.startswith(_SCHEME):
        raise _refused("the address of a bucket must begin with s3://")
    name, _, prefix = address.removeprefix(_SCHEME).partition("/")
    if "@" in address:
        raise _refused(
            "the address of a bucket must not contain credentials",
            "remove them from the address, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use the "
            "file ~/.aws/credentials",
        )
    if not _NAME.fullmatch(name):
        raise _refused(
            "the name of a bucket has 3 to 63 lower-case letters, digits, dots and hyphens, and no port"
        )
    folders = prefix.rstrip("/").split("/") if prefix.rstrip("/") else []
    if not all(_FOLDER.fullmatch(folder) for folder in folders):
        raise _refused(
            "a prefix in a bucket has letters, digits, dots, hyphens and underscores, separated by single "
            "slashes"
        )
    return Bucket(name, "/".join(folders))


def _refused(problem: str, next_step: str = "write the address like s3://bucket/prefix") -> UsageError:
    return UsageError("bad-settings", problem, next_step)
