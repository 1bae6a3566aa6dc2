"""What a ledger books next: paid once, refunded on the signatures of proxy and data user, data sets known
again."""

from dataclasses import replace
from fractions import Fraction

import pytest
from ledger_world import (
    BUDGET,
    LATER,
    NOW,
    OTHER,
    OWNER,
    PROXY,
    cancel,
    cancelled,
    charge,
    content,
    lines,
    new_ledger,
    opened,
    pay,
    receipt,
    study,
    transcript,
    withdrawn,
)
from study_parties import MakeManifest

from dpdpca_owner.accounts.bookkeeping import charge_again, find, place, refund, reserve, settle
from dpdpca_owner.accounts.budget import NO_COST, Budget, Cost
from dpdpca_owner.accounts.charge import Charge, SpendState
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    DpdpcaError,
    MessageError,
    PolicyError,
    UsageError,
)
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.signing import IdentityKey, sign_statement


def kinds(ledger: Ledger) -> list[str]:
    return [entry.kind for entry in ledger.entries]


def state(ledger: Ledger, number: int) -> SpendState:
    spend = ledger.spend(study(number))
    assert spend is not None
    return spend.state


def test_a_charge_is_the_manifest_s_own(make_manifest: MakeManifest) -> None:
    manifest: Manifest = make_manifest(release="masked")
    owner = PartyId.of(b"x")
    asked = Charge.of(manifest, owner)
    figures = manifest.figures
    outside = figures.delta_mask + figures.event.extra_delta
    assert 0 <= asked.cost.rho - figures.event.rho < Fraction(1, 2**160)
    assert 0 <= asked.cost.outside_delta - outside < Fraction(1, 2**160)
    assert (asked.cost.releases, asked.cost.unproved) == (1, 0)
    assert (asked.epsilon, asked.delta) == (manifest.epsilon, manifest.delta)
    assert (asked.study, asked.proxy) == (manifest.study_id, manifest.proxy.ed25519)


def test_sums_of_many_studies_stay_short(make_manifest: MakeManifest) -> None:
    costs = [Cost.of(make_manifest(epsilon=f"0.{number}1").figures) for number in range(1, 8)]
    total = sum(costs, NO_COST)
    assert total.rho.denominator <= 2**160
    assert total.outside_delta.denominator <= 2**160


def test_a_study_without_a_proved_privacy_is_counted_apart(make_manifest: MakeManifest) -> None:
    """An earlier version let such studies in, and its ledgers are read."""
    proved = Charge.of(make_manifest(release="masked"), OWNER)
    asked = replace(proved, epsilon=None, delta=None, cost=Cost(Fraction(0), Fraction(0), 1, 1))
    ledger = new_ledger()
    pay(ledger, 1)
    ledger.add_all(reserve(ledger, asked, content(0), None, BUDGET, NOW))
    again = Ledger.parse(lines(ledger))
    assert again.spends == ledger.spends
    spent = again.spent(*again.data_sets)
    assert (spent.rho, spent.unproved) == (Fraction(1, 10), 1)


def test_a_study_is_booked_once_however_often_it_is_reserved() -> None:
    ledger = new_ledger()
    assert [entry.kind for entry in pay(ledger, 1)] == ["budget", "content", "reserve"]
    assert pay(ledger, 1) == []
    assert [entry.kind for entry in pay(ledger, 2)] == ["reserve"]
    assert ledger.live_rho == Fraction(2, 10)


def test_ten_tenths_of_a_budget_in_epsilon_fit_and_the_eleventh_does_not() -> None:
    budget = Budget.of_epsilon(Fraction(1), Fraction(1, 10**6))
    ledger = new_ledger()
    for number in range(10):
        pay(ledger, number, budget.rho / 10, budget=budget)
    for rho in (budget.rho / 10, Fraction(1, 10**50)):
        with pytest.raises(PolicyError) as refusal:
            reserve(ledger, charge(11, rho), content(0), None, budget, NOW)
        assert refusal.value.slug == "budget-exceeded"
    assert ledger.live_rho == budget.rho
    assert Ledger.parse(lines(ledger)).live_rho == budget.rho
    pay(ledger, 12, budget.rho, records=7, budget=budget)


