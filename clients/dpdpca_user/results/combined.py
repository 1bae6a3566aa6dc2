"""Several releases of disjoint records as one result.

Joint releases and releases of pairs are sums over records, so the sums of two studies add up, and so does
their noise. Each record is in one of the studies, and is protected by the guarantee of this study alone
(parallel composition). Nobody but the owners can know that their records are disjoint.

What clipping did, and how many values are missing, are sums over records too. The clip norm, the centres and
the grid are the same in all studies, so these numbers add up once their units are the same. If a study or its
file lacks them, nothing is corrected, and each study is described by itself.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpdpca_protocol.errors import ConflictError, UsageError
from dpdpca_protocol.layout.blocks import TOLD, BlockName
from dpdpca_protocol.privacy.mechanisms.interface import NoiseLaw
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import Components, EncodedSpace, fit_components
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.statements import result_guarantee
from dpdpca_user.results.clipping import ClippingFigures, squared_lengths
from dpdpca_user.results.model import Model
from dpdpca_user.results.moments import Moments
from dpdpca_user.results.reliability import Reliability, assess_release, rows_in_words

AGREEING = (
    "release",
    "features",
    "missing",
    "scaling",
    "clip_norm",
    "fraction_bits",
    "mechanism",
    "relation",
)
"""Members of manifests that must be equal: they define the grid and what is added up."""

_METADATA = ("studies", "records", "trusted_components", "reliability", "not_included", "by_study", "claim")


@dataclass(frozen=True, slots=True)
class SummedFigures(Figures):
    """The figures of the first study, with the noise and the records of all.

    Attributes:
        laws: of the noise in each release.
        counted: the most records, or pairs, that all studies together allow.
        told: the variances of the noise on the numbers about clipping and gaps, in the order of `TOLD`.
    """

    laws: tuple[NoiseLaw, ...] = ()
    counted: int = 0
    told: tuple[Fraction, ...] = ()

    @property
    def most_counted(self) -> int:
        return self.counted

    def law(self, count: int, owners: int | None = None) -> NoiseLaw:
        """The law of the sum of independent draws, whatever the arguments."""
        first, *rest = self.laws
        for law in rest:
            first = first.plus(law)
        return first

    def block_variance(self, name: BlockName, owners: int | None = None) -> Fraction:
        """The variance of the noise on the sum of a number about clipping or gaps, whatever `owners` is."""
        return self.told[TOLD.index(name)]


@dataclass(frozen=True, slots=True)
class Combination:
    """A result over the records of several studies.

    Attributes:
        models: of the studies, in the order in which they were given.
        components, reliability, moments: as for one release.
    """

    models: tuple[Model, ...]
    components: Components
    reliability: Reliability
    moments: Moments

    @property
    def claim(self) -> str:
        """The guarantee in words, and what it rests on."""
        weakest = max(
            (result_guarantee(model.manifest) for model in self.models), key=lambda each: each.epsilon
        )
        return (
            f"Each record has at least {weakest}, if it is in only one of these {len(self.models)} studies."
            " The owners of later studies state that their records are new; nobody else can check it. A"
            " record that is in several studies pays for each of them. The result of each study says against"
            " whom its guarantee holds."
        )

    def to_bytes(self) -> bytes:
        """An `.npz` file with plain arrays, for readers that use only NumPy; `metadata` has the claim, and
        what clipping did."""
        facts, components = self.facts(), self.components
        metadata = {name: facts[name] for name in _METADATA}
        arrays = {
            "vectors": components.vectors,
            "captured_variance": components.captured,
            "eigenvalues": components.eigenvalues,
            "noise_edges": components.noise_edges,
            "origin": components.origin,
            "scale": components.space.scale,
            "names": np.array(components.space.names),
            "metadata": np.frombuffer(json.dumps(metadata).encode(), dtype=np.uint8),
        }
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **arrays)
        return file.getvalue()

    def facts(self) -> dict[str, Any]:
        """The result as plain JSON."""
        components = self.components
        counts = [model.components.count for model in self.models]
        factor = 2 if self.models[0].is_of_pairs else 1
        return {
            "studies": [model.study.hex() for model in self.models],
            "records": sum(counts) * factor,
            "features": list(components.space.names),
            "components": components.vectors.tolist(),
            "captured_variance": components.captured.tolist(),
            "eigenvalues": components.eigenvalues.tolist(),
            "noise_edges": components.noise_edges.tolist(),
            "noise_scale": components.noise_scale,
            "labels": [components.label(index) for index in range(components.component_count)],
            "trusted_components": components.trusted_count,
            "total_variance": components.total_variance,
            "mean": None if components.mean is None else components.mean.tolist(),
            "reliability": self.reliability.to_body(),
            "not_included": self.reliability.about_clipping,
            "by_study": [_study_facts(model) for model in self.models],
            "claim": self.claim,
        }


def _study_facts(model: Model) -> dict[str, Any]:
    """What clipping did in one study, and how many values are missing; null for what is not told."""
    clipping = _clipping(model)
    gaps = None if clipping is None else clipping.gaps
    return {
        "study": model.study.hex(),
        "records": model.records,
        "clipped_share": None if clipping is None else clipping.share,
        "factor": None if clipping is None else clipping.factor,
        "missing_share": None if gaps is None else gaps.share,
    }


def combine(models: Sequence[Model], randomness: Randomness) -> Combination:
    """One result from the releases of several studies.

    Args:
        models: at least two, of different studies whose terms agree (`AGREEING`).
        randomness: for the intervals, which draw the known noise again.

    Raises:
        UsageError: a study is named twice, or there is one only.
        ConflictError: `cannot-combine`, the releases do not add up, or a member differs;
            `components-missing`, a model has not all d components.
    """
    _check(models)
    told = [_told(model) for model in models]
    summed, noisy = _figures_of(models), _sum_of(models)
    if all(told):
        summed = replace(summed, told=_told_variances(models))
        rows, squares, *gaps = (sum(numbers) for numbers in zip(*told, strict=True))
        noisy = replace(noisy, clipped=(rows, squares), gaps=gaps[0] if gaps else None)
    components = fit_components(noisy, summed, EncodedSpace.of(models[0].manifest))
    is_apart = not all(told) and any(model.manifest.clip_share for model in models)
    intervals = not (is_apart and any(map(_is_most, models)))
    reliability = assess_release(noisy, summed, components, randomness, intervals=intervals)
    if is_apart:
        reliability = replace(reliability, told_apart=_told_apart(models, intervals))
    return Combination(tuple(models), components, reliability, Moments.of(components, reliability, summed))


def _figures_of(models: Sequence[Model]) -> SummedFigures:
    figures = models[0].manifest.figures
    own = {each.name: getattr(figures, each.name) for each in fields(Figures)} | {"clip_shift": 0}
    return SummedFigures(
        **own,
        laws=tuple(model.released_figures.law(model.components.count, _owners_of(model)) for model in models),
        counted=sum(model.manifest.figures.most_counted for model in models),
    )


def _owners_of(model: Model) -> int:
    return len(model.provenance.owners)


def _clipping(model: Model) -> ClippingFigures | None:
    return None if model.reliability is None else model.reliability.clipping


def _is_most(model: Model) -> bool:
    """Whether a study is known to have clipped most of its records."""
    clipping = _clipping(model)
    return clipping is not None and clipping.is_most


def _told(model: Model) -> tuple[int, ...]:
    """The numbers of a release about clipping and gaps, squared lengths in grid units²; empty if it has none,
    or if its model file is so old that it lacks them."""
    clipping, figures = _clipping(model), model.manifest.figures
    if clipping is None or len(clipping.told) != len(figures.mechanism.setting.told):
        return ()
    rows, squares, *gaps = clipping.told
    return (rows, squared_lengths((rows, squares), figures.clip_shift), *gaps)


def _told_variances(models: Sequence[Model]) -> tuple[Fraction, ...]:
    names = models[0].manifest.figures.mechanism.setting.told
    return tuple(sum((_told_variance(model, name) for model in models), Fraction(0)) for name in names)


def _told_variance(model: Model, name: BlockName) -> Fraction:
    """Of the noise on one of these numbers, in the unit of `_told`."""
    variance = model.released_figures.block_variance(name, _owners_of(model))
    return variance * 4**model.manifest.figures.clip_shift if name is BlockName.CLIPPED_SQUARES else variance


def _told_apart(models: Sequence[Model], intervals: bool) -> str:
    """What clipping did in each study, for studies whose numbers do not add up."""
    studies = ". ".join(f"Study {model.study.hex()}: {_of_one(model)}" for model in models)
    said = (
        "What clipping did, and how many values are missing, is told per study. It is not corrected here,"
        f" because the released numbers of at least one study are not known. {studies}. Every figure about"
        " all studies together, also each variance and covariance, is about the clipped records, with any"
        " gaps."
    )
    if intervals:
        return said
    return (
        f"{said} In at least one study most {_rows(models[0])} were clipped, so shares and cos² have no"
        " percentiles: these would describe clipped records only."
    )


def _rows(model: Model) -> str:
    return rows_in_words(model.is_of_pairs)


def _of_one(model: Model) -> str:
    clipping = _clipping(model)
    if clipping is None:
        return "its model file is too old to tell" if model.manifest.clip_share else "it does not tell"
    said = clipping.brief(_rows(model))
    return said if _told(model) else f"{said}; its model file is too old to have the released numbers"


def _check(models: Sequence[Model]) -> None:
    if len(models) < 2 or len({model.study for model in models}) != len(models):
        raise UsageError(
            "bad-option", "a combination needs two or more different studies", "name each study once"
        )
    first = models[0].manifest
    for model in models:
        manifest = model.manifest
        if manifest.rules.is_masked:
            raise ConflictError(
                "cannot-combine",
                f"study {model.study.hex()} is masked: its release is no sum, because its mean is hidden",
                "combine joint studies or studies of pairs",
            )
        if manifest.rules.is_wide:
            raise ConflictError(
                "cannot-combine",
                f"study {model.study.hex()} has many features: its release is no matrix that can be added up",
                "combine joint studies or studies of pairs",
            )
        for name in AGREEING:
            if getattr(manifest, name) != getattr(first, name):
                raise ConflictError(
                    "cannot-combine",
                    f"{name} of study {model.study.hex()} differs from that of study {models[0].study.hex()}",
                    "combine studies on the same terms, as `dpdpca user study extend` makes them",
                )
        d, known = len(manifest.encoded_names), model.components.component_count
        if known < d:
            raise ConflictError(
                "components-missing",
                f"the model of study {model.study.hex()} has only {known} of {d} components",
                "combine studies with fewer features",
            )


def _sum_of(models: Sequence[Model]) -> NoisyScatter:
    """The sum of the releases, in grid units.

    A model has its scatter as doubles, so the sum is that of the exact integers up to a relative error of
    about 10⁻¹⁵, far below one grid unit of the noise.
    """
    count = sum(model.components.count for model in models)
    of_pairs = models[0].is_of_pairs
    moments = np.zeros((len(models[0].components.space.names),) * 2)
    total = np.zeros(len(moments))
    for model in models:
        components, grid = model.components, model.manifest.figures.grid
        space, n = components.space, model.components.count
        unit = (grid / space.unit) ** 2 * (n if of_pairs else max(n - 1, 1))
        moments += (components.vectors.T * (components.eigenvalues * unit)) @ components.vectors
        if components.mean is not None:
            mean = (components.mean - space.centre) / space.half_range * grid
            moments += n * np.outer(mean, mean)
            total += n * mean
    divisor = 2 if of_pairs else count
    sums = None if of_pairs else tuple(round(value) for value in total)
    scatter = moments if sums is None else moments - np.outer(total, total) / count
    scaled = tuple(tuple(round(divisor * entry) for entry in row) for row in scatter.tolist())
    return NoisyScatter(count, scaled, sums, of_pairs)
