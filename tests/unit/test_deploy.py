"""The files in deploy/ against the program that they run."""

import json
import re
from pathlib import Path

import pytest
import typer
import yaml

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


@pytest.mark.parametrize(
    ("dockerfile", "compose"),
    [("Dockerfile", "../docker-compose.yml"), ("scale/Dockerfile", "scale.yml")],
)
def test_one_argument_names_the_base_of_every_stage_and_all_agree_on_its_default(
    dockerfile: str, compose: str
) -> None:
    lines = (DEPLOY / dockerfile).read_text().splitlines()
    stages = {words[3] for words in map(str.split, lines) if words[:1] == ["FROM"] and len(words) == 4}
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert {base for base in bases if base not in stages} == {"${BASE}"}
    default = "ARG BASE=python:3.11-slim-bookworm"
    assert lines.index(default) < next(at for at, line in enumerate(lines) if line.startswith("FROM "))
    assert "BASE: ${BASE_IMAGE:-python:3.11-slim-bookworm}" in (DEPLOY / compose).read_text()
    test = (DEPLOY.parent / "tests" / "system" / "test_compose.py").read_text()
    assert 'BASE_IMAGE = "python:3.11-slim-bookworm"' in test


class _Overlay(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    """Reads the tags with which an overlay replaces what is below it."""


_Overlay.add_multi_constructor("!", lambda loader, suffix, node: None)


def test_the_overlay_gives_both_proxies_settings_that_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = yaml.load((DEPLOY / "scale.yml").read_text(), _Overlay)["services"]
    below = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]
    first = below["proxy"]["environment"] | services["proxy"]["environment"]
    second = services["proxy-2"]["environment"]
    assert {name for name in first if first[name] != second.get(name)} == {"DPDPCA_PROXY_OPERATOR_HOST"}
    ours = {name: value for name, value in first.items() if name.startswith("DPDPCA_PROXY_")}
    assert {name.removeprefix("DPDPCA_PROXY_").lower() for name in ours} <= set(Settings.model_fields)
    for name, value in ours.items():
        monkeypatch.setenv(name, re.sub(r"\$\{\w+:-(.*)\}", r"\1", value))  # as where nothing is given
    Settings(home=tmp_path).check_listener()  # type: ignore[call-arg] # the rest has defaults


def test_the_balancer_of_the_overlay_speaks_to_both_proxies() -> None:
    services = yaml.load((DEPLOY / "scale.yml").read_text(), _Overlay)["services"]
    caddy = (DEPLOY / "scale" / "Caddyfile").read_text()
    (targets,) = re.findall(r"reverse_proxy (.*) \{", caddy)
    checked = [services[name]["healthcheck"]["test"][-1] for name in ("proxy", "proxy-2")]
    assert [f"{target}/readyz" for target in targets.split()] == checked
