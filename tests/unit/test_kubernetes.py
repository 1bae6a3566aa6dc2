"""The manifests of deploy/kubernetes, as far as they can be judged without a cluster."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from dpdpca_proxy.commands import app as proxy_app
from dpdpca_proxy.settings import Settings as ProxySettings
from dpdpca_runtime.postgres import postgres_url
from dpdpca_runtime.settings import ServiceSettings
from dpdpca_user_service.commands import app as user_app
from dpdpca_user_service.settings import Settings as UserSettings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = "1.37"
OF_OTHERS = {"AWS_ENDPOINT_URL", "AWS_REGION", "AWS_SHARED_CREDENTIALS_FILE"}
"""Variables of the libraries, which docs/operations.md names."""

Manifest = dict[str, Any]


def manifests(role: str) -> list[Manifest]:
    """All objects of a file, those of its lists too."""
    read = yaml.safe_load_all((FOLDER / f"{role}.yml").read_text())
    return [item for each in read for item in (each["items"] if each["kind"] == "List" else [each])]


def pods(role: str) -> Iterator[tuple[Manifest, Manifest]]:
    """Each template of pods, with its labels."""
    for each in manifests(role):
        if each["kind"] in ("Deployment", "Job"):
            template = each["spec"]["template"]
            yield template["spec"], template["metadata"]["labels"]


def containers(role: str) -> Iterator[tuple[Manifest, Manifest]]:
    """Each container, with its pod."""
    for pod, _ in pods(role):
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield container, pod


def named(role: str, kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in manifests(role) if each["kind"] == kind}


def settings_of(role: str) -> dict[str, str]:
    (found,) = [each["data"] for each in manifests(role) if each["kind"] == "ConfigMap"]
    return dict(found)


both = pytest.mark.parametrize("role", ["proxy", "user"])


@both
def test_every_object_has_the_form_that_kubernetes_demands(role: str) -> None:
    found = manifests(role)
    assert len(found) >= 6
    for each in found:
        kubernetes_validate.validate(each, VERSION, strict=True)


@both
def test_the_file_says_that_no_cluster_has_run_it(role: str) -> None:
    assert "# NOT TESTED ON A CLUSTER" in (FOLDER / f"{role}.yml").read_text()


@both
def test_everything_is_in_one_namespace_that_there_is(role: str) -> None:
    (space,) = named(role, "Namespace")
    others = [each["metadata"] for each in manifests(role) if each["kind"] != "Namespace"]
    assert {each["namespace"] for each in others} == {space}


@both
def test_every_name_is_of_something_that_there_is(role: str) -> None:
    """Secrets are made by people: the head of the file names them."""
    head = (FOLDER / f"{role}.yml").read_text().partition("apiVersion")[0]
    secrets = set(re.findall(rf"^#   ({role}-\w+) ", head, re.MULTILINE))
    wanted: set[str] = set()
    for pod, _ in pods(role):
        volumes = pod["volumes"]
        claims = {v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v}
        assert claims <= named(role, "PersistentVolumeClaim")
        wanted |= {v["secret"]["secretName"] for v in volumes if "secret" in v}
    for container, pod in containers(role):
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in pod["volumes"]}
        maps = {source["configMapRef"]["name"] for source in container.get("envFrom", ())}
        assert maps <= named(role, "ConfigMap")
    for each in manifests(role):
        if each["kind"] == "Ingress":
            wanted |= {tls["secretName"] for tls in each["spec"]["tls"]}
            wanted.add(
                each["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-ssl-secret"].split("/")[1]
            )
            (rule,) = each["spec"]["rules"]
            service = rule["http"]["paths"][0]["backend"]["service"]
            assert service["name"] in named(role, "Service")
    assert wanted == secrets


@both
def test_selectors_choose_the_pods_that_serve(role: str) -> None:
    (labels,) = [labels for pod, labels in pods(role) if "readinessProbe" in pod["containers"][0]]
    for each in manifests(role):
        spec = each.get("spec", {})
        if each["kind"] == "Service":
            assert spec["selector"] == labels
        elif each["kind"] in ("Deployment", "PodDisruptionBudget"):
            assert spec["selector"]["matchLabels"] == labels
        elif each["kind"] == "NetworkPolicy":
            assert spec["podSelector"].get("matchLabels", {}).items() <= labels.items()


@pytest.mark.parametrize(("role", "kind"), [("proxy", ProxySettings), ("user", UserSettings)])
def test_variables_are_settings_with_values_that_the_program_takes(
    role: str, kind: type[ServiceSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = settings_of(role)
    prefix = kind.prefix()
    ours = {name.removeprefix(prefix).lower() for name in variables if name.startswith(prefix)}
    assert ours <= set(kind.model_fields)
    assert {name for name in variables if not name.startswith(prefix)} <= OF_OTHERS
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    kind(home=Path(variables[f"{prefix}HOME"])).check_listener()  # type: ignore[call-arg, attr-defined] # the rest has defaults


@both
def test_files_that_settings_name_are_mounted(role: str) -> None:
    variables = settings_of(role)
    places = [
        value for name, value in variables.items() if name.endswith(("_FILE", "_CERT", "_KEY", "_HOME"))
    ]
    if role == "proxy":
        places.append(str(postgres_url(variables["DPDPCA_PROXY_DATABASE"]).query["passfile"]))
    for container, pod in containers(role):
        if "envFrom" not in container:
            continue
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        for place in places:
            assert any(Path(place).is_relative_to(mount) for mount in mounts), place
        assert {volume["name"] for volume in pod["volumes"]} <= {*mounts.values(), "given"}


@both
def test_probes_ask_routes_and_ports_that_the_program_has(role: str) -> None:
    page = (ROOT / "docs" / "reference" / f"{role}-api.md").read_text()
    (serving,) = [container for container, _ in containers(role) if "readinessProbe" in container]
    (port,) = serving["ports"]
    prefix = {"proxy": ProxySettings, "user": UserSettings}[role].prefix()  # type: ignore[attr-defined] # both have it
    assert str(port["containerPort"]) == settings_of(role)[f"{prefix}PORT"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = serving[probe]["httpGet"]
        assert (asked["port"], asked["scheme"]) == (port["name"], "HTTPS")
        assert f"GET {asked['path']}" in page
    assert serving["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert serving["livenessProbe"]["httpGet"]["path"] == "/healthz"
    (service,) = [each["spec"]["ports"] for each in manifests(role) if each["kind"] == "Service"]
    assert [each["targetPort"] for each in service] == [port["name"]]


@pytest.mark.parametrize(("role", "app"), [("proxy", proxy_app), ("user", user_app)])
def test_commands_and_options_are_those_of_the_program(role: str, app: typer.Typer) -> None:
    commands = typer.main.get_group(app).commands
    given = [container["args"] for container, _ in containers(role) if "args" in container]
    assert given
    for first, name, *words in given:
        assert first == role
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


@both
def test_containers_have_no_more_rights_than_they_need(role: str) -> None:
    for pod, _ in pods(role):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
    for container, _ in containers(role):
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
    (policy,) = [each["spec"] for each in manifests(role) if each["kind"] == "NetworkPolicy"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule["to"] and rule["ports"] for rule in policy["egress"])


def test_two_proxies_share_what_a_database_and_a_store_do_not_hold() -> None:
    (serving,) = [each for each in manifests("proxy") if each["kind"] == "Deployment"]
    assert serving["spec"]["replicas"] == 2
    modes = [
        each["spec"]["accessModes"] for each in manifests("proxy") if each["kind"] == "PersistentVolumeClaim"
    ]
    assert modes == [["ReadWriteMany"], ["ReadWriteMany"]]
    assert {"DPDPCA_PROXY_DATABASE", "DPDPCA_PROXY_STORE"} <= set(settings_of("proxy"))
