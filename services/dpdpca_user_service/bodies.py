"""The JSON bodies of this service's routes."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, RootModel

from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_runtime.bodies import (
    Body,
    Id,
    LogEntryBody,
    OwnerInStudy,
    Progress,
    Signed,
    Time,
    statement,
)
from dpdpca_user_service.store.chains import ChainState

DraftId = Annotated[str, Field(pattern="^[0-9a-f]{32}$", examples=["0b" * 16])]
Vector = list[float]
Matrix = list[Vector]


class ProblemSummary(Body):
    """The reason why something failed or waits; `type` is the slug of a problem."""

    type: str | None
    detail: str


class KeySearchBody(Body):
    """The random search for the two primes of a study's key. It comes no closer by lasting longer."""

    primes: int = Field(description="How many of the two primes are found.")
    tested: int = Field(description="Candidates tested so far.")
    expected: int = Field(
        description="Candidates that are still to be tested on average, however many were tested."
    )
    seconds: float | None = Field(description="Time for them at the speed so far, once there is one.")


class DeclinedBody(Body):
    """An owner's signed statement that it does not take part."""

    time: Time = Field(description="By the owner's clock.")
    why: str | None = Field(description="The owner's reason, in its own words.")


class FollowedOwner(OwnerInStudy):
    """State of one owner in a study, as its data user knows it."""

    declined: DeclinedBody | None


class StudyBody(Body):
    """A study. `state` is the stage in this service, or the proxy's state if that is more precise."""

    id: DraftId
    draft: DraftId = Field(description="Same as id.")
    study: Id | None = Field(description="The study's id, once the manifest is signed.")
    title: str
    release: ReleaseKind
    state: str
    has_model: bool
    has_result: bool
    publish: bool
    in_clear: bool
    progress: Progress | None
    key_search: KeySearchBody | None
    owners: list[FollowedOwner]
    owners_complete: int
    closes_at: Time | None
    proxy: str
    created_at: Time
    updated_at: Time
    seconds: dict[str, float] = Field(description="Seconds that each step took in this service.")
    failure: str | None
    problem: ProblemSummary | None


class NamedOwnerBody(Body):
    """An owner that a study names, with the fingerprint of its key as twelve words."""

    name: str
    ed25519: Id
    words: str


class CreatedStudyBody(StudyBody):
    """A new study, and the owners that it will name."""

    participants: list[NamedOwnerBody]


class StudiesBody(Body):
    studies: list[StudyBody]


class ModelsBody(Body):
    models: list[StudyBody]


class RoundBody(Body):
    """One round of a chain, and the reasons for its choice."""

    draft: DraftId
    study: Id | None
    release: ReleaseKind
    rho_share: float
    clip_norm: float
    reasons: list[str]
    state: str
    problem: ProblemSummary | None
    owners: list[FollowedOwner]


class ChainBody(Body):
    """A chain of studies."""

    id: DraftId
    title: str
    state: ChainState
    participants: list[NamedOwnerBody] = Field(description="The owners that all rounds name.")
    rounds: list[RoundBody]
    spent_share: float = Field(description="Fraction of the chain's ρ that its studies spend.")
    study: Id | None = Field(description="Id of the last study, once the chain is done.")
    proxy: str
    created_at: Time
    updated_at: Time
    problem: ProblemSummary | None


class ChainsBody(Body):
    chains: list[ChainBody]


class HistogramBody(Body):
    """Noisy counts, with the upper edge of each bin and the standard deviation of the noise on each count."""

    edges: Vector
    counts: list[int]
    noise: float


class NoisySumBody(Body):
    """The noisy sum of the records divided by their number, in scaled units."""

    mean: Vector
    noise: float
    clip_norm: float


class NoisyCountBody(Body):
    """A noisy count, and the standard deviation of its noise."""

    count: int
    noise: float


class SketchBody(Body):
    """What a sketch shows, in grid units: the directions in which mixtures of features vary, and noise."""

    seed: Id
    clip_norm: str
    fraction_bits: int
    count: int = Field(description="Records, or pairs of records.")
    of_pairs: bool
    seen_count: int = Field(description="How many leading directions cannot be noise.")
    sums: list[int] = Field(description="Of the mixtures, with noise; all 0 for pairs.")
    trace: float
    trace_noise: float
    bulk: float = Field(description="The median eigenvalue.")
    half_width: float = Field(description="Half the width of the bulk of eigenvalues.")
    edge: float = Field(description="A direction with a lower height cannot be told from the bulk.")
    noise_energy: float
    mean_square: float = Field(description="Of the mean, without its noise.")
    mean: Vector
    directions: Matrix
    heights: Vector = Field(description="The eigenvalues above the bulk.")
    widths: Vector
    strengths: Vector = Field(description="Eigenvalues without noise and mixed features.")


