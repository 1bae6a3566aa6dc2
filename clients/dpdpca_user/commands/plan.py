"""`dpdpca user plan`: forecasts the noise of a draft, chooses the next round, and rehearses a chain."""

import json
import os
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdpca_protocol.errors import ConflictError, InputError, UsageError
from dpdpca_runtime.command_options import AsJson
from dpdpca_runtime.text import load_text
from dpdpca_user.commands.parts import (
    DraftFile,
    Home,
    Records,
    Sample,
    Scales,
    Service,
    lint_draft,
    open_client,
    read_draft,
    show_notes,
    show_table,
    write_new,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpdpca_user.planning.plan import Outlook, Sight
    from dpdpca_user.planning.prestudy import PreStudyResult
    from dpdpca_user.planning.preview import PlannedRound
    from dpdpca_user.planning.rehearsal import Rehearsal
    from dpdpca_user.planning.wide_chain import PublishedLift

_REHEARSED = (1, 2, 5)
_ASSUMED = (
    "records needed and shares clipped assume standard deviations of 0.35 of the half-ranges, and either"
    " centres at the means, or means half a range away from them in every feature"
)


def plan(
    draft: DraftFile,
    records: Records = None,
    spectrum: Annotated[
        str | None,
        typer.Option(help="Variances known from other sources: a file of numbers, or shares as 0.4,0.2,0.1."),
    ] = None,
    sample: Sample = None,
    from_studies: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PRE-STUDY[,…]",
            help="Choose the round that follows these rounds: study ids or files with their results.",
        ),
    ] = None,
    begin: Annotated[
        bool, typer.Option("--begin", help="Write the draft of the first round of a chain.")
    ] = False,
    scales: Scales = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the draft of the next round to this file; default: print it."),
    ] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Run the whole chain on made-up records, in this process.")
    ] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Plan even if there are too few records.")] = False,
    service: Service = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show noise and cost of a draft, for a chain and for every release, or choose a chain's next round."""
    from dpdpca_user.feature_files import list_file_of

    base, listed = read_draft(draft), list_file_of(draft)
    if from_studies is not None:
        names = [name.strip() for name in from_studies.split(",") if name.strip()]
        lift = _lift(names[-1], service, home) if names else None
        results = [_result(name, service, home) for name in (names[:-1] if lift else names)]
        _choose(base, listed, results, records, lift, out, as_json)
        return
    if records is None:
        raise UsageError(
            "bad-option", "--records is missing", "give the number of records that all owners have together"
        )
    if begin:
        _begin(base, listed, records, scales, out, as_json)
    elif rehearse:
        _rehearse(base, records, scales, as_json)
    else:
        _show_outlooks(base, records, _spectrum(spectrum), sample, anyway, as_json)


def _show_outlooks(
    base: dict[str, Any],
    records: int,
    spectrum: "Sequence[float]",
    sample: Path | None,
    anyway: bool,
    as_json: bool,
) -> None:
    from dpdpca_user.planning.preview import forecast
    from dpdpca_user.planning.sample import columns_of_sample

    columns = None if sample is None else columns_of_sample(sample)
    seen = forecast(base, lint_draft, records, spectrum, columns, anyway=anyway)
    if as_json:
        typer.echo(json.dumps(seen.facts()))
        return
    title = f"{records:,} records, {seen.drafted.figures.encoded_features:,} encoded features"
    if not seen.outlooks:
        typer.echo(title)
        show_notes(seen.advice)
        return
    names = ["", *(each.name for each in seen.outlooks)]
    show_table(f"{title}, scaled units", names, _rows(seen.outlooks))
    show_notes([*seen.advice, _ASSUMED])


