"""A chain of studies from its base draft to a model.

Each round is chosen, stored, created and awaited, until the chain ends. A round is stored with its draft and
the id of its study before the study is created. The study is created only if no study has that id. So after a
crash between two steps, the next start continues with the same round: no round is chosen twice, and owners
are never asked for the same round twice.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any

from dpdpca_protocol.errors import (
    ConflictError,
    DpdpcaError,
    NotFoundError,
    UnavailableError,
)
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.address import normal_address
from dpdpca_protocol.wire.fields import decimal_text
from dpdpca_user.planning.choice import NextRound, norm_study
from dpdpca_user.planning.lint import JSON_MEDIA_TYPE, closing_time, lint, parse_draft, plain_json
from dpdpca_user.planning.listed import with_features, with_list
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.planning.rounds import (
    begin_chain,
    check_base,
    chosen_round,
    encoded_features,
    round_draft,
)
from dpdpca_user.planning.wide_chain import WideWishes, scores_round
from dpdpca_user_service.earlier_rounds import published_lift
from dpdpca_user_service.operations import cancel_study, create_study, study_facts
from dpdpca_user_service.participants import participants_facts, with_chosen_participants
from dpdpca_user_service.service import UserService
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.chains import ChainRound, ChainRow, ChainState
from dpdpca_user_service.store.studies import StudyRow


def create_chain(
    service: UserService,
    draft: bytes,
    media_type: str,
    proxy_url: str | None,
    *,
    publish: bool = True,
    in_clear: bool = False,
    records: int | None = None,
    scales: bool = False,
    again: bool = False,
) -> dict[str, Any]:
    """Stores the base draft of a chain, which the service then runs in the background.

    The same draft with the same options is the same chain, so a repeated request does not spend budget twice.

    Args:
        records: the expected number of records of all owners; default: max_records.
        scales: begin with a study of every feature's scale, if there are enough records.
        again: create a new chain even if this draft already has one. The new chain spends its own budget.

    Raises:
        MessageError, PolicyError: the draft cannot be the base of a chain.
        ConflictError: `chain-differs`, this draft has a chain with other publication options.
        UnavailableError, AuthenticationError: the draft names owners, and the proxy cannot be asked for their
            keys.
    """
    proxy = service.home.proxy(proxy_url)
    base = plain_json(parse_draft(draft, media_type))
    attempt, urls = 0, _spellings(service, proxy.url)

    def ids() -> list[str]:
        return [_chain_id(base, url, records, scales, attempt) for url in urls]

    while (known := _known(service, ids())) is not None:
        if not again:
            if (known.publish, known.in_clear) != (publish, in_clear):
                raise ConflictError(
                    "chain-differs",
                    "this draft already has a chain with other publication options",
                    f"use the existing chain ({known.id}), or use --again to create a new chain, which "
                    "spends its own budget",
                )
            return chain_facts(service, known)
        attempt += 1
    plain = with_features(base, service.feature_lists)
    check_base(plain, scales)
    first = norm_study(encoded_features(plain))
    settings, now = service.settings, service.now()
    closes_at = closing_time(now, settings.closes_after_days)
    checked = partial(
        lint,
        user=service.party,
        proxy=proxy.provisional_party,
        closes_at=closes_at,
        key_bits=settings.key_bits,
        feature_lists=service.feature_lists,
    )
    checked(_round_draft(service, base, first))
    # All rounds name the same owners. The chain's id is that of the draft as it was written.
    chosen = with_chosen_participants(service, proxy, base)
    manifest = checked(_round_draft(service, chosen, first))
    chain_id = ids()[0]
    service.chains.add(
        chain_id,
        manifest.title,
        chosen,
        proxy.url,
        now,
        publish=publish,
        in_clear=in_clear,
        records=manifest.max_records if records is None else records,
        scales=scales,
    )
    service.wake()
    return chain_facts(service, service.chains.find(chain_id))


def chain_facts(service: UserService, chain: ChainRow) -> dict[str, Any]:
    """A chain as JSON, with the state of each round's study."""
    rounds = []
    for each in chain.rounds:
        row = _row(service, each)
        facts = None if row is None else study_facts(service, row)
        rounds.append(
            {
                "draft": each.row,
                "study": None if facts is None else facts["study"],
                "release": each.release,
                "rho_share": float(each.rho_share),
                "clip_norm": float(each.draft["clip_norm"]),
                "reasons": list(each.reasons),
                "state": "chosen" if facts is None else facts["state"],
                "problem": None if facts is None else facts["problem"],
                "owners": [] if facts is None else facts["owners"],
            }
        )
    done = chain.state is ChainState.DONE
    return {
        "id": chain.id,
        "title": chain.title,
        "state": str(chain.state),
        "rounds": rounds,
        "participants": participants_facts(chain.base),
        "spent_share": sum(each["rho_share"] for each in rounds if each["study"] is not None),
        "study": rounds[-1]["study"] if done else None,
        "proxy": chain.proxy_url,
        "created_at": chain.created_at,
        "updated_at": chain.updated_at,
        "problem": {"type": chain.problem_slug, "detail": chain.problem} if chain.problem else None,
    }


