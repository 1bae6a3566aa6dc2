"""An application of the data user: has its service run the demo's studies: masked, joint and as a chain.

Usage: study.py [masked] [joint] [chain]; without names all three, in this order.

The joint study and the chain are blinded. The application knows the service's address and bearer token, and
nothing else of the federation.
"""

import json
import os
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpdpca_cli.demo.drafts import drafts_of
from dpdpca_cli.demo.records import bundled_draft
from dpdpca_user.service_client import ServiceClient

LIMIT_SECONDS = 1800.0
LOOK_SECONDS = 1.0
DONE = ("fitted", "published", "done")
LOST = ("failed", "cancelled")
SHOWN = ("study", "title", "records", "trusted_components", "captured_variance", "claim", "assumptions")


def run_study(service: ServiceClient, draft: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a study, once there is a model."""
    created = service.create(json.dumps(draft).encode(), "application/json")
    return await_end(str(draft["release"]), lambda: service.study(str(created["draft"])))


def run_chain(service: ServiceClient, draft: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the chain, once its last study has a model."""
    created = service.run_chain(json.dumps(draft).encode(), "application/json")
    return await_end("chain", lambda: service.chain(str(created["id"])))


def await_end(name: str, look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT_SECONDS
    state = ""
    while time.monotonic() < deadline:
        facts = look()
        if facts["state"] != state:
            state = facts["state"]
            sys.stderr.write(f"{name}: {state}\n")
        if state in DONE:
            return facts
        if state in LOST:
            sys.exit(f"{name}: {state}: {facts['problem']}")
        time.sleep(LOOK_SECONDS)
    sys.exit(f"{name}: still {state} after {LIMIT_SECONDS:.0f} s")


def tell(service: ServiceClient, name: str, facts: dict[str, Any]) -> None:
    """One line of JSON about the model of a study or chain."""
    model = service.model(str(facts["study"]))
    rounds = [each["release"] for each in facts.get("rounds", [])]
    sys.stdout.write(json.dumps({"name": name, "rounds": rounds} | {key: model[key] for key in SHOWN}) + "\n")


def main(names: Sequence[str]) -> None:
    draft = tomllib.loads(bundled_draft())
    drafts = drafts_of(draft, len(draft["participants"]))
    studies = {
        "masked": lambda: run_study(service, drafts.masked),
        "joint": lambda: run_study(service, drafts.joint),
        "chain": lambda: run_chain(service, drafts.chain),
    }
    with ServiceClient(os.environ["SERVICE_URL"]) as service:
        for name in names or studies:
            tell(service, name, studies[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
