# SPDX-License-Identifier: Apache-2.0
"""Find the reports that can be made now: all nodes have told, or the wait for them is over."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_inspector.controller.queue import Entry
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import expand
from nccl_inspector.summary.directory import SummaryFile

# Components of a heterogeneous job are queued within moments of each other.
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Due:
    """One attempt of a job to be reported, and the entries of the queue that the report settles."""

    leader: int
    attempt: int
    entries: tuple[Entry, ...]
    complete: bool  # the summaries of all nodes are there
    output_s: float | None = None  # CPU time for reading the job's output; None: the usual time
    size: int = 0  # bytes of its summaries


@dataclass(frozen=True, slots=True)
class ToDo:
    """What to do for one job: report an attempt, or remove ends for which no summary came."""

    due: Due | None = None
    empty: tuple[Entry, ...] = ()  # no summary came in time: NCCL was not used, or no node is left


def group(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    """Return the queue by job, the oldest entries first; components are under their leader."""
    groups: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.leader].append(entry)
    return dict(groups)


def _nodes(entry: Entry) -> set[str]:
    try:
        return set(expand(entry.nodelist))
    except InspectorError:
        return set()


def _fresh(files: Mapping[SummaryFile, int], stored_ns: Mapping[int, int]) -> dict[int, set[str]]:
    """Return for each attempt the nodes whose summaries are newer than its stored report.

    Each node is compared by itself. So a node that told late, after its attempt was reported
    without it, does not look like a new end of the attempt.
    """
    nodes: dict[int, set[str]] = defaultdict(set)
    for file, at_ns in files.items():
        if at_ns > stored_ns.get(file.attempt, 0):
            nodes[file.attempt].add(file.node)
    return nodes


def find_due(
    entries: Sequence[Entry],
    files: Mapping[int, Mapping[SummaryFile, int]],
    stored_ns: Mapping[int, int],
    now_s: float,
    wait_s: float,
) -> ToDo:
    """Return what can be done for one job. This function is pure.

    `entries`: the job's part of the queue, the oldest first. `files`: the summaries by job id, with
    the time of writing. `stored_ns`: when the stored reports were written, by attempt. `now_s`:
    Unix time. `wait_s`: how long to wait for nodes. An entry with the restart count r is the end of
    attempt r, or of r - 1 if the job was requeued; a bare entry may be of any attempt.
    """
    firsts: dict[int, Entry] = {}  # by component: the end to be settled next
    for entry in entries:
        firsts.setdefault(entry.job_id, entry)
    settled = tuple(firsts.values())
    if now_s < max(entry.queued_s for entry in settled) + SETTLE_S:
        return ToDo()
    fresh = {job_id: _fresh(found, stored_ns) for job_id, found in files.items()}
    meant = {at for one in settled for at in (one.restart - 1, one.restart)}
    if any(one.is_bare for one in settled):
        meant |= {at for found in fresh.values() for at in found}
    there = [at for at in sorted(meant) if any(at in found for found in fresh.values())]

    def is_complete(attempt: int) -> bool:
        return all(
            _nodes(entry) and _nodes(entry) <= fresh.get(job_id, {}).get(attempt, set())
            for job_id, entry in firsts.items()
        )

    leader = settled[0].leader
    for attempt in there:
        if is_complete(attempt):
            return ToDo(Due(leader, attempt, settled, True))
    if now_s < max(entry.queued_s for entry in settled) + wait_s:
        return ToDo()
    if there:
        first = min(there, key=lambda at: (at in stored_ns, at))
        return ToDo(Due(leader, first, settled, False))
    return ToDo(empty=settled)
