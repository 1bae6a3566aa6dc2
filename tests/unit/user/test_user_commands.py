"""`dpdpca user …` as people call it: what it prints, what it refuses, and with which exit status."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proxy_world import ProxyWorld
from starlette.testclient import TestClient
from typed_commands import Run, typed_by_user
from user_world import UserWorld

from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_proxy.enrolment import invite
from dpdpca_runtime.words import fingerprint_words
from dpdpca_user.commands import app as commands
from dpdpca_user.commands import run as run_commands
from dpdpca_user.commands import study as study_commands
from dpdpca_user.service_client import ServiceClient, find_url
from dpdpca_user_service.app import make_app
from dpdpca_user_service.stages import Stage

DRAFT = """
title = "A study"
purpose = "To see."
participants = "enrolled"
release = "joint"
epsilon = 1
clip_norm = 1.7
max_records = 5000
missing = "midpoint"
[[features]]
name = "income"
lower = 0
upper = 100000
[[features]]
name = "age"
lower = 18
upper = 100
[[features]]
name = "sex"
levels = ["f", "m"]
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DPDPCA_USER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return typed_by_user(capsys)


@pytest.fixture
def draft(tmp_path: Path) -> str:
    path = tmp_path / "draft.toml"
    path.write_text(DRAFT)
    return str(path)


def test_init_makes_private_files_once(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("init", "--name", "Institute", "--json")
    facts = json.loads(out)
    assert status == 0
    assert len(facts["words"].split()) == 12
    for name in ("identity.pem", "token", "profile.json"):
        assert (tmp_path / "home" / name).stat().st_mode & 0o777 == 0o600
    assert len((tmp_path / "home" / "token").read_text().strip()) >= 43
    status, _, err = run("init", "--name", "Institute")
    assert status == 1
    assert "there is already a key" in err
    assert json.loads(out)["party"] in out


def test_init_under_a_passphrase_opens_with_it_alone(run: Run, tmp_path: Path) -> None:
    from dpdpca_protocol.errors import AuthenticationError
    from dpdpca_user.home import UserHome

    (tmp_path / "word").write_text("correct horse\n")
    assert run("init", "--name", "Institute", "--passphrase-file", str(tmp_path / "word"))[0] == 0
    home = UserHome(tmp_path / "home")
    assert home.identity(b"correct horse").public
    with pytest.raises(AuthenticationError):
        home.identity(b"wrong")
    with pytest.raises(AuthenticationError):
        home.identity(None)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 300, "\u202ename"])
def test_a_name_that_could_act_is_refused(run: Run, tmp_path: Path, name: str) -> None:
    status, _, err = run("init", "--name", name)
    assert status == 1
    assert err.count("\n") == 1
    assert not (tmp_path / "home").exists()


def test_plan_shows_both_releases_and_warns_of_a_high_clip_norm(run: Run, draft: str) -> None:
    status, out, _ = run("plan", draft, "--records", "20000")
    assert status == 0
    assert "masked" in out
    assert "joint" in out
    assert "above 0.7" in out
    assert "income 50000" in out
    facts = json.loads(run("plan", draft, "--records", "20000", "--json")[1])
    chain, masked, joint, _ = facts["releases"]
    assert chain["privacy"] == joint["privacy"]
    assert chain["bytes_per_owner"] > joint["bytes_per_owner"]
    assert 1.9 < masked["noise_on_a_variance"] / joint["noise_on_a_variance"] < 4
    assert joint["bytes_per_owner"] == 8 * (1 + 4 + 10)
    assert joint["ciphertexts_per_owner"] == 0 < masked["ciphertexts_per_owner"]
    assert 0 < joint["minutes_per_owner"] < 1e-6 < masked["minutes_per_owner"]
    assert "under 1 s" in out
    assert masked["delta_parts"]["mask"] > 0 == joint["delta_parts"]["mask"]
    assert 0 < joint["delta_parts"]["tails"] < 1e-20
    assert joint["continuous_gaussian"]["noise_scale"] < joint["noise_scale"]
    assert "tails" in out


