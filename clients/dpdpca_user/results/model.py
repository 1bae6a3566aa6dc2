"""A fitted model: the components, the terms they were bought under, and the paper trail that shows it.

On disk a model is one `.npz` file: numeric arrays, and a JSON text in the array `metadata`. It is read
without pickle, so a file from a stranger can at worst be refused.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from dpdpca_protocol.errors import DpdpcaError, MessageError
from dpdpca_protocol.result.components import Components, EncodedSpace
from dpdpca_protocol.result.publication import encode_components, parse_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_protocol.terms.statements import privacy_figures, privacy_statements, result_guarantee
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire.canonical import check_growth
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_user.results.correlation import CorrelationComponents, correlation_components
from dpdpca_user.results.reliability import CLIPPING_IS_NOT_SEEN, Reliability

MODEL_FORMAT = 1
_MEMBERS = ("components", "metadata")
_MAX_TEXT_BYTES = 64 * 1024 * 1024
_MAX_GROWTH_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Contribution:
    """An owner that is in the release: its id, its name (chosen by itself), and what it signed."""

    owner: str
    name: str
    version: int
    statement: str


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """One event of the proxy's signed transcript."""

    time: str
    kind: str
    digest: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a model comes from, as digests of signed statements, and how long its making took.

    Attributes:
        manifest, release, cohort: digests, lower-case hex.
        seconds: step → seconds on the data user's machine.
    """

    manifest: str
    release: str
    cohort: str
    owners: tuple[Contribution, ...]
    trail: tuple[TrailEntry, ...]
    seconds: Mapping[str, float]

    @classmethod
    def parse(cls, untrusted: Mapping[str, Any]) -> Self:
        return cls(
            str(untrusted["manifest"]),
            str(untrusted["release"]),
            str(untrusted["cohort"]),
            tuple(Contribution(**owner) for owner in untrusted["owners"]),
            tuple(TrailEntry(**entry) for entry in untrusted["trail"]),
            {str(step): float(seconds) for step, seconds in untrusted["seconds"].items()},
        )


@dataclass(frozen=True, slots=True)
class Model:
    """What the data user's service serves and `FederatedPCA` wraps.

    Attributes:
        in_clear: whether it was made to be published in clear: where the proxy drew the noise, the data user
            has added a second draw of it.
        reliability: how far to trust the components; None in files from before there was one.
    """

    study: StudyId
    manifest: Manifest
    components: Components
    provenance: Provenance
    in_clear: bool = False
    reliability: Reliability | None = None

    def to_bytes(self) -> bytes:
        """The `.npz` file."""
        metadata = {
            "format": MODEL_FORMAT,
            "manifest": self.manifest.to_body(),
            "provenance": asdict(self.provenance),
            "in_clear": self.in_clear,
            "reliability": None if self.reliability is None else self.reliability.to_body(),
        }
        components, space = self.components, self.components.space
        file = io.BytesIO()
        np.savez_compressed(
            file,
            allow_pickle=False,
            metadata=_text_array(json.dumps(metadata)),
            components=_text_array(encode_components(self.study, components).decode()),
            # The same numbers once more under plain names, for readers that know only NumPy.
            vectors=components.vectors,
            captured_variance=components.captured,
            eigenvalues=components.eigenvalues,
            noise_edges=components.noise_edges,
            origin=components.origin,
            scale=space.scale,
            names=np.array(space.names),
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, untrusted: bytes) -> Self:
        """The model in a `.npz` file.

        Raises:
            MessageError: not a model file, or one whose parts contradict each other.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(untrusted)) as file:
                texts = {name: _text(file, name) for name in _MEMBERS}
            check_growth(texts["metadata"], _MAX_GROWTH_BYTES)
            metadata = json.loads(texts["metadata"].decode())
            if metadata["format"] != MODEL_FORMAT:
                raise MessageError(
                    "unsupported-version", f"this version reads model files of format {MODEL_FORMAT} only"
                )
            manifest = parse_manifest(metadata["manifest"])
            components = parse_components(texts["components"], manifest.study_id)
            provenance = Provenance.parse(metadata["provenance"])
            told = metadata.get("reliability")
            reliability = None if told is None else Reliability.parse(told, len(components.space.names))
            in_clear = metadata.get("in_clear", False)
            if type(in_clear) is not bool:
                raise MessageError("malformed", "in_clear must be true or false")
        except DpdpcaError:
            raise
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OSError,
            EOFError,
            NotImplementedError,
            RuntimeError,
            zlib.error,
            zipfile.BadZipFile,
        ) as error:
            raise MessageError("malformed", "this is not a model file", "fetch it again") from error
        if components.space.names != EncodedSpace.of(manifest).names:
            raise MessageError("malformed", "the components name other features than the manifest")
        return cls(manifest.study_id, manifest, components, provenance, in_clear, reliability)

    @property
    def has_second_noise(self) -> bool:
        return self.in_clear and self.manifest.noise_by is NoiseBy.PROXY

    @property
    def is_of_pairs(self) -> bool:
        """Whether `components.count` counts pairs of records."""
        return self.manifest.rules.of_pairs

    @property
    def privacy(self) -> dict[str, Any]:
        """The claim in facts; `claim` puts it into words."""
        manifest, figures = self.manifest, self.manifest.figures
        guarantee, alone = result_guarantee(manifest), figures.guarantee
        is_round = manifest.rho_share < 1
        rho = figures.rho_total if is_round else figures.rho
        return {
            "calibration": manifest.calibration,
            "delta": float(guarantee.delta),
            "epsilon": float(guarantee.epsilon),
            "guarantee": str(guarantee),
            "mechanism": f"discrete {manifest.mechanism}, {manifest.release} release",
            "in_clear": self.in_clear or manifest.noise_by is NoiseBy.OWNERS,
            "noise_by": str(manifest.noise_by),
            "noise_draws": 2 if self.has_second_noise else 1,
            "records": self.components.count * (2 if self.is_of_pairs else 1),
            "relation": str(manifest.relation),
            "rho": float(rho),
            "round": {
                "delta": float(alone.delta),
                "epsilon": float(alone.epsilon),
                "rho": float(figures.rho),
                "rho_share": float(manifest.rho_share),
            }
            if is_round
            else None,
            "statements": list(privacy_statements(figures)),
            "study": self.study.hex(),
            **privacy_figures(figures),
        }

    @property
    def correlation(self) -> CorrelationComponents | None:
        """Components of the correlation matrix, by post-processing.

        None where noise alone could have made all that was released, and for files without the variances.
        """
        if self.reliability is None:
            return None
        return correlation_components(self.components, self.reliability)

    def facts(self) -> dict[str, Any]:
        """The model as plain JSON: what `GET /v1/models/{id}` answers."""
        components, space = self.components, self.components.space
        shares = [components.captured_share(k) for k in range(1, components.component_count + 1)]
        return {
            "study": self.study.hex(),
            "title": self.manifest.title,
            "records": components.count * (2 if self.is_of_pairs else 1),
            "pairs": components.count if self.is_of_pairs else None,
            "features": list(space.names),
            "metric": "original units" if space.common else "half-ranges of the features",
            "components": components.vectors.tolist(),
            "captured_variance": components.captured.tolist(),
            "eigenvalues": components.eigenvalues.tolist(),
            "noise_edge": components.noise_edge,
            "noise_edges": components.noise_edges.tolist(),
            "noise_scale": components.noise_scale,
            "predicted_overlaps": components.overlaps.tolist(),
            "labels": [components.label(index) for index in range(components.component_count)],
            "trusted_components": components.trusted_count,
            "captured_shares": [share for share, _ in shares],
            "captured_shares_are_bounds": [not is_estimate for _, is_estimate in shares],
            "reliability": None if self.reliability is None else self.reliability.to_body(),
            "not_included": CLIPPING_IS_NOT_SEEN,
            "correlation": _correlation_facts(self.correlation),
            "total_variance": components.total_variance,
            "mean": None if components.mean is None else components.mean.tolist(),
            "origin": components.origin.tolist(),
            "scale": space.scale.tolist(),
            "privacy": self.privacy,
            "claim": claim(self),
            "assumptions": list(assumptions(self)),
            "cohort": self.provenance.cohort,
            "owners": [asdict(owner) for owner in self.provenance.owners],
        }


