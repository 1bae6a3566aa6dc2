"""`dpdpca owner …`: the command line of a data owner. What the commands do is in `acts.py`."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdpca_protocol.errors import AuthenticationError, PolicyError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from dpdpca_http.address import StudyAddress
    from dpdpca_owner.acts import Desk
    from dpdpca_owner.home import OwnerHome
    from dpdpca_owner.sources import DataLocation
    from dpdpca_protocol.messages import ProxyCard

app = typer.Typer(help="A data owner: what this machine agrees to send.", no_args_is_help=True)

Home = Annotated[
    Path | None,
    typer.Option(help="The owner's folder; default DPDPCA_OWNER_HOME or the configuration folder."),
]
CaFile = Annotated[
    Path | None, typer.Option("--ca-file", help="PEM file of the proxy's CA; default DPDPCA_CA_FILE.")
]
Passphrase = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file", help="File with the key's passphrase; default DPDPCA_OWNER_PASSPHRASE_FILE."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
Address = Annotated[
    str, typer.Argument(metavar="URL/STUDY", help="https://HOST:PORT/STUDY, STUDY 64 hex digits.")
]
Data = Annotated[
    str | None,
    typer.Option("--data", help="Parquet, Arrow, CSV, .npy or .npz file, or a SQLAlchemy URL with --query."),
]
Query = Annotated[str | None, typer.Option(help="A SELECT; the URL is --data or DPDPCA_DATA_URL.")]
UrlFile = Annotated[Path | None, typer.Option("--data-url-file", help="File with a database URL.")]
Encoding = Annotated[str | None, typer.Option(help="Encoding of a text file, such as cp1252.")]
Decimal = Annotated[str, typer.Option(help="Decimal sign of a text file, . or ,")]
Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing.")]

_STUDY = "https://proxy.example:8440/9f86…0a08"


@app.command(epilog='Example: dpdpca owner init --name "Hospital A"')
def init(
    name: Annotated[str, typer.Option(help="What others see.")],
    home: Home = None,
    passphrase_file: Passphrase = None,
    ask_passphrase: Annotated[bool, typer.Option("--ask-passphrase", help="Encrypt the key.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make this owner's keys."""
    passphrase = _passphrase_from_file(passphrase_file)
    if ask_passphrase and passphrase is None:
        passphrase = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True).encode()
    place = _home(home)
    owner = place.create(name, passphrase)
    facts = {
        "home": str(place.path),
        "name": owner.name,
        "party": owner.key.public.party_id.hex(),
        "ed25519": owner.key.public.ed25519.hex(),
        "words": owner.words,
    }
    _print(
        as_json,
        facts,
        f"{owner.name} is ready in {place.path}\nkey    {facts['ed25519']}\nwords  {owner.words}",
    )


