"""What a lift or scores need from the rounds of their chain before them, which this service has run."""

import json
from collections.abc import Iterator

from dpdpca_protocol.errors import ConflictError, IntegrityError, NotFoundError, PolicyError
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import open_manifest
from dpdpca_protocol.terms.wide_rules import check_rounds
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.planning.wide_chain import PublishedLift
from dpdpca_user.results.wide.notes import RoundCount
from dpdpca_user_service.service import UserService
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.studies import StudyRow
from dpdpca_user_service.work import EarlierRounds


def check_earlier_rounds(service: UserService, manifest: Manifest) -> None:
    """Checks that a lift or scores fit the rounds before them. Other studies always pass.

    Raises:
        PolicyError: `wrong-round`, a round before is not known here, has no result yet, or has other terms,
            or scores name other components than those that the owners have.
    """
    if manifest.lift is None and manifest.scores is None:
        return
    rows = list(_rows(service, manifest))
    check_rounds(manifest, [_manifest(service, row) for row in rows])
    if any(not (row.has_model or row.has_result) for row in rows):
        raise _wrong_round("a round before it has no result yet")
    if manifest.scores is not None:
        row = _of_kind(rows, ReleaseKind.LIFT)
        if row is None or published_components(service, row) != manifest.scores.components:
            raise _wrong_round("scores.components is not the digest of what the owners got of the lift")


def published_components(service: UserService, row: StudyRow) -> Digest | None:
    """The digest of the statement with which a study's components were published; None before."""
    published = service.store.blob(row.id, "published")
    return None if published is None else verify_statement("components", published).digest


def published_lift(service: UserService, name: str) -> PublishedLift | None:
    """The lift of this id; None for any other study.

    Raises:
        ConflictError: `not-ready`, the owners do not have its components yet.
    """
    row = service.store.find(name)
    if row.release != ReleaseKind.LIFT:
        return None
    components = published_components(service, row)
    if row.stage is not Stage.PUBLISHED or components is None:
        raise ConflictError(
            "not-ready", "the components of the lift are not published, but scores need them", "publish them"
        )
    manifest = _manifest(service, row)
    return PublishedLift(row.known_study, manifest.rho_share, manifest.columns, components)


def rounds_before(service: UserService, manifest: Manifest) -> EarlierRounds:
    """The results of the rounds before a lift or scores.

    Raises:
        IntegrityError: `state-corrupt`, one of them is missing, although the manifest was made from it.
    """
    rows = list(_rows(service, manifest))
    sketch, lift = (_of_kind(rows, kind) for kind in (ReleaseKind.SKETCH, ReleaseKind.LIFT))
    if sketch is None or (manifest.scores is not None and lift is None):
        raise IntegrityError(
            "state-corrupt",
            "an earlier round of this chain is missing, although this round was made from it",
            "restore the whole home from the newest backup",
            place=service.store.database.place,
        )
    return EarlierRounds(
        service.store.need(sketch.id, "model"), None if lift is None else service.store.need(lift.id, "model")
    )


def counts_before(service: UserService, manifest: Manifest) -> Iterator[RoundCount]:
    """The numbers of records of the rounds before a lift or scores, oldest first."""
    for row in _rows(service, manifest):
        if row.has_model:
            records = service.model_of(row.id).records
        else:
            records = PreStudyResult.parse(json.loads(service.store.need(row.id, "model"))).records
        yield RoundCount(row.release, records)


def _rows(service: UserService, manifest: Manifest) -> Iterator[StudyRow]:
    for study in manifest.pre_studies:
        row = _row(service, study)
        if row is not None:
            yield row


def _row(service: UserService, study: StudyId) -> StudyRow | None:
    try:
        return service.store.find(study.hex())
    except NotFoundError:
        return None


def _of_kind(rows: list[StudyRow], kind: ReleaseKind) -> StudyRow | None:
    return next((row for row in rows if row.release == kind), None)


def _manifest(service: UserService, row: StudyRow) -> Manifest:
    encoded = service.store.need(row.id, "manifest")
    opened = open_manifest(encoded, key_rules=service.key_rules, feature_lists=service.feature_lists)
    return opened.manifest


def _wrong_round(problem: str) -> PolicyError:
    return PolicyError(
        "wrong-round",
        f"this round does not fit the earlier rounds of its chain: {problem}",
        "create it later",
    )
