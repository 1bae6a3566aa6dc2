"""Each signed message as one table, from the JSON Schema of its body and the meanings in this module."""

from collections.abc import Mapping
from typing import Any, Final

from dpdpca_protocol.messages.schemas import BODIES
from reference_pages.markdown import code, plain, table
from reference_pages.terms import kind

Meanings = Mapping[str, tuple[str, str]]
"""Member → its meaning, and the reasons for a refusal besides a wrong form."""

_STUDY: Final = ("id of the study", "`malformed` if the path names another study")
_WRONG_STUDY: Final = ("id of the study", "`wrong-study` if the message is for another study")
_COHORT: Final = "digest of the cohort"
_PAD = (
    "key of the share's pads, sealed to the study's key (section 6)",
    "`malformed` if it is missing under `pads`, or present under `paillier`",
)
_BODY = (
    "the components, once for all owners (section 14); only those of a lift or of scores",
    "`malformed` if it is not base64",
)
_LOG: Final = ("newest digest of the signer's own log (section 7); may be left out", "")
_WHY: Final = (
    "the owner's reason: one line in NFC, without control, invisible or reordering characters; may be left"
    " out",
    "`malformed` if it is not such a line",
)
_TIME: Final = ("the time, by the signer's clock", "")
_OWN_KEY: Final = ("the signer's own Ed25519 key", "`malformed` if another key has signed")
_UNFIT: Final = "`unfit-sealing-key` if nothing can be sealed to the key"
_KEM: Final = "to which others seal messages: the ML-KEM-768 key, then the X25519 key"
_NO_USER: Final = "not in the message of a data user"
_OWNERS_ONLY: Final = "only in the message of an owner"
_UNFIT_BLINDING: Final = "`unfit-blinding-key` if the key has low order"

_SOFTWARE: Final = (
    "what the proxy says that it runs (section 11); missing in messages of earlier versions",
    "",
)

