"""`dpdpca owner join`: asks for consent, sends the share and, with --follow, goes on to the components."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from dpdpca_owner.commands.parts import make_console, need_terminal, print_facts, say
from dpdpca_protocol.errors import DpdpcaError, PolicyError
from dpdpca_protocol.study import ShareState

if TYPE_CHECKING:
    from dpdpca_owner.actions import Desk, Prepared
    from dpdpca_owner.following import Records
    from dpdpca_runtime.http.address import StudyAddress


def send_share(
    desk: "Desk", place: "StudyAddress", records: "Records", yes: bool, as_json: bool
) -> tuple[dict[str, Any], str]:
    """Send the share, after consent. Returns what is to be printed, as JSON and for a person."""
    return _send(desk, place, _ask_consent(desk, place, records, yes, as_json), as_json)


def _ask_consent(
    desk: "Desk", place: "StudyAddress", records: "Records", yes: bool, as_json: bool
) -> "Prepared":
    """The share that a person consented to. Nothing is changed and nothing is sent."""
    from dpdpca_owner import actions
    from dpdpca_owner.commands.display import show_sheet

    prepared = actions.prepare_join(desk, place, records.location, records.data_set, strict=records.strict)
    if not yes and not prepared.is_approved:
        show_sheet(prepared.sheet, make_console(err=True))
        need_terminal("consent")
        if not typer.confirm("Send this share?", err=True):
            raise PolicyError("not-consented", "you did not consent, and nothing was sent")
    elif not as_json:
        for warning in prepared.sheet.summary().warnings:
            say(f"WARNING: {warning}")
    desk.home.study(place.study).drop_declined()  # the latest decision counts
    return prepared


def _send(
    desk: "Desk", place: "StudyAddress", prepared: "Prepared", as_json: bool
) -> tuple[dict[str, Any], str]:
    from dpdpca_owner import actions
    from dpdpca_owner.commands.display import watching
    from dpdpca_owner.upload import Outcome
    from dpdpca_runtime.words import fingerprint_words

    figures = prepared.manifest.figures
    with watching(
        figures.ciphertext_count or figures.value_count, prepared.sheet.sealed_bytes, quiet=as_json
    ) as watcher:
        settled = actions.join(desk, place, prepared, watcher)
    receipt, report = settled.receipt, prepared.contribution.report
    user, first_contact = prepared.manifest.user, prepared.sheet.study.user_since is None
    facts = {
        "study": place.study.hex(),
        "already": settled.outcome is Outcome.ALREADY,
        "version": receipt.version,
        "receipt_time": receipt.time,
        "statement": receipt.statement.hex(),
        "sent_chunks": settled.sent_chunks,
        "sent_bytes": settled.sent_bytes,
    } | _shown(prepared)
    text = (
        f"the proxy already has this share: version {receipt.version}, receipt of {receipt.time}"
        if settled.outcome is Outcome.ALREADY
        else f"the proxy has the share: version {receipt.version} with {report.accepted} records,"
        f" {settled.sent_bytes:,} bytes sent, receipt of {receipt.time}"
    )
    if first_contact:
        text += f"\nfirst contact with {user.name}; its key is now pinned: {fingerprint_words(user.ed25519)}"
    text += "".join(f"\nnote: {note}" for note in prepared.contribution.notes)
    return facts, text


def _shown(prepared: "Prepared") -> dict[str, Any]:
    """What the consent sheet says of the data user and of the records."""
    from dpdpca_runtime.words import fingerprint_words

    user, report = prepared.manifest.user, prepared.contribution.report
    first_contact = prepared.sheet.study.user_since is None
    return {
        "user": {"name": user.name, "words": fingerprint_words(user.ed25519), "first_contact": first_contact},
        "records": report.accepted,
        "dropped": report.dropped,
        "clipped": report.clipped,
        "unusable": {
            feature.name: count
            for feature, count in zip(prepared.manifest.features, report.unusable, strict=True)
            if count
        },
        "notes": list(prepared.contribution.notes),
        "warnings": list(prepared.sheet.summary().warnings),
    }


def join_and_follow(
    desk: "Desk",
    place: "StudyAddress",
    records: "Records",
    source: str | None,
    yes: bool,
    as_json: bool,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Send the share unless it was sent before, follow the study, and show the components.

    With a registered source, the consent is kept, so that the agent or another run can continue. If an agent
    is running, it does everything else, and this command ends.
    """
    from dpdpca_owner.agent import is_agent_running
    from dpdpca_owner.commands.display import components_facts, show_components
    from dpdpca_owner.followed import FollowedStudy
    from dpdpca_owner.following import FINAL, Follower, follow, is_passing, share_at

    kept = desk.home.followed
    followed = None
    if source is not None and records.data_set is not None:
        followed = FollowedStudy(place, source, records.data_set, records.strict)
    consented = followed is not None and followed in kept.all()
    share = share_at(desk.home, place)
    sent = share is ShareState.COMPLETE
    prepared: Prepared | None = None
    if not sent and not consented:
        prepared = _ask_consent(desk, place, records, yes, as_json)
        consented = True
    if followed is not None:
        # In this order: an agent that starts or ends meanwhile finds the consent.
        kept.add(followed)
        # A withdrawn share is sent again only by a person.
        if share is not ShareState.WITHDRAWN and is_agent_running(desk.home):
            print_facts(as_json, *_handed_over(place, prepared, sent))
            return
    facts: dict[str, Any] = {"study": place.study.hex(), "already": True}
    if sent:
        say("the proxy already has this share")
    elif prepared is not None:
        try:
            facts, text = _send(desk, place, prepared, as_json)
            say(text)
        except DpdpcaError as error:
            if not is_passing(error):
                kept.remove(place)
                raise
            say(f"waiting: {error}")
    try:
        result = follow(Follower(desk, place, records, is_approved=consented), sleep)
    except DpdpcaError as error:
        if error.slug in FINAL:
            kept.remove(place)
        raise
    kept.remove(place)
    if as_json:
        shown = components_facts(result.components, result.manifest, result.path)
        print_facts(True, facts | {"agent": False, "result": {"address": str(result.address), **shown}}, "")
    else:
        show_components(result.components, result.manifest, make_console())
        say(f"the components are in {result.path}")


def _handed_over(
    place: "StudyAddress", prepared: "Prepared | None", sent: bool
) -> tuple[dict[str, Any], str]:
    """What is printed when the agent goes on, as JSON and for a person."""
    facts: dict[str, Any] = {"study": place.study.hex(), "already": sent, "agent": True}
    if prepared is not None:
        facts |= _shown(prepared)
    does = "the agent follows this study" if sent else "the agent sends the share"
    return facts, (
        f"approved: {does} and fetches the components. If the agent stops, it continues at its next start\n"
        f"to see how far it is: dpdpca owner status {place}, or dpdpca owner inbox"
    )
