"""A study driven by a client that was generated from the data user's OpenAPI document.

    generated_study.py begin URL < draft.json          plans and creates a study; prints the answers
    generated_study.py finish URL STUDY < rows.json    closes it, waits for its model, prints scores

The generated package `study_client` is on the path; the bearer token is in DPDPCA_TOKEN. Nothing of dpdpca is
imported: this runs in the environment of the generator.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

PATIENCE_SECONDS = 300.0


def route(name: str) -> Any:
    """The generated module of a route, such as "studies.create"."""
    return importlib.import_module(f"study_client.api.{name}")


def model(name: str) -> Any:
    """A generated class."""
    return getattr(importlib.import_module("study_client.models"), name)


def client_of(url: str) -> Any:
    kind = importlib.import_module("study_client").AuthenticatedClient
    return kind(base_url=url, token=os.environ["DPDPCA_TOKEN"], raise_on_unexpected_status=True)


def answered(kind: str, answer: Any) -> Any:
    """`answer`, if it is of the generated class that the route promises."""
    if not isinstance(answer, model(kind)):
        raise SystemExit(f"the service answers with {answer}")
    return answer


def awaited(client: Any, study: str, is_far_enough: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        facts = answered("StudyBody", route("studies.read_study").sync(study, client=client))
        if facts.failure is not None:
            raise SystemExit(f"the study failed: {facts.failure}")
        if is_far_enough(facts):
            return facts
        time.sleep(0.2)
    raise SystemExit("the study takes too long")


def begin(client: Any, draft: dict[str, Any]) -> dict[str, Any]:
    records = draft["max_records"]
    body, base = model("Draft").from_dict(draft), model("BaseDraft").from_dict(draft)
    linted = answered("LintBody", route("drafts.lint").sync(client=client, body=body, records=records))
    planned = answered("OutlooksBody", route("drafts.plan").sync(client=client, body=base, records=records))
    made = answered("CreatedStudyBody", route("studies.create").sync(client=client, body=body, publish=False))
    opened = awaited(client, made.id, lambda facts: facts.state == "open")
    return {
        "linted": linted.to_dict(),
        "planned": planned.to_dict(),
        "study": opened.study,
    }


def finish(client: Any, study: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    answered("StudyBody", route("studies.close").sync(study, client=client))
    awaited(client, study, lambda facts: facts.has_model)
    found = answered("ModelBody", route("models.read_model").sync(study, client=client))
    transform = route("models.transform_rows").sync
    scores = answered(
        "ScoresBody", transform(study, client=client, body=model("Rows").from_dict({"rows": rows}))
    )
    refused = transform(study, client=client, body=model("Rows").from_dict({"rows": [{}]}))
    return {
        "components": found.components,
        "scores": scores.scores,
        "refused": answered("Problem", refused).type_,
    }


if __name__ == "__main__":
    step, url, *study = sys.argv[1:]
    given = json.load(sys.stdin)
    with client_of(url) as asked:
        said = begin(asked, given) if step == "begin" else finish(asked, study[0], given)
    json.dump(said, sys.stdout)
