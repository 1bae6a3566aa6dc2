"""`dpdpca user serve`."""

import asyncio
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from dpdpca_protocol.errors import UnavailableError

app = typer.Typer(help="The data user's service.")


@app.callback()
def group() -> None:
    """Keeps this a group of commands although it has one."""


@app.command(epilog="Example: dpdpca user serve --port 8450")
def serve(
    home: Annotated[
        Path | None, typer.Option("--home", help="The data user's folder; else DPDPCA_USER_HOME.")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="Listen here; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port; default 8450.")] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key, PEM.")] = None,
    passphrase_file: Annotated[
        Path | None, typer.Option("--passphrase-file", help="Seals keys at rest; one line.")
    ] = None,
) -> None:
    """Hold the secret keys, drive every study to its end, and serve models to applications."""
    import uvicorn

    from dpdpca_asgi.limits import DeadlineProtocol
    from dpdpca_asgi.loop import EdgeLoop, forbid_core_dumps, raise_file_limit
    from dpdpca_asgi.observe import configure_logging
    from dpdpca_user_service.app import make_app
    from dpdpca_user_service.service import open_service
    from dpdpca_user_service.settings import load_settings

    settings = load_settings(
        home, host=host, port=port, tls_cert=tls_cert, tls_key=tls_key, passphrase_file=passphrase_file
    )
    settings.check_listener()
    configure_logging(settings.log_level)
    forbid_core_dumps()
    raise_file_limit()
    service = open_service(settings)
    scheme = "https" if settings.tls_cert else "http"
    typer.echo(
        f"data user {service.party.name} serves on {scheme}://{settings.host}:{settings.port}", err=True
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)  # uvicorn raises it again when all is shut down
    try:
        config = uvicorn.Config(
            make_app(service),
            host=settings.host,
            port=settings.port,
            http=DeadlineProtocol,
            ssl_certfile=str(settings.tls_cert) if settings.tls_cert else None,
            ssl_keyfile=str(settings.tls_key) if settings.tls_key else None,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        server = uvicorn.Server(config)
        with asyncio.Runner(loop_factory=EdgeLoop) as runner:
            runner.run(server.serve())
        if not server.started:
            raise SystemExit(1)
    except SystemExit as left:
        if left.code:
            raise UnavailableError(
                "cannot-listen",
                f"cannot listen on {settings.host}:{settings.port}",
                "choose a free port, or stop what uses it",
            ) from left


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)