MESSAGES: Final[Mapping[str, tuple[str, Meanings]]] = {
    "proxy": (
        "The proxy's card. Signed by the proxy.",
        {
            "name": ("the proxy's name for itself", ""),
            "url": ("public address of the proxy", ""),
            "ed25519": _OWN_KEY,
            "kem": (f"key {_KEM}", _UNFIT),
            "software": _SOFTWARE,
        },
    ),
    "enrolment": (
        "A party introduces itself to one proxy. Signed by that party.",
        {
            "role": ("role of the party", "`invitation-unknown` if the invitation is for another role"),
            "name": ("the party's name for itself; others see the name in the invitation", ""),
            "ed25519": (
                _OWN_KEY[0],
                f"{_OWN_KEY[1]}; `already-enrolled` if the key is enrolled already",
            ),
            "kem": (f"key {_KEM}; {_NO_USER}", _UNFIT),
            "x25519": (f"key for blinding, without another use; {_OWNERS_ONLY}", _UNFIT_BLINDING),
            "proxy": ("Ed25519 key of the proxy", "`wrong-proxy` if the key is that of another proxy"),
        },
    ),
    "share": (
        "An owner states that its share is complete. Signed by the owner.",
        {
            "study": _STUDY,
            "owner": _OWN_KEY,
            "version": (
                "number that rises with each replacement or withdrawal",
                "`share-version-not-newer` if the version does not rise; `too-many-versions`; "
                "`statement-differs` if this version has another statement",
            ),
            "chunk_count": (
                "number of chunks",
                "`malformed` if the number is not the length of `chunk_digests`",
            ),
            "chunk_digests": (
                "SHA-256 of each chunk before sealing, with its salt, in order",
                "`share-incomplete` if a chunk is missing; `chunk-differs` if a chunk has another digest",
            ),
            "kem": (
                "the owner's `kem`, to which the components will be sealed",
                f"{_UNFIT}; `malformed` if it is not the enrolled key",
            ),
            "proxy_log": (
                "newest head of the proxy's log that the owner has seen in a `mark`",
                "the data user refuses a release if the log up to it lacks this head",
            ),
            "log": _LOG,
            "pad": _PAD,
        },
    ),
    "withdrawal": (
        "An owner takes its share back. Signed by the owner.",
        {
            "study": _STUDY,
            "owner": _OWN_KEY,
            "version": (
                "version number above that of the share",
                "`share-version-not-newer` if the version is not above the share's; "
                "`statement-differs` if this version has another statement",
            ),
            "log": _LOG,
        },
    ),
    "decline": (
        "An owner tells the data user of an open study that it does not take part. The proxy gives it to this"
        " data user only, and names it in no event. Signed by the owner.",
        {
            "study": _STUDY,
            "owner": _OWN_KEY,
            "time": _TIME,
            "why": _WHY,
        },
    ),
    "receipt": (
        "The proxy confirms that it has a share, or that it has deleted a share. Signed by the proxy.",
        {
            "study": ("id of the study", "refused if the study is not the owner's"),
            "owner": ("id of the owner", "refused if the owner is not the recipient"),
            "version": ("version of the statement", "refused if the version is not the one that was sent"),
            "subject": ("the kind of statement that is confirmed", ""),
            "statement": (
                "digest of the owner's statement",
                "refused if the digest is not that of the sent statement",
            ),
            "time": _TIME,
        },
    ),
    "close": (
        "The data user asks the proxy to close the study now. Signed by the data user.",
        {"study": (_STUDY[0], f"{_STUDY[1]}; `cohort-too-small`; `wrong-state`")},
    ),
    "cancel": (
        "The data user asks the proxy to end the study without a release. Signed by the data user.",
        {"study": (_STUDY[0], f"{_STUDY[1]}; `noise-already-drawn`; `wrong-state`")},
    ),
    "opened": (
        "The data user states which release it opens, once for each study. Signed by the data user.",
        {
            "study": _STUDY,
            "cohort": (_COHORT, "`opened-differs` if the release has another cohort"),
            "release": (
                "digest of the `release` statement",
                "`opened-differs` if it is not the study's release",
            ),
        },
    ),
    "count-challenge": (
        "The proxy sends the encrypted number of records of a masked study. Signed by the proxy.",
        {
            "study": _WRONG_STUDY,
            "cohort": (_COHORT, "`cohort-differs` if the study closed with another cohort"),
            "ciphertext": (
                "E[N], re-randomised, with the length of a ciphertext of the study",
                "refused if the value is not a ciphertext",
            ),
        },
    ),
    "count-answer": (
        "The data user states the number of records and proves it. Signed by the data user.",
        {
            "study": _STUDY,
            "challenge": ("digest of the challenge", "`malformed` if the study has another challenge"),
            "records": (
                "N, the number of records",
                "`count-out-of-range` if the manifest does not allow this number",
            ),
            "randomizer": (
                "the n-th root of E[N]·(1+n)^(−N), with the length of the modulus",
                "`count-proof-false` if the proof is invalid; "
                "`count-already-answered` if the first answer was different",
            ),
            "log": _LOG,
        },
    ),
    "release": (
        "The proxy lists what it releases, once for each study. Signed by the proxy.",
        {
            "study": _WRONG_STUDY,
            "release": ("kind of the release", "`wrong-study` if the manifest states another kind"),
            "cohort": (_COHORT, "`cohort-differs` if the digest is not that of `owners`"),
            "owners": (
                "`{owner, version, statement}` of each owner in the cohort",
                "`cohort-differs` if an owner appears twice or is not allowed by the manifest",
            ),
            "chunk_digests": ("SHA-256 of each chunk, in order", "refused if a chunk has another digest"),
            "records": (
                "N, the number of records; only in a masked release",
                "`count-differs` if another number was proved",
            ),
            "software": (_SOFTWARE[0], "`transcript-broken` if the event `release` names other software"),
        },
    ),
    "components": (
        "The data user returns the components to the owners. Signed by the data user.",
        {
            "study": (_STUDY[0], f"{_STUDY[1]}; `components-differ` if other components were published"),
            "body": _BODY,
            "sealed": (
                "map from the id of each owner in the cohort to a copy sealed to that owner",
                "`malformed` if the ids are not those of the cohort",
            ),
            "log": _LOG,
        },
    ),
    "rotation": (
        "A party replaces an identity key by a new one. Signed by the old key.",
        {
            "role": ("role of the party", "`malformed` if the caller has another role"),
            "version": (
                "number that rises with each rotation of the party",
                "`rotation-not-newer` if the version does not rise",
            ),
            "previous": (
                "the old Ed25519 key",
                f"{_OWN_KEY[1]}; `already-rotated` if the key has a successor",
            ),
            "ed25519": (
                "the new Ed25519 key",
                "`malformed` if it is also the old key; `already-enrolled` if the key is enrolled already",
            ),
            "kem": (f"the new key {_KEM}; {_NO_USER}", _UNFIT),
            "x25519": (f"the new key for blinding; {_OWNERS_ONLY}", _UNFIT_BLINDING),
            "time": _TIME,
            "acceptance": (
                "signature of the new key (section 11)",
                "`bad-signature` if the signature is invalid",
            ),
        },
    ),
    "event": (
        "The proxy adds one entry to a study's transcript. Signed by the proxy.",
        {
            "study": ("id of the study", "`transcript-broken` if the event is of another study"),
            "index": (
                "position in the transcript, from 0",
                "`transcript-broken` if the position does not rise by one",
            ),
            "previous": (
                "digest of the previous event; zeros in the first event",
                "`transcript-broken` if the digest is another one",
            ),
            "time": (_TIME[0], "`transcript-broken` if the time is before that of the previous event"),
            "kind": (
                "kind of the event",
                "`transcript-broken` if this kind cannot follow the previous event",
            ),
            "detail": ("digests, counts and software that belong to the event", ""),
        },
    ),
    "mark": (
        "The state of a study and the head of the proxy's log. The proxy signs a new statement for each"
        " request.",
        {
            "study": ("id of the study", "refused if the study is not the requested one"),
            "state": ("state of the study", ""),
            "generation": (
                "number of the newest entry in the proxy's log",
                "`generation-fell` if a higher number was seen before",
            ),
            "head": (
                "digest of the newest entry in the proxy's log",
                "`history-differs` if another digest was seen for the same generation",
            ),
            "time": _TIME,
        },
    ),
    "answer": (
        "The proxy's answer to a carried request. Signed by the proxy with the key of its card.",
        {
            "nonce": ("nonce of the request", "`answer-altered` if the request has another nonce"),
            "content": (
                "SHA-256 of the body of the answer",
                "`answer-altered` if the body has another digest",
            ),
            "time": (_TIME[0], "taken as no answer if an answer with a later time was read before"),
        },
    ),
}


