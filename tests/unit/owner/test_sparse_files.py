"""Sparse NumPy files and those in column order: their names, what they mean, and what is refused."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from genotype_files import SITES, write_npy, write_npz, write_sparse
from numpy.typing import NDArray

from dpdpca_owner.records import sparse
from dpdpca_owner.records.open import open_source, read_batches
from dpdpca_owner.records.source import DataLocation, Reading
from dpdpca_protocol.errors import DpdpcaError, InputError, UnavailableError
from dpdpca_protocol.terms.features import Feature

NAMES = ("a", "b", "c")
FEATURES = tuple(Feature(name, "numeric") for name in NAMES)
TABLE = np.array([[0.0, 1.5, 0.0], [0.0, 0.0, np.nan], [-2.0, 0.0, 3.0], [0.0, 0.0, 0.0]])


def read(path: Path, names: Path | None = None) -> NDArray[np.float64]:
    location = DataLocation(str(path), reading=Reading(names=None if names is None else str(names)))
    batches = list(read_batches(open_source(location, FEATURES), FEATURES))
    return np.concatenate([np.stack([np.asarray(each[n], float) for n in NAMES], axis=1) for each in batches])


def members(kind: str = "csr", table: NDArray[Any] = TABLE, **changes: Any) -> dict[str, Any]:
    """The arrays of a sparse file, with some of them changed or, for None, left out."""
    matrix = scipy.sparse.csr_matrix(table).asformat(kind)
    arrays = {
        "format": np.array(kind.encode()),
        "shape": np.array(matrix.shape),
        "data": matrix.data,
        "indices": matrix.indices,
        "indptr": matrix.indptr,
        "features": np.array(NAMES),
    } | changes
    return {name: np.asarray(array) for name, array in arrays.items() if array is not None}


def save(path: Path, arrays: dict[str, Any]) -> Path:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return path


@pytest.mark.parametrize("format", ["csr", "csc"])
def test_an_absent_entry_is_zero_and_nan_is_missing(tmp_path: Path, format: str) -> None:
    found = read(save(tmp_path / "x.npz", members(format)))
    assert np.array_equal(found, TABLE, equal_nan=True)


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.float32, bool])
@pytest.mark.parametrize("format", ["csr", "csc"])
def test_every_type_of_numbers(tmp_path: Path, format: str, kind: Any) -> None:
    table = (np.nan_to_num(TABLE) != 0).astype(kind)
    assert np.array_equal(read(save(tmp_path / "x.npz", members(format, table))), table)


@pytest.mark.parametrize("make", [scipy.sparse.csr_array, scipy.sparse.csc_matrix])
def test_what_scipy_saves(tmp_path: Path, make: Any) -> None:
    with (tmp_path / "x.npz").open("wb") as file:
        scipy.sparse.save_npz(file, make(TABLE))
    (tmp_path / "x.features.txt").write_text("a\nb\nc\n")
    assert np.array_equal(read(tmp_path / "x.npz"), TABLE, equal_nan=True)


@pytest.mark.parametrize("format", ["csr", "csc"])
def test_entries_of_a_line_in_any_order(tmp_path: Path, format: str) -> None:
    table = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    backwards = {"data": members(format, table)["data"][::-1], "indices": np.tile([2, 1, 0], 3)}
    arrays = members(format, table[::-1] if format == "csr" else table[:, ::-1], **backwards)
    arrays["data"] = (table[::-1, ::-1] if format == "csr" else table[::-1, ::-1].T).ravel()
    expected = table[::-1] if format == "csr" else table[:, ::-1]
    assert np.array_equal(read(save(tmp_path / "x.npz", arrays)), expected)


def test_a_matrix_without_entries(tmp_path: Path) -> None:
    for format in ("csr", "csc"):
        path = save(tmp_path / "x.npz", members(format, np.zeros((2, 3))))
        assert np.array_equal(read(path), np.zeros((2, 3)))


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"format": b"coo"}, "unknown-format", "CSR or CSC"),
    ({"format": np.array("csr" * 900)}, "damaged-file", ""),
    ({"indptr": None}, "unknown-format", ""),
    ({"shape": [4, 3, 1]}, "wrong-shape", "two dimensions"),
    ({"shape": [-4, 3]}, "wrong-shape", ""),
    ({"shape": [5, 3]}, "wrong-shape", "do not fit its shape"),
    ({"shape": [4, 2]}, "unnamed-columns", "has 2 columns"),
    ({"shape": [4.0, 3.0]}, "wrong-shape", ""),
    ({"data": np.array([1.5, np.nan, -2, 3], complex)}, "wrong-shape", "real numbers"),
    ({"data": np.array(["1.5", "nan", "-2", "3"])}, "wrong-shape", "real numbers"),
    ({"data": np.array([1.5, None, -2, 3])}, "pickled-file", "never unpickled"),
    ({"data": np.ones(3)}, "wrong-shape", "do not fit"),
    ({"data": np.ones((4, 1))}, "wrong-shape", "do not fit"),
    ({"indices": [1.0, 2, 0, 2]}, "wrong-shape", "no integers"),
    ({"indices": [1, 3, 0, 2]}, "damaged-file", "from 0 to 2"),
    ({"indices": [-1, 2, 0, 2]}, "damaged-file", "from 0 to 2"),
    ({"indices": [1, 2, 2, 2]}, "damaged-file", "same row and column"),
    ({"indptr": [0, 2, 1, 4, 4]}, "damaged-file", "not in order"),
    ({"indptr": [1, 1, 2, 4, 4]}, "damaged-file", "not in order"),
    ({"indptr": [0, 1, 2, 4, 5]}, "damaged-file", "not in order"),
    ({"indptr": [0, 4, 4, 4, 4]}, "damaged-file", "more entries than places"),
    ({"features": None}, "unnamed-columns", "--names"),
    ({"features": ["a", "b"]}, "unnamed-columns", "2 column names"),
    ({"features": [["a", "b", "c"]]}, "unnamed-columns", "plain text"),
    ({"features": [1, 2, 3]}, "unnamed-columns", "plain text"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "slug", "words"), REFUSALS)
def test_a_matrix_that_is_none_is_refused(
    tmp_path: Path, changes: dict[str, Any], slug: str, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(save(tmp_path / "x.npz", members(**changes)))
    assert (caught.value.slug, words in str(caught.value)) == (slug, True), str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indices": [2, 4, 0, 1]}, "from 0 to 3"),
        ({"indices": [2, 0, 1, 1]}, "same row and column"),
        ({"indptr": [0, 3, 2, 4]}, "not in order"),
    ],
)
def test_columns_are_checked_too(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read(save(tmp_path / "x.npz", members("csc", **changes)))
    assert caught.value.slug == "damaged-file"


def promise(arrays: dict[str, Any], path: Path, **shapes: tuple[int, ...]) -> Path:
    """A file in which the headers of some arrays promise other shapes than there are."""
    save(path, arrays)
    content = {name: zipfile.ZipFile(path).read(name) for name in zipfile.ZipFile(path).namelist()}
    for name, shape in shapes.items():
        array, header = np.asarray(arrays[name]), io.BytesIO()
        described = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        content[f"{name}.npy"] = header.getvalue() + array.tobytes()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, each in content.items():
            archive.writestr(name, each)
    return path


@pytest.mark.parametrize("format", ["csr", "csc"])
def test_headers_that_promise_more_than_there_is(tmp_path: Path, format: str) -> None:
    """No memory is taken for what a header promises."""
    many = 1 << 40
    cases: list[dict[str, tuple[int, ...]]] = [
        {"data": (many,), "indices": (many,)},
        {"indptr": (many + 1,)},
        {"shape": (many,)},
        {"features": (many,)},
    ]
    for shapes in cases:
        with pytest.raises(DpdpcaError):
            read(promise(members(format), tmp_path / "x.npz", **shapes))
    huge = members(format, shape=np.array([many, 3] if format == "csc" else [4, many]))
    with pytest.raises(InputError):
        read(save(tmp_path / "x.npz", huge))


def test_too_many_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "_MOST_POINTER_BYTES", 16)
    with pytest.raises(InputError, match="divide the records") as caught:
        read(save(tmp_path / "x.npz", members()))
    assert caught.value.slug == "too-large"


@pytest.mark.parametrize("write", ["sparse", "dense"])
def test_what_does_not_fit_on_the_disk_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    class Full:
        free = 8

    monkeypatch.setattr("shutil.disk_usage", lambda _: Full)
    path = tmp_path / "x.npz"
    if write == "sparse":
        save(path, members("csc"))
    else:
        save(path, {"X": np.asfortranarray(TABLE), "features": np.array(NAMES)})
    with pytest.raises(UnavailableError) as caught:
        read(path)
    assert caught.value.slug == "storage-full"


@pytest.mark.parametrize("order", ["C", "F"])
def test_names_in_a_text_file(tmp_path: Path, order: Any) -> None:
    """That which the owner names counts more than the file's own, and these more than a file beside it."""
    write_npy(tmp_path / "x.npy", TABLE, ("c", "b", "a"), order)
    assert np.array_equal(read(tmp_path / "x.npy"), TABLE[:, ::-1], equal_nan=True)
    names = tmp_path / "names"
    names.write_bytes("\ufeffb\r\na\r\nc\r\n".encode())
    assert np.array_equal(read(tmp_path / "x.npy", names), TABLE[:, [1, 0, 2]], equal_nan=True)
    write_npz(tmp_path / "x.npz", TABLE, ("b", "c", "a"), order)
    assert np.array_equal(read(tmp_path / "x.npz"), TABLE[:, [2, 0, 1]], equal_nan=True)
    assert np.array_equal(read(tmp_path / "x.npz", names), TABLE[:, [1, 0, 2]], equal_nan=True)


def test_names_that_do_not_fit(tmp_path: Path) -> None:
    write_npy(tmp_path / "x.npy", TABLE, ("a", "b"))
    with pytest.raises(InputError, match="2 column names") as caught:
        read(tmp_path / "x.npy")
    assert caught.value.slug == "wrong-shape"
    with pytest.raises(InputError, match="no file") as caught:
        read(tmp_path / "x.npy", tmp_path / "none")
    assert caught.value.slug == "no-such-file"


def test_a_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    for order in ("C", "F"):
        write_npy(tmp_path / "x.npy", TABLE, NAMES, order)
        content = (tmp_path / "x.npy").read_bytes()
        (tmp_path / "x.npy").write_bytes(content[:-1])
        with pytest.raises(InputError) as caught:
            read(tmp_path / "x.npy")
        assert caught.value.slug == "damaged-file"
    path = write_sparse(tmp_path / "x.npz", np.ones((4, 6)), SITES, "csc").data
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[:200])
    with pytest.raises(InputError):
        read(Path(path))