def test_a_replaced_share_costs_nothing_more_and_its_records_stay_in_the_data_set() -> None:
    ledger = new_ledger()
    pay(ledger, 1, records=1)
    ledger.add_all(settle(ledger, receipt(1, 1), NOW))
    assert [entry.kind for entry in pay(ledger, 1, records=2)] == ["content"]
    ledger.add_all(settle(ledger, receipt(1, 2), NOW))
    assert ledger.live_rho == Fraction(1, 10)
    assert len(ledger.data_sets) == 1
    pay(ledger, 2, records=2)
    assert ledger.spent(*ledger.data_sets).rho == Fraction(2, 10)


def test_a_withdrawal_refunds_only_once_the_data_user_has_opened_a_cohort_without_the_owner() -> None:
    ledger = new_ledger()
    pay(ledger, 1)
    ledger.add_all(settle(ledger, receipt(1, 1), NOW))
    assert settle(ledger, receipt(1, 2, "withdrawal"), NOW) == []
    told = withdrawn(1, 2)
    assert refund(ledger, replace(told, opened=None), NOW) == []
    assert state(ledger, 1) is SpendState.COMMITTED
    ledger.add_all(refund(ledger, told, NOW))
    assert (state(ledger, 1), ledger.live_rho) == (SpendState.WITHDRAWN, Fraction(0))
    assert refund(ledger, told, NOW) == settle(ledger, receipt(1, 1), NOW) == []


def test_a_share_that_is_sent_again_after_a_withdrawal_costs_nothing_more_and_is_not_refunded() -> None:
    ledger = new_ledger()
    pay(ledger, 1)
    ledger.add_all(settle(ledger, receipt(1, 1), NOW))
    assert pay(ledger, 1) == []
    ledger.add_all(settle(ledger, receipt(1, 3), NOW))
    # An old receipt of a withdrawal is worth nothing against the new share.
    assert refund(ledger, withdrawn(1, 2), NOW) == []
    assert (state(ledger, 1), ledger.live_rho) == (SpendState.COMMITTED, Fraction(1, 10))


def test_a_withdrawal_refunds_a_share_whose_receipt_was_never_booked() -> None:
    ledger = new_ledger()
    pay(ledger, 1)
    ledger.add_all(refund(ledger, withdrawn(1, 2), NOW))
    assert ledger.live_rho == 0


def test_an_opened_cohort_with_the_owner_in_it_refunds_nothing_whatever_the_receipt_says() -> None:
    """The proxy signs a withdrawal for the owner, and releases the share."""
    ledger = new_ledger()
    pay(ledger, 1)
    told, with_it = withdrawn(1, 2), (OTHER, replace(OTHER, owner=OWNER))
    shown = replace(told, opened=opened(1, with_it), cohort=with_it)
    assert refund(ledger, shown, NOW) == []
    hidden = replace(shown, cohort=told.cohort)  # as a proxy shows it to the owner
    foreign = replace(told, opened=opened(2, told.cohort))
    forged = replace(told, opened=opened(1, told.cohort, IdentityKey.generate()))
    by_the_proxy = replace(told, opened=opened(1, told.cohort, PROXY))
    for lie in (hidden, foreign, forged, by_the_proxy):
        with pytest.raises((AuthenticationError, MessageError)):
            refund(ledger, lie, NOW)
    without_withdrawal = replace(told, receipt=receipt(1, 2))
    assert refund(ledger, without_withdrawal, NOW) == refund(ledger, replace(told, receipt=None), NOW) == []
    assert ledger.live_rho == Fraction(1, 10)


@pytest.mark.parametrize("subject", ["share", "withdrawal"])
@pytest.mark.parametrize("forgery", ["key", "owner", "kind", "flip"])
def test_evidence_that_the_proxy_did_not_sign_for_this_owner_books_nothing(
    subject: str, forgery: str
) -> None:
    ledger = new_ledger()
    pay(ledger, 1)
    if forgery == "key":
        evidence = receipt(1, 1, subject, key=IdentityKey.generate())
    elif forgery == "owner":
        evidence = receipt(1, 1, subject, owner=PartyId.of(b"somebody"))
    elif forgery == "kind":
        evidence = sign_statement("share", {"format": 1}, IdentityKey.generate()).encoded
    else:
        evidence = receipt(1, 1, subject).replace(b'"version":1', b'"version":2')
    with pytest.raises((AuthenticationError, MessageError)):
        settle(ledger, evidence, NOW)
    with pytest.raises((AuthenticationError, MessageError)):
        refund(ledger, replace(withdrawn(1, 1), receipt=evidence), NOW)
    assert ledger.live_rho == Fraction(1, 10)


