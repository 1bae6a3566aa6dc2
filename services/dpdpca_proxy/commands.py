"""`dpdpca proxy …`: the commands for an operator."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpdpca_protocol.errors import ConflictError, IntegrityError, MessageError, UsageError
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.settings import load_settings
from dpdpca_runtime.command_options import AsJson, AskPassphrase, TlsCert, TlsKey, Yes
from dpdpca_runtime.text import for_terminal
from dpdpca_runtime.words import fingerprint_words

if TYPE_CHECKING:
    # Only the commands that need the store import it.
    from dpdpca_proxy.proxy import Proxy
    from dpdpca_proxy.store.shares import Contradiction

app = typer.Typer(no_args_is_help=True)

Home = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the proxy's state; default: DPDPCA_PROXY_HOME, else the user's configuration "
        "folder."
    ),
]
Passphrase = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        help="File with the passphrase of the keys; default: DPDPCA_PROXY_PASSPHRASE_FILE.",
    ),
]


@app.command(epilog='Example: dpdpca proxy init --name "Example proxy" --url https://proxy.example.org')
def init(
    name: Annotated[str | None, typer.Option(help="Name of the proxy, as others see it.")] = None,
    url: Annotated[str | None, typer.Option(help="Public address of the proxy: https://HOST[:PORT].")] = None,
    passphrase_file: Passphrase = None,
    ask_passphrase: AskPassphrase = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Create the proxy's keys and database. An existing identity is kept."""
    from dpdpca_proxy.initialise import initialise

    settings, key, fresh = initialise(home, name, url, passphrase_file, ask_passphrase=ask_passphrase)
    public = key.public
    facts = {
        "ed25519": public.ed25519.hex(),
        "home": str(settings.home),
        "kem": public.kem.hex() if public.kem else None,
        "name": settings.name,
        "new": fresh,
        "party": public.party_id.hex(),
        "url": settings.public_url,
        "words": fingerprint_words(public.ed25519),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"{'Created' if fresh else 'Kept'} the proxy {settings.name!r} in {settings.home}")
    typer.echo(f"Address   {settings.public_url}")
    typer.echo(f"Key       {facts['words']}")
    typer.echo(
        "Owners and data users compare these words with you when they enrol. Next: dpdpca proxy invite"
    )


@app.command(epilog="Example: dpdpca proxy serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem")
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. An address other than loopback requires TLS.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port of the public listener; default: 8440.")] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    operator_port: Annotated[
        int | None, typer.Option(help="Port of the operator's page; default: 8441.")
    ] = None,
    passphrase_file: Passphrase = None,
    home: Home = None,
) -> None:
    """Run the proxy until it is interrupted. The operator's page and /metrics have their own listener."""
    from dpdpca_proxy.serve import serve as run

    run(
        load_settings(
            home,
            host=host,
            port=port,
            tls_cert=tls_cert,
            tls_key=tls_key,
            operator_port=operator_port,
            passphrase_file=passphrase_file,
        )
    )


@app.command(epilog='Example: dpdpca proxy invite --role owner --name "Hospital A"')
def invite(
    role: Annotated[str, typer.Option(help="owner or user.")],
    name: Annotated[str, typer.Option(help="Name of the party, as others see it.")],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Print a single-use invitation. Send the invitation over a channel that only the recipient can read."""
    from dpdpca_proxy.enrolment import invite as make_invitation

    with _opened(home) as proxy:
        made = make_invitation(proxy, role, name)
    if as_json:
        facts = {"expires_at": time_text(made.expires_at), "name": name, "role": role, "token": made.token}
        typer.echo(json.dumps(facts))
        return
    typer.echo(made.token)
    typer.echo(f"For {role} {name!r}; valid once, until {time_text(made.expires_at)}.", err=True)


@app.command(epilog="Example: dpdpca proxy rotate")
def rotate(home: Home = None, as_json: AsJson = False) -> None:
    """Replace the proxy's keys by new ones. Open studies keep the old keys until they end."""
    from datetime import UTC, datetime

    from dpdpca_proxy.rotation import rotate_proxy

    keys = rotate_proxy(home, datetime.now(UTC))
    public, words = keys.current.public, fingerprint_words(keys.current.public.ed25519)
    if as_json:
        facts = {"ed25519": public.ed25519.hex(), "rotations": len(keys.rotations), "words": words}
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"Key       {words}")
    typer.echo("Restart the proxy: it uses the old keys until it is restarted.")
    typer.echo("Parties that pinned the old key accept the new one automatically and see these words.")


