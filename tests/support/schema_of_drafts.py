"""In every test, each draft that becomes a manifest has the form that the JSON Schema of drafts gives."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from jsonschema_rs import validator_for

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.members import draft_schema
from dpdpca_user.planning import draft as drafting
from dpdpca_user.planning.lint import plain_json

_refused: list[str] = []


@pytest.fixture(scope="session", autouse=True)
def drafts_are_noted() -> Iterator[None]:
    """Holds the draft of each completed manifest against the schema; those that are no JSON are left out."""
    schema, this_thread = validator_for(draft_schema()), threading.local()
    check, parse = vars(drafting)["check_members"], vars(drafting)["parse_manifest"]

    def checking(draft: Mapping[str, Any], *rest: Any) -> None:
        this_thread.draft = draft
        check(draft, *rest)

    def parsing(body: Mapping[str, Any], *lists: Any) -> Manifest:
        manifest: Manifest = parse(body, *lists)
        with suppress(MessageError, TypeError, ValueError):  # a draft with fractions, as only tests say them
            written = plain_json(this_thread.draft)
            _refused.extend(
                f"{error.instance_path}: {error.message}" for error in schema.iter_errors(written)
            )
        return manifest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafting, "check_members", checking)
        patch.setattr(drafting, "parse_manifest", parsing)
        yield


@pytest.fixture(autouse=True)
def drafts_fit_their_schema(drafts_are_noted: None) -> Iterator[None]:
    """Fails where a draft was taken that the schema refuses."""
    yield
    found = [*_refused]
    _refused.clear()
    assert found == []
