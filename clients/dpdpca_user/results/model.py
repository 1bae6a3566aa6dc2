"""A fitted model: the components, the terms of their study, and digests of the signed statements behind them.

On disk a model is one `.npz` file with numeric arrays, and with JSON text in the array `metadata`. A model
file is read without pickle, so a malicious file can do no more than be refused.
"""

import io
import json
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

import numpy as np

from dpdpca_protocol.errors import ConflictError, DpdpcaError, MessageError
from dpdpca_protocol.result.components import Components, EncodedSpace
from dpdpca_protocol.result.publication import encode_components, read_components
from dpdpca_protocol.terms.feature_list import LIST_LIMIT_BYTES, encode_features, lists_of, no_lists
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_protocol.terms.statements import privacy_figures, privacy_statements, result_guarantee
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire.canonical import check_growth
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_user.results.correlation import CorrelationComponents, correlation_components
from dpdpca_user.results.gaps import unseen_gaps
from dpdpca_user.results.moments import Moments
from dpdpca_user.results.reliability import CLIPPING_IS_NOT_SEEN, Reliability
from dpdpca_user.results.wide.notes import RoundCount, no_matrix, notes

MODEL_FORMAT = 1
_FEATURE_LIST = "feature_list"
"""The member of a model file with the list of features that the manifest names."""
_MOST_BYTES = {
    "components": COMPONENTS_LIMIT_BYTES,
    "metadata": 64 * 1024 * 1024,
    _FEATURE_LIST: LIST_LIMIT_BYTES,
}
_MAX_GROWTH_BYTES = 256 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Contribution:
    """An owner in the release: its id, the name that it chose, and its share's version and digest."""

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
    """Where a model comes from, as digests of signed statements, and how long each step took.

    Attributes:
        manifest, release, cohort: digests in lower-case hex.
        owners: the owners of the release.
        trail: the proxy's signed events.
        seconds: for each step, seconds on the data user's machine.
        software: what the proxy says that it ran, in words; None if the release names nothing.
        rounds: the rounds of the chain before this one, oldest first, if this is a lift or scores.
    """

    manifest: str
    release: str
    cohort: str
    owners: tuple[Contribution, ...]
    trail: tuple[TrailEntry, ...]
    seconds: Mapping[str, float]
    software: str | None = None
    rounds: tuple[RoundCount, ...] = ()

    @classmethod
    def parse(cls, untrusted: Mapping[str, Any]) -> Self:
        return cls(
            str(untrusted["manifest"]),
            str(untrusted["release"]),
            str(untrusted["cohort"]),
            tuple(Contribution(**owner) for owner in untrusted["owners"]),
            tuple(TrailEntry(**entry) for entry in untrusted["trail"]),
            {str(step): float(seconds) for step, seconds in untrusted["seconds"].items()},
            None if untrusted.get("software") is None else str(untrusted["software"]),
            tuple(
                RoundCount(str(each["release"]), int(each["records"])) for each in untrusted.get("rounds", ())
            ),
        )


