"""Types of problems, with remedies."""

from dpdpca_runtime.asgi.problem_table import PROBLEMS
from reference_pages.command_errors import COMMAND_ERRORS
from reference_pages.markdown import code, plain, table

_INTRODUCTION = """
# Error types

A service reports an error as a problem document (RFC 9457). The `type` of the document is
`urn:dpdpca:problem:` followed by one of the names below. The member `detail` says what is wrong, and the
member `next_step` says what to do. A command prints `detail` and `next_step` as one line. In Python, the
exception has this name as its attribute `slug`. The names are stable, so programs can depend on them.

Answers with status 503 or 429 contain the header `Retry-After`. The clients of dpdpca wait for the time in
this header and then try again.
"""

_FRAMEWORK = (
    ("method-not-allowed", 405, "The path does not accept this method.", "Compare the request with `/docs`."),
    (
        "not-acceptable",
        406,
        "The route cannot answer in this media type.",
        "Compare the request with `/docs`.",
    ),
)
"""Problems that every route can give. The table of problems lists those that a route declares."""

_COMMANDS = """
## Errors of commands and of the Python API

The errors in this table are reported only on the machine where they happen. Each error message adds the
details, such as the file, the line or the setting.
"""


def page() -> str:
    lines = [*_INTRODUCTION.strip().splitlines(), "", "## Problems of the services", ""]
    rows = [
        (code(slug), str(each.status), plain(_sentence(each.meaning)), plain(_sentence(each.remedy)))
        for slug, each in PROBLEMS.items()
    ]
    rows += [(code(slug), str(status), happened, remedy) for slug, status, happened, remedy in _FRAMEWORK]
    lines += table(("type", "status", "what happened", "what to do"), sorted(rows))
    lines += [*_COMMANDS.strip().splitlines(), ""]
    lines += table(
        ("error", "what happened", "what to do"),
        ((code(slug), *texts) for slug, texts in sorted(COMMAND_ERRORS.items()) if slug not in PROBLEMS),
    )
    return "\n".join(lines)


def _sentence(text: str) -> str:
    return text and f"{text[0].upper()}{text[1:].rstrip('.')}."
