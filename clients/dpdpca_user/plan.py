"""What a draft will bring before anybody is asked: noise, sizes and advice. No data, no key."""

from dataclasses import dataclass
from typing import Any

from dpdpca_protocol.manifest import Manifest
from dpdpca_protocol.mechanisms import Calibration
from dpdpca_protocol.statements import privacy_figures, privacy_statements, proved_privacy
from dpdpca_protocol.study import ReleaseKind

SECONDS_PER_CIPHERTEXT = 0.0015
"""One encryption at 3072 bits on one core, measured; with another key size the order of magnitude holds."""

_HIGH_CLIP = 0.7
_RULE_CLIP = 0.35


@dataclass(frozen=True, slots=True)
class Outlook:
    """One release at a number of records. Variances are in scaled units: half-ranges are 1.

    Attributes:
        statements, privacy: what is proved for the noise, what is claimed where it is as published, and the
            parts of δ; in words and in figures.
        noise: standard deviation of the noise on a variance.
        visible: the least eigenvalue that stands out from the noise (away from the mean, if joint).
        share_bytes: what an owner sends.
        seconds: what an owner computes, roughly, on one core.
    """

    release: ReleaseKind
    statements: tuple[str, ...]
    privacy: dict[str, Any]
    noise: float
    visible: float
    ciphertexts: int
    share_bytes: int
    seconds: float

    def facts(self) -> dict[str, Any]:
        return {
            "release": str(self.release),
            "privacy": list(self.statements),
            **self.privacy,
            "noise_on_a_variance": self.noise,
            "least_visible_eigenvalue": self.visible,
            "ciphertexts_per_owner": self.ciphertexts,
            "bytes_per_owner": self.share_bytes,
            "minutes_per_owner": self.seconds / 60,
        }


def outlook(manifest: Manifest, records: int) -> Outlook:
    """What `manifest` brings at N = `records`."""
    figures = manifest.figures
    d = figures.encoded_features
    # Where owners draw there is more noise with each: what is shown is the most.
    law, factor = figures.law(records, manifest.max_owners), figures.mechanism.factor(records)
    unit = 1 / figures.grid**2 / max(records - 1, 1) / factor
    return Outlook(
        release=manifest.release,
        statements=privacy_statements(figures),
        privacy=privacy_figures(figures),
        noise=float(law.diagonal) ** 0.5 * unit,
        visible=2 * float(law.off_diagonal * d) ** 0.5 * unit * (1 + d ** (-2 / 3)),
        ciphertexts=figures.ciphertext_count,
        share_bytes=figures.share_bytes,
        seconds=figures.ciphertext_count * SECONDS_PER_CIPHERTEXT,
    )


def advice(manifest: Manifest, records: int | None = None) -> list[str]:
    """Sentences for whoever writes the draft; none of them stops a study."""
    figures = manifest.figures
    d = figures.encoded_features
    r, most = float(manifest.clip_norm), d**0.5
    said = []
    if r > _HIGH_CLIP * most:
        said.append(
            f"clip_norm {r:.3g} is above 0.7·√{d} = {_HIGH_CLIP * most:.3g}: noise grows with its square; "
            f"without a better idea take 0.35·√{d} = {_RULE_CLIP * most:.2g}, or half of it"
        )
    from_zero = [
        f"{feature.name} {float(feature.origin):g}"
        for feature in manifest.features
        if feature.lower == 0 and feature.centre is None
    ]
    if from_zero:
        said.append(
            "are these typical values, as the middle of bounds that begin at 0: "
            f"{', '.join(from_zero[:20])}? Where not, give a centre; for counts it is often near 0"
        )
    if manifest.missing == "reject":
        said.append(
            "missing = reject: which records are complete is treated as public; midpoint keeps every record"
        )
    if manifest.release is ReleaseKind.MASKED:
        said.append(
            "the masked release has 2 to 4 times the noise of the joint one at the same ε, needs a count "
            "round, and trusts every owner; the joint release gives a private mean too"
        )
    if not manifest.participants:
        said.append("no participants are named: any enrolled owner may join; naming them is the safer form")
    epsilon, _ = proved_privacy(manifest)
    if manifest.calibration is Calibration.AS_PUBLISHED:
        said.append(
            f"as published: not the ε = {float(manifest.epsilon):g} of the draft is proved, but "
            f"{figures.guarantee}; owners refuse it unless their policy names it"
        )
    if epsilon is not None and epsilon > 3:
        said.append(f"ε = {float(epsilon):g} is a weak promise to one record")
    if records is not None and records > manifest.max_records:
        said.append(f"{records} records are more than max_records, {manifest.max_records}")
    return said
