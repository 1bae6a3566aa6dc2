"""Lists of features that a manifest names by their digest, because they are too long to stand in it.

A list is a file: a canonical JSON array of feature objects, as in the member `features`. It is as public as
the manifest, which names its digest, size and count. So the study's id covers the list too.
"""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Never, Self

from dpdpca_protocol.errors import LimitError, MessageError, NotFoundError
from dpdpca_protocol.terms.features import MAX_LISTED_FEATURES, Feature
from dpdpca_protocol.wire.canonical import canonical_texts
from dpdpca_protocol.wire.fields import check_members, read_integer
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.schemas import hex_schema, object_schema

LIST_LIMIT_BYTES = 64 * 1024 * 1024
LEAST_LIST_BYTES = 2
FEATURE_LIST_SCHEMA = object_schema(
    {
        "sha256": hex_schema(32),
        "bytes": {"type": "integer", "minimum": LEAST_LIST_BYTES, "maximum": LIST_LIMIT_BYTES},
        "count": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED_FEATURES},
    }
)

_MOST_FEATURE_BYTES = 2 * 1024 * 1024
"""More than the longest feature: a thousand levels of 200 characters, each with a centre."""
_BATCH, _BATCH_BYTES = 1000, 1024 * 1024
"""So much is parsed at a time: as objects of Python, texts take many times their size."""
_STRING = rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
_FEATURE = re.compile(
    rb"\{%(s)s:%(v)s(?:,%(s)s:%(v)s)*+\}"
    % {b"s": _STRING, b"v": rb"(?:%(s)s|\[%(s)s(?:,%(s)s)*+\])" % {b"s": _STRING}}
)
"""An object of texts and lists of texts, which is all that a feature is made of. Nothing in it is nested
deeper, so that parsing it takes little more memory than its text."""
_KEPT = 4


@dataclass(frozen=True, slots=True)
class FeatureListRef:
    """The name of a list of features in a manifest.

    Attributes:
        sha256: digest of the list's bytes.
        bytes: how many there are.
        count: how many features they describe.
    """

    sha256: Digest
    bytes: int
    count: int

    @classmethod
    def parse(cls, untrusted: Any, where: str) -> Self:
        check_members(untrusted, where, ("sha256", "bytes", "count"))
        return cls(
            Digest.parse(untrusted["sha256"]),
            read_integer(untrusted["bytes"], f"{where}.bytes", LEAST_LIST_BYTES, LIST_LIMIT_BYTES),
            read_integer(untrusted["count"], f"{where}.count", 1, MAX_LISTED_FEATURES),
        )

    def to_body(self) -> dict[str, Any]:
        return {"sha256": self.sha256.hex(), "bytes": self.bytes, "count": self.count}


FeatureLists = Callable[[Digest], bytes | None]
"""Gives the bytes of the list with a digest, or None if this party has no such list."""


def no_lists(_digest: Digest) -> None:
    """The lists of a party that has none."""


def lists_of(*contents: bytes) -> FeatureLists:
    """The given lists, each found under its digest."""
    return {Digest.of(content): content for content in contents}.get


def encode_features(features: Sequence[Feature]) -> bytes:
    """The list of these features, as a file has it."""
    return canonical_texts([feature.to_body() for feature in features]).encode()


def reference_to(content: bytes, features: Sequence[Feature]) -> FeatureListRef:
    """The reference to a list that was made of these features."""
    return FeatureListRef(Digest.of(content), len(content), len(features))


def read_feature_list(untrusted: bytes) -> tuple[FeatureListRef, tuple[Feature, ...]]:
    """A list that nothing names yet, and the reference to it.

    Raises:
        MessageError, PolicyError, LimitError: as for `listed_features`.
    """
    check_size(len(untrusted))
    features = tuple(_parse(untrusted, _batches(untrusted, MAX_LISTED_FEATURES)))
    return reference_to(untrusted, features), features


