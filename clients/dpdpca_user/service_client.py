"""The client with which the data user's commands and estimators call the data user's own service."""

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import httpx

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.wire.address import parse_address
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_runtime.http.connection import Peer, ca_file_of_environment
from dpdpca_runtime.http.exchange import Call, Exchange
from dpdpca_runtime.http.retry import Patience
from dpdpca_runtime.text import load_text
from dpdpca_user.home import UserHome

TOKEN_FILE_VARIABLE = "DPDPCA_USER_TOKEN_FILE"  # noqa: S105  # the name of a variable, not a secret
_LIMIT_BYTES = 512 * 1024 * 1024
_GROWTH = 6
"""How many bytes of memory one byte of an answer takes as Python objects, if our own service sent it."""
_PATIENCE = Patience(seconds=5.0)
_START = "start the service with: dpdpca user serve"


def find_url(environment: Mapping[str, str] = os.environ) -> str:
    """The default address of the service: the one in the environment, else this machine."""
    named = environment.get("DPDPCA_USER_SERVICE_URL")
    return named or f"http://127.0.0.1:{environment.get('DPDPCA_USER_PORT') or 8450}"


def find_token(
    given: str | None, home: Path | None = None, environment: Mapping[str, str] = os.environ
) -> str:
    """The bearer token: the given one, else from the file named in the environment, else from the home."""
    if given is not None:
        return given
    if environment.get(TOKEN_FILE_VARIABLE):
        return load_text(Path(environment[TOKEN_FILE_VARIABLE])).strip()
    return UserHome.find(home, environment).token()


class ServiceClient:
    """One method per route of the data user's service.

    Args:
        url: http for this machine, https for any other.
        token: bearer token; if None, it is read from the token file.
        home: the data user's home folder, which contains the token file.
        patience: how long to try again if the service answers that it is busy.
        transport: for tests.

    Every method raises the DpdpcaError that the service's problem document names. A method raises
    UnavailableError if nobody answers, and AuthenticationError if the peer is not the service.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        home: Path | None = None,
        transport: httpx.BaseTransport | None = None,
        *,
        patience: Patience = _PATIENCE,
    ) -> None:
        bearer = f"Bearer {find_token(token, home)}"

        def authorize(request: httpx.Request, _body: bytes | None, _now: datetime) -> None:
            request.headers["authorization"] = bearer

        self._exchange = Exchange(
            Peer("data user's service", parse_address(url), if_not_running=_START, is_local=True),
            authorize,
            patience,
            ca_file_of_environment(),
            transport,
        )

    @property
    def url(self) -> str:
        return self._exchange.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange.close()

    def send_feature_list(self, content: bytes) -> dict[str, Any]:
        """Store a list of features for drafts that name it.

        The answer is the `feature_list` of such a draft.
        """
        path = f"/v1/feature-lists/{Digest.of(content).hex()}"
        return self._json("PUT", path, content=content)

    def create(
        self,
        draft: bytes,
        media_type: str,
        *,
        proxy: str | None = None,
        publish: bool = True,
        in_clear: bool = False,
    ) -> dict[str, Any]:
        """Submit a draft; the answer contains the draft's id, and the owners that the study will name."""
        flags = {"publish": publish, "in_clear": in_clear}
        query = {name: "true" if flag else "false" for name, flag in flags.items()}
        query |= {"proxy": proxy} if proxy else {}
        return self._json("POST", "/v1/studies", content=draft, media_type=media_type, query=query)

    def studies(self) -> list[dict[str, Any]]:
        return list(self._json("GET", "/v1/studies")["studies"])

    def study(self, study: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/studies/{_id(study)}")

    def close_study(self, study: str) -> dict[str, Any]:
        return self._json("POST", f"/v1/studies/{_id(study)}/close")

    def cancel_study(self, study: str) -> dict[str, Any]:
        return self._json("DELETE", f"/v1/studies/{_id(study)}")

    def publish(self, study: str) -> dict[str, Any]:
        return self._json("POST", f"/v1/studies/{_id(study)}/publish")

    def result(self, study: str) -> dict[str, Any]:
        """The released numbers of a pre-study."""
        return self._json("GET", f"/v1/studies/{_id(study)}/result")

    def evidence(self, study: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/studies/{_id(study)}/evidence")

    def evidence_chunk(self, study: str, index: int) -> bytes:
        return self._bytes(f"/v1/studies/{_id(study)}/evidence/chunks/{index}")

    def run_chain(
        self,
        draft: bytes,
        media_type: str,
        *,
        proxy: str | None = None,
        publish: bool = True,
        records: int | None = None,
        scales: bool = False,
        again: bool = False,
    ) -> dict[str, Any]:
        """Submit the base draft of a chain. The same draft returns the same chain, unless `again` is true."""
        flags = {"publish": publish, "scales": scales, "again": again}
        query = {name: "true" if value else "false" for name, value in flags.items()}
        query |= {"proxy": proxy} if proxy else {}
        query |= {"records": str(records)} if records is not None else {}
        return self._json("POST", "/v1/chains", content=draft, media_type=media_type, query=query)

    def chains(self) -> list[dict[str, Any]]:
        return list(self._json("GET", "/v1/chains")["chains"])

    def chain(self, chain: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/chains/{_id(chain)}")

    def cancel_chain(self, chain: str) -> dict[str, Any]:
        return self._json("DELETE", f"/v1/chains/{_id(chain)}")

    def model(self, study: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/models/{_id(study)}")

    def model_file(self, study: str) -> bytes:
        """The model as an `.npz` file."""
        return self._bytes(f"/v1/models/{_id(study)}/file")

    def report(self, study: str) -> bytes:
        """The HTML report."""
        return self._bytes(f"/v1/models/{_id(study)}/report", takes_html=True)

    def _json(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        media_type: str = JSON_MEDIA_TYPE,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        call = Call(
            method,
            path,
            content,
            media_type,
            urlencode(query or {}),
            limit_bytes=_LIMIT_BYTES,
            is_repeatable=method in ("GET", "PUT"),
        )
        return self._exchange.ask(call, _GROWTH * _LIMIT_BYTES)

    def _bytes(self, path: str, *, takes_html: bool = False) -> bytes:
        call = Call("GET", path, limit_bytes=_LIMIT_BYTES, takes_html=takes_html)
        return self._exchange.send(call)


def _id(study: str) -> str:
    """A study or draft id that may be used in a path."""
    if not study or len(study) > 64 or not all(letter in "0123456789abcdef" for letter in study):
        raise UsageError(
            "bad-study",
            "that is not the id of a study (64 hex digits) or of a draft",
            "list the studies with: dpdpca user study list",
        )
    return study
