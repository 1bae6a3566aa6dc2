"""A change of the policy file: shown with its effect first, then saved as it was shown."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import ndiff
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from dpdpca_owner.page.gate import Form, field
from dpdpca_owner.page.office import Office
from dpdpca_owner.page.render import go_to
from dpdpca_owner.policy import DEFAULT_POLICY
from dpdpca_runtime.files import write_private
from dpdpca_runtime.text import load_text


@dataclass(frozen=True, slots=True)
class Change:
    """The policy file now, and as it would be."""

    before: str
    after: str

    @property
    def seen(self) -> str:
        """The digest of what a person saw of this change."""
        return sha256(f"{len(self.before)}\n{self.before}{self.after}".encode()).hexdigest()

    @property
    def is_empty(self) -> bool:
        return self.before == self.after

    def lines(self) -> Iterator[tuple[str, str]]:
        """The lines that differ: a sign and the line."""
        for line in ndiff(self.before.splitlines(), self.after.splitlines()):
            if line[:2] in ("+ ", "- "):
                yield line[0], line[2:]


def policy_text(office: Office) -> str:
    path = office.desk.home.policy_path
    return load_text(path) if path.exists() else DEFAULT_POLICY


def save_if_seen(office: Office, request: Request, form: Form, change: Change, back: str) -> Response | None:
    """Save the change if the form says so, and if the person saw exactly this change. Then lead `back`."""
    if field(form, "act") != "save" or field(form, "seen") != change.seen:
        return None
    write_private(office.desk.home.policy_path, change.after.encode())
    office.forget_inbox()
    office.wake()
    return go_to(request, f"{back}?saved")
