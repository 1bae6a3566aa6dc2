"""A proxy whose files changed under it: nothing wrong is released, nothing is drawn twice, and it is told.

What stood on a disk may come back flipped, cut, exchanged, older, or not at all. A copy of the home is
altered in one place and taken up again; when the right file is back, the study goes on from there.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from promises import Promise
from proxy_world import (
    InlineWorker,
    OpenStudy,
    ProxyWorld,
    copy_with_generation,
    dump,
    refused,
    values_of,
)
from store_checks import check_opened

from dpdpca_protocol.errors import ConflictError, DpdpcaError, NotFoundError
from dpdpca_protocol.messages.log import LogEntry
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.terms.signed_manifest import open_manifest
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_proxy import jobs
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.jobs import Jobs
from dpdpca_proxy.proxy import Proxy, open_proxy
from dpdpca_proxy.releases import answer_count, release_bundle, release_chunk
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.files import draw_name
from dpdpca_proxy.store.log import entries
from dpdpca_proxy.store.parties import find_party
from dpdpca_proxy.store.studies import load_blob, load_study
from dpdpca_proxy.worker import make_release
from dpdpca_user.evidence import check_chunk, verify_release

TOY_BITS = 512
FEW = 4
"""Changes of a kind that each run tries; the nightly one tries all."""
VALUES = [values_of(3, seed) for seed in range(3)]


class HeldError(RuntimeError):
    """The step is not to be done yet."""


class HoldingWorker(InlineWorker):
    """Does no step that is held, and keeps the noise that goes into a release."""

    def __init__(self) -> None:
        super().__init__()
        self.held: str | None = None
        self.noise: list[list[int]] = []

    def call(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        if function.__name__ == self.held:
            raise HeldError
        outcome = super().call(function, *args, **options)
        if function is make_release:
            _, _, noise = args[0].read_bytes(draw_name(args[0].study, args[4])).partition(b"\n")
            self.noise.append(np.frombuffer(noise, dtype="<i8").tolist())
        return outcome


# How a file may come back


def flipped(at: float) -> Callable[[bytes], bytes]:
    def flip(content: bytes) -> bytes:
        place = min(int(len(content) * at), len(content) - 1)
        return content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :]

    return flip


ALTERATIONS: dict[str, Callable[[bytes], bytes | None]] = {
    "first byte": flipped(0),
    "middle": flipped(0.5),
    "last byte": flipped(1),
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "longer": lambda content: content + b"\0",
    "zeros": lambda content: bytes(len(content)),
    "gone": lambda content: None,
}


def exchanged(other: Path) -> Callable[[bytes], bytes]:
    return lambda _content: other.read_bytes()


def alter(path: Path, alteration: Callable[[bytes], bytes | None]) -> None:
    content = alteration(path.read_bytes())
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


@pytest.fixture(autouse=True)
def no_lease_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the copy of a home would wait half a minute for the process that crashed in the original."""
    monkeypatch.setattr("dpdpca_proxy.leases._LEASE_SECONDS", 0)


