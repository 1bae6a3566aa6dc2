"""The chain of a ledger: what it adds up to, and what may not stand in it."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from ledger_world import (
    BUDGET,
    KEY_CHECK,
    LATER,
    NOW,
    content,
    lines,
    new_ledger,
    pay,
    receipt,
    study,
    withdrawn,
)

from dpdpca_owner.accounts.bookkeeping import recover, refund, settle
from dpdpca_owner.accounts.budget import Budget
from dpdpca_owner.accounts.charge import SpendState
from dpdpca_owner.accounts.entries import FIRST, Batch, Entry
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_protocol.errors import ConflictError, DpdpcaError, MessageError, PolicyError, UsageError
from dpdpca_protocol.wire.identifiers import Digest

VECTORS = Path(__file__).resolve().parents[1] / "vectors"


def full_ledger() -> Ledger:
    """Two studies on one data set, one of them taken back; one on another."""
    ledger = new_ledger()
    pay(ledger, 1)
    pay(ledger, 2)
    pay(ledger, 3, records=1)
    for number in (1, 2):
        ledger.add_all(settle(ledger, receipt(number, 1), NOW))
    ledger.add_all(refund(ledger, withdrawn(2, 2), NOW))
    return ledger


def test_a_chain_reads_back_as_the_same_state() -> None:
    ledger = full_ledger()
    again = Ledger.parse(lines(ledger))
    assert again.entries == ledger.entries
    assert again.spends == ledger.spends
    assert again.contents == ledger.contents
    assert (again.id, again.key_check, again.budget) == (ledger.id, KEY_CHECK, BUDGET)
    assert again.live_rho == ledger.live_rho == Fraction(2, 10)
    states = [spend.state for spend in again.spends]
    assert states == [SpendState.COMMITTED, SpendState.WITHDRAWN, SpendState.RESERVED]


def test_data_sets_add_up_apart_from_each_other() -> None:
    ledger = full_ledger()
    first, second = ledger.data_sets
    assert ledger.spent(first).rho == ledger.spent(second).rho == Fraction(1, 10)
    assert ledger.spent(first, second).rho == Fraction(2, 10)
    assert ledger.spent("never heard of").rho == 0


def test_a_line_names_the_digest_of_the_line_before() -> None:
    ledger = full_ledger()
    assert ledger.entries[0].previous == FIRST
    assert all(
        after.previous == before.digest
        for before, after in zip(ledger.entries, ledger.entries[1:], strict=False)
    )


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_no_changed_byte_goes_unnoticed() -> None:
    """The last line alone has nobody after it: there it is the head that tells."""
    encoded = lines(full_ledger())
    last = encoded.rstrip(b"\n").rfind(b"\n") + 1
    for place in range(0, last, 7):
        with pytest.raises(MessageError) as refusal:
            Ledger.parse(flip(encoded, place))
        assert refusal.value.slug == "ledger-corrupt"


def test_lines_taken_out_doubled_or_exchanged_are_refused() -> None:
    whole = lines(full_ledger()).splitlines(keepends=True)
    for broken in (whole[1:], whole[:2] + whole[3:], whole[:3] + whole[2:], [whole[1], whole[0], *whole[2:]]):
        with pytest.raises(MessageError, match="line"):
            Ledger.parse(b"".join(broken))


def test_a_line_that_is_cut_off_is_refused() -> None:
    with pytest.raises(MessageError, match="not complete"):
        Ledger.parse(lines(full_ledger())[:-1])


def test_a_refused_line_moves_nothing_and_those_before_it_stay() -> None:
    whole = lines(full_ledger()).splitlines(keepends=True)
    ledger = Ledger()
    with pytest.raises(MessageError, match="line 4"):
        ledger.extend(b"".join([*whole[:3], whole[4]]))
    assert lines(ledger) == b"".join(whole[:3])


def changed(kind: str, **members: object) -> Callable[[Ledger], Entry]:
    """An entry like the last one of `kind`, put at the end of the chain, with other members."""

    def make(ledger: Ledger) -> Entry:
        pattern = next(entry for entry in reversed(ledger.entries) if entry.kind == kind)
        batch = Batch(len(ledger.entries), ledger.last, NOW)
        batch.add(kind, {**pattern.detail, **members})
        return batch.entries[0]

    return make


@pytest.mark.parametrize(
    "make",
    [
        changed("ledger"),
        changed("reserve"),
        changed("reserve", study=study(9).hex(), rho="10/1"),
        changed("reserve", study=study(9).hex(), rho="-1/1"),
        changed("reserve", study=study(9).hex(), data_set=None),
        changed("reserve", study=study(9).hex(), epsilon="1.0"),
        changed("reserve", study=study(9).hex(), title="a\x1b[2J"),
        changed("content"),
        changed("commit", study=study(9).hex()),
        changed("commit", study=study(2).hex(), version=3),
        changed("commit", version=1),
        changed("commit", version=True),
        changed("refund"),
        changed("refund", study=study(1).hex(), version=1),
        changed("refund", study=study(3).hex(), version=3, why="failed"),
        changed("refund", study=study(3).hex(), version=3, evidence="none"),
        changed("budget", rho="0.5"),
    ],
)
def test_what_may_not_come_next_is_refused_and_nothing_moves(make: Callable[[Ledger], Entry]) -> None:
    ledger = full_ledger()
    before = lines(ledger), list(ledger.spends), ledger.live_rho, dict(ledger.contents), ledger.budget
    with pytest.raises(DpdpcaError):
        ledger.add(make(ledger))
    assert (lines(ledger), ledger.spends, ledger.live_rho, ledger.contents, ledger.budget) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.replace(b'"format":1', b'"format":2'),
        lambda body: body.replace(b'"kind":"commit"', b'"kind":"grant"'),
        lambda body: body.replace(b'"version":1', b'"extra":0,"version":1'),
        lambda body: body.replace(b"00:00:00Z", b"00:00:00+"),
        lambda body: body.replace(b'"index":', b'"index":-'),
        lambda body: body.replace(b'"random":"', b'"random":"00'),
        lambda body: body.replace(b'"random":"', b'"random":null,"x":"'),
        lambda body: b" " + body,
        lambda body: body[:-1],
    ],
)
def test_a_line_that_this_version_would_not_write_is_refused(change: Callable[[bytes], bytes]) -> None:
    ledger = full_ledger()
    line = next(entry for entry in ledger.entries if entry.kind == "commit").line[:-1]
    other = change(line)
    assert other != line
    with pytest.raises(DpdpcaError):
        ledger.add(Entry.parse(other))


def test_time_does_not_run_backwards() -> None:
    ledger = new_ledger()
    late = Batch(1, ledger.last, LATER)
    late.add("budget", {"delta": "0.000001", "epsilon": None, "rho": "1/1"})
    ledger.add_all(late.entries)
    early = Batch(2, ledger.last, NOW)
    early.add("budget", {"delta": "0.000001", "epsilon": None, "rho": "1/1"})
    with pytest.raises(MessageError, match="older"):
        ledger.add_all(early.entries)
    pay(ledger, 1)  # a clock that was set back stops nobody
    assert ledger.entries[-1].time == LATER


def test_a_reservation_beyond_the_budget_in_force_is_corrupt() -> None:
    ledger = new_ledger()
    pay(ledger, 1, Fraction(9, 10))
    entries = [*pay(Ledger.parse(lines(ledger)), 2, Fraction(1, 10))]
    detail = {**entries[-1].detail, "rho": "2/10"}
    batch = Batch(len(ledger.entries), ledger.last, NOW)
    batch.add("reserve", {**detail, "rho": "1/5"})
    with pytest.raises(PolicyError):
        ledger.add(batch.entries[0])


def test_merged_data_sets_add_up_and_keep_their_names() -> None:
    ledger = new_ledger()
    pay(ledger, 1, records=1)
    pay(ledger, 2, records=2)
    first, second = ledger.data_sets
    pay(ledger, 3, records=1, named="patients")
    pay(ledger, 4, records=2, named="patients")
    assert ledger.data_sets == ("patients",)
    assert ledger.root(first) == ledger.root(second) == "patients"
    assert set(ledger.merged_into("patients")) == {first, second}
    assert ledger.spent(first).rho == ledger.spent("patients").rho == Fraction(4, 10)


def test_a_study_on_a_merged_data_set_is_refunded_from_the_whole() -> None:
    ledger = new_ledger()
    pay(ledger, 1, records=1)
    pay(ledger, 2, records=1, named="patients")
    ledger.add_all(refund(ledger, withdrawn(1, 1), NOW))
    assert ledger.spent("patients").rho == ledger.live_rho == Fraction(1, 10)


def test_after_a_recovery_what_is_lost_counts_everywhere() -> None:
    ledger = full_ledger()
    ledger.add_all(recover(ledger, "cut short", 2, Fraction(3, 10), KEY_CHECK, NOW))
    first, second = ledger.data_sets
    assert ledger.spent(first).rho == ledger.spent(second).rho == Fraction(4, 10)
    assert ledger.spent("new").rho == Fraction(3, 10)
    assert ledger.live_rho == Fraction(5, 10)
    assert content(0).fingerprint in ledger.contents


def test_without_the_old_key_every_spend_counts_everywhere() -> None:
    ledger = full_ledger()
    ledger.add_all(recover(ledger, "the key is gone", 0, Fraction(0), Digest.of(b"other"), NOW))
    assert (ledger.data_sets, ledger.contents) == ((), {})
    assert ledger.spent("new").rho == Fraction(2, 10)
    pay(ledger, 4, records=5)
    assert ledger.spent(*ledger.data_sets).rho == Fraction(3, 10)
    assert Ledger.parse(lines(ledger)).spends == ledger.spends


def test_a_lowered_budget_stops_what_comes_next_and_not_what_was() -> None:
    ledger = new_ledger()
    pay(ledger, 1, Fraction(9, 10))
    with pytest.raises(PolicyError) as refusal:
        pay(ledger, 2, budget=Budget.of_rho(Fraction(1, 2), BUDGET.delta))
    assert refusal.value.slug == "budget-exceeded"
    assert Ledger.parse(lines(ledger)).live_rho == Fraction(9, 10)


def test_a_ledger_without_a_first_line_has_no_id() -> None:
    with pytest.raises(UsageError):
        Ledger().id  # noqa: B018 - the property refuses


@pytest.mark.parametrize(
    ("into", "merged"), [("a", "b"), ("FIRST", "FIRST"), ("a", "MERGED"), ("MERGED", "FIRST")]
)
def test_what_cannot_be_merged_is_refused(into: str, merged: str) -> None:
    ledger = new_ledger()
    pay(ledger, 1, records=1)
    pay(ledger, 2, records=2, named="patients")
    ledger.add_all([_merge(ledger, "patients", ledger.data_sets[0])])
    names = {"FIRST": "patients", "MERGED": ledger.merged_into("patients")[0]}
    with pytest.raises(ConflictError):
        ledger.add(_merge(ledger, names.get(into, into), names.get(merged, merged)))


def _merge(ledger: Ledger, into: str, merged: str) -> Entry:
    batch = Batch(len(ledger.entries), ledger.last, NOW)
    batch.add("merge", {"data_set": into, "merged": merged})
    return batch.entries[0]


# What others learn from a head


def test_a_head_tells_nobody_what_was_booked_since_an_earlier_head() -> None:
    """Whoever knows a head, the time and every member of what may follow computes the next head, or not."""
    ledger = new_ledger()
    guess = Ledger.parse(lines(ledger))
    booked, guessed = pay(ledger, 1), pay(guess, 1)
    assert [entry.detail for entry in booked] == [entry.detail for entry in guessed]
    assert ledger.last != guess.last
    assert head_without_random(booked) == head_without_random(guessed)  # it did confirm the guess
    randoms = [entry.random for entry in full_ledger().entries]
    assert None not in randoms
    assert len(set(randoms)) == len(randoms)


def head_without_random(entries: list[Entry]) -> Digest:
    """What the head would be if the entries were those of the first version."""
    head = entries[0].previous
    for entry in entries:
        head = replace(entry, previous=head, random=None).digest
    return head


def test_a_ledger_that_the_first_version_wrote_is_read_on() -> None:
    written = (VECTORS / "ledger_0001.jsonl").read_bytes()
    ledger = Ledger.parse(written)
    assert lines(ledger) == written
    assert {entry.random for entry in ledger.entries} == {None}
    tenth = Fraction(1, 10)
    assert [(spend.state, spend.charge.cost.rho, spend.data_set) for spend in ledger.spends] == [
        (SpendState.COMMITTED, tenth, "data-41f5f9de"),
        (SpendState.WITHDRAWN, tenth, "data-41f5f9de"),
        (SpendState.RESERVED, tenth, "data-ac22711b"),
        (SpendState.RESERVED, tenth, "patients"),
    ]
    assert ledger.data_sets == ("data-41f5f9de", "patients")
    assert ledger.live_rho == Fraction(7, 20)
    pay(ledger, 5)
    again = Ledger.parse(lines(ledger))
    assert again.live_rho == Fraction(7, 20) + tenth
    assert lines(again).startswith(written)
    assert again.entries[-1].random is not None
