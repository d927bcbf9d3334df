# SPDX-License-Identifier: Apache-2.0
"""On which nodes the counters of links and GPUs were sampled, and where or when they were not."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_inspector.counters.node_counters import NodeCounters
from nccl_inspector.summary.codec import Head, NodeSummary

# Samples are a minute apart; a gap this long at either end of the job is reported.
EDGE_S = 90


@dataclass(frozen=True, slots=True)
class SampledNodes:
    """All nodes of a report together."""

    sampled: int  # nodes
    absent: dict[str, tuple[str, ...]]  # nodes by why they have no counters, or none of a source
    problems: tuple[str, ...]


def _edges(head: Head, counters: NodeCounters) -> Iterator[str]:
    """Yield texts about parts of the job that were not sampled."""
    spans = [span for span in counters.spans if not span.absent]
    if not spans:
        return
    late_s = min(span.first_s for span in spans) - head.start
    if late_s > EDGE_S:
        yield f"{head.node}: counters from {late_s} s after the job's start on"
    early_s = head.end - max(span.last_s for span in spans)
    if early_s > EDGE_S:
        yield f"{head.node}: counters until {early_s} s before the job's end"


def find_links(summaries: Sequence[NodeSummary]) -> SampledNodes | None:
    """Return what was sampled; None: no summary has counters, or a reason for their absence."""
    absent: dict[str, list[str]] = defaultdict(list)
    problems: list[str] = []
    sampled = 0
    for summary in summaries:
        head, counters = summary.head, summary.counters
        if counters is None:
            continue
        if counters.absent:
            absent[counters.absent].append(head.node)
            continue
        sampled += 1
        for span in counters.spans:
            if span.absent:
                absent[span.absent].append(head.node)
        problems += _edges(head, counters)
        problems += [f"{head.node}: {problem}" for problem in counters.problems]
    if not sampled and not absent:
        return None
    nodes = {why: tuple(names) for why, names in absent.items()}
    return SampledNodes(sampled, nodes, tuple(problems))
