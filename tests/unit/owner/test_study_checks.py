"""What an owner refuses before it looks at its own data; each test is one act of a contrary peer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from given_keys import give_key
from owner_scene import MakeScene, Scene
from promises import Promise
from study_parties import MakeManifest

from dpdpca_owner import actions
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import (
    AuthenticationError,
    CryptographicError,
    DpdpcaError,
    NotAllowedError,
    NotFoundError,
)
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.terms.parties import Participant, Party
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.kem import KemKey
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.address import StudyAddress


def refused(scene: Scene, kind: type[DpdpcaError], words: str) -> None:
    """Neither review nor join get through, and nothing but questions reached the proxy."""
    for act in (
        lambda: actions.review(scene.desk, scene.address, None),
        lambda: actions.prepare_join(scene.desk, scene.address, scene.location),
    ):
        with pytest.raises(kind, match=words):
            act()
    assert all(line.startswith("GET") for line in scene.proxy.received)
    assert not (scene.desk.home.path / "studies").exists()


def test_another_manifest_under_this_id(
    make_scene: MakeScene, make_manifest: MakeManifest, promise: Promise
) -> None:
    scene = make_scene()
    other = sign_manifest(make_manifest(title="Another"), scene.parties.user)
    vars(scene.proxy)["_get_manifest"] = lambda body: httpx.Response(200, content=other.encoded)
    refused(scene, AuthenticationError, "does not belong to this study id")
    promise("P23", counted="another manifest under the study's id", result="refused, 0 bytes sent")


def test_an_altered_manifest(make_scene: MakeScene) -> None:
    scene = make_scene()
    encoded = scene.proxy.manifest.encoded.replace(b'"epsilon":"1"', b'"epsilon":"9"')
    assert encoded != scene.proxy.manifest.encoded
    scene.proxy.manifest = replace(scene.proxy.manifest, encoded=encoded)
    refused(scene, AuthenticationError, "signature")


def test_a_manifest_for_another_proxy(make_scene: MakeScene) -> None:
    scene = make_scene()
    other = IdentityKey.generate()
    (file,) = (scene.desk.home.path / "proxies").iterdir()
    file.unlink()
    scene.desk.home.pins.pin_proxy(
        scene.address.proxy, ProxyCard("Relay", scene.address.proxy, other.public).sign(other)
    )
    refused(scene, AuthenticationError, "another key")


def test_a_manifest_that_states_another_sealing_key_for_the_proxy(
    make_scene: MakeScene, make_manifest: MakeManifest
) -> None:
    """The data user could open chunks that were sealed to a key of its own."""
    scene, honest = make_scene(), make_manifest()
    forged = replace(honest, proxy=replace(honest.proxy, kem=KemKey.generate().public))
    scene.proxy.manifest = sign_manifest(forged, scene.parties.user)
    scene.address = replace(scene.address, study=scene.proxy.study)
    refused(scene, AuthenticationError, "names a different proxy")


def test_a_known_data_user_with_another_key(make_scene: MakeScene, promise: Promise) -> None:
    scene = make_scene()
    before = IdentityKey.generate().public
    scene.desk.home.pins.pin_user(
        scene.proxy.key.public.ed25519,
        Party("Institute", before.ed25519),
        "2025-01-01T00:00:00Z",
    )
    refused(scene, AuthenticationError, "known here since 2025")
    promise("P23", counted="a manifest of another key than the pinned one", result="refused, 0 bytes sent")


def puppet_enrolled(scene: Scene) -> None:
    """Hospital C of the manifest is enrolled as something else: the data user's own puppet, say."""
    role, _, keys = scene.proxy.enrolled[3]
    scene.proxy.enrolled[3] = (role, "Puppet", keys)


def puppet_unknown(scene: Scene) -> None:
    del scene.proxy.enrolled[3]


def puppet_is_no_owner(scene: Scene) -> None:
    _, name, keys = scene.proxy.enrolled[3]
    scene.proxy.enrolled[3] = ("user", name, keys)


def name_of_another_key(scene: Scene) -> None:
    role, name, _ = scene.proxy.enrolled[3]
    scene.proxy.enrolled[3] = (role, name, IdentityKey.generate().public)


def user_by_another_name(scene: Scene) -> None:
    role, _, keys = scene.proxy.enrolled[0]
    scene.proxy.enrolled[0] = (role, "Nobody", keys)


@pytest.mark.parametrize(
    "change",
    [puppet_enrolled, puppet_unknown, puppet_is_no_owner, name_of_another_key, user_by_another_name],
)
def test_a_name_that_the_proxy_has_not_enrolled_with_this_key(
    make_scene: MakeScene, change: Callable[[Any], None]
) -> None:
    scene = make_scene(release="masked")
    change(scene)
    refused(scene, AuthenticationError, "enrolled nobody with this name")


def test_a_known_owner_with_another_key(make_scene: MakeScene) -> None:
    scene = make_scene(release="masked")
    before = Participant("Hospital B", IdentityKey.generate().public.ed25519)
    pins, proxy = scene.desk.home.pins, scene.proxy.key.public.ed25519
    pins.pin_participant(proxy, before, "2025-01-01T00:00:00Z")
    refused(scene, AuthenticationError, "'Hospital B' has been known here since 2025")
    with pytest.raises(AuthenticationError) as caught:
        actions.review(scene.desk, scene.address, None)
    assert caught.value.slug == "participant-key-changed"


def test_a_key_that_changes_between_consent_and_joining(make_scene: MakeScene) -> None:
    scene = make_scene()
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    other = Participant("Hospital B", IdentityKey.generate().public.ed25519)
    scene.desk.home.pins.pin_participant(scene.proxy.key.public.ed25519, other, "2025-01-01T00:00:00Z")
    with pytest.raises(AuthenticationError, match="Hospital B"):
        actions.join(scene.desk, scene.address, prepared, Watcher())
    assert all(line.startswith("GET") for line in scene.proxy.received)


def test_a_modulus_of_an_earlier_study(make_scene: MakeScene, make_manifest: MakeManifest) -> None:
    scene = make_scene()
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    actions.join(scene.desk, scene.address, prepared, Watcher())
    again = sign_manifest(make_manifest(title="Again"), scene.parties.user)
    scene.proxy.manifest = again
    with pytest.raises(CryptographicError, match="another study"):
        actions.review(scene.desk, StudyAddress(scene.address.proxy, StudyId(again.digest)), None)


def test_a_key_that_is_too_small(make_scene: MakeScene) -> None:
    scene = make_scene()
    scene.desk = replace(scene.desk, key_rules=KeyRules(2048))
    refused(scene, DpdpcaError, "2048")


def test_a_study_that_names_others(make_scene: MakeScene) -> None:
    scene = make_scene()
    key = IdentityKey.generate()
    give_key(scene.desk.home.path, key)
    scene.desk = replace(scene.desk, owner=scene.desk.home.load())
    assert not actions.review(scene.desk, scene.address, None).to_json()["you_may_join"]
    with pytest.raises(NotAllowedError, match=key.public.ed25519.hex()):
        actions.prepare_join(scene.desk, scene.address, scene.location)


def test_a_proxy_where_this_owner_is_not_enrolled(make_scene: MakeScene) -> None:
    scene = make_scene()
    scene.address = StudyAddress("http://127.0.0.1:9", scene.address.study)
    refused(scene, NotFoundError, "dpdpca owner enrol")
