"""Each signed message as one table, from the JSON Schema of its body and the meanings that stand here."""

from collections.abc import Mapping
from typing import Any, Final

from dpdpca_protocol.messages.schemas import BODIES
from reference_pages.markdown import code, plain, table
from reference_pages.terms import kind

Meanings = Mapping[str, tuple[str, str]]
"""Member → what it means, and what is refused beside a wrong form."""

_STUDY: Final = ("the study", "`malformed` where it is not the study of the path")
_LOG: Final = ("newest digest of the signer's own log (section 7)", "may be left out")
_TIME: Final = ("when, by the signer's clock", "")
_OWN_KEY: Final = ("the signer's own Ed25519 key", "`malformed` where another key has signed")
_SEALING: Final = ("X25519 key, to which others seal", "`unfit-sealing-key` where its order is low")

MESSAGES: Final[Mapping[str, tuple[str, Meanings]]] = {
    "proxy": (
        "The proxy's card, signed by the proxy.",
        {
            "name": ("how the proxy calls itself", ""),
            "url": ("its public address", ""),
            "ed25519": _OWN_KEY,
            "x25519": _SEALING,
        },
    ),
    "enrolment": (
        "A party introduces itself to one proxy. Signed by that party.",
        {
            "role": ("what it will be", "`invitation-unknown` where the invitation is for another role"),
            "name": ("how it calls itself; others see the name in the invitation", ""),
            "ed25519": (_OWN_KEY[0], "`malformed` where another key has signed; `already-enrolled`"),
            "x25519": _SEALING,
            "proxy": ("the proxy's Ed25519 key", "`wrong-proxy`"),
        },
    ),
    "share": (
        "An owner's share is whole. Signed by the owner.",
        {
            "study": _STUDY,
            "owner": _OWN_KEY,
            "version": (
                "rises with each replacement and withdrawal",
                "`share-version-not-newer`, `too-many-versions`; `statement-differs` for a second statement",
            ),
            "chunk_count": ("number of chunks", "`malformed` where it is not the length of `chunk_digests`"),
            "chunk_digests": (
                "SHA-256 of each chunk, unsealed, in order",
                "`share-incomplete` where a chunk is missing, `chunk-differs` where it has another digest",
            ),
            "x25519": ("key to which the components will be sealed", _SEALING[1]),
            "log": _LOG,
        },
    ),
    "withdrawal": (
        "An owner takes its share back. Signed by the owner.",
        {
            "study": _STUDY,
            "owner": _OWN_KEY,
            "version": ("above that of the share", "`share-version-not-newer`, `statement-differs`"),
            "log": _LOG,
        },
    ),
    "receipt": (
        "The proxy has a share, or has deleted it. Signed by the proxy.",
        {
            "study": ("the study", "not the owner's study"),
            "owner": ("id of the owner", "not this owner"),
            "version": ("version of the statement", "not the version that was sent"),
            "subject": ("what the receipt is for", ""),
            "statement": ("digest of the owner's statement", "not the digest of what was sent"),
            "time": _TIME,
        },
    ),
    "close": (
        "Close the study now. Signed by the data user.",
        {"study": (_STUDY[0], f"{_STUDY[1]}; `cohort-too-small`, `wrong-state`")},
    ),
    "cancel": (
        "End the study without a release. Signed by the data user.",
        {"study": (_STUDY[0], f"{_STUDY[1]}; `noise-already-drawn`, `wrong-state`")},
    ),
    "count-challenge": (
        "The encrypted number of records of a masked study. Signed by the proxy.",
        {
            "study": ("the study", "`wrong-study`"),
            "cohort": ("digest of the cohort", "`cohort-differs`"),
            "ciphertext": ("E[N], re-randomised; as long as a ciphertext of the study", "not a ciphertext"),
        },
    ),
    "count-answer": (
        "The number of records with its proof. Signed by the data user.",
        {
            "study": _STUDY,
            "challenge": ("digest of the challenge", "`malformed` where it is another challenge"),
            "records": ("N", "`count-out-of-range` where the manifest does not allow it"),
            "randomizer": (
                "the n-th root of E[N]·(1+n)^(−N); as long as the modulus",
                "`count-proof-false`; `count-already-answered` for another answer",
            ),
            "log": _LOG,
        },
    ),
    "release": (
        "What the proxy releases, once. Signed by the proxy.",
        {
            "study": ("the study", "`wrong-study`"),
            "release": ("the kind of release", "`wrong-study` where it is not the manifest's"),
            "cohort": ("digest of the cohort", "`cohort-differs` where it is not that of `owners`"),
            "owners": (
                "`{owner, version, statement}` of each owner in the cohort",
                "`cohort-differs` where an owner stands there twice, or the manifest does not name it",
            ),
            "chunk_digests": ("SHA-256 of each chunk, in order", "a chunk with another digest"),
            "records": ("N, in a masked release only", "`count-differs` where another number was proved"),
        },
    ),
    "components": (
        "The components on their way back to the owners. Signed by the data user.",
        {
            "study": (_STUDY[0], f"{_STUDY[1]}; `components-differ` where others were published"),
            "sealed": ("id of each owner in the cohort → its copy, sealed to that owner", "`malformed`"),
            "log": _LOG,
        },
    ),
    "rotation": (
        "A key gives way to another one. Signed by the old key.",
        {
            "role": ("whose key it is", "`malformed` where the caller has another role"),
            "version": ("rises from rotation to rotation of a party", "`rotation-not-newer`"),
            "previous": (
                "the old Ed25519 key",
                "`malformed` where another key has signed; `already-rotated`",
            ),
            "ed25519": ("the new Ed25519 key", "`malformed` where it is the old one; `already-enrolled`"),
            "x25519": ("the new X25519 key", _SEALING[1]),
            "time": _TIME,
            "acceptance": ("signature of the new key (section 11)", "`bad-signature`"),
        },
    ),
    "event": (
        "One link of a study's transcript. Signed by the proxy.",
        {
            "study": ("the study", "`transcript-broken`"),
            "index": ("position, from 0", "`transcript-broken` where it does not rise by one"),
            "previous": ("digest of the event before; zeros in the first", "`transcript-broken`"),
            "time": (_TIME[0], "`transcript-broken` where it is before that of the event before"),
            "kind": ("what happened", "`transcript-broken` where it cannot follow the event before"),
            "detail": ("digests and counts of what happened", ""),
        },
    ),
    "mark": (
        "Where the proxy's log and a study stand. Signed by the proxy at each request.",
        {
            "study": ("the study", "another study"),
            "state": ("of the study", ""),
            "generation": ("number of the newest entry of the proxy's log", "`generation-fell`"),
            "head": ("digest of that entry", "`history-differs` for another digest at the same generation"),
            "time": _TIME,
        },
    ),
}


def section() -> str:
    """The tables of all messages, in the order of a study."""
    lines: list[str] = []
    for name, (meaning, members) in MESSAGES.items():
        properties, required = _members(BODIES[name])
        rows = [
            (code(member), *_form(properties[member]), said[0], _refusal(said[1], member in required))
            for member, said in members.items()
        ]
        lines += [f"### Message {name}", "", meaning, ""]
        lines += table(("member", "type", "length", "meaning", "refused"), rows)
    return "\n".join(lines).rstrip()


def _members(body: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Members of all forms of a body, and those that one form demands at least."""
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
    if schema.get("type") == "string" and "maxLength" in schema:
        return "text", f"{schema['minLength']} to {schema['maxLength']} characters"
    if schema.get("type") == "integer":
        return "integer", f"from {schema['minimum']}" + (
            f" to {schema['maximum']}" if "maximum" in schema else ""
        )
    if schema.get("type") == "object":
        return "object", ""
    return kind(schema), ""


def _refusal(text: str, is_required: bool) -> str:
    assert is_required or text == _LOG[1], "only a log may be left out"
    return plain(text)
