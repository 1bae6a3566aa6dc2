"""Parquet files in object storage (S3). Arrow reads them, with the environment's endpoint and credentials."""

import os
import re
from functools import lru_cache

from pyarrow.fs import FileSelector, FileSystem, FileType, S3FileSystem

from dpdpca_owner.records.arrow import ParquetSource
from dpdpca_owner.records.parts import is_part
from dpdpca_owner.records.source import unreadable_object
from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_runtime.object_endpoint import given_endpoint

_SCHEME = "s3://"
_ADDRESS = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#*@\\]*)?")
_SECONDS = 60.0
"""For one request."""


def check_objects(address: str) -> None:
    """Raises UsageError `bad-option` for anything but s3://BUCKET/PREFIX."""
    if _ADDRESS.fullmatch(address) is None:
        raise UsageError(
            "bad-option",
            "the address of records in object storage must be s3://BUCKET/PREFIX, without credentials",
            "write it like s3://bucket/patients, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )


def objects_at(address: str) -> list[str]:
    """The addresses of the Parquet files directly below s3://BUCKET/PREFIX, in the order of their names. If
    the address is that of an object, this is the only one.

    Raises:
        UsageError: see `check_objects` and `given_endpoint`.
        InputError: `no-such-file`.
        UnavailableError: `storage-failing`.
    """
    check_objects(address)
    place = address.removeprefix(_SCHEME).rstrip("/")
    try:
        if _storage().get_file_info(place).type is FileType.File:
            return [address]
        found = _storage().get_file_info(FileSelector(place, allow_not_found=True))
    except OSError as error:
        raise unreadable_object(address) from error
    names = sorted(each.path for each in found if each.type is FileType.File and is_part(each.base_name))
    if not names:
        raise InputError(
            "no-such-file", f"there is no file NAME.parquet below {address}", "check bucket and prefix"
        )
    return [f"{_SCHEME}{name}" for name in names]


def open_object(address: str) -> ParquetSource:
    """The Parquet file at s3://BUCKET/NAME. Raises like `objects_at`, and InputError if it is damaged."""
    return ParquetSource(address, address.removeprefix(_SCHEME), _storage())


@lru_cache(maxsize=1)
def _storage() -> FileSystem:
    return S3FileSystem(
        endpoint_override=given_endpoint(os.environ),
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        request_timeout=_SECONDS,
        connect_timeout=_SECONDS,
    )
