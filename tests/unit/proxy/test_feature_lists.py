"""Lists of features at the proxy: who may store and read them, and which are kept."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from proxy_world import ProxyWorld
from sqlalchemy import func, select

from dpdpca_protocol.errors import LimitError, MessageError, NotAllowedError, NotFoundError, UnavailableError
from dpdpca_protocol.terms import feature_list
from dpdpca_protocol.terms.feature_list import encode_features, lists_of, read_feature_list
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_proxy import feature_lists
from dpdpca_proxy.feature_lists import MOST_UNNAMED, remove_unnamed
from dpdpca_proxy.store.files import feature_list_name
from dpdpca_proxy.store.tables import study_features
from dpdpca_proxy.trail import Trail

D = 20
DRAFT: dict[str, Any] = {
    "features": None,
    "release": "sketch",
    "of": "records",
    "rho_share": "0.2",
    "sketch": {"rows": 16, "seed": "01" * 32},
    "clip_norm": 2,
    "epsilon": 8,
}


def a_list(start: int = 0) -> bytes:
    bodies = [
        {"name": f"site {i}", "kind": "numeric", "lower": "0", "upper": "2"} for i in range(start, start + D)
    ]
    return encode_features([Feature.parse(body, "a") for body in bodies])


CONTENT = a_list()


def statement_for(world: ProxyWorld, content: bytes) -> bytes:
    """A manifest that names this list, signed."""
    named = read_feature_list(content)[0].to_body()
    manifest = world.manifest(feature_list=named, feature_lists=lists_of(content), **DRAFT)
    return sign_manifest(manifest, world.user).encoded


def test_a_study_names_a_list_that_was_sent_before(world: ProxyWorld) -> None:
    user, owner = world.client(world.user), world.client(world.owners[0])
    statement = statement_for(world, CONTENT)
    with pytest.raises(NotFoundError) as caught:
        user.create_study(statement)
    assert caught.value.slug == "feature-list-missing"
    for _ in range(2):
        assert user.put_feature_list(CONTENT) == Digest.of(CONTENT)
    study = user.create_study(statement)
    reference = read_feature_list(CONTENT)[0]
    assert owner.feature_list(reference) == user.feature_list(reference) == CONTENT
    assert world.proxy.terms(study).manifest.encoded_features == D
    with world.proxy.database.reading("test") as connection:
        names = connection.execute(select(func.count()).select_from(study_features)).scalar_one()
        assert Trail(world.proxy, connection, study).manifest.features[0].name == "site 0"
    assert names == D


def test_only_data_users_store_lists_and_only_under_their_digest(world: ProxyWorld) -> None:
    path = f"/v1/feature-lists/{Digest.of(CONTENT).hex()}"
    owner, stranger = world.owners[0], None
    assert world.request(owner, "PUT", path, CONTENT).status_code == 403
    assert world.request(stranger, "PUT", path, CONTENT).status_code == 401
    assert world.request(stranger, "GET", path).status_code == 401
    assert world.request(owner, "GET", path).status_code == 404
    for content in (CONTENT[:-1], CONTENT + b" ", b"[]"):
        answer = world.request(world.user, "PUT", path, content)
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:dpdpca:problem:feature-list-differs")
    assert world.request(world.user, "PUT", path, CONTENT, "application/octet-stream").status_code == 415
    assert not world.proxy.files.exists(feature_list_name(Digest.of(CONTENT)))
    with pytest.raises(NotAllowedError):
        world.client(owner).put_feature_list(CONTENT)


def test_a_body_above_the_limit_is_not_read(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpdpca_proxy.routes import feature_lists as route

    monkeypatch.setattr(route, "LIST_LIMIT_BYTES", len(CONTENT) - 1)
    monkeypatch.setattr(route, "put_list", None)
    with pytest.raises(LimitError, match="larger than"):
        world.client(world.user).put_feature_list(CONTENT)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.replace(b"site 3", b"site 4"),
        lambda content: content.replace(b'"upper":"2"', b'"upper":"0"'),
        lambda content: content.replace(b"},{", b"}, {"),
        lambda content: b"no list",
    ],
    ids=["twice", "bounds", "form", "no list"],
)
def test_a_list_that_breaks_a_rule_is_refused_with_its_manifest(
    change: Callable[[bytes], bytes], world: ProxyWorld
) -> None:
    bad = change(CONTENT)
    manifest = world.manifest(
        feature_list=read_feature_list(CONTENT)[0].to_body(), feature_lists=lists_of(CONTENT), **DRAFT
    )
    named = feature_list.FeatureListRef(Digest.of(bad), len(bad), D)
    object.__setattr__(manifest, "feature_list", named)
    world.client(world.user).put_feature_list(bad)
    answer = world.request(world.user, "POST", "/v1/studies", sign_manifest(manifest, world.user).encoded)
    assert answer.status_code in (400, 403)
    assert world.client(world.user).studies() == ()


def test_lists_without_a_study_are_few_and_go_after_a_day(world: ProxyWorld) -> None:
    user = world.client(world.user)
    sent = [a_list(i) for i in range(MOST_UNNAMED)]
    statement = statement_for(world, sent[0])
    for content in sent:
        user.put_feature_list(content)
    with pytest.raises(LimitError) as caught:
        user.put_feature_list(a_list(100))
    assert caught.value.slug == "too-many-feature-lists"
    user.create_study(statement)
    user.put_feature_list(a_list(100))
    remove_unnamed(world.proxy)
    assert user.feature_list(read_feature_list(sent[1])[0]) == sent[1]
    world.clock.ahead = timedelta(days=1, seconds=1)
    remove_unnamed(world.proxy)
    world.clock.ahead = timedelta()  # requests are signed by the machine's clock
    assert user.feature_list(read_feature_list(sent[0])[0]) == sent[0]
    for content in (*sent[1:], a_list(100)):
        assert not world.proxy.files.exists(feature_list_name(Digest.of(content)))
        with pytest.raises(NotFoundError):
            user.feature_list(read_feature_list(content)[0])


def test_a_list_that_is_removed_while_it_arrives_is_sent_again(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, files = feature_list_name(Digest.of(CONTENT)), world.proxy.files
    write, times = files.write, list[int]()

    def written_and_removed(where: str, content: bytes) -> None:
        write(where, content)
        if where == name and not times:
            times.append(1)
            files.remove(name)

    monkeypatch.setattr(files, "write", written_and_removed)
    with pytest.raises(UnavailableError, match="send it again"):
        world.client(world.user).put_feature_list(CONTENT)
    assert times
    world.client(world.user).put_feature_list(CONTENT)
    assert files.exists(name)


def test_a_list_that_another_one_sends_meanwhile_is_stored_once(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    party = next(row for row in _parties(world) if row.role == "user")
    world.client(world.user).put_feature_list(CONTENT)
    monkeypatch.setattr(feature_lists, "_check_quota", lambda unnamed: None)
    feature_lists.put_list(world.proxy, party, Digest.of(CONTENT), CONTENT)


def _parties(world: ProxyWorld) -> Any:
    from dpdpca_proxy.enrolment import all_parties

    return all_parties(world.proxy)


def test_an_altered_file_is_no_list(world: ProxyWorld) -> None:
    user = world.client(world.user)
    user.put_feature_list(CONTENT)
    name = feature_list_name(Digest.of(CONTENT))
    world.proxy.files.remove(name)
    world.proxy.files.write(name, CONTENT.replace(b"site", b"sita"))
    answer = world.request(world.user, "GET", f"/v1/{name}")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:dpdpca:problem:state-corrupt")
    with pytest.raises(MessageError):
        feature_list.check_content(read_feature_list(CONTENT)[0], answer.content)
