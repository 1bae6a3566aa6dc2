"""An owner in a blinded study: genuine keys of the others, one list of values under one mask, ever."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from owner_scene import MakeScene, Scene
from present import present
from promises import Promise
from study_parties import PADS_SECRET

from dpdpca_owner import actions, reports
from dpdpca_owner.accounts.bookkeeping import recover
from dpdpca_owner.accounts.charge import SpendState
from dpdpca_owner.commands.display import status_text
from dpdpca_owner.recovery import recover_ledger
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_owner.upload import Outcome, Settled, Watcher
from dpdpca_protocol.errors import AuthenticationError, ConflictError, DpdpcaError, PolicyError
from dpdpca_protocol.layout.blocks import whole_numbers
from dpdpca_protocol.messages.rotation import Rotation
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.messages.study_messages import Enrolment
from dpdpca_protocol.pads import chunks
from dpdpca_protocol.pads.keys import ShareKeys
from dpdpca_protocol.pads.masks import pair_keys
from dpdpca_protocol.pads.streams import PadKey, apply_pads
from dpdpca_protocol.release.suite import CohortShare
from dpdpca_protocol.terms.signed_manifest import parse_manifest, suite_of
from dpdpca_protocol.wire.canonical import parse_canonical
from dpdpca_protocol.wire.salts import unsalted
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.words import fingerprint_words

FEATURES = [{"name": f"f{index}", "lower": 0, "upper": index + 1} for index in range(4)]


@pytest.fixture
def scene(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Four values a chunk, so that a small study has four chunks."""
    monkeypatch.setattr("dpdpca_protocol.pads.chunks.CHUNK_VALUES", 4)
    return make_scene(blinding="pairwise", features=FEATURES)


def folder_of(scene: Scene) -> StudyFolder:
    return scene.desk.home.study(scene.address.study)


def join(scene: Scene, watcher: Watcher | None = None) -> Settled:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    return actions.join(scene.desk, scene.address, prepared, watcher or Watcher())


def cut(scene: Scene) -> None:
    """A join that fails after the first chunk."""
    seen: list[int] = []

    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PUT":
            seen.append(1)
            if len(seen) > 1:
                raise httpx.ReadError("cut")
        return None

    scene.proxy.interfere = interfere
    with pytest.raises(DpdpcaError):
        join(scene)
    scene.proxy.interfere = lambda request: None


def add_record(scene: Scene) -> None:
    with Path(scene.location.data).open("a", encoding="utf-8") as file:
        file.write(",".join("0" * 4) + "\n")


def opened(scene: Scene) -> list[int]:
    """The values of the share at the proxy, as proxy and data user open them together."""
    suite = suite_of(parse_manifest(scene.proxy.manifest.body))
    contents = [unsalted(chunk) for _, chunk in sorted(scene.proxy.chunks.items())]
    statement = ShareStatement.parse(present(folder_of(scene).statement("share", 1)))
    share = CohortShare(scene.proxy.owner, 1, statement.pad)
    return whole_numbers(suite.open_sum(PADS_SECRET.to_bytes(), contents, [share]))


def masks_of_others(scene: Scene) -> list[int]:
    """The masks of the first owner, negated, as the two others make them from their own keys."""
    first, total = scene.parties.owners[0].public, []
    for index in range(4):
        words = np.zeros(4, dtype=np.uint64)
        for other in scene.parties.owners[1:]:
            named = {first.party_id: first.blinding_key}
            pairs = pair_keys(other.blinding_key, other.public.party_id, named, scene.address.study)
            apply_pads(words, pairs, index)
        total += words.tolist()
    return total