def _rows(outlooks: "Sequence[Outlook]") -> list[list[str]]:
    rows = [
        ["privacy", *lines] for lines in zip_longest(*(each.statements for each in outlooks), fillvalue="")
    ]
    rows += [
        ["noise of a variance (σ)", *(f"{each.noise:.3g}" for each in outlooks)],
        ["smallest visible eigenvalue", *(f"{each.visible:.3g}" for each in outlooks)],
        ["noise c, in r²/√ρ", *(f"{each.relative_noise:.3g}" for each in outlooks)],
        ["clip norm r (pairs: of |y|/√2)", *(f"{each.clip_norm:.3g}" for each in outlooks)],
        ["  rule without data", *(f"{each.usual_norm:.3g}" for each in outlooks)],
        ["ν, noise to largest signal", *(f"{each.nu:.2g}" for each in outlooks)],
        ["  best quantile to clip at", *(f"{each.quantile:g}" for each in outlooks)],
    ]
    rows += _seen("centres at the means", [each.near for each in outlooks])
    rows += _seen("means half a range away", [each.far for each in outlooks])
    return [
        *rows,
        ["bytes sent by each owner", *(f"{each.share_bytes:,}" for each in outlooks)],
        [
            "Paillier ciphertexts of each owner",
            *(_or_dash(each.ciphertexts or None, ",d") for each in outlooks),
        ],
        ["rough time that each owner needs", *(_duration(each.seconds) for each in outlooks)],
    ]


def _seen(assumed: str, sights: "Sequence[Sight]") -> list[list[str]]:
    rows = [
        [f"if {assumed}:", *("" for _ in sights)],
        ["  last release", *(str(each.release) for each in sights)],
        ["  records (or differences) clipped", *(f"{each.clipped:.0%}" for each in sights)],
    ]
    rows += [
        [f"  records for a share of {share:.2g}", *(f"{each.least_records[share]:,}" for each in sights)]
        for share in (sights[0].least_records if sights else ())
    ]
    if any(each.components_seen is not None for each in sights):
        rows.append(
            ["  components above the noise", *(_or_dash(each.components_seen, "d") for each in sights)]
        )
    return rows


def _begin(
    base: dict[str, Any], listed: Path | None, records: int, scales: bool, out: Path | None, as_json: bool
) -> None:
    from dpdpca_user.planning.preview import first_of_chain

    _write_round(first_of_chain(base, lint_draft, records, scales), listed, out, as_json)


def _choose(
    base: dict[str, Any],
    listed: Path | None,
    results: "Sequence[PreStudyResult]",
    records: int | None,
    lift: "PublishedLift | None",
    out: Path | None,
    as_json: bool,
) -> None:
    from dpdpca_user.planning.preview import following_round

    _write_round(following_round(base, lint_draft, results, records, lift), listed, out, as_json)


def _write_round(following: "PlannedRound", listed: Path | None, out: Path | None, as_json: bool) -> None:
    """Write or print the draft of a round. If the base draft names the file `listed`, the draft names it too,
    or a new file beside `out` if centres or scales have moved."""
    from dpdpca_user.planning.rounds import draft_text

    if listed is not None:
        following = _naming_file(following, listed, out)
    chosen = following.chosen
    text = draft_text(following.draft, chosen.reasons)
    if out is not None:
        write_new(out, text.encode())
    if as_json:
        typer.echo(json.dumps(following.facts()))
        return
    typer.echo(f"next: {chosen.release}, {float(chosen.rho_share):.0%} of the budget", err=out is None)
    for reason in chosen.reasons:
        typer.echo(f"  {reason}", err=out is None)
    for line in following.advice:
        typer.echo(f"note: {line}", err=out is None)
    if out is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"draft written to {out}: dpdpca user study create {out}")


def _naming_file(following: "PlannedRound", listed: Path, out: Path | None) -> "PlannedRound":
    """A round whose draft names a file of features. A printed draft can name only the file that is there."""
    from dpdpca_user.feature_files import load_list

    made: list[bytes] = []
    naming = following.naming_list(made.append)
    if made[0] != load_list(listed)[1]:
        if out is None:
            return following
        listed = out.with_suffix(".features.json")
        if not listed.exists() or listed.read_bytes() != made[0]:
            write_new(listed, made[0])
    named = os.path.relpath(listed, Path() if out is None else out.parent)
    return replace(naming, draft=naming.draft | {"feature_list": Path(named).as_posix()})


