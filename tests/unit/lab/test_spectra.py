"""Real data against reference values, and the recipes of the larger sets on small files made here."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdpca_lab.experiments import spectra
from dpdpca_lab.spectra import bundled_spectra, reference_spectra
from dpdpca_protocol.errors import InputError


def test_small_real_sets_have_the_known_figures() -> None:
    found = {(name, quantity): (value, known) for name, quantity, value, known in bundled_spectra()}
    for (_, quantity), (value, known) in found.items():
        # Directions: expectation here, mean of 20 measured there.
        assert value == pytest.approx(known, rel=0.005 if "distance" in quantity else 0.03)
    assert len(found) == 6
    assert len(spectra().rows) == 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The bundled terrain records under the name of the whole set, and two small tables of other shapes."""
    bundled = pq.read_table(files("dpdpca_cli.demo") / "data" / "forest.parquet")
    labelled = bundled.append_column("Cover_Type", pa.array([1] * len(bundled)))
    pq.write_table(labelled, tmp_path / "covtype_sample20k.parquet")
    codes = {
        "MOSTYPE": [1, 2, 2],
        "MGEMLEEF": [1, 1, 1],
        "MOSHOOFD": [5, 5, 6],
        "MGODRK": [0, 1, 2],
        "PWAPART": [0, 0, 3],
    }
    insurance = codes | {"A": [2, 4, 0], "B": [0, 0, 0], "CARAVAN": [1, 0, 1], "split": [0, 0, 1]}
    pq.write_table(pa.table(insurance), tmp_path / "insurance_coil2000.parquet")
    protocols = pa.array(["tcp", "udp", "tcp"]).dictionary_encode()
    pq.write_table(
        pa.table(
            {"duration": [1.0, 0.0, 2.0], "empty": [0, 0, 0], "protocol": protocols, "label": ["a", "b", "a"]}
        ),
        tmp_path / "kddcup99_10pct.parquet",
    )
    return tmp_path


def test_terrain_records_have_the_reference_spectrum(folder: Path) -> None:
    """Ten of the 54 columns are bundled; the others are 0 or 1 beside thousands and do not reach 1 in 10⁴."""
    rows = {
        quantity: (value, known)
        for name, quantity, value, known in reference_spectra(folder)
        if "covtype" in name
    }
    assert len(rows) == 7
    for quantity in ("largest norm", "eigenvalue 1", "eigenvalue 2", "eigenvalue 3", "eigenvalue 4", "trace"):
        value, known = rows[quantity]
        assert value == pytest.approx(known, rel=1e-4)


def test_codes_become_columns_and_the_rest_is_divided_by_its_maximum(folder: Path) -> None:
    rows = list(reference_spectra(folder))
    # MOSTYPE 2 levels, MGEMLEEF 1, MOSHOOFD 2, MGODRK 3, PWAPART 2, and A; B is empty.
    (largest,) = [
        value for name, quantity, value, _ in rows if name == "insurance, 11 columns" and "norm" in quantity
    ]
    assert largest == pytest.approx(6.0)
    (trace,) = [
        value for name, quantity, value, _ in rows if name == "insurance, 11 columns" and quantity == "trace"
    ]
    assert trace == pytest.approx((5 + 0.25 + 5 + 1 + 5) / 3 / 6)
    (largest,) = [
        value for name, quantity, value, _ in rows if name == "kddcup, 3 columns" and "norm" in quantity
    ]
    assert largest == pytest.approx(2.0)
    moment = np.array([[1.25, 1.5, 0.0], [1.5, 2.0, 0.0], [0.0, 0.0, 1.0]]) / 3 / 2
    values = [
        value for name, quantity, value, _ in rows if name == "kddcup, 3 columns" and "eigenvalue" in quantity
    ]
    assert values == pytest.approx(np.linalg.eigvalsh(moment)[::-1].tolist())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="covtype_sample20k"):
        list(reference_spectra(tmp_path))
