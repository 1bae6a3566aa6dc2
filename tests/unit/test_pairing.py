"""The order of pairing: from a secret and a number alone; and differences across batches."""

import numpy as np

from dpdpca_protocol.records.encoding import ABSENT
from dpdpca_protocol.records.pairing import KeyStream, differences, pairing_seed, shuffled
from dpdpca_protocol.wire.identifiers import StudyId

SEED, STUDY = bytes(range(32)), StudyId(bytes(32))


def test_a_stream_is_the_same_however_it_is_read() -> None:
    whole = KeyStream(SEED).take(100).tolist()
    stream = KeyStream(SEED)
    assert [*stream.take(1), *stream.take(0), *stream.take(63), *stream.take(36)] == whole
    assert KeyStream(bytes(32)).take(100).tolist() != whole


def test_the_seed_depends_on_secret_and_study() -> None:
    seeds = {pairing_seed(key, study) for key in (b"a", b"b") for study in (STUDY, StudyId(b"\x01" * 32))}
    assert len(seeds) == 4
    assert pairing_seed(b"a", STUDY) == pairing_seed(b"a", STUDY)


def test_orders_are_permutations_and_all_of_them_occur() -> None:
    stream = KeyStream(SEED)
    drawn = [tuple(shuffled(3, stream).tolist()) for _ in range(600)]
    counts = {order: drawn.count(order) for order in set(drawn)}
    assert len(counts) == 6
    assert all(sorted(order) == [0, 1, 2] for order in counts)
    assert 50 < min(counts.values()) <= max(counts.values()) < 160  # 100 ± 9


def test_differences_do_not_depend_on_batches_and_leave_an_odd_record_out() -> None:
    z = np.arange(33, dtype=np.int64).reshape(11, 3) ** 2
    expected = [(z[i] - z[i + 1]).tolist() for i in range(0, 10, 2)]
    for cuts in ([], [1], [3, 4, 9], list(range(1, 11))):
        found = [row.tolist() for y in differences(np.split(z, cuts)) for row in y]
        assert found == expected
    assert list(differences([z[:1]])) == []
    assert list(differences([])) == []


def test_a_coordinate_that_either_record_lacks_is_0() -> None:
    extreme = 2**62
    z = np.array(
        [[ABSENT, 5, 1], [extreme, ABSENT, 4], [ABSENT, 7, -extreme], [ABSENT, 9, 2]], dtype=np.int64
    )
    expected = [[0, 0, -3], [0, -2, -extreme - 2]]
    for cuts in ([], [1], [1, 3]):
        assert [row.tolist() for y in differences(np.split(z, cuts)) for row in y] == expected
