"""Whole studies of a proxy whose files are in object storage, here obstore's store in memory."""

import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from bad_objects import Bad
from obstore.exceptions import GenericError
from proxy_world import ProxyWorld, refused, values_of, wait_for

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.packing import symmetric_rows
from dpdpca_protocol.terms.feature_list import encode_features, read_feature_list
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_proxy import jobs
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.serve import serve
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store import objects
from dpdpca_proxy.store.files import feature_list_name
from dpdpca_runtime.http.retry import Patience

ADDRESS = "s3://bucket/proxy"
VALUES = [values_of(3, seed) for seed in range(3)]


def often_failing(times: int) -> Callable[..., Any]:
    """Does its work, then fails, at every so many calls: the caller cannot know that it was done."""
    counting, count = threading.Lock(), 0

    def fail(real: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        nonlocal count
        done = real(*arguments, **options)
        with counting:
            count += 1
            if count % times == 0:
                raise GenericError("503 Slow Down")
        return done

    return fail


@pytest.fixture
def bad(stopped_world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> Bad:
    """The store of a world that is not started yet."""
    bad = Bad()
    monkeypatch.setattr(objects, "S3Store", lambda *_, **__: bad)
    monkeypatch.setattr(objects, "_WAITS", (0.01, 0.01))
    monkeypatch.setattr(objects, "_RETRY_AFTER_SECONDS", 1)
    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.05)
    stopped_world.settings["store"] = ADDRESS
    return bad


@pytest.mark.parametrize("release", ["joint", "masked"])
@pytest.mark.parametrize("faulty", [False, True], ids=["sound", "often failing"])
def test_a_study_ends_in_the_exact_sums_and_leaves_only_its_release(
    stopped_world: ProxyWorld, bad: Bad, noiseless: None, faulty: bool, release: str
) -> None:
    world = stopped_world
    world.patience = Patience(seconds=60.0)
    world.start()
    world.enrol_all()
    if faulty:
        names = ("put", "get", "head", "delete")
        bad.wrong |= {name: often_failing(5) for name in names}
    study = world.open_study(3, release=release, closing="when-complete")
    for owner, values in zip(world.owners, VALUES, strict=True):
        study.deliver(owner, values)
    if release == "masked":
        world.client(world.user).answer_count(study.study, study.count_answer(study.challenge()))
    study.wait_state("released")
    bad.wrong.clear()
    scatter, _ = study.open_release()
    sums = [sum(column) for column in zip(*(each.sums for each in VALUES), strict=True)]
    rows = symmetric_rows(3, [sum(column) for column in zip(*(each.upper for each in VALUES), strict=True)])
    count = sum(each.count for each in VALUES)
    expected = [[count * rows[i][j] - sums[i] * sums[j] for j in range(3)] for i in range(3)]
    assert [list(row) for row in scatter.scaled_scatter] == expected
    world.restart()
    wait_for(study.is_swept)
    left = [meta["path"] for page in bad.memory.list() for meta in page if ".probe" not in meta["path"]]
    assert left
    assert all("/release-" in name for name in left)
    assert not [path for path in (world.home / "studies").rglob("*") if path.is_file()]
    assert {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS}


def test_a_proxy_does_not_serve_from_a_bucket_that_keeps_versions(
    stopped_world: ProxyWorld, bad: Bad
) -> None:
    stopped_world.start()
    stopped_world.stop()
    bad.wrong["put"] = lambda real, *arguments, **options: real(*arguments, **options) | {"version": "1"}
    settings = load_settings(stopped_world.home, port=stopped_world.port, store=ADDRESS)
    error = refused(lambda: serve(settings))
    assert (type(error), error.slug, "old versions" in error.problem) == (UsageError, "bad-settings", True)


@pytest.mark.parametrize("faulty", [False, True], ids=["sound", "often failing"])
def test_lists_of_features_are_kept_in_the_bucket(stopped_world: ProxyWorld, bad: Bad, faulty: bool) -> None:
    content = encode_features([Feature("a", "numeric", Fraction(0), Fraction(1))])
    world = stopped_world
    world.patience = Patience(seconds=60.0)
    world.start()
    world.enrol_all()
    if faulty:
        bad.wrong |= {name: often_failing(2) for name in ("put", "get", "head")}
    for _ in range(2):
        world.client(world.user).put_feature_list(content)
    bad.wrong.clear()
    name = feature_list_name(Digest.of(content))
    assert bytes(bad.get(name).bytes()) == content
    reference = read_feature_list(content)[0]
    assert world.client(world.owners[0]).feature_list(reference) == content
    assert not (world.home / "studies" / name).exists()
