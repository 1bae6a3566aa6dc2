"""Several studies as one result: the sums, the noise, and what does not add up."""

import json
import math
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
from dpdpca_user.commands.combining import show_combination
from dpdpca_user.results.clipping import ClippingFigures
from dpdpca_user.results.combined import Combination, combine
from dpdpca_user.results.model import Model
from dpdpca_user.results.reliability import CLIPPING_IS_ALLOWED_FOR, CLIPPING_IS_NOT_SEEN, Reliability

People = dict[str, list[Any]]
TERMS: dict[str, Any] = {"clip_norm": 2, "epsilon": 30}
"""Nobody is clipped, and the noise is small."""
CLIPPED: dict[str, Any] = {"clip_norm": "0.1", "epsilon": 30, "clip_share": "0.1"}
"""Nearly everybody is clipped, and the studies tell it."""


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


# --- clipping and gaps ------------------------------------------------------------------------------------


def clipping_of(found: Model | Combination) -> ClippingFigures:
    assert found.reliability is not None
    assert found.reliability.clipping is not None
    return found.reliability.clipping


def without_numbers(model: Model) -> Model:
    """As an older version has written it."""
    assert model.reliability is not None
    body = json.loads(json.dumps(model.reliability.to_body()))
    del body["clipping"]["told"]
    return replace(model, reliability=Reliability.parse(body, 5))


def with_gaps(people: People) -> People:
    """Every fifth value is missing, and not the same one in each record."""
    features = ("height", "weight", "<b>sex</b>", "age")
    holes = {
        name: [None if (7 * row + place) % 5 == 0 else value for row, value in enumerate(people[name])]
        for place, name in enumerate(features)
    }
    return people | holes


@pytest.mark.parametrize("release", ["joint", "pairs"])
@pytest.mark.parametrize("clip_norm", ["0.1", "0.6"])
def test_two_halves_tell_of_clipping_what_one_study_tells(
    release: str,
    clip_norm: str,
    make_model: Callable[..., Model],
    make_halves: Callable[..., list[Model]],
) -> None:
    terms = CLIPPED | {"release": release, "clip_norm": clip_norm}
    found, whole = combine(make_halves(**terms), OS_RANDOMNESS), make_model(**terms)
    one, other = clipping_of(found), clipping_of(whole)
    assert one.factor is not None
    assert other.factor is not None
    assert one.factor > (20 if clip_norm == "0.1" else 1.05)
    # Each release has its own noise and, in a study of pairs, its own 2,000 pairs.
    slack = 8 * np.hypot(one.factor_deviation or 0, other.factor_deviation or 0) / other.factor
    slack += 0.25 if release == "pairs" else 0.0
    assert one.factor == pytest.approx(other.factor, rel=slack)
    assert one.total_variance == pytest.approx(other.total_variance, rel=slack + 0.05)
    assert one.variances[0] == pytest.approx(other.variances[0], rel=slack + 0.05)
    of_pairs = 0.13 if release == "pairs" else 0.0
    noise = 8 * (one.share_deviation + other.share_deviation)
    assert one.share == pytest.approx(other.share, abs=noise + of_pairs)
    covariance, expected = found.moments.covariance(), whole.moments.covariance()
    assert covariance.factor == one.factor
    spread = np.hypot(covariance.deviations, expected.deviations)
    assert (np.abs(covariance.values - expected.values) < 8 * spread).all()
    assert found.reliability.of_unclipped
    assert found.reliability.draws > 0
    assert CLIPPING_IS_ALLOWED_FOR in found.reliability.about_clipping
    assert found.facts()["not_included"] == found.reliability.about_clipping


def test_missing_values_of_two_halves_add_up(real_key: Any, people: People, halves: list[People]) -> None:
    whole = plain_model(real_key, with_gaps(people), **CLIPPED)
    found = combine([plain_model(real_key, with_gaps(half), **CLIPPED) for half in halves], OS_RANDOMNESS)
    one, other = clipping_of(found).gaps, clipping_of(whole).gaps
    assert one is not None
    assert other is not None
    assert one.share == pytest.approx(other.share, abs=8 * (one.share_deviation + other.share_deviation))
    assert 0.1 < one.share < 0.3
    table = found.moments.correlation()
    assert table.present == one.present < 1
    assert table.values[0, 1] == pytest.approx(whole.moments.correlation().values[0, 1], abs=0.1)
    assert "of all values are missing" in found.reliability.about_clipping


@pytest.mark.parametrize("in_clear", [False, True])
def test_the_noise_on_what_is_told_adds_up(in_clear: bool, make_halves: Callable[..., list[Model]]) -> None:
    models = [make_halves(**CLIPPED)[0], make_halves(**CLIPPED | {"epsilon": 3})[1]]
    one, other = map(clipping_of, models)
    found = clipping_of(combine([replace(model, in_clear=in_clear) for model in models], OS_RANDOMNESS))
    draws = 2 if in_clear else 1
    rows = math.hypot(1000 * one.share_deviation, 3000 * other.share_deviation)
    assert found.share_deviation == pytest.approx(rows * draws**0.5 / 4000)
    assert found.gaps is not None
    assert one.gaps is not None
    assert other.gaps is not None
    gaps = math.hypot(1000 * one.gaps.share_deviation, 3000 * other.gaps.share_deviation)
    assert found.gaps.share_deviation == pytest.approx(gaps * draws**0.5 / 4000)
    assert found.told[0] == one.told[0] + other.told[0]
    # Nearly all uncertainty of a factor is the noise on the squared lengths.
    assert one.factor_deviation is not None
    assert other.factor_deviation is not None
    lengths = math.hypot(1000 * one.factor_deviation, 3000 * other.factor_deviation)
    assert found.factor_deviation == pytest.approx(lengths * draws**0.5 / 4000, rel=0.1)


