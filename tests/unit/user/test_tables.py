from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from column_types import RECORDS, arrow_columns, numpy_columns

from dpdpca_protocol.errors import InputError
from dpdpca_user import DPPCA
from dpdpca_user.estimator import ParameterError
from dpdpca_user.results.model import Model
from dpdpca_user.results.tables import numeric_matrix, rows_of_lists, rows_of_table


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


NUMERIC = [each for each in [*arrow_columns(), *numpy_columns()] if each.numbers is not None]
REFUSED = [each for each in [*arrow_columns(), *numpy_columns()] if each.numbers is None]


def test_every_type_is_the_same_number_to_whoever_projects_rows(joint_model: Model) -> None:
    heights = [
        [160.0 if each is None else float(each) for each in stored.numbers or ()] for stored in NUMERIC
    ]
    for stored, expected in zip(NUMERIC, heights, strict=True):
        others = {"weight": [75.0] * RECORDS, "<b>sex</b>": ["f"] * RECORDS, "age": [55.0] * RECORDS}
        rows = rows_of_table({"height": stored.array, **others}, joint_model.manifest)
        assert rows[:, 0].tolist() == expected, stored.name


def test_every_type_is_the_same_number_to_dppca() -> None:
    for stored in NUMERIC:
        expected = [float("nan") if each is None else float(each) for each in stored.numbers or ()]
        np.testing.assert_array_equal(numeric_matrix({"x": stored.array})[:, 0], expected, stored.name)
        is_complete = not np.isnan(expected).any()
        table = {"x": stored.array, "y": [1.0, 2.0, 4.0]}
        if is_complete:
            assert DPPCA(bounds=(-1000, 1000)).fit(table).n_features_in_ == 2
        else:
            with pytest.raises(ValueError, match="NaN"):
                DPPCA(bounds=(-1000, 1000)).fit(table)


def test_what_is_no_number_is_a_value_error_to_dppca_in_a_table_and_in_an_array() -> None:
    for stored in REFUSED:
        with pytest.raises(ParameterError, match=r"column 'x' holds .* not a number"):
            DPPCA(bounds=(-1, 1)).fit({"x": stored.array})
        if isinstance(stored.array, np.ndarray):
            with pytest.raises(
                ValueError, match=r"column '0' holds .* not a number|Complex data not supported"
            ):
                DPPCA(bounds=(-1, 1)).fit(stored.array.reshape(-1, 1))
    for value in ("1.5", b"1", np.timedelta64(1, "D"), np.datetime64("2020-01-01")):
        with pytest.raises(ParameterError, match=r"column '1' holds .* in record 2"):
            DPPCA(bounds=(-1, 1)).fit(np.array([[1, 2], [3, value]], dtype=object))
    masked = np.ma.masked_array([[1.0], [2.0]], mask=[[False], [True]])
    with pytest.raises(ParameterError, match="masked"):
        DPPCA(bounds=(-1, 1)).fit(masked)


def test_dppca_keeps_the_names_of_a_table() -> None:
    table = pa.table({"b": [1.0, 2.0, 3.0], "a": pa.array([1, 2, 3], pa.decimal128(9, 2))})
    fitted = DPPCA(bounds=(0, 5)).fit(table)
    assert fitted.transform(table).shape == (3, 2)
    np.testing.assert_array_equal(numeric_matrix(table), [[1, 1], [2, 2], [3, 3]])
    with pytest.raises(InputError, match=r"2 columns with its name|two columns"):
        numeric_matrix(pa.table([[1], [2]], names=["x", "x"]))


def test_a_column_that_is_a_single_value_is_refused(joint_model: Model) -> None:
    with pytest.raises(InputError, match="single value"):
        rows_of_table({"height": 1.0}, joint_model.manifest)
