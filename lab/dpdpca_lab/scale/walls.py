"""The limits that a study meets as it grows, and the first of them."""

from collections.abc import Callable
from dataclasses import dataclass

from dpdpca_lab.scale.model import MOST_OWNERS, Kind, Study, Units
from dpdpca_protocol.terms.features import MAX_ENCODED_FEATURES
from dpdpca_protocol.terms.members import MAX_OWNERS, MAX_PARTICIPANTS
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES, MANIFEST_LIMIT_BYTES
from dpdpca_runtime.http.client import LIST_LIMIT_BYTES


@dataclass(frozen=True, slots=True)
class Wall:
    """A limit that a study meets as it grows.

    Attributes:
        name: what is at its limit.
        used: the part of the limit that a study uses; more than 1 is beyond the wall.
        can_move: what would move it.
        is_rule: whether a number in this version sets the limit. Other limits are those of machines.
    """

    name: str
    used: Callable[[Study], float]
    can_move: str
    is_rule: bool = False


_PARSED = 4
"""How many times its text a parsed statement needs."""
_DAY, _CORES, _GIGABIT = 24 * 3600.0, 16, 1e9 / 8
WALLS = (
    Wall(
        f"{MAX_ENCODED_FEATURES:,} features of a full matrix",
        lambda s: 0.0 if s.kind is Kind.SKETCH else s.features / MAX_ENCODED_FEATURES,
        "the sketch",
        is_rule=True,
    ),
    Wall(f"{MAX_OWNERS:,} owners of a study", lambda s: s.of_a_proxy / MAX_OWNERS, "regional proxies", True),
    Wall(
        f"{MAX_PARTICIPANTS:,} owners that a manifest names",
        lambda s: s.owners / MAX_PARTICIPANTS if s.kind is Kind.BLINDED else 0.0,
        "masks between neighbours in a sparse graph",
        is_rule=True,
    ),
    Wall(
        f"{MANIFEST_LIMIT_BYTES >> 20} MiB of a manifest",
        lambda s: max(s.manifests) / MANIFEST_LIMIT_BYTES,
        "lists by reference",
        is_rule=True,
    ),
    Wall(
        f"{LIST_LIMIT_BYTES >> 20} MiB of the list of enrolled parties",
        lambda s: s.parties_bytes / LIST_LIMIT_BYTES,
        "a list of only the parties that the manifest names",
        is_rule=True,
    ),
    Wall(
        f"{COMPONENTS_LIMIT_BYTES >> 20} MiB of components of the lift, with a key for each owner",
        lambda s: s.components_bytes / COMPONENTS_LIMIT_BYTES,
        "components with only the key of the owner that asks",
        is_rule=True,
    ),
    Wall(
        "16 GB of memory for the statements about a cohort",
        lambda s: _PARSED * s.bundle_bytes / 16e9,
        "an answer in pages",
    ),
    Wall(
        "one hour of an owner's core",
        lambda s: s.owner_seconds / 3600,
        "masks between neighbours in a sparse graph, or the sketch",
    ),
    Wall("1 GB that an owner sends", lambda s: s.owner_bytes / 1e9, "the sketch"),
    Wall(
        "1 GB that an owner receives",
        lambda s: s.told_bytes / 1e9,
        "regional proxies, or lists without what an owner does not need",
    ),
    Wall(
        "a day of 1 Gbit/s into one proxy", lambda s: s.received_bytes / (_DAY * _GIGABIT), "regional proxies"
    ),
    Wall(
        "a day of 1 Gbit/s out of one proxy",
        lambda s: s.sent_bytes / s.proxies / (_DAY * _GIGABIT),
        "regional proxies",
    ),
    Wall(
        "10 TB on the disk of one proxy",
        lambda s: s.stored_bytes / 1e13,
        "regional proxies, or sums while the study is open",
    ),
    Wall(
        "a day of 16 cores of one proxy",
        lambda s: s.proxy_seconds / s.proxies / (_DAY * _CORES),
        "more processes, or regional proxies",
    ),
    Wall(
        "a day of 16 cores of the data user",
        lambda s: s.user_seconds / (_DAY * _CORES),
        "Paillier, or pads that regions open",
    ),
)


def first_wall(
    features: int, kind: Kind, units: Units, *, is_rule: bool, regional: bool = False
) -> tuple[int, Wall] | None:
    """The smallest number of owners beyond a wall of this sort, and that wall; None up to `MOST_OWNERS`."""
    walls = [wall for wall in WALLS if wall.is_rule == is_rule]

    def met(owners: int) -> Wall | None:
        study = Study(owners, features, kind, units, regional)
        wall = max(walls, key=lambda each: each.used(study))
        return wall if wall.used(study) > 1 else None

    low, high = 0, MOST_OWNERS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) else (middle, high)
    wall = met(high)
    return None if wall is None else (high, wall)
