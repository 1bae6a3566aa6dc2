"""What a round for many features takes from the earlier rounds of its chain.

A lift must fit the sketch before it, and scores the lift before them. An owner checks this against its own
copies of their manifests. For scores it also needs the components of the lift, which reach it sealed.
"""

from dpdpca_owner.home import Owner, OwnerHome
from dpdpca_owner.projection import open_components
from dpdpca_owner.study_checks import read_signed
from dpdpca_protocol.errors import ConflictError, DpdpcaError, NotFoundError
from dpdpca_protocol.result.components import Components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import SignedManifest
from dpdpca_protocol.terms.wide_rules import check_rounds, wrong_round
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_runtime.http.client import ProxyClient

_NOT_PUBLISHED = frozenset({"not-found", "not-ready"})


def check_earlier_rounds(manifest: Manifest, home: OwnerHome) -> None:
    """Check a study against this owner's own copies of the earlier rounds that it names.

    Raises:
        PolicyError: `wrong-round`, it is a lift or scores, and an earlier round is not known here or differs.
        IntegrityError: a copy is damaged.
    """
    check_rounds(manifest, [each.manifest for each in _own_copies(manifest, home)])


def misfit(manifest: Manifest, home: OwnerHome) -> str | None:
    """Why the study does not fit the earlier rounds, for people; None if it fits."""
    try:
        check_earlier_rounds(manifest, home)
    except DpdpcaError as error:
        return error.problem
    return None


def lift_before(manifest: Manifest, home: OwnerHome) -> SignedManifest:
    """This owner's copy of the lift that scores name. Raises like `check_earlier_rounds`."""
    check_earlier_rounds(manifest, home)
    assert manifest.scores is not None
    (lift,) = (each for each in _own_copies(manifest, home) if each.study_id == manifest.scores.study)
    return lift


def components_of_lift(
    manifest: Manifest, lift: SignedManifest, client: ProxyClient, owner: Owner
) -> Components:
    """The components that scores are about, opened with this owner's key.

    Args:
        manifest: of the scores.
        lift: the lift that they name.
        client: asks the proxy as the owner that took part in the lift.
        owner: with the key that it had in the lift.

    Raises:
        ConflictError: `no-components-yet`, they are not published.
        PolicyError: `wrong-round`, the scores name another statement, or the components are too many or too
            few.
        NotAllowedError, NotFoundError: this owner was not in the cohort of the lift.
        AuthenticationError, CryptographicError, MessageError: like `open_components`.
    """
    assert manifest.scores is not None
    try:
        published = client.components(lift.study_id)
    except (ConflictError, NotFoundError) as error:
        if error.slug not in _NOT_PUBLISHED:
            raise
        raise ConflictError(
            "no-components-yet",
            "these scores are about the components of the lift before them, and this owner has not got them"
            " yet",
            "join again once the components are published",
        ) from error
    if verify_statement("components", published).digest != manifest.scores.components:
        raise wrong_round("its scores.components is not the statement with the components of the lift")
    found = open_components(published, lift, owner)
    if found.component_count != manifest.scores.columns:
        raise wrong_round(
            f"it is about {manifest.scores.columns} components, but the lift gave {found.component_count}"
        )
    return found


def _own_copies(manifest: Manifest, home: OwnerHome) -> list[SignedManifest]:
    """The manifests of the earlier rounds that were kept here, oldest first."""
    found = []
    for study in manifest.pre_studies:
        encoded = home.study(study).manifest()
        signed = None if encoded is None else read_signed(encoded, study, home.feature_lists)
        if signed is not None:
            found.append(signed)
    return found
