"""A data user's service beside a real proxy on this machine, with toy keys and long work in this thread."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy_world import PATIENCE_SECONDS, HandClock, OpenStudy, ProxyWorld, Values, wait_for
from study_parties import under_paillier

from dpdpca_protocol.paillier.keys import KeyRules, KeySearch
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.terms.parties import KeyTerms
from dpdpca_protocol.terms.signed_manifest import open_manifest
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_runtime.database import Place
from dpdpca_runtime.files import private_dir, write_private
from dpdpca_user.home import DATABASE_FILE, EnrolledProxy
from dpdpca_user_service.driver import Driver
from dpdpca_user_service.service import UserService, open_service
from dpdpca_user_service.settings import load_settings
from dpdpca_user_service.stages import ENDED, Stage
from dpdpca_user_service.store.studies import StudyRow
from dpdpca_user_service.work import MadeKey, make_key

TOY_BITS = 512
TOKEN = "open sesame"
DRAFT: dict[str, Any] = {
    "title": "What varies together",
    "purpose": "A test.",
    "participants": "enrolled",
    "features": [{"name": f"f{i}", "lower": -1, "upper": 1} for i in range(3)],
    "clip_norm": 1,
    "epsilon": 1.0,
    "release": "joint",
    "max_records": 5000,
    "min_records": 10,
    "min_owners": 2,
    "closing": "when-complete",
}


class InlineWorkers:
    """Runs everything in the calling thread; keys are the ones that the test has put in."""

    def __init__(self, keys: list[MadeKey]) -> None:
        self.keys = keys
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda name: None

    def call(
        self, function: Callable[..., Any], /, *args: Any, progress: Callable[..., None] | None = None
    ) -> Any:
        self.calls.append(function.__name__)
        self.before(function.__name__)
        if function is make_key:
            assert progress is not None
            progress(KeySearch(1, 900, 300))
            return self.keys.pop(0)
        return function(*args)

    def close(self) -> None:
        pass


@dataclass
class UserWorld:
    """The service of `proxy.user`, not yet driven."""

    world: ProxyWorld
    home: Path
    settings: dict[str, Any] = field(default_factory=dict)
    clock: HandClock = field(default_factory=HandClock)
    service: UserService = field(init=False)

    def __post_init__(self) -> None:
        private_dir(self.home)
        write_private(self.home / "identity.pem", self.world.user.to_pem())
        write_private(self.home / "token", TOKEN.encode() + b"\n")
        write_private(self.home / "profile.json", b'{"name": "Institute"}')
        self.open()
        proxy = self.world.proxy.key.public
        self.service.home.pin_proxy(
            EnrolledProxy(
                self.world.url, self.world.proxy.settings.name, proxy.ed25519.hex(), proxy.sealing_key.hex()
            )
        )

    def open(self) -> None:
        """Opens the service on what its home holds, as after a start."""
        self.workers = self.new_workers()
        self.service = open_service(
            load_settings(self.home, poll_seconds=0.05, **self.settings),
            connect=lambda proxy, key: self.world.client(key),
            workers=self.workers,
            now=self.clock,
            key_rules=KeyRules(TOY_BITS),
        )
        self.driver = Driver(self.service)

    def new_workers(self) -> InlineWorkers:
        key = KeyTerms.of(self.world.secret.public, self.world.proof)
        return InlineWorkers([MadeKey(self.world.secret.to_bytes(), key)])

    def reopen(self) -> None:
        self.service.close()
        self.open()

    @property
    def place(self) -> Place:
        """Where its database is."""
        return load_settings(self.home, **self.settings).database_or(self.home / DATABASE_FILE)

    def backup(self) -> Any:
        """A copy of its database."""
        self.service.close()
        copy = (self.home / DATABASE_FILE).read_bytes()
        self.open()
        return copy

    def put_back(self, backup: Any) -> None:
        """Makes its database what it was at a `backup`."""
        self.service.close()
        for path in self.home.glob(f"{DATABASE_FILE}*"):
            path.unlink()
        write_private(self.home / DATABASE_FILE, backup)
        self.open()

    def create(self, **changes: Any) -> StudyRow:
        import secrets

        from dpdpca_user_service.operations import create_study

        publish, in_clear = changes.pop("publish", True), changes.pop("in_clear", False)
        row_id = secrets.token_hex(16)
        draft = self.draft(**changes)
        create_study(self.service, row_id, draft, "application/json", None, publish, in_clear=in_clear)
        return self.row(row_id)

    def draft(self, **changes: Any) -> bytes:
        """A draft in JSON; None takes a member out."""
        written = under_paillier(
            {name: value for name, value in (DRAFT | changes).items() if value is not None}
        )
        return json.dumps(written).encode()

    def row(self, row_id: str) -> StudyRow:
        return self.service.store.find(row_id)

    def advance(self, row: StudyRow) -> StudyRow:
        """One turn of the driver, by hand."""
        self.driver.advance(self.row(row.id))
        return self.row(row.id)

    def advance_to(self, row: StudyRow, *stages: Stage, seconds: float = PATIENCE_SECONDS) -> StudyRow:
        def arrived() -> bool:
            now = self.row(row.id)
            if now.stage in stages:
                return True
            assert now.stage not in ENDED, now.problem
            self.driver.advance(now)
            return self.row(row.id).stage in stages

        wait_for(arrived, seconds)
        return self.row(row.id)

    def opened(self, row: StudyRow) -> OpenStudy:
        """The study as owners see it."""
        encoded = self.service.store.need(row.id, "manifest")
        lists = self.service.feature_lists
        signed = open_manifest(encoded, key_rules=KeyRules(TOY_BITS), feature_lists=lists)
        return OpenStudy(self.world, signed.study_id, signed.manifest, verify_statement("manifest", encoded))

    def deliver_all(self, row: StudyRow) -> list[Values]:
        study = self.opened(row)
        values = [share_values(study, seed) for seed in range(len(self.world.owners))]
        for owner, value in zip(self.world.owners, values, strict=True):
            study.deliver(owner, value)
        return values


def share_values(study: OpenStudy, seed: int, count: int = 200) -> Values:
    """What an owner with plausible records would send."""
    import random

    source = random.Random(seed)
    shared = [source.gauss(0, 0.5) for _ in range(count)]
    columns = {
        name: [part * (1 - 0.5 * index) + source.gauss(0, 0.1) for part in shared]
        for index, name in enumerate(study.manifest.encoded_names)
    }
    figures = study.manifest.figures
    moments = SecondMoments(figures.encoded_features, figures.record_bound)
    moments.add(RecordEncoder(study.manifest).encode(columns).z)
    n, *rest = moments.stream()
    return Values(n, rest[: study.d], rest[study.d :])
