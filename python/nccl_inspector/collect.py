# SPDX-License-Identifier: Apache-2.0
"""Turn the boxes of ended jobs into node summaries on shared storage, then delete them."""

import os
import re
import time
from dataclasses import dataclass

from nccl_inspector.box import read_box
from nccl_inspector.boxcopy import BOX_BYTES_MAX
from nccl_inspector.config import Config
from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.handover import DONE, DONE_WITHOUT_ACL, Child, Target, reap, start, wait
from nccl_inspector.hostile import directory, entry_names, is_locked, regular_file
from nccl_inspector.jobfiles import read_manifest
from nccl_inspector.manifest import Manifest
from nccl_inspector.model import KILLED
from nccl_inspector.rawdir import list_raw
from nccl_inspector.removal import remove_tree
from nccl_inspector.summary import PROCESSES_MAX, Head, encode, encode_process
from nccl_inspector.tally import Tally

# How long a torn manifest is kept: its job cannot be known, but somebody may want to look.
TORN_S = 3600
# How long an ended job's processes may still hold their boxes before they are read all the same.
LINGER_S = 60
# One pass stops here, so that publishing goes on.
PASS_S = 5
RETRY_FIRST_S, RETRY_LAST_S = 5, 600

_ENDED = re.compile(r"([1-9][0-9]{0,17})\.([0-9]{1,19})")
_PROBLEMS_MAX = 32


class _NotYetError(Exception):
    """The job's processes still hold their boxes."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A directory of `ended/`."""

    name: str
    job_id: int
    end_s: int

    def age_s(self) -> float:
        return time.time() - self.end_s


@dataclass(frozen=True, slots=True)
class _Retry:
    due: float  # of time.monotonic()
    delay_s: int


def _head(manifest: Manifest, ended: _Ended, problems: list[str]) -> Head:
    names = Head.__dataclass_fields__.keys() & Manifest.__dataclass_fields__.keys()
    values = {name: getattr(manifest, name) for name in names}
    return Head(**values, end=ended.end_s, problems=tuple(problems[:_PROBLEMS_MAX]))


