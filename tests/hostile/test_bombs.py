"""Small bodies that unpack into gigabytes: refused or served in bounded memory (P37)."""

import json
import random
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from arrow_bombs import MB, arrow_bombs, stream_of
from federation.processes import wait_for
from model_service import ARROW, JSON, LEVELS, NUMBERS, ModelService, made_model, problem_of, served_models
from promises import Promise

from dpdpca_user_service.transform.scores import AT_ONCE, MOST_VALUES

pytestmark = pytest.mark.system  # unpacks gigabytes

MOST_GROWTH = 512 * MB
LEVELLED = made_model(LEVELS)
SINGLE = made_model(NUMBERS[:1])
WIDE = made_model([*NUMBERS, {"name": "code", "levels": [f"{index}" for index in range(1000)]}])
PARQUET = "application/vnd.apache.parquet"
NPZ = "application/octet-stream"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelService]:
    with served_models(tmp_path_factory.mktemp("models"), [LEVELLED, SINGLE, WIDE]) as service:
        assert service.transform(LEVELLED, rows_of(1, 6), JSON).status_code == 200
        assert service.transform(LEVELLED, stream_of([table_of(10)]), ARROW).status_code == 200
        yield service


def rows_of(rows: int, columns: int) -> bytes:
    return json.dumps({"rows": [[0.5] * columns] * rows}).encode()


def table_of(rows: int) -> pa.RecordBatch:
    """Rows of the levelled model."""
    columns = {f"f{index}": numbers(rows, index) for index in range(3)}
    ward = pa.array(np.array(["a", "b", "ä"], object)[(numbers(rows, 3) * 3).astype(int)])
    return pa.record_batch(columns | {"ward": ward.dictionary_encode()})


def numbers(count: int, seed: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """In [0, 1); they can hardly be compressed."""
    return np.frombuffer(random.Random(seed).randbytes(8 * count), np.uint64) / 2.0**64


def parquet_bomb() -> bytes:
    import pyarrow.parquet

    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"f0": np.zeros(5_000_000)}), sink, compression="zstd")
    return bytes(sink.getvalue())


def json_bombs() -> dict[str, bytes]:
    return {
        "20,000,000 lists": b'{"rows":[' + b"[]," * 20_000_000 + b"[]]}",
        "8,000,000 objects": b'{"rows":[' + b'{"a":0},' * 8_000_000 + b"{}]}",
        "objects beside features": b'{"rows":['
        + b",".join([b'{"f0":1,"x":[' + b'{"a":0},' * 200_000 + b"0]}"] * 35)
        + b"]}",
        "100,000 names": b'{"rows":['
        + b",".join(b'{"n%d":0,"f0":1,"f1":2,"f2":3}' % index for index in range(100_000))
        + b"]}",
        "one long row": b'{"rows":[[' + b"0," * 30_000_000 + b"0]]}",
        "60 MB of digits": b'{"rows":[[' + b"9" * (60 * MB) + b"]]}",
        "60 MB of spaces": b'{"rows":[' + b" " * (60 * MB) + b"[0]]}",
        "brackets": b'{"rows":' + b"[" * (60 * MB),
        "escapes": b'{"rows":["' + b"\\u00e9" * 10_000_000 + b'"]}',
        "UTF-16": '{"rows":[[1,2,3,4,5,6]]}'.ljust(30 * MB).encode("utf-16"),
    }


def other_bombs() -> dict[str, tuple[str, bytes]]:
    """Media types and bodies."""
    return {
        "Parquet": (PARQUET, parquet_bomb()),
        "Parquet that says it is Arrow": (ARROW, parquet_bomb()),
        "npz": (NPZ, zlib.compress(bytes(200 * MB))),
        "a length of 10¹⁸": (ARROW, struct.pack("<IIqq", 0xFFFFFFFF, 16, 10**18, 10**18)),
    }


def test_a_bomb_is_refused_or_served_in_bounded_memory(service: ModelService, promise: Promise) -> None:
    bombs = {name: (ARROW, body) for name, body in arrow_bombs().items()}
    bombs |= {name: (JSON, body) for name, body in json_bombs().items()} | other_bombs()
    growths, statuses = {}, {}
    for name, (media_type, body) in bombs.items():
        with service.memory as growth:
            response = service.transform(LEVELLED, body, media_type)
        growths[name], statuses[name] = growth.most, response.status_code
        assert response.status_code in (400, 413, 415, 422), (name, response.text[:300])
        problem_of(response)
        if media_type == ARROW:
            # Nothing of it was unpacked, but for the one that is within the limits.
            assert growth.most < 100 * MB, (name, growth)
    assert max(growths.values()) < MOST_GROWTH / 2, growths
    assert statuses["7,896 bytes of zeros"] == statuses["10⁹ rows of nothing"] == 413
    worst = max(growths, key=lambda name: growths[name])
    promise(
        "P37",
        counted=f"{len(bombs)} bombs (Arrow, Parquet, JSON, npz) sent to transform",
        result=f"all refused; {growths[worst] // MB} MiB at the most ({worst})",
    )


