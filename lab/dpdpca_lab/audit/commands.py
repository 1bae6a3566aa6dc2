"""`dpdpca audit`: plays the distinguishing game on a study's terms, and compares claim and result."""

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpdpca_runtime.command_options import AsJson

if TYPE_CHECKING:
    from dpdpca_lab.audit.checks import Check
    from dpdpca_lab.audit.report import AuditReport

app = typer.Typer(add_completion=False)

NOTE = (
    "The releases were made by the code that is installed here, without encryption. An audit cannot show"
    " what a proxy ran or how owners behaved; docs/audit.md says what else it cannot show."
)


@app.command(epilog="Example: dpdpca audit draft.toml --seconds 60")
def audit(
    manifest: Annotated[
        Path, typer.Argument(metavar="MANIFEST", help="A draft (TOML or JSON), or a signed manifest (JSON).")
    ],
    runs: Annotated[
        int, typer.Option(min=200, max=2_000_000, help="How many releases to make of each data set.")
    ] = 100_000,
    seconds: Annotated[
        float, typer.Option(min=1, help="Seconds after which no more releases are made.")
    ] = 180.0,
    search: Annotated[
        int, typer.Option(min=0, help="Steps of the search for another pair; 0 for no search.")
    ] = 400,
    as_json: AsJson = False,
) -> None:
    """Test a study's privacy claim with the distinguishing game.

    The exit status is 1 if the claim is refuted.
    """
    from dpdpca_lab.audit.game import audit_manifest
    from dpdpca_lab.audit.terms import read_terms

    end = time.monotonic() + seconds
    report = audit_manifest(
        read_terms(manifest), runs, search=search, out_of_time=lambda: time.monotonic() >= end
    )
    if as_json:
        typer.echo(json.dumps({**report.facts(), "note": NOTE}))
    else:
        show(report)
    if not report.holds:
        raise typer.Exit(1)


def show(report: "AuditReport") -> None:
    """The report as text for a person. The text contains nothing that others wrote."""
    claim, failures = report.claim, report.failed
    promise = f"(ε, δ) = ({float(claim.epsilon):.6g}, {float(claim.delta):.3g})"
    confidence = f"1 − 10{_superscript(round(math.log10(report.alpha)))}"
    lines = [
        ("claim", f"{promise}, {', '.join(claim.words.values())}"),
        *(("", line) for line in claim.statements),
        (
            "found",
            f"ε ≥ {report.epsilon:.3f} at this δ, with confidence {confidence} and without any assumption",
        ),
        ("", f"with this number of runs, the largest possible bound is ε ≥ {report.largest:.2f}"),
        ("played", f"{report.pairs[0].runs:,} releases of each data set, {report.records:,} records"),
    ]
    for pair in report.pairs:
        records = "through the encoder" if pair.encoded else "integer records at the norm bound"
        allowed = "" if claim.shift is None else f" of {claim.shift:.4f} allowed"
        lines += [
            ("pair", f"{pair.name}; {records}"),
            ("", f"distance {pair.distance:.4f}{allowed}, measured {pair.estimate:.4f} ± {pair.error:.4f}"),
            (
                "",
                f"ε ≥ {pair.bound.epsilon:.3f}{_if_gaussian(pair.epsilon_if_gaussian)}",
            ),
        ]
    for name, text in lines:
        typer.echo(f"{name:8}{text}")
    typer.echo("")
    for part, check in _worst(report):
        has_failed = (part, check) in failures
        where = f" ({part})" if has_failed else ""
        typer.echo(f"{'✗' if has_failed else '✓'} {check.name}: {check.measured}{where}")
    typer.echo(f"\n{verdict(report)}\n{NOTE}")


def verdict(report: "AuditReport") -> str:
    """The conclusion in one sentence."""
    if report.is_refuted:
        return f"The claim is refuted: ε is at least {report.epsilon:.3f}."
    if report.failed:
        names = sorted({check.name for _, check in report.failed})
        return f"The mechanism does not behave as it states, so the claim has no basis: {'; '.join(names)}."
    return "Nothing was found against the claim."


def _worst(report: "AuditReport") -> "list[tuple[str, Check]]":
    """For each kind of check, the result that is least likely if the claim is true, in the order of the
    checks."""
    worst: dict[str, tuple[str, Check]] = {}
    for part, check in report.checks:
        if check.name not in worst or check.p_value < worst[check.name][1].p_value:
            worst[check.name] = (part, check)
    return list(worst.values())


def _if_gaussian(epsilon: float | None) -> str:
    return "" if epsilon is None else f"; if the noise is Gaussian, ε ≥ {epsilon:.3f}"


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
