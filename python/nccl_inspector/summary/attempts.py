# SPDX-License-Identifier: Apache-2.0
"""Find the summaries that belong to one attempt of a job, and read them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import compress_within
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.summary.budget import node_share
from nccl_inspector.summary.codec import Head, NodeSummary
from nccl_inspector.summary.directory import (
    COMPONENTS_MAX,
    AbsentError,
    Shelf,
    look,
    peek,
    read_summaries,
    unreadable,
)

CLOCKS_APART_S = 3600  # the most that the clocks of two nodes may differ
_NODES_CHARS = 100


@dataclass(frozen=True, slots=True)
class Loaded:
    """The summaries of one attempt, all attempts of the job, and texts about unreadable files."""

    summaries: tuple[NodeSummary, ...]
    attempts: tuple[int, ...]
    problems: tuple[str, ...]

    @property
    def head(self) -> Head:
        """The head of the first summary."""
        return self.summaries[0].head


def _identity(head: Head) -> tuple[str, int, str]:
    """Return what all attempts and components of a job have in common."""
    return head.cluster, head.uid, head.het_job_id


def _start(head: Head) -> int:
    return head.start


def _of_job(head: Head, newest: Head) -> bool:
    """Tell whether a summary belongs to the same job as that job's newest summary.

    A higher attempt that began earlier belongs to an older job that had the same id.
    """
    return _identity(head) == _identity(newest) and (
        head.restart <= newest.restart or head.start >= newest.start - CLOCKS_APART_S
    )


def _components(
    leader: int, own: Shelf | None, report_dir: Path
) -> tuple[Head, list[Shelf]] | None:
    """Return a head and all components of a heterogeneous job, in order; None: there are none.

    `leader`: the job id of the leader. A component in which nobody used NCCL has no summaries, so
    each possible id is looked at. Most of these ids are jobs of other users, or no jobs.
    """
    peeked = {
        job_id: [head for head in peek(job_id, report_dir) if head.het_job_id == str(leader)]
        for job_id in range(leader, leader + COMPONENTS_MAX)
        if own is None or job_id != own.job_id
    }
    heads = own.heads.values() if own else chain.from_iterable(peeked.values())
    known = max(heads, key=_start, default=None)
    if known is None:
        return None
    shelves = [own] if own else []
    for job_id, found in peeked.items():
        if _identity(known) in map(_identity, found):
            with suppress(InspectorError):  # its directory has just been removed or reused
                shelves.append(look(job_id, report_dir))
    return known, sorted(shelves, key=lambda shelf: shelf.job_id)


def _find(job_id: int, report_dir: Path) -> tuple[Head, list[Shelf]]:
    """Return a head and the summaries of the job; if it is heterogeneous, of all components."""
    try:
        own = look(job_id, report_dir)
    except AbsentError:
        # It may be the leader of a heterogeneous job that did not itself use NCCL.
        components = _components(job_id, None, report_dir)
        if not components:
            raise
        return components
    if not own.heads:
        first = own.refused[0]
        raise InspectorError(
            f"the report of job {job_id} cannot be read: {unreadable(first.file, first.why)}"
        )
    known = max(own.heads.values(), key=_start)
    if not JOB_ID.fullmatch(known.het_job_id):
        return known, [own]
    return _components(int(known.het_job_id), own, report_dir) or (known, [own])


def _choose(
    job_id: int, shelves: Sequence[Shelf], attempts: Sequence[int], asked: int | None
) -> int:
    """Return the attempt to show; `asked` None: the latest.

    Raises:
        InspectorError: there is no such attempt, or it or a later one cannot be read.
    """
    wanted = attempts[-1] if asked is None else asked
    refused = [one for shelf in shelves for one in shelf.refused]
    if asked is None:
        written_ns = max(shelf.written_ns for shelf in shelves)
        later = [
            one for one in refused if one.file.attempt > wanted and one.written_ns >= written_ns
        ]
        hint = f"; --attempt {wanted} shows an earlier one"
    elif asked not in attempts:
        later = [one for one in refused if one.file.attempt == asked]
        hint = ""
    else:
        return asked
    if later:
        last = max(later, key=lambda one: one.file.attempt)
        why = unreadable(last.file, last.why)
        raise InspectorError(
            f"attempt {last.file.attempt} of job {job_id} cannot be read: {why}{hint}"
        )
    if wanted not in attempts:
        known = ", ".join(map(str, attempts))
        raise InspectorError(f"job {job_id} has no attempt {wanted}; it has {known}")
    return wanted


def _others(heads: Sequence[Head], wanted: int) -> Iterator[str]:
    """Yield lines about summaries of other jobs that had this id."""
    jobs: dict[tuple[int, str, str], list[str]] = {}
    for head in heads:
        jobs.setdefault((head.restart, head.user or str(head.uid), head.cluster), []).append(
            head.node
        )
    for (attempt, user, cluster), nodes in jobs.items():
        text, rest = compress_within(nodes, _NODES_CHARS)
        many = "its summary" if len(nodes) == 1 else "the summaries"
        verb = "is" if len(nodes) == 1 else "are"
        yield (
            f"{text}{f' and {rest} more' if rest else ''}: {many}"
            f"{f' of attempt {attempt}' if attempt != wanted else ''} {verb} of another job of "
            f"this number (user {user}, cluster {cluster or 'unknown'})"
        )


def _unreadable(shelf: Shelf, wanted: int) -> Iterator[str]:
    """Yield lines about unreadable summaries of the attempt, or perhaps of a newer job."""
    for one in shelf.refused:
        if one.file.attempt == wanted:
            yield unreadable(one.file, one.why)
        elif one.file.attempt < wanted and one.written_ns >= shelf.written_ns:
            yield (
                f"{one.file.node}: its summary of attempt {one.file.attempt}, written after "
                f"these, cannot be read: {one.why}"
            )


def _share(shelves: Sequence[Shelf], wanted: int) -> int:
    """Return the bytes of memory for each node's summary, by the nodes of all components."""
    heads = [[one for one in shelf.heads.values() if one.restart == wanted] for shelf in shelves]
    nodes = sum(max(len(found), *(one.num_nodes for one in found)) for found in heads if found)
    return node_share(nodes)