def _rehearse(base: dict[str, Any], records: int, scales: bool, as_json: bool) -> None:
    from dpdpca_protocol.randomness import OS_RANDOMNESS
    from dpdpca_user.planning.preview import planned
    from dpdpca_user.planning.rehearsal import captured, made_up_records, play_chain

    manifest = planned(base, lint_draft)
    made = made_up_records(manifest.features, records, OS_RANDOMNESS)
    count = min(manifest.min_owners, max(records // 2, 1))
    owners = [{name: column[start::count] for name, column in made.items()} for start in range(count)]
    played = play_chain(base, lint_draft, owners, OS_RANDOMNESS, scales)
    counts = [k for k in _REHEARSED if k <= played.components.component_count]
    shares = {k: captured(played.components, played.main, made, k) for k in counts}
    if as_json:
        typer.echo(json.dumps(_rehearsed(played, shares)))
        return
    rows = [
        [
            str(each.chosen.release),
            f"{float(each.chosen.rho_share):.0%}",
            f"{float(each.manifest.clip_norm):.3g}",
        ]
        for each in played.rounds
    ]
    show_table(f"A chain over {records:,} made-up records", ["round", "of ρ", "clip norm"], rows)
    for number, each in enumerate(played.rounds, 1):
        for reason in each.chosen.reasons:
            typer.echo(f"{number}. {reason}")
    said = ", ".join(f"{share:.0%} at k = {k}" for k, share in shares.items())
    typer.echo(f"captured share of the variance that the best k components capture: {said}")
    typer.echo(f"components above the noise: {played.components.trusted_count}")
    typer.echo(
        "note: real records will give other figures; this only shows that the chain works with this draft"
    )


def _rehearsed(played: "Rehearsal", shares: dict[int, float]) -> dict[str, Any]:
    return {
        "rounds": [
            {
                "release": str(each.chosen.release),
                "rho_share": float(each.chosen.rho_share),
                "clip_norm": float(each.manifest.clip_norm),
                "reasons": list(each.chosen.reasons),
            }
            for each in played.rounds
        ],
        "captured_of_best": {str(k): share for k, share in shares.items()},
        "components_above_noise": played.components.trusted_count,
    }


def _lift(name: str, service: str | None, home: Path | None) -> "PublishedLift | None":
    """The lift of this id; None for a file, and for every other study."""
    from dpdpca_protocol.study import ReleaseKind
    from dpdpca_protocol.terms.signed_manifest import parse_manifest
    from dpdpca_protocol.wire.canonical import canonical_json
    from dpdpca_protocol.wire.signing import verify_statement
    from dpdpca_user.offline import lists_in
    from dpdpca_user.planning.wide_chain import PublishedLift

    if Path(name).is_file():
        return None
    with open_client(service, home) as client:
        if client.study(name)["release"] != ReleaseKind.LIFT:
            return None
        evidence = client.evidence(name)
    if evidence["components"] is None:
        raise ConflictError(
            "not-ready",
            "the components of the lift are not published, but scores need them",
            f"publish them with: dpdpca user result {name} --publish",
        )
    statement = verify_statement("manifest", canonical_json(evidence["manifest"]))
    manifest = parse_manifest(statement.body, lists_in(evidence))
    published = verify_statement("components", canonical_json(evidence["components"])).digest
    return PublishedLift(manifest.study_id, manifest.rho_share, manifest.columns, published)


def _result(name: str, service: str | None, home: Path | None) -> "PreStudyResult":
    from dpdpca_user.planning.prestudy import PreStudyResult

    path = Path(name.strip())
    if path.is_file():
        try:
            return PreStudyResult.parse(json.loads(load_text(path)))
        except ValueError as error:
            raise InputError(
                "malformed",
                f"{path.name} is not JSON",
                "write the result with: dpdpca user result STUDY --json",
            ) from error
    with open_client(service, home) as client:
        return PreStudyResult.parse(client.result(name.strip()))


def _spectrum(given: str | None) -> list[float]:
    if given is None:
        return []
    path = Path(given)
    text = load_text(path) if path.is_file() else given
    try:
        values = [float(word) for word in text.replace(",", " ").replace("[", " ").replace("]", " ").split()]
    except ValueError as error:
        raise UsageError(
            "bad-option", "--spectrum is neither a file nor a list of numbers", "give, say, 0.4,0.2,0.1"
        ) from error
    if not values or not all(0 <= value < float("inf") for value in values) or sum(values) <= 0:
        raise UsageError(
            "bad-option", "--spectrum must be a list of variances, none below 0", "give, say, 0.4,0.2,0.1"
        )
    return values


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "under 1 s"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"
