"""The manifest and the draft, from the table of members and the JSON Schemas."""

import json
from typing import Any

from dpdpca_protocol.terms.members import MEMBERS, Drafted, draft_schema, manifest_schema
from dpdpca_protocol.wire.signing import FORMAT
from reference_pages.markdown import code, fenced, plain, table

_MANIFEST = """
# Manifest

The manifest is the signed statement that opens a study. The data user's service makes the manifest from a
[draft](draft.md) and signs it. Before a party takes part in a study, it checks each member of the manifest
and recomputes each figure. A manifest with an unknown member is refused. [The
specification](../spec.md#3-the-manifest) contains the rules that connect several members.
"""

_DRAFT = """
# Draft

A draft contains the terms of a study as a person writes them, in TOML or JSON. The data user's service
completes the draft and makes a [manifest](manifest.md) from it. Numbers in a draft may be TOML numbers or
strings. `dpdpca user study init` writes a first draft from the columns of a sample. `dpdpca user study lint`
lists the errors of a draft.

The data user's service publishes the JSON Schema of drafts at `GET /v1/draft-schema`. The file
`docs/reference/draft.schema.json` contains the same schema, for editors that check TOML or JSON.
"""

_WHO = {
    Drafted.MUST: "you",
    Drafted.MAY: "you, or the default",
    Drafted.NEVER: "the service",
}


def manifest_page() -> str:
    rows = [(code("format"), code(str(FORMAT)), "version of the message format", "yes", "the service")]
    rows += [
        (
            code(member.name),
            member.form.words,
            plain(member.meaning),
            _always(member.name, member.is_required),
            _WHO[member.drafted],
        )
        for member in MEMBERS
    ]
    return "\n".join(
        [
            *_MANIFEST.strip().splitlines(),
            "",
            *table(("member", "form", "meaning", "always present", "who sets it"), rows),
            *_features(manifest_schema()["properties"]["features"]["items"], "message"),
            "## JSON Schema",
            "",
            *_schema(manifest_schema()),
        ]
    )


def _always(name: str, is_required: bool) -> str:
    """Whether a member is always there."""
    if name == "features":
        return "this or `feature_list`"
    return "yes" if is_required else "no"


def draft_schema_file() -> str:
    return json.dumps(draft_schema(), ensure_ascii=False, indent=2)


def draft_page() -> str:
    schema = draft_schema()
    rows = [
        (
            code(name),
            _always(name, name in schema["required"] or name == "features"),
            kind(described),
            plain(described["description"]),
            code(described["default"]) if "default" in described else "",
        )
        for name, described in schema["properties"].items()
    ]
    return "\n".join(
        [
            *_DRAFT.strip().splitlines(),
            "",
            *table(("member", "required", "form", "meaning", "default"), rows),
            "A draft that is silent on `participants` names nobody. With",
            '`participants = "enrolled"`, the study names all owners that the proxy lists when the draft is',
            "submitted. A masked study must name its participants, and so must a study with `closing` =",
            "`when-complete`. If a study names nobody and the proxy draws its noise, the components carry a",
            "second draw of noise, by the data user.",
            "",
            'With `noise_by = "owners"`, each owner draws a part of the noise, the proxy draws none, and',
            "there is no second draw. Every release except the masked one allows this. The parts of",
            "`min_owners` − `max_colluding` owners are enough for the guarantee, and each owner beyond them",
            "adds noise: set `max_owners` to the number of owners that you expect.",
            "",
            'With `blinding = "pairwise"`, the proxy and the data user see only the noisy sum over all',
            "owners, even together. Such a study names its owners, and needs all of them. The draft may then",
            "leave out `noise_by` (`owners`), `closing` (`when-complete`), `min_owners` and `max_owners`",
            "(the number of participants). A masked study cannot be blinded.",
            "",
            "A study with many features names a list of them by `feature_list`, in place of `features`. In a",
            "draft for the commands, `feature_list` may be the path of the list's file, relative to the",
            "draft. `dpdpca user study features` makes such a file from a table. In a draft for the service,",
            "`feature_list` is what `PUT /v1/feature-lists/SHA256` answers.",
            "",
            "Some members have no default in this table. If you omit such a member, the manifest omits it",
            "too, or the service computes its value from the rest of the draft:",
            "",
            "- `delta`: the smaller of 10⁻⁶ and 1/`max_records`².",
            "- `fraction_bits`: a grid that is fine enough for the number of features and the clip norm.",
            "- `sum_weight`: 0.43 in a joint study, otherwise 0.",
            "- `suite`: `paillier` in a masked study, otherwise `pads`.",
            "- `max_colluding`: 1 if the owners draw the noise, otherwise 0.",
            "- `min_records`: the value of `min_owners`.",
            "- `max_owners`: the number of participants, or 100 if the draft names no participants.",
            "- `closes_at`: the present time plus the days in the service's setting `closes_after_days`.",
            "- `missing`: `midpoint` if the study pairs records.",
            "",
            *_features(schema["properties"]["features"]["items"], "draft"),
            "## JSON Schema",
            "",
            *_schema(schema),
        ]
    )


def _features(items: dict[str, Any], where: str) -> list[str]:
    lines = ["## Features", "", f"A feature in a {where} has one of these forms.", ""]
    for variant in items.get("oneOf") or items.get("anyOf") or [items]:
        rows = [
            (code(name), "yes" if name in variant.get("required", []) else "no", kind(described))
            for name, described in variant["properties"].items()
        ]
        lines += table(("member", "required", "form"), rows)
    return lines


def _schema(schema: dict[str, Any]) -> list[str]:
    return fenced(json.dumps(schema, indent=2, ensure_ascii=False), "json")


def kind(schema: Any) -> str:
    """A JSON Schema in a few words, for a cell of a table."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return " or ".join(code(each) for each in schema["enum"])
    for several in ("oneOf", "anyOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(kind(each) for each in schema[several]))
    if "allOf" in schema:
        return " and ".join(kind(each) for each in schema["allOf"])
    named = schema.get("type", "any value")
    names = named if isinstance(named, list) else [named]
    return " or ".join(_typed(name, schema) for name in names)


def _typed(name: str, schema: Any) -> str:
    if name == "array":
        return f"list of {kind(schema.get('items', {}))}"
    if name == "string":
        return _string(schema)
    if name in ("integer", "number"):
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is not None and schema.get("exclusiveMinimum") is None:
            return f"{name} from {low}" + (f" to {high}" if high is not None else "")
        return name if high is None else f"{name} up to {high}"
    if name == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {kind(schema['additionalProperties'])}"
    return str(name)


def _string(schema: Any) -> str:
    pattern, least, most = schema.get("pattern", ""), schema.get("minLength"), schema.get("maxLength")
    if "0-9a-f" in pattern:
        if least is not None and least == most:
            return f"{least // 2} bytes in hex"
        return "hex" if most is None else f"hex, at most {most // 2} bytes"
    if "T[0-9]{2}" in pattern or schema.get("format") == "date-time":
        return "time in UTC"
    if "(0|[1-9]" in pattern:
        return "decimal"
    if schema.get("format") == "binary":
        return "bytes"
    return "text" if most is None else f"text, at most {most} characters"
