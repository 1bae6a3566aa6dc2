"""The requests: what asks for this owner, the consent sheet of one study, its dry run, and the decision.

An approval is bound to what the person saw. If the study, the registered source, its data set, the ledger or
the policy has changed since, or somebody has declined, the sheet is shown again instead. What a dry run found
does not count, because it decides nothing.
"""

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from starlette.requests import Request as WebRequest
from starlette.responses import Response

from dpdpca_owner.consent import ConsentSheet, shown_features
from dpdpca_owner.declining import decline as decline_study
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.inbox import SHARE_WORDS, Request, share_state
from dpdpca_owner.page.dry_runs import Finding
from dpdpca_owner.page.gate import Form, field
from dpdpca_owner.page.office import Office, asked_for, path_of
from dpdpca_owner.page.render import go_to, page, root_of
from dpdpca_owner.sources import RegisteredSource
from dpdpca_protocol.errors import NotFoundError, PolicyError
from dpdpca_protocol.study import ShareState
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.wire.fields import decimal_text
from dpdpca_runtime.http.address import StudyAddress, parse_study_address

_CHANGED = (
    "Nothing was approved, because something has changed since you read this sheet: the registered source,"
    " its data set, the ledger, the policy or what you know of a party. Or somebody here has declined. Please"
    " read the sheet again."
)
_REFUSED = "Nothing was approved: this owner cannot join the study. The reasons are in the box below."


@dataclass(frozen=True, slots=True)
class RequestCard:
    """A request as the list shows it."""

    request: Request
    path: str
    refusals: tuple[str, ...]
    is_approved: bool

    @property
    def needs_decision(self) -> bool:
        is_open = self.request.share in (ShareState.ABSENT, ShareState.PARTIAL)
        return is_open and not self.is_approved and self.request.declined is None

    @property
    def share(self) -> str:
        return SHARE_WORDS[self.request.share]


@dataclass(frozen=True, slots=True)
class FeatureRow:
    """One feature of a study and, after a dry run, how the records fit it. No row is about a record."""

    name: str
    kind: str
    span: str
    unit: str
    column: str | None = None
    missing: int = 0
    unusable: int = 0
    out_of_bounds: int = 0


def show_requests(office: Office, request: WebRequest) -> Response:
    read_at, found = office.inbox()
    followed = office.desk.home.followed.addresses()
    cards = [_card(each, followed) for each in found.requests]
    return page(
        "requests",
        request,
        waiting=[card for card in cards if card.needs_decision],
        decided=[card for card in cards if not card.needs_decision],
        unread=found.unread,
        read_at=read_at,
        proxies=office.desk.home.pins.proxy_urls(),
        sources=office.sources(),
    )


def show_sheet(office: Office, request: WebRequest) -> Response:
    address = asked_for(office, request)
    return _sheet_page(office, request, address, _source(office, request.query_params.get("source", "")))


def start_dry_run(office: Office, request: WebRequest, form: Form) -> Response:
    """Read the chosen records in a thread. The findings are shown on the sheet."""
    address, source = asked_for(office, request), _need_source(office, form)
    office.dry_runs.start((address, source), lambda: office.read_records(address, source))
    return go_to(request, f"/requests/{path_of(address)}?source={source.name}#dry-run")


def approve(office: Office, request: WebRequest, form: Form) -> Response:
    """Approve exactly the sheet that the person saw. The agent then sends the share and follows the study."""
    address, source = asked_for(office, request), _need_source(office, form)
    sheet = office.sheet(address, source)
    if field(form, "seen") != seen_digest(office, sheet, source):
        return _sheet_page(office, request, address, source, notice=_CHANGED, status=409)
    if refusals(sheet):
        return _sheet_page(office, request, address, source, notice=_REFUSED, status=403)
    office.desk.home.study(address.study).drop_declined()  # the latest decision counts
    approved = FollowedStudy(address, source.name, office.data_set_of(source))
    office.desk.home.followed.add(approved)
    office.forget_inbox()
    office.wake()
    return go_to(request, "/studies")


def decline(office: Office, request: WebRequest, form: Form) -> Response:
    """Tell the data user that this owner does not take part, with the person's message."""
    address, why = asked_for(office, request), field(form, "why").strip()
    try:
        decline_study(office.desk, address, why or None)
    finally:
        office.forget_inbox()  # the decision is kept here even if the proxy cannot be reached
    return go_to(request, "/")