def test_two_of_the_largest_bodies_at_once_are_served(service: ModelService, promise: Promise) -> None:
    """What compresses least is unpacked as a whole, and gives the most scores."""
    column = numbers(MOST_VALUES - 10_000, 1)
    body = stream_of([pa.record_batch({"f0": column})], compression="zstd")
    with service.memory as growth, ThreadPoolExecutor(AT_ONCE) as pool:
        answers = [pool.submit(service.transform, SINGLE, body, ARROW) for _ in range(AT_ONCE)]
        responses = [answer.result() for answer in answers]
    expected = SINGLE.components.scores(column[:, None])[:, 0]
    for response in responses:
        assert response.status_code == 200, response.text[:300]
        scores = pa.ipc.open_stream(response.content).read_all()
        assert np.array_equal(scores["component_1"].to_numpy(), expected)
    assert growth.most < MOST_GROWTH
    promise(
        "P37",
        counted=f"2 transforms at once of {len(body) // MB} MiB, {MOST_VALUES // MB} million values each",
        result=f"right, in {growth.most // MB} MiB",
    )


def test_a_large_honest_body_is_the_direct_projection(service: ModelService) -> None:
    batch = table_of(60_000)
    words = batch.column("ward").dictionary_decode()
    rows = np.column_stack(
        [batch.column(index).to_numpy() for index in range(3)]
        + [np.array([word == level for word in words.to_pylist()], float) for level in "abä"]
    )
    expected = LEVELLED.components.scores(rows)
    for body in (stream_of([batch]), stream_of([batch] * 2, compression="lz4")):
        response = service.transform(LEVELLED, body, ARROW)
        assert response.status_code == 200, response.text[:300]
        table = pa.ipc.open_stream(response.content).read_all()
        scores = np.column_stack([column.to_numpy() for column in table.columns])
        assert np.allclose(scores, np.tile(expected, (len(scores) // len(expected), 1)))
    objects = [
        dict(zip(batch.schema.names, row, strict=True))
        for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)
    ]
    asked = json.dumps({"rows": objects}, ensure_ascii=False).encode()
    response = service.transform(LEVELLED, asked, JSON, components=2)
    assert response.status_code == 200, response.text[:300]
    assert np.allclose(response.json()["scores"], expected[:, :2])


def test_a_row_more_than_the_limit_is_refused(service: ModelService) -> None:
    most = MOST_VALUES // 6
    zeros = {f"f{index}": np.zeros(most + 1, np.int8) for index in range(3)}
    batch = pa.record_batch(zeros | {"ward": pa.nulls(most + 1)})
    assert service.transform(LEVELLED, stream_of([batch.slice(0, most)]), ARROW).status_code == 200
    response = service.transform(LEVELLED, stream_of([batch.slice(0, most), batch.slice(most)]), ARROW)
    assert (response.status_code, problem_of(response)) == (413, "too-large")
    assert str(most) in response.json()["detail"]
    most, row = MOST_VALUES // 1003, b'{"f0": 1, "f1": 2, "f2": 3, "code": 7}'
    body = b'{"rows": [' + b", ".join([row] * most)
    assert service.transform(WIDE, body + b"]}", JSON, components=1).status_code == 200
    response = service.transform(WIDE, body + b", " + row + b"]}", JSON)
    assert (response.status_code, problem_of(response)) == (413, "too-large")
    assert str(most) in response.json()["detail"]


def test_a_bad_row_at_the_end_leaves_no_answer(service: ModelService) -> None:
    bad = pa.record_batch({"f0": [0.0], "f1": [0.0], "f2": [0.0], "ward": ["z"]})
    good = pa.record_batch([*table_of(30_000).columns[:3], pa.array(["a"] * 30_000)], bad.schema.names)
    response = service.transform(LEVELLED, stream_of([good, bad]), ARROW)
    assert (response.status_code, problem_of(response)) == (422, "unknown-level")
    assert "in record 30001" in response.json()["detail"]
    for end in (b', {"f0": "tall"}]}', b", [1]]}", b", 7]}", b"]", b"]}]", b", ", b""):
        body = b'{"rows": [' + b", ".join([b'{"f0": 1, "f1": 2, "f2": 3}'] * 30_000) + end
        assert service.transform(LEVELLED, body, JSON).status_code in (400, 422), end


@contextmanager
def holding(service: ModelService, size: int) -> Iterator[socket.socket]:
    """A transform whose body is declared and not sent."""
    host, port = service.url.removeprefix("http://").split(":")
    head = [
        f"POST /v1/models/{SINGLE.study.hex()}/transform HTTP/1.1",
        f"host: {host}:{port}",
        f"authorization: Bearer {service.token}",
        f"content-type: {JSON}",
        f"content-length: {size}",
    ]
    with socket.create_connection((host, int(port)), timeout=30) as link:
        link.sendall("\r\n".join([*head, "", ""]).encode())
        yield link


def test_a_third_transform_waits_and_is_then_refused(service: ModelService) -> None:
    with holding(service, 50 * MB), holding(service, 50 * MB):
        time.sleep(0.5)
        response = service.transform(SINGLE, rows_of(1, 1), JSON)
        assert (response.status_code, problem_of(response)) == (503, "busy")
        assert int(response.headers["retry-after"]) > 0
        # Others than transforms are served.
        assert service.client.get(f"/v1/models/{SINGLE.study.hex()}").status_code == 200
    wait_for(
        lambda: service.transform(SINGLE, rows_of(1, 1), JSON).status_code == 200, "the places are free", 60
    )


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / 100


def test_the_work_stops_when_the_client_has_gone(service: ModelService) -> None:
    body = b'{"rows":[' + b"[0.1]," * 1_000_000 + b"[0.1]]}"
    begin = cpu_seconds(service.pid)
    assert service.transform(SINGLE, body, JSON).status_code == 200
    whole = cpu_seconds(service.pid) - begin
    begin = cpu_seconds(service.pid)
    with holding(service, len(body)) as link:
        link.sendall(body)
        wait_for(lambda: cpu_seconds(service.pid) - begin > whole / 10, "the work is under way")

    def is_idle() -> bool:
        before = cpu_seconds(service.pid)
        time.sleep(1.5)
        return cpu_seconds(service.pid) - before < 0.2

    wait_for(is_idle, "the service rests", 120)
    assert cpu_seconds(service.pid) - begin < whole / 2


def test_other_encodings_and_repeated_members_are_refused(service: ModelService) -> None:
    row = '{"f0": 1, "f1": 2, "f2": 3, "ward": "ä"}'
    text = f'{{"rows": [{row}]}}'
    assert service.transform(LEVELLED, text.encode(), JSON).status_code == 200
    for encoding in (
        "utf-16",
        "utf-16-le",
        "utf-16-be",
        "utf-32",
        "utf-32-le",
        "utf-8-sig",
        "latin-1",
    ):
        response = service.transform(LEVELLED, text.encode(encoding), JSON)
        assert (response.status_code, problem_of(response)) == (400, "malformed"), encoding
    repeated = [
        f'{{"rows": [{row}], "rows": [{row}]}}',
        f'{{"rows": [{row[:-1]}, "f0": 2}}]}}',
        f'{{"rows": [{row[:-1]}, "\\u00660": 2}}]}}',
        f'{{"rows": [{row[:-1]}, "other": {{"a": 1, "a": 1}}}}]}}',
        f'{{"rows": [{", ".join([row] * 5000)}, {{"f0": 1, "f0": 1}}]}}',
    ]
    for text in repeated:
        response = service.transform(LEVELLED, text.encode(), JSON)
        assert response.status_code == 400, response.text
        assert problem_of(response) in ("malformed", "not-canonical")


def test_streams_that_are_cut_or_altered_never_break_the_service(service: ModelService) -> None:
    """Right scores or a refusal; `test_arrow_rows` tries many more in one process."""
    source = random.Random(5)
    whole = stream_of([table_of(50)], compression="zstd")
    tried: list[int] = []
    for _ in range(200):
        body = bytearray(whole)
        for _ in range(source.randint(1, 3)):
            body[source.randrange(len(body))] ^= 1 << source.randrange(8)
        response = service.transform(
            LEVELLED, bytes(body[: source.choice((None, -8, source.randrange(900)))]), ARROW
        )
        assert response.status_code < 500, response.text
        tried.append(response.status_code)
    assert service.client.get("/readyz").status_code == 200
    assert {200, 400} <= set(tried)
