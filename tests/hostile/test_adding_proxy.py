"""A proxy that adds up something else than the cohort's shares, each once, gains nothing under pads.

Whatever it does, the data user reads the honest owners' values plus an offset. The proxy, with an owner that
works for it, can compute this offset from what it had before, so it depends on no honest record.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray
from pad_streams import chunk_pads
from promises import Promise
from study_parties import PADS_SECRET, MakeManifest

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.layout.blocks import whole_numbers
from dpdpca_protocol.pads.keys import ShareKeys
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.suite import BegunShare, Cohort, CohortShare, Suite
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import suite_of
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.salts import unsalted
from dpdpca_user_service.work import open_pre_study, open_release

Words = NDArray[np.uint64]

PART = 2
"""Values a chunk, so that even the four values of the pre-study take two chunks."""
OWNERS = [PartyId.of(b"owner %d" % number) for number in range(3)]
VALUES = [
    [40, 30, -7, 11, 90_000, 400, -800, 70_000, 200, 60_000],
    [35, 12, 9, -20, 80_000, -300, 500, 66_000, 100, 50_000],
    [25, -3, 4, 10, 50_000, 100, 200, 40_000, -60, 30_000],
]
"""Of the joint study: N, three sums and six second moments. The last owner works for the proxy."""
KINDS = {
    "joint": (range(10), {}),
    "pairs": ((0, *range(4, 10)), {}),
    "pre-study": (range(4), {"blocks": {"sum": "1"}}),
}
"""Which of the values a release has, and what else its draft says."""


@dataclass
class Played:
    """What the proxy has before the data user opens anything."""

    manifest: Manifest
    suite: Suite
    begun: list[BegunShare]
    values: list[list[int]]
    contents: list[list[bytes]]
    older: list[bytes]

    @property
    def cohort(self) -> Cohort:
        """What the bundle says, whatever was added up."""
        shares = (CohortShare(owner, 2, begun.pad) for owner, begun in zip(OWNERS, self.begun, strict=True))
        return Cohort(tuple(shares), Digest.of(b"cohort"))

    def added(self, shares: Sequence[Sequence[bytes]]) -> list[Words]:
        return [
            words(self.suite.add(share[index] for share in shares)) for index in range(self.suite.chunk_count)
        ]

    def result(self, sent: Sequence[Words], cohort: Cohort | None = None) -> bytes:
        """What the product's own opening makes of a release."""
        chunks = [part.tobytes() for part in sent]
        body, secret = self.manifest.to_body(), PADS_SECRET.to_bytes()
        if self.manifest.release == "pre-study":
            return str(open_pre_study(secret, body, chunks, cohort or self.cohort)[0]).encode()
        return open_release(secret, body, chunks, None, cohort or self.cohort, False).components

    def read(self, sent: Sequence[Words]) -> list[int]:
        """The values that the data user reads."""
        chunks = [part.tobytes() for part in sent]
        return whole_numbers(self.suite.open_sum(PADS_SECRET.to_bytes(), chunks, self.cohort.shares))

    def offset(self, sent: Sequence[Words]) -> list[int]:
        """θ: what was sent, less the honest chunks and the pads of the owner that works for the proxy."""
        key = ShareKeys.from_bytes(self.begun[2].secrets).pad
        found: list[int] = []
        for index, part in enumerate(sent):
            rest = part - words(self.contents[0][index]) - words(self.contents[1][index])
            found += (rest - chunk_pads(key, index, len(part))).tolist()
        return found


def words(content: bytes) -> Words:
    return np.frombuffer(content, dtype="<u8")


def signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


