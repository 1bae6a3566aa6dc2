"""What `lint` and `plan` say about a draft, for the commands and the service. Needs no key, proxy or data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.fields import read_choice
from dpdpca_user.planning.advice import advice, result_advice, sample_advice
from dpdpca_user.planning.choice import NextRound, norm_study
from dpdpca_user.planning.foresight import chain_outlook
from dpdpca_user.planning.lint import plain_json
from dpdpca_user.planning.listed import with_list
from dpdpca_user.planning.placement import placements
from dpdpca_user.planning.plan import (
    RELEASES,
    Outlook,
    as_release,
    check_enough,
    close_components,
    outlook,
    width_of,
)
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.planning.rounds import begin_chain, check_base, chosen_round, encoded_features, round_draft
from dpdpca_user.planning.wide import FULL_AT_MOST
from dpdpca_user.planning.wide_chain import PublishedLift, is_wide_chain, scores_round
from dpdpca_user.planning.wide_outlook import wide_outlook, wide_share_bytes

Complete = Callable[[Mapping[str, Any]], Manifest]
"""Returns the manifest that a draft would become, or raises the error with which parties would refuse it."""
Sample = Mapping[str, Column]
"""The columns of a sample, from `columns_of_sample`; not private data."""


def is_of_chain(base: Mapping[str, Any]) -> bool:
    """Whether a draft leaves the release to a chain."""
    return "release" not in base


def planned(base: Mapping[str, Any], complete: Complete) -> Manifest:
    """The manifest of the draft. If the draft leaves release or clip norm to a chain, the manifest of a joint
    study, or of the chain's norm study where a matrix of so many features cannot be asked for."""
    if "release" in base and "clip_norm" in base:
        return complete(base)
    if is_of_chain(base):
        if (d := width_of(base)) > FULL_AT_MOST:
            return complete(round_draft(base, norm_study(d)))
        base = {"missing": "midpoint", **base}  # as in every round of a chain
    release = read_choice(base.get("release", ReleaseKind.JOINT), "release", [*ReleaseKind])
    return complete(as_release(base, ReleaseKind(release)))


