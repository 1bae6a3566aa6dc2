"""Options, texts and tables that the data user's commands share."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdpca_protocol.errors import ConflictError, PolicyError, UsageError
from dpdpca_runtime.files import write_shared
from dpdpca_runtime.text import for_terminal, load_line, load_text

if TYPE_CHECKING:
    from dpdpca_protocol.terms.manifest import Manifest
    from dpdpca_user.service_client import ServiceClient

Home = Annotated[
    Path | None,
    typer.Option(help="The data user's folder; default: DPDPCA_USER_HOME, else the configuration folder."),
]
Service = Annotated[
    str | None,
    typer.Option(
        "--service",
        help="Address of the data user's service; default: DPDPCA_USER_SERVICE_URL, else port 8450 on this"
        " machine.",
    ),
]
Passphrase = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file", help="File with the keys' passphrase; default: DPDPCA_USER_PASSPHRASE_FILE."
    ),
]
Study = Annotated[str, typer.Argument(metavar="STUDY", help="The id of the study, or of its draft.")]
DraftFile = Annotated[Path, typer.Argument(metavar="FILE", help="The draft: a .json file, or any TOML file.")]
Records = Annotated[
    int | None, typer.Option("--records", min=1, help="How many records all owners have together.")
]
Sample = Annotated[
    Path | None,
    typer.Option(
        "--sample", help="CSV file with a header and no private data; shows whether bounds are too wide."
    ),
]
Scales = Annotated[
    bool,
    typer.Option(
        "--scales", help="For bounds that may be far too wide: first ask for the scale of each feature."
    ),
]
Publish = Annotated[
    bool,
    typer.Option("--publish/--no-publish", help="Send the components to the owners, sealed to their keys."),
]
Proxy = Annotated[
    str | None, typer.Option("--proxy", help="The proxy's address; needed if you are enrolled at several.")
]


def open_client(url: str | None, home: Path | None) -> "ServiceClient":
    from dpdpca_user.service_client import ServiceClient, find_url

    return ServiceClient(url or find_url(), home=home)


def read_draft(path: Path) -> dict[str, Any]:
    """The tables of a draft, with the features of the list whose file it may name."""
    from dpdpca_protocol.terms.feature_list import lists_of
    from dpdpca_user.feature_files import with_named_list
    from dpdpca_user.planning.lint import parse_draft
    from dpdpca_user.planning.listed import with_features

    draft, listed = with_named_list(parse_draft(*load_draft(path)), path.parent)
    return draft if listed is None else with_features(draft, lists_of(listed))


def load_draft(path: Path) -> tuple[bytes, str]:
    """A draft in UTF-8, ready to be submitted, and its media type."""
    from dpdpca_user.planning.lint import media_type_of

    return load_text(path).encode(), media_type_of(path)


def send_list(client: "ServiceClient", path: Path, content: bytes, media_type: str) -> tuple[bytes, str]:
    """Send the list of features whose file a draft names. Returns the draft with the reference to it.

    Args:
        client: of the service that gets the draft.
        path: of the draft.
        content, media_type: from `load_draft`.
    """
    from dpdpca_user.feature_files import with_named_list
    from dpdpca_user.planning.lint import JSON_MEDIA_TYPE, parse_draft, plain_json

    draft, listed = with_named_list(parse_draft(content, media_type), path.parent)
    if listed is None:
        return content, media_type
    client.send_feature_list(listed)
    return json.dumps(plain_json(draft)).encode(), JSON_MEDIA_TYPE


def write_new(out: Path, content: bytes) -> None:
    """Write a draft or a list. Raises UsageError if the file exists, because somebody may have edited it."""
    try:
        write_shared(out, content, replace=False)
    except ConflictError as error:
        raise UsageError("file-exists", f"{out} already exists and is kept", "choose another file") from error


def lint_draft(draft: Mapping[str, Any]) -> "Manifest":
    """The manifest that a draft would become, with placeholders for the parties and the key."""
    from datetime import UTC, datetime

    from dpdpca_user.planning.lint import lint_alone
    from dpdpca_user.planning.listed import with_list_if_needed

    now = datetime.now(UTC)
    return with_list_if_needed(draft, lambda listed, lists: lint_alone(listed, now, lists))


def read_invitation(file: Path | None) -> str:
    if file is not None:
        return load_text(file).strip()
    if sys.stdin.isatty():
        return str(typer.prompt("Invitation", hide_input=True, err=True)).strip()
    return load_line(sys.stdin.buffer)


def need_terminal(what: str) -> None:
    if not sys.stdin.isatty():
        raise PolicyError(
            "no-terminal",
            f"there is no terminal at which a person could {what}",
            "compare the words, then add --yes",
        )


def show(as_json: bool, facts: dict[str, Any], text: str) -> None:
    typer.echo(json.dumps(facts) if as_json else text)


def show_line(text: str) -> None:
    """Print one line. Control characters, which may come from other parties, are replaced by spaces."""
    typer.echo(for_terminal(text))


def show_notes(lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(f"note: {line}")


def show_participants(participants: Sequence[Mapping[str, str]]) -> None:
    """Print the owners that a new study names, for a person to check."""
    if not participants:
        typer.echo(
            "The draft names nobody: any owner that the proxy enrols may join. If the proxy draws the noise,"
            " the components carry a second noise."
        )
        return
    typer.echo(
        "The study names these owners. Each gets the components. Compare the words with each owner, but not"
        " through the proxy; if they differ, cancel the study:"
    )
    for owner in participants:
        show_line(f"  {owner['name']}: {owner['words']}")


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left", show_header=any(header))
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        # Titles and names come from others, so they are never interpreted as markup.
        table.add_row(*(Text(for_terminal(str(cell))) for cell in row))
    Console(soft_wrap=False).print(table)
