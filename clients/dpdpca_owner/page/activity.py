"""What the agent does, for the page: its messages, and the progress of each share."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from dpdpca_owner.upload import Watcher
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import StudyId

_MOST_MESSAGES = 100


@dataclass(frozen=True, slots=True)
class Message:
    """Something that the agent said."""

    at: datetime
    text: str


@dataclass(slots=True)
class Progress:
    """How far a share is: the hidden numbers that were made, of all of them, and the bytes that were sent."""

    total: int
    made: int = 0
    sent_bytes: int = 0


@dataclass
class Activity:
    """Receives what the agent says and does. The agent writes in its thread, and the page reads in others.

    Attributes:
        now: the clock.
        say: shows a message elsewhere too, such as in the terminal.
    """

    now: Callable[[], datetime]
    say: Callable[[str], None] = lambda text: None
    _messages: deque[Message] = field(default_factory=lambda: deque(maxlen=_MOST_MESSAGES))
    _progress: dict[StudyId, Progress] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, text: str) -> None:
        with self._lock:
            self._messages.appendleft(Message(self.now(), text))
        self.say(text)

    def messages(self) -> list[Message]:
        """The newest first."""
        with self._lock:
            return list(self._messages)

    def watching(self, manifest: Manifest) -> Watcher:
        """A receiver of the progress of one share; see `Agent.watching`."""
        figures = manifest.figures
        progress = Progress(figures.ciphertext_count or figures.value_count)
        with self._lock:
            self._progress[manifest.study_id] = progress

        def on_encrypted(count: int) -> None:
            progress.made = min(progress.made + count, progress.total)

        def on_sent(sent_bytes: int) -> None:
            progress.sent_bytes += sent_bytes

        return Watcher(on_encrypted, on_sent)

    def progress(self, study: StudyId) -> Progress | None:
        with self._lock:
            return self._progress.get(study)
