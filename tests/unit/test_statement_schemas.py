"""The JSON Schemas of signed statements say what the parsers take: a body misses or has more for neither."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.messages.carried import CarriedAnswer
from dpdpca_protocol.messages.rotation import Rotation
from dpdpca_protocol.messages.schemas import BODIES, statement_schema
from dpdpca_protocol.messages.share import CohortMember, Decline, Receipt, ShareStatement, Withdrawal
from dpdpca_protocol.messages.software import Software, SoftwareKind
from dpdpca_protocol.messages.study_messages import (
    CountAnswer,
    CountChallenge,
    Enrolment,
    Opened,
    ProxyCard,
    ReleaseStatement,
    SealedComponents,
    StudyAct,
    StudyMark,
)
from dpdpca_protocol.messages.transcript import Event
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import IdentityKey, Statement, sign_statement

KEY, OTHER = IdentityKey.generate(), IdentityKey.generate()
PUBLIC = KEY.public
STUDY, DIGEST = StudyId(bytes(range(32))), Digest.of(b"something")
TIME = "2026-11-28T12:00:00Z"
MEMBER = CohortMember(PUBLIC.party_id, 2, DIGEST)
WHEEL = Software("1.0.0", SoftwareKind.WHEEL, f"sha256:{DIGEST.hex()}")

STATEMENTS: dict[str, tuple[Statement, Callable[[Statement], object]]] = {
    "answer": (CarriedAnswer("0f" * 16, DIGEST, TIME).sign(KEY), CarriedAnswer.parse),
    "cancel": (StudyAct("cancel", STUDY).sign(KEY), StudyAct.parse),
    "close": (StudyAct("close", STUDY).sign(KEY), StudyAct.parse),
    "components": (
        SealedComponents(STUDY, {PUBLIC.party_id: b"sealed"}, DIGEST, b"body").sign(KEY),
        SealedComponents.parse,
    ),
    "count-answer": (
        CountAnswer(STUDY, DIGEST, 7, bytes(64), DIGEST).sign(KEY),
        lambda said: CountAnswer.parse(said, 64),
    ),
    "count-challenge": (
        CountChallenge(STUDY, DIGEST, bytes(128)).sign(KEY),
        lambda said: CountChallenge.parse(said, 128),
    ),
    "decline": (Decline(STUDY, PUBLIC.ed25519, TIME, "not now").sign(KEY), Decline.parse),
    "enrolment": (Enrolment("owner", "Hospital A", PUBLIC, bytes(32)).sign(KEY), Enrolment.parse),
    "event": (
        Event(STUDY, 0, DIGEST, TIME, "closed", {"owners": 2, "reason": "on time"}).sign(KEY),
        lambda said: Event.parse(said.body),
    ),
    "mark": (StudyMark(STUDY, "open", 3, DIGEST, TIME).sign(KEY), StudyMark.parse),
    "opened": (Opened(STUDY, DIGEST, DIGEST).sign(KEY), Opened.parse),
    "proxy": (ProxyCard("Relay", "https://relay.example", PUBLIC, WHEEL).sign(KEY), ProxyCard.parse),
    "receipt": (Receipt(STUDY, PUBLIC.party_id, 1, "share", DIGEST, TIME).sign(KEY), Receipt.parse),
    "release": (
        ReleaseStatement(STUDY, ReleaseKind.MASKED, (MEMBER,), DIGEST, 20, (DIGEST,), WHEEL).sign(KEY),
        ReleaseStatement.parse,
    ),
    "rotation": (
        Rotation("owner", 1, PUBLIC.ed25519, OTHER.public, TIME).sign(KEY, OTHER),
        Rotation.parse,
    ),
    "share": (
        ShareStatement(STUDY, PUBLIC.ed25519, 1, (DIGEST,), PUBLIC.sealing_key, DIGEST, DIGEST).sign(KEY),
        ShareStatement.parse,
    ),
    "withdrawal": (Withdrawal(STUDY, PUBLIC.ed25519, 2, DIGEST).sign(KEY), Withdrawal.parse),
}
PARTS = [(kind, member) for kind, (said, _) in STATEMENTS.items() for member in said.body]


def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(statement_schema(kind, BODIES[kind]))


def taken(kind: str, body: dict[str, Any]) -> bool:
    """Whether the parser of `kind` takes `body`, newly signed."""
    try:
        STATEMENTS[kind][1](sign_statement(kind, body, KEY))
    except DpdpcaError:
        return False
    return True


def test_every_kind_has_a_schema_and_every_schema_is_tried() -> None:
    assert BODIES.keys() == STATEMENTS.keys()
    for kind in BODIES:
        Draft202012Validator.check_schema(statement_schema(kind, BODIES[kind]))


@pytest.mark.parametrize("kind", STATEMENTS)
def test_the_schema_takes_what_the_parser_takes(kind: str) -> None:
    said, parse = STATEMENTS[kind]
    parse(said)
    validator(kind).validate(json.loads(said.encoded))


def test_a_joint_release_counts_no_records() -> None:
    said = ReleaseStatement(STUDY, ReleaseKind.JOINT, (MEMBER,), DIGEST, None, (DIGEST,)).sign(KEY)
    validator("release").validate(json.loads(said.encoded))
    for release, records in ((ReleaseKind.JOINT, 20), (ReleaseKind.MASKED, None)):
        false = ReleaseStatement(STUDY, release, (MEMBER,), DIGEST, records, (DIGEST,)).sign(KEY)
        assert not validator("release").is_valid(json.loads(false.encoded))
        assert not taken("release", dict(false.body))


def test_a_data_user_states_no_key_to_seal_to() -> None:
    bodies = {
        "enrolment": Enrolment("user", "Institute", PUBLIC, bytes(32)).sign(KEY).body,
        "rotation": Rotation("user", 1, PUBLIC.ed25519, OTHER.public, TIME).sign(KEY, OTHER).body,
    }
    for kind, body in bodies.items():
        for stated, allowed in ((body, True), ({**body, "kem": PUBLIC.sealing_key.hex()}, False)):
            assert Draft202012Validator(BODIES[kind]).is_valid(stated) == allowed
            assert taken(kind, dict(stated)) == allowed


@pytest.mark.parametrize(("kind", "member"), PARTS)
def test_schema_and_parser_agree_on_a_missing_and_a_misshapen_member(kind: str, member: str) -> None:
    said = STATEMENTS[kind][0]
    without = {name: value for name, value in said.body.items() if name != member}
    for body in (without, {**said.body, member: None}, {**said.body, "unknown": 1}):
        allowed = Draft202012Validator(BODIES[kind]).is_valid(body)
        assert allowed == (member in ("body", "log", "software", "why") and body is without)
        # A rotation's new key signs all members, so that its parser refuses more than the shape.
        assert taken(kind, body) == allowed


@pytest.mark.parametrize(
    ("software", "is_right"),
    [
        ({"kind": "wheel", "version": "1", "digest": f"sha256:{'ab' * 32}"}, True),
        ({"kind": "image", "version": "1", "digest": f"sha256:{'ab' * 32}"}, True),
        ({"kind": "altered", "version": "1", "digest": f"sha256:{'ab' * 32}"}, True),
        ({"kind": "editable", "version": "1"}, True),
        ({"kind": "editable", "version": "1", "digest": f"sha256:{'ab' * 32}"}, False),
        ({"kind": "wheel", "version": "1"}, False),
        ({"kind": "wheel", "version": "", "digest": f"sha256:{'ab' * 32}"}, False),
        ({"kind": "wheel", "version": "1", "digest": "ab" * 32}, False),
        ({"kind": "wheel", "version": "1", "digest": f"sha256:{'AB' * 32}"}, False),
        ({"kind": "wheel", "version": "1", "digest": f"sha256:{'ab' * 31}"}, False),
        ({"kind": "guess", "version": "1", "digest": f"sha256:{'ab' * 32}"}, False),
        ({"kind": "wheel", "version": "1", "digest": f"sha256:{'ab' * 32}", "more": 1}, False),
    ],
)
def test_schema_and_parser_agree_on_software(software: dict[str, str], is_right: bool) -> None:
    for kind in ("proxy", "release"):
        body = {**STATEMENTS[kind][0].body, "software": software}
        assert Draft202012Validator(BODIES[kind]).is_valid(body) == is_right
        assert taken(kind, body) == is_right


@pytest.mark.parametrize("kind", STATEMENTS)
def test_the_envelope_has_four_members_and_names_its_kind(kind: str) -> None:
    envelope = json.loads(STATEMENTS[kind][0].encoded)
    for member in envelope:
        assert not validator(kind).is_valid({name: envelope[name] for name in envelope if name != member})
    assert not validator(kind).is_valid(envelope | {"kind": "another"})
    assert not validator(kind).is_valid(envelope | {"unknown": 1})


@pytest.mark.parametrize(("kind", "member"), PARTS)
@pytest.mark.parametrize("other", [True, -1, 2**40, "", "text", [], [[]], [{}], {}, {"a": {}}], ids=repr)
def test_a_member_of_any_other_form_is_refused_and_nothing_else_happens(
    kind: str, member: str, other: object
) -> None:
    """A value that cannot be hashed once ended a proxy's answer to an enrolment as an internal error."""
    body = {**STATEMENTS[kind][0].body, member: other}
    if not Draft202012Validator(BODIES[kind]).is_valid(body):
        assert not taken(kind, body)
