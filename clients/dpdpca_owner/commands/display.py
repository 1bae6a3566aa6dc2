"""Shows the consent sheet, the dry run, progress and components on a terminal.

Texts that others wrote are never interpreted as markup.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from dpdpca_owner.accounts.charge import Charge, Spend, SpendState
from dpdpca_owner.consent import ConsentSheet, shown_features
from dpdpca_owner.dry_run import DryRun
from dpdpca_owner.projection import record_count
from dpdpca_owner.reports import Report, Unread
from dpdpca_owner.sending import SendWatcher
from dpdpca_owner.summary import Summary
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.result.components import BELOW_THE_EDGE, Components
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.statements import about_shortened
from dpdpca_protocol.wire.fields import decimal_text
from dpdpca_runtime.text import for_terminal

_LOADINGS = 3
_MOST_FINDINGS = 20
"""Of a list of features, a dry run shows so many with missing, unusable or extreme values."""


def show_sheet(sheet: ConsentSheet, console: Console) -> None:
    manifest = sheet.manifest
    console.print(Text(manifest.title, style="bold"))
    console.print(Text(f"study {sheet.study.signed.study_id.hex()}", style="dim"))
    console.print(_summary_box(sheet.summary()))
    for heading, lines in sheet.sections():
        console.print(Text(f"\n{heading}", style="bold"))
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    console.print()
    if sheet.dry_run is None:
        _show_features(manifest, console)
    else:
        show_dry_run(sheet.dry_run, manifest, console)


def _summary_box(summary: Summary) -> Panel:
    """What matters most. Warnings stand first, because they may end the reading."""
    text = Text("\n").join(
        [
            *(Text(f"WARNING: {warning}\n", style="bold red") for warning in summary.warnings),
            Text.assemble(("What leaves\n", "bold"), summary.leaves, "\n"),
            Text.assemble(("What ε means\n", "bold"), summary.meaning, "\n"),
            Text.assemble(("Who together could learn more\n", "bold"), "\n".join(summary.together)),
        ]
    )
    return Panel(text, title="What matters most", title_align="left", padding=(1, 2))


def _show_features(manifest: Manifest, console: Console) -> None:
    table = Table("feature", "kind", "bounds or levels", "unit", title="Features", title_justify="left")
    for feature in shown_features(manifest):
        if feature.lower is None or feature.upper is None:
            span = ", ".join(map(for_terminal, feature.levels))
        else:
            span = f"{decimal_text(feature.lower)} to {decimal_text(feature.upper)}"
            span += "" if feature.scale is None else f", in units of {decimal_text(feature.scale)}"
        unit = Text(for_terminal(feature.unit or ""))
        table.add_row(Text(for_terminal(feature.name)), feature.kind, Text(span), unit)
    console.print(table)


def show_dry_run(dry_run: DryRun, manifest: Manifest, console: Console) -> None:
    report = dry_run.report
    table = Table(
        "feature",
        "column",
        "missing",
        "unusable",
        "out of bounds",
        title="Dry run on your data",
        title_justify="left",
    )
    rows: Iterable[Any] = zip(
        manifest.features,
        dry_run.columns,
        report.missing,
        report.unusable,
        report.out_of_bounds,
        strict=True,
    )
    if manifest.feature_list is not None:
        rows = islice((row for row in rows if any(row[2:])), _MOST_FINDINGS)
    for feature, column, *counts in rows:
        shares = (_share(count, report.records) for count in counts)
        table.add_row(Text(for_terminal(feature.name)), Text(for_terminal(column)), *shares)
    console.print(table)
    console.print(
        f"{report.records} records were read. {report.accepted} are used, and {report.dropped} are left"
        f" out because a value is missing. {_share(report.clipped, report.accepted)} were clipped to the norm"
        " bound. Nothing was sent."
    )
    for note in dry_run.notes:
        console.print(Text(f"note: {note}"))


def _share(count: int, of: int) -> str:
    return f"{count} ({count / of:.1%})" if count and of else str(count)


@contextmanager
def watching(pieces: int, share_bytes: int, *, quiet: bool) -> Iterator[Watcher]:
    """Show two progress bars if stderr is a terminal: one for encrypting and one for sending.

    Args:
        pieces: how many ciphertexts, or values under pads, there are to make.
        share_bytes: how many bytes there are to send.
    """
    if quiet or not sys.stderr.isatty():
        yield Watcher()
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
    ) as progress:
        encrypting = progress.add_task("encrypting", total=pieces)
        sending = progress.add_task("sending (bytes)", total=share_bytes)
        yield Watcher(
            lambda count: progress.advance(encrypting, count), lambda sent: progress.advance(sending, sent)
        )


@contextmanager
def sending(*, quiet: bool) -> Iterator[SendWatcher]:
    """Show a progress bar for the bytes of a folder if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield SendWatcher()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task("sending (bytes)", total=None)
        yield SendWatcher(
            lambda total: progress.update(task, total=total), lambda sent: progress.advance(task, sent)
        )