def test_only_with_the_masks_of_all_others_a_share_opens(scene: Scene) -> None:
    settled = join(scene)
    assert (settled.receipt.version, settled.sent_chunks) == (1, 4)
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    exact = list(prepared.contribution.sums.stream())
    alone = opened(scene)
    assert not set(alone) & set(exact)
    values = [
        (x + mask + 2**63) % 2**64 - 2**63 for x, mask in zip(alone, masks_of_others(scene), strict=False)
    ]
    assert values[0] == exact[0]
    noise = [x - y for x, y in zip(values, exact, strict=True)]
    figures = prepared.manifest.figures
    assert all(abs(x) <= max(block.tail for block in figures.blocks) for x in noise)


def test_what_was_interrupted_goes_on_with_the_same_bytes_and_nothing_else(scene: Scene) -> None:
    cut(scene)
    before = dict(present(scene.proxy.upload)[1])
    add_record(scene)
    with pytest.raises(ConflictError, match="cannot be replaced") as caught:
        join(scene)
    assert caught.value.slug == "blinded-share-is-final"
    lines = Path(scene.location.data).read_text(encoding="utf-8").splitlines(keepends=True)
    Path(scene.location.data).write_text("".join(lines[:-1]), encoding="utf-8")
    assert join(scene).receipt.version == 1
    assert before.items() <= scene.proxy.chunks.items()
    assert join(scene).outcome is Outcome.ALREADY
    add_record(scene)
    with pytest.raises(ConflictError, match="cannot be replaced"):
        join(scene)


def forget_secrets(scene: Scene) -> None:
    folder_of(scene).drop_share()


def forget_folder(scene: Scene) -> None:
    shutil.rmtree(folder_of(scene).path)


def other_secrets(scene: Scene) -> None:
    """As in a folder from before the records changed."""
    kept = present(folder_of(scene).secrets())
    folder_of(scene).save_secrets(replace(kept, values=type(kept.values).of(b"other values")))


@pytest.mark.parametrize("lose", [forget_secrets, forget_folder, other_secrets])
def test_an_owner_whose_plan_is_lost_cannot_join(scene: Scene, lose: Callable[[Scene], None]) -> None:
    cut(scene)
    lose(scene)
    with pytest.raises(ConflictError, match="may have been sent already") as caught:
        join(scene)
    assert caught.value.slug == "blinded-plan-lost"
    scene.proxy.upload = None  # a proxy that denies what it has
    with pytest.raises(ConflictError, match="may have been sent already"):
        join(scene)


def test_what_the_proxy_shows_counts_where_the_ledger_says_nothing(scene: Scene) -> None:
    scene.proxy.upload = 1, {0: b"something"}
    with pytest.raises(ConflictError, match="may have been sent already"):
        join(scene)


def test_before_the_first_byte_the_records_may_change(scene: Scene) -> None:
    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PUT":
            raise httpx.ConnectError("cut")
        return None

    ledger = scene.desk.home.ledger
    book = type(ledger).writing
    with pytest.MonkeyPatch.context() as patch:
        # The process ends just before `sending` is written.
        calls: list[int] = []

        def writing(self: Any, now: datetime) -> Any:
            calls.append(1)
            if len(calls) > 1:
                raise KeyboardInterrupt
            return book(self, now)

        patch.setattr(type(ledger), "writing", writing)
        with pytest.raises(KeyboardInterrupt):
            join(scene)
    assert not ledger.read().sent
    add_record(scene)
    assert join(scene).receipt.version == 1
    assert list(ledger.read().sent) == [scene.address.study]


def test_nothing_is_refunded_once_a_byte_has_left(scene: Scene) -> None:
    join(scene)
    study, ledger = scene.address.study, scene.desk.home.ledger
    actions.withdraw(scene.desk, scene.address)
    assert present(ledger.read().spend(study)).state is SpendState.COMMITTED
    scene.proxy.cancel(
        scene.parties.user
    )  # genuine, as proxy and data user may sign it after opening the sum
    report = reports.status(scene.desk, scene.address)
    assert present(report.spend).state is SpendState.COMMITTED
    assert "never refunded" in status_text(report)
    assert present(ledger.read().spend(study)).is_live


