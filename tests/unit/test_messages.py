from dataclasses import replace

import pytest

from dpdpca_protocol.errors import AuthenticationError, CryptographicError, MessageError
from dpdpca_protocol.messages.share import (
    CohortMember,
    Decline,
    Receipt,
    ShareStatement,
    Withdrawal,
    cohort_digest,
)
from dpdpca_protocol.messages.study_messages import (
    CountAnswer,
    CountChallenge,
    Enrolment,
    Opened,
    ProxyCard,
    ReleaseStatement,
    SealedComponents,
    StudyAct,
)
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import FORMAT, Identity, IdentityKey, sign_statement, verify_statement

KEY = IdentityKey.generate()
OTHER = IdentityKey.generate()
STUDY = StudyId.of(b"study")
ONE = Digest.of(b"one")
MEMBER = CohortMember(PartyId.of(b"owner"), 2, ONE)


def test_each_message_is_read_back_as_it_was_signed() -> None:
    challenge = CountChallenge(STUDY, ONE, b"\x01" * 64)
    assert CountChallenge.parse(challenge.sign(KEY), 64) == challenge
    answer = CountAnswer(STUDY, ONE, 17, b"\x02" * 32)
    assert CountAnswer.parse(answer.sign(KEY), 32) == answer
    for records, kind in ((20, ReleaseKind.MASKED), (None, ReleaseKind.JOINT)):
        release = ReleaseStatement(STUDY, kind, (MEMBER,), cohort_digest([MEMBER]), records, (ONE,))
        assert ReleaseStatement.parse(release.sign(KEY)) == release
    card = ProxyCard("A proxy", "http://127.0.0.1:1", replace(KEY.public, x25519=None))
    assert ProxyCard.parse(card.sign(KEY)) == card
    enrolment = Enrolment("owner", "Hospital Ä", KEY.public, OTHER.public.ed25519)
    assert Enrolment.parse(enrolment.sign(KEY)) == enrolment
    opened = Opened(STUDY, ONE, Digest.of(b"two"))
    assert Opened.parse(opened.sign(KEY)) == opened
    assert StudyAct.parse(StudyAct("close", STUDY).sign(KEY)) == StudyAct("close", STUDY)
    components = SealedComponents(STUDY, {MEMBER.owner: b"sealed"})
    assert SealedComponents.parse(components.sign(KEY)) == components
    share = ShareStatement(STUDY, KEY.public.ed25519, 3, (ONE,), KEY.public.sealing_key, ONE)
    assert ShareStatement.parse(share.sign(KEY)) == share
    withdrawal = Withdrawal(STUDY, KEY.public.ed25519, 4)
    assert Withdrawal.parse(withdrawal.sign(KEY)) == withdrawal
    for why in (None, "our board meets in January"):
        decline = Decline(STUDY, KEY.public.ed25519, "2026-01-01T00:00:00Z", why)
        assert Decline.parse(decline.sign(KEY)) == decline
    receipt = Receipt(STUDY, MEMBER.owner, 4, "share", ONE, "2026-01-01T00:00:00Z")
    assert Receipt.parse(receipt.sign(KEY)) == receipt


def test_nobody_speaks_for_another_key() -> None:
    for message in (
        ShareStatement(STUDY, KEY.public.ed25519, 1, (ONE,), KEY.public.sealing_key, ONE),
        Withdrawal(STUDY, KEY.public.ed25519, 1),
        Decline(STUDY, KEY.public.ed25519, "2026-01-01T00:00:00Z"),
        ProxyCard("A", "http://127.0.0.1:1", KEY.public),
        Enrolment("user", "A", KEY.public, OTHER.public.ed25519),
    ):
        with pytest.raises(MessageError):
            type(message).parse(message.sign(OTHER))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"version": True},
        {"version": 2**32},
        {"chunk_count": 2},
        {"chunk_count": True},
        {"chunk_digests": "00"},
        {"chunk_digests": ["00"]},
        {"study": "00"},
        {"study": 7},
        {"kem": KEY.public.sealing_key.hex().upper()},
        {"proxy_log": "00"},
        {"proxy_log": None},
        {"format": 1},
        {"format": 2},
        {"format": 4},
        {"format": True},
        {"extra": 1},
    ],
)
def test_a_malformed_share_statement_is_refused(change: dict[str, object]) -> None:
    share = ShareStatement(STUDY, KEY.public.ed25519, 1, (ONE,), KEY.public.sealing_key, ONE)
    body = dict(share.sign(KEY).body) | change
    with pytest.raises(MessageError):
        ShareStatement.parse(sign_statement("share", body, KEY))


def test_an_enrolment_of_format_1_is_read_and_cannot_be_taken_for_one_of_format_2() -> None:
    enrolment = Enrolment("owner", "Hospital A", KEY.public, OTHER.public.ed25519)
    body = dict(enrolment.sign(KEY).body) | {"format": 1, "x25519": "9f" * 32}
    del body["kem"]
    earlier = sign_statement("enrolment", body, KEY)
    without_kem = replace(enrolment, identity=Identity(KEY.public.ed25519))
    assert Enrolment.parse(verify_statement("enrolment", earlier.encoded)) == without_kem
    assert Enrolment.parse(enrolment.sign(KEY)).identity == KEY.public
    with pytest.raises(AuthenticationError):
        verify_statement("enrolment", earlier.encoded.replace(b'"format":1', b'"format":2'))


