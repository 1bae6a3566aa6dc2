"""`dpdpca user study run` and `study chains`: run one study, or a chain of studies, to the end."""

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdpca_protocol.errors import PolicyError
from dpdpca_runtime.command_options import AsJson
from dpdpca_user.commands.parts import (
    DraftFile,
    Home,
    Proxy,
    Publish,
    Scales,
    Service,
    load_draft,
    open_client,
    send_list,
    show_line,
    show_participants,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dpdpca_user.service_client import ServiceClient

_LOOK_SECONDS = 1.0
_ENDED = ("done", "failed", "cancelled", "fitted", "published")


def study_run(
    draft: DraftFile,
    auto: Annotated[
        bool,
        typer.Option("--auto", help="Run a chain: pre-studies choose how the main study is done."),
    ] = False,
    records: Annotated[
        int | None, typer.Option(min=1, help="How many records are expected in all; default: max_records.")
    ] = None,
    scales: Scales = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Start a new chain even if this draft has one; the new chain costs as much again."
        ),
    ] = False,
    publish: Publish = True,
    wait: Annotated[
        bool, typer.Option(help="Wait until the end; the service continues even if this command stops.")
    ] = True,
    proxy: Proxy = None,
    service: Service = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Run a study until its model is ready; with --auto, run a chain of studies within one total ε.

    Repeating the command with --auto continues the chain. Without --auto it creates another study; `study
    list` shows what is running.
    """
    content, media_type = load_draft(draft)
    with open_client(service, home) as client:
        content, media_type = send_list(client, draft, content, media_type)
        if auto:
            facts = client.run_chain(
                content,
                media_type,
                proxy=proxy,
                publish=publish,
                records=records,
                scales=scales,
                again=again,
            )
            look: Callable[[str], dict[str, Any]] = client.chain
            tell = _tell_chain
        else:
            facts = client.create(content, media_type, proxy=proxy, publish=publish)
            look, tell = client.study, _tell_study
        if not as_json:
            show_participants(facts["participants"])
        if wait:
            facts = _follow(look, facts, None if as_json else tell)
    if as_json:
        typer.echo(json.dumps(facts))
    elif not wait:
        typer.echo(f"{'chain' if auto else 'draft'} {facts['id']} is accepted")
    if wait and facts["state"] in ("failed", "cancelled"):
        problem = facts["problem"] or {"detail": "no reason was given"}
        what, see = ("chain", "study chains") if auto else ("study", "study list")
        raise PolicyError(
            f"study-{facts['state']}",
            f"the {what} is {facts['state']}: {problem['detail']}",
            f"see: dpdpca user {see}",
        )


def study_chains(
    chain: Annotated[str | None, typer.Argument(metavar="CHAIN", help="One chain; default: all.")] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel this chain; the budget of released rounds stays spent.")
    ] = False,
    service: Service = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show chains of studies, their rounds, and why each round was chosen."""
    with open_client(service, home) as client:
        found = _chains(client, chain, cancel)
    if as_json:
        typer.echo(json.dumps(found[0] if chain is not None else {"chains": found}))
        return
    for facts in found:
        show_line(f"{facts['id']}  {facts['state']:<9}  {facts['spent_share']:.0%} spent  {facts['title']}")
        for number in range(1, len(facts["rounds"]) + 1):
            _tell_round(facts, number)


def _chains(client: "ServiceClient", chain: str | None, cancel: bool) -> list[dict[str, Any]]:
    if chain is None:
        return client.chains()
    return [client.cancel_chain(chain) if cancel else client.chain(chain)]


def _follow(
    look: "Callable[[str], dict[str, Any]]",
    facts: dict[str, Any],
    tell: "Callable[[dict[str, Any], dict[str, Any]], None] | None",
) -> dict[str, Any]:
    """Poll until the end, and tell what has changed since the last poll."""
    last: dict[str, Any] = {}
    while True:
        if tell is not None:
            tell(last, facts)
        if facts["state"] in _ENDED:
            return facts
        last = facts
        time.sleep(_LOOK_SECONDS)
        facts = look(facts["id"])


def _tell_study(last: dict[str, Any], facts: dict[str, Any]) -> None:
    if facts["state"] != last.get("state"):
        show_line(f"{facts['study'] or 'draft ' + facts['id']}  {facts['state']}")
    _tell_declines(last, facts)


def declined_text(owner: dict[str, Any]) -> str:
    """What an owner says that does not take part; its reason is in quotes, because it is its own text."""
    said = owner["declined"]
    why = f": “{said['why']}”" if said["why"] else ""
    return f"declined on {said['time'][:10]}{why}"


def _tell_declines(last: dict[str, Any], facts: dict[str, Any]) -> None:
    """One line for each owner that has declined since the last poll."""
    known = {owner["owner"]: owner["declined"] for owner in last.get("owners", [])}
    for owner in facts["owners"]:
        if owner["declined"] and owner["declined"] != known.get(owner["owner"]):
            show_line(f"{owner['name']} {declined_text(owner)}")


def _tell_chain(last: dict[str, Any], facts: dict[str, Any]) -> None:
    if not last:
        show_line(f"chain {facts['id']}  {facts['title']}")
    known = [each["state"] for each in last.get("rounds", [])]
    for number, each in enumerate(facts["rounds"], 1):
        if number > len(known):
            _tell_round(facts, number)
        elif each["state"] != known[number - 1]:
            show_line(f"{number}. {each['study'] or ''}  {each['state']}")
        before = last.get("rounds", [])[number - 1 : number]
        _tell_declines(before[0] if before else {}, each)
    if facts["state"] != last.get("state") and facts["state"] == "done":
        show_line(f"done; see the result with: dpdpca user result {facts['study']}")


def _tell_round(facts: dict[str, Any], number: int) -> None:
    each = facts["rounds"][number - 1]
    show_line(f"{number}. {each['release']}, {each['rho_share']:.0%} of the budget  {each['state']}")
    for reason in each["reasons"]:
        show_line(f"   {reason}")