def test_plan_gives_every_release_its_noise_and_the_records_that_it_takes(run: Run, draft: str) -> None:
    facts = json.loads(run("plan", draft, "--records", "20000", "--json")[1])
    chain, _, joint, pairs = facts["releases"]
    assert [each["is_chain"] for each in facts["releases"]] == [True, False, False, False]
    assert (chain["release"], chain["centres_far_off"]["release"]) == ("joint", "joint")
    noises = [each["relative_noise"] for each in facts["releases"]]
    assert noises == pytest.approx(
        [1.025 / 0.985**0.5, 2.828, 1.215, 2.0], rel=1e-3
    )  # a chain tells of clipping and of gaps
    assert pairs["clip_norm"] == pytest.approx(joint["clip_norm"], rel=1e-4)
    for release in facts["releases"]:
        for seen in (release["centres_at_means"], release["centres_far_off"]):
            assert seen["least_records"]["0.1"] == pytest.approx(5 * seen["least_records"]["0.5"], rel=0.01)
            assert 0 <= seen["clipped_share"] <= 1
        assert release["clip_norm_without_data"] == pytest.approx((2 * 0.35**2 + 0.81) ** 0.5)
    assert pairs["centres_far_off"] == pairs["centres_at_means"]


def test_plan_refuses_what_can_only_be_noise(run: Run, draft: str) -> None:
    status, out, err = run("plan", draft, "--records", "10")
    assert (status, out) == (1, "")
    assert "too few for 4 features at ε = 1" in err
    assert "--anyway" in err
    assert run("plan", draft, "--records", "10", "--anyway")[0] == 0
    assert run("plan", draft, "--records", "60")[0] == 0
    assert run("plan", draft, "--records", "60", "--spectrum", "0.2,0.1")[0] == 1
    assert run("plan", draft)[0] == 2


def test_plan_counts_what_a_spectrum_leaves_above_the_noise(run: Run, draft: str, tmp_path: Path) -> None:
    (tmp_path / "spectrum.txt").write_text("0.5\n0.45\n0.01\n")
    for given in ("0.5,0.45,0.01", "spectrum.txt"):
        facts = json.loads(run("plan", draft, "--records", "2000", "--spectrum", given, "--json")[1])
        near = [each["centres_at_means"]["components_above_noise"] for each in facts["releases"]]
        far = [each["centres_far_off"]["components_above_noise"] for each in facts["releases"]]
        _, masked, joint, _ = near
        assert masked <= joint == 2
        assert all(there <= here for here, there in zip(near, far, strict=True))
        assert any("the directions in it" in line for line in facts["advice"])
    for bad in ("0.5,half", "-1", "0"):
        assert run("plan", draft, "--records", "2000", "--spectrum", bad)[0] == 2


def test_a_sample_shows_bounds_that_are_too_wide(run: Run, draft: str, tmp_path: Path) -> None:
    (tmp_path / "sample.csv").write_text("income,age,sex\n900,31,f\n1200,78,m\n1100,50,f\n")
    for words in (("plan", draft, "--records", "20000"), ("study", "lint", draft)):
        status, out, _ = run(*words, "--sample", "sample.csv", "--json")
        said = " ".join(json.loads(out)["advice"])
        assert status == 0
        assert "wider than the sample needs: income (333 times)" in said
        assert "income (1100, not 50000)" in said
        assert "age (" not in said


def test_a_chain_is_begun_rehearsed_and_continued_from_a_result(run: Run, tmp_path: Path) -> None:
    kept = [line for line in DRAFT.splitlines() if not line.startswith(("release", "clip_norm"))]
    (tmp_path / "chain.toml").write_text("\n".join(kept))
    status, out, _ = run("plan", "chain.toml", "--records", "4000", "--begin", "--out", "first.toml")
    assert (status, "norm study" in out) == (0, True)
    assert run("study", "lint", "first.toml")[0] == 0
    assert run("plan", "chain.toml", "--records", "4000", "--begin", "--out", "first.toml")[0] == 2
    rehearsed = json.loads(run("plan", "chain.toml", "--records", "4000", "--rehearse", "--json")[1])
    assert rehearsed["rounds"][0]["release"] == "pre-study"
    assert rehearsed["rounds"][-1]["release"] in ("joint", "pairs")
    assert sum(each["rho_share"] for each in rehearsed["rounds"]) == pytest.approx(1)
    assert 0 < rehearsed["captured_of_best"]["1"] <= 1
    (tmp_path / "owners.toml").write_text("\n".join(['noise_by = "owners"', "min_owners = 5", *kept]))
    shared = json.loads(run("plan", "owners.toml", "--records", "4000", "--rehearse", "--json")[1])
    assert sum(each["rho_share"] for each in shared["rounds"]) == pytest.approx(1)
    status, _, err = run("plan", "chain.toml", "--records", "6000", "--rehearse")
    assert (status, "6000 records, but 1 to 5000 are allowed" in " ".join(err.split())) == (1, True)

    from dpdpca_protocol.randomness import OS_RANDOMNESS
    from dpdpca_user.commands.parts import lint_draft, read_draft
    from dpdpca_user.planning.rehearsal import made_up_records, play_round

    manifest = lint_draft(read_draft(tmp_path / "first.toml"))
    made = made_up_records(manifest.features, 4000, OS_RANDOMNESS)
    result: Any = play_round(manifest, [made], OS_RANDOMNESS)
    (tmp_path / "result.json").write_text(json.dumps(result.to_json()))
    status, out, _ = run("plan", "chain.toml", "--from", "result.json", "--out", "second.toml", "--json")
    facts = json.loads(out)
    assert status == 0
    assert facts["draft"]["pre_studies"] == [manifest.study_id.hex()]
    assert facts["reasons"]
    assert run("study", "lint", "second.toml")[0] == 0
    (tmp_path / "result.json").write_text("{")
    assert run("plan", "chain.toml", "--from", "result.json")[0] == 1


