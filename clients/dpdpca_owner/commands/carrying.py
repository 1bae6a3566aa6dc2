"""`--to FOLDER` and `dpdpca owner send`: a share without a network on the machine with the data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdpca_owner.commands.joining import send_share
from dpdpca_owner.commands.parts import carried_desk, print_facts
from dpdpca_runtime.command_options import AsJson, CaFile

if TYPE_CHECKING:
    from dpdpca_owner.carrying import NotCarriedError
    from dpdpca_owner.following import Records
    from dpdpca_protocol.messages.share import Receipt
    from dpdpca_runtime.http.address import StudyAddress

EXAMPLE = "Example: dpdpca owner send /media/stick/study"


def pack_share(
    to: Path,
    place: "StudyAddress",
    records: "Records",
    yes: bool,
    as_json: bool,
    home: Path | None,
    passphrase_file: Path | None,
) -> None:
    """Put a share into a folder after consent, or book the receipt that the folder brings back."""
    from dpdpca_owner.carrying import NotCarriedError, take_receipt

    try:
        with carried_desk(to, place.proxy, place.study, home, passphrase_file) as desk:
            if (receipt := take_receipt(desk, place)) is not None:
                facts, text = _arrived(receipt)
            else:
                facts, text = send_share(desk, place, records, yes, as_json)
    except NotCarriedError as waiting:
        facts, text = carry_facts(waiting, "share")
        facts = {"study": place.study.hex(), **facts}
    print_facts(as_json, facts, text)


def carry_facts(waiting: "NotCarriedError", request: str) -> tuple[dict[str, Any], str]:
    """What is printed when the folder must be sent: as JSON, and for a person.

    Args:
        waiting: says which folder, and whether the request is in it.
        request: what the command is to put into the folder, after the questions to the proxy are answered.
    """
    folder, contains = waiting.folder, request if waiting.has_request else "questions"
    said = (
        f"the {request} is in {folder}; it counts once the proxy has it"
        if waiting.has_request
        else f"{folder} contains the questions to the proxy; nothing of your records is in it"
    )
    return {"carry": str(folder), "contains": contains}, f"{said}\nnext: {waiting.next_step}"


def _arrived(receipt: "Receipt") -> tuple[dict[str, Any], str]:
    facts = {
        "study": receipt.study.hex(),
        "already": False,
        "version": receipt.version,
        "receipt_time": receipt.time,
        "statement": receipt.statement.hex(),
    }
    what = "has the share" if receipt.subject == "share" else "has withdrawn the share"
    return facts, f"the proxy {what}: version {receipt.version}, receipt of {receipt.time}"


def send(
    folder: Annotated[Path, typer.Argument(help="The folder from the machine with the data.")],
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Send a folder from a machine without a network, and put the proxy's answers into it.

    The machine that sends needs no keys and no data. An interrupted run continues where it stopped.
    """
    from dpdpca_owner.commands.display import sending
    from dpdpca_owner.sending import send as send_folder
    from dpdpca_runtime.words import fingerprint_words

    with sending(quiet=as_json) as watcher:
        sent = send_folder(folder, watcher, ca_file=ca_file)
    facts = {
        "proxy": {"name": sent.proxy.name, "words": fingerprint_words(sent.proxy.identity.ed25519)},
        "sent": sent.sent,
        "sent_bytes": sent.sent_bytes,
        "already": sent.already,
        "answers": sent.answers,
        "unanswered": list(sent.unanswered),
        "receipts": [
            {
                "study": receipt.study.hex(),
                "subject": receipt.subject,
                "version": receipt.version,
                "time": receipt.time,
            }
            for receipt in sent.receipts
        ],
    }
    lines = [f"{sent.proxy.name} has answered {sent.answers} questions"]
    if sent.sent:
        lines.append(f"requests that were sent: {sent.sent}, with {sent.sent_bytes:,} bytes in all")
    lines += [
        f"receipt for a {receipt.subject}: version {receipt.version}, {receipt.time}"
        for receipt in sent.receipts
    ]
    if any(target.endswith("/components") for target in sent.unanswered):
        lines.append("the components are not published yet: send the folder again later to fetch them")
    lines.append(f"next: carry {folder} back to the machine with the data, and repeat the command there")
    print_facts(as_json, facts, "\n".join(lines))