def test_a_blinded_study_is_refunded_if_no_byte_has_left(scene: Scene) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actions, "begin_sending", stop_before_sending)
        with pytest.raises(KeyboardInterrupt):
            join(scene)
    assert present(scene.desk.home.ledger.read().spend(scene.address.study)).is_live
    scene.proxy.cancel(scene.parties.user)
    assert present(reports.status(scene.desk, scene.address).spend).state is SpendState.CANCELLED


def stop_before_sending(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("kept", ["nothing", "reserve"])
def test_a_recovered_ledger_refunds_nothing_that_may_have_been_sent(scene: Scene, kept: str) -> None:
    cut(scene)
    study, ledger = scene.address.study, scene.desk.home.ledger
    lines = ledger.entries_path.read_bytes().splitlines(keepends=True)
    kinds = [entry.kind for entry in ledger.read().entries]
    assert kinds[-1] == "sending"
    ledger.entries_path.write_bytes(b"" if kept == "nothing" else b"".join(lines[:-1]))
    recover_ledger(scene.desk)
    assert study in ledger.read().sent
    scene.proxy.cancel(scene.parties.user)
    assert present(reports.status(scene.desk, scene.address).spend).is_live


def test_a_key_that_its_owner_did_not_sign_is_refused(make_scene: MakeScene) -> None:
    scene = make_scene(blinding="pairwise", features=FEATURES)
    victim = scene.parties.owners[1]
    forged = IdentityKey(victim.ed25519, victim.kem, X25519PrivateKey.generate())
    said = Enrolment("owner", "Hospital B", forged.public, scene.parties.proxy.public.ed25519)
    cases: list[Any] = [
        None,
        parse_canonical(said.sign(IdentityKey.generate()).encoded),
        parse_canonical(said.sign(forged).encoded),  # a genuine statement, about another key for blinding
        scene.proxy.statements[scene.parties.owners[2].public.ed25519],
    ]
    for statement in cases:
        scene.proxy.statements[victim.public.ed25519] = statement
        with pytest.raises(DpdpcaError):
            join(scene)
    assert not scene.desk.home.ledger.read().spends
    assert "PUT /v1/studies/ID/share/chunks/0" not in scene.proxy.received


@pytest.mark.parametrize(
    ("given_up", "is_refused"), [("2025-12-31T00:00:00Z", True), ("2026-01-02T00:00:00Z", False)]
)
def test_a_key_given_up_before_the_study_was_created_is_refused(
    scene: Scene, given_up: str, is_refused: bool
) -> None:
    old, new = scene.parties.owners[1], IdentityKey.generate()
    rotation = Rotation("owner", 1, old.public.ed25519, new.public, given_up).sign(old, new)
    scene.proxy.rotations = [parse_canonical(rotation.encoded)]
    if is_refused:
        with pytest.raises(PolicyError, match="before the study was created"):
            join(scene)
    else:
        assert join(scene).receipt.version == 1


def test_after_a_recovery_only_new_keys_join(scene: Scene) -> None:
    ledger = scene.desk.home.ledger
    with ledger.writing(datetime(2026, 1, 1, tzinfo=UTC)) as book:
        check = present(book.ledger.key_check)
        book.record(
            recover(book.ledger, "lost", 0, book.ledger.lost.rho, check, book.time, scene.desk.owner.parties)
        )
    with pytest.raises(PolicyError, match="was recovered") as caught:
        join(scene)
    assert caught.value.slug == "recovered-ledger"
    assert "PUT /v1/studies/ID/share/chunks/0" not in scene.proxy.received


def test_the_sheet_names_who_was_compared_and_what_then_holds(scene: Scene) -> None:
    manifest = parse_manifest(scene.proxy.manifest.body)
    words = fingerprint_words(scene.parties.owners[1].public.ed25519)
    with pytest.raises(AuthenticationError, match="other words"):
        actions.trust(scene.desk, scene.address, "Hospital B", "other words")
    before = actions.review(scene.desk, scene.address, None).to_json()
    assert actions.trust(scene.desk, scene.address, "Hospital B", f" {words} ") == words
    after = actions.review(scene.desk, scene.address, None).to_json()
    assert [each["compared"] for each in after["participants"]] == [False, True, False]
    assert before["epsilon_among_compared"] == float(manifest.figures.epsilon_among(1))
    # With two honest owners of three, and one that may collude, the whole promise holds.
    assert after["epsilon_among_compared"] <= float(manifest.epsilon) < before["epsilon_among_compared"]
    said = [" ".join(" ".join(sheet["statements"]["promise"]).split()) for sheet in (before, after)]
    alone, among = (f"ε = {sheet['epsilon_among_compared']:.4g}" for sheet in (before, after))
    assert "the data user could have made up all other owners" in said[0]
    assert f"{alone} is all that holds for your records" in said[0]
    assert f"{among} even if the proxy, the data user and all owners work together, apart from you" in said[1]
    decrypt = " ".join(after["statements"]["decrypt"])
    assert "If ALL other owners work with them, they can open your share" in decrypt
    assert "exactly these 3 owners" in after["statements"]["cohort"][0]
    assert "may close earlier" not in " ".join(after["statements"]["cohort"])
    policy = scene.desk.home.policy_path
    policy.write_text("[study]\nmin_known_owners = 2\n", encoding="utf-8")
    with pytest.raises(PolicyError, match="whose words you have compared: 1 "):
        join(scene)
    policy.write_text("[study]\nmin_known_owners = 1\n", encoding="utf-8")
    assert join(scene).receipt.version == 1


class Killed(BaseException):
    """The process is gone."""


def test_a_crash_at_any_write_never_puts_two_lists_of_values_under_one_mask(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    """The records change after each crash; the owner joins with whichever it may still send."""
    monkeypatch.setattr("dpdpca_protocol.pads.chunks.CHUNK_VALUES", 10)
    scene = make_scene(blinding="pairwise", features=FEATURES)
    first, data = Path(scene.location.data).read_text(encoding="utf-8"), Path(scene.location.data)
    left, sent = 0, dict[int, set[bytes]]()
    share_chunk, fsync = chunks.share_chunk, os.fsync
    made: set[bytes] = set()

    def noted(keys: ShareKeys, index: int, values: chunks.Integers, pairs: tuple[PadKey, ...] = ()) -> bytes:
        assert len(pairs) == 2
        chunk = bytes(share_chunk(keys, index, values, pairs))
        made.add(chunk)
        return chunk

    def live() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    def synced(descriptor: int) -> None:
        live()
        fsync(descriptor)

    def asked(request: httpx.Request) -> httpx.Response | None:
        live()
        return None

    monkeypatch.setattr(chunks, "share_chunk", noted)
    monkeypatch.setattr(os, "fsync", synced)
    scene.proxy.interfere = asked
    kills, settled, refusals = 0, None, list[str]()
    while settled is None:
        kills += 1
        left = kills
        try:
            settled = join(scene)
        except Killed:
            data.write_text(first if kills % 2 else first + "0,0,0,0\n", encoding="utf-8")
        except ConflictError as error:
            refusals.append(error.slug)
            data.write_text(first if kills % 2 else first + "0,0,0,0\n", encoding="utf-8")
        left = 0
        held = {**scene.proxy.chunks, **(scene.proxy.upload[1] if scene.proxy.upload else {})}
        for index, chunk in held.items():
            assert chunk in made
            sent.setdefault(index, set()).add(chunk)
    # The same bytes each time, so one list of values too.
    assert len(sent) == suite_of(parse_manifest(scene.proxy.manifest.body)).chunk_count
    assert all(len(chunks_sent) == 1 for chunks_sent in sent.values())
    assert kills > 10
    assert set(refusals) == {"blinded-share-is-final"}  # records that changed after a byte had left
    promise(
        "P2",
        counted=f"{kills - 1} kills of an owner in a blinded study",
        result="no two lists of values under one mask",
    )
