"""The page on the architecture lists the rooms that there are, and the floors that are checked."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WINGS = ("protocol", "runtime", "services", "clients", "lab")


def rooms() -> set[str]:
    """Folders inside the packages that hold code or what it serves."""
    found = set()
    for wing in WINGS:
        for package in (ROOT / wing).glob("dpdpca_*"):
            for path in package.rglob("*"):
                inside = path.is_file() and "__pycache__" not in path.parts
                if inside and path.parent != package:
                    found.add(".".join(path.parent.relative_to(ROOT / wing).parts))
    return found


def test_the_page_names_every_room_and_no_other() -> None:
    items = re.findall(r"^- ((?:`dpdpca_[\w.]+`(?:, )?)+):", PAGE, re.MULTILINE)
    named = [room for item in items for room in re.findall(r"`([\w.]+)`", item)]
    assert len(named) == len(set(named))
    assert set(named) == rooms()


def test_the_page_names_every_package_in_its_wing() -> None:
    drawing = PAGE.partition("## Wings")[2].partition("## Rooms")[0]
    for wing in WINGS:
        lines = drawing.partition(f"{wing}/ ")[2].partition("│")[0]
        packages = {package.name for package in (ROOT / wing).glob("dpdpca_*")}
        assert set(re.findall(r"dpdpca_\w+", lines)) == packages, wing


def test_the_floors_are_those_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [
        contract["layers"] for contract in contracts if contract.get("containers") == ["dpdpca_protocol"]
    ]
    drawn = re.findall(r"^floor \d +(.+)$", PAGE, re.MULTILINE)
    assert [set(floor.split()) for floor in drawn] == [set(layer.split(" | ")) for layer in layers]