@app.command(epilog="Example: dpdpca proxy owners --json")
def owners(home: Home = None, as_json: AsJson = False) -> None:
    """List the enrolled parties with their fingerprints."""
    from dpdpca_proxy.enrolment import all_parties

    with _opened(home) as proxy:
        parties = [
            {
                "enrolled_at": time_text(row.enrolled_at),
                "key": "in use" if row.successor is None else "replaced",
                "name": row.name,
                "party": row.party.hex(),
                "role": row.role,
                "words": fingerprint_words(row.ed25519),
            }
            for row in all_parties(proxy)
        ]
    if as_json:
        typer.echo(json.dumps({"parties": parties}))
        return
    _print_table(("name", "role", "key", "enrolled_at", "words"), parties, "no party is enrolled yet")


@app.command(epilog="Example: dpdpca proxy studies --json")
def studies(home: Home = None, as_json: AsJson = False) -> None:
    """List the studies and their states."""
    from dpdpca_proxy.studies import check_all_readable, summaries

    with _opened(home) as proxy:
        listed = summaries(proxy)
        if as_json:
            typer.echo(json.dumps({"studies": listed}))
        else:
            shown = [
                study | {"owners": f"{study['owners_complete']} of {study['min_owners']}+"}
                for study in listed
            ]
            columns = ("study", "title", "release", "state", "owners", "closes_at")
            _print_table(columns, shown, "there is no study yet")
        check_all_readable(proxy)


@app.command(epilog="Example: dpdpca proxy audit 3f0c…")
def audit(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="The study's id: 64 hex digits.")],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Verify the signatures, the chain of events and the release of a study, offline."""
    from dpdpca_proxy.audit import HOLDS, audit_study, contradictions_of

    contradictions: list[Contradiction] = []
    with _opened(home) as proxy:
        checks = audit_study(proxy, _study_id(study))
        with suppress(IntegrityError):  # one of the checks reports that
            contradictions = contradictions_of(proxy, _study_id(study))
    failed = [check for check in checks if check.outcome != HOLDS]
    if as_json:
        facts = [{"check": check.what, "outcome": check.outcome} for check in checks]
        evidence = [
            {"owner": one.owner.hex(), "statements": [json.loads(one.statement), json.loads(one.other)]}
            for one in contradictions
        ]
        told = {"checks": facts, "contradictions": evidence, "holds": not failed, "study": study}
        typer.echo(json.dumps(told))
    else:
        for check in checks:
            typer.echo(f"{check.what}: {check.outcome}")
        for one in contradictions:
            typer.echo(
                f"owner {one.owner.hex()} signed two different statements under version {one.version}; "
                "the first one counts; --json shows both"
            )
    if failed:
        raise IntegrityError(
            "audit-failed",
            f"{len(failed)} of {len(checks)} checks failed",
            "do not change the proxy's home, and find out what happened to it",
        )


@app.command(name="accept-loss", epilog="Example: dpdpca proxy accept-loss --yes")
def accept_loss(
    yes: Yes = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Go on with an older copy of the database. All unfinished studies fail permanently."""
    from dpdpca_proxy.loss import accept_loss as accept

    with _opened(home) as proxy:
        if not yes:
            _confirm_loss(proxy)
        failed = [study.hex() for study in accept(proxy)]
    if as_json:
        typer.echo(json.dumps({"failed": failed}))
        return
    for study in failed:
        typer.echo(study)
    typer.echo(f"{len(failed)} studies have failed. Their data users must start new studies.", err=True)


def _confirm_loss(proxy: "Proxy") -> None:
    """Shows first where the generation file was expected, because the file may just be elsewhere."""
    try:
        proxy.database.settle_witness()
    except ConflictError as error:
        typer.echo(f"{error.problem} ({error.place})", err=True)
    typer.confirm("All unfinished studies will fail and will never be released. Go on?", abort=True)


def _study_id(text: str) -> StudyId:
    try:
        return StudyId.parse(text)
    except MessageError as error:
        raise UsageError(
            "bad-study",
            "this is not the id of a study: an id has 64 lower-case hex digits",
            "to list the studies, run: dpdpca proxy studies",
        ) from error


@contextmanager
def _opened(home: Path | None) -> "Iterator[Proxy]":
    from dpdpca_proxy.proxy import open_proxy

    proxy = open_proxy(load_settings(home))
    try:
        yield proxy
    finally:
        proxy.database.close()


def _print_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], otherwise: str) -> None:
    """Prints a table for people. Names come from others, so rich must not interpret them as markup."""
    if not rows:
        typer.echo(otherwise)
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(for_terminal(str(row[column]))) for column in columns))
    Console().print(table)
