"""Tables of covariances, correlations and means: what they contain, and what is refused.

tests/statistical/test_moments.py compares them with the truth.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from present import present

from dpdpca_protocol.errors import ConflictError, LimitError, UsageError
from dpdpca_user import DPPCA, FederatedPCA
from dpdpca_user.estimator import ParameterError
from dpdpca_user.results.model import Model
from dpdpca_user.results.moment_files import MOST_FEATURES, arrow_table, moment_facts, save_moments
from dpdpca_user.results.moments import MomentTable

NAMES = ("height", "weight", "<b>sex</b> = f", "<b>sex</b> = m", "age")


def test_covariances_are_in_original_units(
    make_model: Callable[..., Model], people: dict[str, list[Any]]
) -> None:
    """No record is clipped, and the noise of height and weight has deviations of 2 and 3."""
    model = make_model(clip_norm=2, epsilon=30)
    table = model.moments.covariance()
    truth = np.cov(people["height"], people["weight"])
    assert table.names == NAMES
    assert table.values[:2, :2] == pytest.approx(truth, rel=0.15)
    assert not table.in_noise[0, 1]
    assert np.array_equal(table.values, table.values.T)
    assert (table.deviations > 0).all()
    assert 0 <= table.kept <= 1
    means = model.moments.means()
    assert means.deviations[0] < 0.3
    assert abs(means.values[0] - np.mean(people["height"])) < 6 * means.deviations[0]


def test_with_noise_they_are_the_release_itself(joint_model: Model) -> None:
    assert joint_model.reliability is not None
    table = joint_model.moments.covariance(remove_noise=False)
    scale = joint_model.components.space.scale
    assert table.kept == 1
    assert np.diag(table.values) == pytest.approx(joint_model.reliability.variances * scale**2)
    values = np.linalg.eigvalsh(table.values / np.outer(scale, scale))[::-1]
    assert values == pytest.approx(joint_model.components.eigenvalues, abs=1e-12)


def test_deviations_know_who_drew_the_noise(make_model: Callable[..., Model]) -> None:
    """Two draws have twice the variance of one; owners' noise grows with the cohort."""
    once = make_model()
    twice = replace(once, in_clear=True)
    one, two = (model.moments.covariance(False).deviations for model in (once, twice))
    assert two == pytest.approx(np.sqrt(2) * one)
    own = make_model(noise_by="owners").moments.covariance(False).deviations
    assert (own > one).any()


def test_a_masked_release_has_no_means(masked_model: Model) -> None:
    assert masked_model.moments.covariance().values.shape == (5, 5)
    with pytest.raises(ConflictError, match="no mean") as refused:
        masked_model.moments.means()
    assert refused.value.slug == "no-mean"


def test_pairs_count_the_choice_of_the_pairs(make_model: Callable[..., Model]) -> None:
    moments = make_model(release="pairs").moments
    assert moments.pairs == 2000
    given = replace(moments, pairs=None)
    for table, alone in (
        (moments.covariance(), given.covariance()),
        (moments.correlation(), given.correlation()),
    ):
        off = ~np.eye(5, dtype=bool) & ~np.isnan(table.values)
        assert (table.deviations[off] >= alone.deviations[off]).all()
        assert (table.deviations[off] > alone.deviations[off]).any()
    clipping = make_model(release="pairs", clip_share="0.005", clip_norm="0.5").moments
    assert clipping.covariance().factor > 1


def test_what_clipping_took_is_given_back(
    make_model: Callable[..., Model], people: dict[str, list[Any]]
) -> None:
    """At a clip norm that halves the variances, the corrected ones are nearer to the truth."""
    model = make_model(clip_norm="0.5", clip_share="0.01", epsilon=8)
    table = model.moments.covariance()
    unscaled = replace(present(model.moments.clipping), factor=None)
    plain = replace(model.moments, clipping=unscaled).covariance()
    truth = np.var(people["age"])
    assert table.factor > 1.2
    assert abs(table.values[4, 4] - truth) < abs(plain.values[4, 4] - truth)
    assert table.values == pytest.approx(table.factor * plain.values)
    assert (table.deviations > plain.deviations).all()
    assert np.array_equal(table.in_noise, plain.in_noise)


def test_correlations_have_ones_on_the_diagonal_and_stay_within(make_model: Callable[..., Model]) -> None:
    for epsilon in (0.05, 2, 30):
        table = make_model(epsilon=epsilon).moments.correlation()
        known = ~np.isnan(table.values)
        assert (np.abs(table.values[known]) <= 1).all()
        assert set(np.diag(table.values)[~np.isnan(np.diag(table.values))]) <= {1.0}
        assert table.in_noise[~known].all()
        assert np.array_equal(np.isnan(table.deviations), ~known)


