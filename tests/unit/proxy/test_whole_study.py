"""Whole studies through the routes; noise is left out by replacing the mechanism's draw: sums are exact."""

import json
from typing import Any

import pytest
from proxy_world import OpenStudy, ProxyWorld, Values, values_of, wait_for

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.layout.packing import symmetric_rows
from dpdpca_protocol.messages.study_messages import SealedComponents


def expected(d: int, shares: list[Values]) -> list[list[int]]:
    count = sum(share.count for share in shares)
    sums = [sum(column) for column in zip(*(share.sums for share in shares), strict=True)]
    upper = [sum(column) for column in zip(*(share.upper for share in shares), strict=True)]
    rows = symmetric_rows(d, upper)
    return [[count * rows[i][j] - sums[i] * sums[j] for j in range(d)] for i in range(d)]


@pytest.mark.parametrize("d", [1, 3, 90])
@pytest.mark.parametrize("release", ["joint", "masked"])
def test_the_release_is_the_exact_sum_of_the_cohort(
    world: ProxyWorld, noiseless: None, release: str, d: int
) -> None:
    study = world.open_study(d, release=release)
    shares = [values_of(d, seed) for seed in range(3)]
    receipts = [study.deliver(owner, share) for owner, share in zip(world.owners, shares, strict=True)]
    study.close()
    if release == "masked":
        challenge = study.challenge()
        assert study.challenge().encoded == challenge.encoded
        client = world.client(world.user)
        client.answer_count(study.study, study.count_answer(challenge))
        client.answer_count(study.study, study.count_answer(challenge))
    assert study.wait_state("released") == "released"
    scatter, said = study.open_release()
    assert scatter.count == sum(share.count for share in shares)
    assert [list(row) for row in scatter.scaled_scatter] == expected(d, shares)
    assert {str(member.statement) for member in said.cohort} == {
        receipt.body["statement"] for receipt in receipts
    }
    assert said.records == (15 if release == "masked" else None)
    wait_for(study.is_swept)
    publish_and_read(study)


def publish_and_read(study: OpenStudy) -> None:
    world = study.world
    before = world.client(world.user).release(study.study)
    copies = {owner.public.party_id: b"sealed for " + owner.public.party_id[:4] for owner in world.owners}
    statement = SealedComponents(study.study, copies).sign(world.user)
    with pytest.raises(ConflictError) as refusal:
        world.client(world.user).publish_components(study.study, statement)
    assert refusal.value.slug == "not-ready"
    study.state_opened()
    study.state_opened()
    world.client(world.user).publish_components(study.study, statement)
    world.client(world.user).publish_components(study.study, statement)
    assert study.state() == "published"
    for owner in world.owners:
        assert world.client(owner).components(study.study) == statement.encoded
    assert world.client(world.user).release(study.study) == before


def test_an_owner_may_replace_and_withdraw_until_closing(world: ProxyWorld, noiseless: None) -> None:
    study = world.open_study(3)
    first, second, third = world.owners
    study.deliver(first, values_of(3, 0))
    study.deliver(second, values_of(3, 1))
    study.deliver(second, values_of(3, 5), version=2)
    study.deliver(third, values_of(3, 2))
    study.withdraw(third, 2)
    study.close()
    study.wait_state("released")
    scatter, said = study.open_release()
    assert [list(row) for row in scatter.scaled_scatter] == expected(3, [values_of(3, 0), values_of(3, 5)])
    assert {member.owner: member.version for member in said.cohort} == {
        first.public.party_id: 1,
        second.public.party_id: 2,
    }
    kinds = [json.loads(event)["body"]["kind"] for event in world.client(first).transcript(study.study)]
    assert kinds == ["manifest", *["receipt"] * 4, "withdrawal", "closed", "release"]


def test_all_named_owners_in_closes_the_study(world: ProxyWorld) -> None:
    study = world.open_study(3, closing="when-complete")
    for seed, owner in enumerate(world.owners):
        assert study.state() == "open"
        study.deliver(owner, values_of(3, seed))
    assert study.wait_state("released") == "released"


def test_noise_is_drawn_and_is_there(world: ProxyWorld) -> None:
    study = world.open_study(3, closing="when-complete")
    shares = [values_of(3, seed) for seed in range(3)]
    for owner, share in zip(world.owners, shares, strict=True):
        study.deliver(owner, share)
    study.wait_state("released")
    scatter, _ = study.open_release()
    assert scatter.count == 15
    assert [list(row) for row in scatter.scaled_scatter] != expected(3, shares)


def facts(study: OpenStudy) -> dict[str, Any]:
    response = study.world.request(study.world.user, "GET", study.path)
    answer = response.json()
    assert isinstance(answer, dict)
    return answer


def test_the_detail_of_a_study_tells_who_is_in(world: ProxyWorld) -> None:
    study = world.open_study(3)
    study.deliver(world.owners[0], values_of(3, 0))
    known = facts(study)
    assert known["state"] == "open"
    assert known["owners_complete"] == 1
    assert {owner["name"]: owner["state"] for owner in known["owners"]} == {
        "Hospital A": "complete",
        "Hospital B": "absent",
        "Hospital C": "absent",
    }
    assert (known["epsilon"], known["delta"]) == ("1", "0.00000004")
    assert known["cohort"] is None


def test_the_stream_tells_every_state(world: ProxyWorld, noiseless: None) -> None:
    study = world.open_study(3, closing="when-complete")
    updates = world.client(world.owners[0]).events(study.study)
    first = next(updates)
    assert (first.kind, first.detail["state"]) == ("state", "open")
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    seen: list[str] = []
    for update in updates:
        if update.kind == "state":
            seen.append(str(update.detail["state"]))
        if seen and seen[-1] == "released":
            break
    assert seen[-1] == "released"
