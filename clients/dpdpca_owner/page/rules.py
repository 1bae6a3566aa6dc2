"""Approval by rule as a form: a rule is added or removed, and its effect is shown before it is saved."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import tomlkit
from starlette.requests import Request
from starlette.responses import Response

from dpdpca_owner.approving import Verdict, verdict
from dpdpca_owner.page.changes import Change, policy_text, save_if_seen
from dpdpca_owner.page.gate import Form, field
from dpdpca_owner.page.numbers import number
from dpdpca_owner.page.office import Office
from dpdpca_owner.page.render import page
from dpdpca_owner.policy import Policy, parse_policy
from dpdpca_owner.rules import RELEASES
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.study import ShareState
from dpdpca_runtime.http.address import parse_study_address
from dpdpca_runtime.words import fingerprint_words


@dataclass(frozen=True, slots=True)
class Entry:
    """A field of the form for a new rule."""

    name: str
    label: str
    hint: str
    is_whole: bool | None = None
    """Whether it takes a whole number or a real one; None if it takes text."""


ENTRIES: Final = (
    Entry("name", "Name of the rule", "It keeps the account of the rule. Example: blood pressure studies."),
    Entry("user", "Name of the data user", "For you to read. The words decide who it is."),
    Entry("words", "Its twelve words", "Compare them with the data user first, but not through the proxy."),
    Entry("max_epsilon", "Largest ε of one study", "A chain counts with its total ε.", is_whole=False),
    Entry("max_delta", "Largest δ of one study", "Example: 0.000001.", is_whole=False),
    Entry("month_epsilon", "Largest ε in a month", "The sum over all studies of the month.", is_whole=False),
    Entry("month_delta", "Largest δ in a month", "The sum over all studies of the month.", is_whole=False),
    Entry("min_owners", "Fewest owners", "A study with fewer owners needs a person.", is_whole=True),
)
_NUMBERS: Final = tuple(each for each in ENTRIES if each.is_whole is not None)
_FIELDS: Final = frozenset({each.name for each in ENTRIES} | {"source", "releases", "rule"})


@dataclass(frozen=True, slots=True)
class Typed:
    """A new rule as the person typed it."""

    texts: Mapping[str, str]
    source: str
    releases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """What the agent would do with a request that nobody has answered: now, and after the change."""

    title: str
    before: Verdict
    after: Verdict


def show_rules(office: Office, request: Request) -> Response:
    policy = parse_policy(policy_text(office))
    texts = {each.name: "" for each in ENTRIES} | {"min_owners": str(policy.min_owners)}
    return _form_page(office, request, policy, Typed(texts, "", RELEASES))


def add_rule(office: Office, request: Request, form: Form) -> Response:
    """Show the effect of a new rule, or save it if the person saw its effect."""
    text, typed = policy_text(office), _read(form)
    policy = parse_policy(text)
    try:
        change = Change(text, _with(office, text, typed))
        changed = _check(policy, change)
    except UsageError as error:
        return _form_page(office, request, policy, typed, problem=error.problem, status=400)
    return _answer(office, request, form, change, policy, changed)


def remove_rule(office: Office, request: Request, form: Form) -> Response:
    """Show the effect of removing a rule, or remove it if the person saw the effect."""
    text = policy_text(office)
    policy = parse_policy(text)
    change = Change(text, _without(text, policy, field(form, "rule")))
    return _answer(office, request, form, change, policy, _check(policy, change))


def _answer(
    office: Office, request: Request, form: Form, change: Change, before: Policy, after: Policy
) -> Response:
    if (saved := save_if_seen(office, request, form, change, "/policy/rules")) is not None:
        return saved
    return page(
        "rules_effect",
        request,
        change=change,
        fields={name: values for name, values in form.items() if name in _FIELDS},
        effects=_effects(office, before, after),
    )


def _form_page(
    office: Office,
    request: Request,
    policy: Policy,
    typed: Typed,
    *,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    return page(
        "rules",
        request,
        status=status,
        rules=policy.rules,
        entries=ENTRIES,
        releases=RELEASES,
        typed=typed,
        sources=[each.name for each in office.sources()],
        users=_users(office),
        problem=problem,
        is_saved="saved" in request.query_params,
    )


def _users(office: Office) -> dict[str, str]:
    """The words of the data users whose studies are open, and their names."""
    try:
        sheets = [each.sheet for each in office.inbox()[1].requests]
    except UsageError:  # a rule names a source that is not registered; here it can be removed
        return {}
    return {fingerprint_words(sheet.manifest.user.ed25519): sheet.manifest.user.name for sheet in sheets}


def _read(form: Form) -> Typed:
    texts = {each.name: field(form, each.name).strip() for each in ENTRIES}
    releases = tuple(each for each in RELEASES if each in form.get("releases", ()))
    return Typed(texts, field(form, "source"), releases)


def _with(office: Office, text: str, typed: Typed) -> str:
    """The policy file with the rule at its end. Raises UsageError `bad-policy`."""
    if typed.source not in [each.name for each in office.sources()]:
        raise UsageError("bad-policy", "choose the registered records that the rule uses")
    numbers = {
        each.name: number(typed.texts[each.name], each.label, is_whole=bool(each.is_whole))
        for each in _NUMBERS
    }
    rule: dict[str, Any] = {
        "name": typed.texts["name"],
        "source": typed.source,
        **numbers,
        "releases": list(typed.releases),
        "user": [{"name": typed.texts["user"], "words": typed.texts["words"]}],
    }
    return f"{text.rstrip()}\n\n{tomlkit.dumps({'rule': [rule]})}"


def _without(text: str, policy: Policy, name: str) -> str:
    """The policy file without one rule. Raises UsageError `bad-policy`."""
    for rule in policy.rules:
        if rule.name == name:
            before, _, after = text.partition(rule.text)
            return f"{before.rstrip()}\n\n{after.lstrip()}".strip() + "\n"
    raise UsageError("bad-policy", "the policy has no such rule any more", "open the page again")


def _check(before: Policy, change: Change) -> Policy:
    """The changed policy. Refuses a change that would do more than add or remove one rule.

    Raises UsageError `bad-policy`.
    """
    after = parse_policy(change.after)
    rules = {rule.text for rule in before.rules} ^ {rule.text for rule in after.rules}
    if len(rules) != 1 or replace(before, rules=()) != replace(after, rules=()):
        raise UsageError("bad-policy", "this form cannot make the change", "edit the policy file by hand")
    return after


def _effects(office: Office, before: Policy, after: Policy) -> list[Effect] | None:
    """All open requests that nobody has answered; None if the policy of now cannot be used."""
    try:
        requests = office.inbox()[1].requests
    except UsageError:
        return None
    followed, desk = office.desk.home.followed.addresses(), office.desk
    return [
        Effect(each.sheet.manifest.title, verdict(desk, each.sheet, before), verdict(desk, each.sheet, after))
        for each in requests
        if each.share is ShareState.ABSENT
        and each.declined is None
        and each.rule is None
        and parse_study_address(each.sheet.address) not in followed
    ]
