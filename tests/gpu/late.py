# SPDX-License-Identifier: Apache-2.0
"""The planted late rank: the others wait for it inside the operation, and the report names it."""

from collections import Counter
from collections.abc import Mapping
from statistics import median

from nccl_inspector.analysis.histogram import median_ns
from nccl_inspector.model.card import Card
from nccl_inspector.model.process import ALGOS, FUNCS, Histogram, Process
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import Head, NodeSummary
from tests.gpu.checks import Check
from tests.gpu.plan import WORLD

REPORT_LINES_KEPT = 24


def job_card(boxes: Mapping[int, Process]) -> Card:
    """Return the report that a job of these processes would get, one rank a node."""
    nodes = {rank: f"n{rank + 1}" for rank in boxes}
    start = min(comm.created_ns for box in boxes.values() for comm in box.comms) // 10**9
    summaries = tuple(
        NodeSummary(
            Head(
                job_id=4711, uid=0, user="", account="", partition="", cluster="",
                node=nodes[rank], nodelist=",".join(nodes.values()), num_nodes=len(nodes),
                restart=0, start=start, job_start=start, end=box.facts.beat_ns // 10**9,
                het_job_id="", problems=(),
            ),
            (box,),
        )
        for rank, box in sorted(boxes.items())
    )  # fmt: skip
    return build_card(Loaded(summaries, attempts=(0,), problems=()))


def median_times_ns(boxes: Mapping[int, Process], func: str) -> dict[int, float]:
    """Return each rank's median time of a function in the communicator of all ranks.

    Of the size that has most operations, over algorithms and protocols.
    """
    table = {}
    for rank, box in boxes.items():
        world = {comm.index for comm in box.comms if comm.name == WORLD}
        by_size: dict[int, Counter[int]] = {}
        for key in box.keys:
            if key.comm in world and FUNCS[key.func] == func and ALGOS[key.algo] != "GROUP":
                by_size.setdefault(key.size_class, Counter()).update(dict(key.histogram.pairs()))
        if by_size:
            most = max(by_size.values(), key=lambda histogram: histogram.total())
            table[rank] = median_ns(Histogram.of(most.items()))
    return table


def check_late(boxes: Mapping[int, Process], late_rank: int, late_s: float) -> Check:
    """The late rank has the shortest times, by at least half its delay, and the report says so."""
    check = Check("late", "Has the late rank the shortest times, and does the report name it?")
    medians = median_times_ns(boxes, "AllReduce")
    check.figures = {
        "late_rank": late_rank,
        "late_ms": late_s * 1e3,
        "median_ms_by_rank": {rank: round(ns / 1e6, 3) for rank, ns in sorted(medians.items())},
    }
    others = [ns for rank, ns in medians.items() if rank != late_rank]
    if late_rank not in medians or not others:
        check.problems.append("there are no times")
        return check
    own = medians[late_rank]
    check.demand(own < min(others), "another rank has shorter times")
    check.demand(
        median(others) - own >= late_s * 1e9 / 2, "the others' times are hardly longer than its own"
    )
    card = job_card(boxes)
    named = [one.node for one in card.stragglers if one.flagged]
    check.figures["named"] = named
    check.figures["report"] = render_text(card).splitlines()[:REPORT_LINES_KEPT]
    check.demand(named[:1] == [f"n{late_rank + 1}"], f"the report names {named or 'nobody'}")
    return check
