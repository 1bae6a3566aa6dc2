"""The policy as a form. It shows what a change would do before the change is saved.

Only the values that the person changed are written. Comments, and parts that the form does not know, stay.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import tomlkit
from starlette.requests import Request
from starlette.responses import Response

from dpdpca_owner.actions import under_policy
from dpdpca_owner.consent import ConsentSheet
from dpdpca_owner.page.changes import Change, policy_text, save_if_seen
from dpdpca_owner.page.gate import Form, field
from dpdpca_owner.page.numbers import number
from dpdpca_owner.page.office import Office
from dpdpca_owner.page.render import page
from dpdpca_owner.page.requests import refusals
from dpdpca_owner.policy import Policy, load_policy, parse_policy
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import MECHANISMS
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.wire.fields import decimal_text

_EDITED = ("study", "budget", "data", "rule")


@dataclass(frozen=True, slots=True)
class Limit:
    """A number in the table [study] of the policy."""

    name: str
    label: str
    hint: str
    is_whole: bool = True


LIMITS: Final = (
    Limit(
        "max_epsilon",
        "Largest ε of one study",
        "1 is a strong guarantee; 10 is about the largest useful value.",
        is_whole=False,
    ),
    Limit(
        "max_delta",
        "Largest δ of one study",
        "It should be far below 1 divided by the number of your records. Example: 0.00001.",
        is_whole=False,
    ),
    Limit("max_features", "Most features", "A feature with levels counts once for each level."),
    Limit("min_owners", "Fewest owners", "With two owners, each learns the other's noisy statistics."),
    Limit("min_known_owners", "Fewest owners whose words you compared", "Only for blinded studies."),
    Limit(
        "min_records",
        "Fewest records of all owners together",
        "Only a masked study enforces it before the release.",
    ),
)
CHOICES: Final = {
    "releases": tuple(str(kind) for kind in ReleaseKind),
    "mechanisms": tuple(each.name for each in MECHANISMS),
}


@dataclass(frozen=True, slots=True)
class Values:
    """What the form holds: texts as the person typed them."""

    limits: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]]
    software: tuple[str, ...]
    unit: str
    amount: str
    delta: str
    dataset: str


@dataclass(frozen=True, slots=True)
class Effect:
    """One open request under the policy of now and under the changed one: reasons for a refusal, if any."""

    sheet: ConsentSheet
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """The part of a data set's budget that is spent, now and under the changed policy, from 0 up."""

    data_set: str
    before: float
    after: float


def show_policy(office: Office, request: Request) -> Response:
    text = policy_text(office)
    try:
        policy = load_policy(office.desk.home.policy_path)
    except UsageError as error:
        return page("policy_broken", request, problem=str(error), lines=text.splitlines(), status=409)
    return _form_page(office, request, values_of(policy), text)


def change_policy(office: Office, request: Request, form: Form) -> Response:
    """Show the effect of a change, or save the change whose effect the person saw."""
    text, values = policy_text(office), read_values(form)
    try:
        change = Change(text, with_values(text, values))
        policy = parse_policy(change.after)
    except UsageError as error:
        return _form_page(office, request, values, text, problem=error.problem, status=400)
    if (saved := save_if_seen(office, request, form, change, "/policy")) is not None:
        return saved
    return page(
        "policy_effect",
        request,
        values=values,
        choices=CHOICES,
        change=change,
        effects=list(effects(office, policy)),
        left=list(_left(office, policy)),
        budget=float(policy.budget.epsilon_of(policy.budget.rho)),
        delta=float(policy.budget.delta),
    )


def values_of(policy: Policy) -> Values:
    budget = policy.budget
    is_epsilon = budget.epsilon is not None
    return Values(
        {limit.name: _shown(getattr(policy, limit.name)) for limit in LIMITS},
        {name: tuple(getattr(policy, name)) for name in CHOICES},
        policy.software,
        "epsilon" if is_epsilon else "rho",
        _shown(budget.rho if budget.epsilon is None else budget.epsilon),
        _shown(budget.delta),
        policy.dataset or "",
    )


