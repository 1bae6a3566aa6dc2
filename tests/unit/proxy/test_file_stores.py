"""What both stores of files promise, and what object storage promises beyond: with obstore's store in memory,
and with one that fails, lags behind or lies."""

import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bad_objects import Bad
from obstore.exceptions import GenericError, PermissionDeniedError
from obstore.store import MemoryStore
from proxy_world import refused

from dpdpca_protocol.errors import IntegrityError, UnavailableError, UsageError
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.store import objects
from dpdpca_proxy.store.bucket import parse_bucket
from dpdpca_proxy.store.credentials import credentials_from_file
from dpdpca_proxy.store.files import FileStore, FolderStore
from dpdpca_proxy.store.objects import ObjectStore, open_objects

STUDY = StudyId.of(b"study")
KEY, OTHER_KEY = bytes(32), bytes([1]) * 32
ADDRESS = "s3://bucket/prefix"
SECRET = "do-not-show-this"


def in_memory(memory: Any = None) -> ObjectStore:
    return ObjectStore(ADDRESS, memory or MemoryStore())


@pytest.fixture(params=["folder", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    return FolderStore(tmp_path) if request.param == "folder" else in_memory()


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_WAITS", (0.0, 0.0, 0.0))


# Both


def test_what_is_written_is_read(store: FileStore) -> None:
    for content in (b"", b"x", bytes(range(256)) * 5000):
        name = f"{STUDY.hex()}/sealed/{len(content)}"
        assert not store.exists(name)
        store.write(name, content)
        assert (store.exists(name), store.read(name)) == (True, content)


def test_the_same_content_may_be_written_twice(store: FileStore) -> None:
    for _ in range(2):
        store.write("a/1", b"content")
        store.write_sealed("a/2", b"content", KEY, OS_RANDOMNESS)
    assert store.read("a/1") == store.read_sealed("a/2", KEY) == b"content"


def test_what_is_sealed_opens_under_its_name_and_its_key_alone(store: FileStore) -> None:
    store.write_sealed("a/1", b"content", KEY, OS_RANDOMNESS)
    assert b"content" not in store.read("a/1")
    store.write("a/2", store.read("a/1"))
    for name, key in (("a/1", OTHER_KEY), ("a/2", KEY)):
        error = refused(partial(store.read_sealed, name, key))
        assert (error.slug, error.place) == ("state-corrupt", store.place(name))


def test_a_missing_file_is_damage_that_names_its_place(store: FileStore) -> None:
    error = refused(lambda: store.read("a/none"))
    assert (type(error), error.slug, error.place) == (IntegrityError, "state-corrupt", store.place("a/none"))
    assert "newest backup" in error.next_step


def test_folders_and_entries_are_those_of_one_level(store: FileStore) -> None:
    study = STUDY.hex()
    assert (store.folders(STUDY), store.entries(f"{study}/sealed")) == ([], [])
    names = ("sealed/1", "sealed/0", "sealed/deeper/0", "sealed/.part", "release-ab/0", "release-abc/0")
    for name in names:
        store.write(f"{study}/{name}", b"x")
    store.write(f"{StudyId.of(b'other').hex()}/sealed/0", b"x")
    folders = [f"{study}/{name}" for name in ("release-ab", "release-abc", "sealed")]
    assert sorted(store.folders(STUDY)) == folders
    assert store.entries(f"{study}/sealed") == ["0", "1", "deeper"]
    asked = [f"{study}/release-ab", f"{study}/sealed", f"{study}/none"]
    assert store.entries_of(asked) == [["0"], ["0", "1", "deeper"], []]
    assert store.entries_of([]) == []


def test_more_entries_than_a_page_are_all_there(store: FileStore) -> None:
    for number in range(1203):
        store.write(f"a/{number:04}", b"x")
    assert store.entries("a") == [f"{number:04}" for number in range(1203)]
    store.remove("a")
    assert store.entries("a") == []


def test_a_removed_folder_or_file_is_gone_and_its_neighbours_stay(store: FileStore) -> None:
    for name in ("a/b/1", "a/b/c/2", "a/bc/3", "a/4"):
        store.write(name, b"x")
    store.remove("a/b")
    assert [store.exists(name) for name in ("a/b/1", "a/b/c/2", "a/bc/3", "a/4")] == [False] * 2 + [True] * 2
    store.remove("a/4")
    assert not store.exists("a/4")
    for name in ("a/4", "never/there"):
        store.remove(name)


def test_the_age_of_a_folder_is_that_of_its_newest_file(store: FileStore) -> None:
    store.write("a/b/1", b"x")
    assert 0.0 <= store.age("a/b") < 60.0
    assert store.age("a/none") == 0.0


def test_a_probe_leaves_nothing(tmp_path: Path) -> None:
    memory = MemoryStore()
    for store in (FolderStore(tmp_path), in_memory(memory)):
        store.check()
        store.probe()
        assert store.trouble is None
    assert not list(tmp_path.iterdir())
    assert not [meta for page in memory.list() for meta in page]


def test_probes_at_the_same_time_do_not_take_each_other_s_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_WAITS", ())
    store = in_memory()
    with ThreadPoolExecutor(8) as pool:
        for probed in [pool.submit(store.probe) for _ in range(200)]:
            probed.result()


def test_a_store_goes_to_workers_without_what_opens_it(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRET)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    sent = pickle.dumps(store)
    assert SECRET.encode() not in sent
    there = pickle.loads(sent)
    assert (type(there), there.place("a")) == (type(store), store.place("a"))
    assert SECRET not in repr(there) + str(vars(there))


# Object storage alone


def test_different_content_never_replaces_what_is_there() -> None:
    store = in_memory()
    store.write("a/1", b"first")
    store.write_sealed("a/2", b"first", KEY, OS_RANDOMNESS)
    for again in (
        lambda: store.write("a/1", b"second"),
        lambda: store.write_sealed("a/2", b"second", KEY, OS_RANDOMNESS),
        lambda: store.write_sealed("a/2", b"first", OTHER_KEY, OS_RANDOMNESS),
    ):
        assert refused(again).slug == "state-corrupt"
    assert (store.read("a/1"), store.read_sealed("a/2", KEY)) == (b"first", b"first")


def failing(text: str, kind: type[Exception] = GenericError) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise kind(f"Server returned non-2xx status code: {text} for {SECRET}")

    return fail


@pytest.mark.parametrize(
    ("text", "kind", "slug", "problem"),
    [
        ("503 Slow Down", GenericError, "storage-failing", "the object storage does not answer, or fails"),
        ("507 Insufficient Storage", GenericError, "storage-full", "the object storage is full"),
        ("403: QuotaExceeded", GenericError, "storage-full", "the object storage is full"),
        ("403 Forbidden", PermissionDeniedError, "storage-failing", "refuses the proxy's credentials"),
    ],
)
@pytest.mark.parametrize("method", ["put", "head", "get", "delete", "list"])
def test_a_store_that_fails_is_unavailable_and_nothing_that_it_says_is_repeated(
    method: str, text: str, kind: type[Exception], slug: str, problem: str
) -> None:
    bad = Bad(**{method: failing(text, kind)})
    store = in_memory(bad)
    acts: dict[str, Callable[[], object]] = {
        "put": lambda: store.write("a/1", b"x"),
        "head": lambda: store.write("a/1", b"x"),
        "get": lambda: store.read("a/1"),
        "delete": lambda: store.remove("a"),
        "list": lambda: store.remove("a"),
    }
    error = refused(acts[method])
    assert (type(error), error.slug, problem in error.problem) == (UnavailableError, slug, True)
    assert SECRET not in str(error)
    assert error.__cause__ is None
    assert store.trouble == error.problem
    bad.wrong.clear()
    store.probe()
    assert store.trouble is None


def test_a_bucket_that_is_missing_is_no_damage() -> None:
    error = refused(lambda: in_memory(Bad(get=failing("NoSuchBucket", FileNotFoundError))).read("a/1"))
    assert error.slug == "storage-failing"


def test_an_object_that_comes_late_is_waited_for() -> None:
    late = iter([True, True, False])

    def behind(real: Callable[..., Any], *arguments: Any) -> Any:
        if next(late, False):
            raise FileNotFoundError
        return real(*arguments)

    store = in_memory(Bad(head=behind))
    store.write("a/1", b"x")
    late = iter([True, True, False])
    bad = Bad(get=behind)
    bad.memory.put("a/1", b"x")
    assert in_memory(bad).read("a/1") == b"x"


def test_objects_that_a_list_shows_late_are_deleted() -> None:
    late = iter([True, True, False])

    def behind(real: Callable[..., Any], *arguments: Any) -> Any:
        return [] if next(late, False) else real(*arguments)

    bad = Bad(list=behind)
    bad.memory.put("a/1", b"x")
    in_memory(bad).remove("a")
    assert not [meta for page in bad.memory.list() for meta in page]


def test_an_object_that_was_accepted_and_is_not_there_is_refused() -> None:
    bad = Bad(put=lambda *_, **__: {"e_tag": None, "version": None})
    store = in_memory(bad)
    error = refused(lambda: store.write("a/1", b"x"))
    assert (error.slug, error.problem) == (
        "storage-failing",
        "the object storage does not have what it has accepted",
    )
    assert store.trouble


def test_an_object_of_another_length_is_refused() -> None:
    def cut(real: Callable[..., Any], path: str, content: bytes, **options: Any) -> Any:
        return real(path, content[:-1], **options)

    assert refused(lambda: in_memory(Bad(put=cut)).write("a/1", b"xyz")).slug == "storage-failing"


class Given:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def bytes(self) -> bytes:
        return self.content


def test_other_bytes_than_were_written_do_not_open() -> None:
    def lie(real: Callable[..., Any], *arguments: Any) -> Given:
        content = bytes(real(*arguments).bytes())
        return Given(content[:-1] + bytes([content[-1] ^ 1]))

    store = in_memory(Bad(get=lie))
    store.write_sealed("a/1", b"content", KEY, OS_RANDOMNESS)
    assert refused(lambda: store.read_sealed("a/1", KEY)).slug == "state-corrupt"
    assert refused(store.probe).slug == "storage-failing"
    assert store.trouble == "the object storage gives back other bytes than were written"


def test_an_object_that_stays_after_its_deletion_is_told() -> None:
    store = in_memory(Bad(delete=lambda *_: None))
    store.write("a/1", b"x")
    for name in ("a", "a/1"):
        error = refused(partial(store.remove, name))
        assert (error.slug, error.problem) == (
            "storage-failing",
            "the object storage still has what was deleted",
        )
    assert refused(store.probe).slug == "storage-failing"
    assert store.trouble


def test_a_deletion_that_shows_late_is_repeated_until_it_does() -> None:
    forgotten = iter([True, True, False])

    def forgetful(real: Callable[..., Any], paths: Sequence[str]) -> Any:
        return None if next(forgotten, False) else real(paths)

    store = in_memory(Bad(delete=forgetful))
    store.write("a/1", b"x")
    store.remove("a")
    assert not store.exists("a/1")


def test_an_object_that_is_deleted_while_it_is_written_again_is_written() -> None:
    """Another request with the same chunk was refused, and takes the file back."""
    bad = Bad()
    store = in_memory(bad)
    store.write("a/1", b"x")

    def gone(real: Callable[..., Any], *arguments: Any) -> Any:
        bad.memory.delete("a/1")
        del bad.wrong["get"]
        return real(*arguments)

    bad.wrong["get"] = gone
    store.write("a/1", b"x")
    assert store.read("a/1") == b"x"


def keeping_versions(real: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return real(*arguments, **options) | {"version": "1"}


def overwriting(real: Callable[..., Any], path: str, content: bytes, **_: Any) -> Any:
    return real(path, content)


@pytest.mark.parametrize(
    ("put", "problem"),
    [(keeping_versions, "keeps old versions"), (overwriting, "although the request forbids it")],
)
def test_an_unfit_store_is_refused_before_the_proxy_serves(put: Callable[..., Any], problem: str) -> None:
    store = in_memory(Bad(put=put))
    error = refused(store.check)
    assert (type(error), error.slug, problem in error.problem) == (UsageError, "bad-settings", True)
    assert error.next_step
    assert refused(store.probe).slug == "storage-failing"


def test_a_store_that_cannot_be_reached_does_not_keep_the_proxy_from_starting() -> None:
    bad = Bad(put=failing("503"))
    store = in_memory(bad)
    store.check()
    assert store.trouble == "the object storage does not answer, or fails"


def test_waiting_for_a_store_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_WAITS", (0.01, 0.02))
    bad = Bad()
    began = time.monotonic()
    assert refused(lambda: in_memory(bad).read("a/none")).slug == "state-corrupt"
    assert time.monotonic() - began >= 0.03
    assert bad.calls == ["get"] * 3


# Addresses and credentials


@pytest.mark.parametrize(
    ("address", "canonical"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://a.b-c/deep/er_1.x/", "s3://a.b-c/deep/er_1.x"),
    ],
)
def test_an_address_has_one_form(address: str, canonical: str) -> None:
    assert str(parse_bucket(address)) == canonical
    assert open_objects(address).address == canonical


@pytest.mark.parametrize(
    "address",
    [
        "",
        "bucket/prefix",
        "https://bucket/prefix",
        "S3://bucket",
        "s3://",
        "s3://Bucket/x",
        "s3://bucket:9000/x",
        f"s3://user:{SECRET}@bucket/x",
        f"s3://bucket/x?key={SECRET}",
        "s3://bucket/x#y",
        "s3://bucket//x",
        "s3://bucket/x//y",
        "s3://bucket/../y",
        "s3://bucket/a b",
        "s3://bucket/é",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(address: str) -> None:
    error = refused(lambda: parse_bucket(address))
    assert (type(error), error.slug) == (UsageError, "bad-settings")
    assert SECRET not in str(error)
    assert error.next_step


def test_credentials_come_from_the_usual_file(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id=a\naws_secret_access_key=b\n[other]\naws_access_key_id=c\n")
    variables = {"AWS_SHARED_CREDENTIALS_FILE": str(path)}
    read = credentials_from_file(variables)
    assert read is not None
    found = read()
    assert (found["access_key_id"], found["secret_access_key"], found.get("token")) == ("a", "b", None)
    path.write_text("[default]\naws_access_key_id=a\naws_secret_access_key=new\n")
    assert read()["secret_access_key"] == "new"
    assert credentials_from_file(variables | {"AWS_ACCESS_KEY_ID": "x"}) is None
    assert credentials_from_file({"HOME": str(tmp_path)}) is None


@pytest.mark.parametrize(
    "content",
    ["[other]\naws_access_key_id=a\n", f"[default]\n{SECRET}\n", f"[default]\naws_access_key_id={SECRET}\n"],
)
def test_a_file_without_credentials_is_refused_and_not_repeated(tmp_path: Path, content: str) -> None:
    path = tmp_path / "credentials"
    path.write_text(content)
    error = refused(lambda: credentials_from_file({"AWS_SHARED_CREDENTIALS_FILE": str(path)}))
    assert (error.slug, str(path) in error.problem) == ("bad-settings", True)
    assert SECRET not in str(error) + repr(error.__cause__)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_plain_http_leaves_this_machine_only_if_the_operator_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ("http://127.0.0.1:8333", "http://localhost:8333", "https://s3.example.org"):
        monkeypatch.setenv(name, address)
        open_objects(ADDRESS)
    monkeypatch.setenv(name, f"http://{SECRET}@s3.example.org")
    error = refused(lambda: open_objects(ADDRESS))
    assert (error.slug, name in error.problem, SECRET in str(error)) == ("tls-required", True, False)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    open_objects(ADDRESS)
