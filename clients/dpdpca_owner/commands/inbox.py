"""`dpdpca owner inbox`: shows what asks for this owner."""

from typing import TYPE_CHECKING

from dpdpca_owner.commands.parts import Home, Passphrase, open_desk, print_facts
from dpdpca_protocol.study import ShareState
from dpdpca_runtime.command_options import AsJson, CaFile
from dpdpca_runtime.text import for_terminal

if TYPE_CHECKING:
    from dpdpca_owner.inbox import Request

EXAMPLE = "Example: dpdpca owner inbox --json"


def inbox(
    home: Home = None, ca_file: CaFile = None, passphrase_file: Passphrase = None, as_json: AsJson = False
) -> None:
    """List the open studies that ask for this owner, at every proxy where it is enrolled. Sends nothing."""
    from dpdpca_owner.inbox import read_inbox

    found = read_inbox(open_desk(home, ca_file, passphrase_file))
    facts = {
        "requests": [each.to_json() for each in found.requests],
        "unread": [each.to_json() for each in found.unread],
    }
    texts = [request_text(each) for each in found.requests]
    texts += [f"{each.address}\n  not read  {for_terminal(str(each.error))}" for each in found.unread]
    print_facts(as_json, facts, "\n\n".join(texts) or "no study asks for this owner")
    for each in found.unread:
        raise each.error


def request_text(request: "Request") -> str:
    """Several lines for a person."""
    from dpdpca_owner.inbox import SHARE_WORDS

    sheet, manifest = request.sheet, request.sheet.manifest
    total = "" if sheet.chain is None else ", the TOTAL for all rounds of a chain"
    met = f"known since {sheet.study.user_since}" if sheet.study.user_since else "first contact"
    lines = [
        f"{manifest.title}",
        f"  address  {sheet.address}",
        f"  from     {manifest.user.name} ({met})",
        f"  purpose  {manifest.purpose}",
        f"  privacy  ε = {float(manifest.epsilon):.6g}, δ = {float(manifest.delta):.6g}{total}",
        f"  ledger   {request.ledger_line}",
    ]
    if sheet.chain is not None:
        covered = "you approved this chain" if sheet.chain.is_covered else "this chain needs your approval"
        lines.append(f"  chain    {covered}; this round takes {float(sheet.chain.share):.4%} of the total")
    lines += [f"  policy   REFUSED: {line.text}" for line in sheet.judged if not line.holds]
    lines += [
        f"  until    {manifest.closes_at:%Y-%m-%d %H:%M} UTC",
        f"  yours    {SHARE_WORDS[request.share]}",
    ]
    if request.rule is not None:
        lines.append(f"  rule     approved by the rule '{request.rule}'")
    if request.declined is not None:
        told = "" if request.declined.is_told else "; the data user is not told yet: decline again"
        lines.append(f"  declined you declined on {request.declined.time[:10]}{told}")
    elif request.share in (ShareState.ABSENT, ShareState.PARTIAL):
        lines.append(f"  next     dpdpca owner review {sheet.address}")
    return "\n".join(map(for_terminal, lines))
