"""A data user's service as the process that people start, with finished models in its home, and its memory.

The models come from no study: what they project is the point, not how they were made.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from federation.crowd import memory_bytes
from federation.processes import Server

from dpdpca_cli.federation.processes import free_port
from dpdpca_protocol.result.components import Components, EncodedSpace
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import KeyTerms, Participant, Party, ProxyParty
from dpdpca_protocol.wire.kem import PREVIEW_KEM
from dpdpca_user.home import UserHome
from dpdpca_user.planning.draft import complete_draft
from dpdpca_user.results.model import Model, Provenance
from dpdpca_user_service.service import open_service
from dpdpca_user_service.settings import load_settings
from dpdpca_user_service.stages import Stage

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
NUMBERS: list[dict[str, Any]] = [{"name": f"f{index}", "lower": -1, "upper": 1} for index in range(3)]
LEVELS: list[dict[str, Any]] = [*NUMBERS, {"name": "ward", "levels": ["a", "b", "ä"]}]


def made_model(features: Sequence[Mapping[str, Any]] = LEVELS, **changes: Any) -> Model:
    """A model of `features` with orthonormal components."""
    keys = [hashlib.sha256(name.encode()).digest() for name in "ABCDE"]
    draft = {
        "title": f"A study of {len(features)} features",
        "purpose": "A test.",
        "features": list(features),
        "clip_norm": 1,
        "release": "joint",
        "suite": "paillier",
        "epsilon": 1,
        "max_records": 5000,
        "missing": "midpoint",
        "participants": "enrolled",
        "closes_at": datetime(2030, 1, 1, tzinfo=UTC),
    }
    manifest = complete_draft(
        draft | changes,
        Party("Institute", keys[0]),
        ProxyParty("Relay", "http://127.0.0.1:8080", keys[1], PREVIEW_KEM),
        [Participant(f"Hospital {index}", key) for index, key in enumerate(keys[2:])],
        KeyTerms((1 << 2047) + 1, ()),
    )
    trail = Provenance("aa" * 32, "bb" * 32, "cc" * 32, (), (), {})
    return Model(manifest.study_id, manifest, made_components(manifest), trail)


def made_components(manifest: Manifest) -> Components:
    d = len(manifest.encoded_names)
    count = min(d, 256)
    angles = np.sin(np.arange(d * count, dtype=np.float64) ** 1.5).reshape(d, count)
    ones = np.ones(count)
    return Components(
        space=EncodedSpace.of(manifest),
        count=4000,
        vectors=np.ascontiguousarray(np.linalg.qr(angles)[0].T),
        eigenvalues=np.linspace(2, 1, count),
        noise_edges=ones / 2,
        captured=ones,
        signals=ones,
        overlaps=ones / 2,
        noise_scale=0.1,
        noise_edge=0.5,
        total_variance=float(count),
        mean=np.linspace(-0.5, 0.5, d),
    )


def make_home(home: Path, models: Sequence[Model]) -> str:
    """A home whose service has these models; its bearer token."""
    place = UserHome(home)
    place.create("Institute", None)
    service, now = open_service(load_settings(home)), datetime.now(UTC)
    for index, model in enumerate(models):
        row_id = f"{index:032x}"
        service.store.add(row_id, model.manifest.title, "joint", b"{}", JSON, "http://x", False, now)
        for stage in (Stage.SIGNED, Stage.OPEN, Stage.FETCHED, Stage.FITTED):
            values: dict[str, Any] = {"study": model.study.hex()} if stage is Stage.SIGNED else {}
            values |= {"model": model.to_bytes()} if stage is Stage.FITTED else {}
            service.store.move(service.store.find(row_id), stage, now, model.study, **values)
    service.close()
    return place.token()


@dataclass
class ModelService:
    """A running service, asked over HTTP."""

    url: str
    token: str
    server: Server
    client: httpx.Client

    @property
    def pid(self) -> int:
        assert self.server.process is not None
        return self.server.process.pid

    def transform(self, model: Model, body: bytes, media_type: str, **query: Any) -> httpx.Response:
        return self.client.post(
            f"/v1/models/{model.study.hex()}/transform",
            content=body,
            headers={"content-type": media_type},
            params=query,
        )

    @property
    def memory(self) -> "AbstractContextManager[Growth]":
        """How much more memory than now the service has at the most while the context lasts."""
        return growth_of(self.pid)


@dataclass
class Growth:
    """Bytes of memory: at rest, and above that at the most and afterwards."""

    rest: int
    most: int = 0
    left: int = 0


@contextmanager
def growth_of(pid: int) -> Iterator[Growth]:
    """How much more memory than now a process and its children have at the most while the context lasts."""
    growth = Growth(memory_bytes(pid, "VmRSS"))
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    try:
        yield growth
    finally:
        growth.most = memory_bytes(pid) - growth.rest
        growth.left = memory_bytes(pid, "VmRSS") - growth.rest


@contextmanager
def served_models(folder: Path, models: Sequence[Model]) -> Iterator[ModelService]:
    """A service of these models, until the context ends."""
    token, port = make_home(folder / "user", models), free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = ("user", "serve", "--home", str(folder / "user"), "--port", str(port))
    server = Server("user", arguments, dict(os.environ), folder / "user.log", url)
    server.start()
    headers = {"authorization": f"Bearer {token}"}
    try:
        with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=300) as client:
            yield ModelService(url, token, server, client)
    finally:
        server.kill()


def problem_of(response: httpx.Response) -> str:
    """The slug of a refusal."""
    assert response.headers["content-type"] == "application/problem+json", response.text[:500]
    return str(json.loads(response.content)["type"]).rpartition(":")[2]
