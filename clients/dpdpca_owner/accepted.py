"""Which software of a proxy an owner accepts: what its policy, and its folder of carried requests, list."""

from collections.abc import Collection
from typing import Final

from dpdpca_protocol.messages.software import Software

REMEDY: Final = (
    "ask the proxy's operator for the wheel or image, review it, and list its digest under `software` in"
    " policy.toml; or wait until the proxy runs software that is listed. --yes does not override the policy"
)
"""What an owner can do about software that it does not accept."""


def is_accepted(software: Software | None, accepted: Collection[str]) -> bool:
    """Whether a proxy's software is accepted.

    Args:
        software: what the proxy has signed; None if it has signed nothing about it.
        accepted: digests; if empty, any software is accepted.
    """
    return not accepted or (software is not None and software.digest in accepted)


def software_text(software: Software | None, accepted: Collection[str], what: str = "the proxy runs") -> str:
    """The software and the accepted digests, in words. `what` begins the sentence."""
    named = "software that it does not name" if software is None else str(software)
    return f"{what} {named} (accepted: {', '.join(accepted) or 'any'})"
