"""The released numbers of a pre-study or a sketch, from which the data user plans the next round.

These numbers are as private as the release itself: counts and sums contain noise, and edges and scales are
public. The plan becomes part of the next manifest, which the proxy reads too. If the proxy drew the noise,
the data user therefore adds a second draw of the same size before it reads any of these numbers. Noise that
the owners drew is unknown to the proxy, and needs no second draw.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import pairwise
from math import sqrt
from typing import Any, Self, TypeVar

import numpy as np

from dpdpca_protocol.errors import CryptographicError, MessageError
from dpdpca_protocol.layout.blocks import NORM_BINS, OCTAVES, BlockName, Values, whole_numbers
from dpdpca_protocol.release.release import flat_scatter
from dpdpca_protocol.result.components import Floats
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire.fields import decimal_text, read_decimal
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import FORMAT, hex_bytes
from dpdpca_user.results.wide.sketch import SketchReading, read_sketch

Read = TypeVar("Read")

_SIGNED = frozenset({BlockName.SUM, BlockName.LIFTED, BlockName.GRAM})
_DRAWS = 2
"""Draws of noise in a pre-study whose noise the proxy draws: its own, and one by the data user."""


_LEAST, _MOST = 2.0**-450, 2.0**450
"""Released numbers are far from both; bounds of features are at most 2⁴⁰⁰."""


def _number(value: Any, least: float = -_MOST) -> float:
    """Raises OverflowError, TypeError or ValueError for anything but a number within the limits."""
    number = float(value)
    if not least <= number <= _MOST:
        raise ValueError("a number is out of range")
    return number


def _positive(value: Any) -> float:
    return _number(value, _LEAST)


def _whole(value: Any, least: float = -_MOST) -> int:
    _number(value, least)
    return int(value)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Noisy counts.

    Attributes:
        edges: upper edge of each bin, ascending, in scaled units. The first bin begins at 0, and the last bin
            also contains everything above its edge.
        counts: as released. Counts are noisy and may be below 0.
        noise: standard deviation of all noise of each count.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    noise: float

    def to_json(self) -> dict[str, Any]:
        return {"edges": list(self.edges), "counts": list(self.counts), "noise": self.noise}

    @classmethod
    def parse(cls, untrusted: Any) -> Self:
        """Raises KeyError, OverflowError, TypeError or ValueError for anything else than `to_json` writes."""
        edges = tuple(_number(edge) for edge in untrusted["edges"])
        counts = tuple(_whole(count) for count in untrusted["counts"])
        if len(edges) != len(counts) or any(low >= high for low, high in pairwise((0.0, *edges))):
            raise ValueError("edges and counts do not match")
        return cls(edges, counts, _number(untrusted["noise"]))


@dataclass(frozen=True, slots=True)
class NoisySum:
    """The sum of the records relative to the public centre, each clipped to the clip norm.

    Attributes:
        mean: (d,) the noisy sum divided by N, in scaled units.
        noise: standard deviation of all noise of each entry of `mean`.
        clip_norm: the norm to which records were clipped, in scaled units.
    """

    mean: tuple[float, ...]
    noise: float
    clip_norm: float

    def to_json(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "noise": self.noise, "clip_norm": self.clip_norm}

    @classmethod
    def parse(cls, untrusted: Any) -> Self:
        """Raises KeyError, OverflowError, TypeError or ValueError for anything else than `to_json` writes."""
        mean = tuple(_number(value) for value in untrusted["mean"])
        return cls(mean, _number(untrusted["noise"]), _positive(untrusted["clip_norm"]))


@dataclass(frozen=True, slots=True)
class NoisyCount:
    """One noisy count.

    Attributes:
        count: as released; it may be below 0.
        noise: standard deviation of all noise of the count.
    """

    count: int
    noise: float

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "noise": self.noise}

    @classmethod
    def parse(cls, untrusted: Any) -> Self:
        """Raises KeyError, OverflowError, TypeError or ValueError for anything else than `to_json` writes."""
        return cls(_whole(untrusted["count"]), _number(untrusted["noise"]))


_SEED_BYTES = 32
_ARRAYS = tuple(each.name for each in fields(SketchReading) if each.type is Floats)
_NUMBERS = tuple(each.name for each in fields(SketchReading) if each.type is float)


@dataclass(frozen=True, slots=True)
class ReleasedSketch:
    """What a sketch has released, and the terms that the rounds after it repeat.

    Attributes:
        seed: of P₀.
        clip_norm: r of records, or of differences.
        fraction_bits: f.
        reading: what the sketch shows, in grid units.
    """

    seed: bytes
    clip_norm: Fraction
    fraction_bits: int
    reading: SketchReading

    @classmethod
    def of(
        cls, manifest: Manifest, blocks: Mapping[BlockName, Values], figures: Figures, owners: int
    ) -> Self:
        """A sketch from its blocks, with figures for all draws of noise in them."""
        assert manifest.sketch is not None
        noisy = flat_scatter(blocks, manifest.sketch.rows)
        reading = read_sketch(noisy, figures.law(noisy.count, owners))
        return cls(manifest.sketch.seed, manifest.clip_norm, manifest.fraction_bits, reading)

    @property
    def records(self) -> int:
        """N; twice the number of pairs."""
        return self.reading.count * (2 if self.reading.of_pairs else 1)

    def to_json(self) -> dict[str, Any]:
        reading = self.reading
        return {
            "seed": self.seed.hex(),
            "clip_norm": decimal_text(self.clip_norm),
            "fraction_bits": self.fraction_bits,
            "count": reading.count,
            "of_pairs": reading.of_pairs,
            "seen_count": reading.seen_count,
            "sums": list(reading.sums),
            **{name: getattr(reading, name) for name in _NUMBERS},
            **{name: getattr(reading, name).tolist() for name in _ARRAYS},
        }

    @classmethod
    def parse(cls, untrusted: Any) -> Self:
        """Raises KeyError, OverflowError, TypeError or ValueError for anything else than `to_json` writes."""
        arrays: dict[str, Any] = {name: np.array(untrusted[name], dtype=np.float64) for name in _ARRAYS}
        numbers: dict[str, Any] = {name: float(untrusted[name]) for name in _NUMBERS}
        seen, shape = int(untrusted["seen_count"]), arrays["directions"].shape
        sums = tuple(int(each) for each in untrusted["sums"])
        agree = (
            len(shape) == 2
            and len(sums) == shape[1]
            and arrays["mean"].shape == shape[1:]
            and arrays["strengths"].shape == (seen,)
        )
        finite = all(np.isfinite(each).all() for each in (*arrays.values(), *numbers.values()))
        if not agree or not finite or any(arrays[name].shape != shape[:1] for name in ("heights", "widths")):
            raise ValueError("the numbers of a sketch do not match")
        reading = SketchReading(
            count=int(untrusted["count"]),
            of_pairs=untrusted["of_pairs"] is True,
            seen_count=seen,
            sums=sums,
            **numbers,
            **arrays,
        )
        return cls(
            seed=hex_bytes(untrusted["seed"], _SEED_BYTES, "seed"),
            clip_norm=read_decimal(untrusted["clip_norm"], "clip_norm"),
            fraction_bits=int(untrusted["fraction_bits"]),
            reading=reading,
        )


@dataclass(frozen=True, slots=True)
class PreStudyResult:
    """What one pre-study, or one sketch, has released.

    Attributes:
        study: its id.
        records: N, exact.
        names: the names of the d encoded features.
        centre, half_range: (d,) in original units: x = centre + half_range·u, with u in scaled units.
        epsilon, delta: of all rounds together, as in the manifest.
        rho_share: the share of the total ρ that this round may spend.
        rho, rho_total: what this round spent, and what all rounds may spend.
        noise_by: who drew the noise.
        noise_draws: the variance of all noise, divided by that of the noise which the guarantee needs: 2 if
            the data user added its own draw, and L/m for noise of L owners of whom m are assured.
        pre_studies: the rounds before this one, oldest first.
        norms, pair_norms: histograms of |u| and of |u_i − u_j|/√2, or None.
        total: the noisy sum, or None.
        octaves: for each encoded feature, a histogram of |difference|/√2; or None.
        far_pairs: how many pairs lie far from the public centre, or None.
        sketch: what a sketch has released; None for a pre-study.
    """

    study: StudyId
    records: int
    names: tuple[str, ...]
    centre: tuple[float, ...]
    half_range: tuple[float, ...]
    epsilon: Fraction
    delta: Fraction
    rho_share: Fraction
    rho: float
    rho_total: float
    noise_by: NoiseBy
    noise_draws: float
    pre_studies: tuple[StudyId, ...]
    norms: Histogram | None
    pair_norms: Histogram | None
    total: NoisySum | None
    octaves: tuple[Histogram, ...] | None
    far_pairs: NoisyCount | None = None
    sketch: ReleasedSketch | None = None

    @classmethod
    def of(cls, manifest: Manifest, blocks: Mapping[BlockName, Values], owners: int) -> Self:
        """The result of a pre-study or a sketch.

        Args:
            manifest: the study's manifest.
            blocks: as released, after `with_second_draw` if the proxy drew the noise.
            owners: how many are in the cohort; if they drew the noise, each added a part of it.
        """
        by_proxy = manifest.noise_by is NoiseBy.PROXY
        figures = replace(manifest.figures, draws=_DRAWS) if by_proxy else manifest.figures
        if manifest.sketch is not None:
            sketch = ReleasedSketch.of(manifest, blocks, figures, owners)
            return replace(cls._of_numbers(manifest, {}, figures, owners, sketch.records), sketch=sketch)
        released = {name: whole_numbers(values) for name, values in blocks.items()}
        (records,) = released[BlockName.COUNT]
        return cls._of_numbers(manifest, released, figures, owners, records)

    @classmethod
    def _of_numbers(
        cls,
        manifest: Manifest,
        released: Mapping[BlockName, list[int]],
        figures: Figures,
        owners: int,
        records: int,
    ) -> Self:
        scale = {name: sqrt(figures.block_variance(name, owners)) for name in released}
        r, q = float(manifest.clip_norm), figures.grid

        def norms(name: BlockName) -> Histogram | None:
            if name not in released:
                return None
            edges = tuple(r * 2.0 ** ((b + 1 - NORM_BINS) / 4) for b in range(NORM_BINS))
            return Histogram(edges, tuple(released[name]), scale[name])

        total = None
        if BlockName.SUM in released:
            unit = 1 / (records * q)
            mean = tuple(value * unit for value in released[BlockName.SUM])
            total = NoisySum(mean, scale[BlockName.SUM] * unit, r)
        octaves = None
        if BlockName.OCTAVES in released:
            edges = tuple(2.0 ** (o + 1 - OCTAVES) for o in range(OCTAVES))
            counts = released[BlockName.OCTAVES]
            octaves = tuple(
                Histogram(edges, tuple(counts[start : start + OCTAVES]), scale[BlockName.OCTAVES])
                for start in range(0, len(counts), OCTAVES)
            )
        far_pairs = None
        if BlockName.FAR_PAIRS in released:
            far_pairs = NoisyCount(released[BlockName.FAR_PAIRS][0], scale[BlockName.FAR_PAIRS])
        units = manifest.feature_units
        return cls(
            study=manifest.study_id,
            records=records,
            names=manifest.encoded_names,
            centre=tuple(float(origin) for origin, _ in units),
            half_range=tuple(float(divisor) for _, divisor in units),
            epsilon=manifest.epsilon,
            delta=manifest.delta,
            rho_share=manifest.rho_share,
            rho=float(figures.rho),
            rho_total=float(figures.rho_total),
            noise_by=manifest.noise_by,
            noise_draws=pre_study_draws(manifest, owners),
            pre_studies=manifest.pre_studies,
            norms=norms(BlockName.NORMS),
            pair_norms=norms(BlockName.PAIR_NORMS),
            total=total,
            octaves=octaves,
            far_pairs=far_pairs,
        )

    @property
    def release(self) -> ReleaseKind:
        return ReleaseKind.PRE_STUDY if self.sketch is None else ReleaseKind.SKETCH

    @property
    def encoded_features(self) -> int:
        return len(self.names)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: the answer of the data user's service."""
        return {
            "format": FORMAT,
            "release": str(self.release),
            "study": self.study.hex(),
            "records": self.records,
            "names": list(self.names),
            "centre": list(self.centre),
            "half_range": list(self.half_range),
            "epsilon": decimal_text(self.epsilon),
            "delta": decimal_text(self.delta),
            "rho_share": decimal_text(self.rho_share),
            "rho": self.rho,
            "rho_total": self.rho_total,
            "noise_by": str(self.noise_by),
            "noise_draws": self.noise_draws,
            "pre_studies": [study.hex() for study in self.pre_studies],
            "norms": self.norms.to_json() if self.norms else None,
            "pair_norms": self.pair_norms.to_json() if self.pair_norms else None,
            "sum": self.total.to_json() if self.total else None,
            "octaves": None if self.octaves is None else [each.to_json() for each in self.octaves],
            "far_pairs": self.far_pairs.to_json() if self.far_pairs else None,
            "sketch": self.sketch.to_json() if self.sketch else None,
        }

    @classmethod
    def parse(cls, untrusted: Any) -> Self:
        """Read a result that `to_json` wrote. Unknown members are ignored.

        Raises:
            MessageError: the value is not such a result.
        """
        try:
            sketch = untrusted.get("sketch")  # this and far_pairs are absent from results of earlier versions
            release = ReleaseKind.PRE_STUDY if sketch is None else ReleaseKind.SKETCH
            if untrusted["format"] != FORMAT or untrusted["release"] != release:
                raise ValueError("another format")
            octaves = untrusted["octaves"]
            return cls(
                study=StudyId.parse(untrusted["study"]),
                records=_whole(untrusted["records"], 1),
                names=tuple(str(name) for name in untrusted["names"]),
                centre=tuple(_number(value) for value in untrusted["centre"]),
                half_range=tuple(_number(value) for value in untrusted["half_range"]),
                epsilon=read_decimal(untrusted["epsilon"], "epsilon"),
                delta=read_decimal(untrusted["delta"], "delta"),
                rho_share=read_decimal(untrusted["rho_share"], "rho_share"),
                rho=_positive(untrusted["rho"]),
                rho_total=_positive(untrusted["rho_total"]),
                noise_by=NoiseBy(untrusted["noise_by"]),
                noise_draws=_positive(untrusted["noise_draws"]),
                pre_studies=tuple(StudyId.parse(study) for study in untrusted["pre_studies"]),
                norms=_maybe(Histogram.parse, untrusted["norms"]),
                pair_norms=_maybe(Histogram.parse, untrusted["pair_norms"]),
                total=_maybe(NoisySum.parse, untrusted["sum"]),
                octaves=None if octaves is None else tuple(Histogram.parse(each) for each in octaves),
                far_pairs=_maybe(NoisyCount.parse, untrusted.get("far_pairs")),
                sketch=_maybe(ReleasedSketch.parse, sketch),
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise MessageError("malformed", "this is not the result of a pre-study or a sketch") from error


def _maybe(parse: Callable[[Any], Read], untrusted: Any) -> Read | None:
    return None if untrusted is None else parse(untrusted)


def pre_study_draws(manifest: Manifest, owners: int) -> float:
    """The variance of all noise of a pre-study, divided by that of the noise which the guarantee needs."""
    if manifest.noise_by is NoiseBy.PROXY:
        return _DRAWS
    return owners / manifest.terms.assured_shares


def check_blocks(released: Mapping[BlockName, Values], figures: Figures) -> None:
    """Refuse numbers that no set of honest records can have produced.

    Raises:
        CryptographicError: a number is outside the range that the records and the noise allow.
    """
    for block in figures.blocks:
        tail, values = figures.draws * block.tail, released[block.name]
        most = block.bound + tail
        least = -most if block.name in _SIGNED else -tail
        if not least <= min(values) <= max(values) <= most:
            raise CryptographicError(
                "release-implausible",
                f"the release cannot come from honest shares: an entry of {block.name} is out of range",
                "do not use the release; ask the owners which of them encoded records outside the"
                " manifest's bounds",
            )
