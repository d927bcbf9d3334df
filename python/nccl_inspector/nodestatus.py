# SPDX-License-Identifier: Apache-2.0
"""What `nccl-inspector status` says of a node, as far as the caller's permissions go."""

import os
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nccl_inspector.endedjob import parse_ended
from nccl_inspector.killswitch import Disabled, read_switch

EXIT_DISABLED, EXIT_NOT_WELL = 3, 4

_JOB = re.compile(r"[1-9][0-9]{0,17}")
_LOCK = re.compile(r"[0-9]+: FLOCK +\S+ +WRITE +(-?[0-9]+) ([0-9a-f]+):([0-9a-f]+):([0-9]+) .*")
_NO_AGENT = "no agent runs"
_UNSEEN = "cannot be seen by you"


@dataclass(frozen=True, slots=True)
class Fill:
    """Bytes and inodes of the file system of the run directory; it may be a larger one's."""

    used_bytes: int
    size_bytes: int
    used_inodes: int
    inodes: int
    own: bool


@dataclass(frozen=True, slots=True)
class Status:
    """A node; None means not seen, for want of permission or of the thing itself."""

    run_dir: Path
    switch_seen: bool
    disabled: Disabled | None
    fill: Fill | None  # None: there is no run directory
    agent_pid: int | None  # 0: it lives in another pid namespace
    jobs: int | None
    ended: int | None
    published: int | None
    newest_age_s: float | None
    trouble: str

    @property
    def exit_code(self) -> int:
        """Return 0, EXIT_DISABLED or EXIT_NOT_WELL."""
        if self.trouble:
            return EXIT_NOT_WELL
        return EXIT_DISABLED if self.disabled else 0


def find_flock(locks: str, device: int, inode: int) -> int | None:
    """Return who holds an exclusive flock, from the text of /proc/locks; None: nobody.

    Looking there does what trying the lock would not: it cannot keep an agent
    out that starts in this moment.
    """
    wanted = os.major(device), os.minor(device), inode
    for match in filter(None, map(_LOCK.fullmatch, locks.splitlines())):
        if (int(match[2], 16), int(match[3], 16), int(match[4])) == wanted:
            return max(0, int(match[1]))
    return None


def _count(path: Path, mark: re.Pattern[str]) -> int | None:
    try:
        return sum(1 for entry in path.iterdir() if mark.fullmatch(entry.name))
    except OSError:
        return None


def _ended(path: Path) -> int | None:
    try:
        return sum(1 for entry in path.iterdir() if parse_ended(entry.name))
    except OSError:
        return None


def _published(path: Path) -> tuple[int | None, float | None]:
    """Return how many files are published, and the age of the newest."""
    try:
        with os.scandir(path) as entries:
            times = [
                entry.stat(follow_symlinks=False).st_mtime
                for entry in entries
                if entry.name.endswith(".prom")
            ]
    except OSError:  # also one that went meanwhile: the next look is right
        return None, None
    return len(times), max(0.0, time.time() - max(times)) if times else None


def _agent(run_dir: Path) -> int | None:
    status = (run_dir / "jobs").stat()
    return find_flock(Path("/proc/locks").read_text("ascii"), status.st_dev, status.st_ino)


def _fill(run_dir: Path) -> Fill:
    whole = os.statvfs(run_dir)
    return Fill(
        (whole.f_blocks - whole.f_bfree) * whole.f_frsize,
        whole.f_blocks * whole.f_frsize,
        whole.f_files - whole.f_ffree,
        whole.f_files,
        run_dir.is_mount(),
    )


def read_status(run_dir: Path) -> Status:
    """Return how the node fares. What is missing or hidden is said, never raised."""
    switch_seen, disabled, fill, agent_pid, trouble = False, None, None, None, ""
    try:
        fill = _fill(run_dir)
        disabled = read_switch(run_dir)
        switch_seen = True
        agent_pid = _agent(run_dir)
        trouble = "" if agent_pid is not None else _NO_AGENT
    except OSError as err:
        trouble = f"{err.filename}: {err.strerror}"
    published, newest_age_s = _published(run_dir / "prom")
    return Status(
        run_dir,
        switch_seen,
        disabled,
        fill,
        agent_pid,
        _count(run_dir / "jobs", _JOB),
        _ended(run_dir / "ended"),
        published,
        newest_age_s,
        trouble,
    )


def describe(disabled: Disabled | None) -> str:
    """Return one line without its end."""
    if disabled is None:
        return "enabled"
    since = "at an unknown time"
    if disabled.since:
        since = f"since {datetime.fromtimestamp(disabled.since, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"disabled {since}" + (f": {disabled.reason}" if disabled.reason else "")


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _fill_words(fill: Fill | None) -> str:
    if fill is None:
        return "not there"
    words = (
        f"{_size(fill.used_bytes)} of {_size(fill.size_bytes)}, "
        f"{fill.used_inodes} of {fill.inodes} inodes"
    )
    return words if fill.own else words + " (not a file system of its own)"


def _agent_words(status: Status) -> str:
    if status.agent_pid is None:
        return "not running" if status.trouble == _NO_AGENT else "not known"
    return f"running, pid {status.agent_pid}" if status.agent_pid else "running"


def _seen(count: int | None) -> str:
    return _UNSEEN if count is None else str(count)


def render_status(status: Status) -> str:
    """Return the table, a line for each fact."""
    published = _seen(status.published)
    if status.newest_age_s is not None:
        published += f", the newest {status.newest_age_s:.1f} s old"
    rows = [
        ("node", describe(status.disabled) if status.switch_seen else "not known"),
        ("run directory", f"{status.run_dir}: {_fill_words(status.fill)}"),
        ("agent", _agent_words(status)),
    ]
    if status.fill:
        rows += [
            ("jobs", _seen(status.jobs)),
            ("ended jobs waiting", _seen(status.ended)),
            ("published files", published),
        ]
    if status.trouble:
        rows.append(("not well", status.trouble))
    return "".join(f"{name:<20}{words}\n" for name, words in rows)
