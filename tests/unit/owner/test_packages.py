"""An owner without a network: a folder carries its requests out and the answers back."""

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from carried import Carried
from memory_proxy import URL
from owner_scene import MakeScene, Scene

from dpdpca_owner import actions, package
from dpdpca_owner.accounts.charge import SpendState
from dpdpca_owner.carrying import NotCarriedError, carrying
from dpdpca_owner.package import Package
from dpdpca_owner.upload import Outcome, Settled, Watcher
from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    DpdpcaError,
    IntegrityError,
    MessageError,
    NotFoundError,
    PolicyError,
    UnavailableError,
)
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.wire.canonical import read_object
from dpdpca_protocol.wire.signing import IdentityKey, sign_statement, verify_statement

FEATURES = [{"name": f"f{index}", "lower": 0, "upper": index + 1} for index in range(4)]
SUITES: dict[str, dict[str, Any]] = {
    "pads": {"suite": "pads"},
    "blinded": {"blinding": "pairwise"},
    "paillier": {"suite": "paillier"},
    "masked": {"release": "masked", "sum_weight": None},
}


@pytest.fixture(params=SUITES)
def carried(
    request: pytest.FixtureRequest, make_scene: MakeScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Carried:
    """Four values a chunk under pads, so that a small study has four chunks."""
    monkeypatch.setattr("dpdpca_protocol.pads.chunks.CHUNK_VALUES", 4)
    return Carried(make_scene(features=FEATURES, **SUITES[request.param]), tmp_path / "stick")


@pytest.fixture
def blinded(make_scene: MakeScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Carried:
    monkeypatch.setattr("dpdpca_protocol.pads.chunks.CHUNK_VALUES", 4)
    return Carried(make_scene(features=FEATURES, blinding="pairwise"), tmp_path / "stick")


def spend_of(scene: Scene) -> SpendState | None:
    spend = scene.desk.home.ledger.read().spend(scene.address.study)
    return None if spend is None else spend.state


def refused(act: Callable[[], object]) -> DpdpcaError:
    with pytest.raises(DpdpcaError) as caught:
        act()
    return caught.value


def no_network(*_: Any, **__: Any) -> Any:
    raise AssertionError("the machine with the data has no network")


def test_a_share_reaches_the_proxy_through_a_folder(
    carried: Carried, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = carried.scene
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", no_network)
        patch.setattr(socket, "getaddrinfo", no_network)
        asked = carried.join()
    assert isinstance(asked, NotCarriedError)
    assert not asked.has_request
    assert spend_of(scene) is None
    assert scene.proxy.received == []

    first = carried.send()
    assert (first.sent, first.receipts) == (0, ())

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", no_network)
        patch.setattr(socket, "getaddrinfo", no_network)
        packed = carried.join()
    assert isinstance(packed, NotCarriedError)
    assert packed.has_request
    assert spend_of(scene) is SpendState.RESERVED
    assert scene.proxy.share_state == "absent"

    sent = carried.send()
    assert scene.proxy.share_state == "complete"
    assert [receipt.version for receipt in sent.receipts] == [1]

    receipt = carried.join()
    assert isinstance(receipt, Receipt)
    assert receipt == sent.receipts[0]
    assert spend_of(scene) is SpendState.COMMITTED

    again = carried.join()
    assert isinstance(again, Settled)
    assert again.outcome is Outcome.ALREADY


def test_the_share_is_the_one_that_a_connection_would_send(blinded: Carried) -> None:
    """Chunks and statement are the same byte for byte, from the same secrets."""
    blinded.pack()
    blinded.send()
    proxy = blinded.scene.proxy
    through_folder, receipt = dict(proxy.chunks), proxy.receipt
    assert receipt is not None

    proxy.chunks, proxy.receipt, proxy.share_state, proxy.signed_version = {}, None, "absent", 0
    proxy.receipts.clear()
    prepared = actions.prepare_join(blinded.scene.desk, blinded.scene.address, blinded.scene.location)
    direct = actions.join(blinded.scene.desk, blinded.scene.address, prepared, Watcher())
    assert proxy.chunks == through_folder
    assert direct.receipt.statement == Receipt.parse(receipt).statement


def test_a_share_that_is_packed_again_is_the_same(carried: Carried) -> None:
    carried.pack()
    bodies = carried.bodies()
    assert isinstance(carried.join(), NotCarriedError)
    assert carried.bodies() == bodies

    # The folder is lost, and another one is made: the same share, in other seals.
    again = Carried(carried.scene, carried.folder.with_name("another"))
    again.pack()
    carried.send()
    proxy = carried.scene.proxy
    first = dict(proxy.chunks)
    assert again.send().receipts == carried.send().receipts
    assert proxy.chunks == first
    assert isinstance(again.join(), Receipt)


def test_lost_ciphertexts_of_a_packed_share_give_a_new_version(make_scene: MakeScene, tmp_path: Path) -> None:
    carried = Carried(make_scene(), tmp_path / "stick")
    carried.pack()
    carried.scene.desk.home.study(carried.scene.address.study).drop_chunks()
    again = Carried(carried.scene, tmp_path / "another")
    again.pack()
    assert [receipt.version for receipt in carried.send().receipts] == [1]
    assert [receipt.version for receipt in again.send().receipts] == [2]


def test_other_records_are_a_new_version_or_a_refusal(carried: Carried, tmp_path: Path) -> None:
    carried.pack()
    rows = Path(carried.scene.location.data).read_text().splitlines()
    other = tmp_path / "other.csv"
    other.write_text("\n".join([*rows, rows[1]]) + "\n")
    changed = carried.at_location(other)
    if carried.scene.proxy.manifest.body.get("blinding"):
        assert refused(changed.join).slug == "blinded-share-is-final"
        return
    assert isinstance(changed.join(), NotCarriedError)
    listed = Package.load(carried.folder).requests
    assert {each.target.partition("?")[2] for each in listed if each.method == "PUT"} == {"version=2"}
    assert [receipt.version for receipt in carried.send().receipts] == [2]
    assert isinstance(changed.join(), Receipt)


def test_nothing_secret_is_in_the_folder(carried: Carried) -> None:
    carried.pack()
    carried.send()
    carried.join()
    scene, content = carried.scene, carried.content()
    key = scene.desk.owner.key
    secrets = [key.ed25519.private_bytes_raw(), key.blinding_key.private_bytes_raw()]
    secrets += [part.private_bytes_raw() for part in key.opening_key.parts]
    secrets.append(scene.desk.home.ledger.key())
    kept = scene.desk.home.study(scene.address.study).secrets()
    if kept is not None:
        secrets += [kept.begun.secrets, kept.begun.secrets[:32], kept.begun.secrets[32:], kept.values]
    for secret in secrets:
        assert secret not in content
        assert secret.hex().encode() not in content
    rows = Path(scene.location.data).read_text().splitlines()
    for value in {value for row in rows[1:] for value in row.split(",")}:
        assert value.encode() not in content
    for chunk in scene.proxy.chunks.values():
        assert chunk[:64] not in content


def test_the_ledger_is_written_before_the_share(blinded: Carried, monkeypatch: pytest.MonkeyPatch) -> None:
    blinded.join()
    blinded.send()
    scene, seen = blinded.scene, []
    save = Package.save_body

    def watch(self: Package, request: package.CarriedRequest, content: bytes) -> None:
        ledger = scene.desk.home.ledger.read()
        seen.append((spend_of(scene), scene.address.study in ledger.sent))
        save(self, request, content)

    monkeypatch.setattr(Package, "save_body", watch)
    blinded.join()
    assert len(seen) == 5
    assert set(seen) == {(SpendState.RESERVED, True)}


def test_a_budget_that_is_too_small_writes_nothing(blinded: Carried) -> None:
    blinded.join()
    blinded.send()
    before = blinded.content()
    policy = blinded.scene.desk.home.policy_path
    policy.write_text("[study]\nmin_owners = 2\n[budget]\nrho = 1e-9\n")
    with pytest.raises(PolicyError):
        blinded.join()
    assert blinded.content() == before


# The folder on its way


@pytest.mark.parametrize("change", ["altered", "missing", "swapped", "additional", "cut", "index", "link"])
def test_a_folder_that_was_changed_is_not_sent(blinded: Carried, change: str) -> None:
    blinded.pack()
    out = sorted((blinded.folder / "to-proxy").iterdir())
    match change:
        case "altered":
            out[0].write_bytes(out[0].read_bytes()[:-1] + b"\0")
        case "missing":
            out[0].unlink()
        case "swapped":
            content = out[0].read_bytes()
            out[0].write_bytes(out[1].read_bytes())
            out[1].write_bytes(content)
        case "additional":
            (blinded.folder / "to-proxy" / f"{'0' * 32}.bin").write_bytes(b"more")
        case "cut":
            out[0].write_bytes(out[0].read_bytes()[:100])
        case "index":
            index = blinded.folder / "package.json"
            index.write_bytes(
                index.read_bytes().replace(b'"version=1"', b'"version=2"').replace(b"GET", b"PUT")
            )
        case "link":
            (blinded.folder / "README.txt").unlink()
            (blinded.folder / "README.txt").symlink_to(out[0])
    before = list(blinded.scene.proxy.received)
    error = refused(blinded.send)
    assert isinstance(error, IntegrityError)
    assert error.slug == "package-altered"
    assert blinded.scene.proxy.received == before


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "link"])
@pytest.mark.parametrize("which", ["package.json", "to-proxy", "from-proxy"])
def test_what_is_no_ordinary_file_is_not_read(blinded: Carried, which: str, kind: str) -> None:
    """A pipe would let both machines wait forever."""
    blinded.pack()
    (asked,) = [each for each in Package.load(blinded.folder).requests if each.target.endswith("/manifest")]
    path = {
        "package.json": blinded.folder / which,
        "to-proxy": sorted((blinded.folder / "to-proxy").iterdir())[0],
        "from-proxy": blinded.folder / which / f"{asked.name}.bin",
    }[which]
    content = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.with_name(".copy").write_bytes(content)
        path.symlink_to(path.with_name(".copy"))
    else:
        path.symlink_to("/dev/zero")
    if which == "from-proxy":  # the machine that sends asks the proxy again
        assert refused(blinded.join).slug == "package-altered"
    else:
        assert refused(blinded.send).slug == "package-altered"


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("target", "http://intranet.example/"),
        ("target", "@intranet.example/v1/parties"),
        ("target", "//intranet.example/v1/parties"),
        ("target", "/v1/../intranet"),
        ("target", "/v1/parties\r\nX: y"),
        ("method", "CONNECT"),
        ("media_type", "text/html"),
        ("headers", {"signature": "a\r\nHost: intranet.example"}),
        ("headers", {"signature": "é"}),
        ("bytes", -2),
        ("bytes", 10**12),
    ],
)
def test_a_made_up_folder_leads_nowhere_but_to_a_proxy(blinded: Carried, member: str, value: Any) -> None:
    """Anybody can sign a list of requests, and the machine that sends knows no owner."""
    blinded.pack()
    index = blinded.folder / "package.json"
    body = dict(read_object(index.read_bytes())["body"])
    body["requests"] = [each | {member: value} for each in body["requests"]]
    index.write_bytes(sign_statement("package", body, IdentityKey.generate()).encoded)
    before = list(blinded.scene.proxy.received)
    assert refused(blinded.send).slug == "package-altered"
    assert blinded.scene.proxy.received == before