def section() -> str:
    """The tables of all messages, in the order of a study."""
    lines: list[str] = []
    for name, (meaning, members) in MESSAGES.items():
        properties, required = _members(BODIES[name])
        rows = [
            (code(member), *_form(properties[member]), said[0], _refusal(said, member in required))
            for member, said in members.items()
        ]
        lines += [f"### Message {name}", "", meaning, ""]
        lines += table(("member", "type", "length", "meaning", "refused"), rows)
    return "\n".join(lines).rstrip()


def _members(body: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The members of all forms of a body, and the members that at least one form requires."""
    forms = body.get("oneOf", [body])
    properties: dict[str, Any] = {}
    for form in forms:
        for name, schema in form["properties"].items():
            known = properties.get(name, schema)
            both = known != schema and "enum" in schema
            properties[name] = {"enum": sorted({*known["enum"], *schema["enum"]})} if both else known
    return properties, {name for form in forms for name in form["required"]}


def _form(schema: Mapping[str, Any]) -> tuple[str, str]:
    """Type and length."""
    if schema.get("type") == "array":
        inner, length = _form(schema["items"])
        return f"list of {inner}", f"{length} each" if length else ""
    if schema.get("type") == "string" and schema.get("pattern", "").startswith("^[0-9a-f]"):
        least, most = schema.get("minLength"), schema.get("maxLength", 0)
        return "hex", f"{most // 2} bytes" if least == most else f"at most {most // 2} bytes"
    if schema.get("type") == "string" and schema.get("pattern", "").startswith("^[A-Za-z0-9+/]"):
        return "base64", f"at most {schema['maxLength'] * 3 // 4} bytes"
    if schema.get("type") == "string" and "maxLength" in schema:
        return "text", f"{schema['minLength']} to {schema['maxLength']} characters"
    if schema.get("type") == "integer":
        return "integer", f"from {schema['minimum']}" + (
            f" to {schema['maximum']}" if "maximum" in schema else ""
        )
    if schema.get("type") == "object" or "oneOf" in schema:
        return "object", ""
    return kind(schema), ""


def _refusal(said: tuple[str, str], is_required: bool) -> str:
    may_be_missing = said in (_BODY, _LOG, _PAD, _WHY) or said[0] == _SOFTWARE[0]
    assert is_required or may_be_missing, "only these may be left out"
    return plain(said[1])
