"""The specification's table of manifest members is the one that the code reads and writes by."""

from pathlib import Path

from dpdpca_protocol.terms.members import MEMBERS

PAGE = (Path(__file__).parents[2] / "docs" / "spec.md").read_text()


def test_the_page_has_a_row_for_each_member_in_order() -> None:
    rows = ["| member | form | meaning |", "|---|---|---|"]
    rows.append("| `format` | `1` | version of the message format |")
    for member in MEMBERS:
        left_out = "" if member.is_required else "; may be left out"
        rows.append(f"| `{member.name}` | {member.form.words}{left_out} | {member.meaning} |")
    table = "\n".join(rows)
    assert f"\n\n{table}\n\n" in PAGE, f"the table in docs/spec.md should be\n\n{table}"