class Collector:
    """The ended jobs of this node, one handed over at a time."""

    def __init__(self, run_fd: int, config: Config, tally: Tally) -> None:
        """Open `ended` below the run directory.

        Raises:
            OSError: it is not there.
        """
        self._ended_fd = os.open(
            "ended", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=run_fd
        )
        self._config = config
        self._tally = tally
        self._retries: dict[str, _Retry] = {}
        self._working: tuple[_Ended, Child] | None = None
        self._answered: list[int] = []
        self._said_no_acl = False

    def close(self) -> None:
        """Close the directory."""
        os.close(self._ended_fd)

    def jobs(self) -> set[int]:
        """Return the ids of the jobs that wait."""
        return {ended.job_id for ended in self._list()}

    def run_pass(self, wait_s: float) -> int:
        """Collect what is due, wait up to `wait_s` for each child; return how many are left."""
        begun = time.monotonic()
        self._answered = reap(self._answered)
        known = self._list()
        self._retries = {
            ended.name: self._retries[ended.name] for ended in known if ended.name in self._retries
        }
        if self._working is None or self._finish(wait_s):
            for ended in known:
                retry = self._retries.get(ended.name)
                if retry and retry.due > time.monotonic():
                    continue
                if not self._try(ended, wait_s) or time.monotonic() - begun > PASS_S:
                    break
        return len(self._list())

    def _list(self) -> list[_Ended]:
        matches = [_ENDED.fullmatch(name) for name in entry_names(self._ended_fd)]
        found = [
            _Ended(match[0], int(match[1]), int(match[2]) // 10**9) for match in matches if match
        ]
        return sorted(found, key=lambda ended: (ended.end_s, ended.name))

    def _try(self, ended: _Ended, wait_s: float) -> bool:
        """Collect one directory; False when its child is still at work."""
        try:
            made = self._summarize(ended)
            if made is None:
                self._remove(ended)
                return True
            target, data = made
            self._working = ended, start(self._config.report_user, target, data)
        except _NotYetError:
            return True
        except RefusedError as err:
            self._give_up(ended, err)
            return True
        except (InspectorError, OSError) as err:
            self._fail(ended, str(err))
            return True
        return self._finish(wait_s)

    def _give_up(self, ended: _Ended, err: RefusedError) -> None:
        old = ended.age_s() > TORN_S
        self._tally.say(
            ended.job_id,
            f"cannot be collected ({err}); its directory goes {'now' if old else 'in an hour'}",
        )
        if old:
            self._remove(ended)

    def _fail(self, ended: _Ended, why: str) -> None:
        last = self._retries.get(ended.name)
        delay_s = min(last.delay_s * 2, RETRY_LAST_S) if last else RETRY_FIRST_S
        self._retries[ended.name] = _Retry(time.monotonic() + delay_s, delay_s)
        self._tally.collect_failures += 1
        self._tally.say(ended.job_id, f"its summary is not handed over, will try again: {why}")

    def _remove(self, ended: _Ended) -> None:
        try:
            remove_tree(ended.name, self._ended_fd)
        except OSError as err:
            self._fail(ended, f"cannot remove ended/{ended.name}: {err.strerror}")

    def _finish(self, wait_s: float) -> bool:
        """Wait for the child at work; False when it still is."""
        if self._working is None:
            return True
        ended, child = self._working
        message = wait(child, wait_s)
        if message is None:
            return False
        self._working = None
        self._answered = reap([*self._answered, child.pid])
        if message not in (DONE, DONE_WITHOUT_ACL):
            self._fail(ended, message.decode("ascii", "replace") or "the child that writes it died")
            return True
        if message == DONE_WITHOUT_ACL and not self._said_no_acl:
            self._said_no_acl = True
            self._tally.say(ended.job_id, message.decode("ascii"))
        self._remove(ended)
        return True

    def _summarize(self, ended: _Ended) -> tuple[Target, bytes] | None:
        """Return the summary and where it goes, or None when no process measured anything.

        Raises:
            RefusedError: there is no manifest that can be trusted.
            _NotYetError: processes are still at work.
        """
        root = os.fstat(self._ended_fd).st_uid
        with directory(ended.name, root, self._ended_fd) as job_fd:
            manifest, _ = read_manifest(job_fd)
            if manifest.job_id != ended.job_id:
                raise RefusedError("bad_manifest", "it is another job's")
            with directory("raw", manifest.uid, job_fd) as raw_fd:
                problems: list[str] = []
                blocks = self._blocks(ended, raw_fd, manifest.uid, problems)
        if not blocks and not problems:
            return None
        data = encode(_head(manifest, ended, problems), blocks)
        name = f"{manifest.node}.{manifest.restart}.nodesummary"
        return Target(self._config.report_dir, manifest.job_id, name, manifest.uid), data

    def _blocks(self, ended: _Ended, raw_fd: int, uid: int, problems: list[str]) -> list[bytes]:
        listing = list_raw(raw_fd)
        blocks: list[bytes] = []
        if len(listing.boxes) > PROCESSES_MAX or listing.overflow:
            problems.append(f"more than {PROCESSES_MAX} processes, the rest is left out")
        for name, stem in listing.boxes[:PROCESSES_MAX]:
            try:
                with regular_file(name, uid, BOX_BYTES_MAX, raw_fd) as (fd, status):
                    alive = is_locked(fd)
                    if alive and ended.age_s() < LINGER_S:
                        raise _NotYetError
                    process = read_box(fd, status.st_size, stem, alive)
            except RefusedError as err:
                self._tally.refuse(ended.job_id, name, err)
                problems.append(f"{name} is refused: {err}")
                continue
            if process.facts.state == KILLED:
                self._tally.lose(ended.job_id, stem, (status.st_dev, status.st_ino))
            blocks.append(encode_process(process))
        return blocks