def lint_facts(
    base: Mapping[str, Any], complete: Complete, records: int | None, sample: Sample | None = None
) -> dict[str, Any]:
    """Figures of a valid draft, and advice on it, as plain JSON.

    Args:
        base: a draft; one without a release is the base of a chain.
        complete: makes the manifest of a draft.
        records: the expected number of records in all, if it is known.
        sample: a sample with which bounds and clip norm are compared.

    Raises:
        MessageError, PolicyError: the draft cannot become a manifest, or cannot be the base of a chain.
    """
    of_chain = is_of_chain(base)
    manifest = planned(base, complete) if of_chain else complete(base)
    if of_chain:
        check_base(base)
    d = manifest.figures.encoded_features
    is_wide = of_chain and is_wide_chain(base, d)
    said = advice(manifest, records, of_chain=of_chain)
    if sample is not None:
        said += sample_advice(manifest, sample, of_chain=of_chain)
    return {
        "release": None if of_chain else str(manifest.release),
        "encoded_features": d,
        "share_bytes": wide_share_bytes(base, d) if is_wide else manifest.figures.share_bytes,
        "advice": said,
    }


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast for a draft: for a chain, and for a single study of every release that it can have.

    Attributes:
        drafted: the manifest from `planned`.
    """

    records: int
    drafted: Manifest
    outlooks: tuple[Outlook, ...]
    advice: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "releases": [each.facts() for each in self.outlooks],
            "advice": list(self.advice),
        }


def forecast(
    base: Mapping[str, Any],
    complete: Complete,
    records: int,
    spectrum: Sequence[float] = (),
    sample: Sample | None = None,
    *,
    anyway: bool = False,
) -> Forecast:
    """The forecast for `base` with a given number of records.

    Args:
        base: a draft, which may leave release and clip norm open.
        records: number of records of all owners together.
        spectrum: variances or shares of the components, if they are known.
        sample: see `lint_facts`.
        anyway: make a forecast even if the components would be noise.

    Raises:
        MessageError, PolicyError: the study is not possible; `too-few-records` unless `anyway`.

    A chain for many features has no `Outlook`: the advice says what it would do.
    """
    drafted = planned(base, complete)
    of_chain = is_of_chain(base)
    outlooks, said = [], advice(drafted, records, of_chain=of_chain)
    if of_chain and is_wide_chain(base, drafted.encoded_features):
        said += wide_outlook(base, drafted, records, spectrum, anyway=anyway)
    else:
        try:
            assumed = placements(drafted.features, drafted.scaling, spectrum)
            outlooks.append(chain_outlook(base, complete, records, assumed, spectrum))
        except PolicyError as error:
            said.append(f"a chain of this draft is not possible: {error.problem}")
    for release in RELEASES:
        try:
            outlooks.append(outlook(complete(as_release(base, release)), records, spectrum))
        except PolicyError as error:
            said.append(f"a {release} release of this draft is not possible: {error.problem}")
    if sample is not None:
        said += sample_advice(drafted, sample, of_chain=of_chain)
    if close := close_components(spectrum):
        said.append(close)
    wanted = "chain" if of_chain else str(drafted.release)
    for seen in outlooks:
        if seen.name == wanted and not anyway:
            check_enough(drafted, seen, records, spectrum)
        few, many = seen.near.least_records[0.2], seen.far.least_records[0.2]
        if seen.name == wanted and records < many:
            said.append(
                f"a component with a fifth of all variance would need {few:,} records if the centres are at"
                f" the means, and {many:,} if the means are half a range away"
            )
    return Forecast(records, drafted, tuple(outlooks), tuple(said))


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A round of a chain that could be made next."""

    chosen: NextRound
    draft: dict[str, Any]
    manifest: Manifest
    advice: tuple[str, ...] = ()

    def naming_list(self, keep: Callable[[bytes], object]) -> Self:
        """The same round, whose draft names a list of features.

        Args:
            keep: stores the list. It is that of the base draft unless centres or scales have moved.
        """
        return replace(self, draft=with_list(self.draft, keep))

    def facts(self) -> dict[str, Any]:
        return {
            "release": str(self.chosen.release),
            "is_last": self.chosen.is_last,
            "rho_share": float(self.chosen.rho_share),
            "rho": float(self.manifest.figures.rho),
            "clip_norm": float(self.manifest.clip_norm),
            "blocks": {str(name): float(part) for name, part in self.chosen.blocks.items()},
            "reasons": list(self.chosen.reasons),
            "advice": list(self.advice),
            "draft": plain_json(self.draft),
        }


def first_of_chain(base: dict[str, Any], complete: Complete, records: int, scales: bool) -> PlannedRound:
    """The first round of a chain of `base`.

    Raises:
        MessageError, PolicyError: the draft cannot be the base of a chain.
    """
    chosen = begin_chain(base, complete, records, scales)
    draft = round_draft(base, chosen)
    return PlannedRound(chosen, draft, complete(draft))


def following_round(
    base: dict[str, Any],
    complete: Complete,
    results: Sequence[PreStudyResult],
    records: int | None,
    lift: PublishedLift | None = None,
) -> PlannedRound:
    """The round that follows those whose results are given, oldest first, and then a lift.

    Raises:
        MessageError, PolicyError, UsageError: as `next_round`, or the round is not possible.
    """
    check_base(base)
    if lift is None:
        chosen = chosen_round(base, results, OS_RANDOMNESS)
    else:
        chosen = scores_round(results, encoded_features(base), lift)
    said = result_advice(results)
    if records is not None and results[-1].records != records:
        said.append(
            f"the pre-study has {results[-1].records:,} records, not {records:,}; the plan uses the number of"
            " the pre-study"
        )
    draft = round_draft(base, chosen)
    return PlannedRound(chosen, draft, complete(draft), tuple(said))
