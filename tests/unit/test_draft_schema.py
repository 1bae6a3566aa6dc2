"""The JSON Schema of drafts takes every draft in the tree and refuses those whose form is wrong.

Drafts that tests complete are held against it too, by `schema_of_drafts`.
"""

import json
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from user_world import DRAFT

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.terms.members import MEMBERS, Drafted, draft_schema
from dpdpca_user.planning.lint import lint_alone, plain_json
from dpdpca_user_service.routes.contract import DRAFT_BODY

ROOT = Path(__file__).parents[2]
WINGS = ("clients", "docs", "examples", "lab", "tests")
NOW = datetime(2026, 11, 28, tzinfo=UTC)
SCHEMA = Draft202012Validator(draft_schema())
WRITTEN = [member.name for member in MEMBERS if member.drafted is not Drafted.NEVER]
VECTORS = json.loads((ROOT / "tests/vectors/manifests.json").read_text())["operations"]
ONLY_IN_MANIFESTS = {"no manifest: false where nothing is said", "no manifest: no block"}
"""A draft may say what goes without saying; a manifest may not."""


def drafts_of_files() -> dict[str, dict[str, Any]]:
    """Path and place → draft, of TOML files and of TOML blocks in pages."""
    texts = {path.name: path.read_text() for wing in WINGS for path in (ROOT / wing).rglob("*.toml")}
    for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"), ROOT / "README.md"]:
        blocks = re.findall(r"^```toml[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        texts |= {f"{page.name} {number}": block for number, block in enumerate(blocks)}
    texts["openapi.json"] = str(DRAFT_BODY["application/toml"]["example"])
    parsed = {place: tomllib.loads(text) for place, text in texts.items()}
    return {place: plain_json(draft) for place, draft in parsed.items() if "features" in draft}


FILES = drafts_of_files()


def drafted(body: dict[str, Any]) -> dict[str, Any]:
    """The members of a manifest that a draft may have."""
    return {name: value for name, value in body.items() if name in WRITTEN}


@pytest.mark.parametrize("place", FILES)
def test_drafts_in_files_and_pages_fit(place: str) -> None:
    SCHEMA.validate(FILES[place])
    lint_alone(FILES[place], NOW)


def test_drafts_of_the_demo_the_tutorial_and_openapi_are_found() -> None:
    assert {"forest.toml", "tutorial.md 0", "openapi.json"} <= FILES.keys()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_drafts_of_the_vectors_fit_unless_their_form_is_wrong(vector: dict[str, Any]) -> None:
    """What is wrong with the figures of a manifest, or among its members, no schema says."""
    draft = drafted(vector["body"])
    if vector["must_succeed"] or vector["name"] in ONLY_IN_MANIFESTS:
        SCHEMA.validate(draft)
    elif vector["error"] == "malformed":
        assert not SCHEMA.is_valid(draft)


@pytest.mark.parametrize("member", WRITTEN)
@pytest.mark.parametrize("wrong", [None, {}, [], [None], {"a": {}}, True, -1, 1.5, "", "no such"], ids=repr)
def test_what_the_schema_refuses_is_refused(member: str, wrong: object) -> None:
    draft = DRAFT | {member: wrong}
    if not SCHEMA.is_valid(draft):
        with pytest.raises(DpdpcaError):
            lint_alone(draft, NOW)


@pytest.mark.parametrize("member", WRITTEN)
def test_a_member_of_no_form_at_all_is_refused_by_the_schema(member: str) -> None:
    assert not SCHEMA.is_valid(DRAFT | {member: None})
    assert not SCHEMA.is_valid(DRAFT | {f"{member}s?": 1})
