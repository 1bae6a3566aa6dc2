"""The report: one HTML file that needs no network, no script and no other file.

Text from outside (titles, names of features and parties) is escaped before it is inserted. The content
security policy of the page forbids loading anything.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.result.components import BELOW_THE_EDGE, LOWER_BOUND, VARIANCE, Components
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.statements import privacy_statements, result_guarantee
from dpdpca_protocol.wire.fields import read_time
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_user.results.figures import SCREE_COMPONENTS, biplot, escaped, number, scree_plot
from dpdpca_user.results.loading_figures import (
    CIRCLE_FEATURES,
    correlation_circle,
    has_spreads,
    loading_bars,
)
from dpdpca_user.results.model import Model, assumptions, claim
from dpdpca_user.results.reliability import Reliability
from dpdpca_user.results.style import STYLE

_HEAT_COMPONENTS = 8
_HEAT_FEATURES = 40
_PHASES = {
    "closed": "waited for the shares of all owners, until the study closed",
    "count": "added up, and waited for the proof of the number of records",
    "release": "made and signed the release",
}
"""What the proxy did before each of these events of its transcript."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class Table:
    """A table of plain text that precedes the studies, such as the comparison of the demo."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """What `dpdpca user verify` says of a study: a line for each check that holds, and the first problem."""

    held: Sequence[str]
    problem: str = ""


def render_report(
    models: Sequence[Model],
    made_at: str,
    tables: Sequence[Table] = (),
    verified: Mapping[StudyId, Verification] | None = None,
) -> str:
    """The report of one or several models, as HTML text.

    Args:
        models: the models, in the order of their sections.
        made_at: when the report was made, as text.
        tables: tables that precede the studies.
        verified: the verification of each study whose signed statements are at hand. A model file has only
            their digests.
    """
    title = escaped(models[0].manifest.title if models else "Report", 200)
    sections = "".join(_study(model, (verified or {}).get(model.study)) for model in models)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>"
        f"<header><p>Differentially private principal components</p><h1>{title}</h1>"
        f"<p>Made {escaped(made_at)}.</p></header>"
        f"{''.join(_plain_table(table) for table in tables)}{sections}</main></body></html>\n"
    )


def _study(model: Model, verification: Verification | None) -> str:
    manifest, components = model.manifest, model.components
    k = min(5, components.component_count)
    facts = [
        ("Release", str(manifest.release)),
        ("Pairs of records" if model.is_of_pairs else "Records", f"{components.count:,}"),
        ("Owners", str(len(model.provenance.owners))),
        ("Privacy of one record", _promise(manifest)),
        ("Components above the noise", f"{components.trusted_count} of {components.component_count}"),
        (
            f"Variance captured by the first {k}, as a share of what the best {k} capture",
            _share(model, k, "about ", "at least "),
        ),
        ("Total variance", _total(components, model.reliability)),
        *_about_clipping(model),
    ]
    cards = "".join(f"<div><dt>{name}</dt><dd>{escaped(value)}</dd></div>" for name, value in facts)
    return (
        f"<article><h2><bdi>{escaped(manifest.title, 200)}</bdi>: {manifest.release} release</h2>"
        f"<p>{escaped(manifest.purpose, 4000)}</p><dl class='cards'>{cards}</dl>"
        f"{_privacy(model)}{_spectrum(model)}{_loadings(model)}"
        f"{_circle(model)}{_biplot(components)}"
        f"{_cohort(model)}{_spent(model)}{_verification(model, verification)}{_trail(model)}</article>"
    )


def _privacy(model: Model) -> str:
    manifest, figures = model.manifest, model.manifest.figures
    lines = "".join(f"<li>{escaped(line, 400)}</li>" for line in assumptions(model))
    second = ", and once by the data user" if model.has_second_noise else ""
    facts = [
        ("Mechanism", f"discrete {manifest.mechanism}, exact, drawn once by the {manifest.noise_by}{second}"),
        ("Relation", f"{manifest.relation}; the number of records is public"),
        *(("Noise", line) for line in privacy_statements(figures)),
        ("ρ (zero-concentrated)", _rho(figures)),
        ("Clip norm r", number(float(manifest.clip_norm))),
        ("Scale of the noise, in scaled units", number(float(figures.noise_scale) / figures.grid**2)),
        ("Noise of a variance", number(model.components.noise_scale)),
    ]
    return (
        "<section class='privacy'><h3>What is guaranteed, and against whom</h3>"
        f"<p>{escaped(claim(model), 1000)}</p>"
        f"<h4>Assumptions</h4><ul>{lines}</ul>{_facts(facts)}</section>"
    )


def _promise(manifest: Manifest) -> str:
    over = ", over all rounds of its chain" if manifest.rho_share < 1 else ""
    return f"{result_guarantee(manifest)}{over}"


def _rho(figures: Figures) -> str:
    whole = f" of {number(float(figures.rho_total))} for all rounds" if figures.rho_share < 1 else ""
    return f"{number(float(figures.rho))}{whole}"


def _about_clipping(model: Model) -> list[tuple[str, str]]:
    clipping = None if model.reliability is None else model.reliability.clipping
    if clipping is None:
        return []
    rows = "Clipped differences of pairs" if model.is_of_pairs else "Clipped records"
    facts = [(rows, f"{clipping.share:.1%} ± {clipping.share_deviation:.1%}")]
    if clipping.total_variance is not None and clipping.total_variance_deviation is not None:
        total = f"{number(clipping.total_variance)} ± {number(clipping.total_variance_deviation)}"
        facts.append((f"Total variance {clipping.before}", total))
    if (gaps := clipping.gaps) is not None:
        facts.append(("Missing values", f"{gaps.share:.1%} ± {gaps.share_deviation:.1%}"))
    return facts


def _before_clipping(reliability: Reliability | None, index: int) -> tuple[str, ...]:
    """Variance before clipping with its deviation, and its interval; nothing if no component has one."""
    clipping = None if reliability is None else reliability.clipping
    if clipping is None or clipping.factor is None:
        return ()
    if index >= len(clipping.variances):
        return "–", "–"
    value, deviation, low, high = (
        number(float(each[index]))
        for each in (clipping.variances, clipping.deviations, clipping.low, clipping.high)
    )
    return f"{value} ± {deviation}", f"{low} to {high}"


def _before_header(reliability: Reliability | None) -> tuple[str, ...]:
    clipping = None if reliability is None else reliability.clipping
    return (clipping.before, "5 to 95 %") if clipping is not None and clipping.factor is not None else ()


def _total(components: Components, reliability: Reliability | None) -> str:
    if reliability is None or not reliability.has_intervals:
        return number(components.total_variance)
    return f"{number(components.total_variance)} ± {number(reliability.total_variance_deviation)}"


def _spectrum(model: Model) -> str:
    components, reliability = model.components, model.reliability
    shown = min(components.component_count, SCREE_COMPONENTS)
    rows = [
        (
            str(index + 1),
            number(float(components.eigenvalues[index])),
            number(float(components.noise_edges[index])),
            _captured(components, index),
            *_before_clipping(reliability, index),
            number(float(components.overlaps[index])) if components.overlaps[index] > 0 else "–",
            _point(reliability, "overlap_low", index),
            _share(model, index + 1, "", "≥ "),
            _point(reliability, "share_low", index),
            components.label(index),
        )
        for index in range(shown)
    ]
    header = (
        *("#", "released", "noise edge", _CAPTURED[components.variance_kind]),
        *_before_header(reliability),
        *("predicted cos²", "5 % point"),
        *("share of the best k", "5 % point", ""),
    )
    more = components.component_count - shown
    return (
        f"<section><h3>Spectrum</h3><figure>{_drawn(scree_plot(components))}"
        f"<figcaption>{_bars_and_edge(components)} Components above the edge: "
        f"{components.trusted_count}; those below are {BELOW_THE_EDGE}. The predicted cos² with the true "
        "component is too high where eigenvalues are close. The variance that the first k components"
        " capture, "
        f"as a share of what the best k capture, is an estimate above the edge{_bounds(reliability)}."
        f"{_draws(reliability)} {model.not_included}</figcaption></figure>{_table(header, rows)}"
        + (f"<p>Further components in the model file: {more}.</p>" if more else "")
        + "".join(f"<p class='note'>{escaped(line, 400)}</p>" for line in model.notes)
        + "</section>"
    )


_CAPTURED = {VARIANCE: "captured variance", LOWER_BOUND: "captured variance, at least"}


def _bars_and_edge(components: Components) -> str:
    if components.lifted is None:
        return (
            "Light bars: eigenvalues as released, with noise. Dark bars: the estimated variance that each"
            " component captures. Noise alone exceeds the edge in at most 2 of 100 releases."
        )
    return (
        "Bars: the variance that each component has, or a lower bound. The edge is that of the lift, as"
        " the variance that a component needs to be above it: noise alone exceeds it in at most 1 of 100"
        " releases."
    )


def _captured(components: Components, index: int) -> str:
    lifted = components.lifted
    captured = number(float(components.captured[index]))
    if lifted is None or lifted.deviations is None:
        return captured
    return f"{captured} ± {number(float(lifted.deviations[index]))}"


def _point(reliability: Reliability | None, name: str, index: int) -> str:
    values = () if reliability is None else getattr(reliability, name)
    return number(float(values[index])) if index < len(values) else "–"


def _share(model: Model, k: int, about: str, at_least: str) -> str:
    """The share that the first k components capture, after `about` or, for a lower bound, `at_least`."""
    share, is_estimate = model.components.captured_share(k)
    if not is_estimate and not _has_intervals(model.reliability):
        return "–"
    return f"{about if is_estimate else at_least}{share:.0%}"


def _has_intervals(reliability: Reliability | None) -> bool:
    return reliability is None or reliability.has_intervals


def _bounds(reliability: Reliability | None) -> str:
    return " and a lower bound (≥) below it" if _has_intervals(reliability) else ""


def _draws(reliability: Reliability | None) -> str:
    if reliability is None or not reliability.draws:
        return ""
    return f" The 5 % points come from drawing the known noise again {reliability.draws} times."


def _loadings(model: Model) -> str:
    components = model.components
    k = min(components.component_count, _HEAT_COMPONENTS)
    weight = np.abs(components.vectors[:k]).max(axis=0)
    order = np.sort(np.argsort(-weight, kind="stable")[:_HEAT_FEATURES])
    head = "".join(f"<th{_dim(components, index)}>{index + 1}</th>" for index in range(k))
    body = "".join(
        f"<tr><th>{escaped(components.space.names[feature])}</th>"
        + "".join(_heat(float(components.vectors[index, feature])) for index in range(k))
        + "</tr>"
        for feature in order
    )
    hidden = len(components.space.names) - len(order)
    note = f" Features left out because their loadings are the smallest: {hidden}." if hidden else ""
    metric = "original units" if components.space.common else "half-ranges of the features"
    return (
        "<section><h3>Loadings</h3><div class='wide'><table class='heat'><thead><tr><th>feature</th>"
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<p class='note'>Unit vectors in {metric}. Grey columns are {BELOW_THE_EDGE}.{note}</p>"
        f"{_bars(model)}</section>"
    )


def _bars(model: Model) -> str:
    charts = () if model.reliability is None or model.is_wide else loading_bars(model.moments)
    figures = "".join(
        f"<figure><figcaption>Component {index}</figcaption>{_drawn(chart)}</figure>"
        for index, chart in enumerate(charts, 1)
    )
    if not figures:
        return ""
    lines = " Thin lines reach two standard deviations of the noise to either side."
    return (
        f"<h4>The largest loadings of the first components</h4>{figures}<p class='note'>Unit vectors times"
        f" the spread of the component.{lines if has_spreads(model.moments) else ''}</p>"
    )


def _circle(model: Model) -> str:
    drawing = "" if model.reliability is None or model.is_wide else correlation_circle(model.moments)
    if not drawing:
        return ""
    ellipses = " With 95 % probability, the noise leaves a feature within its ellipse."
    return (
        f"<section><h3>Correlation circle</h3><figure>{_drawn(drawing)}"
        "<figcaption>The correlation of each feature"
        " with the first two components. A feature near the circle is described by them almost completely."
        f"{ellipses if has_spreads(model.moments) else ''} At most"
        f" {CIRCLE_FEATURES} features are shown, those with the largest"
        " correlations.</figcaption></figure></section>"
    )


def _biplot(components: Components) -> str:
    drawing = biplot(components)
    if not drawing:
        return ""
    return (
        f"<section><h3>Biplot</h3><figure>{_drawn(drawing)}"
        "<figcaption>The direction of each feature in the plane of "
        "the first two components. Lengths are loadings times the spread of the component. The shortest "
        "arrows have no name.</figcaption></figure></section>"
    )


def _cohort(model: Model) -> str:
    rows = [
        (owner.name or "(no name)", owner.owner[:16], str(owner.version), owner.statement[:16])
        for owner in model.provenance.owners
    ]
    header = ("owner", "key", "share version", "signed statement")
    return f"<section><h3>Cohort</h3>{_table(header, rows)}</section>"


def _spent(model: Model) -> str:
    figures, owners = model.manifest.figures, len(model.provenance.owners)
    sent = figures.sealed_bytes
    rows = [
        ("each owner", "sent one sealed share", "–", f"{sent:,}"),
        ("proxy", f"received {owners} of them", "–", f"{owners * sent:,}"),
        *(("proxy", *phase, "–") for phase in _phases(model)),
        ("proxy", "sent the release to the data user", "–", f"{figures.released_bytes:,}"),
        *(("data user", step, f"{time:.2f} s", "–") for step, time in model.provenance.seconds.items()),
    ]
    return (
        "<section><h3>Seconds and bytes by role</h3>"
        f"{_table(('role', 'what it did', 'time', 'bytes'), rows, 'figures')}"
        "<p class='note'>Times of the proxy are those between its signed events, in whole seconds. Owners"
        " tell nobody how long they took. Bytes are those of shares and release, without signed"
        " statements.</p></section>"
    )


def _phases(model: Model) -> Iterator[tuple[str, str]]:
    """What the proxy did, and how long, between those events of its transcript that end a phase."""
    kinds = ("manifest", *_PHASES)
    try:
        events = [
            (entry.kind, read_time(entry.time, "time"))
            for entry in model.provenance.trail
            if entry.kind in kinds
        ]
    except MessageError:
        return  # an older model file
    for (_, begin), (kind, end) in pairwise(events):
        if kind in _PHASES:
            yield _PHASES[kind], _duration(round((end - begin).total_seconds()))


def _duration(seconds: int) -> str:
    """The two largest units; the full seconds below two minutes."""
    if seconds < 2 * _MINUTE:
        return f"{seconds} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min {seconds % _MINUTE} s"
    if seconds < _DAY:
        return f"{seconds // _HOUR} h {seconds % _HOUR // _MINUTE} min"
    return f"{seconds // _DAY} d {seconds % _DAY // _HOUR} h"


def _verification(model: Model, verification: Verification | None) -> str:
    command = f"<code>dpdpca user verify {model.study.hex()}</code>"
    if verification is None:
        body = (
            "<p>Nothing was verified for this report. It was made from a model file, which contains only"
            f" digests of the signed statements. {command} checks the statements at the data user.</p>"
        )
    else:
        lines = "".join(f"<li>{escaped(line, 400)}</li>" for line in verification.held)
        problem = (
            f"<p class='problem'><strong>A check failed:</strong> {escaped(verification.problem, 1000)}</p>"
            if verification.problem
            else ""
        )
        body = (
            "<p>Checked when this report was made, from the statements that the data user's service has"
            f" stored. {command} checks them again.</p>{problem}<ul class='held'>{lines}</ul>"
        )
    return f"<section><h3>Verification</h3>{body}</section>"


def _trail(model: Model) -> str:
    manifest, provenance = model.manifest, model.provenance
    facts = [
        ("Study", model.study.hex()),
        ("Manifest, signed by the data user", provenance.manifest),
        ("Release, signed by the proxy", provenance.release),
        ("Software of the proxy, as it states", provenance.software or "not stated"),
        ("Cohort", provenance.cohort),
        (f"Data user {manifest.user.name}", manifest.user.ed25519.hex()),
        (f"Proxy {manifest.proxy.name}", manifest.proxy.ed25519.hex()),
    ]
    rows = [(entry.time, entry.kind, entry.digest) for entry in provenance.trail]
    return (
        "<section><h3>Signed statements</h3>"
        "<p>SHA-256 digests of signed statements, and raw Ed25519 keys.</p>"
        f"{_facts(facts, 'mono')}"
        f"<div class='wide mono'>{_table(('time', 'event', 'digest'), rows)}</div></section>"
    )


def _drawn(svg: str) -> str:
    """A drawing that keeps a legible size, and scrolls, on a narrow screen."""
    return f"<div class='wide'>{svg}</div>"


def _facts(facts: Iterable[tuple[str, str]], kind: str = "") -> str:
    items = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value, 400)}</dd>" for name, value in facts)
    return f"<dl class='facts {kind}'>{items}</dl>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    head = "".join(f"<th>{escaped(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escaped(cell, 200)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<div class='wide {kind}'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _plain_table(table: Table) -> str:
    note = f"<p class='note'>{escaped(table.note, 1000)}</p>" if table.note else ""
    return f"<section><h2>{escaped(table.title, 200)}</h2>{_table(table.header, table.rows)}{note}</section>"


def _heat(loading: float) -> str:
    tone = "plus" if loading >= 0 else "minus"
    return f'<td class="{tone}" style="--s:{min(abs(loading), 1):.2f}">{loading:+.2f}</td>'


def _dim(components: Components, index: int) -> str:
    return ' class="dim"' if components.label(index) else ""
