"""Both suites have one interface, and give the sums of the integers that went in."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from reference_data import Seeded

from dpdpca_protocol.errors import CryptographicError, MessageError, UsageError
from dpdpca_protocol.layout.blocks import whole_numbers
from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.pads.streams import CHUNK_VALUES
from dpdpca_protocol.paillier.chunks import CHUNK_CIPHERTEXTS
from dpdpca_protocol.paillier.keys import KeyRules, generate_secret_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.suite import BegunShare, CohortShare, PadsSuite, PaillierSuite, Suite
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.salts import SALT_BYTES, unsalted

STUDY = StudyId.of(b"study")
OWNERS = [PartyId.of(name) for name in (b"a", b"b", b"c")]


@dataclass(frozen=True)
class Case:
    """A suite with two chunks, the second of five values, and the data user's secret."""

    suite: Suite
    secret: bytes
    count: int

    def values(self, seed: int) -> list[int]:
        """Up to 2⁵⁹ in absolute value."""
        words = np.frombuffer(Seeded(seed).bytes(8 * self.count), dtype="<i8")
        values: list[int] = (words >> 4).tolist()
        return values

    def share(self, owner: PartyId, version: int, values: Sequence[int]) -> tuple[list[bytes], CohortShare]:
        begun = self.suite.begin(owner, version, OS_RANDOMNESS)
        return self.chunks(begun, values), CohortShare(owner, version, begun.pad)

    def chunks(
        self, begun: BegunShare, values: Sequence[int], on_done: Callable[[int], None] = lambda count: None
    ) -> list[bytes]:
        make = self.suite.chunk_maker(begun.secrets, OS_RANDOMNESS)
        parts = ([values[at] for at in self.suite.chunk_values(i)] for i in range(2))
        return [bytes(make(i, part)(on_done)) for i, part in enumerate(parts)]

    def aggregate(self, shares: Sequence[list[bytes]]) -> list[bytes]:
        return [self.suite.add(unsalted(share[index]) for share in shares) for index in range(2)]


@pytest.fixture(scope="module")
def paillier() -> Case:
    secret = generate_secret_key(264, OS_RANDOMNESS, rules=KeyRules(264))
    count = 3 * CHUNK_CIPHERTEXTS + 5  # three slots
    return Case(PaillierSuite(secret.public, 72, count, CHUNK_CIPHERTEXTS + 2), secret.to_bytes(), count)


@pytest.fixture(scope="module")
def pads() -> Case:
    secret, count = PadsSecret.generate(OS_RANDOMNESS), CHUNK_VALUES + 5
    return Case(PadsSuite(secret.public, STUDY, count), secret.to_bytes(), count)


@pytest.fixture(params=["paillier", "pads"])
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(request.param)
    return found


def signed(value: int) -> int:
    """`value` modulo 2⁶⁴, as a signed integer."""
    return (value + 2**63) % 2**64 - 2**63


def words(contents: Sequence[bytes]) -> list[int]:
    """The padded values of all chunks."""
    found: list[int] = np.frombuffer(b"".join(contents), dtype="<u8").tolist()
    return found


# --- both suites ------------------------------------------------------------------------------------------


def test_a_release_opens_to_the_sums_of_all_owners_and_of_the_noise(case: Case) -> None:
    values, noise = [case.values(seed) for seed in range(3)], case.values(9)
    made = [case.share(owner, 1, each) for owner, each in zip(OWNERS, values, strict=True)]
    summed = case.aggregate([chunks for chunks, _ in made])
    noisy = [
        case.suite.add_known(content, [noise[at] for at in case.suite.chunk_values(index)])
        for index, content in enumerate(summed)
    ]
    cohort = [share for _, share in made]
    expected = [sum(column) for column in zip(*values, noise, strict=True)]
    assert whole_numbers(case.suite.open_sum(case.secret, noisy, cohort)) == expected
    with ThreadPoolExecutor(2) as threads:
        assert whole_numbers(case.suite.open_sum(case.secret, noisy, cohort, threads)) == expected


