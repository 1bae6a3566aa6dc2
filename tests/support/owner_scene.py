"""One owner before a proxy in memory, for its tests in one process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memory_proxy import MemoryProxy
from study_parties import Parties

from dpdpca_owner.actions import Desk
from dpdpca_owner.records.source import DataLocation
from dpdpca_runtime.http.address import StudyAddress


@dataclass
class Scene:
    """One owner with its home, an enrolment at the proxy in memory, and data for its study."""

    desk: Desk
    proxy: MemoryProxy
    address: StudyAddress
    location: DataLocation
    parties: Parties


MakeScene = Callable[..., Scene]
"""Takes changes of the draft."""


@dataclass
class OwnerCommands:
    """Runs the owner's commands against the proxy of a scene."""

    scene: Scene
    run: Callable[[Sequence[str], str], tuple[int, str, str]]

    def __call__(self, *words: str, given: str = "") -> tuple[int, str, str]:
        """Exit status, output, errors."""
        return self.run(words, given)
