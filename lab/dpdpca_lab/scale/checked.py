"""The model against simulations: how far off its seconds and bytes are, role by role."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpdpca_lab.scale.model import Kind, Study, Units
from dpdpca_lab.scale.simulation import Simulated, simulate
from dpdpca_protocol.errors import IntegrityError

FEATURES = 20
"""d of the simulated studies."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was measured on one machine: unit costs, and simulations beside the model.

    Attributes:
        rows: for each number of owners, the measured and the predicted figures by name.
    """

    units: Units
    rows: tuple[dict[str, float], ...]

    def to_json(self) -> str:
        return json.dumps({"units": asdict(self.units), "rows": list(self.rows)}, indent=1) + "\n"

    @classmethod
    def load(cls, path: Path) -> "Checked":
        """Raises IntegrityError if the file does not hold measurements."""
        try:
            body: dict[str, Any] = json.loads(path.read_bytes())
            return cls(Units(**body["units"]), tuple(body["rows"]))
        except (ValueError, TypeError, KeyError) as error:
            raise IntegrityError("state-corrupt", f"{path} holds no measurements of scale") from error


def check(units: Units, most_owners: int, tell: Callable[[int], None] = lambda owners: None) -> Checked:
    """Simulate 100 owners, ten times as many, and so on up to `most_owners`, each beside the model."""
    rows = []
    for owners in _sizes(most_owners):
        tell(owners)
        study = Study(owners, FEATURES, Kind.FULL, units)
        rows.append(compared(study, simulate(owners, study.values)))
    return Checked(units, tuple(rows))


def compared(study: Study, simulated: Simulated) -> dict[str, float]:
    """Measured and predicted figures. The simulation has no requests, so the model's are left out."""
    owners, u = simulated.owners, study.units
    return {
        "owners": owners,
        "owner_seconds": simulated.owner.seconds / owners,
        "predicted_owner_seconds": study.owner_seconds,
        "proxy_seconds": simulated.proxy.seconds,
        "predicted_proxy_seconds": owners * (u.proxy_share + study.values * u.proxy_value),
        "user_seconds": simulated.user.seconds,
        "predicted_user_seconds": study.user_seconds,
        "owner_bytes": simulated.owner.bytes / owners,
        "predicted_owner_bytes": study.owner_bytes,
        "user_bytes": simulated.user.bytes,
        "predicted_user_bytes": study.user_bytes,
    }


def _sizes(most: int) -> Iterator[int]:
    owners = 100
    while owners <= most:
        yield owners
        owners *= 10
