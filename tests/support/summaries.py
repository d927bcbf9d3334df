# SPDX-License-Identifier: Apache-2.0
"""Node summaries, of boxes and of simulated jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nccl_inspector.analysis.join import JoinedComm, join_communicators
from nccl_inspector.model.process import KILLED, Process
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import Head, NodeSummary, encode, encode_process
from tests.support.boxes import MS, BoxOf, CommOf, KeyOf, fixed_chance, read_dead_box, write_box
from tests.support.synthetic.jobs import Job

HEAD = Head(42, 1, "amy", "phys", "gpu", "c1", "n1", "n[1-4]", 4, 0, 1, 1, 2, "", ("a problem",))
FIRST = Head(42, 1, "amy", "phys", "gpu", "c1", "n1", "n[1-4]", 4, 0, 1, 1, 2, "", ())


def read_process(path: Path) -> Process:
    return read_dead_box(path, "0_77")


def times(middle_ms: float, count: int = 50) -> list[int]:
    """Return times around a middle, two percent apart."""
    return [int(middle_ms * MS * (0.99 + 0.02 * n / count)) for n in range(count)]


def process_of(folder: Path, box: BoxOf) -> Process:
    folder.mkdir(exist_ok=True)
    return read_process(write_box(folder, f"0_{box.procid}", box))


def joined(
    folder: Path, medians_ms: Mapping[int, float], func: int = 1, size: int = 1 << 20
) -> JoinedComm:
    """Return the communicator of ranks with these medians."""
    count = len(medians_ms)
    processes = [
        process_of(
            folder,
            BoxOf([CommOf(7, rank, count)], [KeyOf(0, times(ms), func, size)], procid=rank),
        )
        for rank, ms in medians_ms.items()
    ]
    (comm,) = join_communicators(("n1", process) for process in processes)
    return comm


def eight_ranks(slow: int | None = 5, *, sampled: bool = True) -> list[NodeSummary]:
    """Return four nodes of two ranks: a world, a communicator per node, and one per position.

    The slow rank makes its node's other rank late, too, in that one's position. Rank 7 died.
    """
    job = Job(fixed_chance(3), 8, 2, sampled=sampled)
    world = job.group("world", range(8))
    nodes = [job.group("node", (rank, rank + 1)) for rank in range(0, 8, 2)]
    positions = [job.group("position", range(place, 8, 2)) for place in range(2)]
    for _ in range(250):
        job.compute(80 * MS, {} if slow is None else {slow: 8 * MS})
        for group in nodes:
            job.collective(group, "AllGather", 1 << 20, 2 * MS)
        for group in positions:
            job.collective(group, "ReduceScatter", 1 << 16, 3 * MS)
        job.collective(world, "AllReduce", 1 << 22, 4 * MS)
    found = job.summaries()
    last = found[-1].processes[-1]
    died = replace(last, facts=replace(last.facts, state=KILLED))
    return [*found[:-1], replace(found[-1], processes=(*found[-1].processes[:-1], died))]


def text_of(summaries: Sequence[NodeSummary], everything: bool = False) -> str:
    return render_text(build_card(Loaded(tuple(summaries), (0,), ())), everything)


def write_summary(place: Path, summary: NodeSummary) -> None:
    place.mkdir(exist_ok=True)
    blocks = [encode_process(process) for process in summary.processes]
    name = f"{summary.head.node}.{summary.head.restart}.nodesummary"
    (place / name).write_bytes(encode(summary.head, blocks))