@dataclass(frozen=True)  # with slots, Python before 3.11.4 puts its own __getstate__ in the place of ours
class Model:
    """What the data user's service serves and `FederatedPCA` wraps.

    Attributes:
        in_clear: whether the model was made to be published in clear. Such a model contains a second draw of
            noise, by the data user, if the proxy drew the first one.
        reliability: how reliable the components are; None in older files, which lack this figure.
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
        file, listed = io.BytesIO(), {}
        if self.manifest.feature_list is not None:
            listed[_FEATURE_LIST] = _text_array(encode_features(self.manifest.features).decode())
        np.savez_compressed(
            file,
            allow_pickle=False,
            metadata=_text_array(json.dumps(metadata)),
            components=np.frombuffer(encode_components(self.study, components), np.uint8),
            # The same numbers again as plain arrays, for readers that use only NumPy.
            vectors=components.vectors,
            captured_variance=components.captured,
            eigenvalues=components.eigenvalues,
            noise_edges=components.noise_edges,
            origin=components.origin,
            scale=space.scale,
            names=np.array(space.names),
            **listed,
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, untrusted: bytes) -> Self:
        """Read a model from a `.npz` file.

        Raises:
            MessageError: the file is not a model file, or its parts contradict each other.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(untrusted)) as file:
                stated = _text(file, "metadata")
                check_growth(stated, _MAX_GROWTH_BYTES)
                metadata = json.loads(stated.decode())
                if metadata["format"] != MODEL_FORMAT:
                    raise MessageError(
                        "unsupported-version",
                        f"this version can only read model files of format {MODEL_FORMAT}",
                    )
                has_list = f"{_FEATURE_LIST}.npy" in file.namelist()
                manifest = parse_manifest(
                    metadata["manifest"], lists_of(_text(file, _FEATURE_LIST)) if has_list else no_lists
                )
                components = read_components(_text(file, "components"), manifest)
            provenance = Provenance.parse(metadata["provenance"])
            told = metadata.get("reliability")
            reliability = None if told is None else Reliability.parse(told, len(components.space.names))
            in_clear = metadata.get("in_clear", False)
            if type(in_clear) is not bool:
                raise MessageError("malformed", "in_clear must be true or false")
        except DpdpcaError:
            raise
        # NumPy and zipfile raise several of these for damaged files, such as an unknown compression.
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
        if (components.lifted is not None) != manifest.rules.is_wide:
            raise MessageError("malformed", "the components are not of the kind that the manifest releases")
        if components.space.names != EncodedSpace.of(manifest).names:
            raise MessageError("malformed", "the features of the components are not those of the manifest")
        return cls(manifest.study_id, manifest, components, provenance, in_clear, reliability)

    def __getstate__(self) -> bytes:
        """The model file: pickle and skops then keep the one format that is checked when it is read."""
        return self.to_bytes()

    def __setstate__(self, file: bytes) -> None:
        read = Model.from_bytes(file)
        for field in fields(self):
            object.__setattr__(self, field.name, getattr(read, field.name))

    @property
    def has_second_noise(self) -> bool:
        return self.in_clear and self.manifest.noise_by is NoiseBy.PROXY

    @property
    def is_of_pairs(self) -> bool:
        """Whether `components.count` counts pairs of records."""
        return self.manifest.rules.of_pairs

    @property
    def records(self) -> int:
        """How many records the result is about; pairs count twice."""
        return self.components.count * (2 if self.is_of_pairs else 1)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the components of a lift has to know; nothing for other components."""
        this = RoundCount(str(self.manifest.release), self.records)
        return notes(self.components, (*self.provenance.rounds, this))

    @property
    def is_wide(self) -> bool:
        """Whether the components come from a lift, not from a matrix of all features."""
        return self.manifest.rules.is_wide

    @property
    def privacy(self) -> dict[str, Any]:
        """The privacy claim as plain JSON; `claim` states it in words."""
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
            "records": self.records,
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
    def not_included(self) -> str:
        """Which records the figures are about, and what clipping and gaps did, as sentences for people."""
        reliability = self.reliability
        said = CLIPPING_IS_NOT_SEEN if reliability is None else reliability.about_clipping
        clipping = None if reliability is None else reliability.clipping
        if self.manifest.missing != "midpoint" or (clipping is not None and clipping.gaps is not None):
            return said
        return f"{said} {unseen_gaps(self.is_of_pairs)}"

    @property
    def correlation(self) -> CorrelationComponents | None:
        """Components of the correlation matrix, by post-processing.

        None if noise alone could have produced the release, for older files without the variances, and for
        a study with many features, which released no variances of features.
        """
        if self.reliability is None or self.is_wide:
            return None
        return correlation_components(self.components, self.reliability)

    @property
    def released_figures(self) -> Figures:
        """The figures of the manifest, with all draws of noise that the model contains."""
        figures = self.manifest.figures
        return replace(figures, draws=2) if self.has_second_noise else figures

    @property
    def moments(self) -> Moments:
        """What the release says about covariances, correlations and means.

        Raises:
            ConflictError: `model-too-old`, the model has no reliability figures; `no-correlation`, the study
                has many features and released no matrix of them.
        """
        if self.is_wide:
            raise no_matrix()
        if self.reliability is None:
            raise ConflictError(
                "model-too-old",
                "this model was made before variances were kept, so it has no covariances",
                "fit the components again",
            )
        owners = len(self.provenance.owners)
        return Moments.of(self.components, self.reliability, self.released_figures, owners)

    def facts(self) -> dict[str, Any]:
        """The model as plain JSON: the answer of `GET /v1/models/{id}`."""
        components, space = self.components, self.components.space
        shares = [components.captured_share(k) for k in range(1, components.component_count + 1)]
        return {
            "study": self.study.hex(),
            "title": self.manifest.title,
            "records": self.records,
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
            "not_included": self.not_included,
            "variance_kind": components.variance_kind,
            "variance_deviations": _deviations(components),
            "notes": list(self.notes),
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


def _deviations(components: Components) -> list[float] | None:
    lifted = components.lifted
    return None if lifted is None or lifted.deviations is None else lifted.deviations.tolist()


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
    """The privacy claim, and against whom it holds. The claim is printed with every result."""
    manifest = model.manifest
    promised = _promised(manifest)
    if manifest.noise_by is NoiseBy.OWNERS:
        return f"{promised}{_drawn_by_owners(manifest)} The components may be published in clear."
    if model.has_second_noise:
        return (
            f"{promised}, and against the proxy too. Besides the proxy's noise, everything that is shown "
            "carries a second, independent draw from the same distribution, which the data user's software "
            "made. Each draw alone gives this guarantee. The components may be published in clear."
        )
    return (
        f"{promised}. The guarantee holds against the proxy only while the proxy does not see the"
        " components: because it knows its noise, it could compute exact, non-private figures from them."
        " Therefore the components are sent to the owners sealed."
    )


def claim_of_numbers(manifest: Manifest) -> str:
    """The privacy claim of a pre-study, whose numbers become part of terms that all parties read."""
    if manifest.noise_by is NoiseBy.OWNERS:
        return f"{_promised(manifest)}{_drawn_by_owners(manifest)}"
    return (
        f"{_promised(manifest)}, and against the proxy too. Besides the proxy's noise, the numbers carry a "
        "second, independent draw from the same distribution, which the data user's software made before it "
        "read them. Each draw alone gives this guarantee."
    )


def _drawn_by_owners(manifest: Manifest) -> str:
    colluding = manifest.max_colluding
    together = (
        " Because the study is blinded, the guarantee holds even if the proxy, the data user and"
        f" {_owners(colluding)} work together."
    )
    return (
        ", and against the proxy too, which knows none of the noise. The owners drew the noise: it is enough"
        f" that {manifest.min_owners - colluding} of them did so and kept it secret; up to {colluding} may"
        f" reveal their noise.{together if manifest.is_blinded else ''}"
    )


def _owners(count: int) -> str:
    return "one owner" if count == 1 else f"{count} owners"


def _promised(manifest: Manifest) -> str:
    guarantee, alone = result_guarantee(manifest), manifest.figures.guarantee
    strength = f"({float(guarantee.epsilon):.6g}, {float(guarantee.delta):.3g})"
    total = ""
    if manifest.rho_share < 1:
        total = (
            " over all rounds of its chain of studies, because the terms of later rounds are computed from"
            f" the results of earlier ones (this round by itself: {alone})"
        )
    return (
        f"Each record has {strength}-differential privacy{total}. The relation is {guarantee.relation}, and "
        "the number of records is public. The guarantee holds against the data user and everybody who sees "
        "the result"
    )


def assumptions(model: Model) -> tuple[str, ...]:
    """The assumptions of the claim."""
    manifest = model.manifest
    second = (
        "Against the proxy: the data user's software keeps neither its own draw nor any result without it.",
    )
    sealed = (
        "Against the proxy: no owner of the study works with the proxy. Each owner receives the components,"
        " with which the proxy could compute exact figures.",
    )
    masked = manifest.rules.is_masked
    colluding = _owners(manifest.max_colluding)
    draw = (
        f"At least {manifest.min_owners - manifest.max_colluding} owners of the cohort add their part of the "
        "noise as the manifest requires, and keep it secret.",
    )
    honesty = (
        "Every owner is honest, and none colludes with the data user. One false share would show the data "
        "user the exact sums over all owners."
        if masked
        else "Owners clip their records as the manifest requires. If an owner does not clip, the "
        "guarantee fails for that owner's records only."
    )
    count = (
        "The proxy learns the number of records, because the data user proves it before any noise is drawn."
        if masked
        else "The data user's software checks the number of records only after the release, so min_records "
        "protects nobody from the data user."
    )
    return (
        "The owners hold each other's genuine keys for blinding. The proxy, the data user and up to"
        f" {colluding} may then work together."
        if manifest.is_blinded
        else "The proxy and the data user do not work together. Together they can undo all protection.",
        *(draw if manifest.noise_by is NoiseBy.OWNERS else ()),
        *(second if model.has_second_noise else ()),
        *(sealed if manifest.noise_by is NoiseBy.PROXY and not model.has_second_noise else ()),
        honesty,
        count,
        "The guarantee protects one record. Totals of one owner are hidden only by the noise: if the cohorts "
        "of two studies differ by one owner, their results reveal that owner's part.",
        "The privacy costs of several studies on the same records add up.",
    )


def _text_array(text: str) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return np.frombuffer(text.encode(), dtype=np.uint8)


def _text(file: zipfile.ZipFile, name: str) -> bytes:
    """The text in the array `name`. No more is unpacked than the file declares, and that has a limit."""
    stored, text = file.getinfo(f"{name}.npy"), io.BytesIO()
    if stored.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("not compressed as NumPy does it")
    if stored.file_size > _MOST_BYTES[name]:
        raise ValueError("larger than a text may be")
    with file.open(stored) as member:
        if np.lib.format.read_magic(member) != (1, 0):
            raise ValueError("not a text array as NumPy writes it")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        shutil.copyfileobj(member, text, _PIECE_BYTES)
    if dtype != np.uint8 or shape != (text.tell(),):
        raise ValueError("not a text array")
    return text.getvalue()
