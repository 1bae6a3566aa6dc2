"""Text of others in a line of a terminal."""

import pytest

from dpdpca_runtime.text import for_terminal


@pytest.mark.parametrize("name", ["Krankenhaus Süd", "医院", "αβγ", "<b>[red]x[/red]</b>", ""])
def test_what_runs_from_left_to_right_stays_as_it_is(name: str) -> None:
    assert for_terminal(name) == name


@pytest.mark.parametrize("name", ["בית חולים 12", "مستشفى", "٣٤", "Clinic א"])
def test_what_runs_from_right_to_left_stays_among_itself(name: str) -> None:
    """By FIRST STRONG ISOLATE and POP DIRECTIONAL ISOLATE: else figures beside it change sides."""
    assert for_terminal(name) == f"\u2068{name}\u2069"


@pytest.mark.parametrize("letter", ["\x1b", "\x9b", "\x07", "\n", "\u202e", "\u2066", "\u200b", "\u2028"])
def test_nothing_acts(letter: str) -> None:
    assert for_terminal(f"a{letter}b") == "a b"
