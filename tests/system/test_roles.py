"""Role by route: whoever is not meant to use a route of the proxy is refused, and changes nothing.

The routes come from the proxy's own OpenAPI page; a new one without a line in `RIGHTS` fails the test.
"""

from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from federation.bare_owner import claim, deliver, make_chunks, seal_chunk
from federation.bare_user import BareStudy, BareUser, make_request
from federation.records import add_up, patients
from federation.world import Federation

from dpdpca_protocol.messages.share import Decline, Withdrawal
from dpdpca_protocol.messages.study_messages import CountAnswer, Opened, SealedComponents, StudyAct
from dpdpca_protocol.wire.http import CHUNK_MEDIA_TYPE
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import IdentityKey

FEATURE_LIST = b'[{"kind":"numeric","lower":"0","name":"a","upper":"1"}]'
SUMS = add_up(patients(20, seed=91))

STRANGER, UNSIGNED = "stranger", "unsigned"
MEMBER, OUTSIDER, USER, OTHER_USER = "member", "outsider", "the study's user", "another user"
ENROLLED = frozenset({MEMBER, OUTSIDER, USER, OTHER_USER})
EVERYBODY = ENROLLED | {STRANGER, UNSIGNED}
OWNERS, USERS = frozenset({MEMBER, OUTSIDER}), frozenset({USER, OTHER_USER})

RIGHTS: dict[tuple[str, str], frozenset[str]] = {
    ("GET", "/healthz"): EVERYBODY,
    ("GET", "/readyz"): EVERYBODY,
    ("GET", "/v1/proxy"): EVERYBODY,
    ("POST", "/v1/parties"): frozenset(),  # by invitation alone
    ("GET", "/v1/parties"): ENROLLED,
    ("GET", "/v1/proxy/rotations"): EVERYBODY,
    ("GET", "/v1/parties/rotations"): ENROLLED,
    ("POST", "/v1/parties/{party}/rotations"): ENROLLED,  # of the caller's own key
    ("GET", "/v1/inbox"): OWNERS,
    ("PUT", "/v1/feature-lists/{sha256}"): USERS,
    ("GET", "/v1/feature-lists/{sha256}"): ENROLLED,
    ("POST", "/v1/studies"): USERS,
    ("GET", "/v1/studies"): ENROLLED,
    ("GET", "/v1/studies/{study}"): ENROLLED,
    ("DELETE", "/v1/studies/{study}"): frozenset({USER}),
    ("GET", "/v1/studies/{study}/manifest"): ENROLLED,
    ("GET", "/v1/studies/{study}/transcript"): ENROLLED,
    ("GET", "/v1/studies/{study}/events"): ENROLLED,
    ("POST", "/v1/studies/{study}/close"): frozenset({USER}),
    ("POST", "/v1/studies/{study}/decline"): frozenset({MEMBER}),
    ("PUT", "/v1/studies/{study}/share/chunks/{position}"): frozenset({MEMBER}),
    ("GET", "/v1/studies/{study}/share"): OWNERS,  # of the caller itself
    ("DELETE", "/v1/studies/{study}/share"): OWNERS,  # of the caller itself
    ("POST", "/v1/studies/{study}/share/complete"): frozenset({MEMBER}),
    ("GET", "/v1/studies/{study}/count"): frozenset({USER}),
    ("POST", "/v1/studies/{study}/count"): frozenset({USER}),
    ("GET", "/v1/studies/{study}/release"): frozenset({USER}),
    ("GET", "/v1/studies/{study}/release/chunks/{position}"): frozenset({USER}),
    ("PUT", "/v1/studies/{study}/opened"): frozenset({USER}),
    ("PUT", "/v1/studies/{study}/components"): frozenset({USER}),
    ("GET", "/v1/studies/{study}/components"): frozenset({MEMBER, USER}),
}

REFUSALS = {
    401: {"bad-signature", "unknown-key"},
    403: {"wrong-role", "not-the-study-owner", "not-a-participant", "not-in-the-cohort"},
}


@dataclass(frozen=True)
class Cast:
    """Who is who, and the study that they all reach for."""

    federation: Federation
    study: BareStudy
    keys: dict[str, IdentityKey | None]

    def ask(self, who: str, method: str, route: str) -> httpx.Response:
        """The head of the answer to the most plausible request that this party can make."""
        key = self.keys[who]
        body, media_type = self._body(key or IdentityKey.generate(), method, route)
        path = route.replace("{study}", self.study.id.hex()).replace("{position}", "0")
        path = path.replace("{sha256}", Digest.of(FEATURE_LIST).hex())
        path = path.replace("{party}", (key or IdentityKey.generate()).public.party_id.hex())
        query = "?version=1" if route.endswith("share/chunks/{position}") else ""
        request = make_request(self.federation, key, method, path + query, body, media_type)
        with httpx.Client(trust_env=False, timeout=30) as client:
            answer = client.send(request, stream=True)
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                answer.read()
            answer.close()
        return answer

    def _body(self, key: IdentityKey, method: str, route: str) -> tuple[bytes | None, str]:
        """Signed by the caller itself: right in form wherever the form does not hang on the state."""
        study, end = self.study, route.rpartition("/")[2]
        if method == "GET":
            return None, ""
        if end == "{sha256}":
            return FEATURE_LIST, "application/json"
        if method == "PUT" and end == "{position}":
            return seal_chunk(study, key, make_chunks(study, SUMS)[0], 1, 0), CHUNK_MEDIA_TYPE
        if end == "complete":
            return claim(study, key, make_chunks(study, SUMS)).encoded, "application/json"
        if end == "share":
            return Withdrawal(study.id, key.public.ed25519, 2).sign(key).encoded, "application/json"
        if end == "decline":
            return Decline(study.id, key.public.ed25519, "2026-01-01T00:00:00Z").sign(
                key
            ).encoded, "application/json"
        if end in ("close", "{study}"):
            kind = "close" if end == "close" else "cancel"
            return StudyAct(kind, study.id).sign(key).encoded, "application/json"
        if end == "opened":
            return Opened(study.id, Digest.of(b""), Digest.of(b"")).sign(key).encoded, "application/json"
        if end == "components":
            return SealedComponents(study.id, {}).sign(key).encoded, "application/json"
        if end == "count":
            randomizer = bytes(study.secret.public.modulus_bytes)
            answer = CountAnswer(study.id, Digest.of(b""), 20, randomizer).sign(key)
            return answer.encoded, "application/json"
        return b"{}", "application/json"


