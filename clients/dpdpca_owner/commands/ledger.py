"""`dpdpca owner ledger`: shows what studies have cost this owner's records, and rebuilds a damaged ledger."""

from typing import Annotated

import typer

from dpdpca_owner.commands.parts import (
    Dataset,
    Home,
    Passphrase,
    find_home,
    make_console,
    need_terminal,
    open_desk,
    print_facts,
)
from dpdpca_protocol.errors import PolicyError
from dpdpca_runtime.command_options import AsJson, Yes

EXAMPLE = "Example: dpdpca owner ledger --json"


def ledger(
    dataset: Dataset = None,
    recover: Annotated[
        bool,
        typer.Option("--recover", help="Rebuild a lost or damaged ledger from what can still be proved."),
    ] = False,
    yes: Yes = False,
    home: Home = None,
    passphrase_file: Passphrase = None,
    as_json: AsJson = False,
) -> None:
    """Show what studies have cost this owner's records, and how much of the budget is left."""
    from dpdpca_owner.commands.ledger_display import ledger_facts, show_ledger

    place = find_home(home)
    if recover:
        _recover(home, passphrase_file, yes)
    state, budget = place.ledger.read(), place.policy().budget
    if as_json:
        print_facts(True, ledger_facts(state, budget, dataset), "")
    else:
        show_ledger(state, budget, dataset, make_console())


def _recover(home: Home, passphrase_file: Passphrase, yes: bool) -> None:
    from dpdpca_owner.recovery import look_into, recover_ledger

    desk = open_desk(home, None, passphrase_file)
    if not yes:
        typer.echo(look_into(desk), err=True)
        need_terminal("confirm that there is no newer copy of the ledger")
        if not typer.confirm("Is it true that there is no newer copy of the ledger?", err=True):
            raise PolicyError("not-consented", "nothing was changed", "restore the newer copy of the ledger")
    typer.echo(recover_ledger(desk), err=True)
