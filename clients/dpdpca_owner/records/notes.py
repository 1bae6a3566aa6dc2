"""Notes about what is unusual but accepted in an owner's data. The notes are shown to the owner and never
sent."""

from collections.abc import Sequence

from dpdpca_protocol.records.block_sums import Sums
from dpdpca_protocol.records.encoding import BatchReport
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.terms.manifest import Manifest

_SHOWN = 5
_OFTEN = 20


def notes_on(
    names: Sequence[str],
    places: Sequence[int],
    manifest: Manifest,
    sums: Sums,
    report: BatchReport,
    *,
    has_units: bool = False,
) -> tuple[str, ...]:
    """One sentence for each unusual thing.

    Args:
        names: the names of all columns of the data, as they are in the data.
        places: for each feature of the manifest, its position in `names`.
        manifest: the study's manifest.
        sums, report: the sums and counts of all records that were read.
        has_units: whether the first record looks like a line of units.
    """
    notes = []
    extra = len(names) - len(places)
    if extra:
        notes.append(f"{_counted(extra, 'column')} left out, because the study does not ask for them")
    if list(places) != sorted(places):
        notes.append("the columns are in a different order from the manifest's; they are matched by name")
    if any(names[place] != feature.name for place, feature in zip(places, manifest.features, strict=True)):
        notes.append(
            "some column names differ from the manifest's in their Unicode form or in spaces at their ends;"
            " they are taken as equal"
        )
    often = _often_missing(manifest, report)
    if report.dropped:
        notes.append(f"{_counted(report.dropped, 'record')} left out, because a value is missing{often}")
    elif any(report.missing):
        missing = _counted(sum(report.missing), "missing value")
        notes.append(f"{missing} replaced by the centre of the feature{often}")
    if any(report.unusable):
        unusable = _counted(sum(report.unusable), "value")
        notes.append(
            f"{unusable} replaced by the centre of the feature, because they are text in a numeric column"
            f" or an unlisted level: {_by_feature(manifest, report)}; --strict would stop at the first one"
        )
    if has_units:
        notes.append(
            "the first record has a text in every column of numbers, and it counts as a record; if it is a"
            " line of units, add --header-lines 2"
        )
    notes += _advice(report)
    if report.accepted == 1:
        notes.append(
            "there is only one record: nothing but the noise and the records of other owners hides it in the"
            " sums"
        )
    elif isinstance(sums, SecondMoments):
        notes += _constant(manifest, sums)
    elif sums.has_pairs and report.accepted % 2:
        notes.append(
            "the number of records is odd: one record, chosen at random, has no partner and is left out"
        )
    return tuple(notes)


def _constant(manifest: Manifest, moments: SecondMoments) -> list[str]:
    """A note on features that have the same value in every record: N·Σz² = (Σz)² for all their columns."""
    constant, column = [], 0
    for feature in manifest.features:
        columns = range(column, column + feature.width)
        column += feature.width
        if all(moments.count * int(moments.second_moment[j, j]) == int(moments.sum[j]) ** 2 for j in columns):
            constant.append(f"'{feature.name}'")
    if not constant:
        return []
    rest = f" and {len(constant) - _SHOWN} more" if len(constant) > _SHOWN else ""
    return [f"features with the same value in every record: {', '.join(constant[:_SHOWN])}{rest}"]


def _often_missing(manifest: Manifest, report: BatchReport) -> str:
    """The end of a note, if features lack a value in more than one of twenty records."""
    counts = zip(manifest.features, report.missing, strict=True)
    often = [f"'{feature.name}'" for feature, count in counts if count * _OFTEN > report.records]
    if not often:
        return ""
    rest = f" and {len(often) - _SHOWN} more" if len(often) > _SHOWN else ""
    return f"; more than 5 % of the records lack a value in {', '.join(often[:_SHOWN])}{rest}"


def _advice(report: BatchReport) -> list[str]:
    """A note for each kind of unusable value about which the owner can do something."""
    kinds = dict.fromkeys(sorted((each for _, each in report.advised), key=lambda each: each.kind))
    notes = []
    for kind in kinds:
        counts = {name: count for (name, each), count in report.advised.items() if each == kind}
        names = ", ".join(f"'{name}'" for name in list(counts)[:_SHOWN]) + (
            f" and {len(counts) - _SHOWN} more features" if len(counts) > _SHOWN else ""
        )
        number = "1 value" if sum(counts.values()) == 1 else f"{sum(counts.values())} values"
        notes.append(f"{number} in {names}: {kind.kind}; {kind.next_step}")
    return notes


def _by_feature(manifest: Manifest, report: BatchReport) -> str:
    counts = zip(manifest.features, report.unusable, strict=True)
    found = [f"{count} in '{feature.name}'" for feature, count in counts if count]
    rest = f" and others in {len(found) - _SHOWN} more features" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + rest


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
