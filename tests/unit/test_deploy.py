"""The files in deploy/ against the program that they run."""

import json
import re
from pathlib import Path

import pytest
import typer

from dpdpca_owner.commands.app import app as owner_app
from dpdpca_proxy.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"


HARDENING = {
    "NoNewPrivileges=true",
    "CapabilityBoundingSet=",
    "ProtectSystem=strict",
    "PrivateTmp=true",
    "PrivateDevices=true",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "SystemCallFilter=@system-service",
    "UMask=0077",
}


@pytest.mark.parametrize("role", ["proxy", "owner"])
def test_the_units_are_hardened(role: str) -> None:
    lines = set((DEPLOY / f"dpdpca-{role}.service").read_text().splitlines())
    assert lines >= HARDENING
    assert f"User=dpdpca-{role}" in lines


def test_the_unit_of_the_agent_runs_a_command_that_there_is() -> None:
    """And its home lies in the one place that it may write."""
    unit = (DEPLOY / "dpdpca-owner.service").read_text()
    (started,) = re.findall(r"^ExecStart=\S+/dpdpca owner (.*)$", unit, re.MULTILINE)
    name, *options = started.split()
    command = typer.main.get_group(owner_app).commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {option for option in options if option.startswith("-")} <= known
    (home,) = re.findall(r"^Environment=DPDPCA_OWNER_HOME=(.*)$", unit, re.MULTILINE)
    (writable,) = re.findall(r"^ReadWritePaths=(.*)$", unit, re.MULTILINE)
    assert Path(home).is_relative_to(writable)


def test_the_unit_forbids_no_call_that_the_proxy_makes() -> None:
    """The worker process lowers its priority (setpriority) and the server raises its file limit."""
    unit = (DEPLOY / "dpdpca-proxy.service").read_text()
    forbidden = set(" ".join(re.findall(r"^SystemCallFilter=~(.*)$", unit, re.MULTILINE)).split())
    assert forbidden
    assert not forbidden & {"@resources", "@process", "setpriority", "setrlimit", "prlimit64"}


def test_the_unit_reloads_with_the_signal_that_reads_certificates_again() -> None:
    unit = (DEPLOY / "dpdpca-proxy.service").read_text()
    assert re.findall(r"^ExecReload=(.*)$", unit, re.MULTILINE) == ["/bin/kill -HUP $MAINPID"]


def documented() -> str:
    """The pages that name every metric and every type of refusal."""
    pages = (DEPLOY.parent / "docs").glob("**/*.md")
    return "".join(path.read_text() for path in pages if path.name in ("operations.md", "errors.md"))


def test_alerts_look_at_metrics_and_error_types_that_there_are() -> None:
    rules = (DEPLOY / "prometheus.rules.yml").read_text()
    page = documented()
    metrics = set(re.findall(r"\bdpdpca_\w+", rules))
    slugs = {slug for found in re.findall(r'slug=~?"([^"]+)"', rules) for slug in found.split("|")}
    assert {"dpdpca_certificate_seconds_left", "dpdpca_problems_total"} <= metrics
    assert {"wrong-address", "state-corrupt"} <= slugs
    assert all(f"`{name}`" in page for name in metrics | slugs)


def test_the_board_shows_every_metric_with_labels_that_it_has() -> None:
    board = json.loads((DEPLOY / "grafana.board.json").read_text())
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    rows = re.findall(r"^\| `(dpdpca_\w+)` \| ([^|]+) \|", documented(), re.MULTILINE)
    labels = {name: set(words.strip().split(", ")) - {"–"} for name, words in rows}
    shown: set[str] = set()
    for target in targets:
        (metric,) = {name.removesuffix("_bucket") for name in re.findall(r"dpdpca_\w+", target["expr"])}
        used = set(re.findall(r"by \((\w+)\)", target["expr"])) - {"le"}
        assert used <= labels[metric], target["expr"]
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= used
        shown.add(metric)
    assert shown == set(labels)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.parametrize(
    ("example", "target"),
    [
        ("nginx.example.conf", r"proxy_pass http://(\S+);"),
        ("Caddyfile.example", r"reverse_proxy (\S+) \{"),
    ],
)
def test_the_reverse_proxy_speaks_to_where_the_proxy_listens(
    example: str, target: str, tmp_path: Path
) -> None:
    targets = re.findall(target, (DEPLOY / example).read_text())
    settings = Settings(home=tmp_path)  # type: ignore[call-arg] # the rest has defaults
    assert set(targets) == {f"{settings.host}:{settings.port}"}


def test_one_argument_names_the_base_of_every_stage_and_all_agree_on_its_default() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert bases == ["${BASE}"] * 2
    default = "ARG BASE=python:3.11-slim-bookworm"
    assert lines.index(default) < next(at for at, line in enumerate(lines) if line.startswith("FROM "))
    compose = (DEPLOY.parent / "docker-compose.yml").read_text()
    assert "BASE: ${BASE_IMAGE:-python:3.11-slim-bookworm}" in compose
    test = (DEPLOY.parent / "tests" / "system" / "test_compose.py").read_text()
    assert 'BASE_IMAGE = "python:3.11-slim-bookworm"' in test
