"""Makes a first draft from a sample file.

The draft takes names and kinds from the file, but bounds need knowledge.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.columns import MISSING_WORDS, Column
from dpdpca_protocol.terms.features import column_key
from dpdpca_runtime.file_kinds import BEGINNING_BYTES, FileKind, foreign_kind, is_binary
from dpdpca_runtime.text import MARK_BYTES, marked_encoding
from dpdpca_user.planning.clipping import CLIP_CAP, CLIP_SHARE
from dpdpca_user.planning.noise import usual_norm

MOST_ROWS = 10_000
MOST_LEVELS = 50

_FEW_CODES = 10
_LEAST_AMOUNT = 1000
"""If a column has only a few different whole numbers, all below this value, they may be codes."""
_OPEN = ["# lower =                   # to be filled in", "# upper ="]
_HEADROOM = 5
"""max_records leaves room for 1/_HEADROOM more records than expected."""
_SMALLEST, _LARGEST = 1e-30, 1e29
"""The sizes of numbers that a draft can express."""
_DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}([ T].*)?|\d{1,2}:\d{2}(:\d{2})?")
_SEPARATED = re.compile(r"[+-]?(\d{1,3}([,.' \u00a0\u202f]\d{3})+([.,]\d+)?|\d+,\d+)")
_TRUTHS = ({"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"})

_AS_CSV = "export a sample of the data as CSV in UTF-8"
_OTHERS = (
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x93NUMPY", "a NumPy file"),
    (b"PK\x03\x04", "a workbook, or another ZIP archive"),
    (b"\x1f\x8b", "compressed with gzip"),
)

WARNING = (
    "The bounds and levels below come from the sample; bounds are rounded outward. Replace the bounds and"
    " levels by the values that each quantity can take: bounds taken from the owners' data would leak that"
    " data."
)


@dataclass(frozen=True, slots=True)
class FirstDraft:
    """A draft in TOML, and the members that it leaves open because no sample can determine them."""

    text: str
    left_open: tuple[str, ...]


def draft_from_sample(
    path: Path,
    records: int | None = None,
    participants: Sequence[str] | None = None,
    *,
    single: bool = False,
) -> FirstDraft:
    """A draft with a feature for every column of a CSV file.

    The draft is that of a chain, which chooses release, centres and clip norm itself. A draft that names
    owners is blinded. If it names nobody, the proxy draws the noise.

    Args:
        path: the sample file.
        records: the number of records that all owners are expected to have together. This number cannot be
            derived from the sample.
        participants: the names of the owners; None for all owners that are enrolled, and empty for nobody.
        single: make a draft of one joint study instead.

    Raises:
        InputError: there is no header or no row, or a column contains neither numbers nor a few levels.
    """
    header, rows = _read(path)
    columns = zip(*rows, strict=True)
    features = [_feature(name, list(values)) for name, values in zip(header, columns, strict=True)]
    categorical = sum(feature.lines[0].startswith("levels") for feature in features)
    clip_norm = usual_norm(len(header) - categorical, categorical)
    parts = [
        f"# {WARNING}",
        'title = "…"',
        'purpose = "…"',
        "",
        *(_single(clip_norm) if single else _CHAIN),
        "epsilon = 1",
        'scaling = "range"',
        'missing = "midpoint"',
        _max_records(records),
        *_owners(participants),
        "# closes_at = 2030-01-01T00:00:00Z",
    ]
    for feature in features:
        parts += ["", "[[features]]", f"name = {_quoted(feature.name)}"]
        parts += [f"# {line}" for line in feature.about]
        parts += feature.lines
    left_open = ["max_records"] if records is None else []
    left_open += [f"bounds of {feature.name}" for feature in features if feature.lines == _OPEN]
    return FirstDraft("\n".join(parts) + "\n", tuple(left_open))


_CHAIN = (
    "# This is the draft of a chain of studies: dpdpca user study run --auto. Private pre-studies choose",
    "# the release, the centres and clip_norm, and all rounds together spend this epsilon.",
)


def _single(usual: float) -> Iterator[str]:
    clip_norm = f"{usual:.2g}"
    yield 'release = "joint"           # or "masked": see dpdpca user plan'
    yield (
        f"clip_norm = {clip_norm}             # from a rule that needs no data; lower means less noise;"
        " study lint says what it will clip"
    )
    yield f"clip_share = {CLIP_SHARE}          # part of the budget for each number about clipping"
    clip_cap = f"{CLIP_CAP * float(clip_norm):.3g}"
    yield f"clip_cap = {clip_cap}             # the longest length that counts in them"


def room_for(records: int) -> int:
    """max_records for an expected number of records: a fifth more, rounded up to two digits."""
    wanted = records + records // _HEADROOM
    step = int("1" + "0" * (len(str(wanted)) - 2))
    return -(-wanted // step) * step


def columns_of_sample(path: Path) -> dict[str, list[float] | list[str | None]]:
    """The columns of a CSV file: numbers, with NaN for a missing one, or texts, with None.

    Raises:
        InputError: there is no header or no row.
    """
    header, rows = _read(path)
    found: dict[str, list[float] | list[str | None]] = {}
    for name, values in zip(header, zip(*rows, strict=True), strict=True):
        if _numbers(_present(values)) is None:
            found[name] = [value.strip() or None for value in values]
        else:
            found[name] = [float(text) if _present([text]) else math.nan for text in values]
    return found


def finite_numbers(column: Column) -> list[float]:
    """The finite numbers of a column; none if it holds texts."""
    return [value for value in column if isinstance(value, float) and math.isfinite(value)]


def _owners(participants: Sequence[str] | None) -> list[str]:
    if participants is not None and not participants:
        return [
            'noise_by = "proxy"          # any enrolled owner may join, so you add a second draw of noise'
        ]
    named = (
        'participants = "enrolled"   # all owners that are enrolled; or: ["Owner A", "Owner B", "Owner C"]'
    )
    if participants is not None:
        named = f"participants = [{', '.join(map(_quoted, participants))}]"
    return [
        named,
        'blinding = "pairwise"       # only the sum over all named owners opens; for a masked study: "none"',
        "max_colluding = 1           # so many owners may work with the proxy and with you",
    ]


def _max_records(records: int | None) -> str:
    cost = "δ is 1/max_records², so a value ten times too large costs up to a fifth more noise"
    if records is None:
        return (
            f"# max_records =             # to be filled in: the most that all owners have together; {cost}"
        )
    return f"{f'max_records = {room_for(records)}':<28}# of all owners; a fifth above {records}; {cost}"


def _present(values: Iterable[str]) -> list[str]:
    return [text for value in values if (text := value.strip()).lower() not in MISSING_WORDS]


def _numbers(present: list[str]) -> list[float] | None:
    try:
        return [float(value) for value in present]
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Feature:
    """A column for the draft: its name, comments for the author, and lines of TOML."""

    name: str
    about: list[str]
    lines: list[str]


def _feature(name: str, values: list[str]) -> _Feature:
    present = _present(values)
    numbers = _numbers(present)
    if numbers is None:
        _check_levels(name, present)
        texts = [text for value in values if (text := value.strip())]
        levels = ", ".join(map(_quoted, sorted(set(texts))))
        return _Feature(
            name, list(_about_levels(texts)), [f"levels = [{levels}]  # from the sample: complete the list"]
        )
    finite = [number for number in numbers if math.isfinite(number)]
    bounds = _bounds(finite)
    about = list(_about_numbers(finite, bounds, len(values)))
    if bounds is None:
        return _Feature(name, about, _OPEN)
    lower, upper = (f"{bound:.10g}  # from the sample: replace it" for bound in bounds)
    return _Feature(name, about, [f"lower = {lower}", f"upper = {upper}"])


def _bounds(finite: list[float]) -> tuple[float, float] | None:
    """The range of a sample, rounded outward; None if the sample does not determine one."""
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    size = max(abs(low), abs(high))
    if low == high or high - low < _SMALLEST or size > _LARGEST:
        return None
    step = 10.0 ** math.floor(math.log10(max(high - low, abs(high))))
    return math.floor(low / step) * step, math.ceil(high / step) * step


def _about_numbers(finite: list[float], bounds: tuple[float, float] | None, rows: int) -> Iterator[str]:
    different = set(finite)
    if not different:
        yield "the sample has no number in this column"
    elif len(different) == 1:
        yield "the sample has only one value, which says nothing about the range"
    elif bounds is None:
        yield "the numbers are too large or too small for a draft: choose another unit"
    if different and len(finite) < rows:
        yield f"rows of the sample without a finite number: {rows - len(finite)} of {rows}"
    are_few = 1 < len(different) <= _FEW_CODES < len(finite)
    if are_few and all(value.is_integer() and abs(value) < _LEAST_AMOUNT for value in different):
        codes = ", ".join(f'"{value:.0f}"' for value in sorted(different))
        yield f"if these numbers are codes and not amounts, write this instead of bounds: levels = [{codes}]"


def _about_levels(texts: list[str]) -> Iterator[str]:
    levels = set(texts)
    if {level.lower() for level in levels} in _TRUTHS:
        yield 'if owners store this column as booleans, write the levels "false" and "true"'
    if any(level.lower() in MISSING_WORDS for level in levels):
        yield "only an empty field is a missing value here; a word such as NA is a level of its own"
    if len(levels) == len(texts) > _FEW_CODES:
        yield "every row has a different text: leave out columns that identify a record"


def _check_levels(name: str, present: list[str]) -> None:
    """Raises InputError if the texts are not levels but dates, numbers in another form, or too many texts."""
    if all(map(_DATE.fullmatch, present)):
        raise InputError(
            "not-a-feature",
            f"column {name!r} contains dates or times",
            "convert dates to a meaningful number (an age, or days since a fixed day), or leave out the"
            " column",
        )
    if all(_SEPARATED.fullmatch(text) or _numbers([text]) for text in present):
        raise InputError(
            "not-a-feature",
            f"column {name!r} contains numbers with a decimal comma or thousands separators",
            "export the column with a decimal point and without thousands separators",
        )
    different = set(present)
    words = {text for text in different if _numbers([text]) is None}
    if len(words) == 1 and len(different) > _FEW_CODES:
        raise InputError(
            "not-a-feature",
            f"column {name!r} contains numbers, and the same word wherever a number is missing",
            "leave the field empty if a number is missing",
        )
    if len(different) > MOST_LEVELS:
        raise InputError(
            "not-a-feature",
            f"column {name!r} has text with {len(different)} different values",
            "leave out the column, or group its values",
        )


def _quoted(text: str) -> str:
    """A TOML basic string. Every JSON string in which DEL is escaped is such a string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _check_kind(path: Path) -> None:
    """Refuse files that are not CSV, and name the format of those that owners may use for their records."""
    with path.open("rb") as file:
        beginning = file.read(BEGINNING_BYTES)
    kind = foreign_kind(beginning)
    if kind is None and is_binary(beginning):
        kind = next((FileKind(name, _AS_CSV) for magic, name in _OTHERS if beginning.startswith(magic)), None)
    if kind is not None:
        raise InputError("unreadable", f"{path.name} is {kind.name}", kind.advice)


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    _check_kind(path)
    try:
        with path.open("rb") as beginning:
            encoding = marked_encoding(beginning.read(MARK_BYTES)) or "utf-8"
        with path.open(encoding=encoding, newline="") as file:
            start = file.read(65536)
            if "\0" in start:
                raise csv.Error("no text")
            file.seek(0)
            try:
                dialect: type[csv.Dialect] = csv.Sniffer().sniff(start, delimiters=",;\t|")
            except csv.Error:
                dialect = csv.excel
            reader = csv.reader(file, dialect)
            header = [column_key(name) for name in next(reader, [])]
            rows = [row for _, row in zip(range(MOST_ROWS), reader, strict=False) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            "unreadable",
            f"{path.name} is not CSV in UTF-8, or in UTF-16 or UTF-32 with a byte-order mark",
            "export the file again as CSV in UTF-8",
        ) from error
    if not header or not rows:
        raise InputError(
            "empty-file",
            f"{path.name} lacks a header or rows",
            "give a CSV file with a header and at least one row",
        )
    if len(set(header)) != len(header) or "" in header:
        raise InputError(
            "duplicated-column",
            f"{path.name} has a column without a name, or two columns with the same name",
            "give every column its own name",
        )
    if any(len(row) != len(header) for row in rows):
        raise InputError(
            "ragged-rows",
            f"{path.name} has rows of different lengths",
            "export the file again, with quotes around fields that contain the separator",
        )
    return header, rows
