"""Checks and forecasts for a draft. These functions contact no proxy. They store nothing but the list of
features that the draft of a planned round names."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.planning.lint import lint_alone, parse_draft
from dpdpca_user.planning.listed import with_features, with_list_if_needed
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.planning.preview import (
    Complete,
    PlannedRound,
    first_of_chain,
    following_round,
    forecast,
    lint_facts,
)
from dpdpca_user_service.earlier_rounds import published_lift
from dpdpca_user_service.operations import result_of
from dpdpca_user_service.service import UserService


def lint_draft(service: UserService, draft: bytes, media_type: str, records: int | None) -> dict[str, Any]:
    """Like the command `dpdpca user study lint`.

    Raises:
        MessageError, PolicyError: the draft cannot become a manifest.
    """
    return lint_facts(_parsed(service, draft, media_type), _complete(service), records)


def plan_draft(
    service: UserService,
    draft: bytes,
    media_type: str,
    records: int | None,
    *,
    spectrum: Sequence[float] = (),
    anyway: bool = False,
    begin: bool = False,
    scales: bool = False,
    pre_studies: Sequence[str] = (),
) -> dict[str, Any]:
    """Like the command `dpdpca user plan`: a forecast for every kind of release, or a chain's next round.

    Args:
        records: the records of all owners together. The number may be omitted only if pre-studies are named.
        spectrum: see `forecast`.
        anyway: see `forecast`.
        begin: plan the first round of a chain.
        scales: begin with the scale of every feature.
        pre_studies: the earlier rounds, oldest first.

    Raises:
        MessageError, PolicyError: the draft cannot become a manifest, or a parameter is missing.
        NotFoundError, ConflictError: a pre-study is not known here, or has no result yet.
    """
    base, complete = _parsed(service, draft, media_type), _complete(service)

    def facts(planned: PlannedRound) -> dict[str, Any]:
        names_list = "feature_list" in parse_draft(draft, media_type)
        return (planned.naming_list(service.feature_lists.keep) if names_list else planned).facts()

    if pre_studies:
        *before, last = pre_studies
        lift = published_lift(service, last)
        results = [
            PreStudyResult.parse(result_of(service, name)) for name in (before if lift else pre_studies)
        ]
        return facts(following_round(base, complete, results, records, lift))
    if records is None:
        raise MessageError(
            "malformed", "records is missing", "give the number of records that all owners have together"
        )
    if begin:
        return facts(first_of_chain(base, complete, records, scales))
    if spectrum and sum(spectrum) <= 0:
        raise MessageError(
            "malformed",
            "the total variance of the spectrum is 0",
            "omit the spectrum, or give variances above 0",
        )
    return forecast(base, complete, records, spectrum, anyway=anyway).facts()


def _parsed(service: UserService, draft: bytes, media_type: str) -> dict[str, Any]:
    """The draft, with the features of the list that it may name."""
    return with_features(parse_draft(draft, media_type), service.feature_lists)


def _complete(service: UserService) -> Complete:
    now = service.now()

    def complete(draft: Mapping[str, Any]) -> Manifest:
        return with_list_if_needed(draft, lambda listed, lists: lint_alone(listed, now, lists))

    return complete
