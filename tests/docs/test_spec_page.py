"""The specification prints what the code is: the table of members, and the reference as a program."""

import inspect
import re
from pathlib import Path

from dpdpca_protocol import reference
from dpdpca_protocol.messages.schemas import BODIES
from dpdpca_protocol.terms.members import MEMBERS
from dpdpca_protocol.wire.signing import FORMAT
from dpdpca_runtime.asgi.problem_table import PROBLEMS
from reference_pages.__main__ import with_messages
from reference_pages.command_errors import COMMAND_ERRORS
from reference_pages.messages import MESSAGES

PAGE = (Path(__file__).parents[2] / "docs" / "spec.md").read_text(encoding="utf-8")


def test_the_page_has_a_row_for_each_member_in_order() -> None:
    rows = ["| member | form | meaning |", "|---|---|---|"]
    rows.append(f"| `format` | `{FORMAT}` | version of the message format |")
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


def test_each_message_is_one_table_as_its_schema_has_it() -> None:
    assert with_messages(PAGE) == PAGE, "run: make reference (docs/spec.md)"


def test_no_message_and_no_member_is_left_out() -> None:
    assert MESSAGES.keys() == BODIES.keys()
    for kind, (_, members) in MESSAGES.items():
        forms = BODIES[kind].get("oneOf", [BODIES[kind]])
        assert members.keys() | {"format"} == {name for form in forms for name in form["properties"]}, kind


def test_what_is_refused_is_called_as_errors_are() -> None:
    named = {
        slug
        for _, members in MESSAGES.values()
        for _, refused in members.values()
        for slug in re.findall(r"`([a-z]+(?:-[a-z]+)+|malformed)`", refused)
    }
    assert named <= PROBLEMS.keys() | COMMAND_ERRORS.keys()