def _of_attempt(
    shelf: Shelf, newest: Head, wanted: int, report_dir: Path, share: int
) -> tuple[list[NodeSummary], list[str]]:
    """Return one id's summaries of the attempt to show, and texts about summaries not used."""
    problems = list(_unreadable(shelf, wanted))
    mine = {file: head for file, head in shelf.heads.items() if _of_job(head, newest)}
    files = {file: head for file, head in mine.items() if file.attempt == wanted}
    if files:
        nodelist = max(files.values(), key=_start).nodelist
        files = {file: head for file, head in files.items() if head.nodelist == nodelist}
    elif mine and not problems:
        had = ", ".join(map(str, sorted({file.attempt for file in mine})))
        problems.append(f"no summary of attempt {wanted}; it has {had}")
    others = [
        head
        for file, head in shelf.heads.items()
        if file not in mine or (file.attempt == wanted and file not in files)
    ]
    problems += _others(others, wanted)
    if not files:
        return [], problems
    summaries, torn = read_summaries(list(files), report_dir, share)
    return summaries, torn + problems


def load_summaries(job_id: int, report_dir: Path, attempt: int | None) -> Loaded:
    """Return the summaries of one attempt; of a heterogeneous job, those of all components.

    `attempt` None: the latest. If Slurm has used the id again, the newest job is meant.

    Raises:
        InspectorError: there is no such job or attempt, or none of it can be read.
    """
    known, shelves = _find(job_id, report_dir)
    heads = [head for shelf in shelves for head in shelf.heads.values()]
    newest = max((head for head in heads if _identity(head) == _identity(known)), key=_start)
    attempts = sorted({head.restart for head in heads if _of_job(head, newest)})
    wanted = _choose(job_id, shelves, attempts, attempt)
    summaries, problems = [], []
    share = _share(shelves, wanted)
    for shelf in shelves:
        found, odd = _of_attempt(shelf, newest, wanted, report_dir, share)
        summaries += found
        problems += [f"job {shelf.job_id}, {one}" for one in odd] if newest.het_job_id else odd
    if not summaries:
        raise InspectorError(f"the report of job {job_id} cannot be read: {problems[0]}")
    return Loaded(tuple(summaries), tuple(attempts), tuple(problems))
