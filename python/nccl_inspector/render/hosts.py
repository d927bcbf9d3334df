# SPDX-License-Identifier: Apache-2.0
"""How long the application's threads were inside NCCL, and the section HOST of a report."""

from collections.abc import Sequence
from statistics import median

from nccl_inspector.model.card import Card
from nccl_inspector.model.card_hosts import HostTime, HostTimes
from nccl_inspector.model.process import Process
from nccl_inspector.model.table_columns import make_columns
from nccl_inspector.model.wording import compact, duration, elapsed, number
from nccl_inspector.render.output_limits import Limits
from nccl_inspector.render.tables import Grid, Row

HOSTS_MAX = 256  # in a card: those with the longest calls
_NS = 1e9
_SLOW_TIMES = 2.0  # times the median process's mean: slower processes are shown
_COLUMNS = make_columns(
    "process:", "node:", "calls", "mean", "longest", "in all", "launches", "mean", "longest",
)  # fmt: skip


def describe_hosts(placed: Sequence[tuple[str, Process]], names: Sequence[str]) -> HostTimes | None:
    """Return how long the processes' hosts were in NCCL's calls, or None if it was not measured.

    `placed` are the processes with their nodes, `names` their names.
    """
    found = [
        HostTime(
            name, node, facts.calls, facts.call_ns / _NS, facts.call_max_ns / _NS,
            facts.launches, facts.launch_ns / _NS, facts.launch_max_ns / _NS,
        )
        for (node, process), name in zip(placed, names, strict=True)
        if (facts := process.facts).calls
    ]  # fmt: skip
    if not found:
        return None
    slowest = sorted(found, key=lambda one: -one.mean_s)[:HOSTS_MAX]
    return HostTimes(tuple(slowest), len(found), median(one.mean_s for one in found))


def _cells(one: HostTime) -> tuple[str, ...]:
    launch_s = one.launch_s / one.launches if one.launches else 0.0
    return (
        one.process,
        one.node,
        compact(one.calls),
        duration(one.mean_s * _NS),
        duration(one.call_max_s * _NS),
        elapsed(one.call_s),
        compact(one.launches),
        duration(launch_s * _NS),
        duration(one.launch_max_s * _NS),
    )


def host_times(card: Card, limits: Limits) -> Grid:
    """Return the section HOST; empty if the host's time was not measured.

    It shows the processes whose calls are far longer than usual, or else the slowest one.
    """
    found = card.hosts
    if found is None:
        return Grid("HOST")
    least_s = _SLOW_TIMES * found.usual_call_s
    slow = [one for one in found.processes if one.mean_s >= least_s] or found.processes[:1]
    rows = tuple(Row(_cells(one)) for one in slow[: limits.hosts])
    about = (
        "(how long the application was inside NCCL's calls, launches of kernels among it; the "
        f"middle process {duration(found.usual_call_s * _NS)} a call)"
    )
    left = number(found.measured - len(rows), "process")
    lines = () if len(rows) == found.measured else (limits.more(left),)
    return Grid("HOST", about, _COLUMNS, rows, lines)
