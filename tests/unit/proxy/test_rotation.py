"""Keys that are rotated at a running proxy, over HTTP: parties', its own, and studies that outlive both."""

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from promises import Promise
from proxy_world import ProxyWorld, dump, slug, values_of

from dpdpca_cli import main as cli
from dpdpca_protocol.errors import AuthenticationError, ConflictError, DpdpcaError, PolicyError
from dpdpca_protocol.messages.rotation import Rotation, follow_rotations, verify_rotation
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.signing import IdentityKey, Statement, verify_statement
from dpdpca_proxy.store.database import ProxyDatabase
from dpdpca_proxy.store.log import entries
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.identity_files import IdentityFiles


def rotation(old: IdentityKey, new: IdentityKey, version: int = 1, role: str = "owner") -> Statement:
    time = time_text(datetime.now(UTC))
    return Rotation(role, version, old.public.ed25519, new.public, time).sign(old, new)


def test_an_owner_gets_a_new_key_once(world: ProxyWorld) -> None:
    old, new, third = world.owners[0], IdentityKey.generate(), IdentityKey.generate()
    statement = rotation(old, new)
    client = world.client(old)
    assert client.rotate(statement) == new.public.party_id
    after = dump(world.proxy)
    with world.proxy.database.reading("look") as connection:
        assert [entry.kind for entry, _ in entries(connection)].count("rotation") == 1
    assert client.rotate(statement) == new.public.party_id
    assert {key: rows for key, rows in dump(world.proxy).items() if key != "nonces"} == {
        key: rows for key, rows in after.items() if key != "nonces"
    }
    parties = {party.ed25519: party for party in world.client(new).parties()}
    before, now = (parties[key.public.ed25519] for key in (old, new))
    assert (before.successor, now.successor) == (new.public.party_id, None)
    assert before.name == now.name == "Hospital A"
    (link,) = follow_rotations(world.client(world.user).rotations(), "owner", old.public.ed25519)
    assert link.identity == new.public
    with pytest.raises(ConflictError, match="already replaced"):
        client.rotate(rotation(old, third, 2))
    with pytest.raises(ConflictError, match="is not above the version"):
        world.client(new).rotate(rotation(new, third, 1))
    assert world.client(new).rotate(rotation(new, third, 5)) == third.public.party_id


