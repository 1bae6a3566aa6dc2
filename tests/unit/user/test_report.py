"""The report parsed as HTML: well formed, self-contained, and inert whatever strangers called things."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from report_page import Page

from dpdpca_user.results.figures import escaped
from dpdpca_user.results.loading_figures import correlation_circle, loading_bars
from dpdpca_user.results.model import Contribution, Model, TrailEntry
from dpdpca_user.results.report import Table, Verification, render_report


def page_of(*models: Model, tables: tuple[Table, ...] = ()) -> Page:
    return Page(render_report(models, "2026-11-27 22:00 UTC", tables))


@pytest.mark.parametrize("kind", ["joint_model", "masked_model"])
def test_the_report_is_whole_and_names_what_it_must(kind: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(kind)
    page = page_of(model)
    for words in (
        "noise edge",
        "5 % point",
        "share of the best k",
        "The effect of clipping the records cannot be seen after the release",
        "not distinguishable from noise",
        "replace-one",
        "against the data user",
        "against the proxy only while",
        "do not work together",
        "Cohort",
        "Signed statements",
        "Biplot",
        "Loadings",
        "Seconds and bytes by role",
        "Nothing was verified for this report",
        model.study.hex(),
        model.provenance.release,
        "weight",
        "captured variance",
    ):
        assert words in page.words, words
    assert page.drawings[0] == "Scree plot with the noise edge"
    assert page.drawings[-1] == "Biplot of components 1 and 2"


def test_the_report_loads_nothing(joint_model: Model, masked_model: Model) -> None:
    html = render_report([joint_model, masked_model], "now")
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a"} & set(page.tags)
    for _, name, value in page.attributes:
        assert name not in ("src", "href", "xlink:href", "srcset", "action", "data", "poster", "background")
        assert not name.startswith("on")
        assert "javascript:" not in value.lower()
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", html)
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_what_strangers_wrote_stays_text(joint_model: Model) -> None:
    hostile = "</td><script>alert(1)</script>\"' onload=x \u202e\x1b[31m\x00"
    provenance = replace(
        joint_model.provenance,
        owners=(Contribution("00" * 32, hostile, 1, "11" * 32),),
        seconds={hostile: 1.0},
    )
    model = replace(joint_model, provenance=provenance)
    table = Table(hostile, [hostile], [[hostile]], note=hostile)
    page = page_of(model, tables=(table,))
    assert "script" not in page.tags
    assert "b" not in page.tags  # a feature of the study is called <b>sex</b>
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    assert "<b>sex</b> = f" in page.words
    assert "alert(1)" in page.words
    assert not set("\u202e\x1b\x00") & set("".join(page.text))


def test_it_says_what_was_verified_or_which_check_failed(joint_model: Model) -> None:
    hostile = "<script>alert(1)</script>"
    held = Verification(("the manifest names the pinned proxy", hostile))
    page = Page(render_report([joint_model], "now", verified={joint_model.study: held}))
    assert "the manifest names the pinned proxy" in page.words
    assert hostile in page.words
    assert "script" not in page.tags
    assert "Nothing was verified" not in page.words
    assert "A check failed" not in page.words
    failed = Verification((), "the log was replaced")
    page = Page(render_report([joint_model], "now", verified={joint_model.study: failed}))
    assert "A check failed: the log was replaced" in page.words


@pytest.mark.parametrize("kind", ["joint_model", "masked_model"])
def test_bytes_are_those_of_sealed_shares_and_of_the_release(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model: Model = request.getfixturevalue(kind)
    figures = model.manifest.figures
    assert figures.share_bytes < figures.sealed_bytes
    page = page_of(model)
    assert f"each owner sent one sealed share – {figures.sealed_bytes:,}" in page.words
    assert f"proxy received 3 of them – {3 * figures.sealed_bytes:,}" in page.words
    assert f"proxy sent the release to the data user – {figures.released_bytes:,}" in page.words
    assert "data user decrypt 0.25 s –" in page.words


def test_times_of_the_proxy_are_those_between_its_events(masked_model: Model) -> None:
    def with_events(*events: tuple[str, str]) -> str:
        trail = tuple(TrailEntry(time, kind, "aa" * 32) for time, kind in events)
        return page_of(replace(masked_model, provenance=replace(masked_model.provenance, trail=trail))).words

    words = with_events(
        ("2026-11-27T08:00:00Z", "manifest"),
        ("2026-11-28T09:00:00Z", "receipt"),
        ("2026-11-29T12:30:00Z", "closed"),
        ("2026-11-29T12:33:05Z", "count"),
        ("2026-11-29T12:34:12Z", "release"),
    )
    assert "until the study closed 2 d 4 h –" in words
    assert "the proof of the number of records 3 min 5 s –" in words
    assert "made and signed the release 67 s –" in words
    assert "made and signed" not in with_events(("2026-11-29T12:30:00Z", "closed"), ("later", "release"))


def test_long_foreign_text_is_cut() -> None:
    assert len(escaped("x" * 500)) == 80
    assert escaped("a\nb\tc") == "a b c"


def test_one_component_has_no_biplot_and_many_are_cut_short(
    joint_model: Model, make_model: Callable[..., Model]
) -> None:
    one = make_model(features=[{"name": "height", "lower": 100, "upper": 220}])
    assert page_of(one).drawings == ["Scree plot with the noise edge", "Loadings of component 1"]
    wide = make_model(features=[{"name": "<b>sex</b>", "levels": ["f", "m", *map(str, range(60))]}])
    words = page_of(wide).words
    assert "Further components in the model file: 32" in words
    assert "Features left out because their loadings are the smallest: 22" in words


def test_a_spectrum_without_any_variance_still_draws(joint_model: Model) -> None:
    components = joint_model.components
    flat = replace(
        components,
        eigenvalues=np.zeros(5),
        noise_edges=np.zeros(5),
        captured=np.zeros(5),
        signals=np.zeros(5),
        overlaps=np.zeros(5),
        total_variance=0.0,
    )
    assert page_of(replace(joint_model, components=flat)).drawings == [
        "Scree plot with the noise edge",
        "Biplot of components 1 and 2",
    ]


def test_bars_and_circle_show_what_is_above_the_noise(joint_model: Model) -> None:
    trusted = joint_model.components.trusted_count
    assert trusted >= 2
    page = page_of(joint_model)
    labels = page.drawings
    assert [label for label in labels if label.startswith("Loadings")] == [
        f"Loadings of component {index}" for index in range(1, min(trusted, 3) + 1)
    ]
    assert "Correlation circle" in labels
    circle = correlation_circle(joint_model.moments)
    known = int(joint_model.moments.known_variances.sum())
    assert circle.count("<ellipse") == known
    assert loading_bars(joint_model.moments)[0].count("<rect") == 5


def test_where_noise_hides_all_there_are_no_bars_and_no_circle(joint_model: Model) -> None:
    hidden = replace(joint_model.components, noise_edges=joint_model.components.noise_edges + 1e9)
    page = page_of(replace(joint_model, components=hidden))
    assert not [label for label in page.drawings if label.startswith(("Loadings", "Correlation"))]
    old = page_of(replace(joint_model, reliability=None))
    assert "Correlation circle" not in old.words


def test_bars_are_sorted_and_lie_where_the_loadings_are(joint_model: Model) -> None:
    chart = Page(loading_bars(joint_model.moments)[0])
    titles = [text for text in chart.text if " ± " in text]
    shown = [float(text.rpartition(": ")[2].split(" ± ")[0]) for text in titles]
    assert shown == sorted(shown, reverse=True)
    loadings, _ = joint_model.moments.loadings()
    assert sorted(shown) == pytest.approx(sorted(loadings[0]), rel=0.01, abs=1e-9)
