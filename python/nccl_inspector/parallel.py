# SPDX-License-Identifier: Apache-2.0
"""Many small operations on slow storage at once: in threads, their results in order.

For the waiting alone: what takes processor time is no faster in threads.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

THREADS = 16
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def in_parallel(
    work: Callable[[_Item], _Found], items: Sequence[_Item], threads: int = THREADS
) -> Iterator[_Found]:
    """Yield `work(item)` for each item in order, while up to `threads` of them are at work.

    No more than `threads` results wait to be taken. What `work` raises is raised in its turn.
    """
    if len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        begun: deque[Future[_Found]] = deque()
        for item in items:
            begun.append(pool.submit(work, item))
            if len(begun) >= threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
