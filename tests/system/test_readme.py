"""Every block of the README, as people would type it: three owners, TLS from a throw-away authority.

What is typed otherwise than printed stands in `OTHERWISE` and in `desk`.
"""

import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet
import pytest
from federation.processes import wait_for
from federation.records import patients
from federation.world import KEY_BITS
from terminal import ROOT, Terminal, copy_of_checkout, lend_packages, plain_environment

from dpdpca_cli.federation.processes import free_port

pytestmark = pytest.mark.system  # a minute on a quiet machine

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
PICTURE, DEMO, STUDY, PYTHON = (block for _, block in BLOCKS)

OWNERS = ("Hospital A", "Hospital B", "Hospital C")
SIZES = (300, 200, 150)
COLUMNS = ("weight", "age", "pressure")
OTHERWISE = {
    "pip wheel ": "python -m pip wheel --no-index --no-build-isolation ",  # packages are lent
    "pip install ": "python -m pip install --no-index --no-compile ",
}


def lines_of(part: str) -> list[str]:
    """The lines below the comment that names a part, without their own comments."""
    (found,) = (each for each in STUDY.split("\n\n") if each.startswith(f"# {part}"))
    lines = [re.sub(r"\s+#.*", "", line) for line in found.splitlines()[1:]]
    assert lines
    return lines


@dataclass
class Desk:
    """Where one person works."""

    folder: Path
    terminal: Terminal

    def type_all(self, lines: list[str]) -> str:
        """What the last line showed."""
        return [self.terminal.type(line) for line in lines][-1]


@dataclass
class Trial:
    """The desks of all parties."""

    proxy: Desk
    user: Desk
    owners: list[Desk]
    proxy_url: str
    user_url: str
    ca_file: Path

    def wait_ready(self, url: str) -> None:
        def is_ready() -> bool:
            with suppress(httpx.TransportError):
                return client.get(f"{url}/readyz").status_code == 200
            return False

        with httpx.Client(trust_env=False, verify=ssl.create_default_context(cafile=self.ca_file)) as client:
            wait_for(is_ready, f"{url} answers", 60, 0.3)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    ports = [free_port() for _ in range(3)]
    authority = tmp_path / "authority"
    authority.mkdir()
    maker = [sys.executable, str(ROOT / "deploy" / "federation" / "authority.py")]
    subprocess.run([*maker, str(authority), f"localhost={authority}"], check=True)
    ca_file = authority / "ca.pem"
    terminals: list[Terminal] = []

    def desk(name: str, **otherwise: str) -> Desk:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        lend_packages(folder / "venv")
        variables = {
            "PATH": f"{folder / 'venv' / 'bin'}:/usr/bin:/bin",
            "DPDPCA_CA_FILE": str(ca_file),
            # Every machine has ports of its own; here they share one.
            "DPDPCA_PROXY_OPERATOR_PORT": str(ports[1]),
            "DPDPCA_USER_PORT": str(ports[2]),
            "DPDPCA_USER_KEY_BITS": str(KEY_BITS),
        }
        here = {
            "relay.example:8443": f"localhost:{ports[0]}",
            "--port 8443": f"--port {ports[0]}",
            **OTHERWISE,
            **otherwise,
        }
        terminals.append(Terminal(folder, plain_environment() | variables, here))
        return Desk(folder, terminals[-1])

    try:
        checkout = copy_of_checkout(tmp_path)
        desk(checkout.name).type_all(lines_of("anybody"))
        owners = [
            desk(f"owner-{number}", **{"Hospital A": name, "hospital-a": _file_name(name)})
            for number, name in enumerate(OWNERS)
        ]
        trial = Trial(
            desk("proxy"),
            desk("user"),
            owners,
            f"https://localhost:{ports[0]}",
            f"http://127.0.0.1:{ports[2]}",
            ca_file,
        )
        for each in (trial.proxy, trial.user, *trial.owners):
            (each.folder / "dist").symlink_to(checkout / "dist")
        (trial.proxy.folder / "cert.pem").write_bytes((authority / "tls.pem").read_bytes())
        (trial.proxy.folder / "key.pem").write_bytes((authority / "tls.key").read_bytes())
        _write_records(trial)
        yield trial
    finally:
        for terminal in reversed(terminals):
            terminal.close()


def _file_name(owner: str) -> str:
    return owner.lower().replace(" ", "-")