def test_evidence_of_another_study_moves_that_study_alone() -> None:
    ledger = new_ledger()
    pay(ledger, 1)
    pay(ledger, 2)
    assert refund(ledger, withdrawn(3, 1), NOW) == []
    ledger.add_all(refund(ledger, withdrawn(2, 1), NOW))
    assert (state(ledger, 1), state(ledger, 2)) == (SpendState.RESERVED, SpendState.WITHDRAWN)
    with pytest.raises(AuthenticationError):
        refund(ledger, replace(withdrawn(1, 1), receipt=receipt(2, 1, "withdrawal")), NOW)


@pytest.mark.parametrize("committed", [True, False])
def test_a_cancellation_that_proxy_and_data_user_signed_refunds_for_good(committed: bool) -> None:
    ledger = new_ledger()
    pay(ledger, 1)
    if committed:
        ledger.add_all(settle(ledger, receipt(1, 1), NOW))
    ledger.add_all(refund(ledger, cancelled(1), NOW))
    assert (state(ledger, 1), ledger.live_rho) == (SpendState.CANCELLED, Fraction(0))
    assert refund(ledger, cancelled(1), NOW) == []
    with pytest.raises(ConflictError) as refusal:
        pay(ledger, 1)
    assert refusal.value.slug == "study-closed"


@pytest.mark.parametrize(
    "events",
    [
        transcript(1, []),
        transcript(1, ["manifest", "receipt"]),
        transcript(1, ["manifest", "receipt", "closed", "failed"]),
        transcript(1, ["manifest", "receipt", "closed", "release"]),
    ],
)
def test_nothing_else_in_a_transcript_refunds(events: list[bytes]) -> None:
    ledger = new_ledger()
    pay(ledger, 1)
    assert refund(ledger, replace(cancelled(1), transcript=events), NOW) == []


def test_a_cancellation_that_only_the_proxy_signed_refunds_nothing() -> None:
    """The proxy can sign another one for each owner, while the data user opens the release."""
    ledger = new_ledger()
    pay(ledger, 1)
    told = cancelled(1)
    assert refund(ledger, replace(told, cancel=None), NOW) == []
    for forged in (cancel(1, PROXY), cancel(1, IdentityKey.generate()), cancel(2)):
        with pytest.raises((AuthenticationError, MessageError)):
            refund(ledger, replace(told, cancel=forged.encoded), NOW)
    with pytest.raises(AuthenticationError):
        refund(ledger, replace(told, user=PROXY.public.ed25519), NOW)
    assert ledger.live_rho == Fraction(1, 10)


@pytest.mark.parametrize(
    "events",
    [
        transcript(1, ["manifest", "cancelled"], IdentityKey.generate()),
        transcript(2, ["manifest", "cancelled"]),
        transcript(1, ["manifest", "closed", "release", "cancelled"]),
        transcript(1, ["manifest", "cancelled", "receipt"]),
        transcript(1, ["manifest", "receipt", "cancelled"])[1:],
        [*transcript(1, ["manifest"]), transcript(2, ["manifest", "cancelled"])[1]],
    ],
)
def test_a_forged_broken_or_foreign_transcript_is_refused(events: list[bytes]) -> None:
    ledger = new_ledger()
    pay(ledger, 1)
    with pytest.raises((AuthenticationError, MessageError)):
        refund(ledger, replace(cancelled(1), transcript=events), NOW)


def test_a_share_that_counted_as_taken_back_is_charged_again() -> None:
    """In a ledger of an earlier version, which refunded withdrawals on their receipts."""
    ledger = new_ledger()
    pay(ledger, 1)
    ledger.add_all(refund(ledger, withdrawn(1, 1), NOW))
    ledger.add_all(settle(ledger, receipt(1, 2), NOW))
    assert kinds(ledger)[-2:] == ["found", "commit"]
    assert ledger.live_rho == Fraction(1, 10)
    ledger.add_all(refund(ledger, withdrawn(1, 3), NOW))
    ledger.add_all(charge_again(ledger, study(1), NOW))
    assert ledger.live_rho == Fraction(1, 10)
    assert charge_again(ledger, study(1), NOW) == charge_again(ledger, study(5), NOW) == []


