"""Small studies whose release is compared with the exact sums, where the noise is 0."""

from proxy_world import OpenStudy, values_of
from store_checks import row_of

from dpdpca_protocol.layout.packing import symmetric_rows

VALUES = [values_of(3, seed) for seed in range(3)]
"""Of three owners, with three features."""


def deliver_all(study: OpenStudy) -> None:
    for owner, values in zip(study.world.owners, VALUES, strict=True):
        study.deliver(owner, values)


def answer(study: OpenStudy) -> None:
    """Proves the number of records, if the study asks for it and has no answer yet."""
    if study.manifest.release == "masked" and row_of(study).records is None:
        study.world.client(study.world.user).answer_count(study.study, study.count_answer(study.challenge()))


def check_exact(study: OpenStudy) -> None:
    """The release has the exact sums of all three owners."""
    scatter, said = study.open_release()
    count = sum(each.count for each in VALUES)
    sums = [sum(column) for column in zip(*(each.sums for each in VALUES), strict=True)]
    rows = symmetric_rows(3, [sum(column) for column in zip(*(each.upper for each in VALUES), strict=True)])
    expected = [[count * rows[i][j] - sums[i] * sums[j] for j in range(3)] for i in range(3)]
    assert (scatter.count, [list(row) for row in scatter.scaled_scatter]) == (count, expected)
    assert len(said.cohort) == 3
