"""Calls that are under way while their results are used, a bounded number at a time and in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")


def prefetch_results(executor: Executor | None, window: int, calls: Iterable[Callable[[], T]]) -> Iterator[T]:
    """The results of `calls` in their order.

    Args:
        executor: where they run; None runs each when its result is asked for.
        window: calls that are under way or waiting to be taken; arguments and results of no more are held.
        calls: for processes, `functools.partial` of top-level functions.

    Raises:
        Exception: what the first call that failed has raised; the others are cancelled.
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
