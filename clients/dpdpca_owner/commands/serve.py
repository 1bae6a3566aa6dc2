"""`dpdpca owner serve`: the agent."""

import os
import time

from dpdpca_owner.commands.parts import Home, Passphrase, find_home, open_desk, say
from dpdpca_runtime.command_options import CaFile

EXAMPLE = "Example: dpdpca owner serve"


def serve(home: Home = None, ca_file: CaFile = None, passphrase_file: Passphrase = None) -> None:
    """Follow all studies that you joined with --follow and --source, until you stop this command.

    It joins only rounds that you approved. It continues after a restart, and after a time without a network.
    """
    from dpdpca_owner.agent import Agent, only_agent

    place = find_home(home)
    place.check_made()
    with only_agent(place):
        desk = open_desk(home, ca_file, passphrase_file)
        say(f"the agent of {desk.owner.name} is running; you can stop it at any time")
        Agent(desk, os.environ).run(time.sleep)
