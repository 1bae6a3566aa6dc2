"""`dpdpca owner data …`: registers sources of records under a name."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdpca_owner.commands.parts import (
    Decimal,
    Encoding,
    Flip,
    HeaderLines,
    Home,
    MissingMarker,
    Names,
    Query,
    UrlFile,
    find_home,
    print_facts,
    reading_of,
)
from dpdpca_runtime.command_options import AsJson
from dpdpca_runtime.text import for_terminal

if TYPE_CHECKING:
    from dpdpca_owner.policy import Policy
    from dpdpca_owner.sources import RegisteredSource

app = typer.Typer(help="Register sources of records under a name, once.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and the signs . _ -")]


@app.command(epilog="Example: dpdpca owner data add patients --data /data/patients.parquet")
def add(
    name: Name,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="A file, a folder or s3://BUCKET/PREFIX; with --query, a SQLAlchemy URL."
        ),
    ] = None,
    query: Query = None,
    data_url_file: UrlFile = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    missing_marker: MissingMarker = None,
    header_lines: HeaderLines = None,
    names: Names = None,
    flip: Flip = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="The ledger's data set for these records, even if they change. Default: the data set named"
            " in the policy, else NAME.",
        ),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Register a source of records and its data set, for `--source NAME`. Reads no records."""
    from dpdpca_owner.policy import load_policy
    from dpdpca_owner.sources import RegisteredSource

    place = find_home(home)
    place.check_made()
    # A rule of the policy may name a source that is registered only now.
    policy = load_policy(place.policy_path)
    url_file = None if data_url_file is None else str(data_url_file)
    reading = reading_of(missing_marker, header_lines, names, flip)
    wanted = RegisteredSource(name, data, query, url_file, encoding, decimal, dataset, reading)
    kept = place.sources.add(wanted, os.environ)
    print_facts(as_json, _facts(kept, policy), f"registered: {_line(kept, policy)}")


@app.command("list", epilog="Example: dpdpca owner data list --json")
def show(home: Home = None, as_json: AsJson = False) -> None:
    """List the registered sources."""
    from dpdpca_owner.policy import load_policy

    place = find_home(home)
    place.check_made()
    policy, sources = load_policy(place.policy_path), place.sources.all()
    text = "\n".join(_line(each, policy) for each in sources) or "no source of records is registered"
    print_facts(as_json, {"sources": [_facts(each, policy) for each in sources]}, text)


@app.command(epilog="Example: dpdpca owner data remove patients")
def remove(name: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Forget a registered source. The records and the ledger stay as they are."""
    place = find_home(home)
    place.sources.remove(name)
    print_facts(as_json, {"removed": name}, f"'{name}' is no longer registered; the records stay")


def _facts(source: "RegisteredSource", policy: "Policy") -> dict[str, Any]:
    return {"name": source.name, **source.to_body(), "data_set": source.counts_in(policy)}


def _line(source: "RegisteredSource", policy: "Policy") -> str:
    where = source.data
    if where is None:
        where = "DPDPCA_DATA_URL" if source.url_file is None else f"the URL in {Path(source.url_file)}"
    if source.query is not None:
        where = f"{source.query}  from {where}"
    return f"{source.name}  {for_terminal(where)}  (data set '{source.counts_in(policy)}')"