def test_tables_are_semidefinite_on_request(make_model: Callable[..., Model]) -> None:
    model = make_model(epsilon=0.5)
    eigenvalues = model.components.eigenvalues.copy()
    eigenvalues[-1] = -eigenvalues[0] / 10  # as noise may leave it
    moments = replace(model, components=replace(model.components, eigenvalues=eigenvalues)).moments
    assert np.linalg.eigvalsh(moments.covariance(remove_noise=False).values)[0] < 0
    for remove in (False, True):
        table = moments.covariance(remove, positive=True)
        assert np.linalg.eigvalsh(table.values)[0] >= -1e-9 * table.values.max()
    scaled = make_model(epsilon=20).moments.correlation(positive=True)
    assert np.linalg.eigvalsh(scaled.values)[0] >= -1e-9
    assert np.diag(scaled.values) == pytest.approx(1)


def test_a_model_without_all_components_has_no_table_with_noise(joint_model: Model) -> None:
    part = replace(joint_model, components=joint_model.components.leading(3))
    with pytest.raises(ConflictError, match="only 3 of 5"):
        part.moments.covariance(remove_noise=False)
    table = part.moments.covariance()
    assert table.kept == 0
    assert np.diag(table.values) == pytest.approx(np.diag(joint_model.moments.covariance().values))


def test_a_model_file_without_variances_has_no_tables(joint_model: Model, tmp_path: Path) -> None:
    old = replace(joint_model, reliability=None)
    with pytest.raises(ConflictError, match="before variances were kept"):
        _ = old.moments
    path = tmp_path / "old.npz"
    path.write_bytes(old.to_bytes())
    with pytest.raises(ParameterError, match="too old for tables"):
        FederatedPCA.from_model(path).get_covariance()


@pytest.fixture
def table(joint_model: Model) -> MomentTable:
    found = joint_model.moments.correlation()
    found.values[1, 2] = found.values[2, 1] = np.nan
    return found


def test_a_file_has_every_figure_beside_its_deviation(table: MomentTable, tmp_path: Path) -> None:
    rows = arrow_table(table)
    assert rows.column_names == ["row", "column", "value", "deviation", "in_noise"]
    assert rows.num_rows == 25
    assert rows.column("value").null_count == 2
    save_moments(tmp_path / "r.parquet", table)
    assert pa.parquet.read_table(tmp_path / "r.parquet").equals(rows)
    save_moments(tmp_path / "r.CSV", table)
    again = pa.csv.read_csv(tmp_path / "r.CSV")
    assert again.column("row").to_pylist() == rows.column("row").to_pylist()
    assert again.column("value").to_pylist() == rows.column("value").to_pylist()
    save_moments(tmp_path / "r.npz", table)
    with np.load(tmp_path / "r.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["values"], table.values, equal_nan=True)
        assert np.array_equal(arrays["in_noise"], table.in_noise)
        assert tuple(arrays["names"]) == NAMES
    assert (tmp_path / "r.npz").stat().st_mode & 0o777 == 0o600
    assert moment_facts(table)["values"][1][2] is None


@pytest.mark.parametrize("name", ["r.xlsx", "r", "r.csv.gz"])
def test_an_unknown_format_is_refused_and_nothing_written(
    name: str, table: MomentTable, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="let the name end with"):
        save_moments(tmp_path / name, table)
    assert list(tmp_path.iterdir()) == []


def test_a_large_table_is_written_as_arrays_only(table: MomentTable, tmp_path: Path) -> None:
    d = MOST_FEATURES + 1
    names, square = tuple(map(str, range(d))), np.zeros((d, d))
    large = replace(table, names=names, values=square, deviations=square, in_noise=square > 0)
    for write in (arrow_table, moment_facts, lambda each: save_moments(tmp_path / "r.csv", each)):
        with pytest.raises(LimitError, match="1001 features has too many rows") as refused:
            write(large)
        assert refused.value.slug == "too-large"
    assert list(tmp_path.iterdir()) == []
    save_moments(tmp_path / "r.npz", large)
    with np.load(tmp_path / "r.npz", allow_pickle=False) as arrays:
        assert arrays["values"].shape == (d, d)


def test_both_estimators_have_tables(joint_model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(joint_model.to_bytes())
    one = FederatedPCA.from_model(path, n_components=2)
    source = np.random.default_rng(1)  # noqa: TID251 - made-up records, not noise, masks or keys
    rows = source.normal(0, 0.2, (3000, 4)) @ np.diag([3.0, 2.0, 1.0, 1.0])
    two = DPPCA(bounds=(-2, 2), epsilon=5.0, clip_norm=1.0).fit(rows)
    for pca, d in ((one, 5), (two, 4)):
        assert pca.get_covariance().shape == pca.get_covariance_std().shape == (d, d)
        assert pca.get_correlation().shape == pca.get_correlation_std().shape == (d, d)
        assert pca.mean_std_.shape == pca.mean_.shape == (d,)
        assert pca.loadings_.shape == pca.loadings_std_.shape
        assert pca.loadings_.shape[1] == d
        assert pca.moments_ is not None
        assert pca.moments_.covariance().in_noise.shape == (d, d)
    truth, deviations = np.cov(rows.T), two.get_covariance_std()
    assert (np.abs(two.get_covariance() - truth) < 6 * deviations + 0.005).all()
