"""Types of problems, with remedies."""

from dpdpca_runtime.asgi.problem_table import PROBLEMS
from reference_pages.command_errors import COMMAND_ERRORS
from reference_pages.markdown import code, plain, table

_INTRODUCTION = """
# Error types

A service answers an error with a problem document (RFC 9457). Its `type` is `urn:dpdpca:problem:` followed
by one of the names below; `detail` says what is wrong, and `next_step` says what to do. A command prints
the same two parts as one line. In Python the exception has the name as `slug`. Names are stable: a program
may depend on them.

Statuses 503 and 429 come with `Retry-After`. The clients of this product wait that long and try again by
themselves.
"""

_FRAMEWORK = (
    ("method-not-allowed", 405, "The path does not take this method.", "Compare the request with `/docs`."),
    ("not-acceptable", 406, "The route has no answer in this representation.", "Compare it with `/docs`."),
)
"""Of every route; the table of problems has those that routes declare."""

_COMMANDS = """
## Errors of commands and of the Python API

These stay on the machine where they happen. The message says more: which file, which line, which value.
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
