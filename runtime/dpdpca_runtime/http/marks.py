"""Remembers the highest generation that a proxy has signed for this party, and detects if it falls.

A proxy with a database from an older copy would draw noise a second time, or have shares that were withdrawn.
The proxy detects such a database with a file on its own machine. This module lets the other parties detect
such a database, too.
"""

import json
import threading
from collections.abc import Callable
from pathlib import Path

from dpdpca_protocol.errors import AuthenticationError, IntegrityError, NotFoundError
from dpdpca_protocol.messages.study_messages import StudyMark
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_runtime.files import private_dir, read_private, write_private

_NEXT_STEP = (
    "do not continue; ask the proxy's operator whether an older copy of its database was restored, and "
    "tell the other parties. Only after that, delete the entry of this proxy from this file"
)


class SeenMarks:
    """The file of marks, by the proxy's key.

    Args:
        path: created with the first mark.
        first_key: returns, for any key of a proxy, the raw Ed25519 key under which it was first met. So
            generations continue when the proxy rotates its keys.
    """

    def __init__(self, path: Path, first_key: Callable[[bytes], bytes] = lambda key: key) -> None:
        self._path = path
        self._first_key = first_key
        self._lock = threading.Lock()

    def known(self, proxy: bytes) -> tuple[int, str] | None:
        """The highest (generation, head) that this proxy has signed. Callers read this mark before the next
        request."""
        return self._read().get(self._first_key(proxy).hex())

    def check(
        self, proxy: bytes, study: StudyId, state: str, mark: bytes | None, known: tuple[int, str] | None
    ) -> None:
        """Compares a proxy's mark with the remembered one, and stores the higher one.

        Args:
            proxy: the raw Ed25519 key of the pinned proxy.
            study, state: the study and state that the mark must name.
            mark: the statement as received; None if there was none.
            known: the remembered mark, read before the request.

        Raises:
            AuthenticationError: `generation-fell`, `history-differs`, or the mark is missing or names another
                study or state than the answer with which it came.
        """
        if mark is None:
            if known is not None:
                raise self._alarm("generation-fell", "the proxy no longer states its generation")
            return
        said = StudyMark.parse(verify_statement("mark", mark, proxy))
        if (said.study, said.state) != (study, state):
            raise self._alarm(
                "history-differs", "the proxy has signed another state than the one in its answer"
            )
        if known is not None and said.generation < known[0]:
            raise self._alarm(
                "generation-fell",
                f"the proxy was at generation {known[0]}, but now states {said.generation}: an older copy "
                "of its database was restored",
            )
        if known is not None and said.generation == known[0] and said.head.hex() != known[1]:
            raise self._alarm(
                "history-differs",
                f"the proxy has signed two different histories up to generation {said.generation}",
            )
        if known is None or said.generation > known[0]:
            self._remember(proxy, said.generation, said.head)

    def _remember(self, proxy: bytes, generation: int, head: Digest) -> None:
        with self._lock:
            marks, name = self._read(), self._first_key(proxy).hex()
            if generation > marks.get(name, (0, ""))[0]:
                marks[name] = (generation, head.hex())
                private_dir(self._path.parent)
                write_private(self._path, json.dumps(marks, indent=1, sort_keys=True).encode() + b"\n")

    def _read(self) -> dict[str, tuple[int, str]]:
        try:
            marks = json.loads(read_private(self._path))
            return {str(proxy): (int(generation), str(head)) for proxy, (generation, head) in marks.items()}
        except NotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise IntegrityError(
                "state-corrupt",
                "the file of the proxies' generations is damaged",
                "restore the file from a backup",
                place=str(self._path),
            ) from error

    def _alarm(self, slug: str, what: str) -> AuthenticationError:
        return AuthenticationError(slug, what, _NEXT_STEP, place=str(self._path))
