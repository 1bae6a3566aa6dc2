"""An application of the data user: has its service run the demo's study, masked and then joint.

It knows the service's address and bearer token, and nothing else of the federation.
"""

import json
import os
import sys
import time
import tomllib

from dpdpca_cli.demo_records import bundled_draft
from dpdpca_user.service_client import ServiceClient

LIMIT_SECONDS = 600.0
LOOK_SECONDS = 1.0
DONE = ("fitted", "published")
LOST = ("failed", "cancelled")


def run_study(service: ServiceClient, release: str) -> dict[str, object]:
    """The model of one study, once it is there."""
    draft = tomllib.loads(bundled_draft()) | {"release": release}
    created = service.create(json.dumps(draft).encode(), "application/json")
    deadline = time.monotonic() + LIMIT_SECONDS
    state = ""
    while time.monotonic() < deadline:
        facts = service.study(str(created["draft"]))
        if facts["state"] != state:
            state = facts["state"]
            sys.stderr.write(f"{release}: {state}\n")
        if state in DONE:
            return service.model(str(facts["study"]))
        if state in LOST:
            sys.exit(f"{release}: {state}: {facts.get('failure')}")
        time.sleep(LOOK_SECONDS)
    sys.exit(f"{release}: still {state} after {LIMIT_SECONDS:.0f} s")


def main() -> None:
    with ServiceClient(os.environ["SERVICE_URL"]) as service:
        for release in ("masked", "joint"):
            model = run_study(service, release)
            shown = ("study", "title", "records", "trusted_components", "captured_variance", "claim")
            sys.stdout.write(json.dumps({"release": release} | {name: model[name] for name in shown}) + "\n")


if __name__ == "__main__":
    main()