class ResultBody(Body):
    """The released numbers of a pre-study or a sketch."""

    format: int
    release: ReleaseKind
    study: Id
    records: int
    names: list[str]
    centre: Vector
    half_range: Vector
    epsilon: str
    delta: str
    rho_share: str
    rho: float
    rho_total: float
    noise_by: NoiseBy
    noise_draws: float
    pre_studies: list[Id]
    norms: HistogramBody | None
    pair_norms: HistogramBody | None
    sum: NoisySumBody | None
    octaves: list[HistogramBody] | None
    far_pairs: NoisyCountBody | None
    sketch: SketchBody | None
    title: str
    claim: str
    statements: list[str]


class ReleaseBundleBody(Body):
    """The release as the proxy gave it, without its chunks."""

    log: list[LogEntryBody]
    release: Annotated[Signed, statement("release")]
    shares: list[Annotated[Signed, statement("share")]]
    transcript: list[Annotated[Signed, statement("event")]]


class EvidenceBody(Body):
    """All signed statements of a study that this service has."""

    study: Id
    state: str
    chunk_count: int
    log: list[LogEntryBody]
    manifest: Annotated[Signed, statement("manifest")]
    challenge: Annotated[Signed, statement("count-challenge")] | None
    answer: Annotated[Signed, statement("count-answer")] | None
    opened: Annotated[Signed, statement("opened")] | None
    components: Annotated[Signed, statement("components")] | None
    release: ReleaseBundleBody | None
    feature_list: list[dict[str, Any]] | None


class FeatureListBody(Body):
    """A list of features, as a draft and a manifest name it."""

    sha256: Id
    bytes: int
    count: int


class DeltaPartsBody(Body):
    """The parts of δ."""

    noise: float
    mask: float
    tails: float


class ContinuousBody(Body):
    """What continuous noise of the same strength would give; for comparison, never used."""

    epsilon: float
    noise_scale: float | None


class RoundPrivacyBody(Body):
    """What one round of a chain spends."""

    delta: float
    epsilon: float
    rho: float
    rho_share: float


class PrivacyBody(Body):
    """The facts behind the privacy claim."""

    calibration: str
    delta: float
    epsilon: float
    guarantee: str
    mechanism: str
    in_clear: bool
    noise_by: NoiseBy
    noise_draws: int
    records: int
    relation: str
    rho: float
    round: RoundPrivacyBody | None
    statements: list[str]
    study: Id
    delta_parts: DeltaPartsBody
    noise_scale: float
    continuous_gaussian: ContinuousBody | None


class GapsBody(Body):
    """How many values are missing."""

    share: float = Field(description="Estimate of the share of missing values.")
    share_deviation: float
    present: float = Field(
        description="Share of coordinates with a value, by which variances were corrected; 1 if not."
    )
    present_deviation: float
    may_be_more: bool = Field(description="Whether the share is near the most that can be told.")


class ClippingBody(Body):
    """What clipping did, and the variances of the first components before it and without gaps, with
    deviations and 90 % intervals."""

    share: float
    share_deviation: float
    factor: float | None
    factor_deviation: float | None
    total_variance: float | None
    total_variance_deviation: float | None
    variances: Vector
    deviations: Vector
    low: Vector
    high: Vector
    gaps: GapsBody | None
    told: list[int] = Field(
        description="The released integers, with noise: how many rows were clipped, their squared lengths,"
        " and how many values are missing, if that is told. Empty for older models."
    )


class ReliabilityBody(Body):
    """Quality figures for the components, with intervals."""

    draws: int
    of_unclipped: bool = Field(description="Whether the points are about the records before clipping.")
    total_variance_deviation: float
    share_low: Vector
    share_high: Vector
    overlap_low: Vector
    overlap_high: Vector
    variances: Vector
    clipping: ClippingBody | None
    of_pairs: bool


class CorrelationBody(Body):
    """Components of the correlation matrix."""

    denoised: bool
    components: Matrix
    explained_variance: Vector
    deviations: Vector
    scale: Vector


class ContributionBody(Body):
    """One owner's contribution to a model."""

    owner: Id
    name: str
    version: int
    statement: Id


