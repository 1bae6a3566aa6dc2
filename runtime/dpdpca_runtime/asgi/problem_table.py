"""Every problem that a service's routes name, on one screen: its status, what it means, what helps.

The OpenAPI documents list these, and the error itself says more. A test holds the statuses against the code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """What a `type` stands for, and what helps."""

    status: int
    meaning: str
    remedy: str


_ASK_OPERATOR = "ask the operator of the service"
_CORRECT_DRAFT = "correct the draft"

PROBLEMS: Final[Mapping[str, ProblemKind]] = {
    "already-enrolled": ProblemKind(409, "the key is enrolled already", "use it as it is"),
    "already-rotated": ProblemKind(409, "the key gave way to another one before", "use its successor"),
    "bad-argument": ProblemKind(422, "the model has fewer components than were asked for", "ask for fewer"),
    "bad-signature": ProblemKind(401, "a signature does not hold", "sign with the enrolled key"),
    "bad-token": ProblemKind(401, "the bearer token is missing or wrong", "use the token in the home"),
    "busy": ProblemKind(503, "the service has as much to do as it takes", "try again later"),
    "chain-differs": ProblemKind(
        409, "there is a chain of this draft with other options", "use it, or ask for a new one with again"
    ),
    "chunk-differs": ProblemKind(409, "another chunk stands at this place", "send a new version"),
    "chunk-of-another-owner": ProblemKind(
        422, "the chunk stands in another owner's share too", "encrypt the share anew"
    ),
    "ciphertext-not-a-unit": ProblemKind(422, "a ciphertext is no unit", "encrypt the share anew"),
    "ciphertext-out-of-range": ProblemKind(422, "a ciphertext is out of range", "encrypt the share anew"),
    "ciphertext-repeated": ProblemKind(422, "a ciphertext stands there twice", "encrypt the share anew"),
    "clock-behind": ProblemKind(503, "the service's clock is behind", _ASK_OPERATOR),
    "cohort-full": ProblemKind(
        409,
        "as many owners are in as the manifest takes",
        "ask the data user for a study that takes more owners",
    ),
    "cohort-too-small": ProblemKind(409, "too few owners have delivered", "wait for more owners"),
    "components-differ": ProblemKind(
        409, "other components were published before", "use those that are published"
    ),
    "count-already-answered": ProblemKind(
        409, "another answer to the count was given before", "use the answer that was given"
    ),
    "count-out-of-range": ProblemKind(
        422, "the number of records is not what the manifest allows", "run a study whose limits fit"
    ),
    "count-proof-false": ProblemKind(
        422, "the proof of the number of records does not hold", "prove the count with the study's key"
    ),
    "cut-off": ProblemKind(503, "the proxy closed the connection too early", "try again"),
    "deadline": ProblemKind(408, "the request takes too long", "send less at once"),
    "duplicated-column": ProblemKind(422, "a column stands there twice", "name each column once"),
    "gateway": ProblemKind(503, "something before the proxy does not pass the request on", "try again later"),
    "generation-mismatch": ProblemKind(409, "the proxy's state is older than what it signed", _ASK_OPERATOR),
    "has-components": ProblemKind(409, "the study has components", "read its model"),
    "internal": ProblemKind(500, "an unexpected internal error", "give the operator the incident's id"),
    "invitation-expired": ProblemKind(401, "the invitation has expired", "ask the operator for a new one"),
    "invitation-unknown": ProblemKind(401, "there is no such invitation", "ask the operator for one"),
    "invitation-used": ProblemKind(401, "the invitation was used before", "ask the operator for a new one"),
    "key-given-up": ProblemKind(409, "the key gave way to another one", "use its successor"),
    "malformed": ProblemKind(
        400, "the request or its body has not the form of this route", "compare the request with /docs"
    ),
    "malformed-rows": ProblemKind(422, "a row does not fit the model's features", "correct the row"),
    "manifest-refused": ProblemKind(403, "a rule for studies says no", "change the draft"),
    "missing-column": ProblemKind(422, "a column of the manifest is missing", "send every feature"),
    "newer-store": ProblemKind(403, "the store is of a newer version", "use that version"),
    "no-answer": ProblemKind(503, "the proxy does not answer in time", "try again later"),
    "no-chain": ProblemKind(403, "the draft cannot be the base of a chain", _CORRECT_DRAFT),
    "no-components": ProblemKind(409, "a pre-study has no components", "read its result"),
    "no-count": ProblemKind(409, "no number of records is asked for in this study", "read the study's state"),
    "no-such-chunk": ProblemKind(
        400, "the release has no such chunk here", "ask for a chunk that the release names"
    ),
    "no-tls": ProblemKind(401, "the proxy does not speak TLS at its address", "check the port"),
    "noise-already-drawn": ProblemKind(
        409, "the noise is drawn: the study can no longer be cancelled", "let the study end"
    ),
    "not-a-level": ProblemKind(422, "a value is no level of its feature", "use the manifest's levels"),
    "not-a-number": ProblemKind(422, "a value is no number", "send numbers"),
    "not-a-participant": ProblemKind(
        403, "the manifest does not name this owner", "ask the data user to name this owner"
    ),
    "not-a-proxy": ProblemKind(
        400, "something other than a proxy answers at its address", "check the address"
    ),
    "not-canonical": ProblemKind(400, "the body is not canonical JSON (RFC 8785)", "send its one encoding"),
    "not-enrolled": ProblemKind(404, "this data user is not enrolled at that proxy", "enrol there first"),
    "not-found": ProblemKind(
        404, "there is no such thing here, or not for this caller", "check the address and the id"
    ),
    "not-http": ProblemKind(
        401, "something other than HTTP answers at the proxy's address", "check the port"
    ),
    "not-in-the-cohort": ProblemKind(
        403, "the owner has no share in the study", "only owners in the study may ask"
    ),
    "not-ready": ProblemKind(409, "the study is not that far yet", "read its state"),
    "not-the-study-owner": ProblemKind(
        403, "the study belongs to another data user", "use the key that made the study"
    ),
    "proxy-pinned-twice": ProblemKind(401, "the proxy was pinned with different keys", "compare the words"),
    "ragged-columns": ProblemKind(
        422, "the columns have different lengths", "give each column as many values"
    ),
    "replayed-request": ProblemKind(401, "the request was seen before", "sign it anew"),
    "rotation-not-newer": ProblemKind(409, "the rotation's version is not above the last", "raise it"),
    "sealed-body-does-not-open": ProblemKind(
        422,
        "the chunk is not sealed to this proxy for this place",
        "seal the chunk anew, to the proxy's present key",
    ),
    "several-proxies": ProblemKind(403, "several proxies are known", "name one"),
    "share-incomplete": ProblemKind(409, "chunks of the share are missing", "send them"),
    "share-under-another-key": ProblemKind(
        409, "the party's share is in under another of its keys", "deliver under the key that began the share"
    ),
    "share-version-not-newer": ProblemKind(409, "this version or a later one is there", "raise it"),
    "shares-deleted": ProblemKind(409, "the shares of this study are deleted", "read the study's state"),
    "stale-request": ProblemKind(401, "the signature is too old or of the future", "set the clock"),
    "state-corrupt": ProblemKind(500, "the stored state contradicts itself", _ASK_OPERATOR),
    "statement-differs": ProblemKind(
        409,
        "another statement was signed under this version",
        "send the first one again, or raise the version",
    ),
    "storage-failing": ProblemKind(503, "the storage refuses to work", "try again later"),
    "storage-full": ProblemKind(507, "the service has no room left", "try again later"),
    "study-closed": ProblemKind(409, "the study no longer takes shares", "read its state"),
    "tls-expected": ProblemKind(401, "the proxy speaks TLS, and plain HTTP was sent to it", "use https"),
    "too-few-records": ProblemKind(403, "the components would be noise", "more records, or a larger ε"),
    "too-large": ProblemKind(413, "the body is larger than this route takes", "send less"),
    "too-large-on-the-way": ProblemKind(
        413, "something before the proxy refuses a body of this size", _ASK_OPERATOR
    ),
    "too-many": ProblemKind(429, "too many requests in a short time", "wait a little"),
    "too-many-rotations": ProblemKind(409, "the party has rotated its keys too often", "enrol anew"),
    "too-many-versions": ProblemKind(
        409, "the owner has completed too many versions of its share", "keep the share as it is"
    ),
    "unfit-modulus": ProblemKind(422, "the study's modulus or its proof is not fit", "make another key"),
    "unfit-sealing-key": ProblemKind(422, "the X25519 key is of low order", "make a proper key"),
    "unknown-key": ProblemKind(401, "no enrolled party has this key", "enrol first"),
    "unknown-level": ProblemKind(422, "a value is none of its feature's levels", "use the manifest's levels"),
    "unreachable": ProblemKind(503, "the proxy cannot be reached", "check its address and the network"),
    "unsupported-media-type": ProblemKind(
        415, "the content type is not one this route takes", "send a type that /docs names"
    ),
    "unsupported-version": ProblemKind(400, "the message is of another format version", "upgrade"),
    "untrusted-certificate": ProblemKind(401, "the proxy's TLS certificate is not accepted", "name its CA"),
    "value-missing": ProblemKind(422, "a row lacks a value", "send every feature"),
    "wrong-address": ProblemKind(421, "the request is meant for another address", "use the known address"),
    "wrong-proxy": ProblemKind(401, "the introduction is made to another proxy", "enrol anew"),
    "wrong-role": ProblemKind(403, "the route is for another role", "use a party of that role"),
    "wrong-state": ProblemKind(409, "the study's state does not allow it", "read its state"),
}
"""Slug → kind."""
