"""Rules of a policy by which the agent may approve studies without a person. There are none by default.

What a rule matches follows from a study's signed manifest and from what this owner has compared. Nothing in
the records is read for it.
"""

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dpdpca_owner.known_parties import Recognised, read_recognised
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.members import MAX_OWNERS
from dpdpca_protocol.wire.fields import (
    check_members,
    decimal_text,
    malformed,
    read_integer,
    read_list,
    read_text,
    real_of,
    refused,
)

RULE_NAME = 100
RULE_TEXT = 4000
"""The most characters of a rule's name, and of its text."""
_SOURCE = 64
_MOST_RULES = 100
_MOST_EPSILON = 100
RELEASES = tuple(kind for kind in ReleaseKind if not kind.needs_count)
"""The releases that a rule may accept. A masked study relies on every owner, so it always needs a person."""
_BEGINS = re.compile(r"\s*\[\[\s*rule\s*\]\]")
_HEADER = re.compile(r"\s*\[")
_GOES_ON = re.compile(r"\s*\[\[?\s*rule\s*\.")
_LIMITS = ("max_epsilon", "max_delta", "month_epsilon", "month_delta")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, with all values in range.

    Attributes:
        name: unique among the rules.
        text: of the rule, exactly as it stands in the policy.
        users: the data users whose studies may match.
        source: the registered source whose records are used.
        max_epsilon, max_delta: the most for one study, or for all rounds of a chain together.
        month_epsilon, month_delta: the most that the rule approves in a calendar month (UTC). The ε and δ of
            studies are added, which is never less than what they cost together.
        releases: the accepted kinds.
        min_owners: the smallest cohort.
    """

    name: str
    text: str
    users: tuple[Recognised, ...]
    source: str
    max_epsilon: Fraction
    max_delta: Fraction
    month_epsilon: Fraction
    month_delta: Fraction
    releases: tuple[str, ...]
    min_owners: int

    def objections(self, manifest: Manifest) -> tuple[str, ...]:
        """Why the rule does not match a study; empty if it matches. The month is not considered."""
        found = {
            "another data user": not any(user.is_key(manifest.user.ed25519) for user in self.users),
            "above the ε of the rule": manifest.epsilon > self.max_epsilon,
            "above the δ of the rule": manifest.delta > self.max_delta,
            "a smaller cohort than the rule demands": manifest.min_owners < self.min_owners,
            "a masked study, which needs a person": manifest.rules.is_masked,
            "a kind of release that the rule does not list": str(manifest.release) not in self.releases,
            "a chain, whose later rounds may release what the rule does not list": (
                manifest.rho_share != 1 and set(self.releases) != set(RELEASES)
            ),
            "a later round of a chain, which only the approval of its first round covers": bool(
                manifest.pre_studies
            ),
        }
        return tuple(why for why, holds in found.items() if holds)


def unchecked_owners(manifest: Manifest, compared: Collection[bytes]) -> int:
    """How many more owners' words a person has to compare before a rule may approve a blinded study.

    The ε of a blinded study holds if m owners are honest: this one and m − 1 others. A person can decide to
    trust names that nobody has compared, but a rule cannot. With one other owner, m may be 1; without any
    owner that was compared, all others may be made up.
    """
    if not manifest.is_blinded:
        return 0
    honest = manifest.min_owners - (manifest.max_colluding or 0)
    return max(0, max(honest - 1, 1) - len(compared))


def read_rules(given: Any, policy_text: str, min_owners: int) -> tuple[Rule, ...]:
    """The rules in the member `rule` of a policy.

    Args:
        given: the member as TOML gives it.
        policy_text: the whole policy; each rule keeps its own part of it.
        min_owners: the smallest cohort of a rule that names none.

    Raises:
        MessageError, PolicyError: a member is missing, unknown or out of range.
    """
    tables, texts = read_list(given, "rule", _MOST_RULES), _texts(policy_text)
    if [_alone(text) for text in texts] != list(tables):
        refused("each rule must be a table of its own that begins with the line [[rule]]")
    rules = tuple(
        _read(table, f"rule[{index}]", text, min_owners)
        for index, (table, text) in enumerate(zip(tables, texts, strict=True))
    )
    names = [rule.name for rule in rules]
    if twice := {name for name in names if names.count(name) > 1}:
        refused(f"two rules have the name '{min(twice)}'")
    return rules


def _read(table: Any, where: str, text: str, min_owners: int) -> Rule:
    check_members(table, where, ("name", "source", "user", *_LIMITS), ("releases", "min_owners"))
    epsilon, delta, month_epsilon, month_delta = (_limit(table, name, where) for name in _LIMITS)
    for each, month, what in ((epsilon, month_epsilon, "epsilon"), (delta, month_delta, "delta")):
        if month < each:
            refused(f"{where}: month_{what} is below max_{what}, so no study could reach max_{what}")
    releases = _releases(table.get("releases", list(RELEASES)), f"{where}.releases")
    users = read_recognised(table["user"], f"{where}.user")
    if not users:
        malformed(f"{where}.user", "at least one data user")
    if len(text) > RULE_TEXT:
        refused(f"{where} has more than {RULE_TEXT} characters")
    return Rule(
        read_text(table["name"], f"{where}.name", RULE_NAME),
        text,
        users,
        read_text(table["source"], f"{where}.source", _SOURCE),
        epsilon,
        delta,
        month_epsilon,
        month_delta,
        releases,
        read_integer(table.get("min_owners", min_owners), f"{where}.min_owners", 1, MAX_OWNERS),
    )


def _limit(table: Mapping[str, Any], name: str, where: str) -> Fraction:
    number, most = real_of(table[name], f"{where}.{name}"), _MOST_EPSILON if "epsilon" in name else 1
    if not 0 < number < most:
        refused(f"{where}.{name} must be above 0 and below {most}")
    decimal_text(number)  # refuses what the ledger could not write exactly
    return number


def _releases(given: Any, where: str) -> tuple[str, ...]:
    names = tuple(read_text(name, where, RULE_NAME) for name in read_list(given, where, len(ReleaseKind)))
    if not names or not set(names) <= set(RELEASES):
        refused(f"{where} must list some of {', '.join(RELEASES)}: a masked study always needs a person")
    return names


def _texts(policy_text: str) -> list[str]:
    """The part of the policy in which each rule stands, from its header to the next other header."""
    found: list[list[str]] = []
    is_inside = False
    for line in policy_text.split("\n"):
        if _BEGINS.match(line):
            found.append([])
            is_inside = True
        elif _HEADER.match(line) and not _GOES_ON.match(line):
            is_inside = False
        if is_inside:
            found[-1].append(line)
    return ["\n".join(lines).rstrip() for lines in found]


def _alone(text: str) -> Any:
    """The rule in a part of the policy, or None if the part is not one whole rule."""
    try:
        (table,) = tomllib.loads(text, parse_float=Decimal)["rule"]
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError):
        return None
    return table
