"""Computes scores of rows in bounded memory, whatever the decompressed size of a body.

No value is decoded before the size is known to be within the limits, and then only one block at a time. Two
transforms run at once. Each transform holds its body, one decompressed record batch, one block, and the
scores: at most 250 MiB. When all scores are computed, the answer is written while the client reads it.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpdpca_protocol.errors import InputError, LimitError
from dpdpca_protocol.result.components import Floats
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_runtime.asgi.limits import CancellationToken
from dpdpca_user.results.model import Model
from dpdpca_user.results.tables import rows_of_lists
from dpdpca_user_service.transform.arrow_rows import arrow_blocks
from dpdpca_user_service.transform.json_rows import json_blocks

ARROW_MEDIA_TYPE = "application/vnd.apache.arrow.stream"

BODY_LIMIT_BYTES = 64 * 1024 * 1024
"""The largest body, both as sent and after decompression."""
MOST_VALUES = 8 * 1024 * 1024
"""The most rows × encoded features of a body. There are never more scores than this number."""
AT_ONCE = 2
WAIT_SECONDS = 5.0
"""How long a transform waits for a slot before it gets status 503."""
MOST_SECONDS = 600.0

LIMITS = (
    f"A body may have at most {BODY_LIMIT_BYTES >> 20} MiB, for an Arrow stream also after decompression,"
    f" and at most {MOST_VALUES:,} values (rows × encoded features). Larger bodies get status 413."
    f" {AT_ONCE} transforms run at a time. A further transform waits up to {WAIT_SECONDS:g} s, then gets"
    " status 503."
)

_BLOCK_VALUES = 1024 * 1024
_BLOCK_ROWS = 8192
_ANSWER_VALUES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Scores:
    """(n, k) scores of n rows for the first k components of a study."""

    study: StudyId
    values: Floats

    def encode(self, media_type: str) -> Iterator[bytes]:
        """The answer in pieces, in the format of the rows."""
        return self._json() if media_type == JSON_MEDIA_TYPE else self._arrow()

    def _json(self) -> Iterator[bytes]:
        yield f'{{"study": "{self.study.hex()}", "scores": ['.encode()
        for index, part in enumerate(self._parts()):
            yield b", " * (index > 0) + json.dumps(part.tolist(), allow_nan=False)[1:-1].encode()
        yield b"]}"

    def _arrow(self) -> Iterator[bytes]:
        """An Arrow stream with columns component_1, component_2, …"""
        names = [f"component_{index + 1}" for index in range(self.values.shape[1])]
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, pa.schema([(name, pa.float64()) for name in names])) as writer:
            for part in self._parts():
                writer.write_batch(pa.record_batch([pa.array(column) for column in part.T], names))
                yield sink.getvalue()
                sink.seek(0)
                sink.truncate()
        yield sink.getvalue()

    def _parts(self) -> Iterator[Floats]:
        rows = max(1, _ANSWER_VALUES // self.values.shape[1])
        return (self.values[start : start + rows] for start in range(0, len(self.values), rows))


def check_components(model: Model, k: int | None) -> None:
    """Raises InputError if a model has fewer than `k` components."""
    if k is not None and k > model.components.component_count:
        raise InputError("bad-argument", f"the model has only {model.components.component_count} components")


def transform(
    model: Model, media_type: str, untrusted: bytes | bytearray, k: int | None, stop: CancellationToken
) -> Scores:
    """The scores of all rows in a body.

    Args:
        model: the model with the components.
        media_type: JSON or Arrow.
        untrusted: at most BODY_LIMIT_BYTES.
        k: how many components, or None for all.
        stop: checked before each block.

    Raises:
        MessageError, InputError: the body or one of its rows is invalid, and there is no partial answer.
        LimitError: `too-large`, see LIMITS.
    """
    scores = bytearray()  # this array grows without being copied
    for block in _blocks(model, media_type, untrusted):
        stop.check()
        part = model.components.scores(block)[:, :k]
        if not np.isfinite(part).all():
            raise InputError("malformed-rows", "the values of a row are too large to compute scores")
        scores += part.tobytes()
    values = np.frombuffer(scores, np.float64)
    return Scores(model.study, values.reshape(-1, k or model.components.component_count))


def _blocks(model: Model, media_type: str, untrusted: bytes | bytearray) -> Iterator[Floats]:
    manifest = model.manifest
    d = len(manifest.encoded_names)
    most_rows, block_rows = MOST_VALUES // d, max(1, min(_BLOCK_ROWS, _BLOCK_VALUES // d))
    if media_type != JSON_MEDIA_TYPE:
        yield from arrow_blocks(untrusted, manifest, most_rows, BODY_LIMIT_BYTES, block_rows)
        return
    first = 0
    for rows in json_blocks(untrusted, block_rows):
        block = rows_of_lists(rows, manifest, first)
        del rows  # before the next block is made
        first += len(block)
        if first > most_rows:
            raise LimitError(
                "too-large",
                f"there are more than {most_rows} rows with {d} encoded features",
                "send fewer rows at once",
            )
        yield block
