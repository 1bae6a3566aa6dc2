"""A chain of studies through the command line: a pre-study, then pairs, asked about once."""

from pathlib import Path

import numpy as np
from federation.records import ENCODED, NAMES, draft, encode, patients, write_csv
from federation.world import Federation

from dpdpca_user.planning.prestudy import PreStudyResult

SIZES = (1500, 1001, 700)
TERMS = {
    "epsilon": 8,
    "delta": "0.00001",
    "missing": "midpoint",
    "closing": "when-complete",
    "fraction_bits": None,
}


def test_owners_approve_a_chain_once_and_its_numbers_lead_to_components(
    federation: Federation, tmp_path: Path
) -> None:
    user, owners = federation.user, federation.owners(3)
    records = [patients(size, seed) for seed, size in enumerate(SIZES, start=90)]
    data = [write_csv(tmp_path / f"{index}.csv", part) for index, part in enumerate(records)]
    terms = TERMS | {"participants": [owner.name for owner in owners]}
    first = user.create_study(
        draft(
            release="pre-study",
            blocks={"norms": "0.3", "pair-norms": "0.3", "sum": "0.3", "far-pairs": "0.1"},
            rho_share="0.1",
            **terms,
        )
    )
    sheet = owners[0].ask("owner", "review", f"{federation.url}/{first}", "--data", data[0])
    assert (sheet["chain"]["share"], sheet["chain"]["is_approved"]) == ("0.1", False)
    for owner, path in zip(owners, data, strict=True):
        assert owner.join(f"{federation.url}/{first}", path)["notes"] is not None
    user.wait_state(first, "fitted")
    numbers = PreStudyResult.parse(user.ask("user", "result", first))
    rows = np.array([encode(record) for part in records for record in part]) / 2**10
    assert numbers.records == len(rows) == sum(SIZES)
    assert numbers.total is not None
    assert numbers.pair_norms is not None
    # Clipping at 2.6 touches few of these records.
    assert np.abs(np.array(numbers.total.mean) - rows.mean(axis=0)).max() < 8 * numbers.total.noise + 0.05
    assert abs(sum(numbers.pair_norms.counts) - len(rows) // 2) < 8 * 7 * numbers.pair_norms.noise
    assert numbers.far_pairs is not None
    owned = [np.array([encode(record) for record in part]) for part in records]
    halves = [(part[: len(part) // 2], part[len(part) // 2 :]) for part in owned]
    far = sum(len(z) for z, _ in halves) * np.mean([_are_far(z, x[: len(z)]) for z, x in halves])
    assert abs(numbers.far_pairs.count - far) < 8 * (numbers.far_pairs.noise + np.sqrt(sum(SIZES) / 2))

    second = user.create_study(
        draft(release="pairs", rho_share="0.9", pre_studies=[first], **terms | {"clip_norm": "2"})
    )
    for owner, path, part in zip(owners, data, records, strict=True):
        # No --yes and nobody at a terminal: the total was approved with the first round.
        joined = owner.ask("owner", "join", f"{federation.url}/{second}", "--data", path)
        assert joined["records"] == len(part)
    user.wait_state(second, "published")
    model = user.ask("user", "result", second)
    assert model["mean"] is None
    assert model["pairs"] == sum(size // 2 for size in SIZES)
    assert len(model["features"]) == ENCODED >= len(NAMES)
    vectors = np.linalg.eigh(np.cov(rows, rowvar=False))[1]
    assert (np.array(model["components"][0]) @ vectors[:, -1]) ** 2 > 0.8
    (data_set,) = owners[0].ask("owner", "ledger")["data_sets"]
    assert [entry["study"] for entry in data_set["studies"]] == [first, second]
    assert data_set["spent"]["rho_number"] <= numbers.rho_total * (1 + 1e-9)
    components = owners[0].ask("owner", "components", f"{federation.url}/{second}")
    assert components["records"] == 2 * model["pairs"]

    greedy = user.create_study(draft(release="pairs", rho_share="0.1", pre_studies=[first, second], **terms))
    refused = owners[0].run("owner", "join", f"{federation.url}/{greedy}", "--data", data[0], "--yes")
    assert refused.status == 1
    assert "earlier rounds have taken 1 of the approved total" in refused.err


def _are_far(z: np.ndarray, x: np.ndarray) -> float:
    """The share of pairs that lie far from the public centre; the owners' own pairs are others."""
    return float((2 * ((z - x) ** 2).sum(axis=1) < (z**2).sum(axis=1) + (x**2).sum(axis=1)).mean())
