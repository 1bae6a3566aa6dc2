"""An application that drives the data user's service over REST: from a draft to scores.

Run: python examples/rest_api.py http://127.0.0.1:8450 TOKEN_FILE draft.toml
TOKEN_FILE is `token` in the data user's folder. The owners join in between, with `dpdpca owner join`.
"""

import sys
import time
from pathlib import Path
from typing import Any

import httpx

PAUSE_SECONDS = 5.0


def open_study(service: httpx.Client, draft: str) -> str:
    """Creates a study from a draft in TOML; returns the id by which the service knows it."""
    toml = {"content-type": "application/toml"}
    checked = answer(service.post("/v1/drafts/lint", content=draft, headers=toml))
    print("the draft is valid", *checked["advice"], sep="\n  ")
    return answer(service.post("/v1/studies", content=draft, headers=toml))["id"]


def wait_for_model(service: httpx.Client, study: str) -> dict[str, Any]:
    """Waits until the owners are in and the service has decrypted; returns the model."""
    told = ""
    while not (facts := answer(service.get(f"/v1/studies/{study}")))["has_model"]:
        if facts["problem"] is not None:
            raise SystemExit(f"the study ended: {facts['problem']['detail']}")
        if facts["state"] != told:
            told = facts["state"]
            print("state:", told, "- study id for the owners:", facts["study"] or "not yet")
        time.sleep(PAUSE_SECONDS)
    return answer(service.get(f"/v1/models/{study}"))


def scores(service: httpx.Client, study: str, rows: list[dict[str, float]]) -> list[list[float]]:
    """Projects rows, given by feature, onto the first two components."""
    sent = {"rows": rows}
    return answer(service.post(f"/v1/models/{study}/transform", params={"components": 2}, json=sent))[
        "scores"
    ]


def answer(response: httpx.Response) -> Any:
    """The JSON of an answer; a problem document becomes a message that says what to do."""
    if response.is_error:
        problem = response.json()
        raise SystemExit(f"{problem['type']}: {problem['detail']}; {problem['next_step']}")
    return response.json()


def main(url: str, token_file: str, draft_file: str) -> None:
    token = Path(token_file).read_text().strip()
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}) as service:
        study = open_study(service, Path(draft_file).read_text())
        model = wait_for_model(service, study)
        print(model["claim"])
        print("components above the noise:", model["trusted_components"], "of", len(model["components"]))
        middle = dict(zip(model["features"], model["origin"], strict=True))
        print("scores of a record at the middle of all bounds:", scores(service, study, [middle]))


if __name__ == "__main__":
    main(*sys.argv[1:])
