"""One digest for a wheel and for what is installed from it, and another one as soon as a file differs."""

import base64
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.metadata import PathDistribution
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dpdpca_cli import main as cli
from dpdpca_protocol.errors import DpdpcaError, UsageError
from dpdpca_protocol.messages.software import Software, SoftwareKind
from dpdpca_proxy.settings import load_settings
from dpdpca_runtime.software import installed_software, running_software, wheel_software

INFO = "dpdpca-3.2.1.dist-info"
FILES: Mapping[str, bytes] = {
    "dpdpca_one/__init__.py": b"",
    "dpdpca_one/code.py": b"print('one')\n",
    "dpdpca_two/page/style.css": b"body {}\n",
    "dpdpca_two/__init__.py": b"two = 2\n",
    f"{INFO}/METADATA": b"Metadata-Version: 2.4\nName: dpdpca\nVersion: 3.2.1\n\nText\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n",
    f"{INFO}/entry_points.txt": b"[console_scripts]\n",
}
DIGEST = f"sha256:{'ab' * 32}"


def record(files: Mapping[str, bytes]) -> bytes:
    def row(name: str) -> str:
        digest = base64.urlsafe_b64encode(sha256(files[name]).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(files[name])}"

    return "\n".join([*map(row, files), f"{INFO}/RECORD,,", ""]).encode()


def make_wheel(path: Path, files: Mapping[str, bytes] = FILES, changed: Mapping[str, bytes] = {}) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in {**files, f"{INFO}/RECORD": record(files), **changed}.items():
            wheel.writestr(name, content)
    return path