def _correlation_facts(found: CorrelationComponents | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "denoised": found.denoised,
        "components": found.vectors.tolist(),
        "explained_variance": found.explained.tolist(),
        "deviations": found.deviations.tolist(),
        "scale": found.scale.tolist(),
    }


def claim(model: Model) -> str:
    """The privacy claim, with whom it holds towards: printed with every result."""
    manifest = model.manifest
    promised = _promised(manifest)
    if manifest.noise_by is NoiseBy.OWNERS:
        shares, colluding = manifest.min_owners - manifest.max_colluding, manifest.max_colluding
        return (
            f"{promised}, the proxy included, which knows none of the noise: the owners drew it, and it is "
            f"enough that {shares} of them did and told nobody, whatever {colluding} others give away. The "
            "components may be published in clear."
        )
    if model.has_second_noise:
        return (
            f"{promised}, the proxy included: beside its own noise, all that is shown carries a second, "
            "independent draw of the same law that the data user's software made, and each draw alone is "
            "enough. The components may be published in clear."
        )
    return (
        f"{promised}. Towards the proxy only while it does not see the components: with its own noise it "
        "could compute exact, non-private figures from them, so they go to the owners sealed."
    )


def claim_of_numbers(manifest: Manifest) -> str:
    """The privacy claim of a pre-study, whose numbers become terms that all parties read."""
    return (
        f"{_promised(manifest)}, the proxy included: beside its own noise the numbers carry a second, "
        "independent draw of the same law that the data user's software made before it read them, and each "
        "draw alone is enough."
    )


