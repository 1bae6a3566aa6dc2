"""Turns a draft that a person wrote into a complete manifest.

A draft is parsed TOML with the names of the manifest. Numbers may be TOML numbers or strings, and members
that only a machine can know are missing. A draft is trusted input from the data user's own side. The
manifest made from it must pass the same strict parser as any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from typing import Any

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.layout.blocks import OF_PAIRS, PRE_STUDY_BLOCKS, BlockName
from dpdpca_protocol.study import ReleaseKind, SummedOver
from dpdpca_protocol.terms.feature_list import FeatureLists, listed_features, no_lists
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.terms.figures import default_fraction_bits, figures_of
from dpdpca_protocol.terms.forms import one_line
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.members import ENROLLED, MAX_PARTICIPANTS, MEMBERS, Drafted, Member
from dpdpca_protocol.terms.parties import Participant, Party, ProxyParty, StudyKey
from dpdpca_protocol.terms.release_rules import ReleaseRules, rules_of
from dpdpca_protocol.terms.signed_manifest import named_list, parse_manifest, parse_terms
from dpdpca_protocol.terms.terms import Blinding, NoiseBy, SuiteName
from dpdpca_protocol.wire.fields import (
    check_members,
    decimal_text,
    malformed,
    read_choice,
    read_decimal,
    read_list,
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
DEFAULT_WIDE_WEIGHT = Fraction(5, 100)
"""The weight of the sums in a sketch or in scores, which come after rounds that moved the centre."""

_DRAFTED = {member.name: member for member in MEMBERS if member.drafted is not Drafted.NEVER}
_NEEDED = [name for name, member in _DRAFTED.items() if member.drafted is Drafted.MUST]
_OF_OWNERS_NOISE = ("blinding", "noise_by", "max_colluding")
_FINE = frozenset(PRE_STUDY_BLOCKS) - {BlockName.SUM}
_FINE_BITS = 16
"""The lowest edges of histograms are 2⁻¹² of a half-range; the grid must be finer than that."""


def complete_draft(
    draft: Mapping[str, Any],
    user: Party,
    proxy: ProxyParty,
    participants: Sequence[Participant],
    key: StudyKey,
    *,
    closes_at: datetime | None = None,
    feature_lists: FeatureLists = no_lists,
) -> Manifest:
    """The manifest that a draft asks for, with defaults, noise scale and slot width filled in.

    Args:
        draft: parsed TOML or JSON. The draft's `participants` are names of owners in `participants`, or
            tables with name and ed25519, or "enrolled". If the draft is blinded, their keys for blinding
            come from `participants`. Members that belong only to other releases (`sum_weight`, `blocks`,
            `clip_share`, `clip_cap`) are dropped, so that one draft can be used for every release.
        user, proxy: the parties as the data user knows them.
        participants: owners that the draft may name, and all of whom it names with "enrolled". If the draft
            names nobody, the manifest names nobody.
        key: the study's own key, of the suite that `suite_of_draft` names.
        closes_at: closing time if the draft has none.
        feature_lists: gives the list that the draft may name in place of `features`.

    Raises:
        MessageError: the draft is malformed or has unknown members; `feature-list-differs`.
        NotFoundError: `feature-list-missing`.
        PolicyError: `manifest-refused`, with the reason for which every party would refuse the manifest.
    """
    _check_drafted(draft)
    release = ReleaseKind(read_choice(draft["release"], "release", [*ReleaseKind]))
    said = {name: value for name, value in draft.items() if _belongs(name, release)}
    for name in draft.keys() - said.keys():
        _check_form(_DRAFTED[name], draft[name])
    body = {
        "format": FORMAT,
        "user": user.to_body(),
        "proxy": proxy.to_body(),
        "key": key.to_body(),
        "noise_scale": "1",
        **{name: member.in_draft for name, member in _DRAFTED.items() if member.in_draft is not None},
    }
    tidied = _tidied(said, participants)
    if is_blinded_draft(draft):
        body |= _blinded(len(tidied.get("participants", [])))
    body |= tidied
    if closes_at is not None:
        body.setdefault("closes_at", time_text(closes_at))
    body.setdefault("suite", str(default_suite(release)))
    for name, value in _consequences(body, feature_lists).items():
        body.setdefault(name, value)
    if "closes_at" not in body:
        malformed("the draft", "complete: closes_at is missing")
    if "missing" not in draft and (_needs_all_records(body) or OF_PAIRS & body.get("blocks", {}).keys()):
        body["missing"] = "midpoint"
    terms = parse_terms(body, feature_lists)
    figures = figures_of(terms.terms)
    manifest = replace(terms, noise_scale=figures.noise_scale, slot_bits=figures.slot_bits)
    return parse_manifest(manifest.to_body(), feature_lists)


def _check_drafted(draft: Mapping[str, Any]) -> None:
    """Checks that a draft has the members that it needs, and no unknown ones."""
    left_out = "features" if "feature_list" in draft else "feature_list"
    needed = [name for name in _NEEDED if name != left_out]
    check_members(draft, "the draft", needed, _DRAFTED.keys() - {left_out})


def default_suite(release: ReleaseKind) -> SuiteName:
    """The suite of a draft that names none."""
    return SuiteName.PAILLIER if rules_of(release).is_masked else SuiteName.PADS


def suite_of_draft(draft: Mapping[str, Any]) -> SuiteName:
    """The suite that a draft asks for. Raises MessageError like `complete_draft`."""
    _check_drafted(draft)
    if "suite" in draft:
        return SuiteName(read_choice(draft["suite"], "suite", [*SuiteName]))
    return default_suite(ReleaseKind(read_choice(draft["release"], "release", [*ReleaseKind])))


def is_blinded_draft(draft: Mapping[str, Any]) -> bool:
    """Whether a draft asks for blinding."""
    return bool(draft.get("blinding") == Blinding.PAIRWISE)


def gets_second_draw(draft: Mapping[str, Any], in_clear: bool = False) -> bool:
    """Whether the components of a draft get a second draw of noise, if the proxy draws the first one."""
    return in_clear or not draft.get("participants")


def with_noise_by_proxy(draft: Mapping[str, Any]) -> dict[str, Any]:
    """The draft of the same owners in which the proxy draws the noise, so that nothing is blinded."""
    kept = {name: value for name, value in draft.items() if name not in _OF_OWNERS_NOISE}
    if not is_blinded_draft(draft):
        return kept
    named = draft.get("participants")
    least = {"min_owners": len(named)} if isinstance(named, list) else {}
    return {"closing": "when-complete", **least, **kept}


def _blinded(owners: int) -> dict[str, Any]:
    """The values of a blinded study with so many participants, if the draft is silent.

    Raises:
        PolicyError: `manifest-refused`, a single owner has nobody to share masks with.
    """
    if owners < 2:
        refused(
            f"a blinded study needs two named owners or more, and this draft names {owners}",
            "name the owners in participants, or leave blinding out",
        )
    return {
        "noise_by": str(NoiseBy.OWNERS),
        "closing": "when-complete",
        "min_owners": owners,
        "max_owners": owners,
    }


def _belongs(name: str, release: ReleaseKind) -> bool:
    """Whether this release has the member `name`; every release has most members."""
    if name == "sum_weight":
        return rules_of(release).weighs_sum
    if name in ("clip_share", "clip_cap"):
        return rules_of(release).tells_clipping
    return name != "blocks" or rules_of(release).names_blocks


def _check_form(member: Member, drafted: Any) -> None:
    """Refuses a value that no release could use, even if this release drops it."""
    if (tidied := member.tidy(drafted)) is not None:
        member.read({member.name: tidied})


def _tidied(draft: Mapping[str, Any], known: Sequence[Participant]) -> dict[str, Any]:
    """The members of the draft, in the form that a manifest requires."""
    body = {}
    for name, value in draft.items():
        if name == "features":
            body[name] = tidied_features(value, draft.get("nonnegative") is True)
        elif name == "participants":
            body[name] = _named(value, known, is_blinded=is_blinded_draft(draft))
        elif (tidy := _DRAFTED[name].tidy(value)) is not None:
            body[name] = tidy
    return body


def _named(drafted: Any, known: Sequence[Participant], *, is_blinded: bool) -> list[dict[str, Any]]:
    """The bodies of the owners that a draft names. Their keys for blinding are only in a blinded study."""
    named = named_participants(drafted, known)
    if is_blinded:
        by_key = {party.ed25519: party.x25519 for party in known}
        named = [replace(each, x25519=each.x25519 or by_key.get(each.ed25519)) for each in named]
    else:
        named = [replace(each, x25519=None) for each in named]
    return [party.to_body() for party in named]


def _consequences(body: Mapping[str, Any], feature_lists: FeatureLists) -> dict[str, Any]:
    """Default values that depend on other members of the draft."""
    rules = _rules(body)
    sum_weight = (DEFAULT_WIDE_WEIGHT if rules.is_wide else DEFAULT_SUM_WEIGHT) if rules.weighs_sum else 0
    return {
        "fraction_bits": _fraction_bits(body, feature_lists),
        "delta": decimal_text(default_delta(body["max_records"])),
        "max_colluding": int(body["noise_by"] == NoiseBy.OWNERS),
        "sum_weight": decimal_text(Fraction(sum_weight)),
        "min_records": body["min_owners"],
        "max_owners": len(body["participants"]) or DEFAULT_MAX_OWNERS,
    }


def _rules(body: Mapping[str, Any]) -> ReleaseRules:
    """The rules of the release that a draft asks for."""
    pairs = SummedOver.PAIRS if body.get("of") == SummedOver.PAIRS else None
    return rules_of(ReleaseKind(body["release"]), pairs)


def _needs_all_records(body: Mapping[str, Any]) -> bool:
    """Whether no record may be dropped for a missing value."""
    rules = _rules(body)
    return rules.of_pairs or rules.is_wide


def default_delta(max_records: Any) -> Fraction:
    """min(10⁻⁶, 1/max_records²), rounded down to six significant digits so that its decimal is short."""
    if not isinstance(max_records, int) or isinstance(max_records, bool) or not 1 <= max_records < 2**53:
        return DEFAULT_DELTA
    squared = max_records**2
    places = len(str(squared)) + 6
    return min(DEFAULT_DELTA, Fraction(10**places // squared, 10**places))


def tidied_features(drafted: Any, from_lower: bool) -> list[dict[str, Any]]:
    """Bodies of features.

    With `from_lower`, a feature without a centre gets its lower bound as the centre.
    """
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
                completed[member] = one_line(completed[member])
        for member in ("lower", "upper", "centre", "scale"):
            if member in completed:
                completed[member] = _decimal_texts(completed[member], f"{where}.{member}")
        if isinstance(completed.get("levels"), list):
            completed["levels"] = [_level(level) for level in completed["levels"]]
        features.append(completed)
    return features


def _decimal_texts(drafted: Any, where: str) -> str | list[str]:
    """A number, or the list of numbers that a categorical feature has as its centre, as decimals."""
    if isinstance(drafted, list):
        return [decimal_text(real_of(each, f"{where}[{i}]")) for i, each in enumerate(drafted)]
    return decimal_text(real_of(drafted, where))


def _without_bounds(where: str, name: Any) -> MessageError:
    shown = f" ({name})" if isinstance(name, str) and not text_problem(name, 200) else ""
    return MessageError(
        "malformed",
        f"{where}{shown} lacks bounds",
        "give lower and upper from what you know about the quantity, not from the data",
    )


def _fraction_bits(body: Mapping[str, Any], feature_lists: FeatureLists) -> int:
    if (reference := named_list(body)) is not None:
        features = listed_features(reference, feature_lists)
    else:
        features = tuple(Feature.parse(each, f"features[{i}]") for i, each in enumerate(body["features"]))
    clip_norm = read_decimal(body["clip_norm"], "clip_norm")
    bits = default_fraction_bits(sum(each.width for each in features), clip_norm) if clip_norm > 0 else 10
    return max(bits, _FINE_BITS) if body.get("blocks", {}).keys() & _FINE else bits


def named_participants(drafted: Any, known: Sequence[Participant]) -> list[Participant]:
    """The owners that a draft names.

    Args:
        drafted: the draft's member `participants`.
        known: the enrolled owners.

    Raises:
        MessageError: the member is malformed.
        PolicyError: `manifest-refused`, a name is not that of exactly one known owner, or nobody is enrolled.
    """
    if drafted == ENROLLED:
        if not known:
            refused(
                'participants is "enrolled", but no owner is enrolled at the proxy',
                "wait until the owners have enrolled",
            )
        return list(known)
    if isinstance(drafted, str):
        raise MessageError("malformed", f'participants must be a list, or the word "{ENROLLED}"')
    by_name: dict[str, list[Participant]] = {}
    for party in known:
        by_name.setdefault(party.name, []).append(party)
    named = []
    for index, entry in enumerate(read_list(drafted, "participants", MAX_PARTICIPANTS)):
        where = f"participants[{index}]"
        if isinstance(entry, str):
            found = by_name.get(one_line(entry), [])
            if len(found) != 1:
                refused(
                    f"{where} is the name of {len(found)} known owners instead of one",
                    "wait until the owner has enrolled, or give its ed25519 key together with its name",
                )
            named.append(found[0])
        else:
            named.append(Participant.parse(entry, where))
    return named


def _level(level: Any) -> Any:
    """A level as text. Whole numbers are also levels, unless they are too long."""
    is_number = isinstance(level, int) and not isinstance(level, bool) and abs(level) < 10**200
    return one_line(str(level) if is_number else level)
