"""An option or argument that several commands share is defined once."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def definitions() -> Iterator[str]:
    """Every option and argument of the product, as its code reads."""
    for folder in ("runtime", "services", "clients", "lab"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "import typer" not in text:
                continue
            calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
            for call in calls:
                if isinstance(call.func, ast.Attribute) and call.func.attr in ("Option", "Argument"):
                    yield ast.unparse(call)


def test_no_definition_is_repeated() -> None:
    counted = Counter(definitions())
    assert len(counted) > 50
    assert [text for text, times in counted.items() if times > 1] == []