@contextmanager
def counting(what: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a line with the number done and the speed if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda count: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TaskProgressColumn(show_speed=True))
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task(what, total=None)
        yield lambda count: progress.advance(task, count)


def components_facts(found: Components, manifest: Manifest, out: Path | None) -> dict[str, Any]:
    """What `components --json` prints."""
    return {
        "records": record_count(found, manifest),
        "names": list(found.space.names),
        "components": found.vectors.tolist(),
        "explained_variance": found.eigenvalues.tolist(),
        "noise_edges": found.noise_edges.tolist(),
        "trusted_components": found.trusted_count,
        "origin": found.origin.tolist(),
        "out": str(out) if out else None,
    }


def show_components(components: Components, manifest: Manifest, console: Console) -> None:
    table = Table(
        "component",
        "variance",
        "noise edge",
        "",
        "largest loadings",
        title="Components",
        title_justify="left",
    )
    names = components.space.names
    for index in range(components.component_count):
        loadings = components.vectors[index]
        leaders = sorted(range(len(names)), key=lambda j: -abs(loadings[j]))[:_LOADINGS]
        table.add_row(
            str(index + 1),
            f"{components.eigenvalues[index]:.4g}",
            f"{components.noise_edges[index]:.4g}",
            components.label(index),
            Text(", ".join(f"{for_terminal(names[j])} {loadings[j]:+.2f}" for j in leaders)),
        )
    console.print(table)
    trusted, count = components.trusted_count, components.component_count
    console.print(
        f"{record_count(components, manifest)} records; {trusted} of {count} components are above the noise"
        + ("" if trusted == count else f"; the others are {BELOW_THE_EDGE}")
    )
    if shortened := about_shortened(manifest):
        console.print(shortened)


def booked_text(spend: Spend, state: str = "", *, is_withdrawn: bool = False) -> str:
    """What the ledger says about a study, in words."""
    epsilon = epsilon_text(spend.charge)
    if not spend.is_live:
        return f"{spend.state}: the cost of this study ({epsilon}) is refunded"
    if spend.is_final:
        return f"{epsilon} stays booked: a blinded study is never refunded once part of the share was sent"
    if state == StudyState.FAILED:
        return f"{epsilon} stays booked: a failed study is not refunded, because its shares had been sent"
    if is_withdrawn:
        return (
            f"{epsilon} stays booked until the data user has signed that it cancelled the study, or that it"
            " opened a cohort without this share; then `dpdpca owner status` refunds it"
        )
    receipted = "" if spend.state is SpendState.COMMITTED else ", but the proxy has not signed a receipt yet"
    return f"{epsilon} booked{receipted}"


def epsilon_text(charge: Charge) -> str:
    """The ε that is proved for one study, in words."""
    return "no proved privacy" if charge.epsilon is None else f"ε = {decimal_text(charge.epsilon)}"