def test_hidden_files_of_systems_do_not_matter(blinded: Carried) -> None:
    blinded.pack()
    (blinded.folder / ".DS_Store").write_bytes(b"a view")
    (blinded.folder / "to-proxy" / ".part").write_bytes(b"half of a copy")
    assert len(blinded.send().receipts) == 1


def test_a_foreign_file_stops_the_machine_with_the_data_and_is_kept(blinded: Carried) -> None:
    blinded.pack()
    foreign = blinded.folder / "to-proxy" / "letter.txt"
    foreign.write_text("not ours")
    assert refused(blinded.join).slug == "package-altered"
    assert foreign.exists()


def test_a_folder_of_another_version_names_both(blinded: Carried, monkeypatch: pytest.MonkeyPatch) -> None:
    blinded.pack()
    monkeypatch.setattr(package, "PACKAGE_FORMAT", 7)
    for act in (blinded.send, blinded.join):
        error = refused(act)
        assert isinstance(error, ConflictError)
        assert error.slug == "package-of-another-version"
        assert "(format 1 " in error.problem
        assert "(format 7)" in error.problem


def test_other_folders_are_told_apart(blinded: Carried, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(b"x")
    other = Carried(blinded.scene, tmp_path / "photos")
    assert refused(other.send).slug == "not-a-package"
    assert isinstance(refused(other.send), NotFoundError)
    assert refused(other.join).slug == "folder-in-use"
    blinded.pack()
    mine = Package.load(blinded.folder)
    mine.save(IdentityKey.generate())
    assert refused(blinded.join).slug == "package-of-another-owner"


# Sending


def test_sending_is_continued_where_it_stopped(blinded: Carried) -> None:
    blinded.pack()
    puts: list[str] = []

    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PUT":
            puts.append(request.url.path)
            if len(puts) == 3:
                raise httpx.ReadError("cut")
        return None

    blinded.scene.proxy.interfere = interfere
    assert isinstance(refused(blinded.send), UnavailableError)
    sent = blinded.send()
    assert (sent.sent, sent.already) == (3, 2)
    assert len(puts) == 5
    assert isinstance(blinded.join(), Receipt)


def test_another_proxy_is_refused(blinded: Carried) -> None:
    blinded.pack()
    blinded.scene.proxy.key = IdentityKey.generate("proxy")
    before = len(blinded.scene.proxy.received)
    error = refused(blinded.send)
    assert error.slug == "proxy-key-changed"
    asked = blinded.scene.proxy.received[before:]
    assert all(each.startswith("GET /v1/proxy") for each in asked)


def test_an_unsigned_answer_is_refused(blinded: Carried, monkeypatch: pytest.MonkeyPatch) -> None:
    blinded.join()
    monkeypatch.setattr(type(blinded.scene.proxy), "_signed_as", lambda self, request: "")
    error = refused(blinded.send)
    assert isinstance(error, MessageError)
    assert error.slug == "answer-unsigned"


def test_a_refusal_is_told_and_the_answers_come_back(blinded: Carried) -> None:
    blinded.pack()
    blinded.scene.proxy.state = "cancelled"
    assert refused(blinded.send).slug == "study-closed"
    assert refused(blinded.join).slug == "study-closed"
    assert spend_of(blinded.scene) is SpendState.RESERVED


# Answers on their way back


@pytest.mark.parametrize("what", ["parties", "study", "share"])
def test_an_altered_answer_is_not_believed(blinded: Carried, what: str) -> None:
    """For example, a list of parties that gives a made-up owner the name of a hospital."""
    blinded.join()
    blinded.send()
    study = f"/v1/studies/{blinded.scene.address.study.hex()}"
    target = {"parties": "/v1/parties?statements=true", "study": study, "share": f"{study}/share"}[what]
    (request,) = [each for each in Package.load(blinded.folder).requests if each.target == target]
    path = blinded.folder / "from-proxy" / f"{request.name}.bin"
    head, _, content = path.read_bytes().partition(b"\n")
    path.write_bytes(head + b"\n" + content + b" ")
    error = refused(blinded.join)
    assert (type(error), error.slug) == (AuthenticationError, "answer-altered")
    path.write_bytes(b"null\n" + content)
    assert isinstance(refused(blinded.join), MessageError)
    blinded.send()
    assert isinstance(blinded.join(), NotCarriedError)
    blinded.send()
    assert isinstance(blinded.join(), Receipt)


def test_an_answer_to_another_request_is_not_believed(blinded: Carried) -> None:
    blinded.join()
    blinded.send()
    found = {each.target: each for each in Package.load(blinded.folder).requests}
    one, other = found["/v1/parties"], found["/v1/parties?statements=true"]
    back = blinded.folder / "from-proxy"
    (back / f"{other.name}.bin").write_bytes((back / f"{one.name}.bin").read_bytes())
    assert refused(blinded.join).slug == "answer-altered"


def test_older_answers_cannot_be_put_back(blinded: Carried) -> None:
    proxy, back = blinded.scene.proxy, blinded.folder / "from-proxy"
    blinded.join()
    proxy.now = "2026-01-01T00:00:05Z"
    blinded.send()
    older = {path: path.read_bytes() for path in back.iterdir()}
    proxy.now = "2026-01-01T00:00:07Z"
    blinded.send()
    packed = blinded.join()
    assert isinstance(packed, NotCarriedError)
    assert packed.has_request
    for path, content in older.items():
        path.write_bytes(content)
    waiting = blinded.join()
    assert isinstance(waiting, NotCarriedError)
    assert not waiting.has_request
    blinded.send()
    assert isinstance(blinded.join(), Receipt)


def test_answers_that_are_older_than_the_receipt_accuse_nobody(blinded: Carried) -> None:
    """The receipt came through another folder; the first folder says nothing of a share."""
    proxy = blinded.scene.proxy
    proxy.now = "2025-12-31T00:00:00Z"
    blinded.join()
    blinded.send()
    prepared = actions.prepare_join(blinded.scene.desk, blinded.scene.address, blinded.scene.location)
    actions.join(blinded.scene.desk, blinded.scene.address, prepared, Watcher())
    waiting = blinded.join()
    assert isinstance(waiting, NotCarriedError)
    assert not waiting.has_request


def test_a_forged_receipt_is_not_booked(blinded: Carried) -> None:
    blinded.pack()
    blinded.send()
    package = Package.load(blinded.folder)
    thief = IdentityKey.generate("proxy")
    for each in package.requests:
        if each.method == "POST":
            answer = package.answer(each, package.proxy)
            assert answer is not None
            said = Receipt.parse(verify_statement("receipt", answer.content))
            package.save_answer(each, None, replace(said, version=1).sign(thief).encoded)
    blinded.scene.proxy.receipt = None
    assert blinded.send().receipts[0].version == 1  # asked again, because the answer was not the proxy's


# Clocks


@pytest.mark.parametrize("hours", [-5000, -12, 12, 5000])
def test_the_clock_of_the_machine_with_the_data_may_be_wrong(blinded: Carried, hours: int) -> None:
    scene = blinded.scene
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hours)
    scene.desk = replace(scene.desk, now=lambda: now)
    blinded.pack()
    study = Package.load(blinded.folder).requests
    ends = {each.headers["signature-input"].split("expires=")[1].split(";")[0] for each in study if each.body}
    closes = datetime.fromisoformat(scene.proxy.manifest.body["closes_at"])
    assert ends == {str(int(closes.timestamp()))}
    blinded.send()
    assert isinstance(blinded.join(), Receipt)


