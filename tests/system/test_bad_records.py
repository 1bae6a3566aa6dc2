"""Records that an owner's command refuses, and odd ones that it takes, in real studies.

Refused means: exit status 1 (2 for wrong usage), one line on stderr that names the fault and repeats no
value, nothing sent, and not a byte of the owner's home changed. Values are refused under --strict only.
"""

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from federation.bare_user import BareStudy, BareUser
from federation.checks import assert_release
from federation.records import (
    HEIGHT,
    NAMES,
    Record,
    add_up,
    patients,
    write_csv,
    write_npz,
    write_parquet,
)
from federation.world import Federation, tree

SECRET = "hush-4711"
"""A value in refused records: no message may repeat it."""

PATIENTS = patients(6, seed=8)
NFD_HEIGHT = unicodedata.normalize("NFD", HEIGHT)


def _lines(*lines: str, names: list[str] = NAMES) -> Callable[[Path], object]:
    return lambda path: path.write_text("\n".join([",".join(names), *lines]) + "\n", encoding="utf-8")


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _without(name: str, *others: str) -> list[str]:
    return [*(known for known in NAMES if known != name), *others]


def _parquet_with_text(path: Path) -> None:
    columns = {name: [record[name] for record in PATIENTS] for name in NAMES}
    pyarrow.parquet.write_table(pa.table(columns | {"age": [SECRET] * len(PATIENTS)}), path)


def _pickled(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, age=np.array([SECRET, None], dtype=object), allow_pickle=True)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing column": (_lines("170,80,130,A", names=_without("age")), "lacks the column 'age'"),
    "renamed column": (_lines("170,80,130,A,50", names=_without("age", "Age")), "rename 'Age' to 'age'"),
    "doubled column": (
        _lines("170,80,50,130,A,51", names=[*NAMES, "age"]),
        "more than one column named 'age'",
    ),
    "column doubled in another Unicode form": (
        _lines("170,80,50,130,A,171", names=[*NAMES, NFD_HEIGHT]),
        f"more than one column named '{HEIGHT}'",
    ),
    "text in a number": (_lines(f"170,80,{SECRET},130,A"), "column 'age' holds text in record"),
    "text in a number of a typed file": (_parquet_with_text, "holds text in record 1"),
    "unknown level": (
        _lines(f"170,80,50,130,{SECRET}"),
        "'ward' holds a level that the manifest does not list",
    ),
    "empty file": (_bytes(b""), "is empty"),
    "header alone": (_lines(), "contains no records"),
    "no complete record": (_lines("170,,50,130,A", "171,80,NaN,130,A", "172,inf,1,130,A"), "all 3 records"),
    "ragged row": (_lines("170,80,50,130,A", f"171,80,{SECRET},1,2,3"), "row 3"),
    "no text at all": (_bytes(b"\x00\xff\xfe\x00" * 50), "neither a text file"),
    "damaged parquet": (_bytes(b"PAR1" + b"\x15" * 100), "cannot be read"),
    "pickled objects": (_pickled, "are never unpickled"),
    "too many records": (_lines(*["170,80,50,130,A"] * 61), "more records than the 60"),
}


@pytest.fixture(scope="module")
def user(federation: Federation) -> BareUser:
    return BareUser(federation, "Strict Institute")


@pytest.fixture(scope="module")
def study(federation: Federation, user: BareUser) -> BareStudy:
    return user.open_study(federation.owners(1), min_owners=1, max_records=60)


@pytest.mark.parametrize("fault", REFUSED)
def test_refused_records_leave_everything_as_it_was(
    federation: Federation, study: BareStudy, tmp_path: Path, fault: str
) -> None:
    write, words = REFUSED[fault]
    owner, data = federation.owners(1)[0], tmp_path / "records.data"
    write(data)
    home, sent = tree(owner.home), _sent(federation)

    refused = owner.run("owner", "join", study.address, "--data", data, "--yes", "--strict")

    assert refused.status == 1
    assert refused.out == ""
    (line,) = refused.err.splitlines()
    assert line.startswith("dpdpca: ")
    assert words in line
    assert SECRET not in line
    assert tree(owner.home) == home
    assert _sent(federation) == sent


def _sent(federation: Federation) -> tuple[int, int]:
    return (
        federation.requests("PUT", "/v1/studies/{study}/share/chunks/{position}"),
        federation.requests("POST", "/v1/studies/{study}/share/complete"),
    )


