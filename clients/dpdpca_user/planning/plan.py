"""Forecasts the noise, the records needed and the sizes of a study from its draft, without data or a key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.result.components import finite_size_factor
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.release_rules import WIDE
from dpdpca_protocol.terms.statements import privacy_figures, privacy_statements
from dpdpca_protocol.wire.fields import real_of
from dpdpca_user.planning.draft import with_noise_by_proxy
from dpdpca_user.planning.noise import (
    FIRST_SHARES,
    SAFETY,
    TOO_CLOSE,
    clip_quantile,
    components_seen,
    least_records,
    noise_over_signal,
    shares_of,
    usual_norm,
)
from dpdpca_user.planning.placement import Placement, placements
from dpdpca_user.planning.rounds import rounded_down

RELEASES = tuple(kind for kind in ReleaseKind if kind.has_components and kind not in WIDE)
"""The releases that a single study can have."""
SECONDS_PER_CIPHERTEXT = 0.0015
"""Measured time of one encryption at 3072 bits on one core; a rough guide for other key sizes."""
SECONDS_PER_PADDED_VALUE = 5e-8
"""Measured time of padding, hashing and sealing one value on one core."""

_CHAIN_MEMBERS = ("blocks", "rho_share", "pre_studies", "of", "sketch", "lift", "scores")


@dataclass(frozen=True, slots=True)
class Sight:
    """What a release would show of records that lie as assumed.

    Attributes:
        release: the kind of release; for a chain, the one that it would end with.
        clipped: the share of records that would be clipped; of differences, if records are paired.
        kappa: κ, by which the records needed grow if the centres are far from the means, or records long.
        least_records: for each share of the first component, the records needed to find it with cos² 0.9.
        components_seen: how many components of the given spectrum would be above the noise.
    """

    release: ReleaseKind
    clipped: float
    kappa: float
    least_records: Mapping[float, int]
    components_seen: int | None

    def facts(self) -> dict[str, Any]:
        return {
            "release": str(self.release),
            "clipped_share": self.clipped,
            "kappa": self.kappa,
            "least_records": {f"{share:g}": least for share, least in self.least_records.items()},
            "components_above_noise": self.components_seen,
        }


@dataclass(frozen=True, slots=True)
class Outlook:
    """The forecast for one release with a given number of records. Variances are in scaled units.

    Attributes:
        release: the kind of release.
        is_chain: whether a chain of studies ends with this release. Figures are then those of its last round
            if the centres of the draft are at the means. Bytes and time are those of all rounds.
        statements, privacy: what is proved for the noise, and the parts of δ; in words and as figures.
        clip_norm: r; for pairs, the bound on |y|/√2.
        usual_norm: the r to use if nothing is known about the data.
        noise: standard deviation of the noise of a variance.
        visible: smallest eigenvalue above the noise; in a joint release, for directions away from the mean.
        relative_noise: c, the noise of N·Σ in units of r²/√ρ.
        nu: ratio of the noise to the largest signal; it determines `quantile`.
        quantile: the quantile of the norms relative to the mean at which to clip.
        near, far: what would be seen if the centres are at the means, and if the means are half a range
            away from them in every feature.
        ciphertexts: number of Paillier ciphertexts of an owner; 0 under pads.
        share_bytes: number of bytes that an owner sends.
        seconds: rough computing time of an owner on one core.
    """

    release: ReleaseKind
    is_chain: bool
    statements: tuple[str, ...]
    privacy: dict[str, Any]
    clip_norm: float
    usual_norm: float
    noise: float
    visible: float
    relative_noise: float
    nu: float
    quantile: float
    near: Sight
    far: Sight
    ciphertexts: int
    share_bytes: int
    seconds: float

    @property
    def name(self) -> str:
        return "chain" if self.is_chain else str(self.release)

    def facts(self) -> dict[str, Any]:
        return {
            "release": str(self.release),
            "is_chain": self.is_chain,
            "privacy": list(self.statements),
            **self.privacy,
            "clip_norm": self.clip_norm,
            "clip_norm_without_data": self.usual_norm,
            "noise_on_a_variance": self.noise,
            "least_visible_eigenvalue": self.visible,
            "relative_noise": self.relative_noise,
            "nu": self.nu,
            "clip_quantile": self.quantile,
            "centres_at_means": self.near.facts(),
            "centres_far_off": self.far.facts(),
            "ciphertexts_per_owner": self.ciphertexts,
            "bytes_per_owner": self.share_bytes,
            "minutes_per_owner": self.seconds / 60,
        }


def outlook(
    manifest: Manifest,
    records: int,
    spectrum: Sequence[float] = (),
    assumed: tuple[Placement, Placement] | None = None,
) -> Outlook:
    """The forecast for `manifest` with N = `records`.

    Args:
        manifest: of any release except a pre-study.
        records: number of records in all, which is twice the number of pairs.
        spectrum: variances or shares of the components, if they are known.
        assumed: where the records lie about the centres of the manifest; default: `placements`.
    """
    figures = replace(manifest.figures, draws=2) if manifest.needs_second_noise else manifest.figures
    d, ciphertexts = figures.encoded_features, figures.ciphertext_count
    of_pairs = manifest.rules.of_pairs
    counted = max(records // 2, 1) if of_pairs else records
    # If owners draw the noise, each owner adds some, so the largest cohort shows the most noise.
    law, factor = figures.law(counted, manifest.max_owners), figures.mechanism.factor(counted)
    on_diagonal = float(law.diagonal) ** 0.5 / factor / figures.grid**2
    off_diagonal = float(law.off_diagonal) ** 0.5 / factor / figures.grid**2
    degrees = counted if of_pairs else max(counted - 1, 1)
    r = float(manifest.clip_norm) / (sqrt(2) if of_pairs else 1.0)
    # In units of N·r²: a pair has the variance of one record, and there are half as many pairs as records.
    noise = sqrt(2) * off_diagonal / r**2 * (records / counted if of_pairs else 1.0)
    nu = noise_over_signal(noise, d, 1.0, records)
    shares = (*FIRST_SHARES, *((shares_of(spectrum)[0],) if spectrum else ()))
    categorical = sum(feature.is_categorical for feature in manifest.features)
    near, far = assumed or placements(manifest.features, manifest.scaling, spectrum)

    def sight(records_lie: Placement) -> Sight:
        placed = replace(records_lie, offset=0.0) if of_pairs else records_lie
        kappa = placed.kappa(r)
        weight = float(manifest.sum_weight)
        offset = placed.offset_left(r) / (weight * r**2) if weight else 0.0
        return Sight(
            release=manifest.release,
            clipped=placed.share_longer(r),
            kappa=kappa,
            least_records={
                share: round(SAFETY * least_records(noise, share, d, 1.0, kappa, offset))
                for share in sorted(shares, reverse=True)
            },
            components_seen=components_seen(spectrum, noise, d, 1.0, records, kappa, offset)
            if spectrum
            else None,
        )

    return Outlook(
        release=manifest.release,
        is_chain=False,
        statements=privacy_statements(figures),
        privacy=privacy_figures(figures),
        clip_norm=r,
        usual_norm=usual_norm(len(manifest.features) - categorical, categorical),
        noise=on_diagonal / degrees,
        visible=2 * off_diagonal / degrees * d**0.5 * finite_size_factor(d),
        relative_noise=noise * float(figures.rho) ** 0.5,
        nu=nu,
        quantile=clip_quantile(nu),
        near=sight(near),
        far=sight(far),
        ciphertexts=ciphertexts,
        share_bytes=figures.share_bytes,
        seconds=ciphertexts * SECONDS_PER_CIPHERTEXT
        if ciphertexts
        else figures.value_count * SECONDS_PER_PADDED_VALUE,
    )


def check_enough(manifest: Manifest, seen: Outlook, records: int, spectrum: Sequence[float] = ()) -> None:
    """Refuse a study that cannot succeed, whatever the data: one with fewer records than half of N_min.

    N_min is the number of records that the first component of the spectrum needs. Without a spectrum, N_min
    is for a component with half of all variance. N_min assumes centres at the means, and records whose
    root-mean-square length is the clip norm.

    Raises:
        PolicyError: `too-few-records`.
    """
    share = shares_of(spectrum)[0] if spectrum else max(FIRST_SHARES)
    least = round(seen.near.least_records[share] / seen.near.kappa)
    if records < least / 2:
        raise PolicyError(
            "too-few-records",
            f"{records:,} records are too few for {manifest.figures.encoded_features} features at"
            f" ε = {float(manifest.epsilon):g}: the components would be noise"
            f" (a component with a share of {share:g} needs about {least:,} records)",
            "use fewer features, a larger ε, or a better centre; --anyway plans it nevertheless",
        )


def close_components(spectrum: Sequence[float]) -> str | None:
    """A warning if the first two components are too close to be told apart, else None."""
    shares = shares_of(spectrum) if spectrum else []
    if len(shares) > 1 and shares[1] > TOO_CLOSE * shares[0]:
        return (
            "the first two variances are close: their plane can be found, but finding the directions in it"
            " needs several times as many records"
        )
    return None


def width_of(draft: Mapping[str, Any]) -> int:
    """d of a draft that nobody has checked yet."""
    return sum(map(_width, _listed(draft)))


def _listed(draft: Mapping[str, Any]) -> list[Any]:
    features = draft.get("features")
    return features if isinstance(features, list) else []


def _width(feature: Any) -> int:
    levels = feature.get("levels") if isinstance(feature, Mapping) else None
    return len(levels) if isinstance(levels, list) else 1


def as_release(draft: Mapping[str, Any], release: ReleaseKind) -> dict[str, Any]:
    """The draft changed to another release, as a single study that spends the whole budget.

    In a masked study the proxy draws the noise, whatever the draft says.
    """
    had = draft.get("release")
    listed = _listed(draft)
    possible = with_noise_by_proxy(draft) if release is ReleaseKind.MASKED else draft
    changed = {name: value for name, value in possible.items() if name not in _CHAIN_MEMBERS}
    changed["release"] = str(release)
    if had != release:
        changed.pop("suite", None)  # not every release has every suite
        changed.pop("clip_cap", None)  # it goes with the clip norm, which changes too
    if "clip_norm" not in draft or had == ReleaseKind.PRE_STUDY:
        categorical = sum(isinstance(each, Mapping) and "levels" in each for each in listed)
        norm = usual_norm(len(listed) - categorical, categorical) or 1.0
        had = ReleaseKind.JOINT
    else:
        norm = float(real_of(draft["clip_norm"], "clip_norm"))
    if (release is ReleaseKind.PAIRS) != (had == ReleaseKind.PAIRS):
        # A norm up to √d, or up to 2√d for pairs, is always allowed, whatever the centres.
        root = sqrt(width_of(draft)) or norm
        pairs = release is ReleaseKind.PAIRS
        changed["clip_norm"] = rounded_down(
            min(norm * sqrt(2), 2 * root) if pairs else min(norm * sqrt(0.5), root)
        )
    elif "clip_norm" not in changed or draft.get("release") == ReleaseKind.PRE_STUDY:
        changed["clip_norm"] = rounded_down(norm)
    if release is ReleaseKind.PAIRS:
        changed["missing"] = "midpoint"
        changed.pop("sum_weight", None)
    if release is not ReleaseKind.MASKED:
        changed.pop("nonnegative", None)
    return changed
