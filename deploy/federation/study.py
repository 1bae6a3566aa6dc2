"""An application of the data user: has its service run the demo's studies, masked, joint, and as a chain.

It knows the service's address and bearer token, and nothing else of the federation.
"""

import json
import os
import sys
import time
import tomllib
from collections.abc import Callable
from typing import Any

from dpdpca_cli.demo.command import chain_draft
from dpdpca_cli.demo.records import bundled_draft
from dpdpca_user.service_client import ServiceClient

LIMIT_SECONDS = 1800.0
LOOK_SECONDS = 1.0
DONE = ("fitted", "published", "done")
LOST = ("failed", "cancelled")
SHOWN = ("study", "title", "records", "trusted_components", "captured_variance", "claim")


def run_study(service: ServiceClient, release: str) -> dict[str, Any]:
    """The facts of a study of this release, once there is a model."""
    draft = tomllib.loads(bundled_draft()) | {"release": release}
    created = service.create(json.dumps(draft).encode(), "application/json")
    return await_end(release, lambda: service.study(str(created["draft"])))


def run_chain(service: ServiceClient) -> dict[str, Any]:
    """The facts of the chain, once its last study has a model."""
    draft = chain_draft(tomllib.loads(bundled_draft()))
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


def main() -> None:
    with ServiceClient(os.environ["SERVICE_URL"]) as service:
        for release in ("masked", "joint"):
            tell(service, release, run_study(service, release))
        tell(service, "chain", run_chain(service))


if __name__ == "__main__":
    main()
