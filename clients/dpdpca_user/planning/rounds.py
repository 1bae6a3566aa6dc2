"""Drafts of the rounds of a chain: the base draft that a person wrote, changed as the choice requires.

All rounds state the same total (ε, δ) and which share of it they take. Owners approve the total once.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor, log10, sqrt
from typing import Any

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.features import MAX_LEVELS, MAX_LISTED_FEATURES, MOST_WIDE, longest_norm_squared
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.terms import SuiteName
from dpdpca_protocol.wire.fields import decimal_text, malformed, read_list, real_of
from dpdpca_user.planning.choice import (
    Guess,
    NextRound,
    first_round,
    next_round,
    norm_study,
    norms_after_scales,
)
from dpdpca_user.planning.draft import gets_second_draw
from dpdpca_user.planning.noise import usual_norm, usual_offset
from dpdpca_user.planning.prestudy import PreStudyResult, pre_study_draws
from dpdpca_user.planning.wide_chain import WideWishes, is_wide_chain, next_wide_round

_REPLACED = (
    *("release", "clip_norm", "clip_cap", "sum_weight", "nonnegative"),
    *("blocks", "rho_share", "pre_studies"),
    *("of", "sketch", "lift", "scores"),
)
_DIGITS = 6
_STEP = 1e-6
_FEW_NUMBERS = 1 / 3
"""The largest share of numeric features in a squared norm that the categories are said to dominate."""


def begin_chain(
    base: Mapping[str, Any], complete: Callable[[Mapping[str, Any]], Manifest], records: int, scales: bool
) -> NextRound:
    """The first round of the chain of a base draft.

    Args:
        base: the base draft.
        complete: makes the manifest of a draft.
        records: expected number of records in all.
        scales: whether to ask for the scale of each feature, if there are enough records.

    Raises:
        MessageError, PolicyError: as `check_base`, or the reason for which every party would refuse the
        round.
    """
    check_base(base, scales)
    d = encoded_features(base)
    manifest = complete(round_draft(base, norm_study(d)))
    draws = pre_study_draws(manifest, manifest.max_owners)
    first = first_round(
        d,
        records,
        float(manifest.figures.rho_total),
        _guess(manifest),
        scales,
        draws,
        with_norms=is_wide_chain(base, d),
    )
    if BlockName.OCTAVES in first.blocks:
        complete(round_draft(base, norms_after_scales(d)))  # before the first round spends anything
    return first


def _guess(manifest: Manifest) -> Guess:
    numeric = [feature for feature in manifest.features if not feature.is_categorical]
    centred = sum(feature.centre is not None or feature.origin == 0 for feature in numeric)
    categories = len(manifest.features) - len(numeric)
    spread, of_numbers = usual_norm(len(numeric), categories), usual_norm(len(numeric), 0)
    return Guess(
        longest=sqrt(longest_norm_squared(manifest.features, manifest.scaling)),
        offset=usual_offset(centred, len(numeric) - centred, categories) / spread,
        of_categories=of_numbers**2 < _FEW_NUMBERS * spread**2,
    )


def round_draft(base: Mapping[str, Any], following: NextRound) -> dict[str, Any]:
    """The draft of the next round of a chain.

    Args:
        base: the draft of the chain. Members that the choice decides are replaced and may be missing.
        following: the choice.

    Raises:
        PolicyError: the base draft asks for something that a chain cannot have.
    """
    check_base(base, BlockName.OCTAVES in following.blocks)
    draft = {name: value for name, value in base.items() if name not in _REPLACED}
    draft |= {
        "missing": "midpoint",
        "release": str(following.release),
        "clip_norm": rounded_down(following.clip_norm),
        "rho_share": decimal_text(following.rho_share),
        "features": _moved(base["features"], following),
    }
    if following.blocks:
        draft["blocks"] = {str(name): decimal_text(part) for name, part in following.blocks.items()}
    if following.sum_weight:
        draft["sum_weight"] = following.sum_weight
    draft |= following.members
    if following.is_last and not following.members:
        draft.setdefault("clip_share", following.clip_share)
        if following.clip_cap is not None and real_of(draft["clip_share"], "clip_share") > 0:
            draft["clip_cap"] = rounded_down(max(following.clip_cap * (1 + _STEP), following.clip_norm))
    if following.pre_studies:
        draft["pre_studies"] = [study.hex() for study in following.pre_studies]
    if not following.is_last:
        draft.pop("closes_at", None)
    return draft


def chosen_round(
    base: Mapping[str, Any],
    results: Sequence[PreStudyResult],
    randomness: Randomness,
    *,
    in_clear: bool = False,
) -> NextRound:
    """The round of the chain of a base draft that follows pre-studies and a sketch.

    Args:
        base: the base draft.
        results: the results of all rounds, oldest first, at least one.
        randomness: for the seed of a sketch.
        in_clear: whether the components will be published in clear.

    Raises:
        ConflictError, PolicyError, UsageError: as `next_round` and `next_wide_round`.
    """
    d = encoded_features(base)
    if not is_wide_chain(base, d):
        return next_round(results, d, second_draw=gets_second_draw(base, in_clear))
    return next_wide_round(results, d, WideWishes.of(base, in_clear), randomness)


def check_base(base: Mapping[str, Any], scales: bool = False) -> None:
    """Check that a draft can be the base of a chain.

    Args:
        base: the draft.
        scales: whether the chain asks for the scale of each feature.

    Raises:
        MessageError: the draft's features are malformed.
        PolicyError: the draft sets `missing` to "reject", asks for the masked release or for Paillier, or has
            one scale for all features although each feature should get its own.
    """
    for index, feature in enumerate(read_list(base.get("features"), "features", MAX_LISTED_FEATURES)):
        where = f"features[{index}]"
        if not isinstance(feature, Mapping):
            malformed(where, "a table")
        if "levels" in feature:
            read_list(feature["levels"], f"{where}.levels", MAX_LEVELS)
        elif "lower" not in feature or "upper" not in feature:
            malformed(where, "a feature with lower and upper, or with levels")
    if not encoded_features(base):
        malformed("features", "a list of at least one feature, each category with its levels")
    if is_wide_chain(base, encoded_features(base)):
        WideWishes.of(base)
    if scales and base.get("scaling") == "common":
        raise PolicyError(
            "no-chain",
            "scaling is common, but a study of scales gives each feature its own unit",
            'set scaling = "range", or leave out the study of scales',
        )
    if base.get("missing", "midpoint") != "midpoint":
        raise PolicyError(
            "no-chain",
            'missing is "reject", but a chain pairs records and must keep every record',
            'set missing = "midpoint", or leave out the member',
        )
    if base.get("release") == ReleaseKind.MASKED:
        raise PolicyError(
            "no-chain",
            "a chain ends with a joint study or a study of pairs, never with a masked one",
            "leave out release",
        )
    if base.get("suite") == SuiteName.PAILLIER:
        raise PolicyError(
            "no-chain",
            "suite is paillier, but pre-studies and studies of pairs use pads, and a chain has one suite",
            'set suite = "pads", or leave out the member',
        )


def encoded_features(base: Mapping[str, Any]) -> int:
    """d of a draft: one for each numeric feature, and one for each level of a category."""
    return sum(len(feature.get("levels", (0,))) for feature in base["features"])


def draft_text(draft: Mapping[str, Any], notes: Sequence[str] = ()) -> str:
    """The draft as TOML, with the notes as comments at the top."""
    return "\n".join(_lines(draft, notes)) + "\n"


def _lines(draft: Mapping[str, Any], notes: Sequence[str]) -> Iterator[str]:
    yield from (f"# {line}" for line in notes)
    for name, value in draft.items():
        if name not in ("features", "blocks"):
            yield f"{name} = {_value(value)}"
    if "blocks" in draft:
        yield from ("", "[blocks]")
        yield from (f"{name} = {_value(value)}" for name, value in draft["blocks"].items())
    for feature in draft.get("features", ()):
        yield from ("", "[[features]]")
        yield from (f"{name} = {_value(value)}" for name, value in feature.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{name} = {_value(each)}" for name, each in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat().replace("+00:00", "Z") if hasattr(value, "isoformat") else str(value)


def _moved(features: Sequence[Mapping[str, Any]], following: NextRound) -> list[dict[str, Any]]:
    """The features with the chosen centres and scales. Levels of categories have no scale."""
    moved, column = [], 0
    for feature in features:
        changed = dict(feature)
        if "levels" in feature:
            width = len(feature["levels"])
            if following.centre is not None:
                shares = [min(max(each, 0.0), 1.0) for each in following.centre[column : column + width]]
                changed["centre"] = [decimal_text(_rounded(Fraction(each), Fraction(1))) for each in shares]
                if not any(shares):
                    del changed["centre"]
            else:
                changed.setdefault(
                    "centre", [decimal_text(_rounded(Fraction(1, width), Fraction(1)))] * width
                )
            column += width
        else:
            low, high = (real_of(feature[name], name) for name in ("lower", "upper"))
            if following.centre is not None:
                centre = _rounded(Fraction(following.centre[column]), high - low)
                changed["centre"] = decimal_text(min(max(centre, low), high))
            if following.scale is not None:
                scale, half = _rounded(Fraction(following.scale[column]), high - low), (high - low) / 2
                changed["scale"] = decimal_text(min(max(scale, half / MOST_WIDE), half))
            column += 1
        moved.append(changed)
    return moved


def _rounded(value: Fraction, width: Fraction) -> Fraction:
    """`value`, rounded to the fewest decimals that resolve a millionth of the feature's range."""
    places = max(0, ceil(-log10(float(width) * _STEP)))
    return Fraction(round(value * 10**places), 10**places)


def rounded_down(norm: float) -> str:
    """`norm` rounded down to six significant digits, because √d may have infinitely many."""
    places = _DIGITS - 1 - floor(log10(norm))
    return decimal_text(Fraction(floor(Fraction(norm) * Fraction(10) ** places)) / Fraction(10) ** places)