def _write_records(trial: Trial) -> None:
    sample = [[str(record[name]) for name in COLUMNS] for record in patients(50, seed=1)]
    lines = [",".join(row) for row in [list(COLUMNS), *sample]]
    (trial.user.folder / "sample.csv").write_text("\n".join(lines) + "\n")
    for number, (owner, size) in enumerate(zip(trial.owners, SIZES, strict=True), start=2):
        records = patients(size, seed=number)
        table = pa.table({name: [record[name] for record in records] for name in COLUMNS})
        pyarrow.parquet.write_table(table, owner.folder / "records.parquet")


def test_the_lines_of_a_real_study_work_as_printed(trial: Trial) -> None:
    invite = lines_of("the proxy")[-1]
    for line in lines_of("the proxy"):
        assert "WARNING" not in trial.proxy.terminal.type(line), "the extra of this name is not there"
        if line.endswith("&"):
            trial.wait_ready(trial.proxy_url)
    for name in OWNERS[1:]:
        trial.proxy.terminal.type(invite.replace("Hospital A", name).replace("hospital-a", _file_name(name)))
    for token in trial.proxy.folder.glob("*.token"):
        for desk in (trial.user, *trial.owners):
            (desk.folder / token.name).write_bytes(token.read_bytes())

    words = {}
    for name, owner in zip(OWNERS, trial.owners, strict=True):
        for line in lines_of("each owner"):
            shown = owner.terminal.type(line)
            if "owner init" in line:
                words[name] = _words(shown)
    shown = ""
    for line in lines_of("the data user"):
        shown = trial.user.terminal.type(line)
        if line.endswith("&"):
            trial.wait_ready(trial.user_url)
        elif "study init" in line:
            _edit(trial.user.folder / "draft.toml")
    study = _opened(trial.user, shown)
    for desk in (trial.user, *trial.owners):
        desk.terminal.otherwise["STUDY"] = study

    for name, owner, size in zip(OWNERS, trial.owners, SIZES, strict=True):
        for line in lines_of("the owners that the study names"):
            others = [other for other in OWNERS if other != name] if "owner trust" in line else [""]
            for other in others:
                told = {"Hospital B": other, "twelve words": words[other]} if other else {}
                owner.terminal.otherwise |= told
                shown = owner.terminal.type(line)
        assert f"with {size} records" in shown

    def is_published(line: str) -> bool:
        return "published" in trial.user.terminal.type(line)

    for line in lines_of("the result"):
        shown = trial.user.terminal.type(line)
        if "study show" in line:
            wait_for(partial(is_published, line), "the study is published", 120, 1)
    assert "chunks have the signed digests" in shown
    assert (trial.user.folder / "model.npz").stat().st_size > 0
    assert "<html" in (trial.user.folder / "report.html").read_text()

    program = PYTHON.replace("STUDY", study) + "print(pca.n_samples_, pca.components_.shape)"
    (trial.user.folder / "program.py").write_text(program)
    assert f"{sum(SIZES)} (3, 3)" in trial.user.terminal.type("python program.py")


def test_the_demo_is_the_target_that_is_printed() -> None:
    """`tests/system/test_demo.py` runs what the target runs."""
    (line,) = DEMO.splitlines()
    words = [*line.split(), "--dry-run", "--no-print-directory"]
    shown = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    assert shown.stdout.splitlines()[-1] == ".venv/bin/dpdpca demo"


def test_the_picture_names_the_roles() -> None:
    assert all(role in PICTURE for role in ("data owners", "proxy", "data user"))


def _words(shown: str) -> str:
    """The words of an owner's key, which it reads out to the other owners."""
    found = re.search(r"^words  (.+)$", shown, re.MULTILINE)
    assert found
    return found[1]


def _edit(draft: Path) -> None:
    """A person writes what the draft asks for."""
    text = draft.read_text()
    assert 'blinding = "pairwise"' in text
    assert "to be filled in" not in text
    draft.write_text(text.replace('title = "…"', 'title = "Weight and pressure"').replace('"…"', '"To see."'))


def _opened(user: Desk, shown: str) -> str:
    """The study's id as the last line of the data user shows it, typed again until the key is made."""
    listing = lines_of("the data user")[-1]
    found = re.search(r"^([0-9a-f]{64})  open", shown, re.MULTILINE) or wait_for(
        lambda: re.search(r"^([0-9a-f]{64})  open", user.terminal.type(listing), re.MULTILINE),
        "it is open",
        120,
        1,
    )
    return str(found[1])
