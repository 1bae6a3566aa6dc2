"""Outlier scores: that they are what their names say, for one record as for many, and when there are none."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.result.components import Components, EncodedSpace, Floats, Lifted, finite_size_factor
from dpdpca_protocol.result.outliers import OutlierScores

D = 6
VARIANCES = np.array([4.0, 2.0, 0.5, 0.25, 0.2, 0.05])


@pytest.fixture(scope="module")
def components() -> Components:
    """Six axes in oblique directions, with so little noise that every component is a true one."""
    vectors = np.linalg.qr(np.vander(np.linspace(0.5, 2, D)))[0].T
    noise = 1e-6
    return Components(
        space=EncodedSpace(tuple("abcdef"), np.zeros(D), np.arange(1.0, D + 1), common=False),
        count=2000,
        vectors=vectors,
        eigenvalues=VARIANCES,
        noise_edges=np.array([1e-5, 1e-5, 1e-5, 1.0, 1.0, 1.0]),
        captured=np.where(VARIANCES >= 0.5, VARIANCES, 0.0),
        signals=np.where(VARIANCES >= 0.5, VARIANCES, 0.0),
        overlaps=np.where(VARIANCES >= 0.5, 1.0, 0.0),
        noise_scale=noise,
        noise_edge=2 * noise / np.sqrt(2) * np.sqrt(D) * finite_size_factor(D),
        total_variance=float(VARIANCES.sum()),
        mean=np.linspace(-1, 1, D),
    )


@pytest.fixture(scope="module")
def rows(components: Components) -> Floats:
    source = np.random.default_rng(8)  # noqa: TID251 - made-up records, not noise, masks or keys
    scores = source.normal(size=(50, D)) * np.sqrt(VARIANCES)
    found: Floats = scores @ components.vectors * components.space.scale + components.origin
    return found


def test_t2_is_the_distance_of_mahalanobis_within_the_components(
    components: Components, rows: Floats
) -> None:
    outliers = OutlierScores.of(components)
    centred = (rows - components.origin) / components.space.scale
    inverse = components.vectors[:3].T @ np.diag(1 / VARIANCES[:3]) @ components.vectors[:3]
    assert outliers.k == 3
    assert outliers.t2(rows) == pytest.approx(np.einsum("ni,ij,nj->n", centred, inverse, centred))
    assert outliers.spe(rows) == pytest.approx(((centred @ components.vectors[3:].T) ** 2).sum(axis=1))


def test_contributions_add_up_and_name_the_odd_feature(components: Components, rows: Floats) -> None:
    outliers = OutlierScores.of(components)
    assert outliers.t2_contributions(rows).sum(axis=1) == pytest.approx(outliers.t2(rows))
    assert outliers.spe_contributions(rows).sum(axis=1) == pytest.approx(outliers.spe(rows))
    outside = 1 - (components.vectors[:3] ** 2).sum(axis=0)
    for score, added, limit, feature in (
        (outliers.t2, outliers.t2_contributions, outliers.t2_limit(0.99), int(outside.argmin())),
        (outliers.spe, outliers.spe_contributions, outliers.spe_limit(0.99), int(outside.argmax())),
    ):
        odd = components.origin.copy()
        odd[feature] += 20 * components.space.scale[feature]
        assert limit is not None
        assert score(odd[None])[0] > limit
        assert added(odd[None]).argmax() == feature


def test_after_a_lift_t2_has_limits_and_spe_has_none(components: Components, rows: Floats) -> None:
    """The figures of a lift say nothing about the variance outside its components."""
    k = components.component_count
    lifted = Lifted(3, 3, np.ones(k), np.ones(k), np.zeros(k, dtype=np.bool_), 0.1)
    full, wide = OutlierScores.of(components), OutlierScores.of(replace(components, lifted=lifted))
    assert (wide.t2(rows) == full.t2(rows)).all()
    assert wide.t2_limit(0.95) == full.t2_limit(0.95)
    assert full.spe_limit(0.95) is not None
    assert wide.spe_limit(0.95) is None
    assert any("no limit for SPE" in line for line in wide.warnings())
    assert not any("no limit for SPE" in line for line in full.warnings())


def test_a_record_has_the_same_scores_alone_as_in_a_table(components: Components, rows: Floats) -> None:
    outliers = OutlierScores.of(components)
    for score in (outliers.t2, outliers.spe):
        alone = np.concatenate([score(row[None]) for row in rows])
        assert alone == pytest.approx(score(rows), rel=1e-12)


def test_limits_are_those_of_known_laws(components: Components) -> None:
    """With many records T² follows χ²; the residual has three directions of nearly equal variance."""
    outliers = OutlierScores.of(replace(components, count=10**9))
    assert outliers.t2_limit(0.95) == pytest.approx(chi2.ppf(0.95, 3), rel=1e-6)
    few = OutlierScores.of(replace(components, count=20))
    assert few.t2_limit(0.95) > outliers.t2_limit(0.95)
    assert OutlierScores.of(replace(components, count=3)).t2_limit(0.95) == pytest.approx(chi2.ppf(0.95, 3))
    g = (VARIANCES[3:] ** 2).sum() / VARIANCES[3:].sum()
    h = VARIANCES[3:].sum() / g
    assert outliers.spe_limit(0.95) == pytest.approx(g * chi2.ppf(0.95, h), rel=1e-6)


def test_without_all_components_spe_has_no_limit(components: Components, rows: Floats) -> None:
    part = OutlierScores.of(components.leading(4))
    assert part.spe_limit(0.95) is None
    assert part.spe(rows) == pytest.approx(OutlierScores.of(components).spe(rows))


def test_only_components_near_the_true_ones_are_used(components: Components) -> None:
    turned = replace(components, overlaps=np.array([0.95, 0.7, 0.95, 0, 0, 0]))
    assert OutlierScores.of(turned).k == 1
    assert OutlierScores.of(turned).warnings() == ()
    assert "only 84% as large" in OutlierScores.of(turned, 3).warnings()[0]
    assert OutlierScores.of(turned, 6).k == 3
    assert OutlierScores.of(replace(components, overlaps=np.full(D, 0.5))).k == 1


def test_warnings_name_few_records_and_a_noisy_limit(components: Components) -> None:
    assert (
        "more features (6) than records (5)" in OutlierScores.of(replace(components, count=5)).warnings()[0]
    )
    noisy = OutlierScores.of(replace(components, noise_scale=0.1)).warnings()
    assert len(noisy) == 1
    assert "the limit of SPE is only a rough guide" in noisy[0]


def test_without_a_mean_or_a_component_there_are_no_scores(components: Components) -> None:
    for changed, slug in (
        (replace(components, mean=None), "no-mean"),
        (replace(components, noise_edges=np.full(D, 9.0)), "nothing-above-noise"),
    ):
        with pytest.raises(ConflictError) as refused:
            OutlierScores.of(changed)
        assert refused.value.slug == slug
