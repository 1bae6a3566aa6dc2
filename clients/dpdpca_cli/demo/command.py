"""`dpdpca demo`: a whole study on this machine, between real processes, with real data.

The demo runs all parties, each in its own process with its own home. It also does what no party of a real
study
can do: because it has all records, it can compare the private components with those without privacy.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dpdpca_cli.demo.comparison import CapturedVariance, compare
from dpdpca_cli.demo.drafts import Drafts, drafts_of
from dpdpca_cli.demo.records import bundled_draft, bundled_records, read_records, split, write_parts
from dpdpca_cli.demo.results import facts, result_tables, terminal_table
from dpdpca_cli.federation.processes import ChildFailedError, ChildProcesses
from dpdpca_cli.federation.studies import PROXY_NAME, USER_NAME, Federation, Say, StudyRun
from dpdpca_owner.accounts.budget import Cost
from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import Party, ProxyParty
from dpdpca_protocol.wire.fields import decimal_text
from dpdpca_protocol.wire.kem import PREVIEW_KEM
from dpdpca_runtime.command_options import AsJson
from dpdpca_runtime.files import private_dir, write_shared
from dpdpca_runtime.text import load_text
from dpdpca_user.planning.lint import TOML_MEDIA_TYPE, lint, parse_draft
from dpdpca_user.planning.rounds import begin_chain
from dpdpca_user.results.report import render_report

_KEY_BITS = 3072
_MOST_OWNERS = 50
_LEAST_RHO = 1e-6
_ROUNDING = 1.001
"""Room for rounding to six digits, and for the ledger's grid."""

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: dpdpca demo --data records.csv --manifest study.toml --owners 5")
def demo(
    data: Annotated[
        Path | None, typer.Option(help="Use your own records; needs --manifest. Default: the bundled ones.")
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="The draft of a study of your records, in TOML; needs --data.")
    ] = None,
    owners: Annotated[
        int, typer.Option(min=1, max=_MOST_OWNERS, help="How many owners the records are split among.")
    ] = 3,
    out: Annotated[Path, typer.Option(help="Where to write the report.")] = Path("demo-report.html"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep the parties' homes, keys and logs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a study on this machine (masked, joint and as a chain), and compare with PCA without privacy.

    The joint study and the chain are blinded, unless your own draft says how values are hidden or who draws
    the noise: in a blinded study the proxy and the data user may work together.
    """
    if (data is None) != (manifest is None):
        raise UsageError(
            "bad-option", "--data and --manifest must be given together", "give both, or neither of them"
        )
    if not out.absolute().parent.is_dir():
        raise UsageError(
            "bad-option", f"the folder {out.absolute().parent} does not exist", "choose another --out"
        )
    plan = _plan(data, manifest, owners)
    console = Console(stderr=True, highlight=False)
    console.print(
        f"[bold]{plan.joint.title}[/]: {plan.records.num_rows:,} records, "
        f"{len(plan.joint.encoded_names)} features, {owners} owners, all on this machine",
        markup=True,
    )
    with _folder(keep, console) as folder:
        try:
            runs = _run(plan, folder, console)
        except ChildFailedError as error:
            console.print(error.tail, markup=False, style="dim")
            raise
    captured = [compare(run.model, plan.records) for run in runs]
    _write_report(out, runs, captured)
    if as_json:
        typer.echo(json.dumps(facts(runs, captured) | {"report": str(out.absolute())}))
        return
    terminal = Console(highlight=False)
    for table in result_tables(runs, captured):
        terminal.print(terminal_table(table))
        if table.note:
            terminal.print(table.note)
    terminal.print(f"Report: {out.absolute()}", soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the demo will run.

    Attributes:
        drafts: the drafts of the three studies.
        masked, joint: the manifests that the drafts would give with some key; everything in them is right
            except the keys.
        records: the records of all owners.
        owners: the names of the owners.
    """

    drafts: Drafts
    masked: Manifest
    joint: Manifest
    records: pa.Table
    owners: tuple[str, ...]


def _plan(data: Path | None, manifest: Path | None, owner_count: int) -> Plan:
    """The draft and the records, checked before any process is started."""
    text = bundled_draft().encode() if manifest is None else _read(manifest)
    draft = parse_draft(text, TOML_MEDIA_TYPE)
    named = draft.get("participants")
    if isinstance(named, list) and len(named) == owner_count and all(isinstance(n, str) for n in named):
        owners = tuple(named)
    else:
        owners = tuple(f"Owner {number}" for number in range(1, owner_count + 1))
    # The demo uses its own parties and times, whatever the draft says about them.
    draft |= {
        "participants": list(owners),
        "min_owners": owner_count,
        "max_owners": owner_count,
        "closing": "when-complete",
    }
    draft.pop("closes_at", None)
    drafts = drafts_of(draft, owner_count)
    terms = terms_of(drafts.joint)
    records = bundled_records() if data is None else read_records(data, terms.features)
    if not terms.min_records <= records.num_rows <= terms.max_records:
        raise InputError(
            "record-count",
            f"there are {records.num_rows} records,"
            f" but the draft allows {terms.min_records} to {terms.max_records}",
            "change min_records or max_records in the draft",
        )
    begin_chain(drafts.chain, terms_of, records.num_rows, scales=False)
    return Plan(drafts, terms_of(drafts.masked), terms, records, owners)


def terms_of(draft: Mapping[str, Any]) -> Manifest:
    """The manifest that a draft would give with some key."""
    user = Party(USER_NAME, b"\xfe" * 32)
    proxy = ProxyParty(PROXY_NAME, "http://127.0.0.1:8440", b"\xff" * 32, PREVIEW_KEM)
    return lint(draft, user, proxy, datetime.now(UTC), _KEY_BITS)


def _run(plan: Plan, folder: Path, console: Console) -> list[StudyRun]:
    parts = write_parts(split(plan.records, len(plan.owners)), private_dir(folder / "records"))
    # The chain states one (ε, δ) for all its rounds, that of the joint study.
    policy = owner_policy((plan.masked, plan.joint, plan.joint))
    runs = []
    with _progress(console) as say, ChildProcesses(folder, {}) as processes:
        federation = Federation(processes, folder, plan.owners, parts, policy, say)
        try:
            federation.found()
            console.print("[bold]masked[/] release", markup=True)
            runs.append(federation.run_study(plan.drafts.masked))
            console.print(f"[bold]joint[/] release{_how(plan.joint)}", markup=True)
            runs.append(federation.run_study(plan.drafts.joint))
            console.print(
                "[bold]chain[/] of pre-studies and the study that they choose, with the same total"
                f" ε{_how(plan.joint)}",
                markup=True,
            )
            runs.append(federation.run_chain(plan.drafts.chain))
            say("Stopping all processes", None)
        finally:
            federation.close()
    return runs


def _how(manifest: Manifest) -> str:
    return ", blinded: proxy and data user may work together" if manifest.is_blinded else ""


def owner_policy(studies: Sequence[Manifest]) -> str:
    """The policy of each owner. Its limits are the terms of these studies of the same features, which differ
    only in their release and in who draws the noise. Its budget is just enough for all of them."""
    terms = studies[0]
    spent = sum(Cost.of(each.figures).rho for each in studies)
    return f"""\
[study]
max_epsilon = "{decimal_text(terms.epsilon)}"
max_delta = "{decimal_text(terms.delta)}"
max_features = {terms.figures.encoded_features}
min_owners = {terms.min_owners}
min_records = {terms.min_records}
mechanisms = ["{terms.mechanism}"]

[budget]
rho = {max(float(spent) * _ROUNDING, _LEAST_RHO):.6g}
"""


def _write_report(out: Path, runs: Sequence[StudyRun], captured: Sequence[CapturedVariance]) -> None:
    made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = render_report([run.model for run in runs], made_at, result_tables(runs, captured))
    write_shared(out, page.encode())


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise InputError("no-such-file", f"there is no file {path}", "give the path of a TOML draft")
    return load_text(path).encode()


@contextmanager
def _folder(keep: bool, console: Console) -> Iterator[Path]:
    """A private folder for all homes. The folder is deleted at the end unless `keep` is true."""
    folder = Path(tempfile.mkdtemp(prefix="dpdpca-demo-"))
    try:
        yield folder
    finally:
        if keep:
            console.print(f"Homes, keys and logs are kept in {folder}", markup=False, soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _progress(console: Console) -> Iterator[Say]:
    """Show the current step in one line. Without a terminal, print each step on a line of its own."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("Starting", total=None)
        last = ""

        def say(what: str, done: float | None) -> None:
            nonlocal last
            if what != last and not console.is_terminal:
                console.print(f"  {what}", markup=False)
            last = what
            progress.update(
                task, description=what, total=None if done is None else 1.0, completed=done or 0.0
            )

        yield say
