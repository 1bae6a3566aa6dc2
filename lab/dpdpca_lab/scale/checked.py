"""The model against simulations: how far off its seconds and bytes are, role by role."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpdpca_lab.scale.model import Kind, Study, Units
from dpdpca_lab.scale.simulation import Simulated, simulate
from dpdpca_protocol.errors import IntegrityError

FEATURES, WIDE_FEATURES = 20, 400
"""d of the simulated studies with a full matrix, and of the sketch, lift and scores."""
_MOST_WIDE = 10_000
"""Owners of the latter, which have regional proxies."""
FIGURES = ("owner_seconds", "proxy_seconds", "user_seconds", "owner_bytes", "user_bytes")


@dataclass(frozen=True, slots=True)
class Row:
    """What a simulation took.

    Attributes:
        owners, features, kind, regional: as those of `Study`.
        owner_seconds, owner_bytes: of one owner, in the mean.
        proxy_seconds, user_seconds, user_bytes: of these roles.
    """

    owners: int
    features: int
    kind: str
    regional: bool
    owner_seconds: float
    proxy_seconds: float
    user_seconds: float
    owner_bytes: float
    user_bytes: float

    @classmethod
    def of(cls, study: Study) -> "Row":
        """Simulate each round of a study."""
        rounds = [simulate(study.owners, values, study.proxies) for values in study.rounds]

        def spent(figure: Callable[[Simulated], float]) -> float:
            return sum(map(figure, rounds))

        return cls(
            owners=study.owners,
            features=study.features,
            kind=str(study.kind),
            regional=study.regional,
            owner_seconds=spent(lambda each: each.owner.seconds) / study.owners,
            proxy_seconds=spent(lambda each: each.proxy.seconds),
            user_seconds=spent(lambda each: each.user.seconds),
            owner_bytes=spent(lambda each: each.owner.bytes) / study.owners,
            user_bytes=spent(lambda each: each.user.bytes),
        )

    def ratios(self, units: Units) -> dict[str, float]:
        """Measured over predicted. The simulation has no requests, so the model's are left out."""
        study = Study(self.owners, self.features, Kind(self.kind), units, self.regional)
        predicted = {
            "owner_seconds": study.owner_seconds,
            "proxy_seconds": study.owners * study.share_seconds,
            "user_seconds": study.user_seconds,
            "owner_bytes": study.owner_bytes,
            "user_bytes": study.user_bytes,
        }
        return {name: getattr(self, name) / predicted[name] for name in FIGURES}


@dataclass(frozen=True, slots=True)
class Checked:
    """What was measured on one machine: unit costs, and simulations beside the model."""

    units: Units
    rows: tuple[Row, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def load(cls, path: Path) -> "Checked":
        """Raises IntegrityError if the file does not hold measurements."""
        try:
            body: dict[str, Any] = json.loads(path.read_bytes())
            return cls(Units(**body["units"]), tuple(Row(**row) for row in body["rows"]))
        except (ValueError, TypeError, KeyError) as error:
            raise IntegrityError("state-corrupt", f"{path} holds no measurements of scale") from error


def check(units: Units, most_owners: int, tell: Callable[[Study], None] = lambda study: None) -> Checked:
    """Simulate full matrices of 100 owners, ten times as many, and so on up to `most_owners`, and then the
    rounds of a sketch with regional proxies."""
    rows = []
    for study in _studies(units, most_owners):
        tell(study)
        rows.append(Row.of(study))
    return Checked(units, tuple(rows))


def _studies(units: Units, most_owners: int) -> Iterator[Study]:
    owners = 100
    while owners <= most_owners:
        yield Study(owners, FEATURES, Kind.FULL, units)
        owners *= 10
    yield Study(min(most_owners, _MOST_WIDE), WIDE_FEATURES, Kind.SKETCH, units, regional=True)
