"""Every block of the tutorial, line by line in one shell.

What is typed otherwise than printed stands in `otherwise`; whatever the text says to repeat is repeated. A
block of text is what the line before it shows, except for what the records and the noise decide.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation.processes import wait_for
from federation.world import KEY_BITS
from terminal import ROOT, Terminal, copy_of_checkout, lend_packages, plain_environment

from dpdpca_cli.federation.processes import free_port

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    port = free_port()
    variables = {
        "PATH": "/usr/bin:/bin",
        # This machine may be in use: ports are free ones, and the key is the shortest that the product takes.
        "DPDPCA_PROXY_PORT": str(port),
        "DPDPCA_PROXY_OPERATOR_PORT": str(free_port()),
        "DPDPCA_USER_PORT": str(free_port()),
        "DPDPCA_USER_KEY_BITS": str(KEY_BITS),
    }
    otherwise = {
        "localhost:8440": f"localhost:{port}",
        # Packages are lent by the environment of the tests, not fetched.
        "python3 -m venv": f"{sys.executable} -m venv",
        "python3 -m pip wheel": f"{sys.executable} -m pip wheel --no-index --no-build-isolation",
        "bin/pip install": "bin/pip install --no-index --no-compile",
    }
    terminal = Terminal(tmp_path, plain_environment() | variables, otherwise)
    yield terminal
    terminal.close()


def test_every_block_of_the_tutorial_works_as_printed(terminal: Terminal, tmp_path: Path) -> None:
    folder = tmp_path / "dpdpca-tutorial"
    terminal.type(f"cd {copy_of_checkout(tmp_path)}")
    shown: dict[str, str] = {}
    line = ""
    for language, name, block in BLOCKS:
        if name:
            (folder / name).write_text(block, encoding="utf-8")
            continue
        if language == "text":
            assert _pattern(block) in _pattern(shown[line]), f"$ {line}\n{shown[line]}"
            continue
        assert language == "sh", f"a block that nobody runs: {block}"
        for line in block.splitlines():
            shown[line] = terminal.type(line)
            if line.endswith(" &"):
                _wait_for_answer(terminal, line)
            elif "venv " in line and "-m venv" in line:
                lend_packages(folder / "venv")
            elif line == "dpdpca user study list":
                opened = _again(terminal, line, r"^([0-9a-f]{64})  open")
                terminal.otherwise["STUDY"] = opened[1]
            elif "owner init" in line:
                words = re.search(r"^words  (.+)$", shown[line], re.MULTILINE)
                assert words
                terminal.otherwise[f"WORDS-OF-{line[-1].upper()}"] = words[1]
            elif line.startswith("dpdpca user study show"):
                _again(terminal, line, "published")
    assert "records: 6000" in shown["python use_model.py"]
    assert "components above the noise: " in shown["python use_model.py"]
    assert len((folder / "scores.csv").read_text().splitlines()) == 2001
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "an unbroken signed chain" in report
    assert "A check failed" not in report


def _pattern(text: str) -> str:
    """The text without what the records and the noise decide."""
    text = re.sub(r"-?\d[\d.e-]*", "0", text.replace("\r", ""))
    return re.sub(r"\b(true|false)\b|(?<=most from )\w+", "…", text).strip()


def _again(terminal: Terminal, line: str, expected: str) -> re.Match[str]:
    """The line, typed until it shows what the text says."""
    found = wait_for(lambda: re.search(expected, terminal.type(line), re.MULTILINE), expected, 120, 1)
    assert isinstance(found, re.Match)
    return found


def _wait_for_answer(terminal: Terminal, line: str) -> None:
    """As a person who goes on when the server is up."""
    port = "$DPDPCA_USER_PORT" if " user " in line else "$DPDPCA_PROXY_PORT"
    code = "import sys, urllib.request as web; web.urlopen(f'http://localhost:{sys.argv[1]}/readyz')"
    terminal.type(f'until python -c "{code}" {port} 2> /dev/null; do sleep 0.3; done')