def test_chunks_cover_all_values_and_have_their_lengths(case: Case) -> None:
    suite = case.suite
    assert suite.chunk_count == 2
    ranges = [suite.chunk_values(index) for index in range(2)]
    assert [*ranges[0], *ranges[1]] == list(range(case.count))
    assert len(ranges[1]) == 5
    chunks, _ = case.share(OWNERS[0], 1, case.values(0))
    for index, chunk in enumerate(chunks):
        assert len(chunk) == SALT_BYTES + suite.chunk_bytes(index)
        suite.check_chunk(chunk, index, SALT_BYTES)
        suite.check_chunk(unsalted(chunk), index)
        for wrong in (chunk[:-1], chunk + b"\x00", unsalted(chunk)):
            with pytest.raises(MessageError):
                suite.check_chunk(wrong, index, SALT_BYTES)
    for index in (-1, 2):
        with pytest.raises(MessageError):
            suite.chunk_values(index)
        with pytest.raises(MessageError):
            suite.chunk_bytes(index)
        with pytest.raises(MessageError):
            suite.check_chunk(chunks[0], index, SALT_BYTES)


def test_the_same_chunks_are_made_again_where_a_suite_says_so(case: Case) -> None:
    begun, values = case.suite.begin(OWNERS[0], 1, OS_RANDOMNESS), case.values(0)
    again = case.chunks(begun, values) == case.chunks(begun, values)
    assert again == case.suite.is_repeatable
    other, _ = case.share(OWNERS[0], 2, values)
    assert not set(other) & set(case.chunks(begun, values))


def test_progress_counts_every_value_once(case: Case) -> None:
    done: list[int] = []
    case.chunks(case.suite.begin(OWNERS[0], 1, OS_RANDOMNESS), case.values(0), done.append)
    assert sum(done) == case.count
    assert min(done) > 0


def test_arrays_and_lists_are_the_same_values(case: Case) -> None:
    begun, values = case.suite.begin(OWNERS[0], 1, OS_RANDOMNESS), case.values(0)[-5:]
    array, make = np.array(values, dtype=np.int64), case.suite.chunk_maker(begun.secrets, OS_RANDOMNESS)
    listed, arrayed = make(1, values)(lambda count: None), make(1, array)(lambda count: None)
    assert (listed == arrayed) == case.suite.is_repeatable
    content = case.suite.add([unsalted(listed), unsalted(arrayed)])
    assert case.suite.add_known(content, values) == case.suite.add_known(content, array)


def test_a_chunk_of_another_number_of_values_is_not_made(case: Case) -> None:
    make = case.suite.chunk_maker(case.suite.begin(OWNERS[0], 1, OS_RANDOMNESS).secrets, OS_RANDOMNESS)
    halves: list[Any] = [0.5] * 5
    for wrong in (4, 6):
        with pytest.raises(UsageError):
            make(1, [0] * wrong)
    with pytest.raises(TypeError):
        make(1, halves)(lambda count: None)


def test_a_release_without_all_chunks_or_under_another_key_does_not_open(case: Case) -> None:
    chunks, share = case.share(OWNERS[0], 1, case.values(0))
    contents = [unsalted(chunk) for chunk in chunks]
    for wrong in (contents[:1], [*contents, contents[1]]):
        with pytest.raises(UsageError):
            case.suite.open_sum(case.secret, wrong, [share])
    if isinstance(case.suite, PadsSuite):
        other = PadsSecret.generate(OS_RANDOMNESS).to_bytes()
    else:
        other = generate_secret_key(264, OS_RANDOMNESS, rules=KeyRules(264)).to_bytes()
    with pytest.raises(UsageError):
        case.suite.open_sum(other, contents, [share])


def test_a_statement_has_a_pad_under_pads_alone(paillier: Case, pads: Case) -> None:
    member = pads.suite.begin(OWNERS[0], 1, OS_RANDOMNESS).pad
    assert paillier.suite.begin(OWNERS[0], 1, OS_RANDOMNESS).pad is None
    assert member is not None
    pads.suite.check_member(member)
    paillier.suite.check_member(None)
    for suite, wrong in (
        (paillier.suite, member),
        (pads.suite, None),
        (pads.suite, member[:-1]),
        (pads.suite, b""),
    ):
        with pytest.raises(MessageError):
            suite.check_member(wrong)