def refusals(sheet: ConsentSheet) -> tuple[str, ...]:
    """Why this owner cannot join, from its policy, its budget and its approvals; empty if it can."""
    reasons = list(sheet.summary().warnings)
    try:
        if sheet.chain is not None:
            sheet.chain.check()
        sheet.spending.check()
    except PolicyError as error:
        reasons.append(f"This owner cannot join: {error.problem}.")
    return tuple(reasons)


def seen_digest(office: Office, sheet: ConsentSheet, source: RegisteredSource) -> str:
    """The digest of all that a person approves with one sheet. `sheet` has no dry run."""
    home = office.desk.home
    policy, declined = home.policy_path, home.study(sheet.manifest.study_id).declined()
    seen = {
        "sheet": sheet.to_json(),
        "source": {"name": source.name, **source.to_body()},
        "data_set": office.data_set_of(source),
        "policy": sha256(policy.read_bytes()).hexdigest() if policy.exists() else None,
        "declined": None if declined is None else [declined.time, declined.why],
    }
    return sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


def feature_rows(sheet: ConsentSheet) -> list[FeatureRow]:
    features, dry_run = sheet.manifest.features, sheet.dry_run
    if dry_run is None or sheet.manifest.feature_list is not None:
        shown = shown_features(sheet.manifest)
        return [FeatureRow(each.name, each.kind, _span(each), each.unit or "") for each in shown]
    report = dry_run.report
    counts = zip(dry_run.columns, report.missing, report.unusable, report.out_of_bounds, strict=True)
    return [
        FeatureRow(each.name, each.kind, _span(each), each.unit or "", *found)
        for each, found in zip(features, counts, strict=True)
    ]


def _sheet_page(
    office: Office,
    request: WebRequest,
    address: StudyAddress,
    source: RegisteredSource | None,
    *,
    notice: str | None = None,
    status: int = 200,
) -> Response:
    plain = office.sheet(address, source)
    finding = None if source is None else office.dry_runs.finding((address, source))
    is_reading = source is not None and office.dry_runs.is_under_way((address, source))
    shown = plain if finding is None or finding.sheet is None else _with_dry_run(plain, finding)
    manifest = plain.manifest
    share = share_state(office.desk.home.study(address.study), manifest.proxy.ed25519)
    reasons = refusals(plain)
    by_rule = office.desk.home.ledger.read().by_rule.get(address.study)
    context: dict[str, Any] = {
        "sheet": shown,
        "manifest": manifest,
        "summary": shown.summary(),
        "reasons": reasons,
        "rows": feature_rows(shown),
        "sources": office.sources(),
        "source": source,
        "data_set": None if source is None else office.data_set_of(source),
        "finding": finding,
        "is_reading": is_reading,
        "is_approved": address in office.desk.home.followed.addresses(),
        "rule": None if by_rule is None else by_rule.name,
        "declined": office.desk.home.study(address.study).declined(),
        "share": share,
        "share_words": SHARE_WORDS[share],
        "may_approve": source is not None and not reasons,
        "seen": None if source is None else seen_digest(office, plain, source),
        "here": f"{root_of(request)}/requests/{path_of(address)}",
        "notice": notice,
    }
    return page("sheet", request, status=status, **context)


def _with_dry_run(plain: ConsentSheet, finding: Finding) -> ConsentSheet:
    """The sheet of now with what the dry run found then."""
    assert finding.sheet is not None
    return replace(plain, dry_run=finding.sheet.dry_run)


def _card(request: Request, followed: set[StudyAddress]) -> RequestCard:
    address = parse_study_address(request.sheet.address)
    return RequestCard(request, path_of(address), refusals(request.sheet), address in followed)


def _source(office: Office, name: str) -> RegisteredSource | None:
    """The source of this name; without a name, the only one that is registered."""
    if name:
        return office.desk.home.sources.find(name)
    known = office.sources()
    return known[0] if len(known) == 1 else None


def _need_source(office: Office, form: Form) -> RegisteredSource:
    name = field(form, "source")
    if not name:
        raise NotFoundError("no-such-source", "no records were chosen", "choose registered records first")
    return office.desk.home.sources.find(name)


def _span(feature: Feature) -> str:
    if feature.lower is None or feature.upper is None:
        return ", ".join(feature.levels)
    return f"{decimal_text(feature.lower)} to {decimal_text(feature.upper)}"