# Withdrawal, restored homes, enrolment


def withdraw(carried: Carried) -> Settled:
    """What `dpdpca owner withdraw --to FOLDER` does."""
    desk, study = carried.scene.desk, carried.scene.address.study
    with carrying(
        desk.home, desk.home.load(), carried.folder, URL, study, now=desk.now, key_rules=desk.key_rules
    ) as carrying_desk:
        return actions.withdraw(carrying_desk, carried.scene.address)


def test_a_share_is_withdrawn_through_the_folder(blinded: Carried) -> None:
    blinded.pack()
    blinded.send()
    blinded.join()
    with pytest.raises(NotCarriedError):
        withdraw(blinded)
    assert [each.method for each in Package.load(blinded.folder).requests if not each.reads] == ["DELETE"]
    blinded.send()
    assert withdraw(blinded).receipt.subject == "withdrawal"
    assert blinded.scene.proxy.share_state == "withdrawn"


@pytest.mark.parametrize("suite", ["pads", "paillier"])
@pytest.mark.parametrize("records", ["the same", "others"])
def test_who_joins_again_is_above_a_withdrawal_that_still_lies_in_a_folder(
    make_scene: MakeScene, tmp_path: Path, records: str, suite: str
) -> None:
    """Whoever kept that folder could otherwise prove two statements under one version, or take away the newer
    share."""
    carried = Carried(make_scene(features=FEATURES, suite=suite), tmp_path / "stick")
    carried.pack()
    carried.send()
    carried.join()
    with pytest.raises(NotCarriedError):
        withdraw(carried)
    again = carried
    if records == "others":
        rows = Path(carried.scene.location.data).read_text(encoding="utf-8").splitlines()
        (tmp_path / "others.csv").write_text("\n".join(rows[:-2]) + "\n", encoding="utf-8")
        again = carried.at_location(tmp_path / "others.csv")
    assert isinstance(again.join(), NotCarriedError)
    assert {each.method for each in Package.load(carried.folder).requests if not each.reads} == {
        "PUT",
        "POST",
    }
    carried.send()
    receipt = again.join()
    assert isinstance(receipt, Receipt)
    assert (receipt.subject, receipt.version) == ("share", 3)
    folder = carried.scene.desk.home.study(carried.scene.address.study)
    made = [folder.statement(kind, version) for kind in ("share", "withdrawal") for version in (1, 2, 3)]
    assert [each is not None for each in made] == [True, False, True, False, True, False]


def test_a_restored_home_cannot_pack_a_blinded_share(blinded: Carried) -> None:
    blinded.pack()
    folder = blinded.scene.desk.home.study(blinded.scene.address.study)
    (folder.path / "secrets.json").unlink()
    assert refused(blinded.join).slug == "blinded-plan-lost"
