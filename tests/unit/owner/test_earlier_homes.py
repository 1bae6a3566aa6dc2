"""An owner's home that was written under message format 1: keys, pins and ledger are read on."""

import base64
import io
import json
import tarfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from archives import extract
from memory_proxy import URL, MemoryProxy
from study_parties import under_paillier

from dpdpca_owner import actions
from dpdpca_owner.accounts.budget import rational_text, read_rational
from dpdpca_owner.actions import Desk
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.recovery import recover_ledger
from dpdpca_owner.upload import Outcome, Watcher
from dpdpca_protocol.errors import AuthenticationError, CryptographicError, MessageError
from dpdpca_protocol.messages.rotation import Rotation
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.paillier.keys import KeyRules, SecretKey
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.terms.parties import KeyTerms, Participant, Party, ProxyParty
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import IdentityKey, Statement, verify_statement
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience
from dpdpca_user.planning.draft import complete_draft

STORED = Path(__file__).parents[2] / "vectors" / "owner_home_0001.json"
TOY_BITS = 512
NOW = datetime(2026, 2, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Earlier:
    """The stored home, unpacked, its neighbours of then, and a proxy with a new study for it."""

    stored: dict[str, Any]
    desk: Desk
    proxy: MemoryProxy
    location: DataLocation

    @property
    def address(self) -> StudyAddress:
        return StudyAddress(URL, self.proxy.study)

    @property
    def spent(self) -> str:
        return rational_text(self.desk.home.ledger.read().spent(self.stored["data_set"]).rho)


def successor(role: str, old: IdentityKey, told: list[Statement]) -> IdentityKey:
    new = IdentityKey.generate()
    told.append(Rotation(role, 1, old.public.ed25519, new.public, time_text(NOW)).sign(old, new))
    return new


@pytest.fixture
def earlier(tmp_path: Path, toy_key: SecretKey, draft: dict[str, Any]) -> Earlier:
    stored = json.loads(STORED.read_text())
    packed = base64.b64decode("".join(stored["home_tar_xz"]))
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:xz") as archive:
        extract(archive, tmp_path)
    home = OwnerHome(tmp_path / "home")
    for path in (home.path, *home.path.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    user, old_relay = (IdentityKey.from_pem(stored[f"{name}_pem"].encode()) for name in ("user", "proxy"))
    # After the upgrade, owners and the proxy make new keys. A data user keeps its key.
    told: list[Statement] = []
    owner = home.rotate(None, NOW, told.append)
    relay = successor("proxy", old_relay, told)
    others = [
        successor("owner", IdentityKey.from_pem(pem.encode()), told) for pem in stored["owner_pems"][1:]
    ]
    keys = [owner.key, *others]
    manifest = complete_draft(
        under_paillier(draft),
        Party("Institute", user.public.ed25519),
        ProxyParty("Relay", URL, relay.public.ed25519, relay.public.sealing_key),
        tuple(Participant(f"Hospital {x}", key.public.ed25519) for x, key in zip("ABC", keys, strict=True)),
        KeyTerms.of(toy_key.public, prove_key(toy_key, user.public.ed25519)),
    )
    proxy = MemoryProxy(relay, sign_manifest(manifest, user), owner.key.public.party_id)
    proxy.rotations = [json.loads(statement.encoded) for statement in told]
    proxy.enrolled = [("user", "Institute", user.public)]
    proxy.enrolled += [("owner", f"Hospital {x}", key.public) for x, key in zip("ABC", keys, strict=True)]

    def connect(url: str, key: IdentityKey, pinned: bytes | None, _seconds: float) -> ProxyClient:
        return ProxyClient(url, key, pinned, httpx.MockTransport(proxy.answer), patience=Patience(0))

    desk = Desk(home, owner, connect, lambda: NOW, key_rules=KeyRules(TOY_BITS))
    return Earlier(stored, desk, proxy, DataLocation(str(tmp_path / "records.csv")))


def test_what_was_spent_under_format_1_stays_spent(earlier: Earlier) -> None:
    desk, stored = earlier.desk, earlier.stored
    ledger = desk.home.ledger.read()
    assert (len(ledger.entries), ledger.last.hex()) == (stored["entries"], stored["last"])
    assert earlier.spent == stored["spent_rho"]
    # The owner rotated its keys once before the upgrade, and once after it.
    assert len(desk.owner.former) == 2
    first = IdentityKey.from_pem(stored["owner_pems"][0].encode())
    assert desk.owner.former[-1].public == first.public

    prepared = actions.prepare_join(desk, earlier.address, earlier.location)
    assert actions.join(desk, earlier.address, prepared, Watcher()).outcome is Outcome.DONE
    # The same records and terms: the study counts on the same data set and costs as much again.
    assert read_rational(earlier.spent, "rho") == 2 * read_rational(stored["spent_rho"], "rho")


def test_keys_of_format_1_join_nothing_before_a_rotation(earlier: Earlier) -> None:
    owner = earlier.desk.owner
    desk = replace(earlier.desk, owner=replace(owner, key=owner.former[0], former=()))
    with pytest.raises(CryptographicError, match="dpdpca owner rotate") as caught:
        actions.prepare_join(desk, earlier.address, earlier.location)
    assert caught.value.slug == "unfit-sealing-key"
    assert earlier.spent == earlier.stored["spent_rho"]


def test_pins_of_format_1_still_tell_keys_apart(earlier: Earlier) -> None:
    pins = earlier.desk.home.pins
    relay = IdentityKey.from_pem(earlier.stored["proxy_pem"].encode()).public.ed25519
    assert pins.proxy(URL).identity.ed25519 == relay
    stranger = IdentityKey.generate()
    with pytest.raises(AuthenticationError) as caught:
        pins.check_proxy(URL, ProxyCard("Relay", URL, stranger.public))
    assert caught.value.slug == "proxy-key-changed"
    user = Party("Institute", stranger.public.ed25519)
    with pytest.raises(AuthenticationError) as caught:
        pins.check_user(relay, user)
    assert caught.value.slug == "user-key-changed"
    another = Participant("Hospital B", stranger.public.ed25519)
    with pytest.raises(AuthenticationError):
        pins.check_participant(relay, another)


def test_a_study_of_format_1_is_refused_in_one_sentence(earlier: Earlier) -> None:
    desk, study = earlier.desk, StudyId.parse(earlier.stored["study"])
    manifest = desk.home.study(study).manifest()
    assert manifest is not None
    earlier.proxy.manifest = verify_statement("manifest", manifest)
    with pytest.raises(MessageError, match=r"format 1 .*but this is dpdpca .* format 3") as caught:
        actions.prepare_join(desk, StudyAddress(URL, study), earlier.location)
    assert caught.value.slug == "unsupported-version"
    assert earlier.spent == earlier.stored["spent_rho"]


def test_a_recovery_keeps_what_format_1_booked(earlier: Earlier) -> None:
    path = earlier.desk.home.ledger.entries_path
    path.write_bytes(path.read_bytes() + b"torn\n")
    recover_ledger(earlier.desk)
    assert earlier.spent == earlier.stored["spent_rho"]


def test_a_recovery_of_a_lost_ledger_makes_nothing_cheaper(earlier: Earlier) -> None:
    path = earlier.desk.home.ledger.entries_path
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] + b"torn\n")
    told = recover_ledger(earlier.desk)
    why = "the manifest has message format 1 (an unreleased version), but this is dpdpca"
    assert f"this version refuses the terms of the study: {why}" in told
    # The head remembers how much was spent, so that it counts although nobody can tell on what.
    assert read_rational(earlier.spent, "rho") >= read_rational(earlier.stored["spent_rho"], "rho")
