"""Proxy and data user work together, with an owner or two: what they get of an honest owner's share.

The attack is one function (`collusion.undo`): take off the pads, which the data user can open, and the masks
that the colluding owners share. Without blinding it gives an owner's exact values. With blinding its view can
be simulated from the sum over the honest owners alone (docs/claims.md, C14). tests/system plays it on whole
processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from collusion import looks_uniform, undo, wrapped
from promises import Promise

from dpdpca_protocol.layout.blocks import whole_numbers
from dpdpca_protocol.pads.chunks import decode
from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.pads.masks import pair_keys
from dpdpca_protocol.pads.streams import PadKey
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.suite import CohortShare, PadsSuite
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.salts import unsalted
from dpdpca_protocol.wire.signing import IdentityKey

COUNT = 6000
STUDY = StudyId.of(b"study")


@dataclass
class Sent:
    """What the proxy has of one owner."""

    chunk: bytes
    said: CohortShare


class Study:
    """Owners that send their values, blinded or not."""

    def __init__(self, values: Sequence[Sequence[int]], *, blinded: bool, study: StudyId = STUDY) -> None:
        self.keys = sorted((IdentityKey.generate() for _ in values), key=lambda key: key.public.party_id)
        self.study, self.blinded = study, blinded
        self.secret = PadsSecret.generate(OS_RANDOMNESS)
        self.suite = PadsSuite(self.secret.public, study, len(values[0]))
        self.sent = [self.send(key, each) for key, each in zip(self.keys, values, strict=True)]

    def pairs(self, key: IdentityKey, others: Sequence[IdentityKey]) -> tuple[PadKey, ...]:
        named = {other.public.party_id: other.public.blinding_key for other in others if other is not key}
        return pair_keys(key.blinding_key, key.public.party_id, named, self.study)

    def send(self, key: IdentityKey, values: Sequence[int]) -> Sent:
        owner = key.public.party_id
        begun = self.suite.begin(owner, 1, OS_RANDOMNESS)
        pairs = self.pairs(key, self.keys) if self.blinded else ()
        make = self.suite.chunk_maker(begun.secrets, OS_RANDOMNESS, pairs=pairs)
        return Sent(bytes(make(0, values)(lambda count: None)), CohortShare(owner, 1, begun.pad))

    def attack(self, victim: int, colluding: Sequence[int]) -> list[int]:
        """The victim's values as far as proxy, data user and these owners can undo what hides them."""
        sent, keys = self.sent[victim], [self.keys[other] for other in colluding if self.blinded]
        shared = [pair for key in keys for pair in self.pairs(key, [self.keys[victim]])]
        return undo(self.suite, self.secret.to_bytes(), [unsalted(sent.chunk)], sent.said, shared)


def values_of(owner: int) -> list[int]:
    return [(owner + 1) * (index % 1000) - 7 * owner for index in range(COUNT)]


def test_without_blinding_proxy_and_data_user_open_every_share(promise: Promise) -> None:
    study = Study([values_of(owner) for owner in range(3)], blinded=False)
    for victim in range(3):
        assert study.attack(victim, []) == values_of(victim)
    assert not looks_uniform(values_of(1))
    promise(
        "P15", counted="3 shares without blinding", result="exact to proxy and data user together, as stated"
    )


@pytest.mark.parametrize("colluding", [[], [2], [2, 3]])
def test_with_blinding_the_view_of_two_honest_owners_is_simulated_from_their_sum(
    colluding: list[int], promise: Promise
) -> None:
    exact = [values_of(owner) for owner in range(4)]
    study = Study(exact, blinded=True)
    honest = [owner for owner in range(4) if owner not in colluding]
    views = [study.attack(owner, colluding) for owner in honest]
    total = [sum(column) for column in zip(*(exact[owner] for owner in honest), strict=True)]
    simulated = simulation(total, len(honest))
    for seen in (views, simulated):
        assert all(map(looks_uniform, seen))
        for some in (seen[:1], seen[1:]):
            assert looks_uniform(wrapped([sum(column) for column in zip(*some, strict=True)]))
        assert wrapped([sum(column) for column in zip(*seen, strict=True)]) == total
    promise(
        "P15",
        counted=f"{len(honest)} blinded shares against proxy, data user and {len(colluding)} owners",
        result="uniform but for their sum",
    )


def simulation(total: Sequence[int], honest: int) -> list[list[int]]:
    """Views made from the honest owners' sum alone: uniform but for their sum."""
    free = [
        np.frombuffer(OS_RANDOMNESS.bytes(8 * len(total)), dtype=np.int64).tolist() for _ in range(honest - 1)
    ]
    last = wrapped(
        [whole - sum(column) for whole, column in zip(total, zip(*free, strict=True), strict=True)]
    )
    return [*free, last]


def test_an_owner_alone_among_colluders_has_only_its_own_noise() -> None:
    """As stated: with h = 1 the share opens, and holds the owner's own part of the noise."""
    study = Study([values_of(owner) for owner in range(3)], blinded=True)
    assert study.attack(0, [1, 2]) == values_of(0)
    assert looks_uniform(study.attack(0, [1]))


def test_owners_that_were_shown_different_manifests_send_nothing_that_opens() -> None:
    one = Study([values_of(owner) for owner in range(3)], blinded=True)
    other = Study.__new__(Study)
    other.__dict__ |= one.__dict__ | {"study": StudyId.of(b"another manifest")}
    # The third owner read another manifest. Its pad opens only in that study, so the colluders open it there.
    strange = other.send(one.keys[2], values_of(2))
    key = PadsSuite(one.secret.public, STUDY, COUNT)
    parts = [
        whole_numbers(key.open_sum(one.secret.to_bytes(), [unsalted(each.chunk)], [each.said]))
        for each in one.sent[:2]
    ]
    parts.append(
        whole_numbers(key.open_sum(one.secret.to_bytes(), [unsalted(strange.chunk)], [strange.said]))
    )
    total = wrapped([sum(column) for column in zip(*parts, strict=True)])
    assert looks_uniform(total)
    assert max(map(abs, total)) > 2**62  # no bound of a manifest allows this


def test_a_proxy_that_adds_up_fewer_owners_opens_nothing() -> None:
    study = Study([values_of(owner) for owner in range(3)], blinded=True)
    some = study.sent[:2]
    added = study.suite.add(unsalted(each.chunk) for each in some)
    seen = study.suite.open_sum(study.secret.to_bytes(), [added], [each.said for each in some])
    assert looks_uniform(whole_numbers(seen))
    whole = study.suite.add(unsalted(each.chunk) for each in study.sent)
    opened = study.suite.open_sum(study.secret.to_bytes(), [whole], [each.said for each in study.sent])
    assert whole_numbers(opened) == [sum(column) for column in zip(*map(values_of, range(3)), strict=True)]
    assert decode(whole).nbytes == 8 * COUNT
