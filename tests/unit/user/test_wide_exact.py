"""Whole chains for many features in this process: without noise as numpy says, with noise by its seed."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from reference_data import Seeded
from scripted import SILENCE
from wide_rounds import Floats, factor_records, terms

from dpdpca_protocol.privacy.mechanisms.samplers import EXACT
from dpdpca_protocol.records.seeded_noise import seeded_samplers
from dpdpca_protocol.result.components import VARIANCE
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_user.planning import wide, wide_chain
from dpdpca_user.planning.lint import lint_alone
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.planning.rehearsal import Rehearsal, play_chain, play_round
from dpdpca_user.planning.rounds import round_draft
from dpdpca_user.planning.wide_chain import PublishedLift, WideWishes, next_wide_round, scores_round
from dpdpca_user.results.wide.fitted import FittedLift

D, K, N, BITS = 60, 2, 400, 12
WISHES = WideWishes(columns=K, rows=32)
BASE = terms(D, clip_norm="3", fraction_bits=BITS, min_owners=1) | {"title": "t", "purpose": "p"}


def complete(draft: Any) -> Manifest:
    return lint_alone(draft, datetime(2030, 1, 1, tzinfo=UTC))


def of_rank_two() -> Floats:
    """Records that the grid represents exactly, short enough for the clip norm, whose mean is 0."""
    rng = np.random.default_rng(5)  # noqa: TID251  # data, not noise
    axes = rng.integers(-3, 4, size=(K, D)) * np.array([[64], [32]])
    scores = np.repeat([-2, -1, 1, 2], N // 4), rng.permutation(np.repeat([-2, -1, 1, 2], N // 4))
    return np.asarray(np.column_stack(scores) @ axes / 2**BITS)


def columns(records: Floats) -> dict[str, Any]:
    return {f"f{i}": records[:, i] for i in range(D)}


@pytest.mark.parametrize("of", ["records", "pairs"])
def test_without_noise_the_span_and_the_variances_are_those_of_numpy(
    monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.setattr(wide_chain, "COMPARED_UP_TO", D - 1)
    records = of_rank_two()
    owners, source = [columns(records[owner::3]) for owner in range(3)], Seeded(3)
    sketch = complete(
        BASE
        | {"release": "sketch", "of": of, "rho_share": "0.2"}
        | {"sketch": {"rows": WISHES.rows, "seed": "5a" * 32}}
    )
    shown = play_round(sketch, owners, source, noise=SILENCE)
    assert isinstance(shown, PreStudyResult)
    assert shown.sketch is not None
    assert shown.sketch.reading.seen_count >= K

    chosen = next_wide_round([shown], D, WISHES, source)
    lift = complete(round_draft(BASE, chosen))
    assert lift.features == sketch.features
    assert lift.columns == K
    lifted = play_round(lift, owners, source, [shown], noise=SILENCE)
    assert isinstance(lifted, FittedLift)
    _, _, axes = np.linalg.svd(records, full_matrices=False)
    ours = lifted.components.vectors
    assert np.abs(ours.T @ ours - axes[:K].T @ axes[:K]).max() < 1e-9

    published = PublishedLift(lift.study_id, lift.rho_share, K, Digest.of(b"sealed"))
    scores = complete(round_draft(BASE, scores_round([shown], D, published)))
    assert sketch.rho_share + lift.rho_share + scores.rho_share == 1
    found = play_round(scores, owners, source, [shown], lifted, SILENCE)
    assert isinstance(found, FittedLift)
    assert found.components.variance_kind == VARIANCE
    values = np.linalg.eigvalsh(np.cov(records.T))[::-1][:K]
    # Pairs are drawn: their second moment differs from twice the covariance.
    assert found.components.captured == pytest.approx(values, rel=2e-3 if of == "records" else 0.2)
    if of == "records":
        assert (np.abs(found.components.vectors @ axes[:K].T) ** 2) == pytest.approx(np.eye(K), abs=1e-3)


def played(monkeypatch: pytest.MonkeyPatch, noise: Any) -> Rehearsal:
    monkeypatch.setattr(wide, "FULL_UP_TO", D - 1)
    monkeypatch.setattr(wide_chain, "COMPARED_UP_TO", D - 1)
    base = {name: value for name, value in BASE.items() if name not in ("clip_norm", "fraction_bits")}
    base |= {"lift": {"columns": K}, "sketch": {"rows": 32}}
    records = factor_records(1200, D, (0.3, 0.15), offset=0.002)
    owners = [columns(part) for part in np.array_split(records, 3)]
    return play_chain(base, complete, owners, Seeded(11), noise=noise)


def test_a_chain_with_noise_of_one_seed_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    one = played(monkeypatch, seeded_samplers(b"\x07" * 32))
    again = played(monkeypatch, seeded_samplers(b"\x07" * 32))
    assert [each.chosen.release for each in one.rounds][-3:] == ["sketch", "lift", "scores"]
    assert sum(each.chosen.rho_share for each in one.rounds) == 1
    assert np.array_equal(one.components.vectors, again.components.vectors)
    assert np.array_equal(one.components.captured, again.components.captured)
    fresh = played(monkeypatch, EXACT)
    assert not np.array_equal(one.components.vectors, fresh.components.vectors)
    values, axes = np.linalg.eigh(np.cov(factor_records(1200, D, (0.3, 0.15), offset=0.002).T))
    best = axes[:, ::-1][:, :K]
    for found in (one.components, fresh.components):
        assert np.linalg.norm(found.vectors @ best, axis=1) == pytest.approx(1, abs=0.05)
        assert found.captured == pytest.approx(values[::-1][:K], rel=0.3)
