"""`dpdpca user …` on a chain for many features: the next round by hand, and what a result says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from proxy_world import ProxyWorld
from starlette.testclient import TestClient
from typed_commands import Run, typed_by_user
from wide_chains import BASE, RECORDS, ROUNDS, D, WideWorld, few_are_many

from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_user.commands import app as commands
from dpdpca_user.commands import plan as plan_commands
from dpdpca_user.commands.parts import lint_draft, read_draft
from dpdpca_user.planning.rehearsal import play_round
from dpdpca_user.service_client import ServiceClient
from dpdpca_user_service.app import make_app


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    few_are_many(monkeypatch, only_lifts=True)
    return typed_by_user(capsys)


@pytest.mark.nightly
def test_a_finished_chain_is_planned_again_and_shown(
    run: Run, world: ProxyWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = WideWorld(world, tmp_path / "user")
    chain = user.run_chain(RECORDS, BASE)
    client = TestClient(make_app(user.service, drive=False))

    def open_client(_url: str | None, _home: Path | None) -> ServiceClient:
        return ServiceClient("http://127.0.0.1:1", "open sesame", transport=client._transport)

    monkeypatch.setattr(commands, "open_client", open_client)
    monkeypatch.setattr(plan_commands, "open_client", open_client)
    ids = [user.row(each.row).known_study.hex() for each in chain.rounds]
    lift, scores = ids[-2:]

    # The scores follow from the lift by hand as in the chain.
    Path("base.json").write_text(json.dumps(BASE))
    status, out, err = run(
        "plan", "base.json", "--from", ",".join(ids[:-1]), "--out", "scores.toml", "--json"
    )
    assert status == 0, err
    planned = json.loads(out)
    assert (planned["release"], planned["is_last"]) == ("scores", True)
    assert planned["draft"]["scores"] == chain.rounds[-1].draft["scores"]
    assert planned["draft"]["pre_studies"] == ids[:-1]
    assert run("study", "lint", "scores.toml")[0] == 0
    # A lift alone is not a chain, and nothing is written.
    status, _, err = run("plan", "base.json", "--from", lift, "--out", "none.toml")
    assert (status, "there is none" in " ".join(err.split())) == (2, True)
    assert not Path("none.toml").exists()

    # Variances are those of the scores, or lower bounds without them.
    said = {}
    for study in (scores, lift):
        status, out, err = run("result", study)
        assert status == 0, err
        said[study] = " ".join(out.split())
        assert "Components that the sketch did not show are not in the lift." in said[study]
        assert "do not have the same records" not in said[study]
    assert "lower bounds, because this result has no scores round" in said[lift]
    assert "lower bounds" not in said[scores]
    facts = {study: json.loads(run("result", study, "--json")[1]) for study in (scores, lift)}
    assert facts[scores]["variance_kind"] != facts[lift]["variance_kind"]
    assert facts[lift]["variance_deviations"] is None
    assert len(facts[scores]["variance_deviations"]) == 2
    status, _, err = run("result", scores, "--covariance", "c.csv")
    assert (status, "released no matrix of them" in " ".join(err.split())) == (1, True)
    assert list(dict.fromkeys(each.release for each in chain.rounds)) == ROUNDS
    user.service.close()


def test_the_draft_of_a_round_names_the_list_that_its_base_names(run: Run, tmp_path: Path) -> None:
    rows = "".join(f"{feature['name']},-1,1\n" for feature in BASE["features"])
    Path("sites.csv").write_text("name,lower,upper\n" + rows)
    assert run("study", "features", "sites.csv", "--out", "sites.json")[0] == 0
    base = {name: value for name, value in BASE.items() if name != "features"}
    Path("base.json").write_text(json.dumps(base | {"feature_list": "sites.json"}))
    Path("rounds").mkdir()
    begin = ("plan", "base.json", "--records", "1500", "--begin")
    assert run(*begin, "--out", "rounds/1.toml")[0] == 0
    written = Path("rounds/1.toml").read_text()
    assert 'feature_list = "../sites.json"' in written
    assert "[[features]]" not in written
    assert 'feature_list = "sites.json"' in run(*begin)[1]
    assert json.loads(run(*begin, "--json")[1])["draft"]["feature_list"] == "sites.json"

    # Once the centres have moved, the features have a file of their own beside the draft.
    records = {feature["name"]: RECORDS[:, i] + 0.1 for i, feature in enumerate(BASE["features"])}
    for number in range(1, 5):
        manifest = lint_draft(read_draft(Path(f"rounds/{number}.toml")))
        if manifest.release == "sketch":
            break
        result: Any = play_round(manifest, [records], OS_RANDOMNESS)
        Path(f"{number}.json").write_text(json.dumps(result.to_json()))
        results = ",".join(f"{each}.json" for each in range(1, number + 1))
        following = ("plan", "base.json", "--from", results, "--out", f"rounds/{number + 1}.toml")
        status, _, err = run(*following)
        assert status == 0, err
    assert number > 2
    written = Path(f"rounds/{number}.toml").read_text()
    assert f'feature_list = "{number}.features.json"' in written
    assert "[[features]]" not in written
    assert manifest.encoded_features == D
    assert np.mean([float(each.centre or 0) for each in manifest.features]) == pytest.approx(0.1, abs=0.03)
    before = sorted(Path("rounds").iterdir())
    assert run(*following)[0] == 2
    assert sorted(Path("rounds").iterdir()) == before
