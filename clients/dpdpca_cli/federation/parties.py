"""The parties of a federation on one machine, and the commands that set each of them up."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

_ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class LocalParty:
    """One party: a role, a name, its own home folder, and its settings.

    Attributes:
        role: `proxy`, `user` or `owner`.
        settings: environment variables of its commands, besides the one that names the home.
    """

    role: str
    name: str
    home: Path
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that the commands of this party need."""
        return {**self.settings, f"DPDPCA_{self.role.upper()}_HOME": str(self.home)}

    def init(self, *options: str) -> list[str]:
        """The arguments of `dpdpca` that create its identity."""
        return [self.role, "init", "--name", self.name, *options]

    def enrol(self, proxy_url: str, invitation: Path) -> list[str]:
        """The arguments that enrol the party. The invitation is in a file and never an argument."""
        return [self.role, "enrol", proxy_url, "--invitation-file", str(invitation), "--yes"]

    def serve(self, *options: str) -> list[str]:
        """The arguments that start the party's service."""
        return [self.role, "serve", *options]

    def invite(self, other: "LocalParty") -> list[str]:
        """The arguments with which this proxy invites another party.

        The command prints JSON with its `token`.
        """
        return [self.role, "invite", "--role", other.role, "--name", other.name, "--json"]


def is_ready(url: str) -> bool:
    """Whether the service at this address is ready for work."""
    with suppress(httpx.TransportError):
        answer = httpx.get(f"{url}/readyz", timeout=_ANSWER_SECONDS, trust_env=False)
        return answer.status_code == httpx.codes.OK
    return False
