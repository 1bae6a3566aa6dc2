"""Several studies as one result: the sums, the noise, and what does not add up."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_study import plain_model

from dpdpca_protocol.errors import ConflictError, UsageError
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_user import FederatedPCA
from dpdpca_user.results.combined import combine
from dpdpca_user.results.model import Model

People = dict[str, list[Any]]
TERMS: dict[str, Any] = {"clip_norm": 2, "epsilon": 30}
"""Nobody is clipped, and the noise is small."""


@pytest.fixture(scope="module")
def halves(people: People) -> list[People]:
    places = (slice(0, 1000), slice(1000, 4000))
    return [{name: values[place] for name, values in people.items()} for place in places]


@pytest.fixture(scope="module")
def make_halves(real_key: Any, halves: list[People]) -> Callable[..., list[Model]]:
    return lambda **changes: [plain_model(real_key, half, **(TERMS | changes)) for half in halves]


@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_the_sums_are_those_of_one_study(
    release: str, make_model: Callable[..., Model], make_halves: Callable[..., list[Model]]
) -> None:
    """About the mean of all: the halves have different means, and their own scatters do not add up to it."""
    found, whole = combine(make_halves(release=release), OS_RANDOMNESS), make_model(**TERMS, release=release)
    assert found.components.count == whole.components.count
    one, other = found.moments.covariance(False), whole.moments.covariance(False)
    spread = np.hypot(one.deviations, other.deviations)
    assert (np.abs(one.values - other.values) < 7 * spread).all()
    if release == "joint":
        assert found.moments.means().values == pytest.approx(whole.moments.means().values, abs=0.3)


@pytest.mark.parametrize("noise_by", ["proxy", "owners"])
def test_the_noise_is_that_of_all_draws(noise_by: str, make_halves: Callable[..., list[Model]]) -> None:
    models = make_halves(noise_by=noise_by)
    found = combine(models, OS_RANDOMNESS)
    degrees = [model.components.count - 1 for model in models]
    variance = sum((model.components.noise_scale * n) ** 2 for model, n in zip(models, degrees, strict=True))
    assert found.components.noise_scale == pytest.approx(variance**0.5 / (found.components.count - 1))
    twice = combine([replace(model, in_clear=True) for model in models], OS_RANDOMNESS)
    ratio = twice.components.noise_scale / found.components.noise_scale
    assert ratio == pytest.approx(2**0.5 if noise_by == "proxy" else 1)


def test_the_claim_is_that_of_the_weaker_study(make_halves: Callable[..., list[Model]]) -> None:
    one, other = make_halves()[0], make_halves(epsilon=8)[1]
    claim = combine([one, other], OS_RANDOMNESS).claim
    assert "Each record has at least (ε, δ) = (30, " in claim
    assert "only one of these 2 studies" in claim


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"clip_norm": "1.9"}, "clip_norm of study"),
        ({"missing": "reject"}, "missing of study"),
        ({"release": "pairs"}, "release of study"),
        ({"fraction_bits": 12}, "fraction_bits of study"),
        ({"release": "masked"}, "is masked"),
    ],
)
def test_what_does_not_add_up_is_refused_by_name(
    changes: dict[str, Any], named: str, make_halves: Callable[..., list[Model]]
) -> None:
    one, other = make_halves()[0], make_halves(**changes)[1]
    with pytest.raises(ConflictError, match=named) as refused:
        combine([one, other], OS_RANDOMNESS)
    assert refused.value.slug == "cannot-combine"
    assert other.study.hex() in refused.value.problem


def test_a_study_counts_once_and_needs_all_components(make_halves: Callable[..., list[Model]]) -> None:
    one, other = make_halves()
    for models in ([one], [one, one], [one, other, one]):
        with pytest.raises(UsageError, match="two or more different studies"):
            combine(models, OS_RANDOMNESS)
    with pytest.raises(ConflictError, match="only 3 of 5 components"):
        combine([one, replace(other, components=other.components.leading(3))], OS_RANDOMNESS)


def test_an_estimator_of_several_model_files(
    make_halves: Callable[..., list[Model]], encoded_people: Any, tmp_path: Path
) -> None:
    paths = []
    for index, model in enumerate(make_halves()):
        paths.append(tmp_path / f"{index}.npz")
        paths[-1].write_bytes(model.to_bytes())
    pca = FederatedPCA.from_models(paths, n_components=2)
    assert pca.n_samples_ == 4000
    assert pca.transform(encoded_people).shape == (50, 2)
    assert pca.get_covariance().shape == (5, 5)
    assert "nobody else can check it" in pca.privacy_["claim"]
    file = tmp_path / "both.npz"
    file.write_bytes(pca.combination_.to_bytes())
    with np.load(file, allow_pickle=False) as arrays:
        assert np.array_equal(arrays["vectors"], pca.combination_.components.vectors)
