"""From a draft that a person wrote to a complete manifest.

A draft is what TOML gives: the manifest's own names, with numbers as TOML numbers or as strings, and without
what only a machine knows. A draft is friendly input of the data user's own side; the manifest made of it
passes the same strict parser as everybody else's.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from typing import Any

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.layout.blocks import OF_PAIRS, PRE_STUDY_BLOCKS, BlockName
from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.paillier.proof import KeyProof
from dpdpca_protocol.privacy.mechanisms import Calibration
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.terms.figures import NoiseBy, default_fraction_bits, figures_of
from dpdpca_protocol.terms.manifest import LEAST_COHORT_DISTANCE, LEAST_MODULUS_BITS, Manifest
from dpdpca_protocol.terms.parties import KeyTerms, Participant, Party, ProxyParty
from dpdpca_protocol.wire.fields import (
    check_members,
    decimal_text,
    malformed,
    read_choice,
    real_of,
    refused,
    text_problem,
    time_text,
)
from dpdpca_protocol.wire.signing import FORMAT

DEFAULT_DELTA = Fraction(1, 10**6)
DEFAULT_MIN_OWNERS = 3
DEFAULT_MAX_OWNERS = 100
DEFAULT_SUM_WEIGHT = Fraction(43, 100)

_NEEDED = ("title", "purpose", "features", "clip_norm", "release", "epsilon", "max_records")
# fmt: off
_OPTIONAL = (
    "participants", "missing", "scaling", "fraction_bits", "mechanism", "calibration", "relation", "delta",
    "noise_by", "max_colluding", "sum_weight", "min_owners", "min_records", "max_owners", "closing",
    "closes_at", "cohort_distance", "nonnegative", "rho_share", "pre_studies", "blocks",
)
# fmt: on
_FINE = frozenset(PRE_STUDY_BLOCKS) - {BlockName.SUM}
_FINE_BITS = 16
"""The lowest edges of histograms lie 2¹² below a half-range; the grid must be finer than they are."""
_CHOICES = {
    "missing": "reject",
    "scaling": "range",
    "mechanism": "gaussian",
    "relation": "replace-one",
    "noise_by": "proxy",
    "closing": "at-time",
}


def complete_draft(
    draft: Mapping[str, Any],
    user: Party,
    proxy: ProxyParty,
    participants: Sequence[Participant],
    key: PublicKey,
    proof: KeyProof,
    *,
    closes_at: datetime | None = None,
    least_modulus_bits: int = LEAST_MODULUS_BITS,
) -> Manifest:
    """The manifest that a draft asks for, with defaults, noise scale and slot width filled in.

    Args:
        draft: parsed TOML or JSON. `participants` in it are names to be found among `participants`, or
            tables of name and ed25519. What only another release has (`sum_weight`, `blocks`) is dropped, so
            that one draft serves all.
        user, proxy: the parties as the data user knows them.
        participants: owners that the draft may name; all of them are named if the draft is silent.
        key, proof: the study's own modulus and its proof.
        closes_at: closing time where the draft has none.
        least_modulus_bits: lower only in tests.

    Raises:
        MessageError: the draft has a wrong shape or members that no draft has.
        PolicyError: `manifest-refused`, as every party would refuse it.
    """
    check_members(draft, "the draft", _NEEDED, _OPTIONAL)
    features = _features(draft["features"], draft.get("nonnegative") is True)
    release = read_choice(draft["release"], "release", [*ReleaseKind])
    blocks = _blocks(draft["blocks"]) if "blocks" in draft and release == ReleaseKind.PRE_STUDY else {}
    named = _participants(draft["participants"], participants) if "participants" in draft else participants
    closing = draft.get("closes_at", closes_at)
    if closing is None:
        raise malformed("the draft", "complete: closes_at is missing")
    clip_norm = real_of(draft["clip_norm"], "clip_norm")
    bits = draft["fraction_bits"] if "fraction_bits" in draft else _fraction_bits(features, clip_norm, blocks)
    weight = real_of(draft.get("sum_weight", DEFAULT_SUM_WEIGHT), "sum_weight")
    min_owners = draft.get("min_owners", DEFAULT_MIN_OWNERS)
    body: dict[str, Any] = {
        **{member: draft.get(member, value) for member, value in _CHOICES.items()},
        "format": FORMAT,
        "title": _line(draft["title"]),
        "purpose": _line(draft["purpose"]),
        "user": user.to_body(),
        "proxy": proxy.to_body(),
        "participants": [party.to_body() for party in named],
        "features": features,
        "clip_norm": decimal_text(clip_norm),
        "fraction_bits": bits,
        "release": release,
        "epsilon": decimal_text(real_of(draft["epsilon"], "epsilon")),
        "delta": decimal_text(
            real_of(draft["delta"], "delta") if "delta" in draft else default_delta(draft["max_records"])
        ),
        "sum_weight": decimal_text(weight) if release == ReleaseKind.JOINT else "0",
        "noise_scale": "1",
        "min_owners": min_owners,
        "max_colluding": draft.get("max_colluding", int(draft.get("noise_by") == NoiseBy.OWNERS)),
        "min_records": draft.get("min_records", min_owners),
        "max_records": draft["max_records"],
        "max_owners": draft.get("max_owners", len(named) or DEFAULT_MAX_OWNERS),
        "closes_at": time_text(closing) if isinstance(closing, datetime) else closing,
        "key": KeyTerms.of(key, proof).to_body(),
        "slot_bits": 1,
    }
    calibration = read_choice(draft.get("calibration", Calibration.PROVED), "calibration", [*Calibration])
    if calibration != Calibration.PROVED:
        body["calibration"] = calibration
    if draft.get("cohort_distance", LEAST_COHORT_DISTANCE) != LEAST_COHORT_DISTANCE:
        body["cohort_distance"] = draft["cohort_distance"]
    if draft.get("nonnegative", False) is not False:
        body["nonnegative"] = draft["nonnegative"]
    if "rho_share" in draft:
        body["rho_share"] = decimal_text(real_of(draft["rho_share"], "rho_share"))
    if "pre_studies" in draft:
        body["pre_studies"] = draft["pre_studies"]
    if blocks:
        body["blocks"] = blocks
    if "missing" not in draft and (release == ReleaseKind.PAIRS or OF_PAIRS & blocks.keys()):
        body["missing"] = "midpoint"
    terms = Manifest.parse_terms(body, least_modulus_bits=least_modulus_bits)
    figures = figures_of(terms.terms)
    manifest = replace(terms, noise_scale=figures.noise_scale, slot_bits=figures.slot_bits)
    return Manifest.parse(manifest.to_body(), least_modulus_bits=least_modulus_bits)


def default_delta(max_records: Any) -> Fraction:
    """min(10⁻⁶, 1/max_records²), cut to six significant digits so that it has a short decimal."""
    if not isinstance(max_records, int) or isinstance(max_records, bool) or max_records < 1:
        return DEFAULT_DELTA
    squared = max_records**2
    places = len(str(squared)) + 6
    return min(DEFAULT_DELTA, Fraction(10**places // squared, 10**places))


def _features(drafted: Any, from_lower: bool) -> list[dict[str, Any]]:
    """Bodies of features; their centre is the lower bound `from_lower` where they name none."""
    if not isinstance(drafted, list):
        malformed("features", "a list of tables")
    features = []
    for index, feature in enumerate(drafted):
        where = f"features[{index}]"
        if not isinstance(feature, Mapping):
            malformed(where, "a table")
        kind = feature.get("kind", "categorical" if "levels" in feature else "numeric")
        if kind == "numeric" and not {"lower", "upper"} <= feature.keys():
            raise _without_bounds(where, feature.get("name"))
        completed = {**feature, "kind": kind}
        if from_lower and "lower" in completed:
            completed.setdefault("centre", completed["lower"])
        for member in ("name", "unit", "description"):
            if member in completed:
                completed[member] = _line(completed[member])
        for member in ("lower", "upper", "centre", "scale"):
            if member in completed:
                completed[member] = decimal_text(real_of(completed[member], f"{where}.{member}"))
        if isinstance(completed.get("levels"), list):
            completed["levels"] = [
                _line(str(level) if isinstance(level, int) and not isinstance(level, bool) else level)
                for level in completed["levels"]
            ]
        features.append(completed)
    return features


def _without_bounds(where: str, name: Any) -> MessageError:
    shown = f" ({name})" if isinstance(name, str) and not text_problem(name, 200) else ""
    return MessageError(
        "malformed",
        f"{where}{shown} lacks bounds",
        "write as lower and upper what this quantity can be, from knowledge of it and not from the data",
    )


def _fraction_bits(features: list[dict[str, Any]], clip_norm: Fraction, blocks: Mapping[str, str]) -> int:
    width = sum(Feature.parse(feature, f"features[{i}]").width for i, feature in enumerate(features))
    bits = default_fraction_bits(width, clip_norm) if clip_norm > 0 else 10
    return max(bits, _FINE_BITS) if blocks.keys() & _FINE else bits


def _blocks(drafted: Any) -> dict[str, str]:
    if not isinstance(drafted, Mapping):
        malformed("blocks", "a table with a share for each block")
    return {
        str(name): decimal_text(real_of(share, f"blocks.{name}" if name in PRE_STUDY_BLOCKS else "blocks"))
        for name, share in drafted.items()
    }


def _participants(drafted: Any, known: Sequence[Participant]) -> list[Participant]:
    if not isinstance(drafted, list):
        malformed("participants", "a list")
    named = []
    for index, entry in enumerate(drafted):
        where = f"participants[{index}]"
        if isinstance(entry, str):
            found = [party for party in known if party.name == _line(entry)]
            if len(found) != 1:
                refused(
                    f"{where} is the name of {len(found)} known owners",
                    "wait until the owner has enrolled, or give its ed25519 key beside its name",
                )
            named.append(found[0])
        else:
            named.append(Participant.parse(entry, where))
    return named


def _line(text: Any) -> Any:
    """Text in NFC on one line; anything else is left for the strict parser to refuse."""
    return " ".join(unicodedata.normalize("NFC", text).split()) if isinstance(text, str) else text