def test_what_is_found_counts_in_every_data_set_and_no_budget_stops_it() -> None:
    ledger = new_ledger()
    pay(ledger, 1, Fraction(9, 10))
    ledger.add_all(find(ledger, charge(2, Fraction(5)), NOW))
    assert ledger.spent(*ledger.data_sets).rho == Fraction(59, 10)
    assert ledger.spent("other").rho == 5
    assert find(ledger, charge(2, Fraction(5)), NOW) == []
    with pytest.raises(PolicyError):
        pay(ledger, 3, records=9)


# Data sets


def test_known_records_count_where_they_counted_and_new_ones_apart() -> None:
    ledger = new_ledger()
    first = place(ledger, study(1), content(1).fingerprint, None)
    assert first.is_new
    assert first.data_set == f"data-{content(1).fingerprint.hex()[:8]}"
    pay(ledger, 1, records=1)
    assert place(ledger, study(2), content(1).fingerprint, None).data_set == first.data_set
    assert place(ledger, study(2), content(2).fingerprint, None).is_new


def test_a_name_makes_one_data_set_of_all_records_under_it() -> None:
    ledger = new_ledger()
    for number in range(4):
        pay(ledger, number, Fraction(1, 4), records=number, named="patients")
    assert ledger.data_sets == ("patients",)
    with pytest.raises(PolicyError):
        pay(ledger, 5, Fraction(1, 100), records=9, named="patients")
    # Known records do not get out of it by having no name or another.
    with pytest.raises(PolicyError):
        pay(ledger, 5, Fraction(1, 100), records=2)
    with pytest.raises(PolicyError):
        pay(ledger, 5, Fraction(1, 100), records=2, named="others")


def test_a_study_and_records_of_different_data_sets_do_not_mix_unasked() -> None:
    ledger = new_ledger()
    pay(ledger, 1, records=1)
    pay(ledger, 2, records=2)
    with pytest.raises(ConflictError) as refusal:
        pay(ledger, 1, records=2)
    assert refusal.value.slug == "two-data-sets"
    placed = place(ledger, study(1), content(2).fingerprint, ledger.data_sets[0])
    assert placed.merges == (ledger.data_sets[1],)


def test_a_merge_counts_before_it_is_made() -> None:
    ledger = new_ledger()
    pay(ledger, 1, Fraction(6, 10), records=1, named="patients")
    pay(ledger, 2, Fraction(3, 10), records=2)
    with pytest.raises(PolicyError):
        pay(ledger, 3, Fraction(2, 10), records=2, named="patients")
    assert kinds(ledger).count("merge") == 0
    pay(ledger, 3, Fraction(1, 10), records=2, named="patients")
    assert ledger.spent("patients").rho == 1


def test_a_name_that_is_taken_gets_more_digits() -> None:
    ledger = new_ledger()
    pay(ledger, 1, records=1, named=f"data-{content(2).fingerprint.hex()[:8]}")
    placed = place(ledger, study(2), content(2).fingerprint, None)
    assert (placed.is_new, len(placed.data_set)) == (True, 5 + 9)


def test_neither_records_nor_a_name_is_refused() -> None:
    with pytest.raises(UsageError):
        place(new_ledger(), study(1), None, None)
    ledger = new_ledger()
    pay(ledger, 1)
    assert place(ledger, study(1), None, None).data_set == ledger.data_sets[0]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 101, " a"])
def test_a_bad_name_is_refused_when_it_is_written(name: str) -> None:
    ledger = new_ledger()
    with pytest.raises(DpdpcaError):
        pay(ledger, 1, named=name)
    assert ledger.live_rho == 0


def test_the_budget_is_written_when_it_changes() -> None:
    ledger = new_ledger()
    pay(ledger, 1)
    pay(ledger, 2)
    pay(ledger, 3, budget=Budget.of_epsilon(Fraction(5), Fraction(1, 10**6)))
    assert kinds(ledger).count("budget") == 2
    assert ledger.budget is not None
    assert ledger.budget.epsilon == 5


def test_entries_of_one_batch_follow_each_other_and_carry_the_latest_time() -> None:
    ledger = new_ledger()
    entries = reserve(ledger, charge(1), content(0), None, BUDGET, LATER)
    assert {entry.time for entry in entries} == {LATER}
    ledger.add_all(entries)
    assert {entry.time for entry in settle(ledger, receipt(1, 1), NOW)} == {LATER}
    assert OWNER.hex() == ledger.entries[-1].detail["owner"]
    assert Digest.of(b"").hex() != ledger.entries[-1].detail["study"]
