"""What lint and plan say about the draft of a chain for many features, and what they refuse."""

from datetime import UTC, datetime
from typing import Any

import pytest
from wide_rounds import terms

from dpdpca_protocol.errors import MessageError, PolicyError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.commands.parts import lint_draft
from dpdpca_user.planning.lint import lint_alone
from dpdpca_user.planning.preview import first_of_chain, forecast, lint_facts
from dpdpca_user.planning.rounds import begin_chain
from dpdpca_user.planning.wide_chain import is_wide_chain

D = 1200
BASE: dict[str, Any] = {
    name: value for name, value in terms(D, title="t", purpose="p").items() if name != "clip_norm"
} | {"epsilon": 3, "max_records": 50_000}


def complete(draft: Any) -> Manifest:
    return lint_alone(draft, datetime(2030, 1, 1, tzinfo=UTC))


def test_plan_says_what_a_chain_for_many_features_would_do() -> None:
    seen = forecast(BASE | {"lift": {"columns": 4}}, complete, 50_000, [0.2, 0.1, 0.05])
    assert any("for a sketch" in line for line in seen.advice)
    assert any("of the 4 components" in line for line in seen.advice)
    assert {each.release for each in seen.outlooks} <= {"masked", "joint", "pairs"}
    assert not any(each.is_chain for each in seen.outlooks)


def test_plan_refuses_a_chain_whose_sketch_shows_nothing() -> None:
    with pytest.raises(PolicyError) as refused:
        forecast(BASE, complete, 50)
    assert refused.value.slug == "too-few-records"
    assert forecast(BASE, complete, 50, anyway=True).advice


def test_such_a_chain_begins_with_norms_however_few_records_there_are() -> None:
    for records in (300, 50_000):
        first = first_of_chain(BASE, complete, records, False)
        assert first.chosen.release is ReleaseKind.PRE_STUDY
        assert set(first.chosen.blocks) == {"norms", "pair-norms"}


@pytest.mark.parametrize(
    "member",
    [
        {"lift": {"columns": 0}},
        {"lift": 3},
        {"lift": {"rows": 3}},
        {"sketch": {"rows": 8}},
        {"scores": "no"},
    ],
)
def test_wishes_of_another_form_are_refused(member: dict[str, Any]) -> None:
    with pytest.raises((MessageError, PolicyError)):
        lint_facts(BASE | member, complete, None)


def test_only_many_features_without_a_named_release_make_such_a_chain() -> None:
    assert is_wide_chain(BASE, 1001)
    assert not is_wide_chain(BASE, 1000)
    assert not is_wide_chain(BASE | {"release": "joint"}, 1001)


@pytest.mark.parametrize("d", [617, 784])
def test_tables_like_isolet_and_mnist_get_a_full_matrix(d: int) -> None:
    """Nothing changes up to 1,000 features: neither the first round nor the forecast knows of a sketch."""
    base = BASE | {"features": BASE["features"][:d]}
    assert not is_wide_chain(base, d)
    seen = forecast(base, complete, 50_000, [0.2, 0.1, 0.05])
    assert [each.is_chain for each in seen.outlooks].count(True) == 1
    assert not any("sketch" in line or "lift" in line for line in seen.advice)
    # With so few records, a chain for many features would still begin with norms.
    assert begin_chain(base, complete, 200, False).blocks == {BlockName.FAR_PAIRS: 1}
    assert not begin_chain(BASE, complete, 200, False).is_last


def test_more_features_than_a_matrix_may_have_are_for_a_chain_alone() -> None:
    """The most that a share of such a chain can have: 12,000 × 10 products with a lift, or 1,024 rows."""
    feature = {"lower": 0, "upper": 2}
    base = BASE | {"features": [feature | {"name": f"s{number}"} for number in range(12_000)]}
    seen = forecast(base, lint_draft, 50_000)
    assert not seen.outlooks
    assert sum("more than 10000 encoded features" in line for line in seen.advice) == 3
    assert any(line.endswith("asks for a lift") for line in seen.advice)

    facts = lint_facts(base, lint_draft, 50_000)
    assert (facts["release"], facts["encoded_features"]) == (None, 12_000)
    assert facts["share_bytes"] == 8 * (1 + 1024 + 1024 * 1025 // 2)
    few_rows = base | {"sketch": {"rows": 200}, "lift": {"columns": 4}}
    assert lint_facts(few_rows, lint_draft, None)["share_bytes"] == 8 * (1 + 4 * 12_000 + 10)

    with pytest.raises(PolicyError, match="more than 10000") as refused:
        lint_facts(base | {"release": "joint", "clip_norm": 50}, lint_draft, None)
    assert "a chain of a sketch and a lift" in refused.value.next_step
