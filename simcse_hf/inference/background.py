"""Take the items of an iterable ahead in a background thread, while the caller works on the items before."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
_END: Any = object()


@contextmanager
def prefetched(items: Iterable[T], ahead: int = 1) -> Iterator[Iterator[T]]:
    """Yield an iterator over items that a background thread produces, at most `ahead` of them before they are needed.

    Their order stays. An error of `items` is raised where its item would have been. When the block ends, also by an
    error or an interrupt, the thread finishes the item that it is at, `items` is closed if it is a generator, and
    the thread ends.

        with prefetched(map(tokenize, windows)) as tokenized:
            for window in tokenized:  # the next one is tokenized meanwhile
                compute(window)

    A thread and not a process, because the work that is worth it here (tokenizing, reading, copying) releases the
    interpreter's lock most of the time, and its results are shared without a copy.

    Args:
        items (`Iterable`): What to produce. Only the background thread iterates over it.
        ahead (`int`, *optional*, defaults to `1`): The most items that wait for the caller. With 0 there is no thread.

    Yields:
        `Iterator`: The items.
    """
    iterator = iter(items)
    if not ahead:
        yield iterator
        return
    with ThreadPoolExecutor(1, thread_name_prefix="simcse-prefetch") as thread:
        waiting: deque[Future[T]] = deque(thread.submit(next, iterator, _END) for _ in range(ahead))

        def take() -> Iterator[T]:
            while True:
                item = waiting[0].result()
                if item is _END:
                    return
                waiting.popleft()
                waiting.append(thread.submit(next, iterator, _END))
                yield item

        try:
            yield take()
        finally:
            thread.shutdown(cancel_futures=True)
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
