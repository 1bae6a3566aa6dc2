"""Paillier keys for studies: made one at a time, and one ahead while the service is idle.

The key made ahead is kept in memory only, so a restart or a restored backup never brings back a used key.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dpdpca_protocol.paillier.keys import KeySearch
from dpdpca_user_service.work import MadeKey

Making = Callable[[Callable[[KeySearch], None]], MadeKey]


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """The search for a key.

    Attributes:
        primes: how many of the two primes are found.
        tested: the candidates tested so far.
        expected: the mean number of candidates that are still to be tested, however many were tested.
        seconds: how long `expected` candidates take at the speed so far; None at the start.
    """

    primes: int
    tested: int
    expected: int
    seconds: float | None


class StudyKeys:
    """Makes keys and keeps one ahead. Several threads may call at once.

    Args:
        make: makes a key, which takes a second, and tells how the search goes.
    """

    def __init__(self, make: Making) -> None:
        self._make = make
        self._making = threading.Lock()
        self._ahead: MadeKey | None = None
        self._begun = 0.0
        self._search: SearchFacts | None = None
        self._waiting: set[str] = set()

    @property
    def has_one_ahead(self) -> bool:
        return self._ahead is not None

    def make_ahead(self) -> None:
        """Makes the key for a later study, unless there is one.

        Raises:
            DpdpcaError: the worker died, or the service is stopping.
        """
        with self._making:
            if self._ahead is None:
                self._ahead = self._search_key()

    def take(self, draft: str) -> MadeKey:
        """A key that no other study has: the one made ahead, or a new one. Raises like `make_ahead`.

        Args:
            draft: the id of the draft that waits, for `search_for`.
        """
        self._waiting.add(draft)
        try:
            with self._making:
                key, self._ahead = self._ahead, None
                return key or self._search_key()
        finally:
            self._waiting.discard(draft)

    def search_for(self, draft: str) -> SearchFacts | None:
        """The search that a draft waits for, or None."""
        return self._search if draft in self._waiting else None

    def _search_key(self) -> MadeKey:
        self._begun = time.monotonic()
        try:
            return self._make(self._note)
        finally:
            self._search = None

    def _note(self, told: KeySearch) -> None:
        elapsed = time.monotonic() - self._begun
        seconds = told.expected * elapsed / told.tested if told.tested else None
        self._search = SearchFacts(told.primes, told.tested, told.expected, seconds)
