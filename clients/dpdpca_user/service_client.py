"""The client with which the data user's commands and estimators call the data user's own service."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from dpdpca_protocol.errors import LimitError, MessageError, UsageError
from dpdpca_protocol.wire.address import parse_address
from dpdpca_runtime.http.connection import (
    CONNECT_SECONDS,
    Peer,
    ca_file_of_environment,
    explain_answer,
    explain_failure,
    trusted_authorities,
)
from dpdpca_runtime.http.problems import error_from_response
from dpdpca_runtime.text import load_text
from dpdpca_user.home import UserHome

TOKEN_FILE_VARIABLE = "DPDPCA_USER_TOKEN_FILE"  # noqa: S105  # the name of a variable, not a secret
_TIMEOUT = httpx.Timeout(60.0, connect=CONNECT_SECONDS)
_LIMIT_BYTES = 512 * 1024 * 1024


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
        token: bearer token; None reads it from the token file.
        home: the data user's home folder, which contains the token file.
        transport: for tests.

    Every method raises the DpdpcaError that the service's problem document names. It raises UnavailableError
    if nobody answers, and AuthenticationError if the peer is not the service.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        home: Path | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        address = parse_address(url)
        self.url = str(address)
        self._peer = Peer(
            "the data user's service", address, if_not_running="start it with: dpdpca user serve"
        )
        self._client = httpx.Client(
            base_url=self.url,
            transport=transport,
            timeout=_TIMEOUT,
            verify=trusted_authorities(ca_file_of_environment()),
            trust_env=not address.is_loopback,
            headers={"authorization": f"Bearer {find_token(token, home)}", "accept-encoding": "identity"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def create(
        self,
        draft: bytes,
        media_type: str,
        *,
        proxy: str | None = None,
        publish: bool = True,
        in_clear: bool = False,
    ) -> dict[str, Any]:
        """Submit a draft; the answer contains the draft's id."""
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
        return self._bytes("GET", f"/v1/studies/{_id(study)}/evidence/chunks/{index}")

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
        """Submit the base draft of a chain. The same draft returns the same chain, unless `again`."""
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
        return self._bytes("GET", f"/v1/models/{_id(study)}/file")

    def report(self, study: str) -> bytes:
        """The HTML report."""
        return self._bytes("GET", f"/v1/models/{_id(study)}/report")

    def _json(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        media_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        answer = json.loads(self._bytes(method, path, content, media_type, query))
        if not isinstance(answer, dict):
            raise MessageError(
                "malformed", "the answer of the service is not a JSON object", "check the service's address"
            )
        return answer

    def _bytes(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        media_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> bytes:
        headers = {"content-type": media_type} if content is not None else {}
        try:
            with self._client.stream(
                method, path, content=content, headers=headers, params=query
            ) as response:
                body = bytearray()
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > _LIMIT_BYTES:
                        raise LimitError(
                            "too-large", f"the answer of the service is larger than {_LIMIT_BYTES:,} bytes"
                        )
        except httpx.TransportError as error:
            raise explain_failure(error, self._peer, datetime.now(UTC)) from error
        if not response.is_success:
            failure = error_from_response(
                response.status_code,
                response.headers.get("content-type", ""),
                bytes(body[:65536]),
                response.headers.get("retry-after"),
            )
            raise explain_answer(failure, self._peer)
        return bytes(body)


def _id(study: str) -> str:
    """A study or draft id that may be used in a path."""
    if not study or len(study) > 64 or not all(letter in "0123456789abcdef" for letter in study):
        raise UsageError(
            "bad-study",
            "that is not the id of a study (64 hex digits) or of a draft",
            "list the studies with: dpdpca user study list",
        )
    return study
