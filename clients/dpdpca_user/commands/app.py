"""`dpdpca user …`: the command line of a data user. `serve` is the service's own command."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdpca_protocol.errors import AuthenticationError, NotAllowedError, PolicyError, UsageError
from dpdpca_runtime.command_options import AsJson, AskPassphrase, CaFile, InvitationFile, KeyUnseen, ProxyUrl
from dpdpca_runtime.text import for_terminal
from dpdpca_user.commands.parts import (
    Home,
    Passphrase,
    Service,
    Study,
    need_terminal,
    open_client,
    read_invitation,
    show,
)
from dpdpca_user.commands.plan import plan
from dpdpca_user.commands.study import study_app

if TYPE_CHECKING:
    from dpdpca_protocol.wire.signing import Statement
    from dpdpca_runtime.http.client import ProxyClient

_FORMATS = "CSV, Parquet or .npz, by the file's name."

app = typer.Typer(help="Create studies as a data user, and get their components.", no_args_is_help=True)
app.add_typer(study_app, name="study")


@app.command(epilog='Example: dpdpca user init --name "Institute"')
def init(
    name: Annotated[str, typer.Option(help="The name of this data user, as owners see it.")],
    home: Home = None,
    passphrase_file: Passphrase = None,
    ask_passphrase: AskPassphrase = False,
    as_json: AsJson = False,
) -> None:
    """Create this data user's keys and the bearer token of its service."""
    from dpdpca_runtime.passphrase import new_passphrase
    from dpdpca_runtime.words import fingerprint_words
    from dpdpca_user.home import PASSPHRASE_VARIABLE, UserHome

    place = UserHome.find(home)
    key = place.create(name, new_passphrase(passphrase_file, PASSPHRASE_VARIABLE, ask=ask_passphrase))
    words = fingerprint_words(key.public.ed25519)
    facts = {
        "home": str(place.folder),
        "name": name,
        "party": key.public.party_id.hex(),
        "ed25519": key.public.ed25519.hex(),
        "words": words,
    }
    show(as_json, facts, f"{name} is ready in {place.folder}\nkey    {facts['ed25519']}\nwords  {words}")


