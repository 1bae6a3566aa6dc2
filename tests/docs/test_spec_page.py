"""The specification prints what the code is: the table of members, and the reference as a program."""

import base64
import hashlib
import inspect
import re
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from dpdpca_protocol import reference
from dpdpca_protocol.messages.schemas import BODIES
from dpdpca_protocol.messages.transcript import FOLLOWERS, KINDS
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.terms.members import MEMBERS
from dpdpca_protocol.wire.signing import FORMAT, IdentityKey
from dpdpca_runtime.asgi.problem_table import PROBLEMS
from dpdpca_runtime.http.signature import RequestSigner
from reference_pages.__main__ import completed
from reference_pages.command_errors import COMMAND_ERRORS
from reference_pages.messages import MESSAGES
from reference_pages.requests import ANYBODY, LATER, PREFIX, REPEATS, REQUESTS, Request, refusals
from reference_pages.rest import proxy_document

PAGE = (Path(__file__).parents[2] / "docs" / "spec.md").read_text(encoding="utf-8")
DOCUMENT = proxy_document()


def test_the_page_has_a_row_for_each_member_in_order() -> None:
    rows = ["| member | form | meaning |", "|---|---|---|"]
    rows.append(f"| `format` | `{FORMAT}` | version of the message format |")
    for member in MEMBERS:
        left_out = "" if member.is_required else "; may be left out"
        rows.append(f"| `{member.name}` | {member.form.words}{left_out} | {member.meaning} |")
    table = "\n".join(rows)
    assert f"\n\n{table}\n\n" in PAGE, f"the table in docs/spec.md should be\n\n{table}"


def test_the_page_prints_the_reference_as_it_runs() -> None:
    source = inspect.getsource(reference)
    program = source[source.index("def run_study(") :]
    (printed,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert printed == program


def test_messages_and_requests_are_as_the_code_would_have_them() -> None:
    assert completed(PAGE) == PAGE, "run: make reference (docs/spec.md)"


def test_the_base_of_a_signature_is_the_one_that_is_signed() -> None:
    (printed,) = re.findall(r'^```text\n("@method": .*?)\n```$', PAGE, re.DOTALL | re.MULTILINE)
    key, study, body = IdentityKey.generate(), "0a" * 32, b"a sealed chunk"
    url = f"https://proxy.example/v1/studies/{study}/share/chunks/0?version=1"
    headers = {"content-type": "application/octet-stream"}
    request = httpx.Request("PUT", url, content=body, headers=headers)
    RequestSigner(key).sign(request, body, datetime.now(UTC))
    label, _, parameters = request.headers["signature-input"].partition("=")
    *lines, last = printed.splitlines()
    start, separator, words = last.partition(": ")
    names = re.compile(r';([a-z]+)=|"([^"]+)"(?=[ )])')
    assert sorted(names.findall(words)) == sorted(names.findall(parameters))
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    base = "\n".join([*lines, start + separator + parameters])
    base = base.replace("STUDY", study).replace("BASE64", digest)
    signature = base64.b64decode(request.headers["signature"].removeprefix(f"{label}=:").removesuffix(":"))
    assert label == "sig1"
    key.ed25519.public_key().verify(signature, base.encode())


def test_the_table_of_requests_has_every_route_once() -> None:
    routes = [
        (method, path)
        for path, item in DOCUMENT["paths"].items()
        if path.startswith(PREFIX)
        for method in item
    ]
    assert sorted((request.method, request.path) for request in REQUESTS) == sorted(routes)
    outside = {path for path in DOCUMENT["paths"] if not path.startswith(PREFIX)}
    assert outside == {"/healthz", "/readyz"}


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: f"{each.method} {each.path}")
def test_a_request_is_sent_by_whom_its_route_lets_in(request_: Request) -> None:
    operation = DOCUMENT["paths"][request_.path][request_.method]
    assert (operation.get("security") == []) == (request_.caller == ANYBODY)
    assert ("wrong-role" in refusals(operation)) == (request_.caller in ("owner", "user"))
    assert bool(request_.again) == (request_.method != "get"), "say what a repetition does"


def test_the_table_of_events_says_what_may_follow_what() -> None:
    table = PAGE.partition("| event | may follow |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    said = {kind.strip("`"): set(re.findall(r"`([a-z]+)`", before)) for kind, before, *_ in rows}
    before = {kind: {each for each, after in FOLLOWERS.items() if kind in after} for kind in KINDS}
    assert list(said) == list(KINDS)
    assert {state.strip("`") for _, _, state, _ in rows} == set(StudyState)
    assert said == {kind: {*kinds} - {None} for kind, kinds in before.items()}


def test_refusals_that_end_in_a_repetition_are_real() -> None:
    operations = [DOCUMENT["paths"][request.path][request.method] for request in REQUESTS]
    found = {slug for operation in operations for slug in refusals(operation)}
    assert REPEATS.keys() <= found
    assert all(PROBLEMS[slug].status not in LATER for slug in REPEATS)


def test_no_message_and_no_member_is_left_out() -> None:
    assert MESSAGES.keys() == BODIES.keys()
    for kind, (_, members) in MESSAGES.items():
        forms = BODIES[kind].get("oneOf", [BODIES[kind]])
        assert members.keys() | {"format"} == {name for form in forms for name in form["properties"]}, kind


def test_what_is_refused_is_called_as_errors_are() -> None:
    named = {
        slug
        for _, members in MESSAGES.values()
        for _, refused in members.values()
        for slug in re.findall(r"`([a-z]+(?:-[a-z]+)+|malformed)`", refused)
    }
    assert named <= PROBLEMS.keys() | COMMAND_ERRORS.keys()
