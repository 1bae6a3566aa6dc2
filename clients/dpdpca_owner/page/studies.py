"""The studies in which this owner takes part, and the results that have arrived."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from dpdpca_owner.actions import joined_at
from dpdpca_owner.inbox import SHARE_WORDS, share_state
from dpdpca_owner.page.activity import Progress
from dpdpca_owner.page.office import Office, asked_for, path_of
from dpdpca_owner.page.render import page, root_of
from dpdpca_owner.reports import status_offline
from dpdpca_owner.study_checks import read_terms
from dpdpca_protocol.errors import DpdpcaError, NotFoundError
from dpdpca_protocol.result.components import BELOW_THE_EDGE
from dpdpca_protocol.study import TERMINAL_STATES, ShareState, StudyState
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.statements import about_shortened
from dpdpca_runtime.http.address import StudyAddress

_LEADING = 5
_STATES = {
    StudyState.OPEN: "waiting for the shares of the other owners",
    StudyState.CLOSED: "all shares are there; the proxy adds them up",
    StudyState.COUNTED: "the proxy prepares the result",
    StudyState.RELEASED: "the data user has the noisy sums",
    StudyState.PUBLISHED: "the data user has published the components",
    StudyState.CANCELLED: "the data user has cancelled the study",
    StudyState.FAILED: "the study has failed",
}


@dataclass(frozen=True, slots=True)
class StudyCard:
    """One study as the list shows it.

    Attributes:
        round: which round of a chain it is, from 1; None if it belongs to no chain.
        state: of the study, as the agent last saw it; None before that.
        problem: why the agent cannot go on with it now.
        is_result_here: whether the components are on this machine.
    """

    title: str
    user: str
    epsilon: float
    path: str
    share: ShareState
    round: int | None = None
    state: str | None = None
    progress: Progress | None = None
    total_bytes: int = 0
    problem: str | None = None
    is_followed: bool = False
    is_result_here: bool = False

    @property
    def share_words(self) -> str:
        if self.is_followed and self.share in (ShareState.ABSENT, ShareState.PARTIAL):
            return "approved; the agent is sending the share" if self.is_sending else "approved"
        return SHARE_WORDS[self.share]

    @property
    def is_sending(self) -> bool:
        return self.progress is not None and self.share is not ShareState.COMPLETE

    @property
    def state_words(self) -> str | None:
        return None if self.state is None else _STATES.get(StudyState(self.state), self.state)

    @property
    def is_over(self) -> bool:
        return self.is_result_here or (self.state is not None and self.state in TERMINAL_STATES)


def show_studies(office: Office, request: Request) -> Response:
    """The list. With `?part`, only the part that changes, for the script."""
    cards = [*_approved(office), *_joined(office)]
    template = "studies_live" if "part" in request.query_params else "studies"
    return page(
        template,
        request,
        running=[card for card in cards if not card.is_over],
        over=[card for card in cards if card.is_over],
        messages=office.activity.messages(),
    )


def show_result(office: Office, request: Request) -> Response:
    address = asked_for(office, request)
    path = _result_path(office, address)
    manifest = _terms(office, address)
    with np.load(path, allow_pickle=False) as saved:
        arrays = {name: saved[name] for name in saved.files}
    return page(
        "result",
        request,
        manifest=manifest,
        records=int(arrays["records"]),
        trusted=int(arrays["trusted_components"]),
        rows=_component_rows(arrays),
        below=BELOW_THE_EDGE,
        shortened=about_shortened(manifest),
        here=f"{root_of(request)}/studies/{path_of(address)}",
    )


def download_result(office: Office, request: Request) -> Response:
    """The saved components, as a file."""
    address = asked_for(office, request)
    content = _result_path(office, address).read_bytes()
    name = f"components-{address.study.hex()[:16]}.npz"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


@dataclass(frozen=True, slots=True)
class ComponentRow:
    """One component: its variance in scaled units, the noise edge, and its largest loadings."""

    number: int
    variance: float
    edge: float
    is_trusted: bool
    loadings: tuple[tuple[str, float], ...]


def _component_rows(arrays: dict[str, Any]) -> list[ComponentRow]:
    names, trusted = [str(name) for name in arrays["names"]], int(arrays["trusted_components"])
    rows = []
    for index, vector in enumerate(arrays["components"]):
        leading = np.argsort(-np.abs(vector), kind="stable")[:_LEADING]
        rows.append(
            ComponentRow(
                index + 1,
                float(arrays["explained_variance"][index]),
                float(arrays["noise_edges"][index]),
                index < trusted,
                tuple((names[place], float(vector[place])) for place in leading),
            )
        )
    return rows


def _approved(office: Office) -> list[StudyCard]:
    """The studies that are approved and not begun yet."""
    cards, home = [], office.desk.home
    followed = [each.address for each in home.followed.all() if not home.study(each.address.study).is_joined]
    sheets = {}
    if followed:
        sheets = {each.sheet.address: each.sheet for each in office.inbox()[1].requests}
    for address in followed:
        sheet = sheets.get(str(address))
        manifest = None if sheet is None else sheet.manifest
        cards.append(
            StudyCard(
                f"Study {address.study.hex()[:16]}" if manifest is None else manifest.title,
                "" if manifest is None else manifest.user.name,
                0.0 if manifest is None else float(manifest.epsilon),
                path_of(address),
                ShareState.ABSENT,
                _round(manifest),
                progress=office.activity.progress(address.study),
                total_bytes=0 if sheet is None else sheet.sealed_bytes,
                problem=office.problems.get(address),
                is_followed=True,
            )
        )
    return cards


def _joined(office: Office) -> list[StudyCard]:
    """The studies for which a share was begun, the newest first."""
    home = office.desk.home
    followed = home.followed.addresses()
    cards = []
    for folder in home.joined():
        with suppress(DpdpcaError):  # a damaged folder, or terms of another version: `status` says more
            address = joined_at(folder)
            manifest = _terms(office, address)
            state = None
            with suppress(DpdpcaError):
                state = status_offline(office.desk, address).facts.state
            card = StudyCard(
                manifest.title,
                manifest.user.name,
                float(manifest.epsilon),
                path_of(address),
                share_state(folder, manifest.proxy.ed25519),
                _round(manifest),
                state,
                office.activity.progress(address.study),
                manifest.figures.sealed_bytes,
                office.problems.get(address),
                address in followed,
                folder.components_path.exists(),
            )
            cards.append((manifest.closes_at, card))
    return [card for _, card in sorted(cards, key=lambda each: each[0], reverse=True)]


def _terms(office: Office, address: StudyAddress) -> Manifest:
    encoded = office.desk.home.study(address.study).manifest()
    if encoded is None:
        raise NotFoundError("not-found", "this owner has not joined this study", "go back to your studies")
    return read_terms(encoded, address, office.desk.home)


def _result_path(office: Office, address: StudyAddress) -> Path:
    path = office.desk.home.study(address.study).components_path
    if not path.exists():
        raise NotFoundError(
            "not-found", "the components of this study are not here yet", "go back to your studies"
        )
    return path


def _round(manifest: Manifest | None) -> int | None:
    return None if manifest is None or manifest.rho_share == 1 else len(manifest.pre_studies) + 1