def read_values(form: Form) -> Values:
    def text(name: str) -> str:
        return field(form, name).strip()

    return Values(
        {limit.name: text(limit.name) for limit in LIMITS},
        {
            name: tuple(each for each in known if each in form.get(name, ()))
            for name, known in CHOICES.items()
        },
        tuple(text("software").split()),
        text("unit"),
        text("amount"),
        text("delta"),
        text("dataset"),
    )


def with_values(text: str, values: Values) -> str:
    """The policy file `text` with the values that differ from it, and everything else as it is.

    Raises:
        UsageError: `bad-policy`, a value is no number or no choice of the form.
    """
    before, document = values_of(parse_policy(text)), tomlkit.parse(text)
    for limit in LIMITS:
        given = values.limits[limit.name]
        value = number(given, limit.label, is_whole=limit.is_whole)
        if Fraction(given) != Fraction(before.limits[limit.name]):
            _table(document, "study")[limit.name] = value
    for name in CHOICES:
        if set(values.choices[name]) != set(before.choices[name]):
            _table(document, "study")[name] = list(values.choices[name])
    if values.software != before.software:
        _table(document, "study")["software"] = list(values.software)
    _set_budget(document, before, values)
    if values.dataset != before.dataset:
        data = _table(document, "data")
        if values.dataset:
            data["dataset"] = values.dataset
        else:
            del data["dataset"]
    return tomlkit.dumps(document)


def effects(office: Office, policy: Policy) -> Iterator[Effect]:
    """Every open request under the policy of now and under `policy`."""
    data_set = office.desk.home.sources.only_data_set(policy)
    for each in office.inbox()[1].requests:
        after = under_policy(office.desk, each.sheet, policy, data_set)
        yield Effect(each.sheet, refusals(each.sheet), refusals(after))


def _form_page(
    office: Office,
    request: Request,
    values: Values,
    text: str,
    *,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    return page(
        "policy",
        request,
        status=status,
        limits=LIMITS,
        choices=CHOICES,
        values=values,
        problem=problem,
        rules=[rule.name for rule in parse_policy(text).rules],
        others=_others(text),
        path_shown=str(office.desk.home.policy_path),
        is_saved="saved" in request.query_params,
    )


def _others(text: str) -> Sequence[str]:
    """The lines of the tables that the form does not edit."""
    document = tomlkit.parse(text)
    rest = tomlkit.document()
    for name in document:
        if name not in _EDITED:
            rest[name] = document[name]
    return tomlkit.dumps(rest).strip().splitlines()


def _set_budget(document: tomlkit.TOMLDocument, before: Values, values: Values) -> None:
    if values.unit not in ("epsilon", "rho"):
        raise UsageError("bad-policy", "the budget is set either as ε or as ρ")
    amount = number(values.amount, "The budget", is_whole=False)
    delta = number(values.delta, "δ of the budget", is_whole=False)
    if (values.unit, Fraction(values.amount)) != (before.unit, Fraction(before.amount)):
        budget = _table(document, "budget")
        budget.pop("rho" if values.unit == "epsilon" else "epsilon", None)
        budget[values.unit] = amount
    if Fraction(values.delta) != Fraction(before.delta):
        _table(document, "budget")["delta"] = delta


def _table(document: tomlkit.TOMLDocument, name: str) -> Any:
    if name not in document:
        document[name] = tomlkit.table()
    return document[name]


def _shown(value: Fraction | int) -> str:
    return str(value) if isinstance(value, int) else decimal_text(value)


def _left(office: Office, policy: Policy) -> Iterator[Left]:
    ledger, before = office.desk.home.ledger.read(), office.desk.home.policy().budget
    for name in ledger.data_sets:
        spent = ledger.spent(name).rho
        yield Left(name, float(spent / before.rho), float(spent / policy.budget.rho))
