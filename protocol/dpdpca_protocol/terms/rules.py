"""The rules for the terms of a manifest, beyond the shape of each member.

A broken rule raises `PolicyError`.
"""

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import OF_PAIRS
from dpdpca_protocol.pads.masks import check_blinding_key, check_different
from dpdpca_protocol.privacy.mechanisms import Gaussian, mechanism_for
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.features import (
    MAX_ENCODED_FEATURES,
    MAX_LISTED_FEATURES,
    check_clip_norm,
    check_resolution,
    column_key,
    sum_up,
)
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import PadsKeyTerms
from dpdpca_protocol.terms.terms import NoiseBy, SuiteName
from dpdpca_protocol.terms.wide_rules import check_wide
from dpdpca_protocol.wire.fields import check_unique, name_key, refused


def check_rules(manifest: Manifest) -> None:
    """Checks that the terms are within their limits and consistent with each other."""
    _check_features(manifest)
    _check_scales(manifest)
    _check_privacy(manifest)
    _check_chain(manifest)
    _check_extension(manifest)
    _check_suite(manifest)
    _check_pairs(manifest)
    _check_blocks(manifest)
    _check_clipping(manifest)
    _check_cohort(manifest)
    _check_blinding(manifest)
    check_wide(manifest)
    check_resolution(manifest.features, manifest.scaling, 1 << manifest.fraction_bits)
    check_clip_norm(manifest.features, manifest.scaling, manifest.clip_norm, manifest.rules.of_pairs)


def _check_features(manifest: Manifest) -> None:
    if not manifest.features:
        refused("the list of features is empty")
    check_unique((column_key(feature.name) for feature in manifest.features), "features")
    listed = manifest.feature_list is not None
    is_round = manifest.rules.is_wide or (manifest.rules.names_blocks and manifest.rho_share < 1)
    most = MAX_LISTED_FEATURES if listed and is_round else MAX_ENCODED_FEATURES
    if manifest.encoded_features > most:
        refused(f"the study has more than {most} encoded features", _with_fewer(listed, is_round))
    if manifest.scaling == "common" and any(feature.is_categorical for feature in manifest.features):
        refused(
            "scaling common divides all features by one range, but categorical features have no range",
            "use range",
        )


def _with_fewer(listed: bool, is_round: bool) -> str:
    if not is_round:
        return "use fewer features, or a chain of a sketch and a lift"
    return "use fewer features" if listed else "name them with feature_list"


def _check_scales(manifest: Manifest) -> None:
    if all(feature.scale is None for feature in manifest.features):
        return
    if manifest.scaling == "common":
        refused(
            "scaling common uses one unit for all features, so no feature may have its own scale", "use range"
        )
    if not manifest.rules.clips_records:
        # Values that have not been clipped yet are as large as the bounds allow, in units of the scale.
        grid = 1 << manifest.fraction_bits
        reach = (2 * grid * feature.half_range / feature.scaled_unit + 2 for feature in manifest.features)
        widths = (feature.width for feature in manifest.features)
        if sum_up(width * each**2 for width, each in zip(widths, reach, strict=True)) >= 2**62:
            refused(
                "records before clipping are too large for exact 64-bit sums of squares",
                "lower fraction_bits, or raise scale",
            )


def _check_privacy(manifest: Manifest) -> None:
    if manifest.clip_norm <= 0:
        refused("clip_norm must be above 0")
    if manifest.epsilon <= 0:
        refused("epsilon must be above 0")
    if not 0 < manifest.delta * manifest.max_records < 1:
        refused(
            f"delta must be above 0 and below 1/max_records = {1 / manifest.max_records:.3g}: a larger "
            "delta would allow a whole record to be published"
        )
    try:
        mechanism_for(manifest.mechanism, manifest.rules.quantity)
    except UsageError as error:
        refused(error.problem)
    if manifest.nonnegative:
        _check_nonnegative(manifest)
    if manifest.rules.weighs_sum:
        if not 0 < manifest.sum_weight <= 2:
            refused("sum_weight is not above 0 and at most 2")
    elif manifest.sum_weight != 0:
        refused(f'sum_weight has no meaning in a {manifest.release} study and must be "0" there')
    if manifest.noise_by is NoiseBy.PROXY and manifest.max_colluding != 0:
        refused("max_colluding has no meaning where the proxy draws the noise and must be 0 there")
    if manifest.noise_by is NoiseBy.OWNERS and not 1 <= manifest.max_colluding < manifest.min_owners:
        refused("max_colluding is not between 1 and min_owners − 1, which noise_by owners requires")


def _check_nonnegative(manifest: Manifest) -> None:
    if not manifest.rules.is_masked:
        refused("nonnegative lowers the noise only in a masked study", "omit it")
    if manifest.mechanism != Gaussian.name:
        refused("nonnegative is proved only for the gaussian mechanism", "omit it")
    for feature in manifest.features:
        if not feature.is_categorical and feature.origin != feature.lower:
            refused(
                "nonnegative requires the lower bound as centre of every numeric feature",
                "write centre = lower, or omit nonnegative",
            )
        if feature.level_centres:
            refused(
                "nonnegative requires the centre 0 for every level of a category",
                "omit the centre of the feature, or omit nonnegative",
            )


def _check_chain(manifest: Manifest) -> None:
    if manifest.rho_share < 1 and manifest.mechanism != Gaussian.name:
        refused("rho_share is proved only for the gaussian mechanism", "omit it")
    if manifest.pre_studies and manifest.rho_share == 1:
        refused(
            "a study with pre_studies spends the ρ that they have left, so it needs rho_share",
            "add rho_share",
        )
    check_unique(manifest.pre_studies, "pre_studies")