def listed_features(reference: FeatureListRef, lists: FeatureLists) -> tuple[Feature, ...]:
    """The features that a manifest names by reference.

    Digest, size and count are compared before anything is parsed. A list that was parsed is kept for a
    while, because each role reads a manifest several times.

    Args:
        reference: of a manifest.
        lists: gives the bytes of a list.

    Raises:
        NotFoundError: `feature-list-missing`.
        MessageError: `feature-list-differs`, the bytes are another list; or they are no canonical list.
        PolicyError: a feature breaks a rule.
    """
    untrusted = lists(reference.sha256)
    if untrusted is None:
        raise NotFoundError(
            "feature-list-missing",
            f"the list of features {reference.sha256.hex()} is not here",
            "get the list first, then repeat this",
        )
    check_content(reference, untrusted)
    with _PARSED_LOCK:
        if (known := _PARSED.get(reference)) is not None:
            _PARSED.move_to_end(reference)
            return known
    batches = _batches(untrusted, reference.count)
    if (count := sum(batch.count for batch in batches)) != reference.count:
        _differs(f"it has {count} features, but the manifest says {reference.count}")
    features = tuple(_parse(untrusted, batches))
    with _PARSED_LOCK:
        _PARSED[reference] = features
        while len(_PARSED) > _KEPT:
            _PARSED.popitem(last=False)
    return features


def check_content(reference: FeatureListRef, untrusted: bytes) -> None:
    """Checks that these bytes are the list that `reference` names.

    Raises:
        MessageError: `feature-list-differs`.
    """
    if len(untrusted) != reference.bytes:
        _differs(f"it has {len(untrusted)} bytes, but the manifest says {reference.bytes}")
    if Digest(hashlib.sha256(untrusted).digest()) != reference.sha256:
        _differs("its SHA-256 is another one")


def check_size(size: int) -> None:
    """Checks the size of a list. Raises LimitError `too-large`."""
    if size > LIST_LIMIT_BYTES:
        raise LimitError(
            "too-large",
            f"a list of features has at most {LIST_LIMIT_BYTES >> 20} MiB, and this one has {size} bytes",
            "shorten names and descriptions, or leave descriptions out",
        )


_PARSED: OrderedDict[FeatureListRef, tuple[Feature, ...]] = OrderedDict()
_PARSED_LOCK = Lock()


@dataclass(frozen=True, slots=True)
class _Batch:
    """The place of some features in the bytes of a list."""

    start: int
    end: int
    count: int


def _batches(untrusted: bytes, most: int) -> list[_Batch]:
    """The places of all features, without parsing them. Raises MessageError at anything else, and if there
    are more than `most`."""
    if untrusted[:1] != b"[":
        _not_canonical("the list of features is not a JSON array")
    batches, at, count = list[_Batch](), 1, 0
    start, before = at, count
    while untrusted[at - 1 : at] != b"]" or not count:
        if count == most:
            _differs(f"it has more than {most} features")
        found = _FEATURE.match(untrusted, at, at + _MOST_FEATURE_BYTES)
        if found is None or (after := untrusted[found.end() : found.end() + 1]) not in (b",", b"]"):
            _not_canonical(f"feature {count} of the list is not the object of a feature")
        count, at = count + 1, found.end() + 1
        if count - before == _BATCH or at - start > _BATCH_BYTES or after == b"]":
            batches.append(_Batch(start, at - 1, count - before))
            start, before = at, count
    if at != len(untrusted):
        _not_canonical("something follows the list of features")
    return batches


def _parse(untrusted: bytes, batches: Sequence[_Batch]) -> Iterator[Feature]:
    index = 0
    for batch in batches:
        try:
            text = f"[{untrusted[batch.start : batch.end].decode()}]"
            entries = json.loads(text)
        except ValueError as error:
            raise MessageError("malformed", "the list of features is not UTF-8 JSON") from error
        for entry in entries:
            yield Feature.parse(entry, f"features[{index}]")
            index += 1
        # Only now are the member names known.
        if canonical_texts(entries) != text:
            _not_canonical(f"the list of features is not in its canonical form before feature {index}")


def _differs(problem: str) -> Never:
    raise MessageError(
        "feature-list-differs",
        f"the list of features is not the one that the manifest names: {problem}",
        "get the list again; if it still differs, ask the data user",
    )


def _not_canonical(problem: str) -> Never:
    raise MessageError("not-canonical", problem, "write the list with: dpdpca user study features")
