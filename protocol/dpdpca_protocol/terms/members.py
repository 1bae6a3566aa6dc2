"""The members of a manifest, one row each.

These rows drive the strict parser, the signed body, drafts, both JSON Schemas and the table in docs/spec.md.
`rules` and `figures` define what a member means for a study.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final

from dpdpca_protocol.layout.blocks import PRE_STUDY_BLOCKS, BlockName
from dpdpca_protocol.privacy.mechanisms import MECHANISMS
from dpdpca_protocol.privacy.sensitivity import NeighbouringRelation
from dpdpca_protocol.study import ReleaseKind, SummedOver
from dpdpca_protocol.terms.feature_list import FEATURE_LIST_SCHEMA, FeatureListRef
from dpdpca_protocol.terms.features import (
    DRAFTED_FEATURE_SCHEMA,
    FEATURE_SCHEMA,
    MAX_ENCODED_FEATURES,
    Feature,
)
from dpdpca_protocol.terms.figures import MAX_FRACTION_BITS, MAX_ROUNDS
from dpdpca_protocol.terms.forms import (
    DECIMAL,
    DECIMAL_PATTERN,
    FLAG,
    TIME,
    Form,
    choice,
    integer,
    list_of,
    record,
    text,
)
from dpdpca_protocol.terms.parties import (
    KEY_SCHEMA,
    PARTICIPANT_SCHEMA,
    PARTY_SCHEMA,
    PROXY_SCHEMA,
    Participant,
    Party,
    ProxyParty,
    read_key,
)
from dpdpca_protocol.terms.terms import Blinding, NoiseBy, SuiteName
from dpdpca_protocol.terms.wide import (
    LIFT_SCHEMA,
    SCORES_SCHEMA,
    SKETCH_SCHEMA,
    LiftTerms,
    ScoresTerms,
    SketchTerms,
    tidy_scores,
)
from dpdpca_protocol.wire.fields import (
    check_members,
    decimal_text,
    malformed,
    read_choice,
    read_decimal,
    read_integer,
    read_list,
    real_of,
    refused,
)
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.schemas import hex_schema
from dpdpca_protocol.wire.signing import FORMAT

MAX_OWNERS = 100_000
MAX_PARTICIPANTS = 10_000
ENROLLED = "enrolled"
"""In a draft, `participants` may be this word: all owners that are enrolled at the proxy."""
LEAST_COHORT_DISTANCE = 2
"""A cohort must equal an earlier cohort or differ from it by at least this many owners.