@pytest.fixture(params=[(release, noise_by) for release in KINDS for noise_by in ("proxy", "owners")])
def played(
    make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Played:
    monkeypatch.setattr("dpdpca_protocol.pads.chunks.CHUNK_VALUES", PART)
    release, noise_by = request.param
    chosen, terms = KINDS[release]
    colluding = {"max_colluding": 1} if noise_by == "owners" else {}
    manifest = make_manifest(release=release, suite="pads", noise_by=noise_by, **colluding, **terms)
    suite = suite_of(manifest)
    all_values = [[values[at] for at in chosen] for values in VALUES]
    begun = [suite.begin(owner, 2, OS_RANDOMNESS) for owner in OWNERS]
    older = suite.begin(OWNERS[0], 1, OS_RANDOMNESS)
    contents = [made(suite, each, values) for each, values in zip(begun, all_values, strict=True)]
    return Played(manifest, suite, begun, all_values, contents, made(suite, older, all_values[0]))


def made(suite: Suite, begun: BegunShare, values: Sequence[int]) -> list[bytes]:
    make = suite.chunk_maker(begun.secrets, OS_RANDOMNESS)
    parts = [values[at.start : at.stop] for at in map(suite.chunk_values, range(suite.chunk_count))]
    return [unsalted(make(index, part)(lambda count: None)) for index, part in enumerate(parts)]


def honest(played: Played) -> list[Words]:
    return played.added(played.contents)


def times_three(played: Played) -> list[Words]:
    return [part * np.uint64(3) for part in honest(played)]


def shifted(played: Played) -> list[Words]:
    """Another value in the place of the count, which has no noise."""
    moved = np.roll(np.concatenate(honest(played)), -1)
    return [moved[start : start + PART] for start in range(0, len(moved), PART)]


def swapped(played: Played) -> list[Words]:
    first, second, *rest = honest(played)
    return [second, first, *rest]


def one_alone(played: Played) -> list[Words]:
    return played.added(played.contents[:1])


def left_out(played: Played) -> list[Words]:
    return played.added(played.contents[1:])


def counted_twice(played: Played) -> list[Words]:
    return played.added([*played.contents, played.contents[0]])


def older_version(played: Played) -> list[Words]:
    return played.added([played.older, *played.contents[1:]])


def of_one_and_a_half(played: Played) -> list[Words]:
    """The first chunk of one owner alone, the others of all."""
    return [*one_alone(played)[:1], *honest(played)[1:]]


Change = Callable[[Played], list[Words]]
CHANGES: list[Change] = [
    times_three, shifted, swapped, one_alone, left_out, counted_twice, older_version, of_one_and_a_half
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_another_sum_is_refused_and_differs_by_what_the_proxy_knew_before(
    played: Played, promise: Promise, change: Change
) -> None:
    sent = change(played)
    both = [sum(column) for column in zip(*played.values[:2], strict=True)]
    assert played.read(sent) == [
        signed(value + offset) for value, offset in zip(both, played.offset(sent), strict=True)
    ]
    with pytest.raises(CryptographicError):
        played.result(sent)
    kind = f"{played.manifest.release}, noise by the {played.manifest.noise_by}"
    promise(
        "P15",
        counted=f"a proxy that adds up {change.__name__}: {kind}",
        result="an offset that it knew",
    )


def test_an_honest_sum_has_the_offset_of_the_owner_that_works_for_the_proxy(played: Played) -> None:
    sent = honest(played)
    assert [signed(offset) for offset in played.offset(sent)] == played.values[2]
    assert played.read(sent) == [sum(column) for column in zip(*played.values, strict=True)]
    assert played.result(sent)


def test_a_chosen_offset_is_read_as_it_was_chosen(played: Played) -> None:
    sent = honest(played)
    sent[0] = sent[0] + np.array([5, 1], dtype=np.uint64)
    first, second = (sum(column) for column in list(zip(*played.values, strict=True))[:2])
    assert played.read(sent)[:2] == [first + 5, second + 1]
    assert played.result(sent) != played.result(honest(played))


@pytest.mark.parametrize("source", ["another owner", "another version", "another study"])
def test_a_copied_pad_ends_the_study_by_its_owners_name(played: Played, source: str) -> None:
    cohort, suite = played.cohort, played.suite
    elsewhere = suite_of(replace(played.manifest, title="Another"))
    pad = {
        "another owner": cohort.shares[0].pad,
        "another version": suite.begin(OWNERS[1], 1, OS_RANDOMNESS).pad,
        "another study": elsewhere.begin(OWNERS[1], 2, OS_RANDOMNESS).pad,
    }[source]
    shares = (cohort.shares[0], replace(cohort.shares[1], pad=pad), cohort.shares[2])
    with pytest.raises(CryptographicError, match=str(OWNERS[1])):
        played.result(honest(played), replace(cohort, shares=shares))
