# SPDX-License-Identifier: Apache-2.0
"""What `nccl-inspector status` says about a node, as far as the caller's permissions allow."""

import os
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nccl_inspector.agent.ended_job import parse_ended
from nccl_inspector.agent.kill_switch import Disabled, read_switch
from nccl_inspector.agent.last_collection import collection_age_s
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.settings.in_force import note_below, running_note

EXIT_DISABLED, EXIT_NOT_WELL = 3, 4
# Twice the longest time between two collections by the timer if there is hardly anything to do.
COLLECTED_S = 900.0
# The agent's own file is renewed each interval; a pass may take a while.
RENEWED_S, RENEWED_INTERVALS = 30.0, 6
FILL_MAX = 0.95

_LOCK = re.compile(r"[0-9]+: FLOCK +\S+ +WRITE +(-?[0-9]+) ([0-9a-f]+):([0-9a-f]+):([0-9]+) .*")
# The first pid namespace; in another one, /proc/locks hides the locks of processes outside.
_FIRST_PID_NS = "pid:[4026531836]"
_OWN_PID_NS = Path("/proc/self/ns/pid")
_NO_AGENT = "no agent runs"
_UNSEEN = "cannot be seen by you"


@dataclass(frozen=True, slots=True)
class Fill:
    """Used and total bytes and inodes of the run directory's file system.

    `own` is False if that file system is a larger one that is not only for the run directory.
    """

    used_bytes: int
    size_bytes: int
    used_inodes: int
    inodes: int
    own: bool
    of: str  # which directory it is about

    @property
    def trouble(self) -> str:
        """What is nearly used up, as text; empty: nothing. Some file systems count no inodes."""
        for what, used, size in (
            ("bytes", self.used_bytes, self.size_bytes),
            ("inodes", self.used_inodes, self.inodes),
        ):
            if used > FILL_MAX * size > 0:
                return f"{used / size:.0%} of {self.of}'s {what} are in use"
        return ""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node; None means not known, for lack of permission or because it does not exist."""

    run_dir: Path
    switch_seen: bool
    disabled: Disabled | None
    fill: Fill | None  # None: there is no run directory
    agent_pid: int | None  # 0: it runs in another pid namespace
    collected_age_s: float | None  # since the last collection without an agent
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
    """Return the pid that holds an exclusive flock, from /proc/locks; None: nobody that we can see.

    Trying the lock instead could keep out an agent that starts at this moment.
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
    """Return the number of published files, and the age of the newest in seconds."""
    try:
        with os.scandir(path) as entries:
            times = [
                entry.stat(follow_symlinks=False).st_mtime
                for entry in entries
                if entry.name.endswith(".prom")
            ]
    except OSError:  # also if a file was removed meanwhile; the next call is right
        return None, None
    return len(times), max(0.0, time.time() - max(times)) if times else None


def _agent(run_dir: Path, is_fresh: bool) -> int | None:
    """Return the agent's pid, None without one; 0 if only the file that it renews shows it."""
    status = (run_dir / "jobs").stat()
    pid = find_flock(Path("/proc/locks").read_text("ascii"), status.st_dev, status.st_ino)
    if pid is None and is_fresh and str(_OWN_PID_NS.readlink()) != _FIRST_PID_NS:
        return 0
    return pid


def _is_fresh(run_dir: Path, agent_interval_s: float) -> bool:
    """Tell whether the agent's own file exists and was renewed recently.

    If the caller may not look (setting `prom_group`), the answer is True.
    """
    try:
        renewed_s = (run_dir / "prom" / "nccl_inspector_agent.prom").stat().st_mtime
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    limit_s = max(RENEWED_S, RENEWED_INTERVALS * agent_interval_s)
    return abs(time.time() - renewed_s) <= limit_s


def _trouble(
    agent_pid: int | None, is_fresh: bool, collected_age_s: float | None, fill: Fill
) -> str:
    if agent_pid is None:
        if collected_age_s is None:
            return _NO_AGENT
        if collected_age_s > COLLECTED_S:
            return f"{_NO_AGENT}, and nothing was collected for {_minutes(collected_age_s)}"
    elif not is_fresh:
        return "the agent does not renew what it publishes"
    return fill.trouble


def _fill(path: Path, of: str) -> Fill:
    whole = os.statvfs(path)
    return Fill(
        (whole.f_blocks - whole.f_bfree) * whole.f_frsize,
        whole.f_blocks * whole.f_frsize,
        whole.f_files - whole.f_ffree,
        whole.f_files,
        path.is_mount(),
        of,
    )


def read_status(run_dir: Path, agent_interval_s: float) -> NodeStatus:
    """Return the state of the node; missing or hidden things are reported, never raised."""
    switch_seen, disabled, fill, agent_pid, collected_age_s = False, None, None, None, None
    try:
        fill = _fill(run_dir, "the run directory")
        disabled = read_switch(run_dir)
        switch_seen = True
        collected_age_s = collection_age_s(run_dir)
        is_fresh = _is_fresh(run_dir, agent_interval_s)
        agent_pid = _agent(run_dir, is_fresh)
        trouble = _trouble(agent_pid, is_fresh, collected_age_s, fill)
        if agent_pid is not None and not trouble:
            note = running_note(note_below(run_dir))
            trouble = note.trouble if note else ""
        if not trouble and (prom := _fill(run_dir / "prom", "prom")).own:
            trouble = prom.trouble
    except OSError as err:
        trouble = f"{err.filename}: {err.strerror}"
    published, newest_age_s = _published(run_dir / "prom")
    return NodeStatus(
        run_dir,
        switch_seen,
        disabled,
        fill,
        agent_pid,
        collected_age_s,
        _count(run_dir / "jobs", JOB_ID),
        _ended(run_dir / "ended"),
        published,
        newest_age_s,
        trouble,
    )


def describe(disabled: Disabled | None) -> str:
    """Return the state of the switch in one line, without a line end."""
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


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"


def _agent_words(status: NodeStatus) -> str:
    if status.agent_pid is None:
        if status.collected_age_s is not None:
            return f"not running; last collected without it {_minutes(status.collected_age_s)} ago"
        return "not running" if status.trouble == _NO_AGENT else "not known"
    return f"running, pid {status.agent_pid}" if status.agent_pid else "running"


def _seen(count: int | None) -> str:
    return _UNSEEN if count is None else str(count)


def render_status(status: NodeStatus) -> str:
    """Return the table, with one line for each fact."""
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
