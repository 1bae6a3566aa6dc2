"""What is unusual about an owner's data and yet admitted, a sentence each. Shown to the owner, never sent."""

from collections.abc import Sequence

from dpdpca_protocol.records.block_sums import BlockSums
from dpdpca_protocol.records.encoding import BatchReport
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.terms.manifest import Manifest

_SHOWN = 5


def notes_on(
    names: Sequence[str],
    places: Sequence[int],
    manifest: Manifest,
    sums: SecondMoments | BlockSums,
    report: BatchReport,
) -> tuple[str, ...]:
    """One sentence for each oddity.

    Args:
        names: of all columns of the data, as they stand there.
        places: for each feature of the manifest its position among `names`.
        manifest: of the study.
        sums, report: of all records that were read.
    """
    notes = []
    extra = len(names) - len(places)
    if extra:
        notes.append(f"{_counted(extra, 'column')} that the study does not ask for: left out")
    if list(places) != sorted(places):
        notes.append("the columns stand in another order than the manifest's: they are matched by name")
    if any(names[place] != feature.name for place, feature in zip(places, manifest.features, strict=True)):
        notes.append("some headers are written in another Unicode form or with spaces around: they match")
    if report.dropped:
        notes.append(f"{_counted(report.dropped, 'record')} with a missing value: left out")
    elif any(report.missing):
        missing = _counted(sum(report.missing), "missing value")
        notes.append(f"{missing}: the feature's centre counts in its place")
    if report.accepted == 1:
        notes.append("there is one record only: others' records and noise are all that hides it in the sums")
    elif isinstance(sums, SecondMoments):
        notes += _constant(manifest, sums)
    elif sums.has_pairs and report.accepted % 2:
        notes.append(
            "the number of records is odd: one of them, drawn by lot, has no partner and is left out"
        )
    return tuple(notes)


def _constant(manifest: Manifest, moments: SecondMoments) -> list[str]:
    """A note on features whose encoded columns are all the same in every record: N·Σz² = (Σz)²."""
    constant, column = [], 0
    for feature in manifest.features:
        columns = range(column, column + feature.width)
        column += feature.width
        if all(moments.count * int(moments.second_moment[j, j]) == int(moments.sum[j]) ** 2 for j in columns):
            constant.append(f"'{feature.name}'")
    if not constant:
        return []
    rest = f" and {len(constant) - _SHOWN} more" if len(constant) > _SHOWN else ""
    return [f"the same in every record: {', '.join(constant[:_SHOWN])}{rest}"]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
