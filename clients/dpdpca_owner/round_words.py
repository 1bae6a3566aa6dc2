"""What the consent sheet says of the rounds of a chain for many features: sketch, lift and scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.fields import decimal_text


@dataclass(frozen=True, slots=True)
class RoundWords:
    """One round, for people.

    Attributes:
        released: what the data user gets and what for.
        contents: what each block holds.
        cut: to what length an owner's program cuts the numbers of a record.
        numbers: how many numbers are made of each record or difference.
    """

    released: str
    contents: Mapping[BlockName, str]
    cut: str
    numbers: int

    @classmethod
    def of(cls, manifest: Manifest) -> Self | None:
        """None for a study that is no sketch, lift or scores."""
        if manifest.lift is not None:
            return cls(*_lift(manifest), manifest.columns)
        if manifest.scores is not None:
            return cls(*_scores(manifest), manifest.columns)
        if manifest.sketch is not None:
            return cls(*_sketch(manifest), manifest.sketch.rows)
        return None

    def to_json(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "released": self.released, "cut": self.cut}


WHATEVER_RULE = (
    "ε and δ limit what the release shows about a record, whatever public rule the data user chose: this"
    " machine cuts what it adds up with exact integers"
)

_Words = tuple[str, Mapping[BlockName, str], str]


def _sketch(manifest: Manifest) -> _Words:
    assert manifest.sketch is not None
    m, d = manifest.sketch.rows, manifest.encoded_features
    mixtures = f"{m:,} public mixtures of your {d:,} features"
    products = f"sums of products of two of {mixtures}, for the differences within pairs of records"
    said = products if manifest.rules.of_pairs else f"sums of {mixtures}, and sums of their products"
    released = (
        f"released to {manifest.user.name}: {said}. They say which directions vary, and the next round is"
        " planned with them"
    )
    contents = {
        BlockName.SUM: f"the sums of {mixtures}",
        BlockName.SECOND_MOMENT: "the sums of products of two mixtures",
        BlockName.PAIR_MOMENT: f"the {products}",
    }
    cut = f"the {m:,} mixtures of a {_row(manifest)} are cut to norm √2·{decimal_text(manifest.clip_norm)}"
    return released, contents, cut


def _lift(manifest: Manifest) -> _Words:
    k, row = manifest.columns, _row(manifest)
    made = f"{_counted(k, 'number')}, which a public rule computes from each {row}"
    released = (
        f"released to {manifest.user.name}: for each feature the sum of its products with {made} and cuts,"
        " and sums of products of these numbers. The components are computed from these sums."
        f" {manifest.user.name} made the rule from the sketch"
    )
    contents = {
        BlockName.LIFTED: f"for each feature the sum of its products with {made}",
        BlockName.GRAM: "the sums of products of these numbers",
    }
    cut = f"the {_counted(k, 'number')} of a {row} are cut to a fixed length, whatever the rule is"
    return released, contents, cut


def _scores(manifest: Manifest) -> _Words:
    assert manifest.scores is not None
    k, row = manifest.columns, _row(manifest)
    what = "covariances" if manifest.rules.of_pairs else "means and covariances"
    released = (
        f"released to {manifest.user.name}: {what} of {_counted(k, 'score')}, the coordinates of each {row}"
        " on the components of the lift. They say how much the components vary. The components reached you"
        f" sealed; {manifest.proxy.name} does not see them"
    )
    contents = {
        BlockName.SUM: f"the sums of {_counted(k, 'score')}",
        BlockName.SECOND_MOMENT: "the sums of products of two scores",
        BlockName.PAIR_MOMENT: "the sums of products of two scores of the differences within pairs",
    }
    cut = f"the {_counted(k, 'score')} of a {row} are cut to norm {decimal_text(manifest.scores.norm)}"
    return released, contents, cut


def _row(manifest: Manifest) -> str:
    return "difference" if manifest.rules.of_pairs else "record"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