@app.command(epilog="Example: dpdpca owner enrol https://proxy.example:8440 --invitation-file token.txt")
def enrol(
    url: Annotated[str, typer.Argument(metavar="URL", help="The proxy's address.")],
    invitation_file: Annotated[
        Path | None,
        typer.Option("--invitation-file", help="File with the invitation; default: standard input."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Accept the proxy's key unseen.")] = False,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Enrol at a proxy with a single-use invitation, and pin its key."""
    from dpdpca_disk.words import fingerprint_words
    from dpdpca_owner import acts

    def accept(card: "ProxyCard", known: bool) -> bool:
        if known or yes:
            return True
        typer.echo(f"{card.name} shows the key\n  {fingerprint_words(card.identity.ed25519)}", err=True)
        _need_terminal("accept the proxy's key")
        return typer.confirm("Do these words agree with what its operator says?", err=True)

    def read_invitation() -> str:
        if invitation_file is not None:
            return invitation_file.read_text(encoding="utf-8").strip()
        if sys.stdin.isatty():
            return str(typer.prompt("Invitation", hide_input=True, err=True)).strip()
        return sys.stdin.readline().strip()

    done = acts.enrol(_desk(home, ca_file, passphrase_file), url, read_invitation, accept)
    words = fingerprint_words(done.proxy.identity.ed25519)
    facts = {
        "proxy": {
            "name": done.proxy.name,
            "url": done.proxy.url,
            "ed25519": done.proxy.identity.ed25519.hex(),
            "words": words,
        },
        "party": done.party,
        "was_enrolled": done.was_enrolled,
    }
    how = "was enrolled already" if done.was_enrolled else "is enrolled"
    _print(as_json, facts, f"this owner {how} at {done.proxy.name}\nwords  {words}")


@app.command(epilog=f"Example: dpdpca owner review {_STUDY} --data records.parquet")
def review(
    address: Address,
    data: Data = None,
    query: Query = None,
    data_url_file: UrlFile = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Show what a study asks, and with data what it would do to it. Uploads nothing."""
    from dpdpca_owner import acts
    from dpdpca_owner.display import show_sheet

    has_data = data is not None or query is not None or data_url_file is not None
    location = _locate(data, query, data_url_file, encoding, decimal) if has_data else None
    sheet = acts.review(_desk(home, ca_file, passphrase_file), _parse(address), location)
    if as_json:
        _print(True, sheet.to_json(), "")
    else:
        show_sheet(sheet, _console())


@app.command(epilog=f"Example: dpdpca owner join {_STUDY} --data records.parquet")
def join(
    address: Address,
    data: Data = None,
    query: Query = None,
    data_url_file: UrlFile = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    yes: Yes = False,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Encrypt this owner's sums and send them; goes on where an interrupted run stopped."""
    from dpdpca_disk.words import fingerprint_words
    from dpdpca_owner import acts
    from dpdpca_owner.display import show_sheet, watching
    from dpdpca_owner.upload import Outcome

    place, location = _parse(address), _locate(data, query, data_url_file, encoding, decimal)
    desk = _desk(home, ca_file, passphrase_file)
    prepared = acts.prepare_join(desk, place, location)
    if not yes:
        show_sheet(prepared.sheet, _console(err=True))
        _need_terminal("consent")
        if not typer.confirm("Send this share?", err=True):
            raise PolicyError("not-consented", "no consent was given, and nothing was sent")
    figures = prepared.manifest.figures
    with watching(figures.ciphertext_count, prepared.sheet.sealed_bytes, quiet=as_json) as watcher:
        settled = acts.join(desk, place, prepared, watcher)
    receipt, report = settled.receipt, prepared.contribution.report
    user, first_contact = prepared.manifest.user, prepared.sheet.study.user_since is None
    facts = {
        "study": place.study.hex(),
        "user": {"name": user.name, "words": fingerprint_words(user.ed25519), "first_contact": first_contact},
        "already": settled.outcome is Outcome.ALREADY,
        "version": receipt.version,
        "receipt_time": receipt.time,
        "statement": receipt.statement.hex(),
        "records": report.accepted,
        "dropped": report.dropped,
        "clipped": report.clipped,
        "notes": list(prepared.contribution.notes),
        "sent_chunks": settled.sent_chunks,
        "sent_bytes": settled.sent_bytes,
    }
    text = (
        f"this share is in already: version {receipt.version}, receipt of {receipt.time}"
        if settled.outcome is Outcome.ALREADY
        else f"the share is in: version {receipt.version} with {report.accepted} records,"
        f" {settled.sent_bytes:,} bytes sent, receipt of {receipt.time}"
    )
    if first_contact:
        text += f"\nfirst contact with {user.name}; its key is now pinned: {fingerprint_words(user.ed25519)}"
    text += "".join(f"\nnote: {note}" for note in prepared.contribution.notes)
    _print(as_json, facts, text)


@app.command(epilog=f"Example: dpdpca owner status {_STUDY}")
def status(
    address: Annotated[
        str | None, typer.Argument(metavar="[URL/STUDY]", help="One study; default: all joined here.")
    ] = None,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Where studies stand, and whether the proxy keeps what it signed for this owner."""
    from dpdpca_owner import acts
    from dpdpca_owner.display import status_facts, status_text

    desk = _desk(home, ca_file, passphrase_file)
    places = [_parse(address)] if address is not None else acts.joined(desk.home)
    reports = [acts.status(desk, place) for place in places]
    if as_json:
        facts = [status_facts(report) for report in reports]
        _print(True, facts[0] if address is not None else {"studies": facts}, "")
        return
    if not reports:
        typer.echo("this owner has joined no study yet")
    for report in reports:
        typer.echo(status_text(report))


@app.command(epilog=f"Example: dpdpca owner withdraw {_STUDY}")
def withdraw(
    address: Address,
    yes: Yes = False,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Take this owner's share back while the study is open."""
    from dpdpca_owner import acts
    from dpdpca_owner.upload import Outcome

    place = _parse(address)
    if not yes and sys.stdin.isatty() and not typer.confirm("Take the share back?", err=True):
        raise PolicyError("not-consented", "nothing was changed")
    settled = acts.withdraw(_desk(home, ca_file, passphrase_file), place)
    already = settled.outcome is Outcome.ALREADY
    facts = {
        "study": place.study.hex(),
        "already": already,
        "version": settled.receipt.version,
        "receipt_time": settled.receipt.time,
    }
    text = "was taken back before" if already else "is taken back"
    _print(
        as_json,
        facts,
        f"the share {text}: version {settled.receipt.version}, receipt of {settled.receipt.time}",
    )


@app.command(epilog=f"Example: dpdpca owner components {_STUDY} --out model.npz")
def components(
    address: Address,
    out: Annotated[Path | None, typer.Option(help="Also save them, as .npz.")] = None,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the components that the data user published to the owners, and open this owner's copy."""
    from dpdpca_owner import acts
    from dpdpca_owner.display import show_components

    found = acts.components(_desk(home, ca_file, passphrase_file), _parse(address), out)
    if as_json:
        facts = {
            "records": found.count,
            "names": list(found.space.names),
            "components": found.vectors.tolist(),
            "explained_variance": found.eigenvalues.tolist(),
            "noise_edges": found.noise_edges.tolist(),
            "trusted_components": found.trusted_count,
            "origin": found.origin.tolist(),
            "out": str(out) if out else None,
        }
        _print(True, facts, "")
    else:
        show_components(found, _console())


@app.command(epilog=f"Example: dpdpca owner transform {_STUDY} --data records.parquet --out scores.parquet")
def transform(
    address: Address,
    out: Annotated[Path, typer.Option(help="Scores, as .parquet or .csv.")],
    data: Data = None,
    query: Query = None,
    data_url_file: UrlFile = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Put this owner's own records on the published components, on this machine."""
    from dpdpca_owner import acts

    location = _locate(data, query, data_url_file, encoding, decimal)
    count = acts.transform(_desk(home, ca_file, passphrase_file), _parse(address), location, out)
    _print(as_json, {"records": count, "out": str(out)}, f"{count} records projected into {out}")


def _print(as_json: bool, facts: dict[str, Any], text: str) -> None:
    typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else text)


def _console(*, err: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=err, highlight=False, markup=False)


def _home(option: Path | None) -> "OwnerHome":
    from dpdpca_disk.home import home_folder
    from dpdpca_owner.home import OwnerHome

    return OwnerHome(home_folder("owner", option, os.environ))


def _desk(home: Path | None, ca_file: Path | None, passphrase_file: Path | None) -> "Desk":
    from dpdpca_owner.acts import make_desk

    place = _home(home)
    passphrase = _passphrase_from_file(passphrase_file)
    if place.needs_passphrase and passphrase is None:
        if not sys.stdin.isatty():
            raise AuthenticationError(
                "wrong-passphrase",
                "the key is encrypted and nobody can be asked",
                "name a file with its passphrase: --passphrase-file or DPDPCA_OWNER_PASSPHRASE_FILE",
            )
        passphrase = typer.prompt("Passphrase", hide_input=True, err=True).encode()
    return make_desk(place, place.load(passphrase), ca_file, _say_waiting)


def _say_waiting(reason: str, seconds: float) -> None:
    typer.echo(f"dpdpca: {reason}; trying again in {seconds:.0f} s", err=True)


def _passphrase_from_file(path: Path | None) -> bytes | None:
    if path is None and os.environ.get("DPDPCA_OWNER_PASSPHRASE_FILE"):
        path = Path(os.environ["DPDPCA_OWNER_PASSPHRASE_FILE"])
    return path.read_bytes().rstrip(b"\r\n") if path is not None else None


def _parse(address: str) -> "StudyAddress":
    from dpdpca_http.address import parse_study_address

    return parse_study_address(address)


def _locate(
    data: str | None, query: str | None, url_file: Path | None, encoding: str | None, decimal: str
) -> "DataLocation":
    from dpdpca_owner.sources import locate_data

    return locate_data(data, query, url_file, encoding, decimal, os.environ)


def _need_terminal(what: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError("no-terminal", f"nobody is at a terminal to {what}", "add --yes")
