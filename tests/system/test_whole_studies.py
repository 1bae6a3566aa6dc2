"""A whole study of each kind, from draft to published components, as its people run it.

Four owners with four kinds of data, a proxy and a data user's service, all of them processes. What comes out
is compared with PCA of the pooled encoded records, which nobody in the federation ever has.
"""

import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from federation.records import (
    ENCODED,
    FRACTION_BITS,
    NAMES,
    Record,
    draft,
    encode,
    patients,
    write_csv,
    write_npz,
    write_parquet,
)
from federation.world import Federation, Owner, User
from folders import paths_below
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from dpdpca_user import FederatedPCA

SIZES = (5000, 4000, 2500, 500)
LEADING = 3
"""The records have three directions that stand out."""

DEVIATIONS = 8
"""Standard deviations granted to each of two norms below: together they are passed once in 10¹³ runs."""

CLIP_NORM, SUM_WEIGHT = 2.6, 0.43
"""r of the draft, and the weight of the sums that a joint draft has by default."""


@dataclass(frozen=True)
class Finished:
    """A study that came to its end, and what went into it."""

    study: str
    address: str
    user: User
    owners: list[Owner]
    records: list[list[Record]]
    data: list[tuple[str, ...]]
    """The options that name the data of each owner."""

    @property
    def model(self) -> dict[str, Any]:
        return self.user.ask("user", "result", self.study)


@pytest.fixture(scope="module", params=["masked", pytest.param("joint", marks=pytest.mark.nightly)])
def finished(
    federation: Federation, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Finished:
    folder = tmp_path_factory.mktemp("data")
    records = [patients(size, seed) for seed, size in enumerate(SIZES, start=40)]
    data = [
        ("--data", str(write_csv(folder / "a.csv", records[0]))),
        ("--data", str(write_parquet(folder / "b.parquet", records[1]))),
        ("--data", str(write_npz(folder / "c.npz", records[2]))),
        ("--data", _write_database(folder / "d.sqlite3", records[3]), "--query", "SELECT * FROM patients"),
    ]
    user, owners = federation.user, federation.owners(4)
    study = user.create_study(
        draft(
            release=request.param,
            participants=[owner.name for owner in owners],
            max_records=15_000,
            min_owners=4,
            closing="when-complete",
        )
    )
    address = f"{federation.url}/{study}"
    for owner, options, part in zip(owners, data, records, strict=True):
        joined = owner.ask("owner", "join", address, *options, "--yes")
        assert joined["records"] == len(part)
    user.wait_state(study, "published")
    return Finished(study, address, user, owners, records, data)


def _write_database(path: Path, records: list[Record]) -> str:
    with sqlite3.connect(path) as database:
        columns = ", ".join(f'"{name}"' for name in NAMES)
        database.execute(f"CREATE TABLE patients ({columns})")
        values = [[record[name] for name in NAMES] for record in records]
        database.executemany(f"INSERT INTO patients VALUES ({', '.join('?' * len(NAMES))})", values)
    database.close()
    return f"sqlite:///{path}"


def test_components_are_those_of_the_pooled_records(finished: Finished) -> None:
    model = finished.model
    rows = np.array([encode(record) for part in finished.records for record in part]) / 2**FRACTION_BITS
    pooled = PCA().fit(rows)
    assert model["records"] == len(rows)

    error = _noise_norm(model, rows)
    values = pooled.explained_variance_
    assert np.abs(np.array(model["eigenvalues"]) - values).max() <= error  # Weyl
    vectors = np.array(model["components"])
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(ENCODED), atol=1e-9)
    for index in range(LEADING):
        neighbours = [values[index] - values[index + 1]]
        neighbours += [values[index - 1] - values[index]] if index else []
        sine = 2 * error / min(neighbours)  # Davis-Kahan, in the form of Yu, Wang and Samworth
        assert sine < 0.5, "the records do not tell a right component from a wrong one"
        assert (vectors[index] @ pooled.components_[index]) ** 2 >= 1 - sine**2

    covariance = np.cov(rows, rowvar=False)
    captured = float(np.trace(vectors[:LEADING] @ covariance @ vectors[:LEADING].T))
    best = float(values[:LEADING].sum())
    assert best - 2 * LEADING * error <= captured <= best * (1 + 1e-9)
    assert 2 * LEADING * error < 0.2 * best
    assert model["trusted_components"] >= LEADING


def _noise_norm(model: dict[str, Any], rows: NDArray[np.float64]) -> float:
    """What the noise adds to the covariance, in the spectral norm, but for one run in 10¹³.

    H with variance t² on and t²/2 off the diagonal has E‖H‖ ≤ t√(2d), and ‖H‖ is t-Lipschitz in its standard
    normals. The joint release takes (v g' + g v' + g g')/N off besides, with g of variance t²/a.
    """
    d, count = rows.shape[1], len(rows)
    noise = model["noise_scale"] * (np.sqrt(2 * d) + DEVIATIONS)
    if model["mean"] is not None:
        # In units of the covariance noise_scale is t/(N − 1), and α is √(a/K)·r.
        shift = model["noise_scale"] * (np.sqrt(d) + DEVIATIONS) / (np.sqrt(SUM_WEIGHT) * CLIP_NORM)
        noise += 2 * np.linalg.norm(rows.mean(axis=0)) * shift + shift**2 * (count - 1) / count
    return float(noise)


def test_owners_see_that_they_are_in(finished: Finished) -> None:
    for owner in (finished.owners[0], finished.owners[3]):
        status = owner.status(finished.address)
        assert (status["state"], status["included"]) == ("published", True)
        assert status["receipt"]["subject"] == "share"
    again = finished.owners[0].ask("owner", "join", finished.address, *finished.data[0], "--yes")
    assert (again["already"], again["sent_chunks"]) == (True, 0)


