# SPDX-License-Identifier: Apache-2.0
"""Print an estimate as text."""

import textwrap
from collections.abc import Iterator

from nccl_inspector.agent.series_budget import series_limit
from nccl_inspector.estimate.cost import ACTIVE_BYTES, ACTIVE_BYTES_2_42, RULES_INTERVAL_S, Cost
from nccl_inspector.estimate.shape import GPU_COMMS_MAX, GPU_SERIES_MAX, KINDS_MAX, Shape
from nccl_inspector.model.table_columns import COLUMNS

_NAME = 12


def size(count: float) -> str:
    """Return a number of bytes as text, with three significant digits; 1 kB is 1000 bytes."""
    for unit, each in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= each:
            return f"{count / each:.3g} {unit}"
    return f"{count:.0f} B"


def _number(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _left_out(shape: Shape, cost: Cost) -> str:
    if cost.kinds_shown == cost.kinds:
        return f"all {cost.kinds} kinds of operation have series"
    words = f"the busiest {cost.kinds_shown} of {cost.kinds} kinds of operation have series"
    words += f": a GPU has {GPU_SERIES_MAX} at most"
    if shape.comms > GPU_COMMS_MAX:
        words += f", {GPU_COMMS_MAX} communicators"
    if shape.kinds > KINDS_MAX:
        words += f"; a process counts {KINDS_MAX} kinds, the rest as dropped"
    return words


def _rows(shape: Shape, cost: Cost) -> Iterator[tuple[str, str]]:
    here = min(shape.ranks, shape.gpus_per_node)
    nodes = shape.jobs * shape.nodes
    yield (
        "assumed",
        f"{_number(shape.jobs, 'job')} of {_number(shape.ranks, 'rank')}, one a GPU, on "
        f"{_number(shape.nodes, 'node')} each; {_number(shape.comms, 'communicator')} of "
        f"{_number(shape.sizes, 'size')} and {_number(shape.collectives, 'collective')}"
        f"{f' and {shape.p2p} of Send, Recv, SendRecv' if shape.p2p else ''}; every kind runs "
        f"in each interval of {shape.interval_s:g} s; no network detail, no phases",
    )
    if shape.counters:
        yield (
            "and",
            f"{_number(shape.ports, 'port')} and {_number(shape.gpus_per_node, 'GPU')} a node that "
            "count all that the agent asks for",
        )
    yield "a process", f"{cost.process_series} series; {_left_out(shape, cost)}"
    shown = shape.shown(here)
    limit = f" (the agent publishes {shown} of {here} processes)" if shown < here else ""
    yield (
        "a node",
        f"{cost.node_series:,} series, {size(cost.scrape_bytes)} a scrape before compression"
        f"{limit}",
    )
    yield (
        _number(nodes, "node"),
        f"{cost.series:,} series, {cost.samples_per_s:,.0f} samples/s scraped each "
        f"{shape.scrape_s:g} s, {size(cost.all_scrape_bytes)} for all of them once",
    )
    yield (
        "Prometheus",
        f"{size(cost.memory_bytes)} of memory ({ACTIVE_BYTES / 1e3:g} kB an active series, "
        f"measured with 3.5.3; 2.42 takes {ACTIVE_BYTES_2_42 / 1e3:g}), with what ended within "
        f"3 h where a job lives {shape.job_hours:g} h; {size(cost.disk_bytes_per_day)} a day on "
        f"disk, {size(cost.disk_bytes_per_day * shape.days)} for {shape.days:g} days, "
        "and the index",
    )
    yield (
        "hosts",
        f"a Prometheus 2.42 with {size(cost.host_bytes)} of memory can hold the series of "
        f"{_number(cost.host_nodes, 'such node')}, and half of its memory is left for queries",
    )
    more = (
        f"; let {cost.hosts} Prometheus servers share the nodes (setup monitoring --set "
        f"shards={cost.hosts}): page large-sites"
    )
    yield (
        "rules",
        f"on one server all of them take {cost.rules_s:.3g} s, each {RULES_INTERVAL_S:g} s "
        f"(measured with 2.42 on one core); half of that time is enough for "
        f"{_number(cost.rules_nodes, 'such node')}{more if cost.hosts > 1 else ''}",
    )
    yield (
        "at most",
        f"{cost.head_series_max:,} series of a job in a Prometheus' head, whatever "
        f"it does ({series_limit(1):,} a GPU, and the agent's own), {cost.life_series_max:,} in "
        f"{shape.job_hours:g} h; {size(cost.page_bytes_max)} a scrape of a node's jobs. The agent "
        "leaves out the rest and counts it",
    )
    yield (
        "tmpfs",
        f"{size(cost.tmpfs_bytes)} and {cost.tmpfs_inodes} inodes a node: a box of "
        f"{size(cost.box_bytes)} and a file for each process, and what is published",
    )
    yield (
        "agent",
        f"reads {size(cost.agent_read_bytes)} and writes {size(cost.agent_write_bytes)} "
        "in each interval",
    )
    yield "reports", f"at most {size(cost.report_bytes)} a job on shared storage"


def render(shape: Shape, cost: Cost) -> str:
    """Return the estimate as lines of text."""
    lines = []
    for name, words in _rows(shape, cost):
        wide = max(_NAME, len(name) + 2)
        lines += textwrap.wrap(
            words,
            COLUMNS,
            initial_indent=name.ljust(wide),
            subsequent_indent=" " * _NAME,
        )
    return "\n".join(lines) + "\n"
