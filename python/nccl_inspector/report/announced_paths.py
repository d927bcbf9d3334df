# SPDX-License-Identifier: Apache-2.0
"""Announce a user's path before it is opened, to whoever waits for this process.

A user's path can lead to a file system that never answers. The process that opens it then cannot be
ended, and could no longer tell what it was about to do.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path

from nccl_inspector.errors import InspectorError


class AvoidedError(InspectorError):
    """The path is not opened now; the text says why."""


# From uid and path to a context in which the path is open.
Visit = Callable[[int, Path], AbstractContextManager[None]]


@contextmanager
def _unseen(_uid: int, _path: Path) -> Iterator[None]:
    yield


# Gets uid, path, and the pid of the process that hangs.
Hung = Callable[[int, Path, int], None]


def _unheard(_uid: int, _path: Path, _pid: int) -> None:
    pass


# By default nothing is announced, for example in a command that the user runs.
_visit: ContextVar[Visit] = ContextVar("visit", default=_unseen)
_hung: ContextVar[Hung] = ContextVar("hung", default=_unheard)
_current: ContextVar[tuple[int, Path] | None] = ContextVar("current", default=None)


def tell(visit: Visit, hung: Hung = _unheard) -> None:
    """Call `visit` and `hung` from now on."""
    _visit.set(visit)
    _hung.set(hung)


def hangs(pid: int) -> None:
    """Report that a process of ours hangs on the path that is open now."""
    if (current := _current.get()) is not None:
        _hung.get()(*current, pid)


@contextmanager
def visiting(uid: int, path: Path) -> Iterator[None]:
    """Open and read a path that the user `uid` chose within this block.

    Raises:
        AvoidedError: before the block, if the path must not be opened now.
    """
    with _visit.get()(uid, path):
        token = _current.set((uid, path))
        try:
            yield
        finally:
            _current.reset(token)
