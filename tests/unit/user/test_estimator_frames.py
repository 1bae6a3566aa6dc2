"""The estimators with pandas, Polars, scikit-learn's own tools, pickle and skops."""

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import polars as pl
import pytest
import skops.io
from scripted import SILENCE
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpdpca_user import DPPCA, FederatedPCA
from dpdpca_user.estimator import ParameterError
from dpdpca_user.results.model import Model

NAMES = ["height", "weight", "age"]
FRAMES: dict[str, Callable[[pd.DataFrame], Any]] = {"pandas": lambda frame: frame, "polars": pl.from_pandas}
FRAME_TYPES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}


class NoiselessPCA(DPPCA):
    _noise = SILENCE


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Rows whose index is no count, so that a lost index shows."""
    source = random.Random(3)
    height = [source.uniform(-3, 3) for _ in range(600)]
    return pd.DataFrame(
        {
            "height": height,
            "weight": [0.8 * each + source.gauss(0, 0.3) for each in height],
            "age": [source.uniform(-1, 1) for _ in height],
        },
        index=[f"patient {place}" for place in range(len(height))],
    )


@pytest.fixture(scope="module")
def table_pca(frame: pd.DataFrame) -> DPPCA:
    return DPPCA(2, bounds=(-4, 4), epsilon=5.0).fit(frame)


@pytest.fixture(scope="module")
def model_path(joint_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.npz"
    path.write_bytes(joint_model.to_bytes())
    return path


@pytest.fixture
def study_pca(model_path: Path) -> FederatedPCA:
    return FederatedPCA.from_model(model_path, n_components=2)


@pytest.mark.parametrize("given", FRAMES)
@pytest.mark.parametrize("wanted", FRAMES)
def test_scores_come_as_the_frame_that_was_asked_for(
    given: str, wanted: str, frame: pd.DataFrame, table_pca: DPPCA
) -> None:
    rows = FRAMES[given](frame)
    pca = by_pickle(table_pca).set_output(transform=wanted)
    scores = pca.transform(rows)
    assert isinstance(scores, FRAME_TYPES[wanted])
    assert list(scores.columns) == list(pca.get_feature_names_out()) == ["dppca0", "dppca1"]
    assert np.array_equal(scores.to_numpy(), table_pca.transform(frame))
    if given == wanted == "pandas":
        assert scores.index.equals(frame.index)


@pytest.mark.parametrize("kind", FRAMES)
def test_columns_are_remembered_from_fit_and_their_order_must_be_the_same(
    kind: str, frame: pd.DataFrame
) -> None:
    rows = FRAMES[kind](frame)
    pca = DPPCA(bounds=(-4, 4), epsilon=5.0).fit(rows)
    assert list(pca.feature_names_in_) == NAMES
    with pytest.raises(ValueError, match="same order"):
        pca.transform(rows[["age", "height", "weight"]])
    with pytest.raises(ValueError, match="missing"):
        pca.transform(rows[["age", "height"]])
    with pytest.warns(UserWarning, match="valid feature names"):
        scores = pca.transform(frame.to_numpy())
    assert np.array_equal(pca.transform(rows), scores)


def test_every_kind_of_frame_gives_the_same_fit(frame: pd.DataFrame) -> None:
    fits = [
        NoiselessPCA(bounds=(-4, 4)).fit(rows) for rows in (frame, pl.from_pandas(frame), frame.to_numpy())
    ]
    for other in fits[1:]:
        assert np.array_equal(fits[0].components_, other.components_)
        assert np.array_equal(fits[0].mean_, other.mean_)
    assert not hasattr(fits[2], "feature_names_in_")


def test_a_query_of_polars_is_refused_until_it_has_run(frame: pd.DataFrame, table_pca: DPPCA) -> None:
    with pytest.raises(ParameterError, match="LazyFrame has no rows"):
        table_pca.transform(pl.from_pandas(frame).lazy())


@pytest.mark.parametrize("kind", FRAMES)
def test_a_study_finds_its_features_by_name(
    kind: str, people: dict[str, list[Any]], encoded_people: Any, study_pca: FederatedPCA
) -> None:
    """Order and further columns do not matter; a category is a column of texts."""
    table = pd.DataFrame({name: values[:50] for name, values in people.items()}, index=range(100, 150))
    scores = study_pca.set_output(transform=kind).transform(FRAMES[kind](table[table.columns[::-1]]))
    assert isinstance(scores, FRAME_TYPES[kind])
    assert list(scores.columns) == ["federatedpca0", "federatedpca1"]
    assert np.array_equal(
        scores.to_numpy(), study_pca.set_output(transform="default").transform(encoded_people)
    )
    if kind == "pandas":
        assert list(scores.index) == list(table.index)


def test_a_private_fit_is_a_step_of_a_cross_validated_pipeline(frame: pd.DataFrame) -> None:
    """The label is the sign of what two features share, so the first component tells almost all of it."""
    label = (frame["height"] > 0).to_numpy()
    steps = make_pipeline(DPPCA(1, bounds=(-4, 4), epsilon=5.0), StandardScaler(), LogisticRegression())
    assert cross_val_score(steps, frame, label, cv=3).mean() > 0.85
    named = steps[:-1].set_output(transform="pandas").fit_transform(frame, label)
    assert list(named.columns) == ["dppca0"]
    assert named.index.equals(frame.index)


def test_clone_gives_an_unfitted_estimator_with_the_same_parameters(
    frame: pd.DataFrame, table_pca: DPPCA
) -> None:
    twin = clone(table_pca.set_output(transform="default"))
    assert twin.get_params() == table_pca.get_params()
    with pytest.raises(NotFittedError):
        twin.transform(frame)


def same(kept: Any, pca: Any, rows: Any) -> None:
    """Both have the same parameters and public attributes, and give the same numbers."""
    assert kept.get_params() == pca.get_params()
    public = {name for name in vars(pca) if name.endswith("_")}
    assert {name for name in vars(kept) if name.endswith("_")} == public
    for name in public - {"model_", "moments_", "reliability_"}:  # compared by what they give, below
        assert np.array_equal(getattr(kept, name), getattr(pca, name)), name
    assert np.array_equal(kept.transform(rows), pca.transform(rows))
    assert np.array_equal(kept.score_t2(rows), pca.score_t2(rows))
    assert np.array_equal(kept.get_covariance(), pca.get_covariance())
    assert np.array_equal(kept.get_correlation_std(), pca.get_correlation_std(), equal_nan=True)


def by_pickle(pca: Any) -> Any:
    return pickle.loads(pickle.dumps(pca))


def by_skops(pca: Any) -> Any:
    kept = skops.io.dumps(pca)
    untrusted = skops.io.get_untrusted_types(data=kept)
    assert [name for name in untrusted if not name.startswith("dpdpca_")] == []
    return skops.io.loads(kept, trusted=untrusted)


@pytest.mark.parametrize("keep", [by_pickle, by_skops])
def test_a_fitted_table_can_be_kept(
    keep: Callable[[Any], Any], frame: pd.DataFrame, table_pca: DPPCA
) -> None:
    same(keep(table_pca), table_pca, frame)
    steps = make_pipeline(table_pca, StandardScaler().fit(table_pca.transform(frame)))
    assert np.array_equal(keep(steps).transform(frame), steps.transform(frame))


@pytest.mark.parametrize("keep", [by_pickle, by_skops])
def test_a_fitted_study_can_be_kept(
    keep: Callable[[Any], Any], study_pca: FederatedPCA, joint_model: Model, encoded_people: Any
) -> None:
    """A model is kept as its file, so only types of ours are in it."""
    kept = keep(study_pca)
    same(kept, study_pca, encoded_people)
    assert kept.model_.to_bytes() == joint_model.to_bytes()
    assert kept.model_.manifest == joint_model.manifest


@pytest.mark.parametrize("metric", ["study", "correlation"])
def test_the_signs_follow_our_rule(metric: str, frame: pd.DataFrame) -> None:
    pca = NoiselessPCA(bounds=(-4, 4), metric=metric).fit(frame)
    leaders = np.argmax(np.abs(pca.components_) > np.abs(pca.components_).max(axis=1)[:, None] - 1e-9, axis=1)
    assert (pca.components_[np.arange(len(leaders)), leaders] > 0).all()


def test_each_fitted_attribute_has_a_type_and_a_description(
    table_pca: DPPCA, study_pca: FederatedPCA
) -> None:
    for pca in (table_pca, study_pca):
        typed = get_type_hints(type(pca))
        text = "".join(each.__doc__ or "" for each in type(pca).__mro__[:2])
        for name in vars(pca):
            if name.endswith("_") and not name.startswith("_"):
                assert name in typed or name == "feature_names_in_", name
                assert name in text or name == "feature_names_in_", name