# --- pads: what a proxy may do ----------------------------------------------------------------------------


def test_whatever_a_proxy_releases_opens_to_the_sum_and_an_offset_that_it_knows(pads: Case) -> None:
    """The offset is the release minus the honest shares that the cohort names, which is uniform to others."""
    values = [pads.values(seed) for seed in range(2)]
    made = [pads.share(owner, 2, each) for owner, each in zip(OWNERS, values, strict=False)]
    older, _ = pads.share(OWNERS[0], 1, pads.values(7))
    (first, second), cohort = [chunks for chunks, _ in made], [share for _, share in made]
    whole = pads.aggregate([first, second])
    swapped = [whole[0][-320:] + whole[0][320:-320] + whole[0][:320], whole[1]]
    released = {
        "one share twice": pads.aggregate([first, first, second]),
        "an owner left out": pads.aggregate([second]),
        "one share as the cohort": pads.aggregate([first]),
        "an older version": pads.aggregate([older, second]),
        "values shifted": [content[8:] + content[:8] for content in whole],
        "places swapped": swapped,
    }
    honest = [[unsalted(chunk) for chunk in chunks] for chunks in (first, second)]
    true = [sum(column) for column in zip(*values, strict=True)]
    for what, contents in released.items():
        offsets = [y - a - b for y, a, b in zip(words(contents), *map(words, honest), strict=True)]
        opened = whole_numbers(pads.suite.open_sum(pads.secret, contents, cohort))
        assert opened == [signed(x + offset) for x, offset in zip(true, offsets, strict=True)], what
        assert opened != true
        assert max(map(abs, opened)) >= 2**62, what  # every bound on sums refuses it


def test_under_paillier_a_proxy_chooses_the_weights(paillier: Case) -> None:
    """Why claims on Paillier say: if the proxy adds up what it was sent, each share once."""
    values = [paillier.values(seed) for seed in range(2)]
    made = [paillier.share(owner, 1, each) for owner, each in zip(OWNERS, values, strict=False)]
    first, second = (chunks for chunks, _ in made)
    cohort = [share for _, share in made]

    def opened(contents: list[bytes]) -> list[int]:
        return whole_numbers(paillier.suite.open_sum(paillier.secret, contents, cohort))

    weighted = paillier.aggregate([first, first, second])
    assert opened(weighted) == [2 * a + b for a, b in zip(*values, strict=True)]
    assert opened(paillier.aggregate([first])) == values[0]
    # A ciphertext of three values in the place of the first, where the count is.
    honest, width = paillier.aggregate([first, second]), 2 * 264 // 8
    moved = opened([honest[0][width:] + honest[0][:width], honest[1]])
    exact = [sum(column) for column in zip(*values, strict=True)]
    assert moved[:3] == exact[3:6]


def test_a_pad_of_another_owner_version_or_study_ends_the_release_by_its_owners_name(pads: Case) -> None:
    chunks, share = pads.share(OWNERS[0], 1, pads.values(0))
    other, others = pads.share(OWNERS[1], 1, pads.values(1))
    contents = pads.aggregate([chunks, other])
    elsewhere = PadsSuite(PadsSecret.from_bytes(pads.secret).public, StudyId.of(b"another"), pads.count)
    for wrong in (
        replace(others, pad=share.pad),
        replace(others, version=2),
        replace(others, pad=elsewhere.begin(OWNERS[1], 1, OS_RANDOMNESS).pad),
        replace(others, pad=None),
    ):
        with pytest.raises(CryptographicError) as caught:
            pads.suite.open_sum(pads.secret, contents, [share, wrong])
        assert OWNERS[1].hex() in caught.value.problem


def test_secrets_of_a_share_show_nothing(pads: Case) -> None:
    begun = pads.suite.begin(OWNERS[0], 1, OS_RANDOMNESS)
    assert repr(begun) == "BegunShare(…)"
    assert len(begun.secrets) == 64
