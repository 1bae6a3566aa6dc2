"""The box at the top of the consent sheet: the little that somebody must know before they decide.

Every sentence is for people who know neither cryptography nor differential privacy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, Self

from dpdpca_owner.dry_run import DryRun
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.statements import best_guess_of
from dpdpca_protocol.terms.terms import NoiseBy

_MANY_CLIPPED = Fraction(1, 2)
_MANY_CLIPPED_IN_A_CHAIN = Fraction(19, 20)
"""A chain chooses its clip norm for its noise, and may shorten nine of ten records on purpose."""

_OPENED = (
    "It shows your exact number of records, and only your own part of the noise then protects your records."
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What the box says.

    Attributes:
        leaves: what leaves the machine.
        meaning: what ε means, with a number.
        chance: this number, rounded up.
        together: who would have to work together to learn more, one sentence each.
        warnings: what the owner should settle before it agrees. They decide nothing.
    """

    leaves: str
    meaning: str
    chance: Fraction
    together: tuple[str, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        sealed_bytes: int,
        compared: int,
        dry_run: DryRun | None,
        stops: Sequence[str],
    ) -> Self:
        """The box for a study.

        Args:
            manifest: the study's.
            sealed_bytes: how much leaves the machine, without the signed statement.
            compared: how many of the other named owners' words this owner has compared.
            dry_run: what the study would do to the owner's records, if they were read.
            stops: why this owner cannot join; empty if it can.
        """
        chance = best_guess_of(manifest)
        warnings = [*stops]
        if dry_run is not None:
            warnings += [*_about_clipping(manifest, dry_run), *dry_run.suspected_units]
        return cls(
            leaves=(
                f"Sums and counts over all your records, hidden in {sealed_bytes:,} bytes. No record, no"
                " single value and no file leaves this machine."
            ),
            meaning=_meaning(manifest, chance),
            chance=chance,
            together=tuple(_together(manifest, compared)),
            warnings=tuple(warnings),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "leaves": self.leaves,
            "meaning": self.meaning,
            "best_guess": float(self.chance),
            "together": list(self.together),
            "warnings": list(self.warnings),
        }


def percent_up(chance: Fraction) -> str:
    """A chance in per cent with one decimal, rounded up."""
    return f"{ceil(chance * 1000) / 10:.1f} %"


def _meaning(manifest: Manifest, chance: Fraction) -> str:
    of = "" if manifest.rho_share == 1 else " for all rounds together"
    return (
        f"ε = {float(manifest.epsilon):.6g}{of} means: even somebody who knows all other records has a chance"
        f" of at most {percent_up(chance)} of telling from the result which of two records you used. A coin"
        " toss has 50 %."
    )


def _together(manifest: Manifest, compared: int) -> Iterator[str]:
    user, proxy = manifest.user.name, manifest.proxy.name
    if manifest.is_blinded:
        yield from _together_if_blinded(manifest, compared)
    elif manifest.rules.is_masked:
        yield f"{user} and {proxy} together can open your exact sums."
        yield f"{user} and one owner together can compute the exact sums over all owners."
        yield f"{proxy} and one owner together can compute the exact sums over all owners."
    elif manifest.noise_by is NoiseBy.OWNERS:
        some = manifest.max_colluding
        tell = "one other owner tells its" if some == 1 else f"{some} other owners tell their"
        yield f"{user} and {proxy} together can open your share. {_OPENED}"
        yield (
            f"The chance above holds even if {tell} noise to {user} or {proxy}. It is larger if more owners"
            " do so."
        )
    else:
        yield f"{user} and {proxy} together can open your exact sums."
        if manifest.release.has_components and not manifest.needs_second_noise:
            yield f"{proxy} and one owner together can compute the exact sums over all owners."


def _together_if_blinded(manifest: Manifest, compared: int) -> Iterator[str]:
    user, proxy = manifest.user.name, manifest.proxy.name
    some, others = manifest.max_colluding, manifest.min_owners - 1
    yield f"{user} and {proxy}, even together, see only noisy sums over all owners."
    if some < others:
        up_to = "one other owner works" if some == 1 else f"up to {some} other owners work"
        yield (
            f"If {up_to} with them, they see noisy sums over the remaining owners. The chance above still"
            " holds."
        )
    all_others = {1: "the other owner works", 2: "both other owners work"}.get(
        others, f"all {others} other owners work"
    )
    holds = "The chance above still holds." if some >= others else "The chance above is then larger."
    yield f"If {all_others} with them, they can open your share. {_OPENED} {holds}"
    if compared < others:
        whom = f"{others - compared} of the {others} other owners" if compared else "any other owner"
        yield (
            f"You have not compared the words of {whom}. An owner whose words you have not compared may be"
            f" {user} itself."
        )


def _about_clipping(manifest: Manifest, dry_run: DryRun) -> Iterator[str]:
    """A warning if the clip norm shortens so many records that somebody may have erred."""
    report, of_pairs = dry_run.report, manifest.rules.of_pairs
    total = report.accepted // 2 if of_pairs else report.accepted
    many = _MANY_CLIPPED if manifest.rho_share == 1 else _MANY_CLIPPED_IN_A_CHAIN
    if not report.clipped or report.clipped < many * total:
        return
    what = "pairs of records" if of_pairs else "records"
    count = f"ALL {total:,}" if report.clipped == total else f"{report.clipped:,} of {total:,}"
    norm = f"the clip norm {float(manifest.clip_norm):.4g}"
    if manifest.rules.is_wide:
        yield (
            f"{count} {what} are longer than {norm} and would be shortened. Records with many features are"
            " often about equally long, and the chain may then shorten nearly all of them a little on"
            " purpose. If you expected something else, ask the data user before you join."
        )
        return
    yield (
        f"{count} {what} are longer than {norm} and would be shortened. The result would then show too"
        " little of how your records vary. The clip norm, the bounds or a centre may be wrong, or your"
        " units may differ from the study's. Ask the data user before you join."
    )