def install(folder: Path, files: Mapping[str, bytes] = FILES) -> PathDistribution:
    """As pip does: the files, its own notes beside them, and all of them in its list."""
    notes = {
        f"{INFO}/INSTALLER": b"pip\n",
        f"{INFO}/REQUESTED": b"",
        f"{INFO}/direct_url.json": b"{}",
        "../bin/dpdpca": b"#!/bin/sh\n",
        "dpdpca_one/__pycache__/code.cpython-311.pyc": b"compiled",
    }
    for name, content in {**files, **notes, f"{INFO}/RECORD": record({**files, **notes})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return PathDistribution(folder / INFO)


def software_in(folder: Path) -> Software:
    return installed_software(PathDistribution(folder / INFO), folder / "dpdpca_one" / "code.py")


def test_a_wheel_and_what_is_installed_from_it_have_one_digest(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "site-packages"
    install(site)
    wheel = wheel_software(make_wheel(tmp_path / "dpdpca-3.2.1-py3-none-any.whl"))
    assert software_in(site) == wheel
    assert (wheel.version, wheel.kind) == ("3.2.1", SoftwareKind.WHEEL)


def test_the_digest_is_the_one_that_common_tools_compute(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "some.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "opened")
    command = "find dpdpca_* *.dist-info/METADATA -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"
    said = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path / "opened", capture_output=True, text=True, check=True
    ).stdout
    assert wheel_software(wheel).digest == f"sha256:{said.split()[0]}"


def alter(site: Path) -> None:
    (site / "dpdpca_one" / "code.py").write_bytes(b"print('two')\n")


def add(site: Path) -> None:
    (site / "dpdpca_one" / "sitecustomize.py").write_bytes(b"")


def add_compiled(site: Path) -> None:
    (site / "dpdpca_one" / "more.pyc").write_bytes(b"importable without a source")


def remove(site: Path) -> None:
    (site / "dpdpca_two" / "page" / "style.css").unlink()


def rename(site: Path) -> None:
    (site / "dpdpca_two" / "page").rename(site / "dpdpca_two" / "leaf")


def restate(site: Path) -> None:
    path = site / INFO / "METADATA"
    path.write_bytes(path.read_bytes().replace(b"Text", b"Other"))


@pytest.mark.parametrize("change", [alter, add, add_compiled, remove, rename, restate])
def test_a_changed_installation_says_so_and_has_another_digest(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    install(tmp_path)
    before = software_in(tmp_path)
    change(tmp_path)
    after = software_in(tmp_path)
    assert (before.kind, after.kind) == (SoftwareKind.WHEEL, SoftwareKind.ALTERED)
    assert after.digest != before.digest
    assert "altered" in str(after)


def test_what_an_installer_and_python_add_changes_nothing(tmp_path: Path) -> None:
    install(tmp_path)
    before = software_in(tmp_path)
    (tmp_path / "dpdpca_two" / "__pycache__").mkdir()
    (tmp_path / "dpdpca_two" / "__pycache__" / "a.pyc").write_bytes(b"compiled")
    (tmp_path / INFO / "uv_cache.json").write_bytes(b"{}")
    (tmp_path / "other_package").mkdir()
    (tmp_path / "other_package" / "code.py").write_bytes(b"")
    assert software_in(tmp_path) == before


def test_an_editable_installation_has_no_digest(tmp_path: Path) -> None:
    metadata = {name: content for name, content in FILES.items() if name.startswith(INFO)}
    install(tmp_path, {**metadata, "_editable_impl_dpdpca.pth": b"/src"})
    assert software_in(tmp_path) == Software("3.2.1", SoftwareKind.EDITABLE)
    assert "no digest" in str(software_in(tmp_path))


def test_code_from_elsewhere_is_not_taken_for_the_installed_one(tmp_path: Path) -> None:
    installed = install(tmp_path / "site")
    running = tmp_path / "checkout" / "dpdpca_one" / "code.py"
    assert installed_software(installed, running).kind is SoftwareKind.EDITABLE


def test_these_tests_run_from_a_source_folder() -> None:
    assert running_software().kind is SoftwareKind.EDITABLE


def test_an_image_is_named_by_its_operator_unless_files_were_altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path)
    monkeypatch.setattr("dpdpca_runtime.software._installed", lambda: software_in(tmp_path))
    assert running_software(DIGEST) == Software("3.2.1", SoftwareKind.IMAGE, DIGEST)
    alter(tmp_path)
    assert running_software(DIGEST).kind is SoftwareKind.ALTERED


@pytest.mark.parametrize(
    "digest", ["ab" * 32, "sha256:ab", f"sha256:{'AB' * 32}", f"sha512:{'ab' * 32}", f"{DIGEST}\n"]
)
def test_a_proxy_refuses_a_malformed_image_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    monkeypatch.setenv("DPDPCA_PROXY_IMAGE_DIGEST", digest)
    with pytest.raises(UsageError, match="image_digest"):
        load_settings(tmp_path)
    monkeypatch.setenv("DPDPCA_PROXY_IMAGE_DIGEST", DIGEST)
    assert load_settings(tmp_path).image_digest == DIGEST


def test_a_file_that_is_no_wheel_of_this_program_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.whl"
    text.write_text("no archive")
    other = make_wheel(
        tmp_path / "other.whl", {"other/a.py": b"", "other-1.dist-info/METADATA": b"Name: other\n"}
    )
    bare = tmp_path / "bare.whl"
    with zipfile.ZipFile(bare, "w") as wheel:
        wheel.writestr(f"{INFO}/METADATA", FILES[f"{INFO}/METADATA"])
    for path in (text, other, bare):
        with pytest.raises(UsageError) as refusal:
            wheel_software(path)
        assert refusal.value.slug == "not-a-wheel"


def test_a_wheel_whose_files_are_not_as_listed_is_refused(tmp_path: Path) -> None:
    altered = make_wheel(tmp_path / "altered.whl", changed={"dpdpca_one/code.py": b"other"})
    added = make_wheel(tmp_path / "added.whl", changed={"dpdpca_one/more.py": b""})
    for path, name in ((altered, "dpdpca_one/code.py"), (added, "dpdpca_one/more.py")):
        with pytest.raises(DpdpcaError, match=name) as refusal:
            wheel_software(path)
        assert refusal.value.slug == "wheel-damaged"


def test_the_command_prints_the_digest_of_a_wheel(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "dpdpca-3.2.1-py3-none-any.whl")
    digest = wheel_software(wheel).digest
    runner = CliRunner()
    assert (
        runner.invoke(cli.app, ["version", "--wheel", str(wheel)]).output
        == f"dpdpca 3.2.1 (wheel {digest})\n"
    )
    told = runner.invoke(cli.app, ["version", "--wheel", str(wheel), "--json"]).output
    assert told == f'{{"kind": "wheel", "version": "3.2.1", "digest": "{digest}"}}\n'
    assert "no digest" in runner.invoke(cli.app, ["version", "--digest"]).output


parts = st.text("abc_é", min_size=1, max_size=4)
names = st.builds(
    lambda package, rest: f"dpdpca_{package}/{'/'.join(rest)}.py",
    parts,
    st.lists(parts, min_size=1, max_size=3),
)
packages = st.dictionaries(names, st.binary(max_size=20), min_size=1, max_size=6)


def digest_of(tmp_path: Path, files: Mapping[str, bytes]) -> str:
    path = tmp_path / "x.whl"
    told = wheel_software(make_wheel(path, {**files, f"{INFO}/METADATA": FILES[f"{INFO}/METADATA"]})).digest
    assert told is not None
    return told


@given(packages, packages)
def test_two_lists_of_files_have_one_digest_only_if_they_are_equal(
    tmp_path_factory: pytest.TempPathFactory, one: dict[str, bytes], other: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("wheels")
    turned = dict(reversed(one.items()))
    assert digest_of(folder, one) == digest_of(folder, turned)
    assert (digest_of(folder, one) == digest_of(folder, other)) == (one == other)
    assert all(PurePosixPath(name).suffix == ".py" for name in one)
