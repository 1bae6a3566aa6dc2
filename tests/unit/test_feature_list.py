"""Lists of features that a manifest names by their digest: what is read, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import rfc8785
import wide_studies as wide
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from study_parties import MakeManifest

from dpdpca_protocol.errors import DpdpcaError, LimitError, MessageError, NotFoundError, PolicyError
from dpdpca_protocol.terms import feature_list as lists
from dpdpca_protocol.terms.feature_list import (
    FeatureListRef,
    encode_features,
    listed_features,
    lists_of,
    read_feature_list,
    reference_to,
)
from dpdpca_protocol.terms.features import Feature, longest_norm_squared
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.members import draft_schema, manifest_schema
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_protocol.wire.identifiers import Digest

NUMERIC = Feature("1:10583:A:G", "numeric", Fraction(0), Fraction(2), Fraction("0.31"))
CATEGORICAL = Feature('blood \U0001f9b4 "é"\\', "categorical", levels=("A", "B{"), unit="], [")
FEATURES = (NUMERIC, CATEGORICAL)
CONTENT = encode_features(FEATURES)
REFERENCE = reference_to(CONTENT, FEATURES)


def listed(manifest: Manifest) -> tuple[Manifest, bytes]:
    """The same terms with their features by reference, and the list."""
    content = encode_features(manifest.features)
    return replace(manifest, feature_list=reference_to(content, manifest.features)), content


def test_a_list_is_the_canonical_form_of_its_features() -> None:
    bodies = [feature.to_body() for feature in FEATURES]
    assert rfc8785.dumps(bodies) == CONTENT
    assert read_feature_list(CONTENT) == (REFERENCE, FEATURES)
    assert listed_features(REFERENCE, lists_of(CONTENT)) == FEATURES


_NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8)


@given(st.lists(_NAMES, min_size=1, max_size=5))
def test_what_is_read_is_canonical_whatever_the_texts_are(names: list[str]) -> None:
    try:
        features = [Feature.parse(replace(NUMERIC, name=name).to_body(), "a") for name in names]
    except PolicyError:
        return
    content = encode_features(features)
    assert rfc8785.dumps([feature.to_body() for feature in features]) == content
    assert read_feature_list(content)[1] == tuple(features)


def _changed(old: str, new: str) -> bytes:
    assert old in CONTENT.decode()
    return CONTENT.decode().replace(old, new).encode()


ALTERED: dict[str, bytes] = {
    "empty": b"",
    "no features": b"[]",
    "an object": b"{}",
    "open": CONTENT[:-1],
    "cut": CONTENT[: len(CONTENT) // 2],
    "something after": CONTENT + b" ",
    "a space": _changed('"kind":"numeric"', '"kind": "numeric"'),
    "a line": CONTENT.replace(b"},{", b"},\n{"),
    "a comma at the end": CONTENT[:-1] + b",]",
    "escaped": _changed("é", "\\u00e9"),
    "another order": _changed('"kind":"numeric","lower":"0"', '"lower":"0","kind":"numeric"'),
    "twice": _changed('"kind":"numeric"', '"kind":"numeric","kind":"numeric"'),
    "a number": _changed('"lower":"0"', '"lower":0'),
    "null": _changed('"lower":"0"', '"lower":null'),
    "a list of lists": _changed('["A","B{"]', '[["A"],"B{"]'),
    "an object inside": _changed('["A","B{"]', '{"a":"b"}'),
    "no levels": _changed('["A","B{"]', "[]"),
    "a list alone": b'["a"]',
    "control character": _changed("10583", "10\x0083"),
    "line break in a text": _changed("10583", "10\n83"),
    "bad UTF-8": CONTENT.replace(b"1:10583", b"1:\xff0583"),
    "lone surrogate": _changed("10583", "\\ud800"),
    "bad escape": _changed("10583", "\\q"),
    "byte-order mark": b"\xef\xbb\xbf" + CONTENT,
    "deep": b"[" * 100_000,
    "many objects": b"[" + b"{}," * 10_000 + b"{}]",
    "no end of a text": b'[{"' + b"a" * 100_000,
    "quotes": b'[{"' + b'\\"' * 50_000,
    "unknown member": _changed('"kind":"numeric"', '"kind":"numeric","known":"no"'),
}


@pytest.mark.parametrize("name", ALTERED)
def test_nothing_else_is_a_list(name: str) -> None:
    """Also if a manifest names exactly these bytes."""
    content = ALTERED[name]
    reference = FeatureListRef(Digest.of(content), len(content), 2)
    for read in (lambda: read_feature_list(content), lambda: listed_features(reference, lists_of(content))):
        with pytest.raises((MessageError, PolicyError)) as caught:
            read()
        slugs = ("malformed", "not-canonical", "feature-list-differs", "manifest-refused")
        assert caught.value.slug in slugs


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lower": "2"}, "not below"),
        ({"centre": "3"}, "outside its bounds"),
        ({"name": "a\u200b"}, "control, formatting"),
        ({"name": "a" * 201}, "longer than 200"),
    ],
)
def test_every_feature_keeps_the_rules(change: dict[str, str], reason: str) -> None:
    content = rfc8785.dumps([NUMERIC.to_body() | change])
    with pytest.raises(PolicyError, match=reason):
        read_feature_list(content)


@pytest.mark.parametrize(
    ("reference", "content", "reason"),
    [
        (REFERENCE, CONTENT.replace(b"0.31", b"0.32"), "SHA-256"),
        (REFERENCE, CONTENT + b"]", "bytes"),
        (replace(REFERENCE, bytes=REFERENCE.bytes - 1), CONTENT, "bytes"),
        (replace(REFERENCE, count=1), CONTENT, "more than 1 features"),
        (replace(REFERENCE, count=3), CONTENT, "2 features"),
        (REFERENCE, encode_features(FEATURES[::-1]), "SHA-256"),
    ],
)
def test_another_list_is_refused_before_it_is_parsed(
    reference: FeatureListRef, content: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "_parse", None)
    with pytest.raises(MessageError, match=reason) as caught:
        listed_features(reference, lambda _digest: content)
    assert caught.value.slug == "feature-list-differs"


def test_a_missing_list_is_missing_also_if_it_was_parsed_before() -> None:
    listed_features(REFERENCE, lists_of(CONTENT))
    with pytest.raises(NotFoundError) as caught:
        listed_features(REFERENCE, lists_of())
    assert caught.value.slug == "feature-list-missing"


def test_a_list_may_not_be_too_large() -> None:
    with pytest.raises(LimitError, match="64 MiB"):
        lists.check_size(lists.LIST_LIMIT_BYTES + 1)
    lists.check_size(lists.LIST_LIMIT_BYTES)
    for body in ({"bytes": lists.LIST_LIMIT_BYTES + 1}, {"count": 200_001}, {"count": 0}):
        with pytest.raises(PolicyError, match="is not between"):
            FeatureListRef.parse(REFERENCE.to_body() | body, "feature_list")


def test_a_long_list_is_read_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    features = tuple(replace(NUMERIC, name=f"site {i}") for i in range(10))
    content = encode_features(features)
    for count, size in ((3, 10**6), (1000, 150), (5, 10**6)):
        monkeypatch.setattr(lists, "_BATCH", count)
        monkeypatch.setattr(lists, "_BATCH_BYTES", size)
        assert read_feature_list(content)[1] == features
    with pytest.raises(MessageError, match="before feature 10"):
        read_feature_list(content.replace(b"site 9", b"\\u0073ite 9"))


# Manifests


def test_a_manifest_names_its_list(make_manifest: MakeManifest) -> None:
    inline = wide.sketch(make_manifest)
    manifest, content = listed(inline)
    body = manifest.to_body()
    assert "features" not in body
    assert parse_manifest(body, lists_of(content)) == manifest
    assert manifest.features == inline.features
    assert manifest.study_id != inline.study_id
    assert manifest.figures == inline.figures
    Draft202012Validator(manifest_schema()).validate(body)


def test_a_draft_names_its_list(make_manifest: MakeManifest) -> None:
    inline = wide.sketch(make_manifest)
    manifest, content = listed(inline)
    assert manifest.feature_list is not None
    draft: dict[str, Any] = {"features": None, "feature_list": manifest.feature_list.to_body()}
    assert wide.sketch(make_manifest, **draft, feature_lists=lists_of(content)) == manifest
    with pytest.raises(NotFoundError, match="is not here"):
        wide.sketch(make_manifest, **draft)


@pytest.mark.parametrize(
    "change",
    [
        lambda body, inline: body | {"features": inline["features"]},
        lambda body, inline: {name: value for name, value in body.items() if name != "feature_list"},
        lambda body, inline: body | {"feature_list": None},
        lambda body, inline: body | {"feature_list": body["feature_list"] | {"name": "a"}},
    ],
    ids=["both", "neither", "null", "more"],
)
def test_a_manifest_has_its_features_once(
    change: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]], make_manifest: MakeManifest
) -> None:
    inline = wide.sketch(make_manifest)
    manifest, content = listed(inline)
    body = change(manifest.to_body(), inline.to_body())
    with pytest.raises(MessageError):
        parse_manifest(body, lists_of(content))
    assert not Draft202012Validator(manifest_schema()).is_valid(body)


def test_the_draft_schema_takes_one_of_the_two() -> None:
    schema = Draft202012Validator(draft_schema())
    rest = {"title": "a", "purpose": "b", "release": "joint", "epsilon": 1, "clip_norm": 1, "max_records": 9}
    features = [{"name": "a", "lower": 0, "upper": 1}]
    assert schema.is_valid(rest | {"features": features})
    assert schema.is_valid(rest | {"feature_list": REFERENCE.to_body()})
    assert not schema.is_valid(rest)
    assert not schema.is_valid(rest | {"features": features, "feature_list": REFERENCE.to_body()})


def test_names_of_a_list_are_unique(make_manifest: MakeManifest) -> None:
    manifest = wide.sketch(make_manifest)
    twice = (*manifest.features[:-1], manifest.features[0])
    content = encode_features(twice)
    body = replace(manifest, features=twice, feature_list=reference_to(content, twice)).to_body()
    with pytest.raises(PolicyError, match="features contains an entry twice"):
        parse_manifest(body, lists_of(content))


@pytest.mark.parametrize(
    ("kind", "is_taken"),
    [("sketch", True), ("joint", False), ("pre-study of a chain", True), ("pre-study", False)],
)
def test_only_rounds_for_many_features_may_have_more_than_the_usual(
    kind: str, is_taken: bool, make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdpca_protocol.terms.rules.MAX_ENCODED_FEATURES", wide.D - 1)
    terms = wide.TERMS | {"max_records": 1000}
    drafts: dict[str, dict[str, Any]] = {
        "sketch": {"release": "sketch", "of": "records", "sketch": {"rows": wide.M, "seed": wide.SEED}},
        "joint": {"release": "joint"},
        "pre-study of a chain": {"release": "pre-study", "blocks": {"norms": 1}},
        "pre-study": {"release": "pre-study", "blocks": {"norms": 1}},
    }
    features = [Feature(f"x{i}", "numeric", Fraction(-1), Fraction(1)) for i in range(wide.D)]
    content = encode_features(features)
    draft = terms | drafts[kind] | ({} if kind in ("joint", "pre-study") else {"rho_share": "0.2"})
    with pytest.raises(PolicyError, match="more than 19 encoded features"):
        make_manifest(**draft)
    draft |= {"features": None, "feature_list": reference_to(content, features).to_body()}
    if is_taken:
        assert make_manifest(**draft, feature_lists=lists_of(content)).encoded_features == wide.D
        return
    with pytest.raises(PolicyError, match="more than 19 encoded features"):
        make_manifest(**draft, feature_lists=lists_of(content))


def test_sums_of_many_features_are_rounded_up_by_next_to_nothing() -> None:
    features = [
        Feature(f"x{i}", "numeric", Fraction(-i - 1), Fraction(i + 2, 3), Fraction(1, i + 7))
        for i in range(40)
    ]
    exact = Fraction(0)
    for feature in features:
        assert feature.lower is not None
        assert feature.upper is not None
        reach = max(feature.upper - feature.origin, feature.origin - feature.lower)
        exact += (reach / feature.half_range) ** 2
    found = longest_norm_squared(features, "range")
    assert exact <= found <= exact + Fraction(40, 2**128)
    assert found.denominator <= 2**128


@pytest.mark.parametrize("error", [b"[" + b'{"a":"b"},' * 5, json.dumps([{"name": "a"}]).encode()])
def test_errors_do_not_repeat_the_list(error: bytes) -> None:
    with pytest.raises(DpdpcaError) as caught:
        read_feature_list(error)
    assert '"b"' not in str(caught.value)