@pytest.mark.parametrize(
    "terms", ['mechanism = "wishart"', 'mechanism = "mod-sulq"', 'calibration = "as-published"']
)
def test_plan_and_lint_refuse_noise_without_a_proof(run: Run, terms: str) -> None:
    named = terms.partition('"')[2].rstrip('"')
    draft = DRAFT.replace('release = "joint"', f'release = "masked"\n{terms}')
    Path("paper.toml").write_text(draft, encoding="utf-8")
    for command in (["plan", "paper.toml", "--records", "20000"], ["study", "lint", "paper.toml"]):
        status, _, err = run(*command)
        assert status == 1
        assert f"{named} has no proof of privacy here; it exists only in the lab" in err
        assert "dpdpca experiments list" in err


def test_a_draft_may_name_the_only_calibration(run: Run) -> None:
    terms = 'release = "joint"\ncalibration = "proved"'
    Path("proved.toml").write_text(DRAFT.replace('release = "joint"', terms), encoding="utf-8")
    assert run("study", "lint", "proved.toml")[0] == 0


def test_lint_accepts_a_good_draft_and_names_the_fault_of_a_bad_one(run: Run, draft: str) -> None:
    assert run("study", "lint", draft)[0] == 0
    for good, bad, words in (
        ("epsilon = 1", "epsilon = -1", "epsilon"),
        ("upper = 100000", "upper = 0", "lower"),
        ('release = "joint"', 'release = "open"', "release"),
        ("max_records = 5000", "max_records = -5", "max_records"),
        ('title = "A study"', "", "title"),
        ("epsilon = 1", "epsilon =", "TOML"),
    ):
        Path("bad.toml").write_text(DRAFT.replace(good, bad))
        status, _, err = run("study", "lint", "bad.toml")
        assert status == 1
        assert words in err
        assert err.count("\n") == 1


def test_a_sample_gives_a_draft_that_lints_once_what_it_leaves_open_is_filled_in(
    run: Run, tmp_path: Path
) -> None:
    sample = tmp_path / "sample.csv"
    sample.write_text('\ufeffage;"the ""sex""";const\n31;f;5\n 78 ;m;5\n;f;nan\n', encoding="utf-8")
    init = ("study", "init", "--from", str(sample))
    status, out, err = run(*init, "--records", "20000", "--out", "made.toml")
    assert (status, out) == (0, "")
    assert "Replace the bounds and levels" in err
    assert "fill in by hand: bounds of const" in err
    text = (tmp_path / "made.toml").read_text()
    assert text.startswith("# The bounds and levels below come from the sample")
    assert "max_records = 24000 " in text
    assert "\nrelease" not in text
    assert '\nrelease = "joint"' in run(*init, "--records", "20000", "--single")[1]
    status, _, err = run("study", "lint", "made.toml")
    assert (status, "(const) lacks bounds" in err) == (1, True)
    (tmp_path / "made.toml").write_text(
        text.replace("# lower =  ", "lower = 0  ").replace("# upper =", "upper = 9")
    )
    assert run("study", "lint", "made.toml")[0] == 0
    assert run(*init, "--out", "made.toml")[0] == 2
    assert run(*init, "--records", "20000")[1] == text
    named = run(*init, "--records", "20000", "--participant", "Hospital A", "--participant", "Hospital B")[1]
    assert 'participants = ["Hospital A", "Hospital B"]' in named
    assert 'noise_by = "proxy"' in run(*init, "--anybody")[1]
    for wrong in (("--participant", "Alone"), ("--anybody", "--participant", "A", "--participant", "B")):
        assert run(*init, *wrong)[0] == 2
    assert "fill in by hand: max_records, bounds of const" in run(*init)[2]
    for content in ("", "a,b\n", "a,a\n1,2\n", "a,b\n1\n"):
        sample.write_text(content)
        assert run(*init)[0] == 1


