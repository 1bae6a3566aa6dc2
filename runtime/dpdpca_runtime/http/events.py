"""Server-sent events of a proxy: `event`, `data` with a JSON object, and comments as heartbeat."""

import json
from collections.abc import Iterable, Iterator

from dpdpca_protocol.errors import LimitError, MessageError, printable
from dpdpca_protocol.wire.http import STATEMENT_LIMIT_BYTES
from dpdpca_runtime.http.answers import StudyUpdate


def parse_events(lines: Iterable[str]) -> Iterator[StudyUpdate]:
    """The events in a stream of lines. An incomplete event at the end is dropped, as the standard says.

    Raises:
        LimitError: an event is larger than any that a proxy sends.
        MessageError: the data of an event is not a JSON object.
    """
    kind, data = "message", ""
    for line in lines:
        if not line:
            if data:
                yield StudyUpdate(kind, _detail(data))
            kind, data = "message", ""
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            kind = printable(value, 60)
        elif field == "data":
            data = f"{data}\n{value}" if data else value
            if len(data) > STATEMENT_LIMIT_BYTES:
                raise LimitError("too-large", "an event is larger than any that a proxy sends")


def _detail(data: str) -> dict[str, object]:
    try:
        detail = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MessageError("malformed", "an event's data is not JSON") from error
    if not isinstance(detail, dict):
        raise MessageError("malformed", "an event's data is not a JSON object")
    return detail
