"""How a chain would go if the records lie as assumed: the real choice, fed with numbers without data.

Each pre-study is answered with the counts and sums that the assumption implies, without noise. The choice
between mean rounds and pairs is that of a real chain, because it is made by the same code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from typing import Any

from dpdpca_protocol.layout.blocks import NORM_BINS, BlockName
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.statements import privacy_figures, privacy_statements
from dpdpca_user.planning.choice import next_round
from dpdpca_user.planning.draft import gets_second_draw
from dpdpca_user.planning.placement import Placement
from dpdpca_user.planning.plan import SECONDS_PER_PADDED_VALUE, Outlook, as_release, outlook
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.planning.rounds import begin_chain, encoded_features, round_draft

Complete = Callable[[Mapping[str, Any]], Manifest]


@dataclass(frozen=True, slots=True)
class ForeseenChain:
    """A chain of these records.

    Attributes:
        manifests: of its rounds; the last one is that of the main study.
        left: where the records lie about the centres of the main study.
    """

    manifests: tuple[Manifest, ...]
    left: Placement


def foreseen_chain(
    base: Mapping[str, Any], complete: Complete, records: int, placement: Placement
) -> ForeseenChain:
    """The chain of `base` if its records lie as assumed.

    Args:
        base: the base draft of a chain.
        complete: makes the manifest of a draft.
        records: expected number of records in all.
        placement: relative to the centres of the base draft.

    Raises:
        MessageError, PolicyError: the draft cannot be the base of a chain.
    """
    manifests: list[Manifest] = []
    results: list[PreStudyResult] = []
    chosen = begin_chain(base, complete, records, False)
    while True:
        manifest = complete(round_draft(base, chosen))
        manifests.append(manifest)
        if chosen.is_last:
            return ForeseenChain(tuple(manifests), placement)
        results.append(_answer(manifest, records, placement))
        second_draw = gets_second_draw(base)
        chosen = next_round(results, encoded_features(base), second_draw=second_draw)
        if chosen.centre is not None:
            placement = replace(placement, offset=chosen.centre_error**2)


def chain_outlook(
    base: Mapping[str, Any],
    complete: Complete,
    records: int,
    assumed: tuple[Placement, Placement],
    spectrum: Sequence[float] = (),
) -> Outlook:
    """The forecast for a chain of `base`; arguments as for `foreseen_chain` and `outlook`.

    Raises:
        MessageError, PolicyError: the draft cannot be the base of a chain.
    """
    chains = [foreseen_chain(base, complete, records, placement) for placement in assumed]
    near, far = (
        outlook(chain.manifests[-1], records, spectrum, (chain.left, chain.left)) for chain in chains
    )
    rounds = [manifest.figures for manifest in chains[0].manifests]
    whole = complete(as_release(base, near.release)).figures  # of one study that spends the whole budget
    return replace(
        near,
        is_chain=True,
        statements=privacy_statements(whole),
        privacy=privacy_figures(whole) | {"noise_scale": near.privacy["noise_scale"]},
        far=far.far,
        share_bytes=sum(each.share_bytes for each in rounds),
        seconds=sum(each.value_count for each in rounds) * SECONDS_PER_PADDED_VALUE,
    )


def _answer(manifest: Manifest, records: int, placement: Placement) -> PreStudyResult:
    """The released numbers of a pre-study of such records, without noise. Only a mean is as long as with
    noise, because the choice subtracts what noise usually adds to its length."""
    d, r = manifest.figures.encoded_features, float(manifest.clip_norm)
    edges = [r * 2.0 ** ((b + 1 - NORM_BINS) / 4) for b in range(NORM_BINS)]
    made = {
        BlockName.COUNT: [records],
        BlockName.NORMS: _counts(placement, records, edges),
        BlockName.PAIR_NORMS: _counts(replace(placement, offset=0.0), records // 2, edges),
        BlockName.SUM: [0] * d,
        BlockName.FAR_PAIRS: [records // 2 if placement.offset > placement.spread else 0],
    }
    asked = {BlockName.COUNT, *dict(manifest.blocks)}
    answer = PreStudyResult.of(
        manifest, {name: values for name, values in made.items() if name in asked}, manifest.max_owners
    )
    if answer.total is None:
        return answer
    entry = sqrt(placement.offset_left(r) / d + answer.total.noise**2)
    return replace(answer, total=replace(answer.total, mean=(entry,) * d))


def _counts(placement: Placement, count: int, edges: Sequence[float]) -> list[int]:
    longer = [1.0, *(placement.share_longer(edge) for edge in edges[:-1]), 0.0]
    return [round(count * (above - below)) for above, below in pairwise(longer)]