This holds for each earlier cohort that has a feature in common.
"""

PROVED = "proved"
"""The only calibration in a manifest: the noise that a proof requires for the promised (ε, δ)."""

_TITLE = 200
_PURPOSE = 4000

MOST_CLIP_SHARE = Fraction(1, 10)
"""The largest fraction of ρ that each of the two numbers about clipping may spend."""


class Drafted(StrEnum):
    """Who sets a member: a person must, a person may, or software does."""

    MUST = "must"
    MAY = "may"
    NEVER = "never"


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()
"""Stands for "no default": a manifest without this member is refused."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a manifest.

    Attributes:
        name: its name in the message, in a draft and in `Manifest`.
        form: how its value is written.
        meaning: one line for the reader of the specification.
        drafted: who sets it.
        default: the value of a member that is omitted, or `REQUIRED`. A body that writes out the default is
            refused.
        in_draft: the value if a draft does not have the member; None if it is then omitted or depends on
            other members.
        in_terms: whether the figures depend on it.
    """

    name: str
    form: Form
    meaning: str
    drafted: Drafted = Drafted.MAY
    default: Any = REQUIRED
    in_draft: Any = None
    in_terms: bool = False

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    def read(self, untrusted: Mapping[str, Any]) -> Any:
        """The typed value in a body, or the default if the body does not have the member."""
        if self.name not in untrusted:
            return self.default
        value = self.form.read(untrusted[self.name], self.name)
        if not self.is_required and value == self.default:
            refused(f"{self.name} is {self.form.write(value)!r}, which is the default", "omit it")
        return value

    def tidy(self, drafted: Any) -> Any:
        """What a person wrote, in the form of a message; None if the value is only the default."""
        if drafted is None:
            malformed(self.name, "a value, or omitted")
        value = self.form.tidy(drafted, self.name)
        silent = not self.is_required and self.default is not None and value == self.form.write(self.default)
        return None if silent else value


def _read_relation(untrusted: Any, where: str) -> NeighbouringRelation:
    if untrusted in ("add-or-remove", "add-or-remove-one", "add-remove"):
        refused(
            "relation add-or-remove is not possible: the number of records is exact in both releases",
            "use replace-one",
        )
    return NeighbouringRelation(read_choice(untrusted, where, [*NeighbouringRelation]))


def _read_rho_share(untrusted: Any, where: str) -> Fraction:
    share = read_decimal(untrusted, where)
    if not 0 < share < 1:
        refused("rho_share is not between 0 and 1", "omit rho_share if this study spends everything")
    return share


def _read_clip_share(untrusted: Any, where: str) -> Fraction:
    share = read_decimal(untrusted, where)
    if not 0 <= share <= MOST_CLIP_SHARE:
        refused(
            f"clip_share is not above 0 and at most {decimal_text(MOST_CLIP_SHARE)}",
            "omit clip_share if the study shall not tell what clipping did",
        )
    return share


def _read_clip_cap(untrusted: Any, where: str) -> Fraction:
    cap = read_decimal(untrusted, where)
    if cap < 0:
        refused("clip_cap is below 0", "omit clip_cap for the largest length that the bounds allow")
    return cap


def _read_pre_studies(untrusted: Any, where: str) -> tuple[StudyId, ...]:
    listed = read_list(untrusted, where, MAX_ROUNDS - 1)
    if not listed:
        malformed(where, "a list of study ids, or omitted")
    return tuple(StudyId.parse(study) for study in listed)


def _read_blocks(untrusted: Any, where: str) -> tuple[tuple[BlockName, Fraction], ...]:
    check_members(untrusted, where, (), PRE_STUDY_BLOCKS)
    if not untrusted:
        malformed(where, "an object with a share for each block, or omitted")
    return tuple(
        (name, read_decimal(untrusted[name], f"{where}.{name}"))
        for name in PRE_STUDY_BLOCKS
        if name in untrusted
    )


def _tidy_blocks(drafted: Any, where: str) -> dict[str, str]:
    if not isinstance(drafted, Mapping):
        malformed(where, "a table with a share for each block")
    return {
        str(name): decimal_text(real_of(share, f"{where}.{name}" if name in PRE_STUDY_BLOCKS else where))
        for name, share in drafted.items()
    }


def _read_distance(untrusted: Any, where: str) -> int:
    return read_integer(untrusted, where, LEAST_COHORT_DISTANCE, MAX_OWNERS)


def _proved(names: tuple[str, ...], unproved: tuple[str, ...]) -> Form:
    """One of `names`. `unproved` are names that only the lab knows; they are refused with the reason."""
    known = choice(names)

    def read(untrusted: Any, where: str) -> Any:
        if untrusted in unproved:
            refused(
                f"{where} {untrusted} has no proof of privacy here; it exists only in the lab",
                f"use {' or '.join(names)}; `dpdpca experiments list` lists what the lab shows",
            )
        return known.read(untrusted, where)

    return replace(known, read=read)


_RELATION = Form("`replace-one`", {"enum": [*NeighbouringRelation]}, _read_relation, str)
_SHARE = Form(
    "decimal between 0 and 1",
    {"type": "string", "pattern": DECIMAL_PATTERN},
    _read_rho_share,
    decimal_text,
    DECIMAL.tidy,
    DECIMAL.draft_schema,
)
_CLIP_SHARE = replace(_SHARE, words='decimal above 0, at most "0.1"', read=_read_clip_share)
_CLIP_CAP = replace(_SHARE, words="decimal above 0", read=_read_clip_cap)
_STUDY_IDS = Form(
    f"list of 1 to {MAX_ROUNDS - 1} study ids",
    {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_ROUNDS - 1,
        "items": hex_schema(32),
    },
    _read_pre_studies,
    lambda studies: [study.hex() for study in studies],
    draft_schema={"type": "array", "maxItems": MAX_ROUNDS - 1, "items": hex_schema(32)},
)
_STUDY_ID = Form(
    "study id",
    hex_schema(32),
    lambda value, _where: StudyId.parse(value),
    lambda study: study.hex(),
)
_BLOCK_SHARES = Form(
    "object of block names to decimals",
    {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": False,
        "properties": {str(name): DECIMAL.schema for name in PRE_STUDY_BLOCKS},
    },
    _read_blocks,
    lambda blocks: {str(name): decimal_text(share) for name, share in blocks},
    _tidy_blocks,
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {str(name): DECIMAL.draft_schema for name in PRE_STUDY_BLOCKS},
    },
)
_DISTANCE = Form(
    f"integer from {LEAST_COHORT_DISTANCE + 1}",
    {"type": "integer", "minimum": LEAST_COHORT_DISTANCE + 1, "maximum": MAX_OWNERS},
    _read_distance,
    draft_schema={"type": "integer", "minimum": LEAST_COHORT_DISTANCE, "maximum": MAX_OWNERS},
)
_MUST, _NEVER = Drafted.MUST, Drafted.NEVER
_FEATURES = list_of(
    Feature.parse, MAX_ENCODED_FEATURES, FEATURE_SCHEMA, "list of features", DRAFTED_FEATURE_SCHEMA
)
_NAMED = list_of(
    Participant.parse,
    MAX_PARTICIPANTS,
    PARTICIPANT_SCHEMA,
    "list of `{name, ed25519}`, may be empty; in a blinded study of `{name, ed25519, x25519}`",
    {"anyOf": [{"type": "string", "minLength": 1}, PARTICIPANT_SCHEMA]},
)
_PARTICIPANTS = replace(
    _NAMED, draft_schema={"anyOf": [{"type": "string", "enum": [ENROLLED]}, _NAMED.draft_schema]}
)
_BLINDING = replace(
    choice(Blinding),
    words="`pairwise`",
    schema={"enum": [str(Blinding.PAIRWISE)]},
    draft_schema={"enum": [*Blinding]},
)
_SCORES = replace(
    record(ScoresTerms.parse, SCORES_SCHEMA, "`{columns, study, components, norm}`"),
    tidy=tidy_scores,
    draft_schema=SCORES_SCHEMA | {"properties": SCORES_SCHEMA["properties"] | {"norm": DECIMAL.draft_schema}},
)
_MECHANISM = _proved(tuple(mechanism.name for mechanism in MECHANISMS), ("mod-sulq", "wishart"))
_CALIBRATION = _proved((PROVED,), ("as-published",))

MEMBERS: tuple[Member, ...] = (
    Member("title", text(_TITLE), "the title of the study", _MUST),
    Member("purpose", text(_PURPOSE), "the purpose of the study", _MUST),
    Member("user", record(Party.parse, PARTY_SCHEMA, "`{name, ed25519}`"), "the data user", _NEVER),
    Member(
        "proxy",
        record(ProxyParty.parse, PROXY_SCHEMA, "`{name, url, ed25519, kem}`"),
        "the proxy",
        _NEVER,
    ),
    Member(
        "participants",
        _PARTICIPANTS,
        "the owners that may take part; if empty, any enrolled owner may",
        in_draft=[],
    ),
    Member(
        "features",
        _FEATURES,
        "the columns, in the order of the encoding, unless `feature_list` names them",
        _MUST,
    ),
    Member(
        "missing",
        choice(("reject", "midpoint")),
        "`reject` drops a record with a missing value; `midpoint` replaces the value by the centre",
        in_draft="reject",
        in_terms=True,
    ),
    Member(
        "scaling",
        choice(("range", "common")),
        "`range` divides each value by its own half-range; `common` divides all by the largest half-range",
        in_draft="range",
    ),
    Member(
        "clip_norm",
        DECIMAL,
        "r, the largest norm of a scaled record (in a `pairs` study, of a difference)",
        _MUST,
        in_terms=True,
    ),
    Member(
        "fraction_bits",
        integer(0, MAX_FRACTION_BITS),
        "f; one scaled unit is q = 2^f grid units",
        in_terms=True,
    ),
    Member("mechanism", _MECHANISM, "the distribution of the noise", in_draft="gaussian", in_terms=True),
    Member(
        "calibration",
        _CALIBRATION,
        "the calibration of the noise; the only value is the default",
        default=PROVED,
    ),
    Member("release", choice(ReleaseKind), "the kind of release", _MUST, in_terms=True),
    Member("relation", _RELATION, "the definition of neighbouring data sets", in_draft="replace-one"),
    Member("epsilon", DECIMAL, "the total ε", _MUST, in_terms=True),
    Member("delta", DECIMAL, "the total δ, below 1/N̄", in_terms=True),
    Member("noise_by", choice(NoiseBy), "who draws the noise", in_draft="proxy", in_terms=True),
    Member(
        "max_colluding", integer(0, MAX_OWNERS), "how many owners may collude if the owners draw the noise"
    ),
    Member("sum_weight", DECIMAL, "a/K, the weight of the sums in a joint study; otherwise 0", in_terms=True),
    Member("noise_scale", DECIMAL, "the scale of all noise; every party computes it again", _NEVER),
    Member("min_owners", integer(1, MAX_OWNERS), "the smallest number of owners for a release", in_draft=3),
    Member("min_records", integer(1), "the smallest number of records for a release"),
    Member("max_records", integer(1), "N̄, the most records that the study can hold", _MUST, in_terms=True),
    Member("max_owners", integer(1, MAX_OWNERS), "the most owners that may take part", in_terms=True),
    Member(
        "closing",
        choice(("at-time", "when-complete")),
        "when the study closes by itself",
        in_draft="at-time",
    ),
    Member("closes_at", TIME, "the latest time at which the study closes"),
    Member("suite", choice(SuiteName), "how owners hide their values", in_terms=True),
    Member(
        "key",
        record(read_key, KEY_SCHEMA, "`{modulus, proof}`, or `{kem}` under `pads`"),
        "the study's own key",
        _NEVER,
    ),
    Member(
        "blinding",
        _BLINDING,
        "whether each two owners add masks that vanish in the sum, against proxy and data user together",
        default=Blinding.NONE,
    ),
    Member(
        "slot_bits",
        integer(1),
        "the width of a slot in bits under `paillier`; every party computes it again",
        _NEVER,
        default=0,
    ),
    Member(
        "nonnegative",
        FLAG,
        "whether no encoded value is below 0; this lowers the noise of a masked study",
        default=False,
        in_terms=True,
    ),
    Member(
        "cohort_distance",
        _DISTANCE,
        "the smallest number of owners by which two cohorts may differ if their studies share a feature",
        default=LEAST_COHORT_DISTANCE,
    ),
    Member(
        "rho_share",
        _SHARE,
        "the fraction of a chain's ρ that this study spends",
        default=Fraction(1),
        in_terms=True,
    ),
    Member("pre_studies", _STUDY_IDS, "earlier rounds of the chain, oldest first", default=()),
    Member(
        "blocks",
        _BLOCK_SHARES,
        "the blocks that a pre-study releases, each with its fraction of the study's ρ",
        default=(),
        in_terms=True,
    ),
    Member(
        "clip_share",
        _CLIP_SHARE,
        "the fraction of the study's ρ that each of the two numbers about clipping spends, and with `missing`"
        " = `midpoint` also the number of missing values",
        default=Fraction(0),
        in_terms=True,
    ),
    Member(
        "clip_cap",
        _CLIP_CAP,
        "the largest length, in scaled units, that counts in the second of these numbers; if left out, the"
        " largest that the bounds allow",
        default=Fraction(0),
    ),
    Member(
        "extends",
        _STUDY_ID,
        "the study whose records this one adds to, on the same terms; owners bring new records only",
        default=None,
    ),
    Member(
        "feature_list",
        record(FeatureListRef.parse, FEATURE_LIST_SCHEMA, "`{sha256, bytes, count}`"),
        "the list of features, a file that the manifest names in place of `features`",
        default=None,
    ),
    Member(
        "of",
        choice(SummedOver),
        "what a sketch, a lift or scores add up: records, or differences of pairs",
        default=None,
        in_terms=True,
    ),
    Member(
        "sketch",
        record(SketchTerms.parse, SKETCH_SCHEMA, "`{rows, seed}`"),
        "the public mixtures of features that a sketch adds up and a lift reads: m, and the seed of P₀",
        default=None,
    ),
    Member(
        "lift",
        record(LiftTerms.parse, LIFT_SCHEMA, "`{columns, matrix, offset}`"),
        "the public rule that makes k numbers of a record: k, C and o",
        default=None,
    ),
    Member(
        "scores",
        _SCORES,
        "the components on which records are projected: k, the lift's study, the digest of its statement of"
        " components, and r′, the largest norm of scores",
        default=None,
    ),
)
"""All members, in the order for human readers. In a message, members are in canonical order."""


def manifest_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a manifest's body."""
    return _document(
        "A manifest: the signed terms of one study",
        {"format": {"const": FORMAT, "description": "version of the message format"}}
        | {member.name: dict(member.form.schema) | {"description": member.meaning} for member in MEMBERS},
        ["format", *(member.name for member in MEMBERS if member.is_required)],
    )


def draft_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a draft, which a person writes in TOML or JSON."""
    drafted = [member for member in MEMBERS if member.drafted is not Drafted.NEVER]
    return _document(
        "A draft: the terms that a person writes before the manifest is made",
        {
            member.name: dict(member.form.draft_schema or member.form.schema)
            | {"description": member.meaning}
            | ({"default": member.in_draft} if member.in_draft is not None else {})
            for member in drafted
        },
        [member.name for member in drafted if member.drafted is Drafted.MUST],
    )


def _document(title: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": sorted(set(required) - set(_EITHER)),
        "oneOf": [{"required": [name]} for name in _EITHER],
    }


_EITHER = ("features", "feature_list")
"""A manifest has one of these: its features, or the name of a list of them."""
