"""The measurements run, through the code of the roles, and say what they promise to say."""

import importlib
import json
from typing import Any

import pytest

from dpdpca_cli import main as cli
from dpdpca_lab.benchmarks import growth, padded, phases
from dpdpca_lab.benchmarks.commands import check_blinded, chosen_suite
from dpdpca_lab.benchmarks.measure import Peak, in_turns, multiplication_seconds
from dpdpca_lab.benchmarks.peers import load_peer
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.terms import SuiteName

PROMISED = {
    "seconds",
    "values_per_second",
    "bytes",
    "peak_memory_bytes",
    "floor_seconds",
    "ratio_to_floor",
    "ratio_to_peer",
}
PHASES = ["encrypt", "aggregate", "release", "decrypt"]


@pytest.mark.parametrize("release", [ReleaseKind.JOINT, ReleaseKind.MASKED])
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_is_measured_beside_its_floor_and_a_peer(phase: str, release: ReleaseKind) -> None:
    size = phases.Size(7, 12, 1024, release, 2, rounds=1, peer_sample=1)
    measured = getattr(phases, f"bench_{phase}")(size, load_peer("phe", 512, 1))
    facts = measured.facts()
    assert facts.keys() >= PROMISED
    assert all(facts[name] > 0 for name in PROMISED)
    assert measured.peer == "phe"
    assert any("extrapolated" in note for note in measured.notes)
    assert any("simulated" in note for note in measured.notes) == (phase == "aggregate")
    json.dumps(facts)


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_under_pads_is_measured_beside_its_floor(phase: str) -> None:
    size = phases.Size(30, 3, 0, ReleaseKind.JOINT, 2, rounds=1, suite=SuiteName.PADS)
    facts: dict[str, Any] = padded.PHASES[phase](size).facts()
    assert all(facts[name] > 0 for name in PROMISED - {"ratio_to_peer"})
    assert facts["ratio_to_peer"] is None
    json.dumps(facts)


def test_a_blinded_share_is_measured_with_its_masks_and_its_noise() -> None:
    size = phases.Size(30, 3, 0, ReleaseKind.JOINT, 1, rounds=1, suite=SuiteName.PADS, blinded=True)
    details = padded.PHASES["encrypt"](size).details
    assert details["mask_streams"] > 0
    assert details["draw_cpu_seconds"] > 0


@pytest.mark.parametrize(("suite", "owners"), [("paillier", 3), ("pads", 1)])
def test_only_several_owners_under_pads_can_be_blinded(suite: str, owners: int) -> None:
    check_blinded(False, suite, owners)
    with pytest.raises(UsageError):
        check_blinded(True, suite, owners)


def test_without_a_peer_there_is_no_ratio_to_it() -> None:
    measured = phases.bench_encrypt(phases.Size(3, 1, 1024, ReleaseKind.JOINT, 1, rounds=2), None)
    assert measured.facts()["ratio_to_peer"] is None
    assert measured.notes == ()


def test_a_peer_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError) as refused:
        load_peer("heu", 2048, 1)
    assert "heu is not installed" in refused.value.problem
    assert load_peer("none", 2048, 1) is None


def test_turns_are_taken_and_medians_returned() -> None:
    calls: list[str] = []

    def act(name: str, values: list[float]) -> Any:
        def run() -> float:
            calls.append(name)
            return values.pop(0)

        return run

    assert in_turns(3, act("a", [1.0, 9.0, 2.0]), act("b", [5.0, 5.0, 1.0])) == [2.0, 5.0]
    assert calls == ["a", "b"] * 3


def test_memory_and_multiplications_are_seen() -> None:
    peak = Peak()
    with peak.watching():
        held = bytearray(b"x" * 50_000_000)
    assert peak.bytes > len(held)
    assert 0 < multiplication_seconds(phases.Size(1, 1, 1024, ReleaseKind.JOINT, 1).unit()) < 1e-2


def test_the_command_prints_json_and_refuses_what_it_does_not_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["bench", "encrypt", "--features", "3", "--key-bits", "2048", "--rounds", "1", "--json"]
    for suite, bits in ((["--suite", "paillier"], 2048), ([], None)):
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, *suite])
        assert ended.value.code == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts.keys() >= PROMISED
        assert (facts["features"], facts["key_bits"]) == (3, bits)
    for wrong in (["--against", "rsa"], ["--release", "open"], ["--key-bits", "2049"], ["--suite", "sealed"]):
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, *wrong])
        assert ended.value.code == 2


@pytest.mark.parametrize(
    ("suite", "release", "against", "chosen"),
    [
        (None, "joint", "none", "pads"),
        (None, "joint", "phe", "paillier"),
        (None, "masked", "none", "paillier"),
        ("paillier", "joint", "none", "paillier"),
        ("pads", "joint", "none", "pads"),
        ("pads", "masked", "none", None),
        ("pads", "joint", "phe", None),
    ],
)
def test_the_suite_that_is_measured(
    suite: str | None, release: str, against: str, chosen: str | None
) -> None:
    if chosen is None:
        with pytest.raises(UsageError):
            chosen_suite(suite, release, against)
    else:
        assert chosen_suite(suite, release, against) == chosen


@pytest.mark.parametrize("name", ["growth", "paper_figures", "slopes", "utility"])
def test_programs_that_write_the_tables_of_the_docs_say_what_they_take(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = importlib.import_module(f"dpdpca_lab.benchmarks.{name}")
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_a_row_of_the_tables_has_both_ratios() -> None:
    facts = {"seconds": 2.0, "ratio_to_floor": 1.25, "ratio_to_peer": 250.0, "notes": ["simulated"]}
    assert growth.line("encrypt", facts) == "| `encrypt` | 2 | – | – | – | 1.25 | – | 250 | simulated |"