@app.command(epilog="Example: dpdpca user enrol https://proxy.example:8440 --invitation-file token.txt")
def enrol(
    url: ProxyUrl,
    invitation_file: InvitationFile = None,
    yes: KeyUnseen = False,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Enrol at a proxy with a single-use invitation, and pin its key."""
    from dpdpca_runtime.http.address import address_note
    from dpdpca_runtime.http.client import ProxyClient
    from dpdpca_runtime.words import fingerprint_words
    from dpdpca_user.home import EnrolledProxy, UserHome, passphrase_of

    place = UserHome.find(home)
    key = place.identity(passphrase_of(place, passphrase_file))
    with ProxyClient(url, key, ca_file=ca_file) as unknown:
        card, statement = unknown.card()
        address = unknown.url
        if (note := address_note(card.url, address)) is not None:
            typer.echo(f"note: {note}", err=True)
        met = place.find_proxy(address)
        if met is not None and met.identity != card.identity:
            place.follow_proxy(met, card, unknown.proxy_rotations())
    pinned = EnrolledProxy(address, card.name, statement.signer.hex(), card.identity.sealing_key.hex())
    words = fingerprint_words(statement.signer)
    known = met is not None
    if not known and not yes:
        typer.echo(f"{for_terminal(card.name)} shows the key\n  {words}", err=True)
        need_terminal("accept the proxy's key")
        if not typer.confirm("Are these the words that the proxy's operator told you?", err=True):
            raise PolicyError("not-confirmed", "the proxy's key was not accepted, and nothing was sent")
    with ProxyClient(url, key, statement.signer, ca_file=ca_file) as proxy:
        was_enrolled = known and _knows(proxy, key.public.ed25519)
        if not was_enrolled:
            proxy.enrol("user", place.name(), read_invitation(invitation_file))
    if not known:
        place.pin_proxy(pinned)
    facts = {
        "proxy": {"name": card.name, "url": address, "ed25519": pinned.ed25519, "words": words},
        "party": key.public.party_id.hex(),
        "was_enrolled": was_enrolled,
    }
    how = "was already enrolled" if was_enrolled else "is now enrolled"
    show(as_json, facts, f"this data user {how} at {for_terminal(card.name)}\nwords  {words}")


@app.command(epilog="Example: dpdpca user rotate")
def rotate(
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Replace this data user's keys by new ones at every proxy; open studies keep the old keys."""
    from datetime import UTC, datetime

    from dpdpca_runtime.http.client import ProxyClient
    from dpdpca_runtime.words import fingerprint_words
    from dpdpca_user.home import UserHome, passphrase_of

    place = UserHome.find(home)
    passphrase = passphrase_of(place, passphrase_file)
    old = place.identity(passphrase)

    def announce(statement: "Statement") -> None:
        for proxy in place.proxies():
            with ProxyClient(proxy.url, old, ca_file=ca_file) as client:
                client.rotate(statement)

    keys = place.rotate(passphrase, datetime.now(UTC), announce)
    public = keys.current.public
    words = fingerprint_words(public.ed25519)
    facts = {
        "party": public.party_id.hex(),
        "ed25519": public.ed25519.hex(),
        "words": words,
        "former_keys": len(keys.former),
        "proxies": [proxy.url for proxy in place.proxies()],
    }
    text = f"{place.name()} has new keys\nkey    {facts['ed25519']}\nwords  {words}"
    show(as_json, facts, f"{text}\nrestart the service: it uses the old keys until it is restarted")


def _knows(proxy: "ProxyClient", ed25519: bytes) -> bool:
    """Whether this data user is enrolled at the proxy, so that no second invitation is used up."""
    try:
        return any(party.ed25519 == ed25519 for party in proxy.parties())
    except (AuthenticationError, NotAllowedError):
        return False


app.command(epilog="Example: dpdpca user plan draft.toml --records 20000")(plan)


@app.command(epilog="Example: dpdpca user result 9f86…0a08 --out model.npz")
def result(
    study: Study,
    out: Annotated[Path | None, typer.Option("--out", help="Write the model to this file.")] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Send the components to the owners, sealed to their keys.")
    ] = False,
    covariance: Annotated[
        Path | None, typer.Option(help=f"Write the covariances to this file. {_FORMATS}")
    ] = None,
    correlation: Annotated[
        Path | None, typer.Option(help=f"Write the correlations to this file. {_FORMATS}")
    ] = None,
    mean: Annotated[Path | None, typer.Option(help=f"Write the means to this file. {_FORMATS}")] = None,
    keep_noise: Annotated[
        bool, typer.Option("--keep-noise", help="Leave the noise in covariances and correlations.")
    ] = False,
    positive: Annotated[
        bool, typer.Option("--positive", help="Make covariances and correlations positive semidefinite.")
    ] = False,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--combine",
            metavar="STUDY",
            help="Add the release of this study, whose records are others; give it for each further study.",
        ),
    ] = None,
    service: Service = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show a result: variances, noise edge and privacy guarantee; for a pre-study or a sketch, its numbers.

    The tables cost no further privacy. Each figure has the standard deviation of its noise beside it.
    """
    from dpdpca_protocol.study import ReleaseKind

    tables = {"covariance": covariance, "correlation": correlation, "mean": mean}
    wanted = {name: path for name, path in tables.items() if path is not None}
    if wanted:
        from dpdpca_user.results.moment_files import check_ending

        for path in wanted.values():
            check_ending(path)
    if others:
        from dpdpca_user.commands.combining import show_combination

        if publish:
            raise UsageError(
                "bad-option", "a combined result cannot be published", "publish each study by itself"
            )
        with open_client(service, home) as client:
            files = [client.model_file(each) for each in (study, *others)]
        show_combination(files, wanted, out, as_json, remove_noise=not keep_noise, positive=positive)
        return
    with open_client(service, home) as client:
        has_components = ReleaseKind(client.study(study)["release"]).has_components
        if not has_components and not publish and not wanted:
            numbers = client.result(study)
            _show_pre_study(numbers, out, as_json)
            return
        facts = client.model(study)
        file = client.model_file(study) if out is not None or wanted else b""
        if out is not None:
            from dpdpca_runtime.files import write_private

            write_private(out, file)
        written = []
        if wanted:
            from dpdpca_user.commands.tables import write_tables
            from dpdpca_user.results.model import Model

            moments = Model.from_bytes(file).moments
            written = write_tables(moments, wanted, remove_noise=not keep_noise, positive=positive)
        if publish:
            client.publish(study)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    from dpdpca_user.commands.components import show_components

    show_components(facts)
    if out is not None:
        typer.echo(f"the model is in {out}")
    for line in written:
        typer.echo(line)


def _show_pre_study(numbers: dict[str, Any], out: Path | None, as_json: bool) -> None:
    from dpdpca_user.commands.numbers import show_numbers

    if out is not None:
        from dpdpca_runtime.files import write_private

        write_private(out, json.dumps(numbers).encode())
    if as_json:
        typer.echo(json.dumps(numbers))
    else:
        show_numbers(numbers)


@app.command(epilog="Example: dpdpca user report 9f86…0a08 --out report.html")
def report(
    study: Study,
    out: Annotated[Path, typer.Option("--out", help="Write the report to this HTML file.")],
    service: Service = None,
    home: Home = None,
) -> None:
    """Write one self-contained HTML file: scree plot, loadings, biplot, guarantee, cohort and signatures."""
    from dpdpca_runtime.files import write_shared

    with open_client(service, home) as client:
        write_shared(out, client.report(study))
    typer.echo(f"the report is in {out}")


@app.command(epilog="Example: dpdpca user verify 9f86…0a08")
def verify(
    study: Study,
    service: Service = None,
    home: Home = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Check all signatures and digests of a study again, from what the service has stored."""
    from dpdpca_protocol.wire.identifiers import StudyId
    from dpdpca_user.home import UserHome, passphrase_of
    from dpdpca_user.offline import verify_evidence

    place = UserHome.find(home)
    keys = place.keys(passphrase_of(place, passphrase_file))
    with open_client(service, home) as client:
        facts = client.study(study)
        evidence = client.evidence(study)
        held = []
        for line in verify_evidence(
            StudyId.parse(evidence["study"]),
            evidence,
            lambda index: client.evidence_chunk(study, index),
            place.proxy(facts["proxy"]).keys,
            tuple(key.public.ed25519 for key in (keys.current, *keys.former)),
        ):
            held.append(line)
            if not as_json:
                typer.echo(f"✓ {line}")
    if as_json:
        typer.echo(json.dumps({"study": evidence["study"], "verified": held}))