def test_owners_get_the_components_and_their_own_scores(finished: Finished, tmp_path: Path) -> None:
    model = finished.model
    for index, owner in ((0, finished.owners[0]), (3, finished.owners[3])):
        saved = tmp_path / f"{index}.npz"
        found = owner.ask("owner", "components", finished.address, "--out", saved)
        assert found["records"] == sum(SIZES)
        assert found["names"] == model["features"]
        np.testing.assert_array_equal(found["components"], model["components"])
        with np.load(saved, allow_pickle=False) as file:
            np.testing.assert_array_equal(file["components"], model["components"])

        out = tmp_path / f"scores-{index}.{'csv' if index % 2 else 'parquet'}"
        asked = () if model["mean"] is None else ("--t2", "--spe", "--contributions")
        done = owner.ask("owner", "transform", finished.address, *finished.data[index], "--out", out, *asked)
        assert done["records"] == SIZES[index]
        table = pyarrow.csv.read_csv(out) if index % 2 else pyarrow.parquet.read_table(out)
        columns = dict(zip(table.column_names, (column.to_numpy() for column in table.columns), strict=True))
        scores = np.column_stack([columns[f"component_{i + 1}"] for i in range(len(model["components"]))])
        for name, limits in done.get("limits", {}).items():
            added = [columns[f"{name} from {feature}"] for feature in model["features"]]
            np.testing.assert_allclose(np.sum(added, axis=0), columns[name], atol=1e-9)
            assert 0 < limits["0.95"] < limits["0.99"]
        assert set(done.get("limits", {})) == ({"t2", "spe"} if asked else set())
        rows = np.array([_original(record) for record in finished.records[index]])
        expected = (rows - model["origin"]) / model["scale"] @ np.array(model["components"]).T
        np.testing.assert_allclose(scores, expected, atol=1e-9)
        assert stat.S_IMODE(out.stat().st_mode) == stat.S_IMODE(saved.stat().st_mode) == 0o600


def _original(record: Record) -> list[float]:
    """One record as encoded columns in original units."""
    return [float(record[name]) for name in NAMES[:-1]] + [float(record["ward"] == level) for level in "ABC"]


def test_data_user_gets_result_report_and_proof(finished: Finished, tmp_path: Path) -> None:
    user, study = finished.user, finished.study
    model = user.ask("user", "result", study, "--out", tmp_path / "model.npz")
    assert (model["study"], model["records"]) == (study, sum(SIZES))
    assert model["claim"].startswith("Each record has (30, ")
    assert model["privacy"]["epsilon"] == 30
    assert {owner["name"] for owner in model["owners"]} == {owner.name for owner in finished.owners}
    assert (model["mean"] is not None) == (model["privacy"]["mechanism"].endswith("joint release"))

    assert user.run("user", "report", study, "--out", tmp_path / "report.html").status == 0
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Blood pressure and stature" in report
    assert "<script" not in report
    assert 'src="http' not in report

    verified = user.ask("user", "verify", study)["verified"]
    masked = model["mean"] is None
    assert any("has 12000 records" in line for line in verified) == masked
    assert any("chunks have the signed digests" in line for line in verified)
    listed = user.ask("user", "study", "list")["studies"]
    assert study in [one["study"] for one in listed]


def test_model_in_python(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPDPCA_USER_HOME", str(finished.user.home))
    pca = FederatedPCA(finished.user.service_url, study=finished.study, n_components=LEADING).fit()
    model = finished.model
    np.testing.assert_array_equal(pca.components_, model["components"][:LEADING])
    assert pca.n_samples_ == sum(SIZES)
    assert pca.privacy_["study"] == finished.study
    assert pca.n_trusted_components_ == LEADING
    table = pa.table({name: [record[name] for record in finished.records[3]] for name in NAMES})
    scores = pca.transform(table)
    rows = np.array([_original(record) for record in finished.records[3]])
    np.testing.assert_allclose(scores, pca.transform(rows), atol=1e-9)
    assert pca.inverse_transform(scores).shape == rows.shape


def test_the_proxys_own_audit_holds(finished: Finished, federation: Federation) -> None:
    audit = federation.proxy_machine.ask("proxy", "audit", finished.study)
    assert audit["holds"] is True
    assert all(check["outcome"] for check in audit["checks"])


def test_nothing_secret_can_be_read_by_others(finished: Finished, federation: Federation) -> None:
    homes = [federation.proxy_home, finished.user.home, *(owner.home for owner in finished.owners)]
    seen = []
    for path in _below(homes):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, f"{path} has mode {mode:o}"
        seen.append(path.name)
    assert seen.count("identity.pem") == len(homes)
    assert "token" in seen


def _below(homes: list[Path]) -> Iterator[Path]:
    for home in homes:
        yield home
        yield from paths_below(home)


def test_shares_noise_and_secret_key_are_gone(finished: Finished, federation: Federation) -> None:
    """What a release needs no more is deleted: the shares, the products, the noise, the mask, the key."""
    kept = [path.name for path in paths_below(federation.proxy_home / "studies" / finished.study)]
    assert not [name for name in kept if "draw" in name or name in ("sealed", "shares", "aggregate")]
    with sqlite3.connect(f"file:{finished.user.home / 'user.sqlite3'}?mode=ro", uri=True) as database:
        (secret,) = database.execute(
            "SELECT secret FROM studies WHERE study = ?", (finished.study,)
        ).fetchone()
    assert secret is None
