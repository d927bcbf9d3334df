# SPDX-License-Identifier: Apache-2.0
"""Say before a user's path is opened which one it is, to whoever waits for this process.

A path of a user can lead to a file system that never answers. The process that opens it can then
not be ended, and nobody could learn from it what it was about to do.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path

from nccl_inspector.errors import InspectorError


class AvoidedError(InspectorError):
    """The path is not opened now; the text says why."""


# A user's number and the path to the time in which it is open.
Visit = Callable[[int, Path], AbstractContextManager[None]]


@contextmanager
def _unseen(_uid: int, _path: Path) -> Iterator[None]:
    yield


# A user's number, the path, and the process that hangs on it.
Hung = Callable[[int, Path, int], None]


def _unheard(_uid: int, _path: Path, _pid: int) -> None:
    pass


# Where nobody waits, as in a command of the user's own, nothing is said.
_visit: ContextVar[Visit] = ContextVar("visit", default=_unseen)
_hung: ContextVar[Hung] = ContextVar("hung", default=_unheard)
_current: ContextVar[tuple[int, Path] | None] = ContextVar("current", default=None)


def tell(visit: Visit, hung: Hung = _unheard) -> None:
    """Let `visit` and `hung` be told from now on."""
    _visit.set(visit)
    _hung.set(hung)


def hangs(pid: int) -> None:
    """Say that a process of ours hangs on the path that is being visited."""
    if (current := _current.get()) is not None:
        _hung.get()(*current, pid)


@contextmanager
def visiting(uid: int, path: Path) -> Iterator[None]:
    """Open and read a path that the user `uid` chose within this block.

    Raises:
        AvoidedError: before the block, if it is not to be opened now.
    """
    with _visit.get()(uid, path):
        token = _current.set((uid, path))
        try:
            yield
        finally:
            _current.reset(token)
