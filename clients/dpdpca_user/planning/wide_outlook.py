"""What `plan` says about a chain for many features before anything is spent."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpdpca_protocol.pads.streams import VALUE_BYTES
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_user.planning.prestudy import pre_study_draws
from dpdpca_user.planning.wide import (
    COMPARED_UP_TO,
    FEATURES_A_ROW,
    MOST_ROWS,
    SKETCH_PART,
    SketchNoise,
    check_sketch,
    forecast,
    parts,
    sketch_rows,
)
from dpdpca_user.planning.wide_chain import WideWishes


def wide_outlook(
    base: Mapping[str, Any], manifest: Manifest, records: int, spectrum: Sequence[float], *, anyway: bool
) -> list[str]:
    """Sentences about the chain of `base`.

    Args:
        base: the draft of a chain for many features.
        manifest: of one study that spends the whole budget.
        records: number of records in all.
        spectrum: variances or shares of the components, if they are known.
        anyway: go on even if the sketch would show nothing.

    Raises:
        PolicyError: `too-few-records`, not even the best case would show in the sketch.
    """
    wishes, figures, d = WideWishes.of(base), manifest.figures, manifest.encoded_features
    rho, draws = float(figures.rho_total), pre_study_draws(manifest, manifest.max_owners)
    noise = SketchNoise(records, float(SKETCH_PART) * rho, False, draws)
    rows = min(wishes.rows or sketch_rows(d, noise), d)
    if not anyway:
        check_sketch(rows, noise)
    last = (
        "a lift, or a full matrix if the sketch shows that it captures more"
        if d <= COMPARED_UP_TO
        else "a lift"
    )
    said = [
        f"a chain of this draft measures norms, mixes each record into {rows} numbers for a sketch, and then"
        f" asks for {last}",
        f"the noise of the sketch hides components with less than {noise.edge(rows):.1%} of all variance",
    ]
    if not spectrum:
        return said
    after = draws if manifest.noise_by is NoiseBy.OWNERS else 1.0 + wishes.of_in_clear
    seen = forecast(spectrum, d, noise, min(wishes.columns, d), rho, parts(False, wishes.scores), after)
    said += seen.choice.sentences
    if seen.records_needed:
        said.append(f"the first of these components needs {seen.records_needed[0]:,} records in a lift")
    if not seen.needs_sketch:
        said.append(
            f"a full matrix at once would capture about {seen.full_at_once:.0%}: to leave the sketch out, set"
            ' release = "joint"'
        )
    return said


def wide_share_bytes(base: Mapping[str, Any], d: int) -> int:
    """The most bytes that an owner sends in a round of the chain of `base`, with d encoded features."""
    wishes = WideWishes.of(base)
    rows, columns = wishes.rows or min(MOST_ROWS, d // FEATURES_A_ROW), min(wishes.columns, d)
    sketch = 1 + rows + rows * (rows + 1) // 2
    lift = 1 + d * columns + columns * (columns + 1) // 2
    return VALUE_BYTES * max(sketch, lift)
