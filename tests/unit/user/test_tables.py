from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpdpca_protocol.errors import InputError
from dpdpca_user.model import Model
from dpdpca_user.tables import rows_of_lists, rows_of_table


def test_columns_are_matched_by_name_from_every_kind_of_table(
    joint_model: Model, people: dict[str, list[Any]], encoded_people: Any
) -> None:
    columns = {name: values[:50] for name, values in people.items()}
    manifest = joint_model.manifest
    assert np.array_equal(rows_of_table(columns, manifest), encoded_people)
    assert np.array_equal(rows_of_table(pa.table(columns), manifest), encoded_people)
    objects = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert np.array_equal(rows_of_lists(objects, manifest), encoded_people)
    assert np.array_equal(rows_of_lists(encoded_people.tolist(), manifest), encoded_people)


def test_gaps_follow_the_manifests_rule(joint_model: Model, make_model: Any) -> None:
    row = {"height": [None], "weight": [float("nan")], "<b>sex</b>": [None], "age": [float("inf")]}
    assert rows_of_table(row, joint_model.manifest).tolist() == [[160.0, 75.0, 0.0, 0.0, 55.0]]
    with pytest.raises(InputError, match="missing"):
        rows_of_table(row, make_model(missing="reject").manifest)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        {},
        "text",
        [1, 2],
        [[1, 2, 3]],
        [[1, 2, 3, 4, "5"]],
        [[1, 2, 3, 4, True]],
        [[1, 2, 3, 4, None]],
        [[1, 2, 3, 4, 10**400]],
        [{"height": 1}],
        [{"height": "tall", "weight": 1, "<b>sex</b>": "f", "age": 1}],
        [{"height": 1, "weight": 1, "<b>sex</b>": "x", "age": 1}],
        [{"height": 1, "weight": 1, "<b>sex</b>": "f", "age": 1}, [1, 2, 3, 4, 5]],
    ],
)
def test_rows_that_do_not_fit_are_refused_without_repeating_them(joint_model: Model, rows: Any) -> None:
    with pytest.raises(InputError) as refusal:
        rows_of_lists(rows, joint_model.manifest)
    assert "tall" not in str(refusal.value)


def test_a_table_with_a_column_twice_is_refused(joint_model: Model) -> None:
    table = pa.table([[1.0], [1.0]], names=["height", "height"])
    with pytest.raises(InputError, match="two columns"):
        rows_of_table(table, joint_model.manifest)
