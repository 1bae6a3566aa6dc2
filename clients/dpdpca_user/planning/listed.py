"""Drafts that name a list of features. Planning reads features one by one; a study names the list."""

from collections.abc import Callable, Mapping
from typing import Any

from dpdpca_protocol.terms.feature_list import (
    FeatureLists,
    check_size,
    encode_features,
    listed_features,
    no_lists,
    reference_to,
)
from dpdpca_protocol.terms.features import MAX_ENCODED_FEATURES, Feature
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import named_list
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_user.planning.draft import tidied_features


def with_features(draft: Mapping[str, Any], feature_lists: FeatureLists) -> dict[str, Any]:
    """The draft with the features of the list that it names in place of the reference.

    Raises:
        NotFoundError, MessageError, PolicyError: as `listed_features`.
    """
    if (reference := named_list(draft)) is None:
        return dict(draft)
    features = [feature.to_body() for feature in listed_features(reference, feature_lists)]
    return {name: value for name, value in draft.items() if name != "feature_list"} | {"features": features}


def with_list(draft: Mapping[str, Any], keep: Callable[[bytes], object]) -> dict[str, Any]:
    """The draft with a reference to a list in place of its features.

    Args:
        draft: with features.
        keep: stores the list.

    Raises:
        MessageError, PolicyError: a feature is malformed or breaks a rule.
        LimitError: `too-large`.
    """
    bodies = tidied_features(draft["features"], draft.get("nonnegative") is True)
    features = [Feature.parse(body, f"features[{index}]") for index, body in enumerate(bodies)]
    content = encode_features(features)
    check_size(len(content))
    keep(content)
    rest = {name: value for name, value in draft.items() if name != "features"}
    return rest | {"feature_list": reference_to(content, features).to_body()}


def with_list_if_needed(
    draft: Mapping[str, Any], complete: Callable[[Mapping[str, Any], FeatureLists], Manifest]
) -> Manifest:
    """The manifest of a draft with features, which are too many to stand in it if they need a list.

    Args:
        draft: with features, also if they are too many for a manifest.
        complete: makes the manifest of a draft, with the list that the draft may name.

    Raises:
        DpdpcaError: the errors of `with_list` and of `complete`.
    """
    listed, made = draft.get("features"), dict[Digest, bytes]()
    if not isinstance(listed, list) or len(listed) <= MAX_ENCODED_FEATURES:
        return complete(draft, no_lists)

    def keep(content: bytes) -> None:
        made[Digest.of(content)] = content

    return complete(with_list(draft, keep), made.get)
