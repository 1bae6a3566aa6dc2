"""Compares the figures of the demo's studies, for the terminal, the report and JSON."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table as TerminalTable
from rich.text import Text

from dpdpca_cli.demo.comparison import CapturedVariance
from dpdpca_cli.federation.studies import StudyRun
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_user.results.report import Table

_POOLED_NOTE = (
    "Captured variance is measured on the pooled records, in half-ranges of the features, without clipping"
    " of norms. Only the demo can measure this, because it has the records of all owners. In a real study"
    " nobody has all records."
)

_TRUST_NOTE = (
    "Proxy and data user that must not work together can undo all protection if they do. Those that may work"
    " together see only the noisy sum over all owners. In the demo nobody compares words, because all parties"
    " are on this machine."
)


_AGENTS_NOTE = (
    "In the chain, each owner approved once, by one command. Its agent (dpdpca owner serve) then took part in"
    " all rounds and fetched the components into the owner's home. The seconds are for its share alone."
)


def result_tables(runs: Sequence[StudyRun], captured: Sequence[CapturedVariance]) -> tuple[Table, ...]:
    """Four tables: variance and privacy; whom an owner must trust; seconds and bytes of each role; and each
    owner."""
    return (_quality(runs, captured), _trust(runs), _costs(runs), _owners(runs))


def terminal_table(table: Table) -> TerminalTable:
    """Converts a table for a terminal. Texts are not interpreted as markup."""
    shown = TerminalTable(title=Text(table.title), title_justify="left")
    for number, name in enumerate(table.header):
        shown.add_column(Text(name), justify="right" if number else "left")
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row))
    return shown


def facts(runs: Sequence[StudyRun], captured: Sequence[CapturedVariance]) -> dict[str, Any]:
    """Everything that the tables show, as numbers."""
    return {
        "studies": [
            {
                "release": run.release,
                "rounds": list(run.rounds),
                "agents": run.agents,
                "promise": run.promise,
                "trust": trust(run.model.manifest),
                "study": run.model.study.hex(),
                "records": run.model.components.count,
                "privacy": run.model.privacy,
                "trusted_components": run.model.components.trusted_count,
                "components": list(found.counts),
                "captured_variance": list(found.private),
                "captured_variance_without_privacy": list(found.best),
                "squared_cosines": list(found.overlaps),
                "seconds": {
                    "key": run.key_seconds,
                    "owners": [owner.seconds for owner in run.owners],
                    "proxy": run.proxy_seconds,
                    "data user": dict(run.user_seconds),
                },
                "bytes": {
                    "owners": [owner.sent_bytes for owner in run.owners],
                    "release": run.release_bytes,
                },
            }
            for run, found in zip(runs, captured, strict=True)
        ]
    }


def trust(manifest: Manifest) -> dict[str, str]:
    """Whom an owner of a study must trust, in plain words: party → what it must or may do."""
    least, colluding = manifest.min_owners, manifest.max_colluding
    by_owners = manifest.noise_by is NoiseBy.OWNERS
    if manifest.rules.is_masked:
        others = "all must be honest, and none may work with the data user or the proxy"
    elif by_owners:
        others = f"{least - colluding} of {least} must draw noise and keep it secret"
    else:
        others = "none may work with the proxy"
    if manifest.is_blinded:
        others += ", and all must have compared the words of their keys"
    return {
        "proxy and data user": "may work together" if manifest.is_blinded else "must not work together",
        "proxy": "draws no noise" if by_owners else "must draw the noise as stated",
        "owners": others if least > 1 else "there is only one",
    }


def _trust(runs: Sequence[StudyRun]) -> Table:
    told = [trust(run.model.manifest) for run in runs]
    rows = [[party, *(each[party] for each in told)] for party in told[0]]
    return Table("Whom an owner must trust", ["", *(run.release for run in runs)], rows, _TRUST_NOTE)


def _quality(runs: Sequence[StudyRun], captured: Sequence[CapturedVariance]) -> Table:
    rows: list[list[str]] = []
    for index, k in enumerate(captured[0].counts):
        values = [f"{found.private[index]:.2%}" for found in captured]
        name = f"variance captured, k = {k}"
        rows.append([name, *values, f"{captured[0].best[index]:.2%}"])
    rows += [
        ["components above the noise", *_each(runs, lambda run: run.model.components.trusted_count), "–"],
        ["privacy of one record", *(run.promise for run in runs), "none"],
        ["records", *_each(runs, lambda run: f"{run.model.components.count:,}"), ""],
    ]
    header = ["", *(run.release for run in runs), "without privacy"]
    return Table("Private components compared with PCA without privacy", header, rows, _POOLED_NOTE)


def _costs(runs: Sequence[StudyRun]) -> Table:
    rows = [
        [
            "slowest owner",
            "encrypt and send",
            *_each(runs, lambda run: _seconds(max(owner.seconds for owner in run.owners))),
        ],
        ["", "bytes sent", *_each(runs, lambda run: _size(max(owner.sent_bytes for owner in run.owners)))],
        ["proxy", "last share to release", *_each(runs, lambda run: _watched(run.proxy_seconds))],
        [
            "",
            "bytes received",
            *_each(runs, lambda run: _size(sum(owner.sent_bytes for owner in run.owners))),
        ],
        ["", "bytes released", *_each(runs, lambda run: _size(run.release_bytes))],
        ["data user", "key and manifest", *_each(runs, lambda run: _seconds(run.key_seconds))],
    ]
    for step in dict.fromkeys(step for run in runs for step in run.user_seconds):
        rows.append(["", step, *(_seconds(run.user_seconds.get(step)) for run in runs)])
    return Table("Seconds and bytes by role", ["role", "", *(run.release for run in runs)], rows)


def _owners(runs: Sequence[StudyRun]) -> Table:
    rows = [
        [
            first.name,
            f"{first.records:,}",
            *(_seconds(run.owners[index].seconds) for run in runs),
            *(_size(run.owners[index].sent_bytes) for run in runs),
        ]
        for index, first in enumerate(runs[0].owners)
    ]
    header = [
        "owner",
        "records",
        *(f"{run.release}, s" for run in runs),
        *(f"{run.release}, sent" for run in runs),
    ]
    return Table("Owners", header, rows, _AGENTS_NOTE if any(run.agents for run in runs) else "")


def _each(runs: Sequence[StudyRun], figure: Callable[[StudyRun], object]) -> list[str]:
    return [str(figure(run)) for run in runs]


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _watched(seconds: float) -> str:
    """The text of a duration that was read from the proxy's live page, which is updated twice a second."""
    return "< 0.5 s" if seconds < 0.5 else _seconds(seconds)


def _size(count: int) -> str:
    """Bytes in decimal units."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
