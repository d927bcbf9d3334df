# SPDX-License-Identifier: Apache-2.0
"""The agent's own series about every running job that publishes, from its boxes: five series.

The `.prom` files of processes tell more, but nothing about dead processes, nothing while their
writer does not run, and only once per `interval`. A job without such files gets none of these
series either: modes without `.prom` files promise that there are no series.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from nccl_inspector.agent.beat_age import STOPPED_S, Beats, now
from nccl_inspector.agent.ended_job import BOXES_MAX
from nccl_inspector.agent.job_files import read_manifest
from nccl_inspector.agent.job_order import Turns
from nccl_inspector.agent.log_once import Inode
from nccl_inspector.agent.manifest import Manifest
from nccl_inspector.agent.pulse import Pulse, read_pulse
from nccl_inspector.agent.raw_dir import box_name, in_turns, list_raw
from nccl_inspector.box.copy import BOX_BYTES_MAX, read_state
from nccl_inspector.box.layout import STATE_LIVE
from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition.text import SeriesLine, make_series
from nccl_inspector.flight.trigger import ask_in
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock
from nccl_inspector.system.safe_files import (
    directory,
    directory_of_same_owner,
    is_locked,
    open_directory,
    regular_file,
)

log = logging.getLogger("nccl-inspector")

# CPU time of a pass; eight processes take about 3 ms.
PASS_S = 0.5
# A job whose boxes take longer than this gets no series. (The plugin's own boxes take 0.4 ms each.)
JOB_S = 0.25
# A process that was not looked at for this long counts as a new one.
FORGET_S = 300.0
# A collective that is older may hang: PyTorch is asked for a dump of its flight recorder, once.
# That is half of NCCL's default timeout, when PyTorch would write one and end the process.
ASK_S = 300.0
STATES = RUNNING, STOPPED, LOST = "running", "stopped", "lost"


@dataclass(slots=True)
class _Lives:
    """The processes of a job on this node by state, and its oldest operations in flight."""

    states: dict[str, int]
    inflight_s: float = 0.0
    p2p_inflight_s: float = 0.0


class LiveSignals:
    """The live signals of the jobs of one run directory."""

    def __init__(self, run_fd: int, cluster: str, clock: Clock = SYSTEM_CLOCK) -> None:
        """Open `jobs`; `cluster`: overrides Slurm's name.

        Raises:
            OSError: it does not exist.
        """
        self._jobs_fd = open_directory("jobs", run_fd)
        self._cluster = cluster
        self._clock = clock
        self._beats = Beats()
        self._turns = Turns(clock)
        self._asked: set[int] = set()  # the jobs that were asked since their collectives went on

    def configure(self, cluster: str) -> None:
        """Use this name of the cluster from now on."""
        self._cluster = cluster

    def run_pass(self, users: Mapping[int, int]) -> list[SeriesLine]:
        """Return the series of these jobs; none for a job that cannot be read or had no turn.

        `users`: the uid of each job.
        """
        found: dict[int, list[SeriesLine]] = {}
        self._asked &= users.keys()
        known: set[Inode] = set()
        for job_id, end_s in self._turns.share(users, PASS_S):
            # Publishing reports it, and a job may end at any time.
            with suppress(RefusedError, OSError):
                found[job_id] = self._job(job_id, known, end_s)
        if not self._turns.left_out:
            self._beats.keep(known)
        self._beats.drop_before(self._clock.monotonic_s() - FORGET_S)
        return [one for job_id in sorted(found) for one in found[job_id]]

    def close(self) -> None:
        """Close the directory."""
        os.close(self._jobs_fd)

    def _job(self, job_id: int, known: set[Inode], end_s: float) -> list[SeriesLine]:
        with directory_of_same_owner(str(job_id), self._jobs_fd) as job_fd:
            manifest, _ = read_manifest(job_fd)
            if manifest.job_id != job_id:
                return []
            count = _Lives(dict.fromkeys(STATES, 0))
            with directory("raw", manifest.uid, job_fd) as raw_fd:
                seen: set[Inode] = set()
                listing = list_raw(raw_fd)
                if not listing.metrics:
                    return []
                end_s = min(end_s, self._clock.cpu_s() + JOB_S)
                for _, stem in in_turns(listing.boxes):
                    if self._clock.cpu_s() > end_s:
                        return []
                    if len(seen) >= BOXES_MAX:  # only living processes; ended ones may stay long
                        break
                    with suppress(RefusedError):
                        self._process(raw_fd, stem, manifest.uid, count, seen)
                self._ask_for_dumps(manifest, raw_fd, count)
        known |= seen
        return self._series(manifest, count)

    def _ask_for_dumps(self, manifest: Manifest, raw_fd: int, count: _Lives) -> None:
        """Ask PyTorch for dumps if a collective may hang; only jobs with `fr_pipe` have pipes."""
        if count.inflight_s < ASK_S:
            self._asked.discard(manifest.job_id)
        elif manifest.job_id not in self._asked:
            self._asked.add(manifest.job_id)
            asked = ask_in(raw_fd, manifest.uid)
            if asked:
                log.info("job %d: asked %d processes for dumps", manifest.job_id, asked)

    def _process(self, raw_fd: int, stem: str, uid: int, count: _Lives, seen: set[Inode]) -> None:
        with regular_file(box_name(stem), uid, BOX_BYTES_MAX, raw_fd) as (fd, status):
            inode = status.st_dev, status.st_ino
            locked = is_locked(fd)
            if read_state(fd) != STATE_LIVE or inode in seen:
                return
            seen.add(inode)
            if not locked:
                count.states[LOST] += 1
                return
            pulse = read_pulse(fd, status.st_size)
        silent_s = self._silent_s(inode, pulse)
        stopped = silent_s > STOPPED_S
        count.states[STOPPED if stopped else RUNNING] += 1
        if pulse.oldest_ns:
            count.inflight_s = max(count.inflight_s, pulse.oldest_ns / 1e9 + silent_s)
        if pulse.oldest_p2p_ns:
            count.p2p_inflight_s = max(count.p2p_inflight_s, pulse.oldest_p2p_ns / 1e9 + silent_s)

    def _silent_s(self, inode: Inode, pulse: Pulse) -> float:
        if not pulse.beats:
            return 0.0
        return self._beats.silent_s(inode, pulse.beat_tick, pulse.beat_real_ns, now(self._clock))

    def _series(self, manifest: Manifest, count: _Lives) -> list[SeriesLine]:
        who = {
            "cluster": self._cluster or manifest.cluster,
            "slurm_job_id": str(manifest.job_id),
            "node": manifest.node,
        }
        name = "nccl_inspector_job_processes"
        return [
            make_series("nccl_inspector_job_inflight_seconds", who, f"{count.inflight_s:.3f}"),
            make_series(
                "nccl_inspector_job_p2p_inflight_seconds", who, f"{count.p2p_inflight_s:.3f}"
            ),
            *(
                make_series(name, who | {"state": state}, str(number))
                for state, number in count.states.items()
            ),
        ]
