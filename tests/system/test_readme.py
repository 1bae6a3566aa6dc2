"""Every line of the README's "A real study", as people would type it, at a terminal.

Three owners, TLS from a throw-away authority. What is typed otherwise than printed, `here` of a desk lists.
"""

import os
import pty
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet
import pytest
from federation.processes import STOP_SECONDS, free_port, tail, wait_for
from federation.records import patients
from federation.world import KEY_BITS

pytestmark = pytest.mark.system  # half a minute on a quiet machine

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.split("## A real study\n")[1].split("\n## ")[0]
BLOCK, PYTHON = re.findall(r"^```(?:python)?\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)

OWNERS = ("Hospital A", "Hospital B", "Hospital C")
SIZES = (300, 200, 150)
COLUMNS = ("weight", "age", "pressure")
QUESTION = re.compile(r"\[y/N\]: \Z")
LINE_SECONDS = 120.0


def lines_of(role: str) -> list[str]:
    """The lines below the comment that names a role, without their own comments."""
    (part,) = (part for part in BLOCK.split("\n\n") if part.startswith(f"# {role}"))
    lines = [re.sub(r"\s+#.*", "", line) for line in part.splitlines()[1:]]
    assert lines
    return lines


@dataclass
class Desk:
    """Where one person works: a folder, an environment, a terminal; and what is otherwise than printed."""

    folder: Path
    environment: dict[str, str]
    here: dict[str, str]
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def type(self, line: str) -> str:
        """What the terminal shows of a line that ends well; questions are answered with yes."""
        for printed, wanted in self.here.items():
            line = line.replace(printed, wanted)
        if line.endswith(" &"):
            self._serve(line.removesuffix(" &"))
            return ""
        ours, theirs = pty.openpty()
        place = ROOT if line.startswith("pip ") else self.folder
        with subprocess.Popen(
            ["bash", "-c", line],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=place,
            env=self.environment,
            start_new_session=True,
        ) as process:
            os.close(theirs)
            shown = "".join(_conversation(ours))
            status = process.wait(LINE_SECONDS)
        os.close(ours)
        assert status == 0, f"$ {line}\n{shown}"
        return shown.replace("\r\n", "\n")

    def _serve(self, line: str) -> None:
        with (self.folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )
        self.servers.append(process)

    def wait_ready(self, url: str, ca_file: Path) -> None:
        def is_ready() -> bool:
            ended = [process for process in self.servers if process.poll() is not None]
            assert not ended, tail(self.folder / "server.log")
            with suppress(httpx.TransportError):
                return client.get(url).status_code == 200
            return False

        with httpx.Client(trust_env=False, verify=ssl.create_default_context(cafile=ca_file)) as client:
            wait_for(is_ready, f"{url} answers", 60, 0.3)

    def stop(self) -> None:
        for process in self.servers:
            process.terminate()
        for process in self.servers:
            process.wait(STOP_SECONDS)


def _conversation(terminal: int) -> Iterator[str]:
    """Everything that is shown, until the other end is closed."""
    last = ""
    with suppress(OSError):  # how Linux says so
        while piece := os.read(terminal, 65536).decode(errors="replace"):
            last = (last + piece)[-100:]
            if QUESTION.search(last):
                os.write(terminal, b"y\n")
                last = ""
            yield piece


@dataclass
class Trial:
    """The desks of all parties."""

    proxy: Desk
    user: Desk
    owners: list[Desk]
    proxy_url: str
    user_url: str
    ca_file: Path


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    ports = [free_port() for _ in range(3)]
    authority = tmp_path / "authority"
    authority.mkdir()
    maker = [sys.executable, str(ROOT / "deploy" / "federation" / "authority.py")]
    subprocess.run([*maker, str(authority), f"localhost={authority}"], check=True)
    ca_file = authority / "ca.pem"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DPDPCA_", "XDG_"))}
    kept |= {
        "DPDPCA_CA_FILE": str(ca_file),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        # Every machine has ports of its own; here they share one.
        "DPDPCA_PROXY_OPERATOR_PORT": str(ports[1]),
        "DPDPCA_USER_PORT": str(ports[2]),
        "DPDPCA_USER_KEY_BITS": str(KEY_BITS),
    }
    here = {
        "relay.example:8443": f"localhost:{ports[0]}",
        "--port 8443": f"--port {ports[0]}",
        # The packages are there already: only whether it would install is asked.
        "pip install ": "pip install --dry-run --no-index --no-build-isolation --disable-pip-version-check ",
    }

    def desk(name: str) -> Desk:
        folder = tmp_path / name
        folder.mkdir()
        return Desk(folder, kept | {"HOME": str(folder)}, dict(here))

    trial = Trial(
        desk("proxy"),
        desk("user"),
        [desk(f"owner-{number}") for number in range(len(OWNERS))],
        f"https://localhost:{ports[0]}",
        f"http://127.0.0.1:{ports[2]}",
        ca_file,
    )
    (trial.proxy.folder / "cert.pem").write_bytes((authority / "tls.pem").read_bytes())
    (trial.proxy.folder / "key.pem").write_bytes((authority / "tls.key").read_bytes())
    _write_records(trial)
    try:
        yield trial
    finally:
        for each in (trial.user, trial.proxy):
            each.stop()


def _write_records(trial: Trial) -> None:
    sample = [[str(record[name]) for name in COLUMNS] for record in patients(50, seed=1)]
    lines = [",".join(row) for row in [list(COLUMNS), *sample]]
    (trial.user.folder / "sample.csv").write_text("\n".join(lines) + "\n")
    for number, (owner, size) in enumerate(zip(trial.owners, SIZES, strict=True), start=2):
        records = patients(size, seed=number)
        table = pa.table({name: [record[name] for record in records] for name in COLUMNS})
        pyarrow.parquet.write_table(table, owner.folder / "records.parquet")
        name = OWNERS[number - 2]
        owner.here |= {"Hospital A": name, "hospital-a": name.lower().replace(" ", "-")}


def test_the_lines_of_a_real_study_work_as_printed(trial: Trial) -> None:
    invite = lines_of("the proxy")[-1]
    for line in lines_of("the proxy"):
        assert "WARNING" not in trial.proxy.type(line), "the extra of this name is not there"
        if line.endswith("&"):
            trial.proxy.wait_ready(f"{trial.proxy_url}/readyz", trial.ca_file)
    for name in OWNERS[1:]:
        trial.proxy.type(
            invite.replace("Hospital A", name).replace("hospital-a", name.lower().replace(" ", "-"))
        )
    for token in trial.proxy.folder.glob("*.token"):
        for desk in (trial.user, *trial.owners):
            (desk.folder / token.name).write_bytes(token.read_bytes())

    shown = ""
    for line in lines_of("the data user"):
        shown = trial.user.type(line)
        if line.endswith("&"):
            trial.user.wait_ready(f"{trial.user_url}/readyz", trial.ca_file)
        elif "study init" in line:
            _edit(trial.user.folder / "draft.toml")
    study = _opened(trial.user, shown)
    for desk in (trial.user, *trial.owners):
        desk.here["STUDY"] = study

    for owner, size in zip(trial.owners, SIZES, strict=True):
        for line in lines_of("each owner"):
            shown = owner.type(line)
        assert f"with {size} records" in shown

    def is_published(line: str) -> bool:
        return "published" in trial.user.type(line)

    for line in lines_of("the result"):
        shown = trial.user.type(line)
        if "study show" in line:
            wait_for(partial(is_published, line), "the study is published", 120, 1)
    assert "chunks have the signed digests" in shown
    assert (trial.user.folder / "model.npz").stat().st_size > 0
    assert "<html" in (trial.user.folder / "report.html").read_text()

    program = PYTHON.replace("STUDY", study) + "print(pca.n_samples_, pca.components_.shape)"
    (trial.user.folder / "program.py").write_text(program)
    assert trial.user.type("python program.py").split("\n")[-2] == f"{sum(SIZES)} (3, 3)"


def _edit(draft: Path) -> None:
    """A person writes what the draft asks for."""
    text = draft.read_text()
    assert "to be filled in" not in text
    draft.write_text(text.replace('title = "…"', 'title = "Weight and pressure"').replace('"…"', '"To see."'))


def _opened(user: Desk, shown: str) -> str:
    """The study's id as the last line of the data user shows it, typed again until the key is made."""
    listing = lines_of("the data user")[-1]
    found = re.search(r"^([0-9a-f]{64})  open", shown, re.MULTILINE)
    if found is None:
        found = wait_for(
            lambda: re.search(r"^([0-9a-f]{64})  open", user.type(listing), re.MULTILINE),
            "it is open",
            120,
            1,
        )
    return str(found[1])
