"""What records contain decides nothing that others see: neither whether a share leaves, nor its size."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet
import pytest
from owner_scene import MakeScene, OwnerCommands, Scene

from dpdpca_owner import actions
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import InputError

FEATURES = [
    {"name": "age", "lower": 0, "upper": 100},
    {"name": "ward", "levels": ["A", "B"]},
]
SECRET = "4711-secret"


def csv(*rows: str) -> Callable[[Path], object]:
    return lambda path: path.write_text("\n".join(["age,ward", *rows]) + "\n", encoding="utf-8")


def parquet(**columns: Any) -> Callable[[Path], object]:
    return lambda path: pa.parquet.write_table(pa.table(columns), path)


FINE = csv("50,A", "60,B", "70,A")
ODD: dict[str, Callable[[Path], object]] = {
    "text in a number": csv("50,A", f"{SECRET},B", "70,A"),
    "an unlisted level": csv("50,A", f"60,{SECRET}", "70,A"),
    "nothing but text": csv(*[f"{SECRET},{SECRET}"] * 3),
    "decimal commas": csv('"5,5",A', '"6,5",B', '"7,5",A'),
    "a column of texts": parquet(age=["50", SECRET, "70"], ward=["A", "B", "A"]),
    "a column of lists": parquet(age=[[50], [60], [70]], ward=["A", "B", "A"]),
    "points in time": parquet(age=[50, 60, 70], ward=pa.array([1, 2, 3], pa.timestamp("s"))),
    "bytes that are no text": parquet(age=[50, 60, 70], ward=pa.array([b"\xff", b"A", b"B"])),
}


@dataclass
class Traffic:
    """What a proxy is sent, request by request: method, path without ids, and number of bytes."""

    seen: list[tuple[str, str, int]] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> None:
        where = re.sub("[0-9a-f]{64}", "ID", request.url.path)
        self.seen.append((request.method, f"{where}?{request.url.query!r}", len(request.read())))


def make_odd_scene(
    make_scene: MakeScene, write: Callable[[Path], object], missing: str
) -> tuple[Scene, Traffic]:
    scene, traffic = make_scene(features=FEATURES, missing=missing, clip_norm="1.4"), Traffic()
    write(Path(scene.location.data))
    scene.proxy.interfere = traffic
    return scene, traffic


@pytest.mark.parametrize("missing", ["reject", "midpoint"])
@pytest.mark.parametrize("fault", ODD)
def test_the_same_leaves_whatever_the_records_hold(
    make_scene: MakeScene, tmp_path: Path, fault: str, missing: str
) -> None:
    seen = []
    for write in (FINE, ODD[fault]):
        scene, traffic = make_odd_scene(make_scene, write, missing)
        prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
        settled = actions.join(scene.desk, scene.address, prepared, Watcher())
        seen.append(
            (traffic.seen, settled.outcome, settled.sent_bytes, prepared.contribution.report.accepted)
        )
        scene.desk.home.path.rename(tmp_path / f"home {len(seen)}")
    assert seen[0] == seen[1]
    assert ("POST", "/v1/studies/ID/share/complete?b''") in [request[:2] for request in seen[0][0]]


@pytest.mark.parametrize("fault", ODD)
def test_a_strict_owner_stops_before_anything_is_announced_or_booked(
    make_scene: MakeScene, fault: str
) -> None:
    """It is also what would happen without the defence: the proxy sees who does not come."""
    scene, traffic = make_odd_scene(make_scene, ODD[fault], "reject")
    for act in (actions.review, actions.prepare_join):
        with pytest.raises(InputError, match=r"column '(age|ward)' holds") as caught:
            act(scene.desk, scene.address, scene.location, strict=True)
        assert SECRET not in str(caught.value)
    assert {method for method, *_ in traffic.seen} == {"GET"}
    assert not scene.desk.home.ledger.read().data_sets


def test_the_owner_is_told_how_many_values_were_replaced(run: OwnerCommands) -> None:
    scene = run.scene
    rows = [
        "age,systolic,weight",
        f"{SECRET},120,80",
        "50,n/a,80",
        f"51,{SECRET},{SECRET}",
        f"52,{SECRET},81",
    ]
    Path(scene.location.data).write_text("\n".join(rows) + "\n", encoding="utf-8")
    words = (str(scene.address), "--data", scene.location.data)
    status, out, err = run("review", *words)
    assert status == 0, err
    assert "4 values replaced by the centre" in out
    assert SECRET not in out + err
    status, out, err = run("join", *words, "--yes", "--strict")
    assert (status, out) == (1, "")
    assert "'age' holds text in record 1" in err
    assert SECRET not in err
    status, out, err = run("join", *words, "--yes", "--json")
    assert status == 0, err
    facts = json.loads(out)
    assert (facts["records"], facts["unusable"]) == (3, {"age": 1, "systolic": 2, "weight": 1})
