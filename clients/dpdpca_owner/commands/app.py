"""`dpdpca owner …`: the command line of a data owner. What the commands do is in `actions.py`."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdpca_owner.commands import carrying as carrying_commands
from dpdpca_owner.commands import data as data_commands
from dpdpca_owner.commands import inbox as inbox_commands
from dpdpca_owner.commands import ledger as ledger_commands
from dpdpca_owner.commands import serve as serve_commands
from dpdpca_owner.commands.joining import join_and_follow, send_share
from dpdpca_owner.commands.parts import (
    PASSPHRASE_VARIABLE,
    Address,
    Data,
    Dataset,
    Decimal,
    Encoding,
    Flip,
    HeaderLines,
    Home,
    MissingMarker,
    Names,
    Passphrase,
    Query,
    Source,
    Strict,
    To,
    UrlFile,
    carried_desk,
    choose_records,
    desk_for,
    find_home,
    locate,
    make_console,
    need_terminal,
    open_desk,
    parse_address,
    print_facts,
    reading_of,
    say,
)
from dpdpca_protocol.errors import PolicyError, UsageError
from dpdpca_runtime.command_options import (
    AsJson,
    AskPassphrase,
    CaFile,
    InvitationFile,
    KeyUnseen,
    ProxyUrl,
    Yes,
)
from dpdpca_runtime.text import load_line, load_text

if TYPE_CHECKING:
    from dpdpca_protocol.messages.study_messages import ProxyCard

app = typer.Typer(help="Take part in studies as a data owner.", no_args_is_help=True)
app.add_typer(data_commands.app, name="data")
app.command(epilog=inbox_commands.EXAMPLE)(inbox_commands.inbox)
app.command(epilog=carrying_commands.EXAMPLE)(carrying_commands.send)
app.command(epilog=serve_commands.EXAMPLE)(serve_commands.serve)
app.command(epilog=ledger_commands.EXAMPLE)(ledger_commands.ledger)

_STUDY = "https://proxy.example:8440/9f86…0a08"


@app.command(epilog='Example: dpdpca owner init --name "Hospital A"')
def init(
    name: Annotated[str, typer.Option(help="The name of this owner, as others see it.")],
    home: Home = None,
    passphrase_file: Passphrase = None,
    ask_passphrase: AskPassphrase = False,
    as_json: AsJson = False,
) -> None:
    """Create this owner's keys, its ledger, and a policy file to edit."""
    from dpdpca_runtime.passphrase import new_passphrase

    passphrase = new_passphrase(passphrase_file, PASSPHRASE_VARIABLE, ask=ask_passphrase)
    place = find_home(home)
    owner = place.create(name, passphrase)
    facts = {
        "home": str(place.path),
        "name": owner.name,
        "party": owner.key.public.party_id.hex(),
        "ed25519": owner.key.public.ed25519.hex(),
        "words": owner.words,
        "policy": str(place.policy_path),
    }
    print_facts(
        as_json,
        facts,
        f"{owner.name} is ready in {place.path}\nkey    {facts['ed25519']}\nwords  {owner.words}\n"
        f"{place.policy_path} says what this owner agrees to: read it, and lower its figures as needed",
    )


