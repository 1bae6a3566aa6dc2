"""How far Gibbs chains are after some sweeps: the statistic that their paper stops at, and their energy."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.central.gibbs import BurnIn, Step, burn_in_of, gibbs_chains, leading_frame, uniform_frame
from dpdpca_lab.papers.methods import Family
from dpdpca_lab.papers.prepared import Problem
from dpdpca_protocol.errors import UsageError


@dataclass(frozen=True, slots=True)
class Trace:
    """A line over the number of sweeps.

    Attributes:
        step: how the chain redraws a row; None for a line without a chain.
        from_leading: whether it starts at the leading directions, not at a uniform frame.
    """

    label: str
    family: Family
    step: Step | None = None
    from_leading: bool = False

    @property
    def is_chain(self) -> bool:
        return self.step is not None


TRACES = {
    "columns-uniform": Trace("columns, from uniform starts", Family.NO_GUARANTEE, Step.EXACT),
    "columns-leading": Trace("columns, from V_k", Family.NO_GUARANTEE, Step.EXACT, from_leading=True),
    "coordinates-uniform": Trace("coordinates, from uniform starts", Family.NO_GUARANTEE, Step.COORDINATES),
    "signs": Trace("1/√T, of random signs alone", Family.BOUND),
    "optimum": Trace("without noise", Family.BOUND),
}


def trace(name: str) -> Trace:
    """The line with this name.

    Raises:
        UsageError: there is none.
    """
    if name not in TRACES:
        raise UsageError("unknown-method", f"there is no line {name!r}; the lines are {', '.join(TRACES)}")
    return TRACES[name]


def traced(
    name: str, table: Problem, k: int, epsilon: float, counts: Sequence[int], chains: int
) -> dict[str, Floats]:
    """Values after the given numbers of sweeps, by measure: (chains, counts), or (1, counts) without a chain.

    `F` is the statistic, `T F²` its square times the number of sweeps, of expectation 1 whatever the chain
    does, and `energy` is q_F of the last frame.

    Args:
        name: one of `TRACES`.
        table: prepared rows.
        k: number of components.
        epsilon: ε of the limit of the chain.
        counts: numbers of sweeps T, ascending.
        chains: number of chains.
    """
    chosen, sweeps = trace(name), np.array(counts)
    if name == "signs":
        return {"F": 1 / np.sqrt(sweeps)[None]}
    if name == "optimum":
        return {"energy": np.full((1, len(sweeps)), table.levels[:k].sum())}
    found = _chains(chosen, table, k, epsilon, int(sweeps[-1]), chains)
    statistic, captured = (trace[sweeps - 1].T for trace in (found.sign_statistic, found.captured))
    statistic = statistic.round(12)
    return {"F": statistic, "T F²": sweeps * statistic**2, "energy": captured}


def _chains(chosen: Trace, table: Problem, k: int, epsilon: float, sweeps: int, chains: int) -> BurnIn:
    assert chosen.step is not None
    draws, levels = RealDraws(), table.levels * (table.n * epsilon / 2)
    starts = [
        leading_frame(levels, k) if chosen.from_leading else uniform_frame(k, table.d, draws)
        for _ in range(chains)
    ]
    frames = gibbs_chains(levels, np.array(starts), draws, chosen.step)
    return burn_in_of(islice(frames, sweeps), table.levels)
