"""The mechanisms of the literature as releases that the audit can test."""

import math

import numpy as np

from dpdpca_lab.audit.releases import Coordinate, DrawnAhead, Law, Totals, Views, integers, triangle, upper
from dpdpca_lab.mechanisms import Wishart
from dpdpca_protocol.privacy.mechanisms import Mechanism, Quantity


class MechanismRelease:
    """R, N·S or (v, R) with a mechanism's own noise.

    Args:
        mechanism: the mechanism with its setting. The audit uses all encoded features of the setting.
    """

    veil = 0

    def __init__(self, mechanism: Mechanism | Wishart) -> None:
        self.mechanism = mechanism
        self.d = mechanism.setting.encoded_features
        self.law = Law.of(mechanism)
        self.sample = DrawnAhead().samplers

    def granularity(self, count: int) -> int | None:
        """None: the mechanisms are tested without the mask, both on R and on N·S."""
        return None

    def coordinates(self, count: int) -> tuple[Coordinate, ...]:
        law = self.mechanism.law(count)
        diagonal, others = math.sqrt(law.diagonal), math.sqrt(law.off_diagonal)
        entries = triangle(self.mechanism.setting.quantity, self.d, diagonal, others)
        if self.mechanism.setting.quantity is not Quantity.JOINT:
            return tuple(entries)
        sums = [Coordinate(f"v{i + 1}", math.sqrt(law.sum_), None) for i in range(self.d)]
        return (*sums, *entries)

    def truth(self, totals: Totals) -> tuple[int, ...]:
        n, v, r = totals.count, totals.sum, totals.second_moment
        if self.mechanism.setting.quantity is Quantity.SCATTER:
            return tuple(upper([[n * r[i][j] - v[i] * v[j] for j in range(self.d)] for i in range(self.d)]))
        return (*(v if self.mechanism.setting.quantity is Quantity.JOINT else ()), *upper(r))

    def play(self, totals: Totals, runs: int) -> Views:
        noise = integers(self._draw(totals.count) for _ in range(runs))
        return Views(integers([self.truth(totals)]) + noise, np.empty((runs, 0), dtype=object))

    def _draw(self, count: int) -> list[int]:
        """The noise on v, if it is there, and on the matrix."""
        mechanism, sums = self.mechanism, list[int]()
        if isinstance(mechanism, Mechanism) and mechanism.setting.quantity is Quantity.JOINT:
            sums = mechanism.draw_sum(self.sample)
        return [*sums, *mechanism.draw_triangle(count, self.sample)]
