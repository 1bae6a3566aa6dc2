"""All errors that this system raises on purpose.

The class of an error says whose fault it is, and its `slug` says which error it is. The text of an error has
three parts: what is wrong, with which value, and what to do next. The HTTP edge turns class and slug into a
problem document and back, so that all roles use the same errors. An error must never contain a secret or
repeat rejected input.
"""

from typing import ClassVar


class DpdpcaError(Exception):
    """Base class of all errors; it is never raised itself.

    Args:
        slug: stable name of this kind of error; the last part of the problem `type`.
        problem: what is wrong, with which value.
        next_step: what the reader should do about it; may be empty.
        retry_after_seconds: for temporary conditions: when to try again.
        place: the file or folder on this machine that the error is about. Only this machine
            shows the place. A peer sees neither the place nor the next step, which may name the place.
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
        """The next step to take, in words that a peer may read."""
        return "ask the operator of this service to look into this error" if self.place else self.next_step

    @property
    def public_text(self) -> str:
        """The text of the error that a peer may read."""
        return f"{self.problem}; {self.public_advice}" if self.public_advice else self.problem


class UsageError(DpdpcaError):
    """A mistake of the caller in this process: a wrong order, a wrong shape or a wrong option."""


class MessageError(DpdpcaError):
    """A peer sent bytes that are not a valid message."""

    status = 400


class AuthenticationError(DpdpcaError):
    """A peer is not who it claims to be."""

    status = 401


class NotAllowedError(DpdpcaError):
    """A known peer may not do this."""

    status = 403


class NotFoundError(DpdpcaError):
    """Nothing of this name exists here, or this caller may not see it."""

    status = 404


class ConflictError(DpdpcaError):
    """A valid request that cannot be carried out now, or cannot be repeated."""

    status = 409


class CryptographicError(DpdpcaError):
    """A cryptographic check failed."""

    status = 422


class PolicyError(DpdpcaError):
    """A rule of this system or of this party forbids it."""

    status = 403


class InputError(DpdpcaError):
    """The records of an owner or an application do not match the manifest."""

    status = 422


class LimitError(DpdpcaError):
    """Something is too large, too numerous or too slow."""

    status = 413


class UnavailableError(DpdpcaError):
    """A temporary condition on our side: try again later."""

    status = 503


class IntegrityError(DpdpcaError):
    """A permanent condition on our side: stored state contradicts itself, and an operator must act."""

    status = 500


def printable(untrusted: str, limit: int = 500) -> str:
    """Returns `untrusted` for messages: one line of at most `limit` characters, without terminal control
    codes."""
    line = "".join(letter if letter.isprintable() else " " for letter in untrusted[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"
