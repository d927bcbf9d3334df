# SPDX-License-Identifier: Apache-2.0
"""What a job's node summaries say: read them, join them, and list what is missing."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.analysis.join import Communicator, join_communicators
from nccl_inspector.analysis.naming import name_processes
from nccl_inspector.analysis.verdict import Named, rank_stragglers
from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.hostile import read_at
from nccl_inspector.hostlist import expand
from nccl_inspector.model import DROP_REASONS, KILLED, RUNNING, Process
from nccl_inspector.summary import SUMMARY_BYTES_MAX, Head, NodeSummary, decode

_FILE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,254}?)\.([0-9]{1,9})\.nodesummary")
# Slurm gives a heterogeneous job's components ids that follow on the leader's; it allows 128.
COMPONENTS_MAX = 128
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Report:
    """One attempt of one job; of a heterogeneous one with all components that were measured."""

    head: Head  # of the first component
    array_task: str  # `810_3`, as the processes say; empty when it is no task of an array
    nodelists: dict[int, str]  # of each component, by its job id
    attempts: tuple[int, ...]  # all that there are
    nodes: tuple[str, ...]  # with a summary
    nodes_missing: dict[int, tuple[str, ...]]  # by component, without those that miss none
    processes: int
    steps: int
    communicators: tuple[Communicator, ...]
    named: tuple[Named, ...]
    killed: tuple[str, ...]  # processes that died without finalizing, in words
    dropped: dict[str, int]  # events that were not measured, by reason
    problems: tuple[str, ...]  # what else makes the figures less than whole, in words


@contextmanager
def _job_directory(job_id: int, report_dir: Path) -> Iterator[int]:
    path = report_dir / str(job_id)
    try:
        job_fd = os.open(path, _DIRECTORY)
    except FileNotFoundError as err:
        raise InspectorError(
            f"no report of job {job_id}: nothing of it is in {report_dir}"
        ) from err
    except OSError as err:
        raise InspectorError(
            f"the report of job {job_id} cannot be read: {path}: {err.strerror}"
        ) from err
    try:
        yield job_fd
    finally:
        os.close(job_fd)


def _attempts(job_fd: int) -> dict[int, dict[str, str]]:
    """Return the job's files by attempt and node."""
    attempts: dict[int, dict[str, str]] = {}
    for match in filter(None, map(_FILE.fullmatch, os.listdir(job_fd))):
        attempts.setdefault(int(match[2]), {})[match[1]] = match[0]
    return attempts


