"""What asks for this owner: the open studies at every proxy where it is enrolled."""

from dataclasses import dataclass
from typing import Any

from dpdpca_owner.actions import Desk, review
from dpdpca_owner.consent import ConsentSheet
from dpdpca_owner.study_folder import Declined, StudyFolder
from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.study import ShareState
from dpdpca_protocol.wire.fields import decimal_text, time_text
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.words import fingerprint_words

SHARE_WORDS = {
    ShareState.ABSENT: "nothing was sent",
    ShareState.PARTIAL: "sending the share was interrupted; join again to continue",
    ShareState.COMPLETE: "the proxy has the share",
    ShareState.WITHDRAWN: "the share was withdrawn",
}


@dataclass(frozen=True, slots=True)
class Request:
    """An open study that names this owner, or that anybody may join. Its manifest is verified.

    Attributes:
        sheet: the consent sheet, without a dry run.
        share: what this machine knows of this owner's share.
        declined: this owner's record that a person declined the study, or None.
        rule: the name of the rule that has approved the study, or None.
    """

    sheet: ConsentSheet
    share: ShareState
    declined: Declined | None = None
    rule: str | None = None

    @property
    def ledger_line(self) -> str:
        """What the ledger says of this study, in one line."""
        spending = self.sheet.spending
        if spending.placed is None:
            return spending.lines()[0]
        if spending.placed.is_paid:
            return "booked already; joining costs nothing more"
        where = f"data set '{spending.placed.data_set}'"
        return f"fits your budget ({where})" if spending.fits else f"ABOVE your budget ({where})"

    def to_json(self) -> dict[str, Any]:
        sheet, manifest = self.sheet, self.sheet.manifest
        chain = sheet.chain
        return {
            "address": sheet.address,
            "study": manifest.study_id.hex(),
            "title": manifest.title,
            "purpose": manifest.purpose,
            "user": {
                "name": manifest.user.name,
                "words": fingerprint_words(manifest.user.ed25519),
                "known_since": sheet.study.user_since,
            },
            "release": str(manifest.release),
            "epsilon": decimal_text(manifest.epsilon),
            "delta": decimal_text(manifest.delta),
            "closes_at": time_text(manifest.closes_at),
            "share": str(self.share),
            "declined": None
            if self.declined is None
            else {"time": self.declined.time, "why": self.declined.why, "is_told": self.declined.is_told},
            "rule": self.rule,
            "chain": None
            if chain is None
            else {
                "share": decimal_text(chain.share),
                "share_before": decimal_text(chain.before),
                "is_approved": chain.is_covered,
            },
            "refused_by_policy": [line.text for line in sheet.judged if not line.holds],
            "ledger": sheet.spending.to_json(),
        }


@dataclass(frozen=True, slots=True)
class UnreadRequest:
    """A proxy or a study that could not be read, and why."""

    address: str
    error: DpdpcaError

    def to_json(self) -> dict[str, Any]:
        return {"address": self.address, "problem": {"type": self.error.slug, "detail": str(self.error)}}


@dataclass(frozen=True, slots=True)
class Inbox:
    """The requests to this owner, by proxy and in the order in which the studies were opened."""

    requests: tuple[Request, ...]
    unread: tuple[UnreadRequest, ...]


def read_inbox(desk: Desk) -> Inbox:
    """What asks for this owner now. Nothing is sent besides questions.

    A study or a proxy that cannot be read does not hide the others. If one data set is registered, the ledger
    is asked for this data set.

    Raises:
        IntegrityError: the ledger is refused, or the file of a registered source is damaged.
    """
    by_rule = desk.home.ledger.read().by_rule
    policy = desk.home.policy()
    data_set = desk.home.sources.only_data_set(policy)
    requests: list[Request] = []
    unread: list[UnreadRequest] = []
    for url in desk.home.pins.proxy_urls():
        try:
            with desk.client(url) as client:
                listed = client.inbox()
        except DpdpcaError as error:
            unread.append(UnreadRequest(url, error))
            continue
        for facts in listed:
            address = StudyAddress(url, facts.study)
            try:
                sheet = review(desk, address, None, data_set)
                folder, proxy = desk.home.study(facts.study), sheet.manifest.proxy.ed25519
                approval = by_rule.get(facts.study)
                rule = None if approval is None else approval.name
                requests.append(Request(sheet, share_state(folder, proxy), folder.declined(), rule))
            except DpdpcaError as error:
                unread.append(UnreadRequest(str(address), error))
    return Inbox(tuple(requests), tuple(unread))


def share_state(folder: StudyFolder, proxy: bytes) -> ShareState:
    """What this machine knows of the share: it was begun, the proxy has acknowledged it, or it is withdrawn.

    Args:
        folder: of the study.
        proxy: the raw Ed25519 key that the study's manifest names.

    Raises:
        IntegrityError: a file of the study is damaged.
    """
    receipt, plan = folder.last_receipt(proxy), folder.plan()
    if plan is not None and plan.version > (0 if receipt is None else receipt.version):
        return ShareState.PARTIAL
    if receipt is None:
        return ShareState.ABSENT
    return ShareState.COMPLETE if receipt.subject == "share" else ShareState.WITHDRAWN