def test_lint_and_plan_say_what_naming_nobody_costs(run: Run, draft: str) -> None:
    def noise_and_advice() -> tuple[list[float], str]:
        facts = json.loads(run("plan", draft, "--records", "20000", "--json")[1])
        found = [each["noise_on_a_variance"] for each in facts["releases"] if each["release"] != "masked"]
        return found, " ".join(facts["advice"])

    named, said = noise_and_advice()
    assert "no participants" not in said
    Path(draft).write_text(DRAFT.replace('participants = "enrolled"', ""))
    nobody, said = noise_and_advice()
    assert nobody == pytest.approx([2**0.5 * each for each in named])
    assert "a masked release of this draft is not possible" in said
    assert "√2 times the noise" in run("study", "lint", draft)[1]
    Path(draft).write_text(DRAFT.replace('participants = "enrolled"', 'noise_by = "owners"'))
    out = run("study", "lint", draft)[1]
    assert ("no participants" in out, "√2" in out) == (True, False)


def test_lint_tells_what_max_records_costs(run: Run, draft: str) -> None:
    status, out, _ = run("study", "lint", draft, "--records", "300", "--json")
    assert status == 0
    assert [line for line in json.loads(out)["advice"] if "max_records = 5,000 is far above 300" in line]


def test_where_the_service_is() -> None:
    assert find_url({}) == "http://127.0.0.1:8450"
    assert find_url({"DPDPCA_USER_PORT": "9000"}) == "http://127.0.0.1:9000"
    named = {"DPDPCA_USER_PORT": "9000", "DPDPCA_USER_SERVICE_URL": "https://user.example"}
    assert find_url(named) == "https://user.example"


def test_without_a_service_the_next_step_is_named(run: Run, draft: str) -> None:
    status, _, err = run("study", "list")
    assert (status, "dpdpca user init" in err) == (1, True)
    run("init", "--name", "Institute")
    status, _, err = run("study", "list", "--service", "http://127.0.0.1:9")
    assert (status, "dpdpca user serve" in err) == (1, True)
    status, _, err = run("study", "show", "../x", "--service", "http://127.0.0.1:9")
    assert status == 2


def test_every_command_has_help_with_an_example(run: Run) -> None:
    for words in (
        ("init",),
        ("enrol",),
        ("plan",),
        ("result",),
        ("report",),
        ("verify",),
        ("serve",),
        *(
            ("study", name)
            for name in ("init", "lint", "create", "run", "chains", "list", "show", "close", "cancel")
        ),
    ):
        status, out, _ = run(*words, "--help")
        assert (status, "Example: dpdpca user" in out) == (0, True), words


def test_enrol_pins_the_proxy_and_spends_no_second_invitation(run: Run, world: ProxyWorld) -> None:
    run("init", "--name", "Second Institute")
    Path("token").write_text(invite(world.proxy, "user", "Second Institute").token, encoding="utf-16")
    status, _, err = run("enrol", world.url, "--invitation-file", "token")
    assert (status, "--yes" in err) == (1, True)
    status, out, _ = run("enrol", world.url, "--invitation-file", "token", "--yes", "--json")
    assert status == 0
    assert json.loads(out)["proxy"]["ed25519"] == world.proxy_key.hex()
    status, out, _ = run("enrol", world.url, "--invitation-file", "token", "--json")
    assert (status, json.loads(out)["was_enrolled"]) == (0, True)
    from dpdpca_protocol.wire.signing import IdentityKey
    from dpdpca_user.home import EnrolledProxy, UserHome

    other = IdentityKey.generate().public
    home = UserHome.find(None)
    pinned = home.proxy(None)
    with pytest.raises(Exception, match="shows another key"):
        home.pin_proxy(EnrolledProxy(pinned.url, "x", other.ed25519.hex(), other.sealing_key.hex()))


@pytest.fixture
def finished(
    world: ProxyWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[UserWorld, str]]:
    user = UserWorld(world, tmp_path / "home")
    row = user.advance_to(user.create(title="A <b>title"), Stage.OPEN)
    user.deliver_all(row)
    row = user.advance_to(row, Stage.PUBLISHED)
    client = TestClient(make_app(user.service, drive=False))

    def open_client(url: str | None, home: Path | None) -> ServiceClient:
        return ServiceClient("http://127.0.0.1:1", "open sesame", transport=client._transport)

    monkeypatch.setattr(commands, "open_client", open_client)
    monkeypatch.setattr(study_commands, "open_client", open_client)
    monkeypatch.setattr(run_commands, "open_client", open_client)
    yield user, row.known_study.hex()
    user.service.close()