def test_chunks_under_all_keys_of_an_owner_are_recorded_in_turn(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an owner could begin two shares of a study at once, and complete neither."""
    keys = [world.owners[0], IdentityKey.generate(), IdentityKey.generate()]
    about, real = list[tuple[bytes, ...]](), ProxyDatabase.transaction

    def noted(self: ProxyDatabase, name: str, *thing: bytes) -> Any:
        if name == "take chunk":
            about.append(thing)
        return real(self, name, *thing)

    studies, chunks = [], []
    for _ in keys:
        world.with_new_key()
        studies.append(world.open_study(3, named=False, min_owners=2))
        chunks.append(studies[-1].plain_chunks(values_of(3, 0)))  # under this study's key
    monkeypatch.setattr(ProxyDatabase, "transaction", noted)
    for version, (key, study, made) in enumerate(zip(keys, studies, chunks, strict=True)):
        if version:
            world.client(keys[version - 1]).rotate(rotation(keys[version - 1], key, version))
        study.upload(key, made)
    assert about == [(study.study, keys[0].public.party_id) for study in studies]


def test_no_party_rotates_without_end(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody loads the statements of all."""
    monkeypatch.setattr("dpdpca_proxy.rotation.MOST_ROTATIONS", 3)
    keys = [world.owners[0], *(IdentityKey.generate() for _ in range(4))]
    for version in range(1, 4):
        world.client(keys[version - 1]).rotate(rotation(keys[version - 1], keys[version], version))
    with pytest.raises(ConflictError) as refused:
        world.client(keys[3]).rotate(rotation(keys[3], keys[4], 4))
    assert refused.value.slug == "too-many-rotations"
    assert world.client(world.owners[1]).rotate(rotation(world.owners[1], keys[4])) == keys[4].public.party_id


def test_forged_and_misplaced_rotations_change_nothing(world: ProxyWorld, promise: Promise) -> None:
    ours, other, new = world.owners[0], world.owners[1], IdentityKey.generate()
    path = f"/v1/parties/{ours.public.party_id.hex()}/rotations"
    genuine = rotation(ours, new).encoded
    unsigned = Rotation("owner", 1, ours.public.ed25519, new.public, "2026-01-01T00:00:00Z").sign(ours, other)
    attempts = [
        (ours, rotation(other, new).encoded),  # another's key
        (other, genuine),  # another's path
        (ours, rotation(ours, new, role="user").encoded),
        (ours, unsigned.encoded),  # the new key has not agreed
        (ours, rotation(ours, other).encoded),  # a key that is enrolled already
        (IdentityKey.generate(), genuine),
        (None, genuine),
        *(
            (ours, genuine[:at] + bytes([genuine[at] ^ 1]) + genuine[at + 1 :])
            for at in range(0, len(genuine), 29)
        ),
    ]
    before = dump(world.proxy)
    for key, body in attempts:
        response = world.request(key, "POST", path, body)
        assert 400 <= response.status_code < 500, response.text
    assert dump(world.proxy) == before
    promise("P19", counted=f"{len(attempts)} forged or misplaced key rotations", result="0 taken")


def test_a_study_keeps_the_owners_key_and_takes_no_second_share(world: ProxyWorld) -> None:
    """Open to all: before rotation one owner is in, one has begun; a third joins under its new key."""
    study = world.open_study(3, named=False, min_owners=2)
    keys = list(world.owners)
    study.deliver(keys[0], values_of(3, 0))
    chunks = study.plain_chunks(values_of(3, 1))
    study.upload(keys[1], chunks)
    new = [IdentityKey.generate() for _ in keys]
    for old, fresh in zip(keys, new, strict=True):
        world.client(old).rotate(rotation(old, fresh))
    for fresh in new[:2]:
        with pytest.raises(DpdpcaError) as caught:
            study.deliver(fresh, values_of(3, 5))
        assert caught.value.slug == "share-under-another-key"
    with pytest.raises(DpdpcaError) as caught:
        study.deliver(keys[2], values_of(3, 2))
    assert caught.value.slug == "key-given-up"
    study.complete(keys[1], chunks)
    study.deliver(new[2], values_of(3, 2))
    study.close()
    study.wait_state("released")
    members = {owner.owner for owner in world.client(new[0]).study(study.study).cohort_members}
    assert members == {key.public.party_id for key in (keys[0], keys[1], new[2])}


def test_a_user_begins_nothing_more_with_the_old_key_and_ends_what_it_began(world: ProxyWorld) -> None:
    study, old, new = world.open_study(3, min_owners=3), world.user, IdentityKey.generate()
    world.client(old).rotate(rotation(old, new, role="user"))
    with pytest.raises(ConflictError, match="was replaced"):
        world.open_study(3, title="Another")
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    study.close()
    study.wait_state("released")
    assert world.client(old).release(study.study).release
    with pytest.raises(DpdpcaError) as caught:
        world.client(new).release(study.study)
    assert caught.value.slug == "not-the-study-owner"


def test_a_manifest_cannot_name_a_key_that_was_given_up(world: ProxyWorld) -> None:
    world.client(world.owners[0]).rotate(rotation(world.owners[0], IdentityKey.generate()))
    with pytest.raises(PolicyError, match="has replaced the key"):
        world.open_study(3)


def test_the_proxys_own_key_changes_between_closing_and_release(world: ProxyWorld) -> None:
    """An open study is served to its end with the old keys, and all that is signed in it is by them."""
    study = world.open_study(3, min_owners=3)
    first = world.proxy.key.public
    study.deliver(world.owners[0], values_of(3, 0))
    world.stop()
    IdentityFiles(world.home, role="proxy").rotate(None, datetime.now(UTC), lambda statement: None)
    world.start()
    second = world.proxy.key.public
    assert first != second
    statement = verify_statement("proxy", httpx.get(f"{world.url}/v1/proxy", trust_env=False).content)
    assert ProxyCard.parse(statement).identity == second
    (encoded,) = world.client(world.user).proxy_rotations()
    assert verify_rotation(encoded)[0].identity == second
    with (
        ProxyClient(world.url, world.user, first.ed25519, patience=world.patience) as client,
        pytest.raises(AuthenticationError, match="another key"),
    ):
        client.card()
    for seed in (1, 2):
        study.deliver(world.owners[seed], values_of(3, seed))
    study.close()
    study.wait_state("released")
    bundle = world.client(world.user).release(study.study)
    assert verify_statement("release", bundle.release, first.ed25519)
    assert all(verify_statement("event", event, first.ed25519) for event in bundle.transcript)


def test_a_body_is_not_read_from_strangers(world: ProxyWorld) -> None:
    response = world.request(IdentityKey.generate(), "POST", f"/v1/parties/{'0' * 64}/rotations", b"{}")
    assert (response.status_code, slug(response)) == (401, "unknown-key")


def test_the_operators_list_says_which_keys_are_in_use(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.client(world.owners[0]).rotate(rotation(world.owners[0], IdentityKey.generate()))
    monkeypatch.setenv("DPDPCA_PROXY_HOME", str(world.home))
    with pytest.raises(SystemExit):
        cli.main(["proxy", "owners", "--json"])
    listed = json.loads(capsys.readouterr().out)["parties"]
    keys = [party["key"] for party in listed if party["name"] == "Hospital A"]
    assert sorted(keys) == ["in use", "replaced"]
