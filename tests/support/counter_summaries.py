# SPDX-License-Identifier: Apache-2.0
"""Node summaries with counters."""

from dataclasses import replace

from nccl_inspector.counters.node_counters import NodeCounters, Span
from nccl_inspector.summary.codec import Head, NodeSummary

START_S = 1_700_000_000
HEAD = Head(
    42, 1, "amy", "phys", "gpu", "c1", "n1", "n[1-2]", 2, 0, START_S, START_S, START_S + 600, "", ()
)
SPANS = tuple(
    Span(source, START_S + 2, START_S + 598, 596, 11, "")
    for source in ("infiniband", "gpu", "pressure")
)


def on(name: str, counters: NodeCounters | None) -> NodeSummary:
    return NodeSummary(replace(HEAD, node=name), (), counters)
