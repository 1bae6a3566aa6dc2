"""A data user's service that dies before and after every write of a chain and of its studies."""

from collections.abc import Callable
from typing import Any

import pytest
from user_world import UserWorld

from dpdpca_user_service.store.chains import ChainRow, ChainState, ChainStore
from dpdpca_user_service.store.studies import StudyStore


class Killed(BaseException):
    """The process is gone."""


def make_writes_lethal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write of a chain, of a new study and of its moves dies once before and once after itself."""
    died: set[tuple[str, ...]] = set()

    def deadly(owner: type, name: str, key: Callable[..., tuple[str, ...]]) -> None:
        real = getattr(owner, name)

        def lethal(store: Any, *given: Any, **named: Any) -> Any:
            where = (name, *key(*given, **named))
            if (*where, "before") not in died:
                died.add((*where, "before"))
                raise Killed
            real(store, *given, **named)
            if (*where, "after") not in died:
                died.add((*where, "after"))
                raise Killed

        monkeypatch.setattr(owner, name, lethal)

    deadly(ChainStore, "append", lambda chain, *rest: (str(len(chain.rounds)),))
    deadly(ChainStore, "end", lambda chain, state, *rest: (str(state),))
    deadly(StudyStore, "add", lambda row_id, title, release, *rest, **named: (row_id,))
    deadly(StudyStore, "move", lambda row, following, *rest, **named: (row.id, str(following)))


def finish_through_kills(
    user: UserWorld, turn: Callable[[str], ChainRow], chain_id: str
) -> tuple[ChainRow, int]:
    """The chain when it has ended, and how often the service was killed and opened again on the way."""
    kills = 0
    for _ in range(600):
        try:
            chain = turn(chain_id)
        except Killed:
            kills += 1
            user.reopen()
            continue
        if chain.state is not ChainState.RUNNING:
            return chain, kills
    raise AssertionError("the chain did not end")
