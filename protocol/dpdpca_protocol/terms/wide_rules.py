"""The rules for the terms of sketch, lift and scores. A broken rule raises `PolicyError`."""

from collections.abc import Iterable
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.sketch_matrix import SketchMatrix
from dpdpca_protocol.wire.fields import refused

_PRODUCT_LIMIT = 2**52
"""C·P₀z + o stays below this, so that its products are exact in double precision in whatever order."""
_LOW_BITS = 21
_SAME = ("feature_list", "features", "scaling", "clip_norm", "fraction_bits", "of", "missing")
"""The members in which all wide rounds of a chain agree, because later rounds read what the sketch showed."""


def check_wide(manifest: Manifest) -> None:
    """Checks the members that only wide releases have, and what no wide release may have."""
    needed = {
        "of": manifest.rules.is_wide,
        "sketch": manifest.release in (ReleaseKind.SKETCH, ReleaseKind.LIFT),
        "lift": manifest.release is ReleaseKind.LIFT,
        "scores": manifest.release is ReleaseKind.SCORES,
    }
    for name, is_needed in needed.items():
        if is_needed != (getattr(manifest, name) is not None):
            way = "must have" if is_needed else "cannot have"
            refused(f"a {manifest.release} study {way} the member {name}")
    if not manifest.rules.is_wide:
        return
    _check_kind(manifest)
    d = manifest.encoded_features
    if manifest.sketch is not None and manifest.sketch.rows > d:
        refused(f"sketch.rows is {manifest.sketch.rows}, above the {d} encoded features", "use fewer rows")
    if manifest.columns > d:
        refused(f"the release has {manifest.columns} columns, more than the {d} encoded features")
    if manifest.lift is not None:
        _check_lift(manifest)
    if manifest.scores is not None and manifest.terms.summed_bound < 1:
        refused("scores.norm is shorter than one step of the grid", "raise scores.norm or fraction_bits")
    if manifest.scores is not None and manifest.scores.study not in manifest.pre_studies:
        refused("scores.study is not among pre_studies", "name the lift in both")


def check_rounds(manifest: Manifest, earlier: Iterable[Manifest]) -> None:
    """Checks a lift or scores against the earlier rounds that its pre_studies name.

    Args:
        manifest: of any release. Only a lift or scores depend on earlier rounds in this way.
        earlier: the manifests of its pre_studies that this party knows.

    Raises:
        PolicyError: `wrong-round`, the sketch or the lift is not known, or a member disagrees with it.
    """
    before = [each for each in earlier if each.study_id in manifest.pre_studies]
    if manifest.release is ReleaseKind.LIFT:
        sketch = _round(before, ReleaseKind.SKETCH)
        _check_same(manifest, sketch, (*_SAME, "sketch"))
    elif manifest.release is ReleaseKind.SCORES:
        sketch, lift = (_round(before, kind) for kind in (ReleaseKind.SKETCH, ReleaseKind.LIFT))
        _check_same(manifest, sketch, _SAME)
        _check_same(manifest, lift, (*_SAME, "columns"))
        assert manifest.scores is not None
        if manifest.scores.study != lift.study_id:
            raise wrong_round("scores.study is not the lift among pre_studies")
        if lift.sketch != sketch.sketch:
            raise wrong_round("the lift among its pre_studies is that of another sketch")


def _check_kind(manifest: Manifest) -> None:
    kind = manifest.release
    if manifest.missing != "midpoint":
        refused(
            f"a {kind} study cannot drop records: with many features, almost every record lacks a value",
            "use missing midpoint",
        )
    if manifest.rho_share == 1:
        refused(f"a {kind} study is one round of a chain, so it needs rho_share", "add rho_share")
    if kind is not ReleaseKind.SKETCH and not manifest.pre_studies:
        refused(f"a {kind} study depends on earlier rounds, so it needs pre_studies", "add pre_studies")


def _check_lift(manifest: Manifest) -> None:
    assert manifest.lift is not None
    assert manifest.sketch is not None
    lift = manifest.lift
    if any(len(row) != manifest.sketch.rows for row in lift.matrix):
        refused(f"a row of lift.matrix does not have {manifest.sketch.rows} numbers, as sketch.rows says")
    if manifest.rules.of_pairs and any(lift.offset):
        refused("lift.offset is not 0 in a lift of pairs, where differences have no mean", "use zeros")
    product_squared = manifest.terms.record_bound * longest_row_squared(manifest)
    offset = max(map(abs, lift.offset))
    if product_squared >= (_PRODUCT_LIMIT - offset) ** 2:
        refused(
            f"clip_norm times the longest row of lift.matrix times the sketch is {isqrt(product_squared)} on"
            f" the grid, and lift.offset goes up to {offset} in absolute value. Their sum must be below 2⁵² ="
            f" {_PRODUCT_LIMIT}, or products are not exact",
            "use smaller numbers in lift.matrix and lift.offset, or lower fraction_bits",
        )


def longest_row_squared(manifest: Manifest) -> int:
    """max_j Σ_i M_ji² for M = C·P₀ of a lift, exact."""
    assert manifest.lift is not None
    assert manifest.sketch is not None
    sketch = SketchMatrix.of(manifest.sketch.seed, manifest.encoded_features, manifest.sketch.rows)
    # Row by row: whoever reads a manifest needs no memory for all of M.
    rows = (sketch.after(np.array([row], dtype=np.int64))[0] for row in manifest.lift.matrix)
    return max(_square(np.abs(row)) for row in rows)


def _square(row: NDArray[np.int64]) -> int:
    """Σ m² of integers from 0 to 2⁴¹, in two halves whose sums of squares fit into 64 bits."""
    low, high = row & ((1 << _LOW_BITS) - 1), row >> _LOW_BITS
    parts = ((high, high, 2 * _LOW_BITS), (high, low, _LOW_BITS + 1), (low, low, 0))
    return sum(int(np.dot(left, right)) << shift for left, right, shift in parts)


def _round(before: list[Manifest], kind: ReleaseKind) -> Manifest:
    found = [each for each in before if each.release is kind]
    if len(found) != 1:
        raise wrong_round(
            f"its pre_studies name {len(found)} studies of kind {kind} that are known here, not one"
        )
    return found[0]


def _check_same(manifest: Manifest, earlier: Manifest, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(manifest, name) != getattr(earlier, name):
            raise wrong_round(f"its {name} differs from that of the {earlier.release} before it")


def wrong_round(problem: str) -> PolicyError:
    """The error for a lift or scores that do not fit the rounds before them."""
    return PolicyError(
        "wrong-round",
        f"this round does not fit the earlier rounds of its chain: {problem}",
        "ask the data user to start the chain again",
    )
