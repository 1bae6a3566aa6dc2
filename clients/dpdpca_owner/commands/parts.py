"""What the owner's commands share: options, and how to find the home, a proxy and the records."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdpca_protocol.errors import UsageError
from dpdpca_runtime.passphrase import unlock

if TYPE_CHECKING:
    from rich.console import Console

    from dpdpca_owner.actions import Desk
    from dpdpca_owner.home import OwnerHome
    from dpdpca_owner.records.source import DataLocation, Reading
    from dpdpca_protocol.wire.identifiers import StudyId
    from dpdpca_runtime.http.address import StudyAddress

PASSPHRASE_VARIABLE = "DPDPCA_OWNER_PASSPHRASE_FILE"  # noqa: S105  # the name of a variable, not a secret

Home = Annotated[
    Path | None,
    typer.Option(help="The owner's folder; default: DPDPCA_OWNER_HOME, else the configuration folder."),
]
Passphrase = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file", help="File with the key's passphrase; default: DPDPCA_OWNER_PASSPHRASE_FILE."
    ),
]
Address = Annotated[
    str, typer.Argument(metavar="URL/STUDY", help="https://HOST:PORT/STUDY, where STUDY is 64 hex digits.")
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="A Parquet, Arrow, CSV, .npy, .npz, .bed or .pgen file, a folder or s3://BUCKET/PREFIX of"
        " Parquet files, or a pattern such as 'part-*.csv'; with --query, a SQLAlchemy URL.",
    ),
]
Query = Annotated[
    str | None, typer.Option(help="A SELECT statement; the database URL is --data or DPDPCA_DATA_URL.")
]
UrlFile = Annotated[Path | None, typer.Option("--data-url-file", help="File with the database URL.")]
Encoding = Annotated[str | None, typer.Option(help="Encoding of a text file, such as cp1252.")]
Decimal = Annotated[str, typer.Option(help="Decimal sign of a text file: . or ,")]
Source = Annotated[
    str | None,
    typer.Option(
        "--source", help="Registered records and their data set (dpdpca owner data), instead of --data."
    ),
]
MissingMarker = Annotated[
    list[str] | None,
    typer.Option(
        "--missing-marker",
        help="A text that stands for a missing value in your data, such as '.'; repeat the option for others."
        " Default: those with which you joined this study, else none.",
    ),
]
HeaderLines = Annotated[
    int | None,
    typer.Option(
        "--header-lines",
        help="How many lines of a text file come before the records: 2 if a line of units follows the names."
        " Default: as when you joined this study, else 1.",
    ),
]
Names = Annotated[
    Path | None,
    typer.Option(
        help="A text file with the names of a NumPy matrix's columns, one a line. Default: as when you joined"
        " this study, else the names in the file or in NAME.features.txt beside it.",
    ),
]
Flip = Annotated[
    bool | None,
    typer.Option(
        "--flip/--no-flip",
        help="Count the other allele where a PLINK file has the alleles of a site in the other order."
        " Default: as when you joined this study, else such a file is refused.",
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        help="The ledger's data set for these records, even if they have changed. Default: the data set named"
        " in the policy, else the one in which the same records were booked before, else a new one.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Stop at a value that its feature does not take, such as text in a numeric column or an unlisted"
        " level, instead of replacing it by the feature's centre. Then your records decide whether you join,"
        " and no guarantee covers that.",
    ),
]

To = Annotated[
    Path | None,
    typer.Option(
        "--to",
        help="Make no connection. Write requests into this folder, and read answers from it. On another"
        " machine, dpdpca owner send sends the requests.",
    ),
]


def print_facts(as_json: bool, facts: dict[str, Any], text: str) -> None:
    typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else text)


def make_console(*, err: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=err, highlight=False, markup=False)


def find_home(option: Path | None) -> "OwnerHome":
    from dpdpca_owner.home import OwnerHome
    from dpdpca_runtime.home_folder import home_folder, witness_folder
    from dpdpca_runtime.network_drives import check_not_on_network

    folder = home_folder("owner", option, os.environ)
    check_not_on_network(folder)
    return OwnerHome(folder, witness_folder(os.environ))


def open_desk(home: Path | None, ca_file: Path | None, passphrase_file: Path | None) -> "Desk":
    place = find_home(home)
    return make_owners_desk(place, unlock(place.keys, passphrase_file, PASSPHRASE_VARIABLE), ca_file)


def make_owners_desk(place: "OwnerHome", passphrase: bytes | None, ca_file: Path | None) -> "Desk":
    from dpdpca_owner.actions import make_desk

    return _with_cluster(make_desk(place, place.load(passphrase), ca_file, _say_waiting, say))


def _with_cluster(desk: "Desk") -> "Desk":
    from dpdpca_owner.records.on_cluster import sum_on
    from dpdpca_runtime.cluster.address import cluster_from

    cluster = cluster_from(os.environ)
    return desk if cluster is None else replace(desk, sum_parts=partial(sum_on, cluster))


@contextmanager
def desk_for(
    address: "StudyAddress",
    to: Path | None,
    home: Path | None,
    ca_file: Path | None,
    passphrase_file: Path | None,
) -> Iterator["Desk"]:
    """A desk for one study: with a connection, or with a folder that is carried. A receipt in the folder is
    booked first."""
    if to is None:
        yield open_desk(home, ca_file, passphrase_file)
        return
    from dpdpca_owner.carrying import take_receipt

    with carried_desk(to, address.proxy, address.study, home, passphrase_file) as desk:
        if (receipt := take_receipt(desk, address)) is not None:
            say(f"the folder brought the receipt for a {receipt.subject}: {receipt.time}")
        yield desk


@contextmanager
def carried_desk(
    to: Path, url: str, study: "StudyId | None", home: Path | None, passphrase_file: Path | None
) -> Iterator["Desk"]:
    """Like `carrying.carrying`, with the home and the passphrase of the command line."""
    from dpdpca_owner.carrying import carrying

    place = find_home(home)
    owner = place.load(unlock(place.keys, passphrase_file, PASSPHRASE_VARIABLE))
    with carrying(place, owner, to, url, study, say=say) as desk:
        yield _with_cluster(desk)


def _say_waiting(reason: str, seconds: float) -> None:
    typer.echo(f"dpdpca: {reason}; trying again in {seconds:.0f} s", err=True)


def say(text: str) -> None:
    """Print a note for a person on stderr, in addition to what the command prints."""
    typer.echo(f"dpdpca: {text}", err=True)


def parse_address(address: str) -> "StudyAddress":
    from dpdpca_runtime.http.address import parse_study_address

    return parse_study_address(address)


def reading_of(
    missing_markers: list[str] | None, header_lines: int | None, names: Path | None, flip: bool | None
) -> "Reading":
    from dpdpca_owner.records.source import Reading
    from dpdpca_runtime.home_folder import expanded

    # Kept with the study, so that it is the same file from whatever folder a command is called.
    names_path = None if names is None else str(expanded(names).absolute())
    # Without the option, some versions of typer give an empty list.
    return Reading(tuple(missing_markers) if missing_markers else None, header_lines, names_path, flip)


def locate(
    data: str | None,
    query: str | None,
    url_file: Path | None,
    encoding: str | None,
    decimal: str,
    reading: "Reading",
) -> "DataLocation":
    from dpdpca_owner.records.open import locate_data

    return locate_data(data, query, url_file, encoding, decimal, os.environ, reading)


def choose_records(
    place: "OwnerHome",
    source: str | None,
    data: str | None,
    query: str | None,
    url_file: Path | None,
    encoding: str | None,
    decimal: str,
    reading: "Reading",
    data_set: str | None,
) -> tuple["DataLocation", str | None]:
    """Where the records are, and their data set: registered as `source`, or given on the command line."""
    if source is None:
        return locate(data, query, url_file, encoding, decimal, reading), data_set
    given = (data, query, url_file, encoding, decimal, str(reading), data_set)
    if given != (None, None, None, None, ".", "", None):
        raise UsageError(
            "bad-option",
            "--source already says where the records are, how to read them and in which data set they count",
            "use --source alone",
        )
    registered = place.sources.find(source)
    return registered.location(os.environ), registered.counts_in(place.policy())


def need_terminal(what: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError("no-terminal", f"there is no terminal at which a person could {what}", "add --yes")