@pytest.fixture(scope="module")
def cast(federation: Federation) -> Cast:
    """A masked study with a delivered share, and a party of every kind."""
    user, other = BareUser(federation, "This Institute"), BareUser(federation, "That Institute")
    member, second, outsider = federation.owners(3)
    study = user.open_study([member, second], release="masked", min_owners=2)
    deliver(study, second.key(), SUMS)
    user.client.put_feature_list(FEATURE_LIST)
    keys = {
        MEMBER: member.key(),
        OUTSIDER: outsider.key(),
        USER: user.key,
        OTHER_USER: other.key,
        STRANGER: IdentityKey.generate(),
        UNSIGNED: None,
    }
    return Cast(federation, study, keys)


def _routes(federation: Federation) -> set[tuple[str, str]]:
    paths = httpx.get(f"{federation.url}/openapi.json", trust_env=False).json()["paths"]
    return {(method.upper(), path) for path, methods in paths.items() for method in methods}


def _state(cast: Cast) -> tuple[Any, ...]:
    client = cast.study.user.client
    # The mark has the time of the answer.
    return (
        replace(client.study(cast.study.id), mark=None),
        client.transcript(cast.study.id),
        client.parties(),
        client.studies(),
    )


def _is_refused(answer: httpx.Response) -> bool:
    if answer.status_code not in REFUSALS:
        return False
    slug = answer.json()["type"].removeprefix("urn:dpdpca:problem:")
    return slug in REFUSALS[answer.status_code]


def test_every_route_has_its_rights(federation: Federation) -> None:
    assert _routes(federation) == RIGHTS.keys()


@pytest.mark.parametrize("state", ["open", "published"])
def test_nobody_does_what_its_role_does_not_allow(cast: Cast, state: str) -> None:
    if state == "published":
        deliver(cast.study, cast.keys[MEMBER] or IdentityKey.generate(), SUMS)
        cast.study.close()
        cast.study.open_release()
    before = _state(cast)
    for (method, route), allowed in sorted(RIGHTS.items()):
        for who in sorted(EVERYBODY - allowed):
            answer = cast.ask(who, method, route)
            if (method, route) == ("POST", "/v1/parties"):
                assert answer.status_code == 400, "an enrolment without a statement is not even one"
                continue
            if who in OWNERS and state == "published" and ("share" in route or "decline" in route):
                # Closed to all owners alike; who may have a share is no longer asked.
                assert _is_refused(answer) or answer.status_code == 409
                continue
            assert _is_refused(answer), f"{who} got {answer.status_code} from {method} {route}"
    assert _state(cast) == before


def test_everybody_does_what_its_role_allows(cast: Cast) -> None:
    """Reads alone, and after all else: what a role is for must not be refused as a matter of role."""
    for (method, route), allowed in sorted(RIGHTS.items()):
        for who in sorted(allowed) if method == "GET" else ():
            answer = cast.ask(who, method, route)
            assert not _is_refused(answer), f"{who} was refused {method} {route}: {answer.status_code}"
            assert answer.status_code in (200, 409)


def test_service_answers_its_data_user_alone(federation: Federation) -> None:
    """No token, another's token, and a right token in the wrong place: nothing but health is answered."""
    user = federation.user
    token = (user.home / "token").read_text().strip()
    page = httpx.get(f"{user.service_url}/openapi.json", trust_env=False).json()["paths"]
    routes = [(method.upper(), path) for path, methods in page.items() for method in methods]
    assert {path for _, path in routes} >= {"/v1/studies", "/v1/models", "/v1/models/{study}/transform"}
    for method, route in routes:
        url = user.service_url + route.replace("{study}", "ab" * 32).replace("{position}", "0")
        url = url.replace("{sha256}", "ab" * 32)
        for headers in ({}, {"authorization": f"Bearer {token[:-1]}x"}, {"x-token": token}):
            answer = httpx.request(method, url, headers=headers, content=b"{}", trust_env=False)
            open_to_all = route in ("/healthz", "/readyz")
            assert answer.status_code == (200 if open_to_all else 401), (method, route)
            if not open_to_all:
                assert answer.json()["type"] == "urn:dpdpca:problem:bad-token"


def test_operators_page_is_not_on_the_public_listener(federation: Federation) -> None:
    for path in ("/", "/metrics", "/events"):
        assert httpx.get(f"{federation.url}{path}", trust_env=False).status_code == 404
    operator = f"http://127.0.0.1:{federation.operator_port}"
    assert httpx.get(f"{operator}/metrics", trust_env=False).status_code == 200
    elsewhere = httpx.get(f"{operator}/metrics", headers={"host": "evil.example"}, trust_env=False)
    assert elsewhere.status_code == 400
