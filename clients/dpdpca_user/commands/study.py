"""`dpdpca user study …`: drafts, and the studies made from them."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dpdpca_protocol.errors import UsageError
from dpdpca_runtime.command_options import AsJson
from dpdpca_runtime.text import for_terminal
from dpdpca_user.commands.parts import (
    DraftFile,
    Home,
    Proxy,
    Publish,
    Records,
    Sample,
    Service,
    Study,
    lint_draft,
    load_draft,
    open_client,
    read_draft,
    send_list,
    show,
    show_line,
    show_notes,
    show_participants,
    show_table,
    write_new,
)
from dpdpca_user.commands.run import declined_text, study_chains, study_run

Anybody = Annotated[
    bool,
    typer.Option(
        "--anybody", help="Name nobody: any enrolled owner may join, and the proxy draws the noise."
    ),
]

study_app = typer.Typer(help="Create studies and follow them.", no_args_is_help=True)


@study_app.command(
    "init", epilog="Example: dpdpca user study init --from sample.csv --records 20000 --out draft.toml"
)
def study_init(
    sample: Annotated[Path, typer.Option("--from", help="CSV file with a header and no private data.")],
    records: Records = None,
    participant: Annotated[
        list[str] | None,
        typer.Option(help="Name this owner; give the option again for each owner. Default: all enrolled."),
    ] = None,
    single: Annotated[
        bool, typer.Option("--single", help="Write the draft of one joint study instead of a chain.")
    ] = False,
    anybody: Anybody = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the draft to this file; default: print it.")
    ] = None,
) -> None:
    """Write a first draft with the columns of a sample. You must replace the bounds in the draft by what you
    know.

    The draft is that of a chain of studies, for `study run --auto`. It names owners and is blinded, unless
    you name nobody.
    """
    from dpdpca_user.planning.sample import WARNING, draft_from_sample

    if participant and anybody:
        raise UsageError("bad-option", "--participant and --anybody exclude each other", "give one of them")
    if participant and len(participant) < 2:
        raise UsageError(
            "bad-option",
            "a blinded study needs two owners or more",
            "give --participant for each owner, or --anybody",
        )
    draft = draft_from_sample(sample, records, () if anybody else participant, single=single)
    if out is None:
        typer.echo(draft.text, nl=False)
    else:
        write_new(out, draft.text.encode())
    typer.echo(f"note: {WARNING}", err=True)
    if draft.left_open:
        typer.echo(f"note: fill in by hand: {for_terminal(', '.join(draft.left_open))}", err=True)


@study_app.command("features", epilog="Example: dpdpca user study features sites.csv --out sites.json")
def study_features(
    table: Annotated[
        Path,
        typer.Argument(
            help="CSV file with a header: name, lower, upper, and if wanted centre, scale, unit, description."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Write the list to this file.")],
    as_json: AsJson = False,
) -> None:
    """Make a list of features from a table, for a draft that names it instead of its features.

    In the draft, write feature_list = "FILE". A study with many features needs such a list.
    """
    from dpdpca_user.feature_files import list_from_table

    reference, content = list_from_table(table)
    write_new(out, content)
    facts = {**reference.to_body(), "file": str(out)}
    text = f"{reference.count:,} features in {out}\nsha256  {facts['sha256']}"
    show(as_json, facts, f'{text}\nname it in the draft: feature_list = "{out.name}"')


@study_app.command("lint", epilog="Example: dpdpca user study lint draft.toml")
def study_lint(
    draft: DraftFile,
    sample: Sample = None,
    records: Records = None,
    as_json: AsJson = False,
) -> None:
    """Check a draft against every rule that needs no key, and suggest improvements."""
    from dpdpca_user.planning.preview import lint_facts
    from dpdpca_user.planning.sample import columns_of_sample

    columns = None if sample is None else columns_of_sample(sample)
    facts = lint_facts(read_draft(draft), lint_draft, records, columns)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(
        f"{draft.name} is a valid draft ({facts['release'] or 'chain'}) with {facts['encoded_features']}"
        " encoded features"
    )
    show_notes(facts["advice"])


@study_app.command("create", epilog="Example: dpdpca user study create draft.toml")
def study_create(
    draft: DraftFile,
    publish: Publish = True,
    in_clear: Annotated[
        bool,
        typer.Option(
            "--in-clear",
            help="Make components that may be published in clear, so that the proxy may see them too. If the"
            " proxy draws the noise, a second draw is added permanently, and only the sum is ever shown. A"
            " study that names nobody and whose noise the proxy draws is always made like this.",
        ),
    ] = False,
    proxy: Proxy = None,
    service: Service = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Submit a draft to the service, which makes the key, signs the manifest, and runs the study.

    The command prints the owners that the study names, with the words of their keys: compare them with the
    owners.
    """
    content, media_type = load_draft(draft)
    with open_client(service, home) as client:
        content, media_type = send_list(client, draft, content, media_type)
        facts = client.create(content, media_type, proxy=proxy, publish=publish, in_clear=in_clear)
    if not as_json:
        show_participants(facts["participants"])
    show(
        as_json,
        facts,
        f"draft {facts['id']} is accepted; its key is being made\n"
        f"follow it with: dpdpca user study show {facts['id']}",
    )


