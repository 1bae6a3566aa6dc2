import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.result.publication import encode_components
from dpdpca_user.results.figures import escaped
from dpdpca_user.results.model import Model, assumptions, claim
from dpdpca_user.results.reliability import Reliability
from dpdpca_user.results.report import render_report


@pytest.mark.parametrize("kind", ["joint_model", "masked_model"])
def test_a_model_file_comes_back_as_it_was(kind: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(kind)
    again = Model.from_bytes(model.to_bytes())
    assert again.manifest == model.manifest
    assert again.study == model.study
    assert again.provenance == model.provenance
    assert encode_components(again.study, again.components) == encode_components(
        model.study, model.components
    )


def test_a_model_file_is_readable_with_numpy_alone(joint_model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(joint_model.to_bytes())
    with np.load(path, allow_pickle=False) as file:
        assert np.array_equal(file["vectors"], joint_model.components.vectors)
        assert list(file["names"]) == list(joint_model.components.space.names)
        assert file["noise_edges"].shape == (5,)


def test_what_is_no_model_file_is_refused(joint_model: Model, tmp_path: Path) -> None:
    good = joint_model.to_bytes()
    pickled, foreign = io.BytesIO(), io.BytesIO()
    np.savez(pickled, metadata=np.array([{"a": 1}], dtype=object), components=np.zeros(3, dtype=np.uint8))
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    for content in (b"", b"not a file", good[: len(good) // 2], pickled.getvalue(), foreign.getvalue()):
        with pytest.raises(MessageError):
            Model.from_bytes(content)


def test_a_model_file_whose_components_belong_to_another_study_is_refused(
    joint_model: Model, masked_model: Model
) -> None:
    mixed = Model(masked_model.study, joint_model.manifest, masked_model.components, joint_model.provenance)
    with pytest.raises(MessageError):
        Model.from_bytes(mixed.to_bytes())


def test_claim_and_assumptions_say_towards_whom(joint_model: Model, masked_model: Model) -> None:
    for model in (joint_model, masked_model):
        text = claim(model)
        assert "replace-one" in text
        assert "against the data user" in text
        assert "against the proxy only while" in text
        assert any("do not work together" in line for line in assumptions(model))
    assert any("Every owner is honest" in line for line in assumptions(masked_model))
    assert any("that owner's records only" in line for line in assumptions(joint_model))


def test_where_owners_draw_the_claim_includes_the_proxy(make_model: Callable[..., Model]) -> None:
    model = make_model(noise_by="owners")
    text = claim(model)
    assert text.startswith("Each record has (2, 4e-08)-differential privacy. The relation is replace-one")
    assert "against the proxy too, which knows none of the noise" in text
    assert "2 of them did so and kept it secret; up to 1 may reveal their noise" in text
    assert "published in clear" in text
    assert any("At least 2 owners of the cohort add their part" in line for line in assumptions(model))
    assert model.privacy["noise_by"] == "owners"
    assert Model.from_bytes(model.to_bytes()).manifest == model.manifest


@pytest.mark.parametrize(
    ("terms", "said", "statements"),
    [
        (
            {"mechanism": "laplace"},
            "Each record has (2, 7.77e-24)-differential privacy",
            [
                "proved privacy: (ε, δ) = (2, 7.76645e-24), replace-one (mechanism laplace)",
                "of δ, 0 covers the noise, 0 the mask, and 7.8e-24 the tails of the noise",
            ],
        ),
        (
            {"release": "masked"},
            "Each record has (2, 4e-08)-differential privacy",
            [
                "proved privacy: (ε, δ) = (2, 4e-08), replace-one (mechanism gaussian)",
                "the tails of the noise and the re-randomisation",
                "continuous noise of this strength would give ε = ",
            ],
        ),
    ],
)
def test_what_is_proved_is_said_in_model_and_report(
    make_model: Callable[..., Model], terms: dict[str, str], said: str, statements: list[str]
) -> None:
    model = make_model(**terms)
    facts = model.facts()
    assert facts["claim"].startswith(said)
    shown = facts["privacy"]["statements"]
    assert len(shown) == len(statements)
    assert all(part in line for part, line in zip(statements, shown, strict=True))
    page = render_report([model], "now")
    for line in shown:
        assert escaped(line, 400) in page


def test_a_result_of_a_chain_states_the_total(make_model: Callable[..., Model]) -> None:
    """Its centre and clip norm come from the rounds before: the ε of the round alone would be too little."""
    model = make_model(rho_share="0.25")
    privacy, part = model.privacy, model.privacy["round"]
    assert (privacy["epsilon"], privacy["delta"]) == (2, 4e-8)
    assert privacy["guarantee"] == "(ε, δ) = (2, 4e-08), replace-one"
    assert part["epsilon"] < 1.1
    assert part["rho"] == pytest.approx(privacy["rho"] / 4)
    assert claim(model).startswith(
        "Each record has (2, 4e-08)-differential privacy over all rounds of its chain"
    )
    page = render_report([model], "now")
    assert "(ε, δ) = (2, 4e-08), replace-one, over all rounds of its chain" in page
    assert make_model().privacy["round"] is None


def test_facts_are_plain_json(joint_model: Model, masked_model: Model) -> None:
    import json

    facts: dict[str, Any] = json.loads(json.dumps(joint_model.facts(), allow_nan=False))
    assert facts["privacy"]["epsilon"] == 2
    assert len(facts["components"]) == 5
    assert len(facts["mean"]) == 5
    assert masked_model.facts()["mean"] is None
    assert facts["labels"][-1] == "not distinguishable from noise"


def test_reliability_comes_back_and_older_files_do_without(joint_model: Model) -> None:
    again = Model.from_bytes(joint_model.to_bytes())
    assert again.reliability is not None
    assert joint_model.reliability is not None
    assert again.reliability.to_body() == joint_model.reliability.to_body()
    older = replace(joint_model, reliability=None)
    assert Model.from_bytes(older.to_bytes()).reliability is None
    assert older.facts()["reliability"] is None
    assert older.facts()["correlation"] is None


@pytest.mark.parametrize(
    "change",
    [
        {"draws": "many"},
        {"share_low": [0.5, float("nan")]},
        {"share_high": [[0.5]]},
        {"variances": [1.0]},
        {"overlap_low": None},
    ],
)
def test_reliability_of_another_shape_is_refused(joint_model: Model, change: dict[str, Any]) -> None:
    assert joint_model.reliability is not None
    body = joint_model.reliability.to_body()
    assert Reliability.parse(body, 5).draws == 200
    with pytest.raises(MessageError, match="wrong shape"):
        Reliability.parse(body | change, 5)


def test_facts_say_how_far_to_trust(joint_model: Model) -> None:
    facts, components = joint_model.facts(), joint_model.components
    k = components.trusted_count
    assert 0 < k < components.component_count
    assert facts["captured_shares_are_bounds"] == [False] * k + [True] * (components.component_count - k)
    assert len(facts["reliability"]["share_low"]) == len(facts["reliability"]["overlap_low"]) == k
    assert facts["reliability"]["total_variance_deviation"] > components.noise_scale
    assert "cannot be seen after the release" in facts["not_included"]
    vectors = np.array(facts["correlation"]["components"])
    assert vectors.shape == (5, 5)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(5), atol=1e-9)
    assert facts["correlation"]["denoised"] is False