def _promised(manifest: Manifest) -> str:
    guarantee, alone = result_guarantee(manifest), manifest.figures.guarantee
    strength = (
        f"pure {float(guarantee.epsilon):.6g}"
        if guarantee.is_pure
        else f"({float(guarantee.epsilon):.6g}, {float(guarantee.delta):.3g})"
    )
    total = ""
    if manifest.rho_share < 1:
        total = (
            f" over all rounds of its chain of studies, whose results the terms of later ones are made of"
            f" (this round by itself: {alone})"
        )
    return (
        f"One record: {strength}-differential privacy{total}, relation {guarantee.relation}, the number of "
        "records public, towards the data user and whoever sees the result"
    )


def assumptions(model: Model) -> tuple[str, ...]:
    """What the claim rests on."""
    manifest = model.manifest
    second = ("Towards the proxy: the data user's software keeps neither its draw nor a result without it.",)
    masked = manifest.rules.is_masked
    draw = (
        f"At least {manifest.min_owners - manifest.max_colluding} owners of the cohort add their part of the "
        "noise as the manifest says, and keep it to themselves.",
    )
    honesty = (
        "Every owner is honest and none works with the data user: one false share would show the data "
        "user the exact sums of all."
        if masked
        else "Owners clip their records as the manifest says: an owner that does not voids the bound for its "
        "own rows only."
    )
    count = (
        "The proxy learns the number of records; the data user proves it before any noise is drawn."
        if masked
        else "The number of records is checked by the data user's software after the release: min_records "
        "protects nobody from the data user."
    )
    return (
        "Proxy and data user do not work together: together they can undo everything.",
        *(draw if manifest.noise_by is NoiseBy.OWNERS else ()),
        *(second if model.has_second_noise else ()),
        honesty,
        count,
        "The unit is one record. Totals of one owner are not protected beyond the noise; two studies whose "
        "owners differ by one show that owner's part.",
        "Budgets of several studies on the same records add up.",
    )


def _text_array(text: str) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return np.frombuffer(text.encode(), dtype=np.uint8)


def _text(file: zipfile.ZipFile, name: str) -> bytes:
    """The text in the array `name`; no more of it is unpacked than a text may be long."""
    stored = file.getinfo(f"{name}.npy")
    if stored.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("not as NumPy packs an array")
    with file.open(stored) as member:
        if np.lib.format.read_magic(member) != (1, 0):
            raise ValueError("not as NumPy writes a text array")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        text = member.read(_MAX_TEXT_BYTES + 1)
    if dtype != np.uint8 or shape != (len(text),) or len(text) > _MAX_TEXT_BYTES:
        raise ValueError("not a text array")
    return text
