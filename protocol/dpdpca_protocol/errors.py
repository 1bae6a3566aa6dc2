"""Every error that this system raises on purpose, on one screen.

An error says whose fault it is by its class and which one it is by its `slug`; the text has three parts:
what is wrong, with which value, and what to do next. The edge turns slug and class into a problem document
and back, so that all roles share one taxonomy. Nothing here may carry a secret or an echo of rejected input.
"""

from typing import ClassVar


class DpdpcaError(Exception):
    """Base of the taxonomy; never raised itself.

    Args:
        slug: stable name of this kind of error; the last part of the problem `type`.
        problem: what is wrong, with which value.
        next_step: what the reader should do about it; may be empty.
        retry_after_seconds: for passing conditions, when another try makes sense.
        place: the file or folder of this machine that it is about. Shown on this machine only: a peer learns
            neither the place nor the next step, which may name it.
    """

    status: ClassVar[int] = 500

    def __init__(
        self,
        slug: str,
        problem: str,
        next_step: str = "",
        *,
        retry_after_seconds: int | None = None,
        place: str | None = None,
    ) -> None:
        if type(self) is DpdpcaError:
            raise TypeError("DpdpcaError is abstract: raise one of its subclasses")
        super().__init__(slug, problem, next_step)
        self.slug = slug
        self.problem = problem
        self.next_step = next_step
        self.retry_after_seconds = retry_after_seconds
        self.place = place

    def __str__(self) -> str:
        place = f" ({self.place})" if self.place else ""
        return f"{self.problem}{place}; {self.next_step}" if self.next_step else f"{self.problem}{place}"

    @property
    def public_advice(self) -> str:
        """The next step for a peer."""
        return "the operator of this service must look at it" if self.place else self.next_step

    @property
    def public_text(self) -> str:
        """As the error itself, for a peer."""
        return f"{self.problem}; {self.public_advice}" if self.public_advice else self.problem


class UsageError(DpdpcaError):
    """The caller in this process: wrong order, wrong shape, wrong option."""


class MessageError(DpdpcaError):
    """A peer sent bytes that are not a valid message."""

    status = 400


class AuthenticationError(DpdpcaError):
    """A peer is not who it says."""

    status = 401


class NotAllowedError(DpdpcaError):
    """A known peer is not entitled to this."""

    status = 403


class NotFoundError(DpdpcaError):
    """There is no such thing here, or not for this caller."""

    status = 404


class ConflictError(DpdpcaError):
    """Valid, but not now or not again."""

    status = 409


class CryptographicError(DpdpcaError):
    """The mathematics does not hold."""

    status = 422


class PolicyError(DpdpcaError):
    """One of our own rules says no."""

    status = 403


class InputError(DpdpcaError):
    """An owner's or application's records do not fit what the manifest says."""

    status = 422


class LimitError(DpdpcaError):
    """Too large, too many, too slow."""

    status = 413


class UnavailableError(DpdpcaError):
    """Us, passing: try again later."""

    status = 503


class IntegrityError(DpdpcaError):
    """Us, not passing: stored state contradicts itself, an operator is needed."""

    status = 500


def printable(untrusted: str, limit: int = 500) -> str:
    """`untrusted` as one line that no terminal acts upon, at most `limit` characters; for messages."""
    line = "".join(letter if letter.isprintable() else " " for letter in untrusted[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"