@dataclass
class Taken:
    """A copy of a home, taken up by a proxy in this process."""

    study: OpenStudy
    home: Path
    worker: HoldingWorker = field(default_factory=HoldingWorker)
    answer: bytes | None = None

    def __post_init__(self) -> None:
        settings = load_settings(self.home, port=self.study.world.port, log_level="ERROR")
        self.proxy = open_proxy(settings, key_rules=KeyRules(TOY_BITS))
        self.jobs = Jobs(self.proxy, self.worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.database.close()

    def work(self, held: str | None = None) -> None:
        """Every step that can be done, short of one; the data user answers what it is asked."""
        self.worker.held = held
        while self.jobs._round(lambda: False) or self._answer():
            pass

    def _answer(self) -> bool:
        with self.proxy.database.reading("test: look") as connection:
            challenge = load_blob(connection, self.study.study, "challenge")
            answer = load_blob(connection, self.study.study, "answer")
            user = find_party(connection, self.study.world.user.public.party_id)
        if challenge is None or answer is not None:
            return False
        assert user is not None
        self.answer = self.study.count_answer(verify_statement("count-challenge", challenge)).encoded
        answer_count(self.proxy, user, self.study.study, self.answer)
        return True

    @property
    def state(self) -> str:
        with self.proxy.database.reading("test: look") as connection:
            return str(load_study(connection, self.study.study).state)

    @property
    def draws(self) -> int:
        """As many as the log tells of, and no more."""
        with self.proxy.database.reading("test: log") as connection:
            return [entry.kind for entry, _ in entries(connection)].count("draw")

    def check_release(self) -> None:
        """As the data user would: the paper trail holds; and the sums are exact, under one noise.

        Raises:
            DpdpcaError: the proxy gives nothing out, or the data user takes none of it.
        """
        study = self.study
        with self.proxy.database.reading("test: look") as connection:
            user = find_party(connection, study.world.user.public.party_id)
            challenge = load_blob(connection, study.study, "challenge")
        if user is None:
            raise NotFoundError("not-found", "the data user is not enrolled any more")
        bundle = parse_canonical(release_bundle(self.proxy, user, study.study))
        shares, transcript = (tuple(map(canonical_json, bundle[part])) for part in ("shares", "transcript"))
        release = canonical_json(bundle["release"])
        log = [LogEntry.parse(entry) for entry in bundle["log"]]
        signed = open_manifest(study.statement.encoded, key_rules=KeyRules(TOY_BITS))
        said = verify_release(signed, release, shares, transcript, log, challenge, self.answer).release
        chunks = [
            release_chunk(self.proxy, user, study.study, index) for index in range(len(said.chunk_digests))
        ]
        for index, chunk in enumerate(chunks):
            check_chunk(chunk, index, signed, said)
        assert len(self.worker.noise) == 1
        check_opened(study, chunks, VALUES, self.worker.noise[0])


@pytest.fixture(params=["joint", "masked"])
def study(
    stopped_world: ProxyWorld, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> OpenStudy:
    """Closed, with three shares in it; its proxy is stopped."""
    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.0)
    world, worker = stopped_world, HoldingWorker()
    world.worker, worker.held = worker, "multiply_chunks"
    world.start()
    world.enrol_all()
    study = world.open_study(3, release=request.param, closing="when-complete")
    for owner, values in zip(world.owners, VALUES, strict=True):
        study.deliver(owner, values)
    study.wait_state("closed")
    world.stop()
    return study


def sealed_files(home: Path) -> list[Path]:
    return sorted(path for path in (home / "studies").rglob("*") if path.is_file() and "sealed" in path.parts)


STEPS = ("multiply_chunks", "draw", "make_release")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("held", STEPS)
def test_sealed_files_that_changed_are_not_used(
    study: OpenStudy, held: str, every: bool, tmp_path: Path, promise: Promise
) -> None:
    """Before each step: no release, and an operator is asked for; the right file is enough to go on."""
    before = tmp_path / "before"
    with Taken(study, copy_with_generation(study.world.home, before)) as taken:
        taken.work(held)
        before_it, answer = taken.draws, taken.answer
    tried = refused = 0
    files = sealed_files(before)
    assert files
    changes = [(file, name, change) for file in files for name, change in ALTERATIONS.items()]
    changes += [(file, "another", exchanged(other)) for file, other in pairwise(files)]
    for file, name, change in changes if every else changes[:: len(changes) // FEW]:
        home = copy_with_generation(before, tmp_path / "altered")
        path = home / file.relative_to(before)
        right = path.read_bytes()
        alter(path, change)
        with Taken(study, home, answer=answer) as taken:
            taken.work()
            tried += 1
            if taken.state != "released":
                refused += 1
                assert taken.state in ("closed", "counted"), (file, name)
                assert taken.jobs.trouble == "state-corrupt", (file, name)
                assert taken.worker.noise == []
                assert taken.draws == before_it or held != "make_release"
                path.write_bytes(right)
                taken.work()
            assert taken.state == "released", (file, name)
            assert taken.jobs.trouble is None
            taken.check_release()
            assert taken.draws == 1
    assert refused
    promise(
        "P10",
        counted=f"{study.manifest.release} before {held}: {len(files)} sealed files altered in {tried} ways",
        result=f"{refused} refused, the others not needed; 0 wrong sums, 0 second draws",
    )


def test_a_release_that_changed_is_not_given_out(study: OpenStudy, tmp_path: Path) -> None:
    """Whoever reads it is told that an operator is needed; the audit names the chunk."""
    before = tmp_path / "before"
    with Taken(study, copy_with_generation(study.world.home, before)) as taken:
        taken.work()
        taken.check_release()
        answer = taken.answer
    (file,) = (path for path in (before / "studies").rglob("*") if path.is_file())
    for name, change in ALTERATIONS.items():
        home = copy_with_generation(before, tmp_path / "altered")
        alter(home / file.relative_to(before), change)
        with Taken(study, home, answer=answer) as taken:
            assert refused(taken.check_release).slug == "state-corrupt", name
            failed = [check for check in audit_study(taken.proxy, study.study) if check.outcome != HOLDS]
            assert [check.what for check in failed] == ["release: signature, cohort and chunks"], name


# The database and its write-ahead log

DECISIVE = (
    "log",
    "parties",
    "participants",
    "statements",
    "cohort",
    "events",
    "components",
    "draws",
    "studies",
)
"""Without a row of these somebody could be told something else than before."""


def rows(proxy: Proxy) -> dict[str, Any]:
    return {table: content for table, content in dump(proxy).items() if table in DECISIVE}


def drawn(study: OpenStudy, to: Path, *, crashed: bool) -> tuple[Path, dict[str, Any], bytes | None]:
    """A home whose noise is drawn and not yet released, its rows, and the data user's answer.

    Args:
        crashed: as after a power cut, with all that was done in the write-ahead log; else that is empty.
    """
    with Taken(study, study.world.home) as taken:
        taken.work("make_release")
        if not crashed:
            taken.proxy.database.forget_deleted()
        home = copy_with_generation(study.world.home, to)
        assert ((home / "proxy.sqlite3-wal").stat().st_size > 20_000) == crashed
        return home, rows(taken.proxy), taken.answer


def wal_places(content: bytes) -> list[int]:
    """One byte of each kind: of the header's and the frames' fields, and of pages."""
    page = int.from_bytes(content[8:12], "big")
    frames = (len(content) - 32) // (24 + page)
    header = list(range(0, 32, 4))
    chosen = sorted({0, 1, frames // 3, frames // 2, frames - 2, frames - 1})
    fields = [
        32 + number * (24 + page) + at
        for number in chosen
        for at in (0, 4, 8, 16, 24, 24 + 100, 24 + page - 1)
    ]
    return [*header, *(place for place in fields if place < len(content))]


WAL_FILES = ("proxy.sqlite3-wal", "proxy.sqlite3-shm")


def turned(at: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:at] + bytes([content[at] ^ 0x01]) + content[at + 1 :]


def shortened(to: float) -> Callable[[bytes], bytes]:
    return lambda content: content[: int(len(content) * to)]


def judge(study: OpenStudy, home: Path, answer: bytes | None) -> tuple[str, dict[str, Any]]:
    """What comes of a home, and its rows; "released" is exact and verified, all else a kind of refusal.

    What is wrong and passes for right, and a second draw, are failures here.
    """
    found: dict[str, Any] = {}
    try:
        with Taken(study, home, answer=answer) as taken:
            try:
                taken.proxy.database.settle_witness()
            except ConflictError as error:
                taken.work()
                assert taken.worker.calls == [], "it works on an older copy"
                return error.slug, found
            found = rows(taken.proxy)
            taken.work()
            assert "draw" not in taken.worker.calls, "it drew a second time"
            if taken.state == "failed":
                return "failed", found
            if taken.state != "released":
                assert taken.jobs.trouble is not None, "it stands still, and nobody is told"
                return taken.jobs.trouble, found
            taken.check_release()
            return "released", found
    except DpdpcaError as error:
        return error.slug, found


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_log_that_changed_is_an_older_database_or_the_same(
    study: OpenStudy, every: bool, tmp_path: Path, promise: Promise
) -> None:
    home, expected, answer = drawn(study, tmp_path / "crashed", crashed=True)
    wal = home / "proxy.sqlite3-wal"
    content = wal.read_bytes()
    changes: list[tuple[str, Callable[[bytes], bytes | None]]]
    changes = [("proxy.sqlite3-wal", turned(at)) for at in wal_places(content)]
    changes += [("proxy.sqlite3-wal", shortened(to)) for to in (0.1, 0.5, 0.9, 0.999)]
    changes += [(name, change) for name in WAL_FILES for change in ALTERATIONS.values()]
    outcomes: Counter[str] = Counter()
    for name, change in changes if every else changes[:: len(changes) // (2 * FEW)]:
        altered = copy_with_generation(home, tmp_path / "altered")
        alter(altered / name, change)
        outcome, found = judge(study, altered, answer)
        outcomes[outcome] += 1
        assert outcome != "released" or found == expected, name
    assert set(outcomes) <= {"released", "generation-mismatch", "state-corrupt"}, outcomes
    assert outcomes["generation-mismatch"]
    promise(
        "P10",
        counted=f"{study.manifest.release}: a write-ahead log altered in {outcomes.total()} ways",
        result=told(outcomes),
    )


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_database_that_changed_is_told(
    study: OpenStudy, every: bool, tmp_path: Path, promise: Promise
) -> None:
    """One byte of every page, in four places of it. SQLite itself has no checksums there."""
    home, _, answer = drawn(study, tmp_path / "stopped", crashed=False)
    length = (home / "proxy.sqlite3").stat().st_size
    places = [start + at for start in range(0, length, 4096) for at in (0, 5, 2000, 4090)]
    outcomes: Counter[str] = Counter()
    for at in places if every else places[:: len(places) // (2 * FEW)]:
        altered = copy_with_generation(home, tmp_path / "altered")
        alter(altered / "proxy.sqlite3", turned(at))
        outcomes[judge(study, altered, answer)[0]] += 1
    promise(
        "P10",
        counted=f"{study.manifest.release}: a database altered in {outcomes.total()} places",
        result=told(outcomes),
    )


@pytest.mark.parametrize(
    "index", ["sqlite_autoindex_draws_1", "sqlite_autoindex_data_keys_1", "studies_by_state"]
)
def test_an_index_that_misses_a_row_makes_no_second_draw(
    study: OpenStudy, index: str, tmp_path: Path, promise: Promise
) -> None:
    """One bit of a key in an index: no page is malformed, and a search finds nothing where a row is."""
    home, _, answer = drawn(study, tmp_path / "stopped", crashed=False)
    path = home / "proxy.sqlite3"
    with closing(sqlite3.connect(path)) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (index,)).fetchone()
    last_key = page * 4096 - 6  # cells fill a page from its end
    alter(path, turned(last_key))
    assert judge(study, home, answer)[0] == "state-corrupt"
    promise(
        "P9", counted=f"{study.manifest.release}: a key in {index} altered", result="refused, 0 second draws"
    )


def told(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
