# SPDX-License-Identifier: Apache-2.0
"""The files of a job's processes in `raw/`, where the job's user may write anything."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from nccl_inspector.agent.log_once import Inode
from nccl_inspector.agent.nccl_log_files import is_log
from nccl_inspector.agent.nvidia.file import vendor_gpu
from nccl_inspector.box.copy import BOX_BYTES_MAX, read_state
from nccl_inspector.box.layout import STATE_EXITED, STATE_FINALIZED, STATE_LIVE
from nccl_inspector.system.safe_files import is_locked, regular_file

# Room for 800 processes of four GPUs each: a box, and a file for each GPU.
ENTRIES_MAX = 4096

_STEM = r"(?P<stem>(?:x|[0-9]{1,10})_[0-9]{1,10}(?:\.[0-9]{1,6})?)"
_BOX = re.compile(rf"nccl_inspector_{_STEM}\.box")
_METRICS = re.compile(rf"nccl_inspector_metrics_[A-Za-z0-9-]{{1,64}}_{_STEM}\.prom")


class Life(Enum):
    """What the lock and the state word of a box tell about its process."""

    ALIVE = "alive"
    ENDED = "ended"  # it ended normally
    KILLED = "killed"
    STARTING = "starting"


@dataclass(frozen=True, slots=True)
class Listing:
    """The files with our names, sorted: (file, stem)."""

    boxes: tuple[tuple[str, str], ...]
    metrics: tuple[tuple[str, str], ...]
    vendor: tuple[str, ...]  # of NVIDIA's Inspector: one file for each GPU, without a process
    logs: tuple[str, ...]  # of NCCL itself
    overflow: bool  # there are more entries than ENTRIES_MAX; the rest was ignored


def box_name(stem: str) -> str:
    """Return the name of the box of a process."""
    return f"nccl_inspector_{stem}.box"


def list_raw(raw_fd: int) -> Listing:
    """Return our files among the first ENTRIES_MAX entries; other names are ignored."""
    boxes, metrics, vendor, logs, count = [], [], [], [], 0
    with os.scandir(raw_fd) as entries:
        for entry in entries:
            count += 1
            if count > ENTRIES_MAX:
                break
            if match := _BOX.fullmatch(entry.name):
                boxes.append((entry.name, match["stem"]))
            elif match := _METRICS.fullmatch(entry.name):
                metrics.append((entry.name, match["stem"]))
            elif vendor_gpu(entry.name):
                vendor.append(entry.name)
            elif is_log(entry.name):
                logs.append(entry.name)
    return Listing(
        tuple(sorted(boxes)),
        tuple(sorted(metrics)),
        tuple(sorted(vendor)),
        tuple(sorted(logs)),
        count > ENTRIES_MAX,
    )


def in_turns(files: Iterable[tuple[str, str]], most: int | None = None) -> list[tuple[str, str]]:
    """Return up to `most` files of a listing: the first of each process, then the second of each.

    So a process that makes many boxes, or names them to come first, hides no other process.
    """
    before: Counter[str] = Counter()
    order = []
    for name, stem in files:
        process = stem.partition(".")[0]
        order.append((before[process], name, stem))
        before[process] += 1
    return [(name, stem) for _, name, stem in sorted(order)[:most]]


def life_of(fd: int) -> Life:
    """Return whether the process of an open box lives."""
    locked, state = is_locked(fd), read_state(fd)
    if state in (STATE_FINALIZED, STATE_EXITED):
        return Life.ENDED
    if locked:
        return Life.ALIVE
    return Life.KILLED if state == STATE_LIVE else Life.STARTING


def life(raw_fd: int, stem: str, uid: int) -> tuple[Life, Inode]:
    """Return whether the process of a box lives, and the box's device and inode.

    Raises:
        RefusedError: there is no box of this user.
    """
    with regular_file(box_name(stem), uid, BOX_BYTES_MAX, raw_fd) as (fd, status):
        return life_of(fd), (status.st_dev, status.st_ino)
