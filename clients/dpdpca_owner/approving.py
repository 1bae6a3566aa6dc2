"""Approves studies by the rules of the policy, for the agent.

What is approved follows from signed manifests, the policy, the ledger, the clock and the names of registered
sources. The records are not read, and the files in which they are need not even exist.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from dpdpca_owner.accounts.bookkeeping import approve_by_rule
from dpdpca_owner.accounts.charge import RuleApproval
from dpdpca_owner.accounts.entries import Entry
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.actions import Desk, review, under_policy
from dpdpca_owner.consent import ConsentSheet
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.inbox import share_state
from dpdpca_owner.policy import Policy
from dpdpca_owner.rules import Rule, unchecked_owners
from dpdpca_owner.study_checks import is_participant, look_at
from dpdpca_protocol.errors import DpdpcaError, NotFoundError, PolicyError
from dpdpca_protocol.study import ShareState
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_runtime.http.address import StudyAddress

Tell = Callable[[str, str], None]
"""Receives a place and a problem there."""


@dataclass(frozen=True, slots=True)
class ByRule:
    """A study that a rule has approved, and the rule's name."""

    address: StudyAddress
    title: str
    rule: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a rule would approve a study.

    Attributes:
        rule: the name of the rule that would; None if a person is needed.
        objections: why each of the rules would not.
    """

    rule: str | None
    objections: tuple[str, ...]


@dataclass
class Unmatched:
    """The studies that none of `rules` matches. As long as the rules stay, nothing about them is asked again:
    any data user may open many studies that ask for this owner."""

    rules: tuple[Rule, ...] = ()
    studies: set[StudyId] = field(default_factory=set)

    def of(self, rules: tuple[Rule, ...]) -> set[StudyId]:
        if rules != self.rules:
            self.rules, self.studies = rules, set()
        return self.studies


def approve_inbox(desk: Desk, tell: Tell, unmatched: Unmatched | None = None) -> list[ByRule]:
    """Approve what asks for this owner and is covered by a rule. The approved studies are then followed.

    An approval is written to the ledger first. If a run ends between the two, the next one continues.

    Args:
        desk: this owner.
        tell: receives why a proxy or a study could not be read, and why a study that matches a rule was not
            approved.
        unmatched: what earlier runs have found.

    Raises:
        UsageError, PolicyError: like `OwnerHome.policy`.
        IntegrityError: the ledger is refused, or a file of the home is damaged.
    """
    home, approved = desk.home, list[ByRule]()
    rules, by_rule = home.policy().rules, home.ledger.read().by_rule
    if not rules and not by_rule:
        return []
    followed = home.followed.addresses()
    passed = (unmatched or Unmatched()).of(rules)
    for address, manifest in _undecided(desk, tell, passed):
        if address in followed:
            continue
        decided = by_rule.get(address.study)
        if decided is not None and decided.chain != address.study:
            continue  # a round that its first round's approval covers
        if decided is None:
            if all(rule.objections(manifest) for rule in rules):
                passed.add(address.study)
                continue
            decided = _decide(desk, address, manifest, rules, tell)
            if decided is None:
                continue
            approved.append(ByRule(address, manifest.title, decided.name))
            by_rule = home.ledger.read().by_rule
        home.followed.add(FollowedStudy(address, decided.source, decided.data_set))
    return approved


def verdict(desk: Desk, sheet: ConsentSheet, policy: Policy) -> Verdict:
    """What the agent would do now with a study that nobody has answered. Nothing is asked or changed.

    Args:
        desk: this owner.
        sheet: of the study, without a dry run.
        policy: the policy that would hold. Its rules name registered sources.

    Raises:
        IntegrityError: the ledger is refused, or a file of the home is damaged.
    """
    objections = []
    for rule in policy.rules:
        found = rule.objections(sheet.manifest)
        if not found:
            try:
                approval = _approval(desk, sheet.manifest, rule, policy)
                _entries(desk.home.ledger.read(), approval, rule, time_text(desk.now()))
                _check(under_policy(desk, sheet, policy, approval.data_set))
            except (NotFoundError, PolicyError) as error:
                found = (error.problem,)
            else:
                return Verdict(rule.name, ())
        objections += [f"{rule.name}: {each}" for each in found]
    return Verdict(None, tuple(objections))


def _undecided(
    desk: Desk, tell: Tell, passed: Collection[StudyId]
) -> Iterator[tuple[StudyAddress, Manifest]]:
    """The open studies that ask for this owner, for which nothing was sent and which nobody has declined."""
    for url in desk.home.pins.proxy_urls():
        try:
            with desk.client(url) as client:
                listed = [each for each in client.inbox() if each.study not in passed]
                manifests = [look_at(client, desk.home, each.study) for each in listed]
        except DpdpcaError as error:
            tell(url, str(error))
            continue
        for manifest in manifests:
            if manifest is not None and is_participant(manifest, desk.for_study(manifest).owner):
                folder = desk.home.study(manifest.study_id)
                is_new = share_state(folder, manifest.proxy.ed25519) is ShareState.ABSENT
                if is_new and folder.declined() is None:
                    yield StudyAddress(url, manifest.study_id), manifest


def _decide(
    desk: Desk, address: StudyAddress, manifest: Manifest, rules: Iterable[Rule], tell: Tell
) -> RuleApproval | None:
    """The approval by the first rule that matches the study and against which nothing else stands."""
    for rule in rules:
        if rule.objections(manifest):
            continue
        if (approval := _approve(desk, address, manifest, rule, tell)) is not None:
            return approval
    return None


def _approve(
    desk: Desk, address: StudyAddress, manifest: Manifest, rule: Rule, tell: Tell
) -> RuleApproval | None:
    """The approval by a rule that matches the manifest, if nothing else stands against it."""
    try:
        approval = _approval(desk, manifest, rule, desk.home.policy())
        # If the month is full, nothing is asked: a data user may open many studies that the rule matches.
        _entries(desk.home.ledger.read(), approval, rule, time_text(desk.now()))
        _check(review(desk, address, None, approval.data_set))
        with desk.home.ledger.writing(desk.now()) as book:
            if rule not in desk.home.policy().rules:  # a person has changed it meanwhile
                return None
            book.record(_entries(book.ledger, approval, rule, book.time))
    except DpdpcaError as error:
        tell(str(address), f"not approved by the rule '{rule.name}': {error}")
        return None
    return approval


def _approval(desk: Desk, manifest: Manifest, rule: Rule, policy: Policy) -> RuleApproval:
    """Raises NotFoundError `no-such-source`."""
    data_set = desk.home.sources.find(rule.source).counts_in(policy)
    study = manifest.study_id
    return RuleApproval(
        study, study, rule.name, rule.text, manifest.epsilon, manifest.delta, rule.source, data_set
    )


def _entries(ledger: Ledger, approval: RuleApproval, rule: Rule, time: str) -> list[Entry]:
    """The entry of an approval. Raises PolicyError if the rule's month is full."""
    return approve_by_rule(ledger, approval, rule.month_epsilon, rule.month_delta, time)


def _check(sheet: ConsentSheet) -> None:
    """Raises PolicyError if another line of the policy, the budget, or names that nobody has compared stand
    against an approval by rule."""
    broken = [line for line in sheet.judged if not line.holds]
    if broken:
        raise PolicyError(broken[0].slug, "; ".join(line.text for line in broken))
    sheet.spending.check()
    if missing := unchecked_owners(sheet.manifest, sheet.study.compared):
        raise PolicyError(
            "not-approved",
            f"the study is blinded, and the words of {missing} more of its owners must be compared first",
            "compare them: dpdpca owner trust; or decide yourself",
        )
