"""The same request again gets the same answer; another one under its name is refused; one byte matters."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from promises import Promise
from proxy_world import EVIDENCE, PASSING, OpenStudy, ProxyWorld, dump, slug, values_of

from dpdpca_protocol.messages.share import Withdrawal
from dpdpca_protocol.messages.study_messages import Enrolment, Opened, SealedComponents, StudyAct
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import IdentityKey, Statement
from dpdpca_proxy.enrolment import invite

AT_ONCE = 50
_BYTES = 12
"""Bytes of each body that are changed, one at a time."""


@dataclass(frozen=True)
class Asked:
    """A request that is signed anew each time it is sent."""

    key: IdentityKey | None
    method: str
    path: str
    body: bytes
    media_type: str = "application/json"

    def send(self, world: ProxyWorld, body: bytes | None = None) -> httpx.Response:
        return world.request(
            self.key, self.method, self.path, self.body if body is None else body, self.media_type
        )


@dataclass(frozen=True)
class Route:
    """A request, others under the same name with what each is refused as, and the end of its work."""

    asked: Asked
    others: tuple[tuple[Asked, str], ...]
    settle: Callable[[], object] = lambda: None


def enrolment(world: ProxyWorld) -> Route:
    token = invite(world.proxy, "owner", "Hospital N").token

    def asked(key: IdentityKey) -> Asked:
        statement = Enrolment("owner", "Hospital N", key.public, world.proxy_key).sign(key)
        body = {"enrolment": parse_canonical(statement.encoded), "invitation": token}
        return Asked(None, "POST", "/v1/parties", canonical_json(body))

    other = asked(IdentityKey.generate())
    return Route(asked(IdentityKey.generate()), ((other, "invitation-used"),))


def manifest(world: ProxyWorld) -> Route:
    def asked(**changes: Any) -> Asked:
        statement = sign_manifest(world.manifest(3, **changes), world.user)
        return Asked(world.user, "POST", "/v1/studies", statement.encoded)

    return Route(asked(), ((asked(title="Another"), "unfit-modulus"),))


def chunk(world: ProxyWorld) -> Route:
    study, owner = world.open_study(3), world.owners[0]

    def asked() -> Asked:
        sealed = study.seal(owner, study.plain_chunks(values_of(3, 0))[0], 1, 0)
        path = f"{study.path}/share/chunks/0?version=1"
        return Asked(owner, "PUT", path, sealed, "application/octet-stream")

    return Route(asked(), ((asked(), "chunk-differs"),))


def completing(world: ProxyWorld) -> Route:
    study, owner = world.open_study(3), world.owners[0]
    chunks, others = (study.plain_chunks(values_of(3, seed)) for seed in (0, 1))
    study.upload(owner, chunks)
    path = f"{study.path}/share/complete"
    other = Asked(owner, "POST", path, study.claim(owner, others).encoded)
    return Route(
        Asked(owner, "POST", path, study.claim(owner, chunks).encoded), ((other, "statement-differs"),)
    )


def withdrawing(world: ProxyWorld) -> Route:
    study, owner = world.open_study(3), world.owners[0]
    study.deliver(owner, values_of(3, 0))

    def asked(version: int) -> Asked:
        statement = Withdrawal(study.study, owner.public.ed25519, version).sign(owner)
        return Asked(owner, "DELETE", f"{study.path}/share", statement.encoded)

    share = study.claim(owner, study.plain_chunks(values_of(3, 0)), 2).encoded
    again = Asked(owner, "POST", f"{study.path}/share/complete", share)
    return Route(asked(2), ((again, "statement-differs"), (asked(1), "statement-differs")))


def delivered(world: ProxyWorld, **changes: Any) -> OpenStudy:
    study = world.open_study(3, **changes)
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    return study


def closing(world: ProxyWorld) -> Route:
    study = delivered(world, release="masked")
    return Route(_act(study, "close", f"{study.path}/close", "POST"), (), study.challenge)


def cancelling(world: ProxyWorld) -> Route:
    study = delivered(world)
    close = _act(study, "close", f"{study.path}/close", "POST")
    return Route(_act(study, "cancel", study.path, "DELETE"), ((close, "study-closed"),))


def _act(study: OpenStudy, kind: Any, path: str, method: str) -> Asked:
    user = study.world.user
    return Asked(user, method, path, StudyAct(kind, study.study).sign(user).encoded)


def counting(world: ProxyWorld) -> Route:
    study = delivered(world, release="masked", closing="when-complete")
    challenge = study.challenge()

    def asked(add: int) -> Asked:
        return Asked(world.user, "POST", f"{study.path}/count", study.count_answer(challenge, add).encoded)

    return Route(asked(0), ((asked(1), "count-already-answered"),), lambda: study.wait_state("released"))


def opening(world: ProxyWorld) -> Route:
    study = delivered(world, closing="when-complete")
    study.wait_state("released")
    opened = study.opened()
    another = replace(Opened.parse(opened), release=Digest.of(b"another")).sign(world.user)

    def asked(statement: Statement) -> Asked:
        return Asked(world.user, "PUT", f"{study.path}/opened", statement.encoded)

    return Route(asked(opened), ((asked(another), "opened-differs"),))


def publishing(world: ProxyWorld) -> Route:
    study = delivered(world, closing="when-complete")
    study.wait_state("released")
    study.state_opened()

    def asked(size: int) -> Asked:
        sealed = {owner.public.party_id: bytes(size) for owner in world.owners}
        statement = SealedComponents(study.study, sealed).sign(world.user)
        return Asked(world.user, "PUT", f"{study.path}/components", statement.encoded)

    return Route(asked(200), ((asked(201), "components-differ"),))


ROUTES: list[Callable[[ProxyWorld], Route]] = [
    enrolment, manifest, chunk, completing, withdrawing, closing, cancelling, counting, opening, publishing,
]  # fmt: skip


def same(answers: list[httpx.Response]) -> bool:
    """One body; a study or party that is new is 201 once and 200 later."""
    return len({answer.content for answer in answers}) == 1 and all(answer.is_success for answer in answers)


def send_through(world: ProxyWorld, asked: Asked) -> httpx.Response:
    """As a client would: where the proxy has no room at the moment, again."""
    while (answer := asked.send(world)).status_code == 503:
        assert answer.headers["retry-after"]
        time.sleep(0.02)
    return answer


def growth(before: Mapping[str, list[Any]], after: Mapping[str, list[Any]]) -> dict[str, int]:
    return {name: len(after[name]) - len(before[name]) for name in after}


@pytest.mark.parametrize("make", ROUTES, ids=lambda make: make.__name__)
def test_a_repeated_request(world: ProxyWorld, promise: Promise, make: Callable[[ProxyWorld], Route]) -> None:
    route = make(world)
    before = dump(world.proxy)
    first = route.asked.send(world)
    route.settle()
    after = dump(world.proxy)
    assert after != before
    assert same([first, route.asked.send(world)])
    assert dump(world.proxy) == after
    for other, refusal in route.others:
        answer = other.send(world)
        assert 400 <= answer.status_code < 500
        assert slug(answer) == refusal
    assert dump(world.proxy, without=(*PASSING, *EVIDENCE)) == {
        table: rows for table, rows in after.items() if table not in EVIDENCE
    }
    with_evidence = dump(world.proxy)
    body = route.asked.body
    for at in range(0, len(body), max(1, len(body) // _BYTES)):
        changed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        assert 400 <= route.asked.send(world, changed).status_code < 500, f"byte {at}"
    assert dump(world.proxy) == with_evidence

    world.with_new_key()
    crowded = make(world)
    before_crowd = dump(world.proxy)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda _: send_through(world, crowded.asked), range(AT_ONCE)))
    crowded.settle()
    assert same(answers)
    assert growth(before_crowd, dump(world.proxy)) == growth(before, after)
    promise(
        "P4",
        counted=f"{make.__name__}: twice, {AT_ONCE} at once, {len(route.others) + _BYTES} changed",
        result="1 change, same bytes; 4xx without a change for the changed",
    )
