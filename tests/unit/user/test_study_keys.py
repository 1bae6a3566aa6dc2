"""The stock of one key, and what is said while a key is searched for."""

import threading
from collections.abc import Callable

import pytest
from proxy_world import wait_for

from dpdpca_protocol.errors import UnavailableError
from dpdpca_protocol.paillier.keys import KeyRules, KeySearch
from dpdpca_user.commands.study import _progress_text
from dpdpca_user_service.study_keys import SearchFacts, StudyKeys
from dpdpca_user_service.work import MadeKey, make_key

Progress = Callable[[KeySearch], None]


def toy_key(progress: Progress) -> MadeKey:
    return make_key(128, bytes(32), KeyRules(128), progress=progress)


def test_no_key_is_given_twice_and_the_one_made_ahead_comes_first() -> None:
    made: list[MadeKey] = []

    def make(progress: Progress) -> MadeKey:
        made.append(toy_key(progress))
        return made[-1]

    keys = StudyKeys(make)
    assert not keys.has_one_ahead
    for _ in range(2):
        keys.make_ahead()
        assert keys.has_one_ahead
    assert len(made) == 1
    taken = [keys.take("a"), keys.take("b"), keys.take("a")]
    assert taken == made
    assert len({key.secret for key in taken}) == 3
    assert not keys.has_one_ahead


def test_a_study_waits_for_the_key_that_is_being_made_ahead() -> None:
    go_on, made = threading.Event(), []

    def make(progress: Progress) -> MadeKey:
        made.append(toy_key(progress))
        assert go_on.wait(60)
        return made[-1]

    keys, taken = StudyKeys(make), []
    threads = [threading.Thread(target=keys.make_ahead)]
    threads[0].start()
    wait_for(lambda: bool(made))
    threads.append(threading.Thread(target=lambda: taken.append(keys.take("a"))))
    threads[1].start()
    wait_for(lambda: keys.search_for("a") is not None)
    assert keys.search_for("b") is None
    go_on.set()
    for thread in threads:
        thread.join()
    assert taken == made
    assert len(made) == 1
    assert keys.search_for("a") is None


def test_the_search_is_told_while_it_lasts_and_only_to_its_study() -> None:
    told: list[SearchFacts | None] = []

    def make(progress: Progress) -> MadeKey:
        for search in (KeySearch(0, 0, 600), KeySearch(0, 1200, 600), KeySearch(1, 1500, 300)):
            progress(search)
            told.append(keys.search_for("a"))
            assert keys.search_for("b") is None
        return toy_key(lambda _search: None)

    keys = StudyKeys(make)
    keys.take("a")
    assert keys.search_for("a") is None
    first, second, third = (search for search in told if search is not None)
    assert first == SearchFacts(0, 0, 600, None)
    assert (second.primes, second.tested, second.expected) == (0, 1200, 600)
    assert (third.primes, third.tested, third.expected) == (1, 1500, 300)
    assert second.seconds is not None
    assert second.seconds >= 0


def test_after_a_worker_has_died_the_next_call_makes_a_key() -> None:
    def make(progress: Progress) -> MadeKey:
        progress(KeySearch(0, 64, 600))
        if died:
            raise died.pop()
        return toy_key(progress)

    keys, died = (
        StudyKeys(make),
        [UnavailableError("worker-died", "gone"), UnavailableError("worker-died", "")],
    )
    for act in (keys.make_ahead, lambda: keys.take("a")):
        with pytest.raises(UnavailableError):
            act()
        assert keys.search_for("a") is None
        assert not keys.has_one_ahead
    assert keys.take("a").secret


def test_the_command_says_what_is_expected_and_shows_no_percentage() -> None:
    search = {"primes": 1, "tested": 4000, "expected": 930, "seconds": 0.234}
    steps = {"phase": "key", "done": 1, "total": 2}
    assert _progress_text({"progress": steps, "key_search": search}) == (
        "key: 1 of 2 primes found, 4000 candidates tested; 930 more are expected (about 0.2 s), "
        "however long the search has lasted"
    )
    at_first = _progress_text({"progress": steps, "key_search": search | {"seconds": None}})
    assert "930 more are expected, however" in at_first
    assert _progress_text({"progress": None, "key_search": None}) == "–"
    assert _progress_text({"progress": {"phase": "release", "done": 3, "total": 9}}) == "release 3/9"