@study_app.command(
    "extend",
    epilog='Example: dpdpca user study extend 9f86…0a08 --records 8000 --participant "Hospital D" …',
)
def study_extend(
    study: Study,
    records: Annotated[int, typer.Option(min=1, help="The most records that the newcomers have together.")],
    participant: Annotated[
        list[str] | None,
        typer.Option(help="Name this owner; give the option again for each owner that brings new records."),
    ] = None,
    anybody: Anybody = False,
    min_owners: Annotated[
        int | None, typer.Option(min=1, help="The smallest number of newcomers for a release.")
    ] = None,
    publish: Publish = True,
    service: Service = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Create a study on the terms of a finished one, for new records only.

    `result --combine` adds the two results up. Newcomers are new owners, or owners that bring records which
    were not in the first study. Each newcomer states that, and nobody else can check it.
    """
    from dpdpca_user.planning.extension import extension_draft
    from dpdpca_user.planning.lint import JSON_MEDIA_TYPE
    from dpdpca_user.results.model import Model

    if bool(participant) == anybody:
        raise UsageError(
            "bad-option", "an extension names its newcomers, or nobody", "give --participant or --anybody"
        )
    with open_client(service, home) as client:
        proxy = client.study(study)["proxy"]
        manifest = Model.from_bytes(client.model_file(study)).manifest
        draft = extension_draft(manifest, records, participant or (), min_owners)
        facts = client.create(json.dumps(draft).encode(), JSON_MEDIA_TYPE, proxy=proxy, publish=publish)
    if not as_json:
        show_participants(facts["participants"])
    show(
        as_json,
        facts,
        f"draft {facts['id']} extends study {draft['extends']}; its key is being made\n"
        f"when it is finished: dpdpca user result {study} --combine {facts['id']}",
    )


study_app.command("run", epilog="Example: dpdpca user study run --auto draft.toml")(study_run)
study_app.command("chains", epilog="Example: dpdpca user study chains")(study_chains)


@study_app.command("list", epilog="Example: dpdpca user study list")
def study_list(service: Service = None, home: Home = None, as_json: AsJson = False) -> None:
    """List all studies of this data user."""
    with open_client(service, home) as client:
        studies = client.studies()
    if as_json:
        typer.echo(json.dumps({"studies": studies}))
        return
    for each in studies:
        name = each["study"] or f"draft {each['id']}"
        show_line(f"{name}  {each['state']:<9}  {each['release']:<6}  {each['title']}")


@study_app.command("show", epilog="Example: dpdpca user study show 9f86…0a08")
def study_show(study: Study, service: Service = None, home: Home = None, as_json: AsJson = False) -> None:
    """Show one study: its state, its owners, and what it is waiting for."""
    with open_client(service, home) as client:
        facts = client.study(study)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    rows = [
        ["study", facts["study"] or "(the key is being made)"],
        ["title", facts["title"]],
        ["release", facts["release"]],
        ["state", facts["state"]],
        ["proxy", facts["proxy"]],
        ["closes at", facts["closes_at"] or "–"],
        ["progress", _progress_text(facts)],
        ["waiting for", waiting_text(facts) or "–"],
        ["problem", facts["problem"]["detail"] if facts["problem"] else "–"],
    ]
    show_table("", ["", ""], rows)
    if facts["owners"]:
        owners = [[owner["name"], owner["owner"][:16], _share_text(owner)] for owner in facts["owners"]]
        show_table("Owners", ["name", "key", "share"], owners)


def waiting_text(facts: dict[str, Any]) -> str:
    """The owners of an open study that have not delivered."""
    if facts["state"] != "open":
        return ""
    absent = [owner for owner in facts["owners"] if owner["state"] != "complete"]
    return ", ".join(sorted(owner["name"] + (" (declined)" if owner["declined"] else "") for owner in absent))


def _share_text(owner: dict[str, Any]) -> str:
    return f"{owner['state']}; {declined_text(owner)}" if owner["declined"] else str(owner["state"])


def _progress_text(facts: dict[str, Any]) -> str:
    search, progress = facts.get("key_search"), facts["progress"]
    if search is not None:
        seconds = "" if search["seconds"] is None else f" (about {search['seconds']:.1f} s)"
        return (
            f"key: {search['primes']} of 2 primes found, {search['tested']} candidates tested; "
            f"{search['expected']} more are expected{seconds}, however long the search has lasted"
        )
    return f"{progress['phase']} {progress['done']}/{progress['total']}" if progress else "–"


@study_app.command("close", epilog="Example: dpdpca user study close 9f86…0a08")
def study_close(study: Study, service: Service = None, home: Home = None, as_json: AsJson = False) -> None:
    """Close a study early, with the owners that have joined. All parties can see that the study was closed
    early."""
    with open_client(service, home) as client:
        facts = client.close_study(study)
    text = f"the study is closed to further owners\nfollow it with: dpdpca user study show {study}"
    show(as_json, facts, text)


@study_app.command("cancel", epilog="Example: dpdpca user study cancel 9f86…0a08")
def study_cancel(study: Study, service: Service = None, home: Home = None, as_json: AsJson = False) -> None:
    """Cancel a study. A study whose noise was drawn cannot be cancelled."""
    with open_client(service, home) as client:
        facts = client.cancel_study(study)
    show(as_json, facts, "the study is cancelled")
