"""Both services keep what their OpenAPI documents promise, and the documents promise enough."""

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract import METHODS, Contract, Part
from jsonschema import Draft202012Validator
from played_study import Played, play
from proxy_world import unlike_before, values_of, wait_for
from starlette.testclient import TestClient
from study_parties import Parties
from user_world import DRAFT

from dpdpca_protocol import errors
from dpdpca_protocol.messages.rotation import Rotation
from dpdpca_protocol.messages.share import Decline
from dpdpca_protocol.messages.study_messages import StudyAct
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.asgi.contract import PROBLEM_SCHEMA, example
from dpdpca_runtime.asgi.problem_table import PROBLEMS
from dpdpca_runtime.asgi.problems import status_of
from dpdpca_user_service.transform.scores import ARROW_MEDIA_TYPE

ROOT = Path(__file__).parents[2]
WINGS = ("protocol", "runtime", "services", "clients")
FEATURE_LIST = b'[{"kind":"numeric","lower":"0","name":"a","upper":"1"}]'
HEALTH = ("GET /healthz", "GET /readyz")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, parties: Parties) -> Iterator[Played]:
    yield from play(tmp_path_factory.mktemp("contract"), parties, "joint")


@pytest.fixture(scope="module", params=["proxy", "user"])
def contract(request: pytest.FixtureRequest, played: Played) -> Contract:
    judge: Contract = getattr(played, request.param)
    return judge


def test_every_schema_says_something(contract: Contract) -> None:
    for name, operation in contract.operations():
        assert operation["summary"], name
        bodies = [operation.get("requestBody"), *operation["responses"].values()]
        for part in bodies:
            for media_type, media in (part or {}).get("content", {}).items():
                schema = contract.resolved(media["schema"])
                assert schema.keys() & {"type", "oneOf", "anyOf", "const", "enum"}, f"{name} {media_type}"
                if schema.get("type") == "object":
                    assert schema.get("properties"), f"{name} {media_type} describes no member"
        for parameter in operation.get("parameters", []):
            assert parameter["description"], f"{name} {parameter['name']}"
            assert parameter["schema"], f"{name} {parameter['name']}"


def test_the_schemas_are_schemas_and_lead_somewhere(contract: Contract) -> None:
    schemas = contract.document["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    for reference in references(contract.document):
        place = contract.document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


def references(part: Any) -> Iterator[str]:
    if isinstance(part, list):
        for each in part:
            yield from references(each)
    elif isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)


def test_the_page_of_routes_comes_from_the_package_alone(played: Played) -> None:
    """Also to somebody without a token, and under a policy that lets no script of others in."""
    user = TestClient(played.client.app)
    for ask in (user.get, lambda path: played.world.request(None, "GET", path)):
        page = ask("/docs")
        policy = page.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= set(policy)
        assert not re.findall(r"""(?:src|href)=(?!"/[a-z])""", page.text)
        loaded = re.findall(r"""(?:src|href)="(/[^"]+)\"""", page.text)
        assert sorted(loaded) == ["/docs.js", "/openapi.json", "/page.css"]
        for path in loaded:
            answer = ask(path)
            assert answer.status_code == 200
            assert answer.headers["content-security-policy"].split("; ") == policy
            if path != "/openapi.json":
                assert "//" not in answer.text


def test_every_success_and_every_failure_is_described(contract: Contract) -> None:
    for name, operation in contract.operations():
        responses = operation["responses"]
        assert any(status.startswith("2") for status in responses), name
        assert {"500"} <= responses.keys(), name
        for status, response in responses.items():
            assert response["description"], f"{name} {status}"
            if status.startswith("2"):
                assert ("content" in response) == (status != "204"), f"{name} {status}"
            elif (name, status) != ("GET /readyz", "503"):
                (media,) = response["content"].values()
                assert response["content"].keys() == {"application/problem+json"}, f"{name} {status}"
                assert media["schema"] == {"$ref": "#/components/schemas/Problem"}, f"{name} {status}"
                assert media["examples"], f"{name} {status}"
                for slug in media["examples"]:
                    assert PROBLEMS[slug].status == int(status), f"{name} {status} {slug}"