def _check_extension(manifest: Manifest) -> None:
    if manifest.extends is None:
        return
    if manifest.rules.is_masked or manifest.rules.is_wide or not manifest.release.has_components:
        refused(
            f"a {manifest.release} study cannot extend another: only joint studies and pairs add up",
            "omit extends",
        )
    if manifest.rho_share < 1:
        refused("an extension is no round of a chain, so it spends all of its ε", "omit rho_share")


def _check_suite(manifest: Manifest) -> None:
    uses_pads = manifest.suite is SuiteName.PADS
    if uses_pads and manifest.rules.is_masked:
        refused("a masked study multiplies values, which pads cannot do", "use suite paillier")
    if not uses_pads and not (manifest.rules.is_masked or manifest.release is ReleaseKind.JOINT):
        refused(f"a {manifest.release} study uses suite pads, not {manifest.suite}", "leave suite out")
    if uses_pads != isinstance(manifest.key, PadsKeyTerms):
        refused(
            f"the key is not one for suite {manifest.suite}", "create the manifest again with this version"
        )
    if uses_pads and manifest.slot_bits:
        refused("slot_bits has no meaning under pads", "omit it")


def _check_pairs(manifest: Manifest) -> None:
    """Checks that one record cannot decide which other records are paired."""
    pairs = manifest.rules.of_pairs or any(name in OF_PAIRS for name, _ in manifest.blocks)
    if pairs and manifest.missing != "midpoint":
        refused(
            "this study pairs records, and dropping a record would change the other pairs",
            "use missing midpoint",
        )
    if pairs and manifest.max_records < 2:
        refused("max_records is below 2, but a pair needs two records")


def _check_blocks(manifest: Manifest) -> None:
    if manifest.rules.names_blocks != bool(manifest.blocks):
        refused("a pre-study must name blocks, and no other study may name any")
    shares = [share for _, share in manifest.blocks]
    if shares and (min(shares) <= 0 or sum(shares) != 1):
        refused("the shares of the blocks must all be above 0 and add up to 1")


def _check_clipping(manifest: Manifest) -> None:
    if not manifest.clip_share:
        if manifest.clip_cap:
            refused("clip_cap has no meaning without clip_share", "add clip_share, or omit clip_cap")
        return
    if not manifest.rules.tells_clipping:
        refused(
            f"a {manifest.release} study does not tell what clipping did; only joint studies and pairs do",
            "omit clip_share",
        )
    if manifest.mechanism != Gaussian.name:
        refused("clip_share is proved only for the gaussian mechanism", "omit it")
    if 0 < manifest.clip_cap < manifest.clip_norm:
        refused("clip_cap is below clip_norm, but only longer rows are clipped", "raise clip_cap or omit it")


_NAME_OWNERS = (
    'name the owners in the draft (participants = ["…"], or participants = "enrolled" for all that are'
    " enrolled)"
)


def _check_cohort(manifest: Manifest) -> None:
    participants = manifest.participants
    check_unique((party.ed25519 for party in participants), "participants")
    check_unique((name_key(party.name) for party in participants), "the names of participants")
    keys = [manifest.user.ed25519, manifest.proxy.ed25519, *(party.ed25519 for party in participants)]
    check_unique(keys, "the identity keys of user, proxy and participants")
    if manifest.min_owners > manifest.max_owners:
        refused("min_owners is above max_owners")
    if manifest.min_records > manifest.max_records:
        refused("min_records is above max_records")
    if participants and not manifest.min_owners <= len(participants) <= manifest.max_owners:
        refused(
            f"{len(participants)} participants are named, but the study is for {manifest.min_owners} to "
            f"{manifest.max_owners} owners",
            "change the list of participants, min_owners or max_owners",
        )
    if not participants and manifest.rules.is_masked:
        refused(
            "a masked study needs named participants: a single dishonest owner could reveal the sums to "
            "the user",
            f"{_NAME_OWNERS}, or use the joint release",
        )
    if not participants and manifest.closing == "when-complete":
        refused(
            "closing when-complete needs named participants",
            f'{_NAME_OWNERS}, or set closing = "at-time"',
        )


def _check_blinding(manifest: Manifest) -> None:
    """Checks what the proof of C14 needs: only the sum over all named owners is ever opened."""
    keys = [party.x25519 for party in manifest.participants if party.x25519 is not None]
    if not manifest.is_blinded:
        if keys:
            refused("participants have an x25519 only in a blinded study", 'write blinding = "pairwise"')
        return
    if manifest.rules.is_masked:
        refused(
            "a masked study cannot be blinded, because the proxy multiplies the hidden values",
            "leave blinding out, or use the joint release",
        )
    if manifest.suite is not SuiteName.PADS:
        refused("blinding is possible only under suite pads", "leave suite out, or leave blinding out")
    if manifest.noise_by is not NoiseBy.OWNERS:
        refused(
            "blinding needs noise by the owners: the proxy would know its own noise",
            'write noise_by = "owners", or leave blinding out',
        )
    if not manifest.participants:
        refused("a blinded study needs named participants", f"{_NAME_OWNERS}, or leave blinding out")
    if manifest.closing != "when-complete":
        refused("a blinded study closes when all owners have joined", 'write closing = "when-complete"')
    if not manifest.min_owners == manifest.max_owners == len(manifest.participants):
        refused(
            "the cohort of a blinded study is all of its participants: the masks vanish in no smaller sum",
            "leave min_owners and max_owners out",
        )
    if len(keys) < len(manifest.participants):
        refused(
            "a participant of a blinded study has no x25519",
            "ask the owners to make new keys with: dpdpca owner rotate",
        )
    for key in keys:
        check_blinding_key(key)
    check_different(keys)
