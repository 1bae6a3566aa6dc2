"""A keyed fingerprint of an owner's records, by which the ledger recognises them.

The fingerprint depends on the content and not on the file. All columns influence the fingerprint, whether a
study asks for them or not. The order of the records, the order and names of the columns, and the file's
format have no influence. Adding, changing or leaving out a record changes the fingerprint, and so does adding
a column that contains any value.

A record is the multiset of its values:
- A number is rounded to single precision, so that it is the same from a text file and from a binary file.
- A text that is a number counts as that number. Other text is normalised (NFC), without spaces at the ends.
- Values that would count as missing numbers are left out.

Each record is hashed with the key (BLAKE2b), and the hashes are added modulo 2²⁵⁶, so memory use does not
grow with the data. The key never leaves this machine. Without the key, nobody can test whether some records
are those in the ledger.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdpca_owner.accounts.charge import Content
from dpdpca_protocol.records.arrow_columns import doubles, is_number, plain
from dpdpca_protocol.records.columns import MISSING_WORDS
from dpdpca_protocol.wire.identifiers import Digest

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_MISSING = pa.array([*MISSING_WORDS, "inf", "-inf", "+inf"])
_TRUTH = pa.array(["true", "false"])
_IS_NUMBER = np.uint64(1 << 32)
_IS_TEXT = 1 << 63
_MODULUS = 1 << 256


class RecordsFingerprint:
    """Computes the fingerprint of the records of one data set, batch by batch.

    Args:
        key: 32 bytes; each owner has its own.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._sum = 0
        self._records = 0

    def add(self, columns: Sequence[Any] | NDArray[Any]) -> None:
        """Add a batch of records.

        Args:
            columns: all columns, each with one value for each record: NumPy or Arrow arrays, or Python
                values. Or one (d, n) array, which is read much faster.
        """
        if isinstance(columns, np.ndarray) and columns.dtype.kind in "fiub":
            words = _number_words(columns.T)
        else:
            words = np.empty((len(columns[0]), len(columns)), dtype=np.uint64)
            for place, column in enumerate(columns):
                words[:, place] = self._words(column)
        words.sort(axis=1)
        width = 8 * len(columns)
        missing = (8 * np.count_nonzero(words == 0, axis=1)).tolist()
        content = memoryview(words.tobytes())
        self._add_records(
            content[record * width + skipped : (record + 1) * width] for record, skipped in enumerate(missing)
        )

    def add_counted(self, numbers: Sequence[float], counts: NDArray[np.int64]) -> None:
        """Add records that have few different numbers, as `add` would.

        Args:
            numbers: finite, in increasing order, none below 0.
            counts: (n, numbers) how often each record has each of them in all its columns.
        """
        words = _number_words(np.array(numbers))
        most = counts.max(axis=0, initial=0).tolist()
        first, *others = (memoryview(word.tobytes() * n) for word, n in zip(words, most, strict=True))
        # Records that begin alike share this beginning: by their first number, they go from few to many.
        begun, length = self._hashing(), 0
        for count, *rest in counts[np.argsort(counts[:, 0])].tolist():
            begun.update(first[length : 8 * count])
            length, hashing = 8 * count, begun.copy()
            for content, n in zip(others, rest, strict=True):
                hashing.update(content[: 8 * n])
            self._add_hash(hashing.digest())

    def _add_records(self, contents: Iterable[bytes | memoryview]) -> None:
        """Add one record for each content: the words of its values, sorted."""
        for content in contents:
            self._add_hash(self._hashing(content).digest())

    def _hashing(self, content: bytes | memoryview = b"") -> blake2b:
        return blake2b(content, digest_size=32, key=self._key, person=b"dpdpca/record")

    def _add_hash(self, hashed: bytes) -> None:
        self._sum = (self._sum + int.from_bytes(hashed, "big")) % _MODULUS
        self._records += 1

    def merge(self, other: "RecordsFingerprint") -> None:
        """Adds the records of `other`, which has the same key."""
        self._sum = (self._sum + other._sum) % _MODULUS
        self._records += other._records

    @property
    def content(self) -> Content:
        """The fingerprint and number of the records added so far."""
        summed = self._records.to_bytes(8, "big") + self._sum.to_bytes(32, "big")
        whole = blake2b(summed, digest_size=32, key=self._key, person=b"dpdpca/data-set").digest()
        return Content(Digest(whole), self._records)

    def _words(self, column: Any) -> NDArray[np.uint64]:
        """(n,) words: 0 for a missing value; numbers and texts have separate ranges."""
        if isinstance(column, np.ndarray) and column.dtype.kind in "fiub":
            return _number_words(column)
        array = plain(column if isinstance(column, pa.Array) else _as_arrow(column))
        return _number_words(doubles(array)) if is_number(array.type) else self._text_words(as_text(array))

    def _text_words(self, texts: pa.Array) -> NDArray[np.uint64]:
        texts = pc.utf8_normalize(pc.utf8_trim_whitespace(texts), form="NFC")
        lower = pc.utf8_lower(texts)
        missing = pc.or_(pc.is_null(texts), pc.is_in(lower, value_set=_MISSING))
        is_truth = pc.is_in(lower, value_set=_TRUTH)
        is_number = pc.fill_null(pc.match_substring_regex(texts, _NUMBER), False)
        nothing = pa.scalar(None, texts.type)
        digits = pc.replace_substring_regex(pc.if_else(is_number, texts, nothing), r"^\+", "")
        numbers = pc.if_else(is_truth, pc.equal(lower, "true").cast(pa.float64()), digits.cast(pa.float64()))
        words = _number_words(np.asarray(numbers.to_numpy(zero_copy_only=False), np.float64))
        is_other = pc.invert(pc.or_(pc.or_(missing, is_truth), is_number))
        others = pc.filter(texts, is_other).dictionary_encode()
        known = np.array([self._text_word(text) for text in others.dictionary.to_pylist()], np.uint64)
        if len(known):
            words[is_other.to_numpy(zero_copy_only=False)] = known[others.indices.to_numpy()]
        return words

    def _text_word(self, text: str) -> int:
        hashed = blake2b(text.encode(), digest_size=8, key=self._key, person=b"dpdpca/text").digest()
        return int.from_bytes(hashed, "big") | _IS_TEXT


def _number_words(values: NDArray[Any]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float64).astype(np.float32)
    single += np.float32(0)  # −0 is 0
    words = single.view(np.uint32).astype(np.uint64) | _IS_NUMBER
    words[~np.isfinite(values.astype(np.float64))] = 0
    return words


def _as_arrow(values: Any) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return _written(values)


def as_text(array: pa.Array) -> pa.Array:
    """Any array as strings. The strings are only compared, so any unambiguous form will do."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return array
    with suppress(pa.ArrowException, NotImplementedError):  # Arrow raises either, depending on the type
        return array.cast(pa.string())
    try:
        values = array.to_pylist()
    except (ValueError, OverflowError):  # times that Python cannot represent, or in an unknown time zone
        return array.cast(pa.int64()).cast(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        values = [None if value is None else value.decode(errors="backslashreplace") for value in values]
    return _written(values)


def _written(values: Iterable[Any]) -> pa.Array:
    """Values of any type, in Python's text form."""
    texts = (None if value is None else _text(value) for value in values)
    return pa.array(texts, pa.string())


def _text(value: Any) -> str:
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits, or a NumPy time without a unit
        text = hex(value.view(np.int64) if isinstance(value, np.generic) else value)
    return text.encode(errors="backslashreplace").decode()
