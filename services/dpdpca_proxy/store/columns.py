"""Column types for identifiers and times. These values are stored as the text that people and messages
use."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.types import TypeDecorator

from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_runtime.database import as_written
from dpdpca_runtime.engine import words


class _DigestColumn(TypeDecorator[Any]):
    """64 lower-case hex digits in the database, a `Digest` (or a subclass) in Python."""

    impl = words(64)
    cache_ok = True
    kind: type[Digest] = Digest

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else self.kind(value).hex()

    def process_result_value(self, value: Any, dialect: Dialect) -> Digest | None:
        with as_written():
            return None if value is None else self.kind.parse(value)


class DigestColumn(_DigestColumn):
    cache_ok = True


class StudyColumn(_DigestColumn):
    cache_ok = True
    kind = StudyId


class PartyColumn(_DigestColumn):
    cache_ok = True
    kind = PartyId


class TimeColumn(TypeDecorator[datetime]):
    """RFC 3339 UTC in whole seconds. This text form sorts by time and is the same as in messages."""

    impl = words(20)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        return None if value is None else time_text(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        with as_written():
            return datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
