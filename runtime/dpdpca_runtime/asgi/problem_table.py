"""All problems that the routes of the services can give: status, meaning and remedy.

The OpenAPI documents list these problems. The error itself says more. A test compares the statuses with the
code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """The meaning of a problem `type`, and its remedy."""

    status: int
    meaning: str
    remedy: str


_ASK_OPERATOR = "ask the operator of the service"
_CORRECT_DRAFT = "correct the draft"

PROBLEMS: Final[Mapping[str, ProblemKind]] = {
    "already-enrolled": ProblemKind(
        409, "the key is already enrolled", "use the key without enrolling again"
    ),
    "already-rotated": ProblemKind(409, "the key was already replaced by another key", "use the new key"),
    "bad-argument": ProblemKind(
        422, "the model has fewer components than requested", "request fewer components"
    ),
    "bad-signature": ProblemKind(401, "a signature is invalid", "sign with the enrolled key"),
    "bad-token": ProblemKind(
        401, "the bearer token is missing or wrong", "use the token from the data user's home"
    ),
    "busy": ProblemKind(503, "the service is busy", "try again later"),
    "chain-differs": ProblemKind(
        409,
        "this draft already has a chain with other options",
        "use that chain, or set `again` to create a new chain",
    ),
    "blinded-share-is-final": ProblemKind(
        409, "a share of a blinded study cannot be replaced", "send version 1, with the same chunks"
    ),
    "chunk-differs": ProblemKind(
        409,
        "a different chunk is already stored at this position",
        "send a new version of the share",
    ),
    "chunk-of-another-owner": ProblemKind(
        422, "the chunk is also in another owner's share", "encrypt the share again"
    ),
    "ciphertext-not-a-unit": ProblemKind(422, "a ciphertext is not a unit", "encrypt the share again"),
    "ciphertext-out-of-range": ProblemKind(422, "a ciphertext is out of range", "encrypt the share again"),
    "ciphertext-repeated": ProblemKind(422, "a ciphertext appears twice", "encrypt the share again"),
    "clock-behind": ProblemKind(503, "the service's clock is behind", _ASK_OPERATOR),
    "cohort-full": ProblemKind(
        409,
        "the study has as many owners as the manifest allows",
        "ask the data user for a study with room for more owners",
    ),
    "cohort-too-close": ProblemKind(
        403,
        "the cohort would differ by too few owners from that of another study",
        "name the same owners, or more new ones",
    ),
    "cohort-too-small": ProblemKind(409, "too few owners have complete shares", "wait for more owners"),
    "components-differ": ProblemKind(
        409, "other components were published before", "use the published components"
    ),
    "components-missing": ProblemKind(
        409, "the model has too few components for a table with noise", "remove the noise"
    ),
    "count-already-answered": ProblemKind(
        409, "the count challenge was already answered differently", "use the earlier answer"
    ),
    "count-out-of-range": ProblemKind(
        422, "the manifest does not allow this number of records", "run a study with suitable limits"
    ),
    "count-proof-false": ProblemKind(
        422, "the proof of the number of records is invalid", "prove the count with the study's key"
    ),
    "cut-off": ProblemKind(503, "the proxy closed the connection too early", "try again"),
    "deadline": ProblemKind(408, "the request takes too long", "send less data at once"),
    "duplicated-column": ProblemKind(422, "a column appears twice", "name each column once"),
    "gateway": ProblemKind(
        503, "a server in front of the proxy does not pass the request on", "try again later"
    ),
    "feature-list-differs": ProblemKind(
        400,
        "the list of features is not the one that is named",
        "send or get the list again",
    ),
    "feature-list-missing": ProblemKind(
        404,
        "the list of features is not here",
        "the data user sends the list before the manifest that names it",
    ),
    "generation-mismatch": ProblemKind(
        409, "the proxy's state is older than its signed statements", _ASK_OPERATOR
    ),
    "file-not-private": ProblemKind(
        500,
        "others may read or change a private file of the service",
        "ask the operator to run the chmod that the service's log shows",
    ),
    "has-components": ProblemKind(
        409, "the study gives components instead of numbers", "read the study's model"
    ),
    "internal": ProblemKind(500, "unexpected internal error", "tell the operator the id of the incident"),
    "invitation-expired": ProblemKind(
        401, "the invitation has expired", "ask the operator for a new invitation"
    ),
    "invitation-unknown": ProblemKind(
        401, "there is no such invitation", "ask the operator for an invitation"
    ),
    "invitation-used": ProblemKind(
        401, "the invitation was already used", "ask the operator for a new invitation"
    ),
    "key-given-up": ProblemKind(409, "the key was replaced by another key", "use the key that replaced it"),
    "malformed": ProblemKind(
        400,
        "the request or its body does not have the form that this route needs",
        "compare the request with /docs",
    ),
    "malformed-rows": ProblemKind(422, "a row does not fit the model's features", "correct the row"),
    "manifest-refused": ProblemKind(403, "a rule for studies forbids the terms", "change the draft"),
    "missing-column": ProblemKind(422, "a column of the manifest is missing", "send every feature"),
    "model-too-old": ProblemKind(
        409, "the model was made before variances were kept", "create the study again"
    ),
    "newer-store": ProblemKind(
        403, "a newer version of the program wrote the store", "use the newer version"
    ),
    "no-answer": ProblemKind(503, "the proxy does not answer in time", "try again later"),
    "no-chain": ProblemKind(403, "the draft cannot be the base of a chain", _CORRECT_DRAFT),
    "no-components": ProblemKind(409, "this kind of round gives no components", "read its result"),
    "no-correlation": ProblemKind(
        409, "the study released no matrix of features", "use the components and their variances"
    ),
    "no-count": ProblemKind(409, "this study has no count challenge", "read the study's state"),
    "no-mean": ProblemKind(409, "the release has no mean", "use a joint study"),
    "no-such-chunk": ProblemKind(
        400, "the release has no such chunk", "request a chunk that the release lists"
    ),
    "no-tls": ProblemKind(401, "the proxy does not use TLS at its address", "check the port"),
    "noise-already-drawn": ProblemKind(
        409, "the noise was drawn, so the study can no longer be cancelled", "wait for the release"
    ),
    "nothing-in-the-sketch": ProblemKind(
        409, "the sketch shows no component, so a lift would release noise", "use more records or a larger ε"
    ),
    "not-a-level": ProblemKind(422, "a value cannot be a level of its feature", "use the manifest's levels"),
    "not-a-number": ProblemKind(422, "a value is not a number", "send numbers"),
    "not-a-participant": ProblemKind(
        403, "the manifest does not name this owner", "ask the data user to name this owner"
    ),
    "not-a-proxy": ProblemKind(400, "the program at the proxy's address is not a proxy", "check the address"),
    "not-canonical": ProblemKind(
        400, "the body is not canonical JSON (RFC 8785)", "send the canonical encoding"
    ),
    "not-enrolled": ProblemKind(
        404, "this data user is not enrolled at that proxy", "enrol at that proxy first"
    ),
    "not-found": ProblemKind(
        404, "the object does not exist, or the caller may not see it", "check the address and the id"
    ),
    "not-http": ProblemKind(401, "the program at the proxy's address does not use HTTP", "check the port"),
    "not-in-the-cohort": ProblemKind(
        403, "the owner has no share in the study", "only owners with a share may read this"
    ),
    "not-ready": ProblemKind(409, "the result is not ready yet", "read the study's state"),
    "not-the-study-owner": ProblemKind(
        403, "the study belongs to another data user", "use the key of the data user that created the study"
    ),
    "opened-differs": ProblemKind(
        409,
        "the statement is not about the release of the study, or another one was signed before",
        "open only the release that was opened first",
    ),
    "proxy-pinned-twice": ProblemKind(
        401,
        "the proxy was pinned twice with different keys",
        "compare the words of the keys with the proxy's operator",
    ),
    "ragged-columns": ProblemKind(
        422, "the columns have different lengths", "give all columns the same number of values"
    ),
    "replayed-request": ProblemKind(401, "the request was already received", "sign the request again"),
    "rotation-not-newer": ProblemKind(
        409, "the rotation's version is not above the last version", "restore the newest keys from a backup"
    ),
    "sealed-body-does-not-open": ProblemKind(
        422,
        "the chunk is not sealed to this proxy for this position",
        "seal the chunk again, to the proxy's present key",
    ),
    "several-proxies": ProblemKind(403, "several proxies are known", "name one proxy"),
    "share-complete": ProblemKind(409, "the share is complete", "withdraw the share instead"),
    "share-incomplete": ProblemKind(409, "chunks of the share are missing", "send the missing chunks"),
    "share-under-another-key": ProblemKind(
        409, "the party already has a share under another of its keys", "continue with the key of that share"
    ),
    "share-version-not-newer": ProblemKind(
        409, "this version of the share or a later one already exists", "use a higher version"
    ),
    "shares-deleted": ProblemKind(409, "the shares of this study were deleted", "read the study's state"),
    "stale-request": ProblemKind(
        401, "the signature is too old, or its time is in the future", "correct the clock"
    ),
    "state-corrupt": ProblemKind(500, "the stored state contradicts itself", _ASK_OPERATOR),
    "statement-differs": ProblemKind(
        409,
        "another statement was signed under this version",
        "send the first statement again, or use a higher version",
    ),
    "storage-failing": ProblemKind(503, "the storage of the service fails", "try again later"),
    "storage-full": ProblemKind(507, "the service's disk is full", "try again later"),
    "study-closed": ProblemKind(409, "the study no longer accepts shares", "read the study's state"),
    "tls-expected": ProblemKind(401, "the proxy speaks TLS, and plain HTTP was sent to it", "use https"),
    "too-few-records": ProblemKind(
        403, "with so few records, the components would be noise", "use more records or a larger ε"
    ),
    "too-large": ProblemKind(413, "the body is larger than this route accepts", "send less data"),
    "too-large-on-the-way": ProblemKind(
        413, "a server in front of the proxy refuses a body of this size", _ASK_OPERATOR
    ),
    "too-many": ProblemKind(429, "too many requests in a short time", "wait a little"),
    "too-many-rotations": ProblemKind(
        409,
        "the party has rotated its keys too often",
        "enrol with a new home; as an owner, also subtract what the old ledger shows from the new budget",
    ),
    "too-many-feature-lists": ProblemKind(
        413,
        "no study names the lists of features that the data user has sent",
        "send their manifests, or wait a day",
    ),
    "too-many-versions": ProblemKind(
        409, "the owner has completed too many versions of its share", "keep the share as it is"
    ),
    "unfit-modulus": ProblemKind(
        422, "the study's modulus or its proof is not acceptable", "create the study again with a new key"
    ),
    "unfit-blinding-key": ProblemKind(422, "a key for blinding protects nothing", "its owner makes new keys"),
    "unfit-sealing-key": ProblemKind(422, "nothing can be sealed to the key", "make new keys"),
    "unknown-key": ProblemKind(401, "no enrolled party has this key", "enrol first"),
    "unknown-level": ProblemKind(
        422, "a value is not one of its feature's levels", "use the manifest's levels"
    ),
    "unreachable": ProblemKind(
        503, "the proxy cannot be reached", "check the proxy's address and the network"
    ),
    "unsupported-media-type": ProblemKind(
        415, "this route does not accept this content type", "send a content type that /docs lists"
    ),
    "unsupported-version": ProblemKind(
        400,
        "the message or request is of another message format",
        "use a version of the program that has this format",
    ),
    "untrusted-certificate": ProblemKind(
        401,
        "the proxy's TLS certificate is not accepted",
        "read the reason; name a CA only if you know that the operator uses this CA",
    ),
    "value-missing": ProblemKind(422, "a row has no value for a feature", "send every feature"),
    "wrong-address": ProblemKind(
        421,
        "the request names an address that is not this service's",
        "use the address under which the service is known",
    ),
    "wrong-proxy": ProblemKind(
        401, "the enrolment statement is for another proxy", "fetch this proxy's card and enrol again"
    ),
    "wrong-role": ProblemKind(403, "this route is for another role", "use a party with that role"),
    "wrong-round": ProblemKind(
        403,
        "the study does not fit the earlier rounds of its chain",
        "start the chain again",
    ),
    "wrong-state": ProblemKind(
        409, "the study's state does not allow this request", "read the study's state"
    ),
}
"""Slug → kind."""
