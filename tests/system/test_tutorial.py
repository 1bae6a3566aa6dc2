"""Every block of the tutorials, line by line in one shell; at night, also of that on genotypes.

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
from dpdpca_lab.reference_data import reference_folder

BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
NOISE_DECIDES = (
    "dpdpca user result SCORES",
    "dpdpca owner transform http://localhost:8440/STUDY",
    "python populations.py",
)
"""Lines whose text noise decides, so that it has another shape each time."""
REPEATED = "dpdpca user study list"


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


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Language, name of a file or nothing, and content of each block of a page."""
    return BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))


def type_page(terminal: Terminal, folder: Path, page: str, awaited: list[tuple[str, str]]) -> dict[str, str]:
    """What the terminal shows of each line.

    Args:
        terminal: begins in the checkout.
        folder: where the page goes on after the installation.
        page: its name.
        awaited: for each time that the page says to repeat the list of studies: the pattern of the study that
            must be in it, and the name by which the page goes on to call its id.
    """
    shown: dict[str, str] = {}
    lines: list[str] = []
    for language, name, block in blocks(page):
        if name:
            (folder / name).write_text(block, encoding="utf-8")
            continue
        if language == "text":
            if not any(line.startswith(NOISE_DECIDES) for line in lines):
                output = "".join(map(shown.__getitem__, lines))
                assert _pattern(block) in _pattern(output), f"$ {lines[-1]}\n{output}"
            continue
        assert language == "sh", f"a block that nobody runs: {block}"
        lines = block.splitlines()
        for line in lines:
            shown[line] = terminal.type(line)
            if line.endswith(("serve 2> proxy.log &", "serve 2> user.log &")):
                _wait_for_answer(terminal, line)
            elif "venv " in line and "-m venv" in line:
                lend_packages(folder / "venv")
            elif line == REPEATED:
                expected, called = awaited.pop(0)
                terminal.otherwise[called] = _again(terminal, line, expected)[1]
            elif "owner init" in line:
                words = re.search(r"^words  (.+)$", shown[line], re.MULTILINE)
                assert words
                terminal.otherwise[f"WORDS-OF-{line[-1].upper()}"] = words[1]
            elif line.startswith("dpdpca user study show"):
                _again(terminal, line, "published")
    assert not awaited
    return shown


def test_every_block_of_the_tutorial_works_as_printed(terminal: Terminal, tmp_path: Path) -> None:
    folder = tmp_path / "dpdpca-tutorial"
    terminal.type(f"cd {copy_of_checkout(tmp_path)}")
    shown = type_page(terminal, folder, "tutorial.md", [(r"^([0-9a-f]{64})  open", "STUDY")])
    assert "records: 6000" in shown["python use_model.py"]
    assert "components above the noise: " in shown["python use_model.py"]
    assert len((folder / "scores.csv").read_text().splitlines()) == 2001
    scores = next(text for line, text in shown.items() if line.startswith("dpdpca owner transform"))
    assert re.search(r"^the scores of 2000 records are in scores\.csv\r?$", scores, re.MULTILINE)
    assert re.search(r"^outlier scores use the first [234] components", scores, re.MULTILINE)
    assert re.search(r"^limits of SPE  (none: .+|95%: [\d.]+, 99%: [\d.]+)\r?$", scores, re.MULTILINE)
    assert "note: The variances are those of shortened records" in scores
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "an unbroken signed chain" in report
    assert "A check failed" not in report


@pytest.mark.nightly
def test_every_block_of_the_tutorial_on_genotypes_works_as_printed(
    terminal: Terminal, tmp_path: Path
) -> None:
    reference = reference_folder()
    if reference is None:
        pytest.skip("DPDPCA_REFERENCE_DATA names the folder that has the genotypes")
    folder = tmp_path / "dpdpca-genotypes"
    terminal.line_seconds = 1800.0  # the comparison with other methods
    terminal.otherwise["TABLE"] = str(reference / "thousand_genomes_2504x23770.npz")
    terminal.type(f"cd {copy_of_checkout(tmp_path)}")
    awaited = [
        (r"^([0-9a-f]{64})  open", "STUDY"),
        (r"^([0-9a-f]{64})  published +scores", "SCORES"),
    ]
    shown = type_page(terminal, folder, "tutorial-genotypes.md", awaited)
    captured = re.search(r"capture about (\d+)%", shown["dpdpca user result SCORES --out model.npz"])
    assert captured
    assert int(captured[1]) >= 75
    groups = next(text for line, text in shown.items() if line.startswith("python populations.py"))
    assert re.findall(r"^(\w+): \d+ people", groups, re.MULTILINE) == ["AFR", "AMR", "EAS", "EUR", "SAS"]
    assert (folder / "populations.png").read_bytes().startswith(b"\x89PNG")


def _pattern(text: str) -> str:
    """The text without what the records and the noise decide."""
    text = re.sub(r"-?\d[\d.e-]*", "0", text.replace("\r", ""))
    return re.sub(r"\b(true|false)\b|(?<=most from )\w+", "…", text).strip()


def _again(terminal: Terminal, line: str, expected: str) -> re.Match[str]:
    """The line, typed until it shows what the text says."""
    found = wait_for(lambda: re.search(expected, terminal.type(line), re.MULTILINE), expected, 900, 1)
    assert isinstance(found, re.Match)
    return found


def _wait_for_answer(terminal: Terminal, line: str) -> None:
    """As a person who goes on when the server is up."""
    port = "$DPDPCA_USER_PORT" if " user " in line else "$DPDPCA_PROXY_PORT"
    code = "import sys, urllib.request as web; web.urlopen(f'http://localhost:{sys.argv[1]}/readyz')"
    terminal.type(f'until python -c "{code}" {port} 2> /dev/null; do sleep 0.3; done')
