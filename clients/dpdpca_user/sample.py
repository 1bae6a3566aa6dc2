"""A first draft from a sample file: names and kinds from the file, bounds still from knowledge."""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path

from dpdpca_protocol.errors import InputError
from dpdpca_protocol.features import column_key

MOST_ROWS = 10_000
MOST_LEVELS = 50

_NUMERIC, _CATEGORICAL = 0.35, 0.9
"""What a feature of each kind adds in quadrature to the usual norm of a scaled record."""

WARNING = (
    "Bounds and levels below are read off the sample and rounded outward. Replace them by what each quantity"
    " can be: bounds taken from the owners' data leak it."
)


def draft_from_sample(path: Path) -> str:
    """TOML text of a draft with a feature for every column of a CSV file.

    Raises:
        InputError: no header, no rows, or a column that is neither numbers nor a few levels.
    """
    header, rows = _read(path)
    columns = list(zip(*rows, strict=True))
    features = [list(_feature(name, values)) for name, values in zip(header, columns, strict=True)]
    categorical = sum(feature[0].startswith("levels") for feature in features)
    clip_norm = math.sqrt(_NUMERIC**2 * (len(header) - categorical) + _CATEGORICAL**2 * categorical)
    parts = [
        f"# {WARNING}",
        'title = "…"',
        'purpose = "…"',
        "",
        'release = "joint"           # or "masked": see dpdpca user plan',
        "epsilon = 1",
        f"clip_norm = {clip_norm:.2g}             # a rule that needs no data; lower is less noise",
        'scaling = "range"',
        'missing = "midpoint"',
        f"max_records = {max(10_000, 10 ** len(str(len(rows))))}",
        "min_owners = 3",
        '# noise_by = "owners"        # joint only: then the proxy knows none of the noise',
        '# participants = ["Owner A", "Owner B", "Owner C"]',
        "# closes_at = 2030-01-01T00:00:00Z",
    ]
    parts += [
        "\n".join(["", "[[features]]", f"name = {_quoted(name)}", *feature])
        for name, feature in zip(header, features, strict=True)
    ]
    return "\n".join(parts) + "\n"


def numbers_of_sample(path: Path) -> dict[str, list[float]]:
    """The finite numbers of each column of a CSV file that holds no other text.

    Raises:
        InputError: no header or no rows.
    """
    header, rows = _read(path)
    found = {}
    for name, values in zip(header, zip(*rows, strict=True), strict=True):
        try:
            numbers = [float(value) for value in values if value.strip()]
        except ValueError:
            continue
        found[name] = [number for number in numbers if math.isfinite(number)]
    return found


def _feature(name: str, values: tuple[str, ...]) -> Iterator[str]:
    present = [value.strip() for value in values if value.strip()]
    try:
        numbers = [float(value) for value in present]
    except ValueError:
        levels = sorted(set(present))
        if len(levels) > MOST_LEVELS:
            raise InputError(
                "not-a-feature",
                f"column {name!r} has text with {len(levels)} different values",
                "leave the column out of the sample, or group its values",
            ) from None
        yield f"levels = [{', '.join(map(_quoted, levels))}]  # from the sample: complete the list"
        return
    finite = [number for number in numbers if math.isfinite(number)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    step = 10.0 ** math.floor(math.log10(max(high - low, abs(high), 1e-9)))
    lower, upper = math.floor(low / step) * step, math.ceil(high / step) * step
    yield f"lower = {lower:.10g}  # from the sample: replace"
    yield f"upper = {upper if upper > lower else lower + step:.10g}  # from the sample: replace"


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's form is one, once DEL is escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            start = file.read(65536)
            file.seek(0)
            try:
                dialect: type[csv.Dialect] = csv.Sniffer().sniff(start, delimiters=",;\t|")
            except csv.Error:
                dialect = csv.excel
            reader = csv.reader(file, dialect)
            header = [column_key(name) for name in next(reader, [])]
            rows = [row for _, row in zip(range(MOST_ROWS), reader, strict=False) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError("unreadable", f"{path.name} is not CSV in UTF-8", "export it again") from error
    if not header or not rows:
        raise InputError("empty-file", f"{path.name} has no header and rows", "give a CSV file with a header")
    if len(set(header)) != len(header) or "" in header:
        raise InputError("duplicated-column", f"{path.name} has a column without a name of its own")
    if any(len(row) != len(header) for row in rows):
        raise InputError("ragged-rows", f"{path.name} has rows of different lengths", "repair the file")
    return header, rows