def cancel_chain(service: UserService, chain_id: str) -> dict[str, Any]:
    """Ends a chain and cancels its current study. The budget of earlier releases stays spent.

    Raises:
        ConflictError: the chain has ended, or its study can no longer be cancelled.
    """
    chain = service.chains.find(chain_id)
    _cancel_round(service, chain)
    if chain.state is not ChainState.CANCELLED:
        try:
            service.chains.end(chain, ChainState.CANCELLED, service.now())
        except ConflictError:
            if (
                service.chains.find(chain_id).state is not ChainState.CANCELLED
            ):  # otherwise the driver was first
                raise
        _cancel_round(service, chain)  # the study may have been created in between
    return chain_facts(service, service.chains.find(chain_id))


def _cancel_round(service: UserService, chain: ChainRow) -> None:
    """Cancels the study of a chain's last round, if it is still running."""
    if chain.rounds and (row := _row(service, chain.rounds[-1])) is not None and not _is_over(row):
        cancel_study(service, row.id)


def advance_chain(service: UserService, chain: ChainRow) -> bool:
    """Does the next step of a chain.

    Returns:
        Whether something changed. False means: try again later.

    Raises:
        ConflictError, UnavailableError: a temporary condition; try again.
    """
    try:
        return _advance(service, chain)
    except (ConflictError, UnavailableError):
        raise
    except DpdpcaError as error:
        service.chains.end(chain, ChainState.FAILED, service.now(), error.slug[:60], error.public_text[:1000])
        return True


def _advance(service: UserService, chain: ChainRow) -> bool:
    if not chain.rounds:
        _write_down(service, chain, _first(service, chain))
        return True
    current = chain.rounds[-1]
    row = _row(service, current)
    if row is None:
        has_components = ReleaseKind(current.release).has_components
        create_study(
            service,
            current.row,
            json.dumps(current.draft).encode(),
            JSON_MEDIA_TYPE,
            chain.proxy_url,
            # Owners need the components of a lift for its scores.
            (chain.publish and has_components) or _has_scores(chain, current),
            in_clear=chain.in_clear and has_components,
        )
        if service.chains.find(chain.id).state is ChainState.CANCELLED:
            _cancel_round(service, chain)  # by a caller that could not see the study yet
        return True
    if row.stage in (Stage.FAILED, Stage.CANCELLED):
        state = ChainState.CANCELLED if row.stage is Stage.CANCELLED else ChainState.FAILED
        service.chains.end(chain, state, service.now(), row.problem_slug, row.problem)
        return True
    if row.has_model:
        if not _has_scores(chain, current):
            service.chains.end(chain, ChainState.DONE, service.now())
            return True
        if row.stage is not Stage.PUBLISHED:
            return False
        return _follow_up(service, chain, lambda: _scores(service, chain, row))
    if row.has_result:
        return _follow_up(
            service,
            chain,
            lambda: chosen_round(
                with_features(chain.base, service.feature_lists),
                _results(service, chain),
                OS_RANDOMNESS,
                in_clear=chain.in_clear,
            ),
        )
    return False


