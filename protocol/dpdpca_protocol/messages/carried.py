"""The proxy's signed answer to a carried request.

An owner whose machine has no network signs requests that somebody carries to the proxy. The answers come back
by the same hands, so the proxy signs them.
"""

from dataclasses import dataclass
from typing import Self

from dpdpca_protocol.errors import AuthenticationError
from dpdpca_protocol.wire.fields import read_time
from dpdpca_protocol.wire.http import NONCE_BYTES
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import (
    FORMAT,
    IdentityKey,
    Statement,
    check_members,
    hex_bytes,
    sign_statement,
    verify_statement,
)


@dataclass(frozen=True, slots=True)
class CarriedAnswer:
    """The proxy's statement that it answered a carried request with this content.

    Attributes:
        nonce: the nonce of the request, which names one request of its signer.
        content: digest of the body of the answer.
        time: RFC 3339 UTC, by the proxy's clock.
    """

    nonce: str
    content: Digest
    time: str

    def sign(self, proxy: IdentityKey) -> Statement:
        body = {"content": self.content.hex(), "format": FORMAT, "nonce": self.nonce, "time": self.time}
        return sign_statement("answer", body, proxy)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        body = statement.body
        check_members(body, "content", "nonce", "time")
        nonce = hex_bytes(body["nonce"], NONCE_BYTES, "nonce").hex()
        read_time(body["time"], "time")
        return cls(nonce, Digest.parse(body["content"]), body["time"])

    @classmethod
    def verify(cls, untrusted: bytes, nonce: str, content: bytes, proxy: bytes) -> Self:
        """The answer, if `proxy` has answered the request with this nonce with this content.

        Raises:
            AuthenticationError: `bad-signature`, or `answer-altered`.
            MessageError: the statement is malformed.
        """
        answer = cls.parse(verify_statement("answer", untrusted, proxy))
        if (answer.nonce, answer.content) != (nonce, Digest.of(content)):
            raise AuthenticationError(
                "answer-altered",
                "an answer of the proxy belongs to another request, or was altered",
                "send the folder again",
            )
        return answer
