"""What keeps calls to a cluster and their results on their way."""

from abc import abstractmethod
from typing import Protocol


class Carrier(Protocol):
    """Keeps calls and results on their way. A carrier is picklable, and only opened by workers."""

    @abstractmethod
    def put(self, content: bytes) -> bytes:
        """Keeps `content`, and returns a ticket. Every call has a ticket of its own."""

    @abstractmethod
    def get(self, ticket: bytes) -> bytes:
        """What was kept under this ticket."""

    @abstractmethod
    def close(self) -> None:
        """Deletes everything that was kept."""


class InMessage(Carrier):
    """Carries content in the message itself: the ticket is the content."""

    def put(self, content: bytes) -> bytes:
        return content

    def get(self, ticket: bytes) -> bytes:
        return ticket

    def close(self) -> None:
        """There is nothing to delete."""