def test_nothing_is_sealed_to_a_data_user_or_to_a_key_of_an_earlier_version() -> None:
    user = Enrolment("user", "Institute", KEY.public, OTHER.public.ed25519).sign(KEY)
    assert "kem" not in user.body
    assert Enrolment.parse(user).identity == Identity(KEY.public.ed25519)
    owner = Enrolment("owner", "Hospital A", Identity(KEY.public.ed25519), OTHER.public.ed25519)
    with pytest.raises(CryptographicError, match="of an earlier version") as caught:
        owner.sign(KEY)
    assert caught.value.slug == "unfit-sealing-key"
    without = replace(owner, identity=replace(KEY.public, x25519=None))
    with pytest.raises(CryptographicError, match="none for blinding") as caught:
        without.sign(KEY)
    assert caught.value.slug == "unfit-blinding-key"
    card = ProxyCard("Relay", "http://127.0.0.1:1", KEY.public).sign(KEY)
    assert "x25519" not in {**card.body, **user.body}


@pytest.mark.parametrize(
    "name", ["", "x" * 201, "a\x00b", "a\x1b[31m", "a\u202eb", "a\nb", "a\ufe0f", "\u3164"]
)
def test_names_that_could_act_on_a_terminal_are_refused(name: str) -> None:
    with pytest.raises(MessageError):
        Enrolment.parse(Enrolment("owner", name, KEY.public, OTHER.public.ed25519).sign(KEY))


@pytest.mark.parametrize(
    "change", [{"records": -1}, {"records": True}, {"records": "5"}, {"randomizer": "0"}]
)
def test_a_malformed_count_answer_is_refused(change: dict[str, object]) -> None:
    body = dict(CountAnswer(STUDY, ONE, 17, b"\x02" * 32).sign(KEY).body) | change
    with pytest.raises(MessageError):
        CountAnswer.parse(sign_statement("count-answer", body, KEY), 32)


def test_a_joint_release_names_no_count_and_a_masked_one_must() -> None:
    body = dict(ReleaseStatement(STUDY, ReleaseKind.JOINT, (), ONE, None, ()).sign(KEY).body)
    for altered in (body | {"records": 5}, body | {"release": "masked"}, body | {"release": "triples"}):
        with pytest.raises(MessageError):
            ReleaseStatement.parse(sign_statement("release", altered, KEY))
    assert body["format"] == FORMAT


def test_the_cohort_digest_does_not_depend_on_order_and_on_everything_else() -> None:
    other = CohortMember(PartyId.of(b"other"), 1, ONE)
    digest = cohort_digest([MEMBER, other])
    assert digest == cohort_digest([other, MEMBER])
    changed = [
        [MEMBER],
        [MEMBER, CohortMember(other.owner, 2, ONE)],
        [MEMBER, CohortMember(other.owner, 1, Digest.of(b"two"))],
        [MEMBER, CohortMember(PartyId.of(b"third"), 1, ONE)],
    ]
    assert len({digest, *map(cohort_digest, changed)}) == 5


def test_a_sealing_key_of_low_order_is_refused() -> None:
    weak = replace(KEY.public, kem=KEY.public.sealing_key[:-32] + bytes(32))
    for message in (
        ShareStatement(STUDY, KEY.public.ed25519, 1, (ONE,), weak.sealing_key, ONE),
        Enrolment("owner", "A", weak, OTHER.public.ed25519),
        ProxyCard("A", "http://127.0.0.1:1", weak),
    ):
        with pytest.raises(CryptographicError) as caught:
            type(message).parse(message.sign(KEY))
        assert caught.value.slug == "unfit-sealing-key"


@pytest.mark.parametrize("time", ["now", "2026-01-01T00:00:00Z\x1b[2J", "2026-01-01T00:00:00+00:00"])
def test_a_receipt_has_a_time_and_nothing_else_there(time: str) -> None:
    receipt = Receipt(STUDY, MEMBER.owner, 4, "share", ONE, time).sign(KEY)
    with pytest.raises(MessageError):
        Receipt.parse(receipt)


def test_components_that_are_sent_once_open_for_each_owner_alone() -> None:
    keys = [IdentityKey.generate() for _ in range(3)]
    named = {key.public.party_id: key.public.sealing_key for key in keys[:2]}
    plain = bytes(100_000)
    sent = SealedComponents.seal_once(STUDY, plain, named)
    statement = sent.sign(keys[0])
    assert len(statement.encoded) < 2 * len(plain) + 10_000
    read = SealedComponents.parse(statement)
    assert read == sent
    assert [read.open(key.public.party_id, key.opening_key) for key in keys] == [plain, plain, None]
    again = SealedComponents.seal_once(STUDY, plain, named)
    assert again.body != sent.body
    assert sent.body is not None
    altered = replace(sent, body=sent.body[:-1] + bytes([sent.body[-1] ^ 1]))
    for wrong in (altered, replace(sent, body=again.body), replace(sent, study=StudyId(bytes(32)))):
        with pytest.raises(CryptographicError, match="cannot be decrypted"):
            wrong.open(keys[0].public.party_id, keys[0].opening_key)
    body = dict(statement.body) | {"body": 7}
    with pytest.raises(MessageError, match="body must be in base64"):
        SealedComponents.parse(replace(statement, body=body))