def _follow_up(service: UserService, chain: ChainRow, choose: Callable[[], NextRound]) -> bool:
    """Writes down the next round, or ends the chain if released numbers allow none."""
    try:
        chosen = choose()
    except UnavailableError:
        raise
    except DpdpcaError as error:  # released numbers do not change, so there is no second try
        service.chains.end(chain, ChainState.FAILED, service.now(), error.slug[:60], error.public_text[:1000])
    else:
        _write_down(service, chain, chosen)
    return True


def _has_scores(chain: ChainRow, chain_round: ChainRound) -> bool:
    """Whether scores follow this round."""
    return chain_round.release == ReleaseKind.LIFT and WideWishes.of(chain.base).scores


def _scores(service: UserService, chain: ChainRow, lift: StudyRow) -> NextRound:
    published = published_lift(service, lift.id)
    assert published is not None, "the last round is a lift"
    d = encoded_features(with_features(chain.base, service.feature_lists))
    return scores_round(_results(service, chain), d, published)


def _first(service: UserService, chain: ChainRow) -> NextRound:
    settings, now, proxy = service.settings, service.now(), service.home.proxy(chain.proxy_url)
    closes_at = closing_time(now, settings.closes_after_days)

    def complete(draft: Mapping[str, Any]) -> Manifest:
        return lint(
            _named(service, chain.base, draft),
            service.party,
            proxy.provisional_party,
            closes_at,
            settings.key_bits,
            feature_lists=service.feature_lists,
        )

    base = with_features(chain.base, service.feature_lists)
    return begin_chain(base, complete, chain.records, chain.scales)


def _round_draft(service: UserService, base: Mapping[str, Any], chosen: NextRound) -> dict[str, Any]:
    """The draft of a round. If the base draft names a list of features, so does the round: the same list,
    or a new one with moved centres."""
    return _named(service, base, round_draft(with_features(base, service.feature_lists), chosen))


def _named(service: UserService, base: Mapping[str, Any], draft: Mapping[str, Any]) -> dict[str, Any]:
    return with_list(draft, service.feature_lists.keep) if "feature_list" in base else dict(draft)


def _write_down(service: UserService, chain: ChainRow, chosen: NextRound) -> None:
    service.chains.append(
        chain,
        ChainRound(
            secrets.token_hex(16),
            str(chosen.release),
            decimal_text(chosen.rho_share),
            chosen.reasons,
            _round_draft(service, chain.base, chosen),
        ),
        service.now(),
    )


def _results(service: UserService, chain: ChainRow) -> list[PreStudyResult]:
    """The numbers of all rounds before the one that has components."""
    return [
        PreStudyResult.parse(json.loads(service.store.need(each.row, "model")))
        for each in chain.rounds
        if not ReleaseKind(each.release).has_components
    ]


def _row(service: UserService, chain_round: ChainRound) -> StudyRow | None:
    try:
        return service.store.find(chain_round.row)
    except NotFoundError:
        return None


def _is_over(row: StudyRow) -> bool:
    return row.has_result or row.has_model or row.stage in (Stage.FAILED, Stage.CANCELLED)


def _spellings(service: UserService, url: str) -> list[str]:
    """The proxy's address, and the spellings with which earlier versions stored it."""
    service.chains.check_rows()  # a chain that cannot be read could be the one that is asked for
    kept = {chain.proxy_url for chain in service.chains.all()}
    return [url, *sorted(other for other in kept - {url} if normal_address(other) == url)]


def _known(service: UserService, chain_ids: Sequence[str]) -> ChainRow | None:
    for chain_id in chain_ids:
        with suppress(NotFoundError):
            return service.chains.find(chain_id)
    return None


def _chain_id(base: dict[str, Any], proxy_url: str, records: int | None, scales: bool, attempt: int) -> str:
    asked = json.dumps([base, proxy_url, records, scales, attempt], sort_keys=True)
    return sha256(asked.encode()).hexdigest()[:32]
