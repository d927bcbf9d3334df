# SPDX-License-Identifier: Apache-2.0
"""Boxes of running processes, and looks at them."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nccl_inspector.live.nodeview import NodeView
from nccl_inspector.live.view import LiveJob, TroubleKind, View
from tests.support.boxes import (
    MS,
    TICK0,
    BoxOf,
    CommOf,
    KeyOf,
    box_bytes,
    lock_held,
    make_job,
    make_run_dir,
    write_box,
)

BEAT_TICK = TICK0 + 10**13


def beating(ago_s: float = 0.0) -> dict[str, int]:
    """Words of a box whose process beat so long ago."""
    return {"beat_real_ns": time.time_ns() - int(ago_s * 1e9), "beat_tick": BEAT_TICK}


def op(age_s: float, comm: int = 0, **words: int) -> dict[str, int]:
    """An AllReduce of 1 MB that was this old at the last beat."""
    tick = BEAT_TICK - int(age_s * 1e9)
    kind = 1 | 2 << 8 | 3 << 16
    return {"comm": comm, "kind": kind, "bytes": 1 << 20, "enqueue_tick": tick} | words


def world(rank: int) -> CommOf:
    """The communicator of two ranks on this node."""
    return CommOf(id=7, rank=rank, nranks=2, nnodes=1, name="world")


def put_word(path: Path, offset: int, value: int) -> None:
    """Change eight bytes of a box."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value.to_bytes(8, "little"))


def rank_box(
    rank: int,
    times_ms: Sequence[float] = (),
    operations: Sequence[dict[str, int]] = (),
    ago_s: float = 0.0,
    **header: int,
) -> BoxOf:
    """The box of a living rank with so many AllReduces of 1 MB behind it."""
    times = [int(ms * MS) for ms in times_ms]
    keys = [KeyOf(0, times)] if times else []
    words = beating(ago_s) | header
    return BoxOf([world(rank)], keys, operations, procid=rank, state=1, header=words)  # fmt: skip


def rewrite(path: Path, box: BoxOf) -> None:
    """Change a box in place, as its process does: the inode and the lock stay."""
    with path.open("r+b") as file:
        file.write(box_bytes(box))


class Node:
    """A run directory with jobs whose processes live."""

    def __init__(self, path: Path, alive: ExitStack) -> None:
        self.run_dir = make_run_dir(path / "run")
        self._alive = alive

    def job(self, number: int = 42, **manifest: object) -> Path:
        """A job's raw directory."""
        return make_job(self.run_dir / "jobs" / str(number), number, **manifest)

    def start(self, raw: Path, stem: str, box: BoxOf) -> Path:
        """A process that lives: its box."""
        path = write_box(raw, stem, box)
        self._alive.enter_context(lock_held(path))
        return path

    def view(self, wanted: int | None = None) -> NodeView:
        return NodeView(self.run_dir, wanted)

    def look(self) -> View:
        """One look, without rates."""
        return self.view().look()


@contextmanager
def running(path: Path) -> Iterator[Node]:
    """A node whose processes end with the block."""
    with ExitStack() as alive:
        yield Node(path, alive)


def only(view: View) -> LiveJob:
    """The one job of a view."""
    (job,) = view.jobs
    return job


def kinds(job: LiveJob) -> list[TroubleKind]:
    return [trouble.kind for trouble in job.troubles]


def words(job: LiveJob) -> str:
    return "\n".join(trouble.words for trouble in job.troubles)


def give_link(path: Path, target: Path) -> None:
    """A symbolic link of the user's."""
    path.symlink_to(target)
    if os.geteuid() == 0:
        os.lchown(path, 65534, -1)
