"""Signs the answers to carried requests.

An owner whose machine has no network receives these answers from whoever carried its request, and not over
TLS. So each answer is signed, together with the nonce of the request.
"""

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dpdpca_protocol.messages.carried import CarriedAnswer
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.http import ANSWER_HEADER
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_proxy.proxy import Proxy

_NONCE = "dpdpca.carried"


def sign_answer(scope: Scope, nonce: str) -> None:
    """Let the answer to the request of this scope be signed. Its nonce is `nonce`."""
    scope[_NONCE].append(nonce)


def leave_unsigned(scope: Scope) -> None:
    """Let the answer to the request of this scope be sent as it is, because its content proves itself."""
    scope[_NONCE].clear()


class CarriedAnswers:
    """Adds a signed `answer` to each successful answer for which `sign_answer` was called, and
    `leave_unsigned` was not. Such an answer is held in memory as a whole."""

    def __init__(self, app: ASGIApp, proxy: Proxy) -> None:
        self._app = app
        self._proxy = proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonces: list[str] = []
        start: list[Message] = []
        content = bytearray()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and nonces and message["status"] < 300:
                start.append(message)
            elif start and message["type"] == "http.response.body":
                content.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    signed = await run_in_threadpool(self._sign, nonces[0], bytes(content))
                    (begun,) = start
                    begun["headers"] = [*begun["headers"], (ANSWER_HEADER.encode(), signed)]
                    await send(begun)
                    await send({"type": "http.response.body", "body": bytes(content)})
            else:
                await send(message)

        scope[_NONCE] = nonces
        await self._app(scope, receive, answer)

    def _sign(self, nonce: str, content: bytes) -> bytes:
        proxy = self._proxy
        return CarriedAnswer(nonce, Digest.of(content), time_text(proxy.now())).sign(proxy.key).encoded
