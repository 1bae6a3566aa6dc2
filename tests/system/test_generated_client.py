"""A client that openapi-python-client makes of the data user's OpenAPI document drives a study to its scores.

The generator lives in an environment of its own, which this test makes where it is missing.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from federation.records import NAMES, draft, patients, write_csv
from federation.world import Federation

from dpdpca_user import FederatedPCA

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-generated-client" / "bin"
SCRIPT = ROOT / "tests" / "support" / "generated_study.py"

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Runs a step of the script with the generated client; its standard input and output are JSON."""
    made = ["make", "-s", "-C", str(ROOT), f"PYTHON={sys.executable}", ".venv-generated-client/stamp"]
    subprocess.run(made, check=True)
    folder, user = tmp_path_factory.mktemp("generated"), federation.user
    (folder / "openapi.json").write_text(httpx.get(f"{user.service_url}/openapi.json").text)
    (folder / "settings.yml").write_text("post_hooks: []\n")  # the generator would call a formatter
    generate = [
        str(TOOLS / "openapi-python-client"),
        "generate",
        "--meta",
        "none",
        "--config",
        "settings.yml",
    ]
    generate += ["--path", "openapi.json", "--output-path", "study_client"]
    subprocess.run(generate, cwd=folder, check=True)
    token = (user.home / "token").read_text().strip()
    environment = os.environ | {"PYTHONPATH": str(folder), "DPDPCA_TOKEN": token}

    def run(step: str, *arguments: str, given: object) -> Any:
        command = [str(TOOLS / "python"), str(SCRIPT), step, user.service_url, *arguments]
        done = subprocess.run(
            command, input=json.dumps(given), capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_study_from_draft_to_scores(federation: Federation, ask: Ask, tmp_path: Path) -> None:
    owners = federation.owners(3)
    records = [patients(800, seed) for seed in (71, 72, 73)]
    begun = ask("begin", given=draft(participants=[owner.name for owner in owners]))
    assert begun["linted"]["release"] == "joint"
    assert begun["planned"]["records"] == 10_000
    assert {outlook["release"] for outlook in begun["planned"]["releases"]} >= {"joint", "masked"}
    for number, (owner, part) in enumerate(zip(owners, records, strict=True)):
        data = write_csv(tmp_path / f"{number}.csv", part)
        assert owner.join(f"{federation.url}/{begun['study']}", data)["records"] == len(part)

    rows = records[0][:20]
    found = ask("finish", begun["study"], given=rows)
    token = (federation.user.home / "token").read_text().strip()
    ours = FederatedPCA(federation.user.service_url, token, begun["study"]).fit()
    np.testing.assert_allclose(found["components"], ours.components_, atol=1e-12)
    table = pa.table({name: [row[name] for row in rows] for name in NAMES})
    np.testing.assert_allclose(found["scores"], ours.transform(table), atol=1e-9)
    assert found["refused"] == "urn:dpdpca:problem:missing-column"
