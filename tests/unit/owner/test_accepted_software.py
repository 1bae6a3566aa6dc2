"""An owner whose policy lists digests sends nothing to a proxy that names other software."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from carried import Carried
from memory_proxy import URL
from owner_scene import MakeScene, Scene

from dpdpca_owner import actions, reports
from dpdpca_owner.carrying import NotCarriedError
from dpdpca_owner.package import Package
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import IntegrityError, MessageError, PolicyError, UnavailableError
from dpdpca_protocol.messages.software import Software, SoftwareKind
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.wire.canonical import canonical_json, read_object
from dpdpca_protocol.wire.signing import IdentityKey, sign_statement

REVIEWED, UNKNOWN = (f"sha256:{letters * 32}" for letters in ("ab", "cd"))
WHEEL = Software("1.0.0", SoftwareKind.WHEEL, REVIEWED)
OTHER = Software("1.0.1", SoftwareKind.WHEEL, UNKNOWN)
REFUSED = (
    None,
    OTHER,
    Software("1.0.0", SoftwareKind.IMAGE, UNKNOWN),
    Software("1.0.0", SoftwareKind.ALTERED, UNKNOWN),
    Software("1.0.0", SoftwareKind.EDITABLE),
)


def accept(scene: Scene, *digests: str) -> None:
    listed = ", ".join(f'"{digest}"' for digest in digests)
    scene.desk.home.policy_path.write_text(f"[study]\nsoftware = [{listed}]\n")


def join(scene: Scene) -> None:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    actions.join(scene.desk, scene.address, prepared, Watcher())


def sent(received: Sequence[str]) -> list[str]:
    return [each for each in received if not each.startswith("GET")]


@pytest.mark.parametrize("software", [None, WHEEL, *REFUSED])
def test_without_a_list_any_software_is_accepted(make_scene: MakeScene, software: Software | None) -> None:
    scene = make_scene()
    scene.proxy.software = software
    join(scene)
    assert scene.proxy.share_state == "complete"


@pytest.mark.parametrize("kind", [SoftwareKind.WHEEL, SoftwareKind.IMAGE])
def test_listed_software_gets_the_share(make_scene: MakeScene, kind: SoftwareKind) -> None:
    scene = make_scene()
    accept(scene, UNKNOWN, REVIEWED)
    scene.proxy.software = replace(WHEEL, kind=kind)
    join(scene)
    assert scene.proxy.share_state == "complete"


@pytest.mark.parametrize("software", REFUSED, ids=str)
def test_other_software_gets_nothing(make_scene: MakeScene, software: Software | None) -> None:
    scene = make_scene()
    accept(scene, REVIEWED)
    scene.proxy.software = software
    with pytest.raises(PolicyError) as refusal:
        join(scene)
    assert refusal.value.slug == "policy-software"
    said = str(refusal.value)
    assert ("software that it does not name" if software is None else str(software)) in said
    assert REVIEWED in said
    assert "policy.toml" in said
    assert sent(scene.proxy.received) == []
    assert scene.desk.home.ledger.read().spend(scene.address.study) is None


def test_software_that_changes_after_the_consent_gets_nothing(make_scene: MakeScene) -> None:
    scene = make_scene()
    accept(scene, REVIEWED)
    scene.proxy.software = WHEEL
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    scene.proxy.software = OTHER
    with pytest.raises(PolicyError, match=UNKNOWN):
        actions.join(scene.desk, scene.address, prepared, Watcher())
    assert sent(scene.proxy.received) == []
    assert scene.desk.home.ledger.read().spend(scene.address.study) is None


def test_a_share_that_was_interrupted_is_not_continued_at_other_software(make_scene: MakeScene) -> None:
    scene = make_scene()
    accept(scene, REVIEWED)
    scene.proxy.software = WHEEL
    refuse = httpx.Response(503)
    scene.proxy.interfere = lambda request: refuse if request.url.path.endswith("/complete") else None
    with pytest.raises(UnavailableError):
        join(scene)
    before = sent(scene.proxy.received)
    scene.proxy.interfere = lambda request: None
    scene.proxy.software = OTHER
    with pytest.raises(PolicyError, match=UNKNOWN):
        join(scene)
    assert sent(scene.proxy.received) == before
    accept(scene, REVIEWED, UNKNOWN)
    join(scene)
    assert scene.proxy.share_state == "complete"


def test_a_share_can_be_withdrawn_whatever_the_proxy_runs(make_scene: MakeScene) -> None:
    scene = make_scene()
    join(scene)
    accept(scene, REVIEWED)
    scene.proxy.software = OTHER
    actions.withdraw(scene.desk, scene.address)
    assert scene.proxy.share_state == "withdrawn"


def test_a_card_that_another_key_has_signed_is_not_believed(make_scene: MakeScene) -> None:
    """Whoever stands between cannot name the reviewed digest for the proxy."""
    scene = make_scene()
    accept(scene, REVIEWED)
    forger = IdentityKey.generate("proxy")
    card = ProxyCard("Relay", URL, scene.proxy.key.public, WHEEL).sign(forger)
    forged = sign_statement("proxy", card.body, forger)
    scene.proxy.interfere = lambda request: (
        httpx.Response(200, content=forged.encoded) if request.url.path == "/v1/proxy" else None
    )
    with pytest.raises(MessageError, match="not its signer's"):
        join(scene)
    assert sent(scene.proxy.received) == []


def test_sheet_and_review_say_what_the_proxy_runs(make_scene: MakeScene) -> None:
    scene = make_scene()
    accept(scene, REVIEWED)
    scene.proxy.software = OTHER
    sheet = actions.review(scene.desk, scene.address, None)
    lines = [line for line in sheet.who_can_decrypt() if UNKNOWN in line]
    assert lines == [f"Relay says that it runs dpdpca 1.0.1 (wheel {UNKNOWN}). Nothing proves that."]
    facts = sheet.to_json()
    assert facts["proxy"]["software"] == {"kind": "wheel", "version": "1.0.1", "digest": UNKNOWN}
    assert [line["slug"] for line in facts["policy"]["lines"] if not line["holds"]] == ["policy-software"]
    assert any(UNKNOWN in warning for warning in sheet.summary().warnings)


def test_status_says_if_the_policy_does_not_accept_what_made_the_release(make_scene: MakeScene) -> None:
    scene = make_scene()
    scene.proxy.software = WHEEL
    join(scene)
    assert reports.status(scene.desk, scene.address).software is None
    scene.proxy.close()
    scene.proxy.software = OTHER  # the proxy was updated in mid-study
    scene.proxy.open(scene.parties.user)
    for digests, is_accepted in (((), True), ((UNKNOWN,), True), ((REVIEWED,), False)):
        accept(scene, *digests)
        told = reports.status(scene.desk, scene.address).software
        assert told is not None
        assert told.holds is is_accepted
        assert str(OTHER) in told.text
    scene.desk.home.policy_path.write_text("not toml")
    assert reports.status(scene.desk, scene.address).software is None


def test_a_folder_carries_the_list_and_its_sender_keeps_to_it(make_scene: MakeScene, tmp_path: Path) -> None:
    carried = Carried(make_scene(), tmp_path / "stick")
    scene = carried.scene
    accept(scene, REVIEWED)
    scene.proxy.software = WHEEL
    carried.pack()
    assert Package.load(carried.folder).software == (REVIEWED,)
    scene.proxy.software = OTHER  # since the questions were answered
    before = list(scene.proxy.received)
    with pytest.raises(PolicyError) as refusal:
        carried.send()
    assert refusal.value.slug == "policy-software"
    assert "nothing was sent" in str(refusal.value)
    assert UNKNOWN in str(refusal.value)
    assert REVIEWED in str(refusal.value)
    assert scene.proxy.received[len(before) :] == ["GET /v1/proxy"]
    accept(scene, REVIEWED, UNKNOWN)
    assert isinstance(carried.join(), NotCarriedError)  # writes the list anew
    carried.send()
    assert scene.proxy.share_state == "complete"


def test_a_machine_without_a_network_refuses_by_the_card_in_the_folder(
    make_scene: MakeScene, tmp_path: Path
) -> None:
    carried = Carried(make_scene(), tmp_path / "stick")
    accept(carried.scene, REVIEWED)
    carried.scene.proxy.software = OTHER
    assert isinstance(carried.join(), NotCarriedError)
    carried.send()
    with pytest.raises(PolicyError) as refusal:
        carried.join()
    assert refusal.value.slug == "policy-software"
    assert carried.scene.desk.home.ledger.read().spend(carried.scene.address.study) is None


def test_a_folder_without_a_list_is_as_before(make_scene: MakeScene, tmp_path: Path) -> None:
    carried = Carried(make_scene(), tmp_path / "stick")
    carried.pack()
    body = read_object((carried.folder / "package.json").read_bytes())["body"]
    assert "software" not in body
    carried.send()
    assert carried.scene.proxy.share_state == "complete"


def test_a_list_in_a_folder_is_strictly_read(make_scene: MakeScene, tmp_path: Path) -> None:
    carried = Carried(make_scene(), tmp_path / "stick")
    carried.pack()
    index = carried.folder / "package.json"
    body = read_object(index.read_bytes())["body"]
    for listed in ("any", ["any"], [1], [["sha256"]]):
        altered = sign_statement("package", {**body, "software": listed}, IdentityKey.generate())
        index.write_bytes(canonical_json(read_object(altered.encoded)))
        with pytest.raises(IntegrityError):
            Package.load(carried.folder)
