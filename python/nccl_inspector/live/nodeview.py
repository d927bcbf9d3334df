# SPDX-License-Identifier: Apache-2.0
"""The live view of this node: the present values of its boxes, and changes since the last look."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.agent.beat_age import Beats
from nccl_inspector.agent.log_once import Inode
from nccl_inspector.agent.manifest import Manifest
from nccl_inspector.analysis.join import join_communicators
from nccl_inspector.analysis.process_names import name_processes
from nccl_inspector.errors import InspectorError
from nccl_inspector.live.late_ranks import Late, late_processes
from nccl_inspector.live.node_look import JobBoxes, LiveBox, NodeBoxes, look
from nccl_inspector.live.rates import flow_of, since, split_waiting
from nccl_inspector.live.troubles import (
    age_s,
    count_drops,
    describe,
    find_waits,
    oldest_of,
    states,
    troubles_of,
)
from nccl_inspector.live.view import (
    Flow,
    LiveJob,
    LiveRank,
    Trouble,
    View,
    gather,
    natural,
    order_of,
)
from nccl_inspector.model.process import KILLED, NEVER_MEASURED, Process

_NO_NCCL = "none of its processes on this node uses NCCL now"
_WAIT_NOTE = (
    "WAIT: share of the time in collectives; against the fastest rank of this node, "
    "so waiting for other nodes is not in it"
)
_RATE_NOTE = "GB/s: mean bus bandwidth of a rank while in operations of the class, waiting included"


class NodeView:
    """Looks at this node repeatedly; each look is compared with the one before."""

    def __init__(self, run_dir: Path, wanted: int | None) -> None:
        """Prepare only; `wanted`: look only at this job."""
        self._run_dir = run_dir
        self._wanted = wanted
        self._before: dict[Inode, LiveBox] = {}
        self._before_s: float | None = None
        self._beats = Beats()

    def choose(self, job_id: int | None) -> None:
        """Look from now on at one job, or at all."""
        self._wanted = job_id

    def look(self) -> View:
        """Return the view.

        Raises:
            InspectorError: there is no run directory.
        """
        try:
            seen = look(self._run_dir, self._wanted)
        except OSError as err:
            raise InspectorError(f"{err.filename}: {err.strerror}") from err
        jobs = sorted((self._job(job) for job in seen.jobs), key=lambda job: job.order)
        span_s = None
        if self._before_s is not None:
            span_s = seen.at.monotonic_s - self._before_s
        self._remember(seen)
        unread = [*seen.unread]
        for job in seen.jobs:
            problems = job.problems if job.boxes or job.problems else (_NO_NCCL,)
            unread += [f"job {job.manifest.job_id}: {problem}" for problem in problems]
        return View(
            os.uname().nodename.split(".")[0],
            seen.at.real_ns / 1e9,
            span_s,
            tuple(jobs),
            tuple(unread),
            (_WAIT_NOTE, _RATE_NOTE),
        )

    def _remember(self, seen: NodeBoxes) -> None:
        self._before = {box.inode: box for job in seen.jobs for box in job.boxes}
        self._before_s = seen.at.monotonic_s
        self._beats.keep(self._before.keys())

    def _silent_s(self, box: LiveBox) -> float | None:
        facts = box.process.facts
        if facts.silent in NEVER_MEASURED:
            return None  # no thread of it beats
        # A process does not keep the tick, but its Unix time also changes with each beat.
        return self._beats.silent_s(box.inode, facts.beat_ns, facts.beat_ns, box.at)

    def _job(self, job: JobBoxes) -> LiveJob:
        sights = self._sights(job)
        rates = _rates(job.manifest.node, [sight for sight in sights if sight.delta])
        waits = find_waits([(sight.name, sight.box.process, sight.silent_s) for sight in sights])
        ranks = [
            _rank(sight, job.manifest.node, rates, waits.get(sight.name, ())) for sight in sights
        ]
        ranks.sort(key=lambda rank: (*order_of(rank.troubles), natural(rank.name)))
        return _as_job(job.manifest, ranks, *states([(s.box.process, s.silent_s) for s in sights]))

    def _sights(self, job: JobBoxes) -> list["_Sight"]:
        names = name_processes([(job.manifest.job_id, box.process) for box in job.boxes])
        found = []
        for name, box in zip(names, job.boxes, strict=True):
            delta, span_s = None, 0.0
            before = self._before.get(box.inode)
            if before and box.process.facts.state != KILLED:
                delta = since(box.process, before.process)
                span_s = box.at.monotonic_s - before.at.monotonic_s
            found.append(_Sight(name, box, self._silent_s(box), delta, span_s))
        return found


@dataclass(frozen=True, slots=True)
class _Sight:
    """A process as it is now."""

    name: str
    box: LiveBox
    silent_s: float | None  # time since its last beat
    delta: Process | None  # the process with only its counts since the last look
    span_s: float  # time since the last look


@dataclass(frozen=True, slots=True)
class _Rates:
    """The rates of a job's processes, by name."""

    flows: dict[str, Flow]
    late: dict[str, Late]


def _rates(node: str, sights: Sequence[_Sight]) -> _Rates:
    pairs = [(node, sight.delta) for sight in sights if sight.delta]
    joined = join_communicators(pairs, [sight.name for sight in sights])
    waiting = split_waiting(joined)
    flows = {
        sight.name: flow_of(sight.delta, sight.span_s, *waiting.get(sight.name, (0.0, 0.0)))
        for sight in sights
        if sight.delta
    }
    return _Rates(flows, late_processes(joined))


def _rank(sight: _Sight, node: str, rates: _Rates, waits: Sequence[Trouble]) -> LiveRank:
    process, silent_s = sight.box.process, sight.silent_s
    oldest = oldest_of(process) if process.facts.state != KILLED else None
    return LiveRank(
        name=sight.name,
        node=node,
        gpu=",".join(gpu.label for gpu in process.gpus),
        flow=rates.flows.get(sight.name),
        oldest_s=age_s(oldest, silent_s) if oldest else None,
        oldest=describe(oldest, process) if oldest else "",
        beat_s=silent_s,
        drops=count_drops(process),
        troubles=troubles_of(process, silent_s, rates.late.get(sight.name), waits),
    )


def _as_job(manifest: Manifest, ranks: Sequence[LiveRank], alive: int, expected: int) -> LiveJob:
    flows = [rank.flow for rank in ranks if rank.flow]
    ages = [rank.oldest_s for rank in ranks if rank.oldest_s is not None]
    return LiveJob(
        id=manifest.job_id,
        cluster=manifest.cluster,
        user=manifest.user or str(manifest.uid),
        partition=manifest.partition,
        nodes=manifest.num_nodes,
        alive=alive,
        expected=expected,
        flow=Flow.of(flows) if flows else None,
        oldest_s=max(ages, default=None),
        drops=sum(rank.drops or 0 for rank in ranks),
        troubles=gather(ranks),
        ranks=tuple(ranks),
    )