class ModelBody(Body):
    """Components with quality figures for each; variances are in the units of `metric`."""

    study: Id
    title: str
    records: int
    pairs: int | None
    features: list[str]
    metric: str
    components: Matrix
    captured_variance: Vector
    eigenvalues: Vector
    noise_edge: float
    noise_edges: Vector
    noise_scale: float
    predicted_overlaps: Vector
    labels: list[str]
    trusted_components: int
    variance_kind: str = Field(description="What captured_variance is: `variance` or `lower bound`.")
    variance_deviations: Vector | None = Field(
        description="Standard deviations of the noise in captured_variance, if scores show it."
    )
    captured_shares: Vector
    captured_shares_are_bounds: list[bool]
    reliability: ReliabilityBody | None
    not_included: str = Field(description="Which records the figures are about: clipped ones, or all.")
    notes: list[str] = Field(description="What a reader of components of many features has to know.")
    correlation: CorrelationBody | None
    total_variance: float
    mean: Vector | None
    origin: Vector
    scale: Vector
    privacy: PrivacyBody
    claim: str
    assumptions: list[str]
    cohort: Id
    owners: list[ContributionBody]


class MomentsBody(Body):
    """Figures about pairs of features, each with the standard deviation of its noise beside it."""

    study: Id
    kind: Literal["covariance", "correlation"]
    features: list[str]
    values: list[list[float | None]] = Field(
        description="Covariances in products of original units. null for a correlation that noise hides."
    )
    deviations: list[list[float | None]]
    in_noise: list[list[bool]] = Field(description="Figures that cannot be told from noise.")
    kept: float = Field(
        description="The factor by which noise removal shrank what is not along components above the noise."
    )
    factor: float = Field(description="What covariances were multiplied by to allow for clipping.")
    present: float = Field(
        description="Share of coordinates with a value, by which figures were corrected for missing values."
    )


class MeanBody(Body):
    """Means in original units, each with the standard deviation of its noise beside it."""

    study: Id
    features: list[str]
    values: Vector
    deviations: Vector


class Rows(Body):
    """Rows to project: values by feature, or lists of the encoded numbers."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"rows": [{"age": 52, "systolic": 131.5}]}]}
    )

    rows: list[dict[str, Any] | Vector]


class ScoresBody(Body):
    """One list of scores for each row."""

    study: Id
    scores: Matrix


class LintBody(Body):
    """The consequences of a valid draft, and suggestions for it."""

    release: ReleaseKind | None = Field(description="null for the draft of a chain, which names no release.")
    encoded_features: int
    share_bytes: int = Field(description="Size of an owner's share, in bytes.")
    advice: list[str]


class SightBody(Body):
    """What a release would show under one assumption about the centres."""

    release: ReleaseKind = Field(description="For a chain, the release that it would end with.")
    clipped_share: float = Field(description="Share of records (or differences) that would be clipped.")
    kappa: float = Field(description="κ, the factor by which the records needed grow.")
    least_records: dict[str, int] = Field(description="Records needed for each share of a component.")
    components_above_noise: int | None


class OutlookBody(Body):
    """The forecast for a chain, or for one kind of release, and a number of records; variances are in scaled
    units."""

    release: ReleaseKind
    is_chain: bool = Field(description="Whether a chain ends with this release.")
    privacy: list[str]
    delta_parts: DeltaPartsBody
    noise_scale: float
    continuous_gaussian: ContinuousBody | None
    clip_norm: float
    clip_norm_without_data: float
    noise_on_a_variance: float
    least_visible_eigenvalue: float
    relative_noise: float
    nu: float
    clip_quantile: float
    centres_at_means: SightBody
    centres_far_off: SightBody = Field(description="If every mean is half a range away from its centre.")
    ciphertexts_per_owner: int
    bytes_per_owner: int
    minutes_per_owner: float


class OutlooksBody(Body):
    """The forecasts for a draft: for a chain first, then for every kind of release."""

    records: int
    releases: list[OutlookBody]
    advice: list[str]


class PlannedRoundBody(Body):
    """A round of a chain, with the draft of its study."""

    release: ReleaseKind
    is_last: bool
    rho_share: float
    rho: float | None
    clip_norm: float
    blocks: dict[str, float]
    reasons: list[str]
    advice: list[str]
    draft: dict[str, Any]


class PlanBody(RootModel[OutlooksBody | PlannedRoundBody]):
    """Forecasts, or the requested round."""
