# SPDX-License-Identifier: Apache-2.0
"""How much ranks waited is computed three times: of summaries, of two looks, of lines in SQL.

The same operations must have the same waiting in the report, in what the store keeps of it, in the
live view and in a capture, by the records of single operations.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.analysis.join import join_communicators
from nccl_inspector.analysis.straggler.lateness import SYNCHRONISING
from nccl_inspector.capture.engine import load
from nccl_inspector.capture.exact_card import waiting_share
from nccl_inspector.capture.joined import join
from nccl_inspector.live.rates import flow_of, since, split_waiting
from nccl_inspector.live.view import Flow
from nccl_inspector.model.process import FUNCS, Process
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.figures import total_waiting
from nccl_inspector.store.card_rows import rows_of
from nccl_inspector.store.index import put, reading, writing
from nccl_inspector.store.place import IndexPlace
from nccl_inspector.store.queries import JobFilter, find_jobs
from nccl_inspector.summary.attempts import Loaded
from tests.support import json_lines
from tests.support.boxes import MS, fixed_chance
from tests.support.synthetic.jobs import Job, through_summaries

SEEDS = range(12)
# Of the ranks' time: a bucket of a histogram is 3 % wide, and half of that is what it may be wrong.
CLOSE = 0.02


def job_of(seed: int) -> tuple[Job, list[Process]]:
    """Return a job of some groups whose ranks come late by turns, and a look halfway through."""
    chance = fixed_chance(seed)
    job = Job(chance, chance.choice((2, 3, 4, 8)), chance.choice((2, 8)), sampled=True)
    groups = [job.group("world", range(job.ranks))]
    if job.ranks > 2:
        groups += [job.group("half", range(first, job.ranks, 2)) for first in (0, 1)]
    kinds = [
        (group, func, 1 << chance.randrange(16, 28), chance.uniform(1, 8) * MS)
        for group in groups
        for func in chance.sample(["AllReduce", "AllGather", "ReduceScatter", "Broadcast"], 2)
        if len(group.members) > 1
    ]
    late = {rank: chance.choice((0, 0, 2, 20)) * MS for rank in range(job.ranks)}
    halfway: list[Process] = []
    for iteration in range(240):
        if iteration == 120:
            halfway = job.processes()
        job.compute(20 * MS, {rank: ns * chance.random() for rank, ns in late.items()})
        for group, func, size, time_ns in kinds:
            job.collective(group, func, size, time_ns)
    return job, halfway


def records(processes: Sequence[Process]) -> Iterator[tuple[int, int, str, int, int, int, int]]:
    """Yield member, communicator, function, number, bytes, time and end of each operation (ns)."""
    for member, process in enumerate(processes):
        assert process.samples is not None
        columns, kinds = process.samples.columns(), process.samples.kinds
        for at, kind in enumerate(columns.kind.tolist()):
            one, time_ns = kinds[kind], int(columns.time_ns[at])
            end_ns = int(columns.start_ns[at]) + time_ns
            yield (
                member, one.comm_id, FUNCS[one.func], int(columns.index[at]),
                int(columns.bytes[at]), time_ns, end_ns,
            )  # fmt: skip


def true_share(processes: Sequence[Process], before: Sequence[Process] = ()) -> float:
    """Return the waiting of the operations that all wait in, but for those of an earlier look."""
    seen = {row[:4] for row in records(before)}
    times: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for member, comm, func, number, _, time_ns, _ in records(processes):
        if func in SYNCHRONISING and (member, comm, func, number) not in seen:
            times[comm, func, number].append(time_ns)
    busy_ns = sum(map(sum, times.values()))
    return sum(sum(one) - len(one) * min(one) for one in times.values()) / busy_ns


def write_lines(processes: Sequence[Process], folder: Path) -> None:
    """Write the operations as JSON lines, a file for each process."""
    rows = defaultdict(list)
    for member, comm, func, number, size, time_ns, end_ns in records(processes):
        mine = next(one for one in processes[member].comms if one.id == comm)
        line = json_lines.ours(number, member, time_ns, end_ns // 1000)
        line["header"] = json_lines.header(mine.rank, mine.nranks, hex(comm))
        line["coll_perf"] |= {"coll": func, "coll_msg_size_bytes": size}
        rows[member].append(line)
    for member, lines in rows.items():
        json_lines.write(folder, f"node{member // 2}-pid{1000 + member}.log", lines)


def live_share(processes: Sequence[Process], before: Sequence[Process]) -> float | None:
    """Return the waiting as a live view shows it after two looks."""
    deltas = [since(one, old) for one, old in zip(processes, before, strict=True)]
    names = [f"rank {rank}" for rank in range(len(deltas))]
    waiting = split_waiting(join_communicators([("n1", one) for one in deltas], names))
    flows = (flow_of(one, 1.0, *waiting[name]) for one, name in zip(deltas, names, strict=True))
    return Flow.of(flows).waiting


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[pytest.mark.long] if seed in SEEDS[3:] else []) for seed in SEEDS],
)
def test_report_store_live_view_and_lines_tell_the_same_waiting(seed: int, tmp_path: Path) -> None:
    job, halfway = job_of(seed)
    processes = job.processes()
    true = true_share(processes)
    write_lines(processes, tmp_path)
    with load(tmp_path) as capture:
        assert waiting_share(join(capture)) == pytest.approx(true, abs=1e-6)

    close, live_close = (pytest.approx(one, abs=CLOSE) for one in (
        true, true_share(processes, halfway)))  # fmt: skip
    without = [replace(one, samples=None) for one in processes]
    assert total_waiting(join_communicators([("n1", one) for one in without])) == close
    card = build_card(Loaded(tuple(through_summaries(processes)), (0,), ()))
    assert card.verdict.waiting_share == close
    with writing(IndexPlace(tmp_path), None) as index:
        put(index, rows_of(card))
    with reading(IndexPlace(tmp_path)) as (index, _):
        (kept,) = [one.waiting_share for one in find_jobs(index, JobFilter())]
    assert kept == card.verdict.waiting_share

    nothing = [replace(one, keys=()) for one in processes]
    assert live_share(processes, nothing) == close
    assert live_share(processes, halfway) == live_close
