"""The recipe for Spark: its functions, on a stand-in for Spark, give the contribution of one machine.

Spark itself is not run here. The stand-in moves calls and results as Spark does, pickled by cloudpickle.
"""

import ast
import pickle
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
from study_parties import MakeManifest

from dpdpca_owner.commands.joining import send_share
from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.source import DataLocation

PAGE = Path(__file__).parents[2] / "docs/how-to/spark.md"
FUNCTIONS, PROGRAM = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


class Tasks:
    """What the recipe uses of Spark's RDD."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = [cloudpickle.dumps(value) for value in values]

    def map(self, function: Callable[[Any], Any]) -> "Tasks":
        sent = cloudpickle.dumps(function)
        return Tasks(pickle.loads(sent)(pickle.loads(value)) for value in self.values)

    def collect(self) -> list[Any]:
        return [pickle.loads(value) for value in self.values]


def test_the_recipe_gives_the_contribution_of_one_machine(
    make_manifest: MakeManifest, tmp_path: Path
) -> None:
    for part in range(3):
        ages = [(7 * i + part) % 100 for i in range(20)]
        columns = {"age": ages, "weight": [age * 2.5 for age in ages], "systolic": [60 + age for age in ages]}
        pq.write_table(pa.table(columns), tmp_path / f"{part}.parquet")
    made: dict[str, Any] = {}
    exec(compile(FUNCTIONS, "on_spark.py", "exec"), made)
    partitions: list[int] = []

    def parallelize(calls: list[Any], slices: int) -> Tasks:
        partitions.append(slices)
        return Tasks(calls)

    spark = SimpleNamespace(sparkContext=SimpleNamespace(parallelize=parallelize))
    manifest, location = make_manifest(), DataLocation(str(tmp_path))
    here = read_contribution(location, manifest, bytes(32))
    there = read_contribution(location, manifest, bytes(32), sum_parts=made["sums_on"](spark))
    assert partitions == [3]
    assert there.sums.to_bytes() == here.sums.to_bytes()
    assert replace(there, sums=here.sums) == here


def test_the_program_names_what_there_is() -> None:
    """Without Spark only the imports, and the names of the arguments, can be checked."""
    tree = ast.parse(PROGRAM)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpdpca_"):
            module = __import__(node.module or "", fromlist=["x"])
            assert all(hasattr(module, name.name) for name in node.names)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (sent,) = [call for call in calls if ast.unparse(call.func) == "send_share"]
    named = send_share.__code__.co_varnames[: send_share.__code__.co_argcount]
    assert len(sent.args) + len(sent.keywords) == len(named)
    assert {word.arg for word in sent.keywords} <= set(named)
