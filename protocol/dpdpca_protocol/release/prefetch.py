"""Runs calls in order, before their results are needed, but only a bounded number ahead."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")


class Shared:
    """A value that many calls have in common. An executor beyond this machine may carry it only once."""

    __slots__ = ()


def prefetch_results(executor: Executor | None, window: int, calls: Iterable[Callable[[], T]]) -> Iterator[T]:
    """The results of `calls`, in order.

    Args:
        executor: where the calls run. If None, each call runs in this thread, when its result is needed.
        window: the most calls that are running or have results that were not used yet. This limit bounds the
            arguments and results in memory.
        calls: for processes, `functools.partial` of top-level functions.

    Raises:
        Exception: the exception of the first call that failed; the other calls are cancelled.
    """
    if executor is None:
        yield from (call() for call in calls)
        return
    begun: deque[Future[T]] = deque()
    try:
        for call in calls:
            begun.append(executor.submit(call))
            if len(begun) >= window:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()
