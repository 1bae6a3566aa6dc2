"""`dpdpca audit`: a draft or a signed manifest in, claim beside findings out, status 1 for too much."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from study_parties import MakeManifest, Parties

from dpdpca_cli import main as cli
from dpdpca_lab.audit import commands, game, terms
from dpdpca_lab.audit.bound import EpsilonBound
from dpdpca_lab.audit.report import AuditReport
from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.terms.signed_manifest import sign_manifest

DRAFT = """
title = "Blood pressure and age"
purpose = "To see what varies together."
release = "RELEASE"
epsilon = 2
clip_norm = 1
max_records = 5000
participants = ["Hospital A", "Hospital B", "Hospital C"]
[[features]]
name = "age"
lower = 0
upper = 100
[[features]]
name = "weight"
lower = 2.5
upper = 250.5
"""


def run(*arguments: Path | str | int) -> object:
    with pytest.raises(SystemExit) as left:
        cli.main(["audit", *(str(argument) for argument in arguments)])
    return left.value.code


@pytest.fixture
def draft_file(tmp_path: Path) -> Path:
    path = tmp_path / "draft.toml"
    path.write_text(DRAFT.replace("RELEASE", "masked"))
    return path


def test_a_draft_is_played_and_the_claim_stands_beside_the_bound(
    draft_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(draft_file, "--runs", 200, "--search", 20) == 0
    shown = capsys.readouterr().out
    claimed = "claim   (ε, δ) = (2, 4e-08), masked, discrete gaussian, noise by the proxy, replace-one"
    assert claimed in shown
    assert "confidence 1 − 10⁻⁶" in shown
    assert "200 releases of each data set, 1,000 records" in shown
    assert "✓ noise has the stated deviation" in shown
    assert "Nothing was found against the claim." in shown
    assert "docs/audit.md" in shown


def test_json_has_the_same_figures(draft_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(draft_file, "--runs", 200, "--search", 0, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["claim"]["epsilon"] == 2
    assert facts["epsilon_lower_bound"] <= 2
    assert facts["holds"] is True
    assert [pair["runs_each"] for pair in facts["pairs"]] == [200]
    assert all(check["passed"] for check in facts["checks"])


def test_time_ends_the_game_early(
    draft_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the least that says anything; what was played until then counts."""
    clock = iter([0.0, 0.0, 0.5])
    monkeypatch.setattr(commands, "time", SimpleNamespace(monotonic=lambda: next(clock, 100.0)))
    assert run(draft_file, "--runs", 100_000, "--seconds", 1, "--search", 0, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["pairs"][0]["runs_each"] == 200 + 2000 + 2000


def test_a_signed_manifest_is_played(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make_manifest: MakeManifest,
    parties: Parties,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifest = make_manifest(release="joint", clip_norm=1)
    path = tmp_path / "manifest.json"
    path.write_bytes(sign_manifest(manifest, parties.user).encoded + b"\n")
    read_terms = partial(terms.read_terms, key_rules=KeyRules(parties.secret.public.bits))
    monkeypatch.setattr(terms, "read_terms", read_terms)
    assert run(path, "--runs", 200, "--search", 0) == 0
    assert "joint" in capsys.readouterr().out


def test_a_manifest_with_a_false_signature_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make_manifest: MakeManifest, parties: Parties
) -> None:
    statement = json.loads(sign_manifest(make_manifest(), parties.user).encoded)
    statement["body"]["title"] = "Another title"
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(statement))
    assert run(path) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_what_is_neither_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "draft.toml"
    path.write_text("title = ")
    assert run(path) == 1
    assert "not valid TOML" in capsys.readouterr().err
    assert run(tmp_path / "nowhere.toml") == 1
    path.write_bytes(b" " * (terms.MOST_BYTES + 1))
    assert run(path) == 1
    path.write_text("{}")
    with pytest.raises(MessageError):
        terms.read_terms(path)


@pytest.mark.parametrize("arguments", [["--runs", "10"], ["--runs", "x"], ["--seconds", "0"]])
def test_wrong_options_are_usage(
    draft_file: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(draft_file, *arguments) == 2
    assert capsys.readouterr().err


def test_a_bound_above_the_claim_is_status_one(
    draft_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = game.audit_manifest

    def found_too_much(*arguments: Any, **options: Any) -> AuditReport:
        report = honest(*arguments, **options)
        pair = replace(report.pairs[0], bound=EpsilonBound(2.5, "likelihood ratio ≥ 1", 100, 90, 1))
        return replace(report, pairs=(pair,))

    monkeypatch.setattr(game, "audit_manifest", found_too_much)
    assert run(draft_file, "--runs", 200, "--search", 0) == 1
    assert "The claim is refuted: ε is at least 2.500." in capsys.readouterr().out


def test_a_failed_check_is_status_one(
    draft_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = game.audit_manifest

    def found_odd(*arguments: Any, **options: Any) -> AuditReport:
        report = honest(*arguments, **options)
        (part, check), *others = report.checks
        return replace(report, checks=((part, replace(check, p_value=0.0)), *others))

    monkeypatch.setattr(game, "audit_manifest", found_odd)
    assert run(draft_file, "--runs", 200, "--search", 0) == 1
    shown = capsys.readouterr().out
    assert "✗ encoded records obey the norm bound" in shown
    assert "the claim has no basis" in shown


def test_a_draft_with_noise_of_the_lab_is_refused(
    draft_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The audit plays studies; `dpdpca experiments run sn-support` shows what this noise gives away."""
    draft = draft_file.read_text(encoding="utf-8")
    draft_file.write_text(draft.replace("clip_norm", 'mechanism = "wishart"\nclip_norm'), encoding="utf-8")
    assert run(draft_file) == 1
    shown = capsys.readouterr().err
    assert "wishart has no proof of privacy here; it exists only in the lab" in shown
    assert "dpdpca experiments list" in shown