def test_wrong_usage_is_told_apart(federation: Federation, study: BareStudy, tmp_path: Path) -> None:
    owner, outsider = federation.owners(2)
    data = write_csv(tmp_path / "fine.csv", PATIENTS)
    unknown = f"{federation.url}/{'ab' * 32}"
    for words, status, said in (
        (("join", study.address), 2, "--data"),
        (("join", "not an address", "--data", data), 2, "https://"),
        (("join", study.address, "--data", data), 2, "--yes"),
        (("join", study.address, "--data", tmp_path / "none.csv", "--yes"), 1, "no file"),
        (("join", unknown, "--data", data, "--yes"), 1, "no study"),
        (("withdraw", study.address, "--yes"), 1, ""),
    ):
        refused = owner.run("owner", *words)
        assert refused.status == status, refused
        assert said in refused.err
        assert "Traceback" not in refused.err
    home = tree(outsider.home)
    refused = outsider.run("owner", "join", study.address, "--data", data, "--yes")
    assert refused.status == 1
    assert "names its owners, and this owner is not among them" in refused.err
    assert tree(outsider.home) == home


def _odd_files(folder: Path) -> tuple[list[Path], list[list[Record]], list[str]]:
    """Four files that are odd and fine, their records, and a word of the note on each."""
    folder.mkdir()
    permuted = patients(40, seed=31)
    odd_header = write_csv(
        folder / "permuted.csv",
        permuted,
        ["ward", "id", "pressure", NFD_HEIGHT, "age", "comment", "weight"],
        encoding="utf-8-sig",
    )
    gaps = [dict(record) for record in patients(30, seed=32)]
    gaps[0]["age"], gaps[7]["weight"], gaps[7]["pressure"] = None, None, None
    with_infinity = [dict(record) for record in patients(20, seed=33)]
    numbers = {name: [record[name] for record in with_infinity] for name in NAMES}
    numbers["weight"][4], numbers["age"][9], numbers["pressure"][9] = np.inf, -np.inf, np.nan
    arrays: dict[str, Any] = {name: np.array(values) for name, values in numbers.items()}
    np.savez(folder / "infinite.npz", **arrays)
    for place, names in ((4, ["weight"]), (9, ["age", "pressure"])):
        for name in names:
            with_infinity[place][name] = None
    constant = [{**record, "age": 40, "ward": "B"} for record in patients(10, seed=34)]
    files = [
        odd_header,
        write_npz(folder / "gaps.npz", gaps),
        folder / "infinite.npz",
        write_parquet(folder / "constant.parquet", constant),
        write_csv(folder / "one.csv", patients(1, seed=35)),
    ]
    notes = [
        "different order",
        "missing",
        "missing",
        "the same value in every record",
        "only one record",
    ]
    records: list[list[Record]] = [permuted, [*gaps], [*with_infinity], [*constant], patients(1, seed=35)]
    return files, records, notes


@pytest.mark.parametrize(
    ("missing", "release"),
    [("reject", "joint"), pytest.param("midpoint", "masked", marks=pytest.mark.nightly)],
)
def test_odd_records_count_as_the_protocol_says(
    federation: Federation, user: BareUser, tmp_path: Path, missing: str, release: str
) -> None:
    owners = federation.owners(5)
    study = user.open_study(owners, missing=missing, release=release, closing="when-complete")
    files, records, notes = _odd_files(tmp_path / "data")
    if missing == "reject":
        records = [[record for record in part if None not in record.values()] for part in records]
    for owner, file, part, note in zip(owners, files, records, notes, strict=True):
        joined = owner.join(study.address, file)
        assert joined["records"] == len(part)
        assert any(note in said for said in joined["notes"]), joined["notes"]
    study.wait_state("closed", "released")
    expected = add_up(records[0])
    for part in records[1:]:
        expected = expected + add_up(part)
    assert_release(study.open_release(), expected, study.manifest.figures)


@pytest.mark.parametrize("release", ["joint", pytest.param("masked", marks=pytest.mark.nightly)])
def test_one_feature_and_one_record_in_all(federation: Federation, tmp_path: Path, release: str) -> None:
    """The smallest study there is, through the data user's service."""
    owner, user = federation.owners(1)[0], federation.user
    study = user.create_study(
        {
            "title": "One number",
            "purpose": "To see that it can be done.",
            "features": [{"name": "age", "lower": 0, "upper": 100}],
            "clip_norm": 1,
            "release": release,
            "epsilon": 1,
            "max_records": 10,
            "min_records": 1,
            "min_owners": 1,
            "max_owners": 1,
            "participants": [owner.name],
            "closing": "when-complete",
        }
    )
    data = tmp_path / "one.csv"
    data.write_text("age\n40\n")
    joined = owner.join(f"{federation.url}/{study}", data)
    assert joined["notes"] == [
        "there is only one record: nothing but the noise and the records of other owners hides it in the sums"
    ]
    user.wait_state(study, "published")
    model = user.ask("user", "result", study)
    assert (model["records"], model["components"]) == (1, [[1.0]])
    assert owner.ask("owner", "components", f"{federation.url}/{study}")["records"] == 1
