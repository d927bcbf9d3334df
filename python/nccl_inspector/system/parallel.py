# SPDX-License-Identifier: Apache-2.0
"""Run many small operations on slow storage at once, in threads; the results come in order.

Threads only shorten waiting; they do not speed up computing. If the first operations hardly wait
(files in the page cache), the others run one by one: 16 threads that compete with a busy caller for
the interpreter's lock cost it a fifth of its time.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain, islice
from typing import Any, TypeVar

THREADS = 16
WAIT_S = 0.0002  # of one operation: a request to a server takes at least this long
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def _timed(work: Callable[[_Item], _Found], item: _Item) -> tuple[_Found, float]:
    """Return `work(item)` and the seconds it waited, which is wall time less processor time."""
    begin_s, used_s = time.perf_counter(), time.thread_time()
    found = work(item)
    return found, time.perf_counter() - begin_s - (time.thread_time() - used_s)


def _submit(pool: ThreadPoolExecutor, work: Callable[..., _Found], *words: Any) -> Future[_Found]:
    """Give work to the pool; if the system has no thread left, do it here.

    A thread that the pool has may then do it, too: only for work that changes nothing.
    """
    try:
        return pool.submit(work, *words)
    except RuntimeError:
        done: Future[_Found] = Future()
        try:
            done.set_result(work(*words))
        except Exception as err:
            done.set_exception(err)
        return done


def _together(
    work: Callable[[_Item], _Found], items: Iterator[_Item], threads: int, pool: ThreadPoolExecutor
) -> Iterator[_Found]:
    begun: deque[Future[_Found]] = deque()
    for item in items:
        begun.append(_submit(pool, work, item))
        if len(begun) >= threads:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def in_parallel(
    work: Callable[[_Item], _Found], items: Sequence[_Item], threads: int = THREADS
) -> Iterator[_Found]:
    """Yield `work(item)` for each item in order, running up to `threads` of them at the same time.

    `work` must change nothing. At most `threads` results are kept until the caller takes them. An
    error of `work` is raised when the caller comes to that item.
    """
    if len(items) < 2:
        yield from map(work, items)
        return
    rest = iter(items)
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        first = [_submit(pool, _timed, work, item) for item in islice(rest, threads)]
        wait(first)
        # The minimum, because the threads also wait for each other.
        least_s = min((one.result()[1] for one in first if not one.exception()), default=0.0)
        while first:
            yield first.pop(0).result()[0]
        count, waited_s = threads, threads * least_s
        for item in rest:
            if waited_s > WAIT_S * count:
                yield from _together(work, chain((item,), rest), threads, pool)
                return
            found, more_s = _timed(work, item)
            yield found
            count, waited_s = count + 1, waited_s + more_s