def test_a_finished_study_is_shown_saved_and_verified(
    run: Run, finished: tuple[UserWorld, str], draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, study = finished
    assert study in run("study", "list")[1]
    assert json.loads(run("study", "show", study, "--json")[1])["state"] == "published"
    assert "Hospital A" in run("study", "show", study)[1]
    status, out, _ = run("result", study, "--out", "model.npz")
    assert status == 0
    assert "against the data user" in out
    assert "of the variance that the best 3 capture" in out
    assert Path("model.npz").stat().st_mode & 0o777 == 0o600
    assert run("report", study, "--out", "report.html")[0] == 0
    assert "noise edge" in Path("report.html").read_text()
    status, out, _ = run("study", "cancel", study)
    assert status == 1
    status, out, _ = run("study", "create", draft, "--json")
    assert (status, json.loads(out)["state"]) == (0, "drafted")
    Path(draft).write_text(DRAFT, encoding="utf-16")
    status, out, _ = run("study", "create", draft)
    assert (status, "Compare the words with each owner" in out) == (0, True)
    for letter, owner in zip("ABC", user.world.owners, strict=True):
        assert f"Hospital {letter}: {fingerprint_words(owner.public.ed25519)}\n" in out
    Path(draft).write_text(DRAFT.replace('participants = "enrolled"', ""))
    status, out, _ = run("study", "run", "--no-wait", draft)
    assert (status, "The draft names nobody" in out, "second noise" in out) == (0, True, True)

    from dpdpca_user import offline

    real = offline.verify_evidence
    monkeypatch.setattr(offline, "verify_evidence", lambda *given: real(*given, key_rules=KeyRules(512)))
    status, out, _ = run("verify", study)
    assert status == 0
    assert out.count("✓") == 10
    assert len(json.loads(run("verify", study, "--json")[1])["verified"]) == 10


def test_tables_of_a_finished_study_are_written(run: Run, finished: tuple[UserWorld, str]) -> None:
    _, study = finished
    files = ("--covariance", "c.csv", "--correlation", "r.npz", "--mean", "m.parquet")
    status, out, _ = run("result", study, *files)
    assert status == 0
    assert "the covariances are in c.csv; " in out
    assert "of 6 figures cannot be told from noise" in out
    assert "the means are in m.parquet\n" in out
    assert all(Path(name).stat().st_mode & 0o777 == 0o600 for name in files[1::2])
    assert len(Path("c.csv").read_text().splitlines()) == 10
    status, _, err = run("result", study, "--covariance", "d.csv", "--mean", "m.xls")
    assert (status, "let the name end with .csv" in err) == (2, True)
    assert not Path("d.csv").exists()


def test_a_study_is_extended_on_its_own_terms(run: Run, finished: tuple[UserWorld, str]) -> None:
    user, study = finished
    newcomers = ("--participant", "Hospital A", "--participant", "Hospital B")
    status, out, err = run(
        "study", "extend", study, "--records", "800", *newcomers, "--min-owners", "2", "--json"
    )
    assert status == 0, err
    row = user.service.store.find(json.loads(out)["id"])
    draft = json.loads(user.service.store.need(row.id, "draft"))
    base = user.service.model_of(user.service.store.find(study).id).manifest.to_body()
    assert (draft["extends"], draft["max_records"], draft["min_owners"]) == (study, 800, 2)
    for name in ("release", "features", "scaling", "missing", "clip_norm", "fraction_bits", "epsilon"):
        assert draft[name] == base[name], name
    assert [each["name"] for each in draft["participants"]] == ["Hospital A", "Hospital B"]
    assert draft["blinding"] == "pairwise"
    status, out, _ = run("study", "extend", study, "--records", "800", "--anybody")
    assert (status, f"extends study {study}" in out) == (0, True)
    assert run("study", "extend", study, "--records", "800")[0] == 2
    assert run("study", "extend", study, "--records", "800", "--anybody", *newcomers)[0] == 2
    status, _, err = run("result", study, "--combine", study)
    assert (status, "two or more different studies" in err) == (2, True)


def test_titles_from_strangers_stay_text(run: Run, finished: tuple[UserWorld, str]) -> None:
    _, study = finished
    out: Any = run("result", study)[1]
    assert "A <b>title" in " ".join(out.split())
