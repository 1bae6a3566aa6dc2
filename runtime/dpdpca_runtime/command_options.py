"""Options that commands of several roles share, with the same name, meaning and text."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AskPassphrase = Annotated[bool, typer.Option("--ask-passphrase", help="Encrypt the keys with a passphrase.")]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file", help="PEM file with the CA of the proxy's certificate; default: DPDPCA_CA_FILE."
    ),
]
InvitationFile = Annotated[
    Path | None,
    typer.Option("--invitation-file", help="File that contains the invitation; default: standard input."),
]
ProxyUrl = Annotated[str, typer.Argument(metavar="URL", help="Address of the proxy.")]
KeyUnseen = Annotated[bool, typer.Option("--yes", help="Accept the proxy's key without comparing its words.")]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="PEM file with the certificate chain.")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="PEM file with the private key.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
