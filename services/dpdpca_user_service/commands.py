"""`dpdpca user serve`."""

from dataclasses import replace
from typing import Annotated

import typer

from dpdpca_runtime.command_options import TlsCert, TlsKey
from dpdpca_user.commands.parts import Home, Passphrase

app = typer.Typer(help="The data user's service.")


@app.callback()
def group() -> None:
    """Makes this a group of commands, although it has only one command."""


@app.command(epilog="Example: dpdpca user serve --port 8450")
def serve(
    home: Home = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on; default: 127.0.0.1.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on; default: 8450.")] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    passphrase_file: Passphrase = None,
) -> None:
    """Run the service: it holds the secret keys, runs every study to its end, and serves models."""
    from dpdpca_runtime.asgi.certificate import ServedCertificate
    from dpdpca_runtime.asgi.observe import configure_logging
    from dpdpca_runtime.asgi.serving import Listener, ignore_hangup
    from dpdpca_runtime.asgi.serving import serve as run
    from dpdpca_runtime.asgi.traces import open_traces
    from dpdpca_runtime.http.connection import trusted_authorities
    from dpdpca_user_service.app import make_app
    from dpdpca_user_service.service import open_service
    from dpdpca_user_service.settings import load_settings

    ignore_hangup()
    settings = load_settings(
        home, host=host, port=port, tls_cert=tls_cert, tls_key=tls_key, passphrase_file=passphrase_file
    )
    settings.check_listener()
    certificate = None
    if settings.tls_cert and settings.tls_key:
        certificate = ServedCertificate(settings.tls_cert, settings.tls_key)
    configure_logging(settings.log_level)
    with open_traces(settings.traces, "dpdpca-user") as traces:
        service = replace(open_service(settings), traces=traces)
        host_name = settings.host.strip("[]")
        authority = f"[{host_name}]:{settings.port}" if ":" in host_name else f"{host_name}:{settings.port}"
        url = f"{'https' if certificate else 'http'}://{authority}"
        run(
            [
                Listener(
                    "the data user's service",
                    make_app(service),
                    settings.host,
                    settings.port,
                    certificate=certificate,
                )
            ],
            on_listening=lambda: typer.echo(
                f"the service of data user {service.party.name} listens on {url}", err=True
            ),
            on_hangup=trusted_authorities.cache_clear,
        )
