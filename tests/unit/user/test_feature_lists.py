"""Whole studies whose features stand in a list: three owners, a real proxy and the data user's service."""

import json
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wide_studies as wide
from chain_world import Chain
from proxy_world import ProxyWorld
from user_world import TOKEN, TOY_BITS, UserWorld

from dpdpca_owner import actions
from dpdpca_owner.carrying import NotCarriedError, carrying, take_receipt
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.sending import SendWatcher, send
from dpdpca_owner.study_checks import look_at
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import DpdpcaError, MessageError, NotFoundError
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.terms.feature_list import encode_features, read_feature_list
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_proxy.store.files import feature_list_name
from dpdpca_user.offline import verify_evidence
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.results.model import Model
from dpdpca_user_service.chains import create_chain
from dpdpca_user_service.drafts import lint_draft, plan_draft
from dpdpca_user_service.operations import evidence_of, keep_list, result_of
from dpdpca_user_service.stages import Stage

N, D = 300, 8
CONTENT = encode_features(
    [
        Feature.parse({"name": f"f{i}", "kind": "numeric", "lower": str(-1 - i % 2), "upper": "1"}, "a")
        for i in range(D)
    ]
)
REFERENCE = read_feature_list(CONTENT)[0]
TERMS: dict[str, Any] = {
    "features": None,
    "feature_list": REFERENCE.to_body(),
    "epsilon": 9,
    "max_records": 1000,
    "min_records": 100,
    "clip_norm": 2,
    "suite": "pads",
}


@pytest.fixture
def chain(world: ProxyWorld, tmp_path: Path) -> Iterator[Chain]:
    user = UserWorld(world, tmp_path / "user")
    rng = np.random.default_rng(7)  # noqa: TID251  # data, not noise
    records = rng.normal(0, 0.3, (N, 1)) * np.linspace(1, -1, D) + rng.normal(0, 0.05, (N, D))
    made = Chain.make(world, user, tmp_path, np.clip(records, -1, 1))
    for desk in made.desks:
        text = desk.home.policy_path.read_text().replace("min_owners = 3", "min_owners = 2")
        desk.home.policy_path.write_text(text)
    keep_list(user.service, REFERENCE.sha256.hex(), CONTENT)
    yield made
    user.service.close()


