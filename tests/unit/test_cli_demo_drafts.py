"""The demo's three drafts, and what its tables say of whom one must trust."""

import tomllib
from datetime import UTC, datetime
from typing import Any

import pytest

from dpdpca_cli.demo.drafts import Drafts, drafts_of
from dpdpca_cli.demo.records import bundled_draft
from dpdpca_cli.demo.results import trust
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.terms import NoiseBy, SuiteName
from dpdpca_user.planning.lint import lint_alone
from dpdpca_user.planning.rounds import begin_chain

SAID_BY_DEFAULT = ("blinding", "max_colluding")


def base(owners: int = 3, **changes: Any) -> dict[str, Any]:
    """A draft that is silent on how values are hidden, with members changed."""
    draft = {name: value for name, value in example().items() if name not in SAID_BY_DEFAULT}
    whole = {"min_owners": owners, "max_owners": owners, "closing": "when-complete"}
    return draft | whole | {"participants": [f"Owner {number}" for number in range(owners)]} | changes


def example() -> dict[str, Any]:
    return tomllib.loads(bundled_draft())


def manifest_of(draft: dict[str, Any]) -> Manifest:
    return lint_alone(draft, datetime(2026, 11, 29, tzinfo=UTC))


def rounds_of(drafts: Drafts) -> Manifest:
    """The manifest of the chain's first round."""
    found: list[Manifest] = []

    def complete(draft: Any) -> Manifest:
        found.append(manifest_of(draft))
        return found[-1]

    begin_chain(drafts.chain, complete, 20_000, scales=False)
    return found[-1]


@pytest.mark.parametrize("draft", [example(), base(), base(release="masked"), base(2), base(5)])
def test_joint_study_and_chain_are_blinded_and_the_masked_study_is_the_paper_s(draft: dict[str, Any]) -> None:
    drafts = drafts_of(draft, len(draft["participants"]))
    for manifest in (manifest_of(drafts.joint), rounds_of(drafts)):
        assert manifest.is_blinded
        assert (manifest.suite, manifest.noise_by) == (SuiteName.PADS, NoiseBy.OWNERS)
        assert manifest.max_colluding == 1
        assert manifest.min_owners == manifest.max_owners == len(draft["participants"])
    masked = manifest_of(drafts.masked)
    assert (masked.suite, masked.noise_by) == (SuiteName.PAILLIER, NoiseBy.PROXY)
    assert masked.min_owners == len(draft["participants"])
    assert masked.clip_norm == manifest_of(drafts.joint).clip_norm
    assert (masked.epsilon, masked.delta) == (manifest.epsilon, manifest.delta)


@pytest.mark.parametrize("draft", [base(1), base(1, blinding="pairwise", max_colluding=1)])
def test_a_single_owner_has_nobody_to_share_masks_with(draft: dict[str, Any]) -> None:
    drafts = drafts_of(draft, 1)
    for manifest in (manifest_of(drafts.masked), manifest_of(drafts.joint), rounds_of(drafts)):
        assert not manifest.is_blinded
        assert manifest.noise_by is NoiseBy.PROXY
    assert trust(manifest)["owners"] == "there is only one"


@pytest.mark.parametrize(
    ("said", "noise_by", "suite"),
    [
        ({"noise_by": "proxy"}, NoiseBy.PROXY, SuiteName.PADS),
        ({"noise_by": "owners", "max_colluding": 2}, NoiseBy.OWNERS, SuiteName.PADS),
        ({"suite": "paillier"}, NoiseBy.PROXY, SuiteName.PAILLIER),
        ({"blinding": "none"}, NoiseBy.PROXY, SuiteName.PADS),
    ],
)
def test_a_draft_keeps_what_it_names(said: dict[str, Any], noise_by: NoiseBy, suite: SuiteName) -> None:
    drafts = drafts_of(base(**said), 3)
    joint, first = manifest_of(drafts.joint), rounds_of(drafts)
    assert not joint.is_blinded
    assert not first.is_blinded
    assert joint.noise_by is first.noise_by is noise_by
    assert joint.max_colluding == said.get("max_colluding", 0)
    assert (joint.suite, first.suite) == (suite, SuiteName.PADS)
    assert manifest_of(drafts.masked).suite is SuiteName.PAILLIER


def test_whom_one_must_trust_is_told_of_each_kind_of_study() -> None:
    blinded = drafts_of(example(), 3)
    told = trust(manifest_of(blinded.joint))
    assert told["proxy and data user"] == "may work together"
    assert told["proxy"] == "draws no noise"
    assert told["owners"].startswith("2 of 3 must draw noise and keep it secret")
    plain = manifest_of(drafts_of(base(noise_by="proxy"), 3).joint)
    for manifest in (manifest_of(blinded.masked), plain):
        assert trust(manifest)["proxy and data user"] == "must not work together"
        assert trust(manifest)["proxy"] == "must draw the noise as stated"
    assert "all must be honest" in trust(manifest_of(blinded.masked))["owners"]
    assert trust(plain)["owners"] == "none may work with the proxy"
