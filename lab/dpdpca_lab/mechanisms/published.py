"""What a mechanism of the literature claims about itself, in addition to what is proved for it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

from dpdpca_protocol.privacy.mechanisms import Guarantee

UNIT_ROWS = "rows of norm at most 1"


class Calibration(StrEnum):
    """`PROVED`: the noise that our proof requires. `AS_PUBLISHED`: the noise of the paper's formula."""

    PROVED = "proved"
    AS_PUBLISHED = "as-published"


@dataclass(frozen=True, slots=True)
class NoGuarantee:
    """The statement that nothing is proved, and why."""

    basis: str

    def __str__(self) -> str:
        return f"no differential privacy: {self.basis}"


class Published(ABC):
    """A mechanism with the noise of its paper."""

    @property
    @abstractmethod
    def claim(self) -> Guarantee:
        """What the paper claims. A claim by itself is never a guarantee."""
