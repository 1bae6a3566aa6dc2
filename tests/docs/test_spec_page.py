"""The specification prints what the code is: the table of members, and the reference as a program."""

import inspect
import re
from pathlib import Path

from dpdpca_protocol import reference
from dpdpca_protocol.terms.members import MEMBERS

PAGE = (Path(__file__).parents[2] / "docs" / "spec.md").read_text(encoding="utf-8")


def test_the_page_has_a_row_for_each_member_in_order() -> None:
    rows = ["| member | form | meaning |", "|---|---|---|"]
    rows.append("| `format` | `1` | version of the message format |")
    for member in MEMBERS:
        left_out = "" if member.is_required else "; may be left out"
        rows.append(f"| `{member.name}` | {member.form.words}{left_out} | {member.meaning} |")
    table = "\n".join(rows)
    assert f"\n\n{table}\n\n" in PAGE, f"the table in docs/spec.md should be\n\n{table}"


def test_the_page_prints_the_reference_as_it_runs() -> None:
    source = inspect.getsource(reference)
    program = source[source.index("def run_study(") :]
    (printed,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert printed == program