def status_facts(report: Report) -> dict[str, Any]:
    """What `status --json` prints about one study."""
    facts, inclusion = report.facts, report.inclusion
    receipt = inclusion.receipt
    return {
        "address": str(report.address),
        "study": report.address.study.hex(),
        "title": facts.title,
        "state": facts.state,
        "release": facts.release,
        "owners_complete": facts.owners_complete,
        "min_owners": facts.min_owners,
        "closes_at": facts.closes_at,
        "failure": facts.failure,
        "receipt": None
        if receipt is None
        else {"subject": receipt.subject, "version": receipt.version, "time": receipt.time},
        "included": inclusion.included,
        "booked": None if report.spend is None else str(report.spend.state),
        "is_ledger_whole": report.is_ledger_whole,
        "proxy_log": None
        if report.log is None
        else {"generation": report.log.generation, "head": report.log.head.hex()},
        "transcript": {"events": len(inclusion.events), "head": report.transcript.hex()},
        "software": None
        if report.software is None
        else {"text": report.software.text, "is_accepted": report.software.holds},
    }


def unread_facts(unread: Unread) -> dict[str, Any]:
    """What `status --json` prints about a study whose status could not be read."""
    return {
        "study": unread.study.hex(),
        "title": None if unread.spend is None else unread.spend.charge.title,
        "state": None,
        "booked": None if unread.spend is None else str(unread.spend.state),
        "problem": {"type": unread.error.slug, "detail": str(unread.error)},
    }


def unread_text(unread: Unread) -> str:
    """The study, the reason why its state is not known, and what the ledger has booked: one line for each."""
    title = "a study" if unread.spend is None else unread.spend.charge.title
    lines = [
        f"{for_terminal(title)}  ({unread.study.hex()[:16]}…)",
        f"  state    not known: {for_terminal(str(unread.error))}",
    ]
    if unread.spend is not None:
        lines.append(f"  ledger   {booked_text(unread.spend)}")
    return "\n".join(lines)


def status_text(report: Report, *, with_heads: bool = False) -> str:
    """Several lines for a person; `with_heads`, also the heads that owners can compare with one another."""
    facts, inclusion = report.facts, report.inclusion
    receipt = inclusion.receipt
    lines = [
        f"{facts.title}  ({report.address.study.hex()[:16]}…)",
        f"  state    {facts.state}" + (f": {facts.failure_detail or facts.failure}" if facts.failure else ""),
        f"  owners   {facts.owners_complete} joined, {facts.min_owners} needed; closes at {facts.closes_at}",
    ]
    if receipt is None:
        lines.append("  yours    no share")
    else:
        subject = "share" if receipt.subject == "share" else "withdrawal"
        lines.append(f"  yours    {subject} version {receipt.version}, receipt of {receipt.time}")
    if inclusion.included is not None:
        lines.append(
            "  cohort   includes this share; the proxy signed this"
            if inclusion.included
            else "  cohort   includes no share of this owner, which is correct"
        )
    if report.spend is not None:
        is_withdrawn = receipt is not None and receipt.subject == "withdrawal"
        lines.append(f"  ledger   {booked_text(report.spend, facts.state, is_withdrawn=is_withdrawn)}")
    if report.software is not None:
        refused = "" if report.software.holds else "; your policy does not accept this software"
        lines.append(f"  software {report.software.text}{refused}")
    if report.is_ledger_whole is False:
        lines.append(
            "  ledger   lacks entries that it had when the share was signed: the ledger was replaced"
        )
    if with_heads:
        lines.append(f"  study    head after {len(inclusion.events)} events: {report.transcript.hex()}")
        if report.log is not None:
            lines.append(
                f"  proxy    head of the log at generation {report.log.generation}: {report.log.head.hex()}"
            )
    return "\n".join(lines)
