"""What a draft comes to, before anything is made of it. No state changes, and no proxy is asked."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.planning.lint import lint_alone, parse_draft
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.planning.preview import Complete, first_of_chain, following_round, forecast, lint_facts
from dpdpca_user_service.operations import result_of
from dpdpca_user_service.service import UserService


def lint_draft(service: UserService, draft: bytes, media_type: str, records: int | None) -> dict[str, Any]:
    """As the command `dpdpca user study lint`.

    Raises:
        MessageError, PolicyError: the draft could not become a manifest.
    """
    return lint_facts(_complete(service)(parse_draft(draft, media_type)), records)


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
    """As the command `dpdpca user plan`: an outlook on every release, or a chain's next round.

    Args:
        records: of all owners together; may be left out only where pre-studies are named.
        spectrum: see `forecast`.
        anyway: see `forecast`.
        begin: the first round of a chain.
        scales: begin with the scale of every feature.
        pre_studies: rounds that came before, oldest first.

    Raises:
        MessageError, PolicyError: the draft could not become a manifest, or a parameter is missing.
        NotFoundError, ConflictError: a pre-study that is not here, or has no result yet.
    """
    base, complete = parse_draft(draft, media_type), _complete(service)
    if pre_studies:
        results = [PreStudyResult.parse(result_of(service, name)) for name in pre_studies]
        return following_round(base, complete, results, records).facts()
    if records is None:
        raise MessageError("malformed", "records is missing", "say how many records the owners have together")
    if begin:
        return first_of_chain(base, complete, records, scales).facts()
    if spectrum and sum(spectrum) <= 0:
        raise MessageError("malformed", "the spectrum has no variance", "leave it out")
    return forecast(base, complete, records, spectrum, anyway=anyway).facts()


def _complete(service: UserService) -> Complete:
    now = service.now()

    def complete(draft: Mapping[str, Any]) -> Manifest:
        return lint_alone(draft, now)

    return complete
