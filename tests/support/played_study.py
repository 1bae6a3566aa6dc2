"""A whole study through both services on this machine, every answer judged by its OpenAPI document."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract import Contract, Judged
from proxy_world import ProxyWorld
from starlette.testclient import TestClient
from study_parties import Parties
from user_world import DRAFT, TOKEN, UserWorld

from dpdpca_user_service.app import make_app
from dpdpca_user_service.stages import Stage


@dataclass
class Played:
    """A whole study through both services, every answer judged."""

    proxy: Contract
    user: Contract
    client: TestClient
    world: ProxyWorld
    home: UserWorld
    study: str
    user_app: Judged


def play(folder: Path, parties: Parties, release: str) -> Iterator[Played]:
    """One study of this release until its components are published, then stopped."""
    judges: list[Contract] = []

    def judged(app: Any) -> Judged:
        judges.append(Contract(app.openapi()))
        return Judged(app, judges[0])

    world = ProxyWorld(
        folder / "proxy", parties.user, list(parties.owners), parties.secret, parties.proof, serve=judged
    )
    world.start()
    world.enrol_all()
    user = UserWorld(world, folder / "user")
    app = make_app(user.service, drive=False)
    contract = Contract(app.openapi())
    judged_app = Judged(app, contract)
    client = TestClient(
        judged_app, headers={"authorization": f"Bearer {TOKEN}"}, raise_server_exceptions=False
    )
    draft = json.dumps(DRAFT | {"release": release}).encode()
    created = client.post("/v1/studies", content=draft, headers={"content-type": "application/json"})
    assert created.status_code == 202, created.text
    row = user.advance_to(user.row(created.json()["id"]), Stage.OPEN)
    user.deliver_all(row)
    row = user.advance_to(row, Stage.PUBLISHED)
    yield Played(judges[0], contract, client, world, user, row.known_study.hex(), judged_app)
    user.service.close()
    world.stop()
