"""Options that commands of several roles share: one name, one meaning, one text."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AskPassphrase = Annotated[bool, typer.Option("--ask-passphrase", help="Encrypt the keys.")]
CaFile = Annotated[
    Path | None, typer.Option("--ca-file", help="PEM file of the proxy's CA; default DPDPCA_CA_FILE.")
]
InvitationFile = Annotated[
    Path | None, typer.Option("--invitation-file", help="File with the invitation; default: standard input.")
]
ProxyUrl = Annotated[str, typer.Argument(metavar="URL", help="The proxy's address.")]
KeyUnseen = Annotated[bool, typer.Option("--yes", help="Accept the proxy's key unseen.")]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="PEM certificate chain.")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="PEM private key.")]
Yes = Annotated[bool, typer.Option("--yes", help="Ask no questions.")]
