"""Runs the proxy with its public listener and the operator's listener, until a signal stops it."""

import sys

from dpdpca_proxy.app import create_app, create_operator_app
from dpdpca_proxy.proxy import open_proxy
from dpdpca_proxy.settings import Settings
from dpdpca_runtime.asgi.certificate import ServedCertificate
from dpdpca_runtime.asgi.observe import configure_logging
from dpdpca_runtime.asgi.serving import Listener, ignore_hangup
from dpdpca_runtime.asgi.serving import serve as run

_TURN_SECONDS = 0.001
"""How long a thread that checks ciphertexts may delay the event loop; Python's default is 5 ms."""


def serve(settings: Settings) -> None:
    """Runs until SIGINT or SIGTERM. SIGHUP makes the proxy reload its certificate.

    Raises:
        UsageError: the settings are unsafe, a certificate does not load, or the object storage is unfit.
        PolicyError: others can read the seal key of the Dask cluster.
        NotFoundError: `not-initialised`.
        ConflictError: `generation-mismatch`, the generation file is not where the settings say. If the
            database is an older copy, the proxy still starts, but it only reports this and does no work.
        UnavailableError: `cannot-listen`.
    """
    ignore_hangup()
    settings.check_listener()
    if settings.cluster is not None:
        settings.cluster.check()
    certificate = None
    if settings.tls_cert and settings.tls_key:
        certificate = ServedCertificate(settings.tls_cert, settings.tls_key)
    proxy = open_proxy(settings)
    proxy.database.check_witness_is_there()
    proxy.files.check()
    public = create_app(proxy)
    operator = create_operator_app(public)
    if certificate is not None:
        loaded = certificate
        public.state.proxy.metrics.gauge("dpdpca_certificate_seconds_left", lambda: {(): loaded.seconds_left})
    configure_logging(settings.log_level)
    sys.setswitchinterval(_TURN_SECONDS)
    run(
        [
            Listener("the public listener", public, settings.host, settings.port, certificate=certificate),
            Listener(
                "the operator's page",
                operator,
                settings.operator_host,
                settings.operator_port,
                "--operator-port",
            ),
        ],
        on_stop=public.state.stopping.set,
    )
