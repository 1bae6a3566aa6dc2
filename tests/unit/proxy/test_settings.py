"""Settings of a proxy: files that cannot be read, and the place of its generation."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from proxy_world import ProxyWorld, refused, values_of

from dpdpca_cli import main as cli
from dpdpca_protocol.errors import ConflictError, UsageError
from dpdpca_proxy.proxy import make_home, open_proxy
from dpdpca_proxy.serve import serve
from dpdpca_proxy.settings import SETTINGS_FILE, load_settings
from dpdpca_proxy.store.witness import START

TEXT = 'name = "Zürich"\nport = 9000\n'


def write(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (write(TEXT.encode("latin-1")), "is not UTF-8 in line 1"),
        (write(b'# fine\nport = 9000\nname = "\xff\xfe"\n'), "is not UTF-8 in line 3"),
        (write(TEXT.encode("utf-8-sig")), "byte-order mark of UTF-8"),
        (write(TEXT.encode("utf-16")), "byte-order mark of UTF-16"),
        (write(TEXT.encode("utf-32")), "byte-order mark of UTF-16 or UTF-32"),
        (write(TEXT.encode("utf-16-le")), "NUL bytes"),
        (write(b"port = 9000\n\0\0\0\0"), "NUL bytes"),
        (write(b"\x1f\x8b\x08" + bytes(10)), "NUL bytes"),
        (write(b"port = 9000\nport = 9001\n"), "is not valid TOML: at line 2"),
        (write(b"port 9000 4711\n"), "is not valid TOML: at line 1"),
        (write(b"name = 'no end"), "is not valid TOML: at end of document"),
        (Path.mkdir, "cannot be read (Is a directory)"),
        (lambda path: path.symlink_to(path), "cannot be read (Too many levels of symbolic links)"),
    ],
)
def test_a_settings_file_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, make: Callable[[Path], object], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / SETTINGS_FILE)
    error = refused(lambda: load_settings(tmp_path))
    assert (error.slug, reason in error.problem) == ("bad-settings", True), error.problem
    assert str(tmp_path / SETTINGS_FILE) in error.problem
    assert error.next_step
    with pytest.raises(SystemExit) as left:
        cli.main(["proxy", "studies", "--home", str(tmp_path)])
    said = capsys.readouterr().err
    assert (left.value.code, said.count("\n")) == (2, 1)
    assert reason in said
    assert "4711" not in said


def test_a_settings_file_without_permission_is_named() -> None:
    # Where root runs the tests, it becomes somebody else for a moment, who must reach the folder.
    with tempfile.TemporaryDirectory() as folder:
        home, is_root = Path(folder), os.geteuid() == 0
        home.chmod(0o755)
        (home / SETTINGS_FILE).write_text(TEXT)
        (home / SETTINGS_FILE).chmod(0)
        if is_root:
            os.seteuid(65534)
        try:
            error = refused(lambda: load_settings(home))
        finally:
            if is_root:
                os.seteuid(0)
    assert "cannot be read (Permission denied)" in error.problem


def test_a_misspelt_member_is_told_with_the_right_name(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).write_text('generation-file = "/x"\nnonsense = 1\nprot = 3\n')
    error = refused(lambda: load_settings(tmp_path))
    assert (
        error.problem
        == "these settings are not valid: generation-file (did you mean generation_file?), nonsense,"
        " prot (did you mean port?)"
    )


def test_a_list_that_is_no_json_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPDPCA_PROXY_ALSO_KNOWN_AS", "relay.example:8440")
    assert "DPDPCA_PROXY_ALSO_KNOWN_AS is not a JSON list" in refused(lambda: load_settings(tmp_path)).problem
    monkeypatch.setenv("DPDPCA_PROXY_ALSO_KNOWN_AS", '["relay.example:8440"]')
    assert load_settings(tmp_path).also_known_as == ("relay.example:8440",)


def test_an_empty_variable_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = load_settings(tmp_path / "p")
    for name in ("PORT", "GENERATION_FILE", "URL", "TLS_CERT", "ALSO_KNOWN_AS"):
        monkeypatch.setenv(f"DPDPCA_PROXY_{name}", "")
    assert load_settings(tmp_path / "p") == plain


def test_where_the_generation_file_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "p"
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, reason in (
        ("generation.json", "relative to the working folder"),
        ("../generation.json", "relative to the working folder"),
        (str(home / "generation.json"), "inside the home"),
        (str(home / "deeper" / "generation.json"), "inside the home"),
        (str(tmp_path / "x" / ".." / "p" / "generation.json"), "inside the home"),
        ("~nobody-of-this-name/generation.json", "no such user"),
    ):
        monkeypatch.setenv("DPDPCA_PROXY_GENERATION_FILE", named)
        with pytest.raises(UsageError, match=reason):
            load_settings(home)
    (tmp_path / "link").symlink_to(home, target_is_directory=True)
    home.mkdir()
    monkeypatch.setenv("DPDPCA_PROXY_GENERATION_FILE", str(tmp_path / "link" / "generation.json"))
    with pytest.raises(UsageError, match="inside the home"):
        load_settings(home)
    monkeypatch.setenv("DPDPCA_PROXY_GENERATION_FILE", "~/mark/generation.json")
    assert load_settings(home).witness_path == tmp_path / "mark" / "generation.json"


def names_generation(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("DPDPCA_PROXY_GENERATION_FILE", str(path))


@pytest.mark.parametrize("misspelt_first", [False, True], ids=["later", "first"])
def test_a_generation_file_at_the_wrong_place_is_no_loss(
    stopped_world: ProxyWorld,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    misspelt_first: bool,
) -> None:
    """The proxy does not start, and nothing that is done about it costs a study."""
    world = stopped_world
    used, other = tmp_path / "a" / "generation.json", tmp_path / "b" / "generation.json"
    names_generation(monkeypatch, used)
    world.start()
    world.enrol_all()
    study = world.open_study(3)
    study.deliver(world.owners[0], values_of(3, 0))
    world.stop()
    names_generation(monkeypatch, other)
    if misspelt_first:
        other.parent.mkdir(0o700)
    with pytest.raises(ConflictError) as refusal:
        serve(load_settings(world.home))
    said = str(refusal.value)
    assert "there is no generation file" in said
    assert str(other) in said
    assert "generation_file" in said
    assert "database is at generation 6" in said  # four enrolments, a manifest, a receipt
    assert not other.exists()
    # Whoever takes it for a loss all the same is told once more, and asked.
    with pytest.raises(SystemExit):
        cli.main(["proxy", "accept-loss", "--home", str(world.home)])
    assert str(other) in capsys.readouterr().err
    assert not other.exists()
    names_generation(monkeypatch, used)
    world.start()
    assert world.request(None, "GET", "/readyz").status_code == 200
    assert study.state() == "open"


def test_what_clients_read_of_it_names_no_place(
    stopped_world: ProxyWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = stopped_world
    world.start()
    world.enrol_all()
    study = world.open_study(3)
    world.stop()
    world.proxy.settings.witness_path.unlink()
    world.start()  # as a process whose file goes while it runs
    answer = world.request(world.user, "GET", f"{study.path}/release")
    ready = world.request(None, "GET", "/readyz")
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (409, "generation-mismatch")
    for body in (answer.text, ready.text):
        assert "there is no generation file" in body
        assert str(tmp_path) not in body
        assert "generation.json" not in body


def test_a_proxy_that_never_did_anything_starts_without_the_file(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "proxy")
    make_home(settings)
    assert not settings.witness_path.exists()
    proxy = open_proxy(settings)
    proxy.database.check_witness_is_there()
    settings.witness_path.unlink()
    proxy.database.check_witness_is_there()
    proxy.database.settle_witness()
    assert proxy.database.witnessed() == START
    proxy.database.close()


def test_a_bucket_is_checked_and_never_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_settings(tmp_path).store is None
    assert load_settings(tmp_path, store="s3://files/proxy/").store == "s3://files/proxy"
    monkeypatch.setenv("DPDPCA_PROXY_STORE", "s3://user:sesame@files/proxy")
    error = refused(lambda: load_settings(tmp_path))
    assert (error.slug, "store: " in error.problem, "sesame" in str(error)) == ("bad-settings", True, False)
    assert "DPDPCA_PROXY_STORE" in error.next_step
    with pytest.raises(SystemExit):
        cli.main(["proxy", "studies", "--home", str(tmp_path)])
    assert "sesame" not in "".join(capsys.readouterr())