@app.command(epilog="Example: dpdpca owner enrol https://proxy.example:8440 --invitation-file token.txt")
def enrol(
    url: ProxyUrl,
    invitation_file: InvitationFile = None,
    yes: KeyUnseen = False,
    to: To = None,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Enrol at a proxy with a single-use invitation, and pin its key."""
    from dpdpca_owner import actions
    from dpdpca_owner.carrying import NotCarriedError
    from dpdpca_runtime.words import fingerprint_words

    def accept(card: "ProxyCard", known: bool) -> bool:
        if known or yes:
            return True
        typer.echo(f"{card.name} shows the key\n  {fingerprint_words(card.identity.ed25519)}", err=True)
        need_terminal("accept the proxy's key")
        return typer.confirm("Are these the words that the proxy's operator told you?", err=True)

    def read_invitation() -> str:
        if invitation_file is not None:
            return load_text(invitation_file).strip()
        if sys.stdin.isatty():
            return str(typer.prompt("Invitation", hide_input=True, err=True)).strip()
        return load_line(sys.stdin.buffer)

    opened = (
        nullcontext(open_desk(home, ca_file, passphrase_file))
        if to is None
        else carried_desk(to, url, None, home, passphrase_file)
    )
    try:
        with opened as desk:
            done = actions.enrol(desk, url, read_invitation, accept)
    except NotCarriedError as waiting:
        print_facts(as_json, *carrying_commands.carry_facts(waiting, "enrolment with its invitation"))
        return
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
    how = "was already enrolled" if done.was_enrolled else "is now enrolled"
    print_facts(as_json, facts, f"this owner {how} at {done.proxy.name}\nwords  {words}")


@app.command(epilog="Example: dpdpca owner rotate")
def rotate(
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Replace this owner's keys by new ones at every proxy; open studies keep the old keys."""
    from dpdpca_owner.actions import make_desk
    from dpdpca_owner.rotation import rotate_keys
    from dpdpca_runtime.passphrase import unlock

    place = find_home(home)
    passphrase = unlock(place.keys, passphrase_file, PASSPHRASE_VARIABLE)
    desk = make_desk(place, place.load(passphrase), ca_file, say=say)
    owner = rotate_keys(desk, passphrase)
    facts = {
        "party": owner.key.public.party_id.hex(),
        "ed25519": owner.key.public.ed25519.hex(),
        "words": owner.words,
        "former_keys": len(owner.former),
        "proxies": place.pins.proxy_urls(),
    }
    text = f"{owner.name} has new keys\nkey    {facts['ed25519']}\nwords  {owner.words}"
    print_facts(as_json, facts, f"{text}\nstudies that this owner has joined continue with the old keys")


@app.command(epilog=f"Example: dpdpca owner review {_STUDY} --data records.parquet")
def review(
    address: Address,
    data: Data = None,
    query: Query = None,
    data_url_file: UrlFile = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    missing_marker: MissingMarker = None,
    header_lines: HeaderLines = None,
    names: Names = None,
    flip: Flip = None,
    dataset: Dataset = None,
    source: Source = None,
    strict: Strict = False,
    save: Annotated[
        Path | None,
        typer.Option(
            help="A new folder for a sample of what would leave, made with throw-away keys. It needs data. No"
            " command can send it."
        ),
    ] = None,
    to: To = None,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Show what a study asks for and, if data is given, how the study would treat it. Uploads nothing."""
    from dpdpca_owner import actions
    from dpdpca_owner.commands.display import show_sheet

    location = None
    if data is not None or query is not None or data_url_file is not None or source is not None:
        reading = reading_of(missing_marker, header_lines, names, flip)
        location, dataset = choose_records(
            find_home(home), source, data, query, data_url_file, encoding, decimal, reading, dataset
        )
    place = parse_address(address)
    with desk_for(place, to, home, ca_file, passphrase_file) as desk:
        sheet = actions.review(desk, place, location, dataset, strict=strict, save=save)
    if as_json:
        print_facts(True, sheet.to_json(), "")
    else:
        show_sheet(sheet, make_console())
    if save is not None:
        say(f"a sample of what would leave is in {save}; its keys were thrown away, so nobody can use it")


@app.command(epilog=f"Example: dpdpca owner prepare {_STUDY}")
def prepare(
    address: Address,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Do the slow part of encrypting now, so that `join` takes seconds. Needs no data and sends nothing.

    Only a study with the suite paillier has such a part.
    """
    from dpdpca_owner import actions
    from dpdpca_owner.commands.display import counting

    desk = open_desk(home, ca_file, passphrase_file)
    with counting("Preparing", quiet=as_json) as on_made:
        ahead = actions.work_ahead(desk, parse_address(address), on_made)
    text = (
        f"made {ahead.made:,} of {ahead.total:,} encryption values; each is used for one ciphertext and then"
        " deleted"
        if ahead.total
        else "there is nothing to prepare: a share of this study takes milliseconds"
    )
    print_facts(as_json, {"made": ahead.made, "total": ahead.total}, text)


@app.command(epilog=f"Example: dpdpca owner join {_STUDY} --data records.parquet")
def join(
    address: Address,
    data: Data = None,
    query: Query = None,
    data_url_file: UrlFile = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    missing_marker: MissingMarker = None,
    header_lines: HeaderLines = None,
    names: Names = None,
    flip: Flip = None,
    dataset: Dataset = None,
    source: Source = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Stay until the components are here. In a chain, also join all later rounds that your"
            " approval covers. With --source, a running agent (dpdpca owner serve) does all this, and this"
            " command returns at once. If no agent is running and this command is interrupted, the agent"
            " continues when it is started.",
        ),
    ] = False,
    strict: Strict = False,
    yes: Yes = False,
    to: To = None,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Encrypt this owner's sums and send them. An interrupted run continues where it stopped.

    With --to FOLDER, this machine needs no network. Run this command, carry FOLDER to another machine, run
    dpdpca owner send FOLDER there, carry FOLDER back, and repeat this command until it shows the receipt.
    """
    from dpdpca_owner.following import Records

    place = parse_address(address)
    reading = reading_of(missing_marker, header_lines, names, flip)
    location, dataset = choose_records(
        find_home(home), source, data, query, data_url_file, encoding, decimal, reading, dataset
    )
    records = Records(location, dataset, strict)
    if to is not None:
        if follow:
            raise UsageError(
                "bad-option",
                "--follow needs a connection, and --to makes none",
                "join each round with --to: your approval of a chain covers the later rounds",
            )
        carrying_commands.pack_share(to, place, records, yes, as_json, home, passphrase_file)
        return
    desk = open_desk(home, ca_file, passphrase_file)
    if follow:
        join_and_follow(desk, place, records, source, yes, as_json)
    else:
        facts, text = send_share(desk, place, records, yes, as_json)
        print_facts(as_json, facts, text)


@app.command(epilog=f"Example: dpdpca owner status {_STUDY}")
def status(
    address: Annotated[
        str | None, typer.Argument(metavar="[URL/STUDY]", help="One study; default: all studies joined here.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not contact the proxy; check what the last run stored here.")
    ] = False,
    head: Annotated[
        bool,
        typer.Option(
            "--head",
            help="Also show the heads of the study and of the proxy's log. If two owners see different heads"
            " after the same number of events, or at the same generation, the proxy has lied to one of them.",
        ),
    ] = False,
    to: To = None,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of studies, and whether the proxy keeps to what it signed for this owner.

    This command books refunds. A cancelled study is refunded once the data user has signed the cancellation.
    A withdrawn share is refunded once the data user has signed that it opens the study without this share.
    """
    from dpdpca_owner import reports
    from dpdpca_owner.commands.display import status_facts, status_text, unread_facts, unread_text

    ask = reports.status_offline if offline else reports.status
    if to is not None and (address is None or offline):
        raise UsageError(
            "bad-option",
            "--to is for one study and not with --offline",
            "name the study, and leave out --offline",
        )
    if address is not None:
        place = parse_address(address)
        with desk_for(place, to, home, ca_file, passphrase_file) as desk:
            report = ask(desk, place)
        print_facts(as_json, status_facts(report), status_text(report, with_heads=head))
        return
    desk = open_desk(home, ca_file, passphrase_file)
    told = reports.all_statuses(desk, ask)
    facts = [unread_facts(each) if isinstance(each, reports.Unread) else status_facts(each) for each in told]
    texts = [
        unread_text(each) if isinstance(each, reports.Unread) else status_text(each, with_heads=head)
        for each in told
    ]
    print_facts(as_json, {"studies": facts}, "\n".join(texts) or "this owner has joined no study yet")
    for each in told:
        # Terms of another version are no failure: nothing that the owner could mend is wrong.
        if isinstance(each, reports.Unread) and not each.is_of_another_version:
            raise each.error


@app.command(epilog=f'Example: dpdpca owner trust {_STUDY} "Hospital B" --words "twelve words"')
def trust(
    address: Address,
    name: Annotated[str, typer.Argument(help="The other owner, as the study names it.")],
    words: Annotated[
        str | None, typer.Option(help="The words that the other owner told you; asked for if missing.")
    ] = None,
    to: To = None,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Note that you have compared the words of another owner with that owner."""
    from dpdpca_owner import actions

    place = parse_address(address)
    if words is None:
        need_terminal("compare words")
        words = str(typer.prompt(f"The words that {name} told you", err=True))
    with desk_for(place, to, home, ca_file, passphrase_file) as desk:
        shown = actions.trust(desk, place, name, words)
    print_facts(
        as_json, {"name": name, "words": shown}, f"these are the words of {name}: noted\nwords  {shown}"
    )


@app.command(epilog=f"Example: dpdpca owner withdraw {_STUDY}")
def withdraw(
    address: Address,
    yes: Yes = False,
    to: To = None,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Withdraw this owner's share while the study is open. A blinded study then ends for all owners."""
    from dpdpca_owner import actions
    from dpdpca_owner.carrying import NotCarriedError, check_delivered
    from dpdpca_owner.commands.display import booked_text
    from dpdpca_owner.upload import Outcome

    place = parse_address(address)
    if not yes and sys.stdin.isatty() and not typer.confirm("Withdraw the share?", err=True):
        raise PolicyError("not-consented", "you did not confirm, and nothing was changed")
    try:
        with desk_for(place, to, home, ca_file, passphrase_file) as desk:
            if to is not None:
                check_delivered(desk.home.study(place.study))
            settled = actions.withdraw(desk, place)
    except NotCarriedError as waiting:
        print_facts(as_json, *carrying_commands.carry_facts(waiting, "withdrawal"))
        return
    spend = desk.home.ledger.read().spend(place.study)
    already = settled.outcome is Outcome.ALREADY
    facts = {
        "study": place.study.hex(),
        "already": already,
        "version": settled.receipt.version,
        "receipt_time": settled.receipt.time,
    }
    text = "was already withdrawn" if already else "is withdrawn"
    print_facts(
        as_json,
        facts,
        f"the share {text}: version {settled.receipt.version}, receipt of {settled.receipt.time}"
        + ("" if spend is None else f"\n{booked_text(spend, is_withdrawn=True)}"),
    )


@app.command(epilog=f'Example: dpdpca owner decline {_STUDY} --why "our board meets in January"')
def decline(
    address: Address,
    why: Annotated[
        str | None,
        typer.Option(
            help="One line for the data user, at most 500 characters. The proxy's operator can read it too."
        ),
    ] = None,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Tell the data user of an open study that this owner does not take part. Spends nothing.

    The other owners are not told. To take part after all, join the study while it is open.
    """
    from dpdpca_owner.declining import decline as decline_study

    place, desk = parse_address(address), open_desk(home, ca_file, passphrase_file)
    declined = decline_study(desk, place, why)
    spend = desk.home.ledger.read().spend(place.study)
    is_booked = spend is not None and spend.is_live
    text = f"the data user is told that you do not take part (declined at {declined.time})"
    if is_booked:
        text += "\na part of a share may have been sent before, so the cost of the study stays booked"
    facts = {"study": place.study.hex(), "time": declined.time, "why": declined.why, "is_booked": is_booked}
    print_facts(as_json, facts, text)


@app.command(epilog=f"Example: dpdpca owner components {_STUDY} --out model.npz")
def components(
    address: Address,
    out: Annotated[Path | None, typer.Option(help="Also save the components to this .npz file.")] = None,
    to: To = None,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the components that the data user published, and open this owner's copy."""
    from dpdpca_owner import actions
    from dpdpca_owner.commands.display import components_facts, show_components

    place = parse_address(address)
    with desk_for(place, to, home, ca_file, passphrase_file) as desk:
        found, manifest = actions.components(desk, place, out)
    if as_json:
        print_facts(True, components_facts(found, manifest, out), "")
    else:
        show_components(found, manifest, make_console())


@app.command(epilog=f"Example: dpdpca owner transform {_STUDY} --data records.parquet --out scores.parquet")
def transform(
    address: Address,
    out: Annotated[Path, typer.Option(help="Where to write the scores: a .parquet or .csv file.")],
    t2: Annotated[
        bool, typer.Option("--t2", help="Also write T²: how unusual a record is within the components.")
    ] = False,
    spe: Annotated[
        bool, typer.Option("--spe", help="Also write SPE: how far a record lies outside the components.")
    ] = False,
    contributions: Annotated[
        bool, typer.Option("--contributions", help="Also write what each feature adds to T² and SPE.")
    ] = False,
    data: Data = None,
    query: Query = None,
    data_url_file: UrlFile = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    missing_marker: MissingMarker = None,
    header_lines: HeaderLines = None,
    names: Names = None,
    flip: Flip = None,
    to: To = None,
    home: Home = None,
    ca_file: CaFile = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Project this owner's own records onto the published components, on this machine."""
    from dpdpca_owner import actions
    from dpdpca_owner.commands.outliers import outlier_facts, outlier_lines
    from dpdpca_owner.projection import Wanted

    wanted = Wanted(t2, spe, contributions)
    if contributions and not (t2 or spe):
        raise UsageError(
            "bad-option", "--contributions says what features add to T² and SPE", "give --t2 or --spe as well"
        )
    reading = reading_of(missing_marker, header_lines, names, flip)
    location = locate(data, query, data_url_file, encoding, decimal, reading)
    place = parse_address(address)
    with desk_for(place, to, home, ca_file, passphrase_file) as desk:
        projected = actions.transform(desk, place, location, out, wanted)
    facts: dict[str, Any] = {"records": projected.records, "out": str(out)}
    text = f"the scores of {projected.records} records are in {out}"
    if projected.outliers is not None:
        facts |= outlier_facts(projected.outliers, wanted)
        text = "\n".join([text, *outlier_lines(facts)])
    print_facts(as_json, facts, text)