def test_a_study_goes_from_a_list_to_a_model_that_names_the_features(chain: Chain) -> None:
    row = chain.open(**TERMS)
    sheet = chain.prepare(row).sheet
    path = chain.desks[0].home.feature_lists.path(REFERENCE.sha256)
    assert path.read_bytes() == CONTENT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said = "\n".join(sheet.records_rules())
    assert f"8 features, in a list of {len(CONTENT)} bytes" in said
    assert REFERENCE.sha256.hex() in said
    assert "f0, f1, f2, …, f5, f6, f7" in said
    assert "between -2 and 1" in said
    assert str(path) in said
    told = sheet.to_json()
    assert told["feature_list"] == REFERENCE.to_body()
    assert [each["name"] for each in told["features"]] == ["f0", "f1", "f2", "f5", "f6", "f7"]
    for owner in range(3):
        chain.join(row, owner)
    row = chain.user.advance_to(row, Stage.FITTED)
    service = chain.user.service
    model = Model.from_bytes(service.store.need(row.id, "model"))
    assert model.components.space.names == tuple(f"f{i}" for i in range(D))
    assert model.manifest.feature_list == REFERENCE
    lead = np.linalg.eigh(np.cov((chain.records / np.tile([1, 1.5], D // 2)).T))[1][:, -1]
    assert abs(model.components.vectors[0] @ lead) > 0.9

    evidence = json.loads(evidence_of(service, row.id))
    pinned = service.home.proxy(row.proxy_url).keys

    def verified(given: dict[str, Any]) -> list[str]:
        def chunk(index: int) -> bytes:
            return service.store.chunk(row, index) or b""

        ours = [service.key.public.ed25519]
        return list(
            verify_evidence(row.known_study, given, chunk, pinned, ours, key_rules=KeyRules(TOY_BITS))
        )

    assert len(verified(evidence)) > 5
    with pytest.raises(NotFoundError, match="is not here"):
        verified(evidence | {"feature_list": None})
    with pytest.raises(NotFoundError, match="is not here"):
        verified(evidence | {"feature_list": evidence["feature_list"][1:]})


def test_a_pre_study_with_a_list_and_an_inline_study_share_its_features(chain: Chain) -> None:
    row = chain.run(release="pre-study", blocks={"norms": 1}, rho_share="0.2", missing="midpoint", **TERMS)
    numbers = PreStudyResult.parse(result_of(chain.user.service, row.id))
    assert numbers.records == N
    ledger = chain.desks[0].home.ledger.read()
    assert ledger.spend(row.known_study) is not None
    inline = {
        "features": [{"name": "F0", "lower": -1, "upper": 1}],
        "feature_list": None,
        "clip_norm": 1,
    }
    other = chain.open(**TERMS | inline)
    with chain.world.proxy.database.reading("test") as connection:
        from dpdpca_proxy.store.studies import feature_names

        assert feature_names(connection, other.known_study) <= feature_names(connection, row.known_study)


@pytest.mark.parametrize("after", ["list", "manifest"])
def test_a_service_killed_between_list_and_manifest_goes_on(
    chain: Chain, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def send(client: Any, *args: Any) -> Any:
        sending(client, *args)
        raise Killed

    from dpdpca_runtime.http.client import ProxyClient

    name = "put_feature_list" if after == "list" else "create_study"
    sending = getattr(ProxyClient, name)
    with monkeypatch.context() as patch:
        patch.setattr(ProxyClient, name, send)
        with suppress(Killed):
            chain.open(**TERMS)
    assert chain.world.proxy.files.exists(feature_list_name(REFERENCE.sha256))
    (row,) = chain.user.service.store.all()
    assert row.stage is Stage.SIGNED
    chain.user.reopen()
    row = chain.user.advance_to(row, Stage.OPEN)
    (listed,) = chain.world.client(chain.world.user).studies()
    assert listed.study == row.known_study


def test_a_draft_without_its_list_is_refused_at_once(chain: Chain) -> None:
    path = chain.user.service.feature_lists.path(REFERENCE.sha256)
    path.unlink()
    with pytest.raises(NotFoundError) as caught:
        chain.user.create(**TERMS)
    assert caught.value.slug == "feature-list-missing"
    with pytest.raises(MessageError) as refused:
        keep_list(chain.user.service, "00" * 32, CONTENT)
    assert refused.value.slug == "feature-list-differs"
    with pytest.raises(MessageError):
        keep_list(chain.user.service, Digest.of(CONTENT + b" ").hex(), CONTENT + b" ")
    assert not path.exists()


def test_an_owner_fetches_a_list_again_that_was_damaged_here(chain: Chain) -> None:
    row = chain.open(**TERMS)
    home = chain.desks[0].home
    chain.prepare(row)
    path = home.feature_lists.path(REFERENCE.sha256)
    path.write_bytes(CONTENT[:-1])
    assert home.feature_lists(REFERENCE.sha256) is None
    chain.prepare(row)
    assert path.read_bytes() == CONTENT


def test_a_proxy_that_sends_another_list_is_refused_and_holds_up_nobody(chain: Chain) -> None:
    row = chain.open(**TERMS)
    name, files = feature_list_name(REFERENCE.sha256), chain.world.proxy.files
    files.remove(name)
    files.write(name, CONTENT)
    object.__setattr__(
        chain.world.app.state.proxy, "feature_lists", lambda digest: CONTENT.replace(b"-1", b"-3")
    )
    with pytest.raises(MessageError) as caught:
        chain.prepare(row)
    assert caught.value.slug == "feature-list-differs"
    desk = chain.desks[0]
    assert desk.home.feature_lists(REFERENCE.sha256) is None
    with desk.client(chain.world.url) as client:
        assert look_at(client, desk.home, row.known_study) is None


def test_an_owner_without_a_network_carries_the_list_too(chain: Chain, tmp_path: Path) -> None:
    row, desk, folder = chain.open(**TERMS), chain.desks[0], tmp_path / "stick"
    location = DataLocation(str(chain.data[0]))

    def at_the_data() -> object:
        try:
            with carrying(
                desk.home, desk.owner, folder, chain.world.url, row.known_study, key_rules=desk.key_rules
            ) as carried:
                if (receipt := take_receipt(carried, chain.address(row))) is not None:
                    return receipt
                prepared = actions.prepare_join(carried, chain.address(row), location, "people")
                return actions.join(carried, chain.address(row), prepared, Watcher())
        except NotCarriedError as waiting:
            return waiting.has_request

    for has_share in (False, False, True):  # the terms, the list, the share
        assert at_the_data() is has_share
        send(folder, SendWatcher())
    assert desk.home.feature_lists(REFERENCE.sha256) == CONTENT
    assert not isinstance(at_the_data(), bool)


def test_commands_write_send_and_check_a_list(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from starlette.testclient import TestClient
    from typer.testing import CliRunner

    from dpdpca_user.commands.app import app
    from dpdpca_user.commands.parts import send_list
    from dpdpca_user.service_client import ServiceClient
    from dpdpca_user_service.app import make_app

    rows = [f"f{i},{-1 - i % 2},1" for i in range(D)]
    (tmp_path / "sites.csv").write_text("\n".join(["name,lower,upper", *rows, ""]))
    run = CliRunner().invoke
    made = run(app, ["study", "features", str(tmp_path / "sites.csv"), "--out", str(tmp_path / "sites.json")])
    assert made.exit_code == 0, made.output
    assert (tmp_path / "sites.json").read_bytes() == CONTENT
    draft = {**TERMS, "title": "a", "purpose": "b", "release": "joint", "feature_list": "sites.json"}
    del draft["features"]
    written = json.dumps(draft).encode()
    (tmp_path / "draft.json").write_bytes(written)
    checked = run(app, ["study", "lint", str(tmp_path / "draft.json")])
    assert checked.exit_code == 0, checked.output
    assert "8 encoded features" in checked.output

    chain.user.service.feature_lists.path(REFERENCE.sha256).unlink()
    with TestClient(make_app(chain.user.service, drive=False), base_url="http://127.0.0.1") as web:
        client = ServiceClient("http://127.0.0.1", TOKEN, transport=web._transport)
        sent, media_type = send_list(client, tmp_path / "draft.json", written, "application/json")
        assert json.loads(sent)["feature_list"] == REFERENCE.to_body()
        facts = client.create(sent, media_type)
        assert chain.user.service.store.find(facts["id"]).stage is Stage.DRAFTED
    chain.user.open()


def test_rounds_of_a_chain_name_the_list_or_one_with_moved_centres(chain: Chain) -> None:
    from dataclasses import replace

    from dpdpca_user.planning.choice import norm_study
    from dpdpca_user_service.chains import _round_draft

    service = chain.user.service
    base = {name: value for name, value in TERMS.items() if name not in ("features", "clip_norm")}
    base |= {"title": "a", "purpose": "b", "participants": "enrolled"}
    first = norm_study(D)
    draft = _round_draft(service, base, first)
    assert "features" not in draft
    assert draft["feature_list"] == REFERENCE.to_body()
    moved = _round_draft(service, base, replace(first, centre=tuple(0.25 for _ in range(D))))
    content = service.feature_lists(Digest.parse(moved["feature_list"]["sha256"]))
    assert content is not None
    assert content != CONTENT
    assert [feature.name for feature in read_feature_list(content)[1]] == [f"f{i}" for i in range(D)]
    facts = create_chain(service, json.dumps(base).encode(), "application/json", None)
    assert facts["state"] == "running"
    again = create_chain(service, json.dumps(base).encode(), "application/json", None)
    assert again["id"] == facts["id"]


def test_plans_and_checks_know_the_features_of_a_list(chain: Chain) -> None:
    service = chain.user.service
    base = {name: value for name, value in TERMS.items() if name not in ("features", "clip_norm")}
    base |= {"title": "a", "purpose": "b"}
    written = json.dumps(base).encode()
    assert lint_draft(service, written, "application/json", 500)["encoded_features"] == D
    begun = plan_draft(service, written, "application/json", 5000, begin=True)
    assert begun["draft"]["feature_list"] == REFERENCE.to_body()
    assert "features" not in begun["draft"]


def test_more_features_than_a_manifest_contains_are_planned_with_a_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dpdpca_user.commands.parts import lint_draft as lint_alone

    monkeypatch.setattr("dpdpca_user.planning.listed.MAX_ENCODED_FEATURES", 19)
    monkeypatch.setattr("dpdpca_protocol.terms.rules.MAX_ENCODED_FEATURES", 19)
    draft = wide.TERMS | {
        "title": "a",
        "purpose": "b",
        "release": "sketch",
        "of": "records",
        "rho_share": "0.2",
        "sketch": {"rows": wide.M, "seed": wide.SEED},
    }
    manifest = lint_alone(draft)
    assert manifest.feature_list is not None
    assert manifest.encoded_features == wide.D
    joint = {name: value for name, value in draft.items() if name not in ("of", "sketch")}
    with pytest.raises(DpdpcaError, match="more than 19"):
        lint_alone(joint | {"release": "joint"})


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("", "lacks name, lower, upper"),
        ("name,lower,upper", "no feature"),
        ("name,lower,upper,secret\na,0,1,2", "1 unknown columns"),
        ("name,lower,upper\na,0", "line 2 has 2 fields"),
        ("name,lower,upper\na,1,0", "line 2: the feature.lower is not below"),
        ("name,lower,upper\na,0,x", "line 2: upper must be"),
        ("name,lower,upper\na,,1", "line 2: the feature lacks lower"),
        ('name,lower,upper\n"a,0,1', "is not CSV"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_line(table: str, reason: str, tmp_path: Path) -> None:
    from dpdpca_protocol.errors import InputError
    from dpdpca_user.feature_files import list_from_table

    (tmp_path / "sites.csv").write_text(table)
    with pytest.raises(InputError, match=reason) as caught:
        list_from_table(tmp_path / "sites.csv")
    assert caught.value.slug == "bad-features"


def test_a_table_may_have_all_texts_and_numbers_of_a_feature(tmp_path: Path) -> None:
    from dpdpca_user.feature_files import list_from_table

    (tmp_path / "sites.csv").write_text(
        "Name, lower,upper,centre,scale,unit,description\n"
        '"a, b",-1.50,2e1,,1,mm,"two\nlines"\n\n'
        "c,0,1,0.5,,,\n",
    )
    features = read_feature_list(list_from_table(tmp_path / "sites.csv")[1])[1]
    assert [each.to_body() for each in features] == [
        {
            "name": "a, b",
            "kind": "numeric",
            "lower": "-1.5",
            "upper": "20",
            "scale": "1",
            "unit": "mm",
            "description": "two lines",
        },
        {"name": "c", "kind": "numeric", "lower": "0", "upper": "1", "centre": "0.5"},
    ]
