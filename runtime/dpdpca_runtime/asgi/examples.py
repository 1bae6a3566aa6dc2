"""An example of every JSON body in an OpenAPI document, made from its schema.

An example shows the form: which members there are and how each is written. The values in an example belong to
no study.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

_TEXTS: Final = ("text", "9f", "1", "2026-11-28T12:00:00Z")
"""Each pattern in our schemas matches one of these texts, or several copies of it."""


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """A value that the schema allows.

    Args:
        schema: of the forms that our bodies have: types, enumerations, references, alternatives, and
            objects with alternatives for the members that they need.
        schemas: components by name.
    """
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for given in ("examples", "enum"):
        if schema.get(given):
            return schema[given][0]
    if "const" in schema:
        return schema["const"]
    for alternatives in ("oneOf", "anyOf"):
        if alternatives in schema:
            chosen = schema[alternatives][0]
            if "properties" not in schema:
                return example_of(chosen, schemas)
            required = [*schema.get("required", ()), *chosen.get("required", ())]
            return _object({**schema, "required": required}, schemas)
    kind = schema.get("type", "object")
    return _of_type(kind if isinstance(kind, str) else kind[0], schema, schemas)


def _of_type(kind: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    match kind:
        case "object":
            return _object(schema, schemas)
        case "array":
            return [example_of(schema["items"], schemas)]
        case "string":
            return _text(schema)
        case "integer":
            return schema.get("minimum", 1)
        case "number":
            return schema.get("minimum", 0.5)
        case "boolean":
            return True
    return None


def _object(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    required = schema.get("required", ())
    members = {name: schema["properties"][name] for name in schema.get("properties", ()) if name in required}
    shown = {name: example_of(member, schemas) for name, member in members.items()}
    more = schema.get("additionalProperties")
    if not shown and isinstance(more, Mapping):
        name = example_of(schema.get("propertyNames", {"type": "string"}), schemas)
        shown[name] = example_of(more, schemas)
    return shown


def _text(schema: Mapping[str, Any]) -> str:
    text = next(known for known in _TEXTS if re.search(schema.get("pattern", ""), known))
    least: int = schema.get("minLength", 1)
    return text * max(1, -(-least // len(text)))
