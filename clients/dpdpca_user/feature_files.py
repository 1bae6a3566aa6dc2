"""Files of features: the table that a person writes, and the list that a study names."""

import csv
from collections.abc import Iterator, Mapping
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

from dpdpca_protocol.errors import DpdpcaError, InputError, LimitError
from dpdpca_protocol.terms.feature_list import (
    LIST_LIMIT_BYTES,
    FeatureListRef,
    check_size,
    encode_features,
    read_feature_list,
)
from dpdpca_protocol.terms.features import MAX_LISTED_FEATURES, Feature
from dpdpca_protocol.terms.forms import one_line
from dpdpca_protocol.wire.fields import decimal_text, real_of
from dpdpca_runtime.text import load_text
from dpdpca_user.planning.lint import media_type_of, parse_draft

_NEEDED = ("name", "lower", "upper")
_NUMBERS = ("lower", "upper", "centre", "scale")
_COLUMNS = frozenset({*_NEEDED, *_NUMBERS, "unit", "description"})


def list_from_table(path: Path) -> tuple[FeatureListRef, bytes]:
    """The list of features that a CSV file describes, and the reference to it.

    The file has a header with name, lower, upper and, if wanted, centre, scale, unit and description. An
    empty field is left out.

    Raises:
        InputError: `bad-features`, a column is missing or unknown, or a row is wrong; it names the line.
        LimitError: `too-large`, there are too many features, or the list is too large.
    """
    features: list[Feature] = []
    for line, row in _rows(path):
        if len(features) == MAX_LISTED_FEATURES:
            raise LimitError(
                "too-large", f"{path} has more than {MAX_LISTED_FEATURES} features", "leave some out"
            )
        try:
            features.append(_feature(row))
        except DpdpcaError as error:
            raise _bad(path, f"line {line}: {error.problem}") from error
    if not features:
        raise _bad(path, "there is no feature in it")
    content = encode_features(features)
    check_size(len(content))
    return read_feature_list(content)[0], content


@lru_cache(maxsize=1)
def load_list(path: Path) -> tuple[FeatureListRef, bytes]:
    """A list of features in a file, and the reference to it.

    Raises:
        InputError: `bad-features`, it is no such list.
        LimitError: `too-large`.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(LIST_LIMIT_BYTES + 1)
    check_size(len(content))
    try:
        return read_feature_list(content)[0], content
    except DpdpcaError as error:
        raise _bad(path, error.problem) from error


def list_file_of(path: Path) -> Path | None:
    """The file of features that the draft in `path` names; None if it names none."""
    named = parse_draft(load_text(path).encode(), media_type_of(path)).get("feature_list")
    return path.parent / named if isinstance(named, str) else None


def with_named_list(draft: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], bytes | None]:
    """The draft with the reference to the list whose file it names, and the list.

    Args:
        draft: as a person wrote it. Its `feature_list` may be the path of a file, relative to `folder`.
        folder: that of the draft.

    Raises like `load_list`.
    """
    named = draft.get("feature_list")
    if not isinstance(named, str):
        return dict(draft), None
    reference, content = load_list(folder / named)
    return {**draft, "feature_list": reference.to_body()}, content


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table with their lines, each a field or nothing for every column."""
    reader = csv.reader(StringIO(load_text(path, LIST_LIMIT_BYTES), newline=""), strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        if unknown := sorted(set(header) - _COLUMNS):
            raise _bad(path, f"the header has {len(unknown)} unknown columns")
        if missing := [name for name in _NEEDED if name not in header]:
            raise _bad(path, f"the header lacks {', '.join(missing)}")
        for fields in reader:
            if not any(fields):
                continue
            if len(fields) != len(header):
                raise _bad(path, f"line {reader.line_num} has {len(fields)} fields instead of {len(header)}")
            yield (
                reader.line_num,
                {name: field for name, field in zip(header, fields, strict=True) if field.strip()},
            )
    except csv.Error as error:
        raise _bad(path, f"line {reader.line_num} is not CSV") from error


def _feature(row: Mapping[str, str]) -> Feature:
    body: dict[str, Any] = {"kind": "numeric"}
    for name, field in row.items():
        body[name] = decimal_text(real_of(field.strip(), name)) if name in _NUMBERS else one_line(field)
    return Feature.parse(body, "the feature")


def _bad(path: Path, problem: str) -> InputError:
    return InputError(
        "bad-features",
        f"{path}: {problem}",
        "a table of features has the columns name, lower and upper, and perhaps centre, scale, unit and"
        " description",
    )
