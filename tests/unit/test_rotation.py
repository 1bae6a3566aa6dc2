"""Rotation statements and the chains they make: both keys sign, versions rise, nothing leads back."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from dpdpca_protocol.errors import AuthenticationError, DpdpcaError, MessageError
from dpdpca_protocol.messages.rotation import MOST_ROTATIONS, Rotation, follow_rotations, verify_rotation
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.signing import Identity, IdentityKey, sign_statement

KEYS = [IdentityKey.generate() for _ in range(4)]
TIME = "2026-11-28T01:00:00Z"


def link(old: IdentityKey, new: IdentityKey, version: int = 1, role: str = "owner") -> bytes:
    return Rotation(role, version, old.public.ed25519, new.public, TIME).sign(old, new).encoded


def test_a_rotation_comes_back_as_it_was_signed() -> None:
    rotation, statement = verify_rotation(link(KEYS[0], KEYS[1]))
    assert (rotation.previous, rotation.identity) == (KEYS[0].public.ed25519, KEYS[1].public)
    assert statement.signer == KEYS[0].public.ed25519


def test_a_rotation_of_format_1_is_followed_to_a_key_without_kem() -> None:
    """Parties with old pins follow old statements. Only a rotation of format 2 brings a `kem`."""
    terms = {
        "ed25519": KEYS[1].public.ed25519.hex(),
        "format": 1,
        "previous": KEYS[0].public.ed25519.hex(),
        "role": "owner",
        "time": TIME,
        "version": 1,
        "x25519": "9f" * 32,
    }
    acceptance = KEYS[1].ed25519.sign(b"dpdpca/rotation-acceptance/v1\x00" + canonical_json(terms))
    old = sign_statement("rotation", {**terms, "acceptance": acceptance.hex()}, KEYS[0]).encoded
    assert verify_rotation(old)[0].identity == Identity(KEYS[1].public.ed25519)
    chain = follow_rotations([link(KEYS[1], KEYS[2], 2), old], "owner", KEYS[0].public.ed25519)
    assert chain[-1].identity == KEYS[2].public


def test_every_bit_of_a_rotation_counts() -> None:
    """One character changed at every place: nothing that is left still verifies."""
    genuine = link(KEYS[0], KEYS[1])
    for at in range(len(genuine)):
        changed = genuine[:at] + bytes([genuine[at] ^ 1]) + genuine[at + 1 :]
        with pytest.raises(DpdpcaError):
            verify_rotation(changed)


def test_a_key_that_has_not_agreed_cannot_be_named() -> None:
    """The old key's holder cannot put its name on a key of somebody else."""
    rotation = Rotation("owner", 1, KEYS[0].public.ed25519, KEYS[1].public, TIME)
    with pytest.raises(AuthenticationError, match="new key"):
        verify_rotation(rotation.sign(KEYS[0], KEYS[2]).encoded)


def test_a_stranger_cannot_rotate_another_key() -> None:
    body = json.loads(link(KEYS[0], KEYS[1]))["body"]
    with pytest.raises(MessageError, match="signer"):
        verify_rotation(sign_statement("rotation", body, KEYS[2]).encoded)


CHANGES: list[Callable[[dict[str, Any]], Any]] = [
    lambda body: body.update(role="judge"),
    lambda body: body.update(version=0),
    lambda body: body.update(version=True),
    lambda body: body.update(time="yesterday"),
    lambda body: body.update(more=1),
    lambda body: body.pop("time"),
    lambda body: body.update(kem="00" * 1216),
]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_malformed_rotations_are_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    body = json.loads(link(KEYS[0], KEYS[1]))["body"]
    change(body)
    with pytest.raises(DpdpcaError):
        verify_rotation(canonical_json(json.loads(sign_statement("rotation", body, KEYS[0]).encoded)))


def test_a_chain_is_followed_from_wherever_one_stands() -> None:
    chain = [link(KEYS[2], KEYS[3], 7), link(KEYS[0], KEYS[1], 1), link(KEYS[1], KEYS[2], 2)]
    for start in range(4):
        found = follow_rotations(chain, "owner", KEYS[start].public.ed25519)
        assert [each.identity for each in found] == [key.public for key in KEYS[start + 1 :]]
    assert follow_rotations(chain, "user", KEYS[0].public.ed25519) == ()


@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        ([(0, 1, 1), (0, 2, 2)], "two different keys"),
        ([(0, 1, 1), (1, 2, 1)], "do not rise"),
        ([(0, 1, 1), (1, 0, 2)], "the chain returns to a key"),
        ([(0, 1, 1), (1, 2, 2), (2, 1, 3)], "the chain returns to a key"),
    ],
)
def test_chains_that_fork_fall_back_or_circle_are_refused(
    chain: list[tuple[int, int, int]], reason: str
) -> None:
    links = [link(KEYS[old], KEYS[new], version) for old, new, version in chain]
    with pytest.raises(MessageError, match=reason):
        follow_rotations(links, "owner", KEYS[0].public.ed25519)


def test_what_others_have_signed_stands_in_nobodys_way() -> None:
    """Not their number, not a fork, not one that does not hold."""
    broken = json.loads(link(KEYS[2], KEYS[3]))
    broken["body"]["version"] = 9
    others = [
        *(link(KEYS[1], IdentityKey.generate(), version + 1) for version in range(MOST_ROTATIONS + 1)),
        canonical_json(broken),
    ]
    mine = IdentityKey.generate()
    (found,) = follow_rotations([*others, link(KEYS[0], mine)], "owner", KEYS[0].public.ed25519)
    assert found.identity == mine.public
    for key in (KEYS[1], KEYS[2]):
        with pytest.raises(DpdpcaError):
            follow_rotations(others, "owner", key.public.ed25519)


def test_a_chain_without_end_is_not_followed() -> None:
    keys = [IdentityKey.generate() for _ in range(MOST_ROTATIONS + 2)]
    links = [link(old, new, at + 1) for at, (old, new) in enumerate(itertools.pairwise(keys))]
    assert len(follow_rotations(links[1:], "owner", keys[1].public.ed25519)) == MOST_ROTATIONS
    with pytest.raises(MessageError, match="more than"):
        follow_rotations(links, "owner", keys[0].public.ed25519)
