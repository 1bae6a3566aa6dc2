"""`dpdpca owner join`: asks for consent, sends the share and, with --follow, goes on to the components."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from dpdpca_owner.commands.parts import make_console, need_terminal, print_facts, say
from dpdpca_protocol.errors import DpdpcaError, PolicyError

if TYPE_CHECKING:
    from dpdpca_owner.actions import Desk
    from dpdpca_owner.following import Records
    from dpdpca_runtime.http.address import StudyAddress


def send_share(
    desk: "Desk",
    place: "StudyAddress",
    records: "Records",
    yes: bool,
    as_json: bool,
    on_consent: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Any], str]:
    """Send the share, after consent. Returns what is to be printed, as JSON and for a person."""
    from dpdpca_owner import actions
    from dpdpca_owner.commands.display import show_sheet, watching
    from dpdpca_owner.upload import Outcome
    from dpdpca_runtime.words import fingerprint_words

    prepared = actions.prepare_join(desk, place, records.location, records.data_set, strict=records.strict)
    if not yes and not prepared.is_approved:
        show_sheet(prepared.sheet, make_console(err=True))
        need_terminal("consent")
        if not typer.confirm("Send this share?", err=True):
            raise PolicyError("not-consented", "you did not consent, and nothing was sent")
    elif not as_json:
        for warning in prepared.sheet.summary().warnings:
            say(f"WARNING: {warning}")
    on_consent()
    desk.home.study(place.study).drop_declined()  # the newest word counts
    figures = prepared.manifest.figures
    with watching(
        figures.ciphertext_count or figures.value_count, prepared.sheet.sealed_bytes, quiet=as_json
    ) as watcher:
        settled = actions.join(desk, place, prepared, watcher)
    receipt, report = settled.receipt, prepared.contribution.report
    user, first_contact = prepared.manifest.user, prepared.sheet.study.user_since is None
    facts = {
        "study": place.study.hex(),
        "user": {"name": user.name, "words": fingerprint_words(user.ed25519), "first_contact": first_contact},
        "already": settled.outcome is Outcome.ALREADY,
        "version": receipt.version,
        "receipt_time": receipt.time,
        "statement": receipt.statement.hex(),
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
        "sent_chunks": settled.sent_chunks,
        "sent_bytes": settled.sent_bytes,
    }
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

    With a registered source, the consent is kept, so that the agent or another run can continue.
    """
    from dpdpca_owner.commands.display import components_facts, show_components
    from dpdpca_owner.followed import FollowedStudy
    from dpdpca_owner.following import FINAL, Follower, follow, has_sent, is_passing

    kept = desk.home.followed
    followed = None
    if source is not None and records.data_set is not None:
        followed = FollowedStudy(place, source, records.data_set, records.strict)

    def keep_consent() -> None:
        if followed is not None:
            kept.add(followed)

    consented = followed is not None and followed in kept.all()
    facts: dict[str, Any] = {"study": place.study.hex(), "already": True}
    if has_sent(desk.home, place):
        say("the proxy already has this share")
        keep_consent()
    elif not consented:

        def on_consent() -> None:
            nonlocal consented
            consented = True
            keep_consent()

        try:
            facts, text = send_share(desk, place, records, yes, as_json, on_consent)
            say(text)
        except DpdpcaError as error:
            if not (consented and is_passing(error)):
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
        shown = components_facts(result.components, result.records, result.path)
        print_facts(True, facts | {"result": {"address": str(result.address), **shown}}, "")
    else:
        show_components(result.components, result.records, make_console())
        say(f"the components are in {result.path}")
