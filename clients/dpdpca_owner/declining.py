"""Declining a study: a signed statement for its data user, and this owner's own record of it.

The record is written before anything is sent. From then on no earlier approval joins the study: neither that
of its chain, nor that of a followed study, nor a rule. Only a person who joins the study takes it back.
"""

from dataclasses import replace

from dpdpca_owner.actions import Desk
from dpdpca_owner.inbox import share_state
from dpdpca_owner.study_checks import check_participant
from dpdpca_owner.study_folder import Declined, StudyFolder
from dpdpca_protocol.errors import ConflictError, NotAllowedError, UnavailableError, UsageError
from dpdpca_protocol.messages.share import MAX_WHY, Decline
from dpdpca_protocol.study import ShareState
from dpdpca_protocol.wire.fields import text_problem, time_text
from dpdpca_runtime.http.address import StudyAddress


def decline(desk: Desk, address: StudyAddress, why: str | None = None) -> Declined:
    """Tell the data user of an open study that this owner does not take part.

    Nothing is spent, and the ledger stays as it is. If a part of a share may have left this machine, its cost
    stays booked, because nobody can show that it was not used. A repeated call sends the same statement
    again, or a new one if `why` is another text.

    Args:
        desk: this owner.
        address: of the study.
        why: one line of plain text for the data user. The proxy's operator can read it too.

    Returns:
        The record that is kept here.

    Raises:
        UsageError: `bad-why`, the text is too long or not plain.
        NotAllowedError: the study names its owners, and this owner is not among them.
        ConflictError: `share-complete`, the owner has to withdraw its share instead; `study-closed`; `busy`,
            a share of this study is being sent.
        UnavailableError: the proxy cannot be reached. The record stands, and the data user is not told yet.
    """
    if why is not None and (problem := text_problem(why, MAX_WHY)):
        raise UsageError("bad-why", f"the reason {problem}", "give one line of plain text with --why")
    folder = desk.home.study(address.study)
    with desk.study(address) as (desk, client, opened):
        check_participant(opened.manifest, desk.owner)
        with folder.locked():
            if share_state(folder, opened.manifest.proxy.ed25519) is ShareState.COMPLETE:
                raise ConflictError(
                    "share-complete",
                    "you have joined this study: the proxy has your share",
                    f"withdraw instead: dpdpca owner withdraw {address}",
                )
            before = folder.declined()
            declined = _newest(before, why, time_text(desk.now()))
            folder.save_declined(declined)
            said = Decline(address.study, desk.owner.key.public.ed25519, declined.time, declined.why)
            try:
                client.decline(address.study, said.sign(desk.owner.key))
            except (ConflictError, NotAllowedError):
                _restore(folder, before)
                raise
            except UnavailableError as error:
                desk.home.followed.remove(address)
                raise UnavailableError(
                    error.slug,
                    error.problem,
                    "your decision is kept here, but the data user is not told yet: decline again later",
                    retry_after_seconds=error.retry_after_seconds,
                ) from error
            declined = replace(declined, is_told=True)
            folder.save_declined(declined)
            desk.home.followed.remove(address)
    return declined


def _newest(before: Declined | None, why: str | None, now: str) -> Declined:
    """The earlier decision if it is repeated, else a new one."""
    if before is not None and why in (None, before.why):
        return replace(before, is_told=False)
    return Declined(now, why)


def _restore(folder: StudyFolder, before: Declined | None) -> None:
    if before is None:
        folder.drop_declined()
    else:
        folder.save_declined(before)
