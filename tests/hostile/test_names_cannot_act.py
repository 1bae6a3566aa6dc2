"""Texts that would steer a terminal, hide, reorder or fill a screen are refused where they come in;
those that only mean something to a browser or a spreadsheet go through and stay text (P27)."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from promises import Promise
from proxy_world import ProxyWorld, dump, slug
from starlette.testclient import TestClient

from dpdpca_protocol.errors import DpdpcaError, MessageError
from dpdpca_protocol.messages.study_messages import Enrolment
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.signing import IdentityKey, sign_statement
from dpdpca_proxy.enrolment import invite

ACTING = {
    "colour": "a\x1b[31mb",
    "window title": "a\x1b]0;owned\x07",
    "clear screen": "\x1b[2J\x1b[H",
    "C1 introducer": "a\x9b31mb",
    "override": "invoice\u202egpj.exe",
    "isolate": "a\u2066b\u2069",
    "zero width": "Hosp\u200bital A",
    "word joiner": "a\u2060b",
    "tag letters": "a\U000e0041",
    "filler": "\u3164",
    "byte order mark": "\ufeffname",
    "line separator": "a\u2028b",
    "newline": "a\nb",
    "return": "honest\rforged",
    "backspace": "no\b\byes",
    "NUL": "a\x00b",
    "delete": "a\x7f",
    "unassigned": "a\U000ffffe",
    "decomposed": "Gro\u0308\u00dfe",
    "10,000 letters": "a" * 10_000,
    "nothing": "",
    "spaces": "  ",
}

MEANT_FOR_OTHERS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    '=HYPERLINK("http://x";"y")',
    "+cmd|' /C calc'!A0",
    "@SUM(1+1)",
    "-2+3",
    "[red]markup[/red]",
    "{{7*7}} ${7*7} %s %(x)s",
    "'; DROP TABLE studies; --",
    "../../../etc/passwd",
]


def _place(path: str) -> Callable[[dict[str, Any], str], None]:
    def put(body: dict[str, Any], text: str) -> None:
        *way, last = path.split("/")
        at: Any = body
        for step in way:
            at = at[int(step) if step.isdigit() else step]
        at[int(last) if last.isdigit() else last] = text

    return put


PLACES = {
    path: _place(path)
    for path in (
        "title",
        "purpose",
        "user/name",
        "proxy/name",
        "participants/0/name",
        "features/0/name",
        "features/0/unit",
        "features/0/description",
        "features/1/levels/0",
    )
}


def body_of(world: ProxyWorld) -> dict[str, Any]:
    features = [
        {"name": "age", "lower": 0, "upper": 1, "unit": "years", "description": "of the patient"},
        {"name": "ward", "levels": ["A", "B"]},
        {"name": "weight", "lower": 0, "upper": 1},
    ]
    body = world.manifest(3, features=features, clip_norm=2).to_body()
    assert isinstance(body, dict)
    return body


def test_a_manifest_with_a_text_that_acts_is_refused(world: ProxyWorld, promise: Promise) -> None:
    genuine, before, tried = body_of(world), dump(world.proxy), 0
    for name, text in ACTING.items():
        for path, put in PLACES.items():
            body = copy.deepcopy(genuine)
            put(body, text)
            statement = sign_statement("manifest", body, world.user)
            response = world.request(world.user, "POST", "/v1/studies", statement.encoded)
            assert 400 <= response.status_code < 500, (name, path)
            shown = response.content.decode()
            assert len(shown) < 1000, "a refusal repeats what it refuses"
            assert not [letter for letter in shown if not letter.isprintable()], (name, path)
            tried += 1
    assert dump(world.proxy) == before
    promise("P27", counted=f"{tried} manifests with texts that act", result="all refused, 0 rows changed")


def test_lone_surrogates_do_not_parse(world: ProxyWorld) -> None:
    statement = sign_statement("manifest", body_of(world), world.user).encoded
    broken = statement.replace(b"of the patient", b"\\ud800")
    assert broken != statement
    response = world.request(world.user, "POST", "/v1/studies", broken)
    assert (response.status_code, slug(response)) in ((400, "malformed"), (400, "not-canonical"))


@pytest.mark.parametrize("text", ACTING.values(), ids=ACTING.keys())
def test_nobody_enrols_under_a_name_that_acts(world: ProxyWorld, text: str) -> None:
    with pytest.raises(DpdpcaError):
        invite(world.proxy, "owner", text)
    key = IdentityKey.generate()
    enrolment = Enrolment("owner", text, key.public, world.proxy_key).sign(key)
    token = invite(world.proxy, "owner", "Hospital Z").token
    body = canonical_json({"enrolment": json.loads(enrolment.encoded), "invitation": token})
    before = dump(world.proxy)
    response = world.request(None, "POST", "/v1/parties", body)
    assert (response.status_code, slug(response)) == (400, "malformed")
    assert dump(world.proxy) == before


def test_texts_for_browsers_and_spreadsheets_stay_text(world: ProxyWorld, promise: Promise) -> None:
    features = [{"name": text, "lower": 0, "upper": 1} for text in MEANT_FOR_OTHERS]
    study = world.open_study(len(features), title=MEANT_FOR_OTHERS[0], features=features, clip_norm=3)
    with TestClient(world.operator(), base_url="http://127.0.0.1:8441") as client:
        page = client.get("/")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert MEANT_FOR_OTHERS[0] not in page.text
        metrics = client.get("/metrics").text
    assert not [text for text in MEANT_FOR_OTHERS if text in metrics]
    listed = world.request(world.user, "GET", study.path)
    assert listed.headers["content-type"] == "application/json"
    assert listed.json()["title"] == MEANT_FOR_OTHERS[0]
    promise(
        "P27", counted=f"{len(features)} texts for browsers, spreadsheets and shells", result="inert text"
    )


def test_an_error_of_ours_never_repeats_them() -> None:
    with pytest.raises(MessageError) as caught:
        Enrolment.parse(sign_statement("enrolment", {"format": 1, "\x1b[2J": 1}, IdentityKey.generate()))
    assert "\x1b" not in str(caught.value)