def test_the_user_s_service_hands_on_the_problems_that_it_declares(played: Played) -> None:
    """Of the two routes of the proxy that it asks while somebody waits, and of the way to them."""
    proxy, user = dict(played.proxy.operations()), dict(played.user.operations())
    http = ROOT / "runtime/dpdpca_runtime/http"
    of_the_way = slugs_made(http / "connection.py", http / "exchange.py", http / "problems.py")
    of_the_way.remove("no-events")  # of streams, which this service does not open
    for method, path in (("POST", "/v1/studies/{study}/close"), ("DELETE", "/v1/studies/{study}")):
        handed_on = declared_slugs(user[f"{method} {path}"])
        assert declared_slugs(proxy[f"{method} {path}"]) <= handed_on
        assert of_the_way <= handed_on
    cancelled = declared_slugs(user["DELETE /v1/studies/{study}"])
    assert declared_slugs(user["DELETE /v1/chains/{chain}"]) == cancelled


def declared_slugs(operation: dict[str, Any]) -> set[str]:
    contents = [response.get("content", {}) for response in operation["responses"].values()]
    return {
        slug for each in contents for slug in each.get("application/problem+json", {}).get("examples", {})
    }


def slugs_made(*files: Path) -> set[str]:
    """The slugs of the errors in these files, but for those of a caller's mistake."""
    found = set()
    for call in (part for path in files for part in ast.walk(ast.parse(path.read_text()))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and len(call.args) > 1:
            kind, slug = getattr(errors, call.func.id, None), call.args[0]
            if isinstance(kind, type) and kind is not errors.UsageError and isinstance(slug, ast.Constant):
                found.add(str(slug.value))
    return found


def test_no_422_is_announced_where_none_comes(contract: Contract) -> None:
    """FastAPI announces one wherever there is a parameter; here what does not validate gets 400."""
    assert "HTTPValidationError" not in contract.document["components"]["schemas"]
    for name, operation in contract.operations():
        if (announced := operation["responses"].get("422")) is not None:
            slugs = announced["content"]["application/problem+json"]["examples"].keys()
            assert all(PROBLEMS[slug].status == 422 for slug in slugs), name


def test_security_is_declared(contract: Contract) -> None:
    schemes = contract.document["components"]["securitySchemes"]
    assert contract.document["security"] == [{name: [] for name in schemes}]
    opened = {name for name, operation in contract.operations() if operation.get("security") == []}
    assert set(HEALTH) <= opened
    of_proxy = {"GET /v1/proxy", "GET /v1/proxy/rotations", "POST /v1/parties"}
    assert opened - set(HEALTH) == (of_proxy if "signature" in schemes else set())
    for name, operation in contract.operations():
        refused = operation["responses"].get("401")
        assert (refused is None) == (name in opened - {"POST /v1/parties"}), name


def test_examples_have_the_form_that_they_show(contract: Contract) -> None:
    Draft202012Validator.check_schema(PROBLEM_SCHEMA)
    for slug in PROBLEMS:
        contract.validator(PROBLEM_SCHEMA).validate(example(slug))
    for name, operation in contract.operations():
        for part in [operation.get("requestBody", {}), *operation["responses"].values()]:
            media = part.get("content", {}).get("application/json")
            if media is not None:
                shown = [*contract.resolved(media["schema"]).get("examples", []), media["example"]]
                for each in shown:
                    contract.validator(media["schema"]).validate(each), name


def test_the_table_of_problems_says_what_the_code_raises() -> None:
    raised: dict[str, set[int]] = {"internal": {500}}
    for path in (path for wing in WINGS for path in (ROOT / wing).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args):
                continue
            kind, slug = getattr(errors, call.func.id, None), call.args[0]
            if isinstance(kind, type) and isinstance(slug, ast.Constant) and kind is not errors.UsageError:
                place = "here" if any(keyword.arg == "place" for keyword in call.keywords) else None
                raised.setdefault(str(slug.value), set()).add(status_of(kind(slug.value, "", place=place)))
    for name, known in PROBLEMS.items():
        assert known.status in raised.get(name, set()), name


def test_every_body_that_is_read_is_declared(played: Played) -> None:
    for contract in (played.proxy, played.user):
        for name, operation in contract.operations():
            method = name.partition(" ")[0]
            hands_on = "gateway" in declared_slugs(operation)  # with the problems of another service
            reads, refuses = "requestBody" in operation, "415" in operation["responses"]
            assert refuses if reads else not refuses or hands_on, name
            assert method.lower() in METHODS


def test_the_user_s_answers_keep_the_contract(played: Played) -> None:
    client, study = played.client, played.study
    model = f"/v1/models/{study}"
    for method, path, status in (
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/v1/studies", 200),
        ("GET", f"/v1/studies/{study}", 200),
        ("GET", f"/v1/studies/{study}/evidence", 200),
        ("GET", f"/v1/studies/{study}/evidence/chunks/0", 200),
        ("GET", f"/v1/studies/{study}/evidence/chunks/99", 400),
        ("POST", f"/v1/studies/{study}/publish", 202),
        ("GET", f"/v1/studies/{study}/result", 409),
        ("POST", f"/v1/studies/{study}/close", 409),
        ("DELETE", f"/v1/studies/{study}", 409),
        ("GET", f"/v1/studies/{'0' * 64}", 404),
        ("GET", "/v1/studies/zero", 400),
        ("GET", "/v1/models", 200),
        ("GET", model, 200),
        ("GET", f"{model}/file", 200),
        ("GET", f"{model}/report", 200),
        ("GET", f"{model}/covariance", 200),
        ("GET", f"{model}/correlation", 200),
        ("GET", f"{model}/mean", 200),
        ("GET", "/v1/draft-schema", 200),
        ("GET", "/v1/chains", 200),
        ("GET", f"/v1/chains/{'0' * 32}", 404),
    ):
        assert client.request(method, path).status_code == status, path
    listed = f"/v1/feature-lists/{Digest.of(FEATURE_LIST).hex()}"
    json_body = {"content-type": "application/json"}
    assert client.put(listed, content=FEATURE_LIST, headers=json_body).status_code == 200
    assert client.put(listed, content=b"[]", headers=json_body).status_code == 400
    rows = {"rows": [{"f0": 0.1, "f1": 0.2, "f2": -0.3}]}
    assert client.post(f"{model}/transform", json=rows).status_code == 200
    assert client.post(f"{model}/transform", json={"rows": [{"f0": 1}]}).status_code == 422
    arrow = {"content-type": ARROW_MEDIA_TYPE}
    assert client.post(f"{model}/transform", content=b"no arrow", headers=arrow).status_code == 400
    toml = {"content-type": "application/toml"}
    for path in (
        "/v1/drafts/lint",
        "/v1/drafts/plan?records=5000",
        "/v1/drafts/plan?records=5000&begin=true",
    ):
        assert client.post(path, json=DRAFT).status_code == 200, path
        assert client.post(path, content=b"= 1", headers=toml).status_code == 400, path
    base = json.dumps({name: DRAFT[name] for name in DRAFT if name not in ("release", "clip_norm")})
    answer = client.post("/v1/chains", content=base, headers={"content-type": "application/json"})
    assert answer.status_code == 202, answer.text
    chain = f"/v1/chains/{answer.json()['id']}"
    assert client.get(chain).status_code == 200
    assert client.delete(chain).status_code == 200
    assert played.user.faults == []
    silent = {name for name, _ in played.user.operations()} - {name for name, _ in played.user.seen}
    assert silent == set()


def test_the_proxy_s_answers_keep_the_contract(played: Played) -> None:
    world, study = played.world, f"/v1/studies/{played.study}"
    owner, other, user = world.owners[0], world.owners[1], world.user
    stranger = IdentityKey.generate()
    world.enrol(stranger, "user", "Another institute")
    world.with_new_key()
    opened = world.open_study(3, release="masked", features=unlike_before(3))
    claims = {each: opened.plain_chunks(values_of(3, seed)) for seed, each in enumerate((owner, other))}
    close = StudyAct("close", opened.study).sign(user).encoded
    listed = f"/v1/feature-lists/{Digest.of(FEATURE_LIST).hex()}"
    for key, method, path, body, status in (
        (owner, "GET", listed, None, 404),
        (user, "PUT", listed, FEATURE_LIST, 204),
        (user, "PUT", listed, b"[]", 400),
        (owner, "PUT", listed, FEATURE_LIST, 403),
        (owner, "GET", listed, None, 200),
        (None, "GET", "/healthz", None, 200),
        (None, "GET", "/readyz", None, 200),
        (None, "GET", "/v1/proxy/rotations", None, 200),
        (None, "GET", "/v1/parties", None, 401),
        (None, "POST", "/v1/parties", b"{}", 400),
        (owner, "GET", "/v1/parties", None, 200),
        (owner, "GET", "/v1/parties/rotations", None, 200),
        (owner, "GET", "/v1/studies", None, 200),
        (owner, "GET", "/v1/inbox", None, 200),
        (user, "GET", "/v1/inbox", None, 403),
        (owner, "GET", study, None, 200),
        (owner, "GET", f"{study}/manifest", None, 200),
        (owner, "GET", f"{study}/transcript", None, 200),
        (owner, "GET", f"{study}/share", None, 200),
        (owner, "GET", f"{study}/components", None, 200),
        (owner, "GET", f"{study}/release", None, 403),
        (user, "GET", f"{study}/count", None, 409),
        (user, "POST", "/v1/studies", b"{}", 400),
        (user, "POST", "/v1/studies", opened.statement.encoded, 200),
        (user, "POST", f"{opened.path}/close", close, 409),
        (owner, "POST", f"{opened.path}/close", close, 403),
        (stranger, "POST", "/v1/studies", opened.statement.encoded, 403),
        (user, "GET", f"/v1/studies/{'0' * 64}", None, 404),
        (user, "GET", "/v1/studies/zero", None, 400),
    ):
        assert world.request(key, method, path, body).status_code == status, path
    word = Decline(opened.study, owner.public.ed25519, "2026-11-29T08:00:00Z", "not yet").sign(owner)
    for status in (204, 204):
        assert world.request(owner, "POST", f"{opened.path}/decline", word.encoded).status_code == status
    assert world.request(user, "GET", opened.path).json()["declines"]
    opened.deliver(owner, values_of(3, 0))
    assert world.request(owner, "POST", f"{opened.path}/decline", word.encoded).status_code == 409
    opened.withdraw(owner, 2)
    for each, chunks in claims.items():
        opened.upload(each, chunks, 3)
        opened.complete(each, chunks, 3)
    next(iter(world.client(owner).events(opened.study)))
    opened.close()
    world.client(user).answer_count(opened.study, opened.count_answer(opened.challenge()))
    assert opened.wait_state("released") == "released"
    opened.state_opened()
    world.with_new_key()
    world.open_study(3).cancel()
    successor = IdentityKey.generate()
    rotation = Rotation("owner", 1, other.public.ed25519, successor.public, "2026-11-28T12:00:00Z")
    world.client(other).rotate(rotation.sign(other, successor))
    asked = {name for name, _ in played.proxy.operations()}
    wait_for(lambda: asked <= {name for name, _ in played.proxy.seen})  # judged just after it is sent
    assert played.proxy.faults == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda facts: facts.pop("title"), "'title' is a required property"),
        (lambda facts: facts.update(surprise=1), "'surprise' was unexpected"),
        (lambda facts: facts.update(owners_complete="two"), "'two' is not of type 'integer'"),
    ],
)
def test_the_judge_finds_what_is_not_declared(
    played: Played, change: Callable[[dict[str, Any]], object], fault: str
) -> None:
    facts = played.client.get(f"/v1/studies/{played.study}").json()
    change(facts)
    judge = Contract(played.user.document)
    answer = Part("application/json", json.dumps(facts).encode())
    judge.judge("GET", f"/v1/studies/{played.study}", Part("", b""), 200, answer)
    judge.judge("GET", f"/v1/studies/{played.study}", Part("", b""), 418, Part("", b""))
    assert len(judge.faults) == 2
    assert fault in judge.faults[0]
    assert "answers 418, undeclared" in judge.faults[1]