def _read(job_fd: int, name: str) -> NodeSummary:
    try:
        fd = os.open(name, _REGULAR, dir_fd=job_fd)
    except OSError as err:
        raise RefusedError("unreadable", os.strerror(err.errno or 0)) from err
    try:
        size = os.fstat(fd).st_size
        if size > SUMMARY_BYTES_MAX:
            raise RefusedError("too_big")
        return decode(read_at(fd, size, 0))
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The summaries of one attempt, all attempts there are, and what could not be read."""

    summaries: tuple[NodeSummary, ...]
    attempts: tuple[int, ...]
    problems: tuple[str, ...]

    @property
    def head(self) -> Head:
        """What the first summary says of the job."""
        return self.summaries[0].head


def _of_one_job(summaries: list[NodeSummary], problems: list[str]) -> list[NodeSummary]:
    """Return those of the newest job: a cluster that starts anew gives a job id again."""

    def identity(head: Head) -> tuple[str, int, str]:
        return head.cluster, head.uid, head.nodelist

    newest = max((summary.head for summary in summaries), key=lambda head: head.start)
    for head in (summary.head for summary in summaries):
        if identity(head) != identity(newest):
            problems.append(
                f"{head.node}: its summary is of another job of this number"
                f" (user {head.user or head.uid}, cluster {head.cluster or 'unknown'})"
            )
    return [summary for summary in summaries if identity(summary.head) == identity(newest)]


class _UnreadableError(InspectorError):
    """Summaries are there, and not one of them can be read."""


def _load(job_id: int, report_dir: Path, attempt: int | None) -> Loaded:
    """Return the summaries of one attempt of one job id; None: the latest.

    Raises:
        InspectorError: there is no such job or attempt, or none of it can be read.
    """
    summaries, problems = [], []
    with _job_directory(job_id, report_dir) as job_fd:
        attempts = _attempts(job_fd)
        wanted = max(attempts, default=0) if attempt is None else attempt
        if not attempts:
            raise InspectorError(f"no report of job {job_id}: {report_dir / str(job_id)} is empty")
        if wanted not in attempts:
            known = ", ".join(map(str, sorted(attempts)))
            raise InspectorError(f"job {job_id} has no attempt {wanted}; it has {known}")
        for node, name in sorted(attempts[wanted].items()):
            try:
                summary = _read(job_fd, name)
                if (summary.head.job_id, summary.head.node, summary.head.restart) != (
                    job_id,
                    node,
                    wanted,
                ):
                    raise RefusedError("bad_summary", "it is of another job or node")
                summaries.append(summary)
            except RefusedError as err:
                problems.append(f"{node}: its summary cannot be read: {err}")
    if not summaries:
        raise _UnreadableError(f"the report of job {job_id} cannot be read: {problems[0]}")
    return Loaded(tuple(_of_one_job(summaries, problems)), tuple(sorted(attempts)), tuple(problems))


def _components(
    leader: int, own: Loaded | None, report_dir: Path, attempt: int | None
) -> tuple[list[Loaded], list[str]]:
    """Return the components of a heterogeneous job in order, and what could not be read.

    One in which nobody used NCCL has no summaries at all, so every id that may be one is
    tried. Most are other users' jobs, or nobody's.
    """
    found = {own.head.job_id: own} if own else {}
    problems = []
    for job_id in range(leader, leader + COMPONENTS_MAX):
        if job_id in found:
            continue
        try:
            one = _load(job_id, report_dir, attempt)
        except _UnreadableError as err:
            problems.append(str(err))
        except InspectorError:
            continue
        else:
            known = next(iter(found.values()), one).head
            same = (one.head.cluster, one.head.uid) == (known.cluster, known.uid)
            if same and one.head.het_job_id == str(leader):
                found[job_id] = one
    return [found[job_id] for job_id in sorted(found)], problems


def load_summaries(job_id: int, report_dir: Path, attempt: int | None) -> Loaded:
    """Return the summaries of one attempt, of a heterogeneous job those of all components.

    `attempt` None: the latest.

    Raises:
        InspectorError: there is no such job or attempt, or none of it can be read.
    """
    try:
        own = _load(job_id, report_dir, attempt)
    except _UnreadableError:
        raise
    except InspectorError:
        # A leader in which nobody used NCCL.
        found, problems = _components(job_id, None, report_dir, attempt)
        if not found:
            raise
    else:
        if not re.fullmatch("[1-9][0-9]{0,17}", own.head.het_job_id):
            return own
        leader = int(own.head.het_job_id)
        found, problems = _components(leader, own, report_dir, own.head.restart)
    for one in found:
        problems += [f"job {one.head.job_id}, {problem}" for problem in one.problems]
    return Loaded(
        tuple(summary for one in found for summary in one.summaries),
        tuple(sorted({number for one in found for number in one.attempts})),
        tuple(problems),
    )


def _missing_nodes(summaries: Sequence[NodeSummary], problems: list[str]) -> tuple[str, ...]:
    """Return the nodes of one component that have no summary."""
    present = {summary.head.node for summary in summaries}
    try:
        nodes = expand(summaries[0].head.nodelist)
    except InspectorError as err:
        problems.append(f"{err}; nodes without a summary are not known")
        return ()
    return tuple(node for node in nodes if node not in present)


def _in_state(
    processes: Sequence[tuple[str, Process]], names: Sequence[str], state: str
) -> Iterator[str]:
    for (node, process), name in zip(processes, names, strict=True):
        if process.facts.state == state:
            yield f"{name} ({node})"


def build_report(loaded: Loaded) -> Report:
    """Join the summaries of one attempt into a report."""
    summaries, problems = loaded.summaries, list(loaded.problems)
    dropped: Counter[str] = Counter()
    for summary in summaries:
        problems += [f"{summary.head.node}: {problem}" for problem in summary.head.problems]
        for process in summary.processes:
            dropped.update(dict(zip(DROP_REASONS, process.dropped, strict=False)))
            problems += [
                f"{summary.head.node}, process {process.facts.name}: {flag}"
                for flag in process.flags
            ]
    processes = [
        (summary.head.node, process) for summary in summaries for process in summary.processes
    ]
    names = name_processes(
        [(summary.head.job_id, one) for summary in summaries for one in summary.processes]
    )
    problems += [
        f"{words} was still running when its box was read"
        for words in _in_state(processes, names, RUNNING)
    ]
    communicators = join_communicators(processes, names)
    components: dict[int, list[NodeSummary]] = {}
    for summary in summaries:
        components.setdefault(summary.head.job_id, []).append(summary)
    missing = {job: _missing_nodes(found, problems) for job, found in components.items()}
    return Report(
        head=loaded.head,
        array_task=next((one.facts.array_task for _, one in processes), ""),
        nodelists={job: found[0].head.nodelist for job, found in components.items()},
        attempts=loaded.attempts,
        nodes=tuple(dict.fromkeys(summary.head.node for summary in summaries)),
        nodes_missing={job: nodes for job, nodes in missing.items() if nodes},
        processes=len(processes),
        steps=len({process.facts.step for _, process in processes}),
        communicators=tuple(communicators),
        named=tuple(rank_stragglers(communicators)),
        killed=tuple(_in_state(processes, names, KILLED)),
        dropped={reason: number for reason, number in dropped.items() if number},
        problems=tuple(dict.fromkeys(problems)),
    )