def test_studies_with_other_units_of_squared_lengths_add_up(
    real_key: Any, halves: list[People], make_model: Callable[..., Model]
) -> None:
    """A study for many records counts squared lengths in coarser units, and another cap clips them too."""
    fine = CLIPPED | {"fraction_bits": 20, "epsilon": 18}
    one = plain_model(real_key, halves[0], **fine | {"max_records": 8_000_000})
    other = plain_model(real_key, halves[1], **fine | {"clip_cap": "1.2"})
    shifts = {model.manifest.figures.clip_shift for model in (one, other)}
    assert len(shifts) == 2
    whole = make_model(**fine)
    found, expected = clipping_of(combine([one, other], OS_RANDOMNESS)), clipping_of(whole)
    assert expected.factor is not None
    assert found.factor == pytest.approx(expected.factor, rel=0.06)
    parts = [clipping_of(model).factor_deviation or 0.0 for model in (one, other)]
    deviation = math.hypot(1000 * parts[0], 3000 * parts[1]) / 4000
    assert found.factor_deviation == pytest.approx(deviation, rel=0.2)


def test_an_estimator_has_the_variances_before_clipping(
    make_halves: Callable[..., list[Model]], tmp_path: Path
) -> None:
    models, paths = make_halves(**CLIPPED), [tmp_path / "0.npz", tmp_path / "1.npz"]
    for path, model in zip(paths, models, strict=True):
        path.write_bytes(model.to_bytes())
    pca, parts = FederatedPCA.from_models(paths), [clipping_of(model) for model in models]
    assert pca.clipped_share_ == pytest.approx(1, abs=0.02)
    totals = [part.total_variance for part in parts if part.total_variance is not None]
    assert min(totals) * 0.95 < (pca.unclipped_total_variance_ or 0) < max(totals) * 1.05
    assert pca.unclipped_variance_ is not None
    assert pca.unclipped_variance_[0] > 20 * pca.explained_variance_[0]


@pytest.mark.parametrize("lacking", ["the study does not tell", "the file is older"])
def test_where_numbers_are_missing_each_study_is_described_by_itself(
    lacking: str, make_halves: Callable[..., list[Model]], tmp_path: Path
) -> None:
    one, other = make_halves(**CLIPPED)
    if lacking == "the file is older":
        other = without_numbers(other)
    else:
        other = make_halves(**{name: CLIPPED[name] for name in ("clip_norm", "epsilon")})[1]
    assert one.reliability is not None
    assert one.reliability.draws > 0
    found = combine([one, other], OS_RANDOMNESS)
    assert found.reliability.draws == 0
    assert len(found.reliability.share_low) == len(found.reliability.overlap_high) == 0
    assert not found.reliability.of_unclipped
    assert found.moments.covariance().factor == 1
    said, told = found.reliability.about_clipping, clipping_of(one)
    assert "told per study. It is not corrected here" in said
    assert f"{told.factor:.3g} ±" in said
    assert "have no percentiles" in said
    assert CLIPPING_IS_NOT_SEEN not in said
    for model in (one, other):
        assert model.study.hex() in said
    first, second = found.facts()["by_study"]
    assert (first["clipped_share"], first["factor"]) == (told.share, told.factor)
    assert (second["factor"] is None) == (lacking == "the study does not tell")
    paths = [tmp_path / "one.npz", tmp_path / "other.npz"]
    for path, model in zip(paths, (one, other), strict=True):
        path.write_bytes(model.to_bytes())
    pca = FederatedPCA.from_models(paths)
    assert pca.clipped_share_ is None
    assert pca.unclipped_variance_ is None
    assert pca.reliability_ is not None
    assert pca.reliability_.about_clipping == said


def test_percentiles_about_clipped_records_need_few_of_them(make_halves: Callable[..., list[Model]]) -> None:
    few = {"clip_norm": "1.2", "epsilon": 30}
    one, other = make_halves(**few, clip_share="0.1")[0], make_halves(**few)[1]
    assert clipping_of(one).share < 0.4
    reliability = combine([one, other], OS_RANDOMNESS).reliability
    assert reliability.draws > 0
    assert "is about the clipped records" in reliability.about_clipping
    assert "have no percentiles" not in reliability.about_clipping


def test_where_no_study_tells_nothing_is_known(make_halves: Callable[..., list[Model]]) -> None:
    found = combine(make_halves(), OS_RANDOMNESS)
    assert found.reliability.about_clipping == CLIPPING_IS_NOT_SEEN
    assert [each["clipped_share"] for each in found.facts()["by_study"]] == [None, None]


@pytest.mark.parametrize("is_told", [True, False])
def test_the_command_and_its_file_tell_what_clipping_did(
    is_told: bool, make_halves: Callable[..., list[Model]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = make_halves(**CLIPPED)
    files = [one.to_bytes(), (other if is_told else without_numbers(other)).to_bytes()]
    table, out = tmp_path / "covariance.csv", tmp_path / "both.npz"
    show_combination(files, {"covariance": table}, out, False, remove_noise=True, positive=False)
    said = " ".join(capsys.readouterr().out.split())
    factor = clipping_of(one).factor
    assert factor is not None
    assert f"× {factor:.3g}" in said
    assert ("to allow for clipping" in said) == is_told
    assert ("told per study. It is not corrected here" in said) != is_told
    with np.load(out, allow_pickle=False) as arrays:
        facts = json.loads(arrays["metadata"].tobytes())
    assert facts["not_included"] in said
    assert (facts["reliability"]["clipping"] is not None) == is_told
    assert facts["by_study"][0]["factor"] == factor
