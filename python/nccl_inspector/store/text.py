# SPDX-License-Identifier: Apache-2.0
"""Jobs, nodes and differences as text for a terminal: 100 columns, plain ASCII."""

import textwrap
from collections.abc import Iterator, Sequence

from nccl_inspector.analysis.history.compare import (
    FASTER,
    NOISE,
    SLOWER,
    Difference,
    KindChange,
    Side,
)
from nccl_inspector.analysis.history.node_score import NodeScore
from nccl_inspector.model.bandwidth import size_label
from nccl_inspector.model.hostlist import compress_within
from nccl_inspector.model.table_columns import COLUMNS, Column, fit_columns, make_columns, row_text
from nccl_inspector.model.wording import bandwidth, change, clock, elapsed, number, percent
from nccl_inspector.store.card_rows import JobRow
from nccl_inspector.store.rollup import Rolled, roll_up, singly
from nccl_inspector.system.printable import plain

KINDS_SHOWN, NODES_SHOWN = 24, 12
_NODES_CHARS = 60
_VALUE_CHARS = 200


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    cells = [tuple(map(plain, row)) for row in rows]
    widths = fit_columns(columns, cells, COLUMNS)
    yield row_text(columns, widths, [column.title for column in columns])
    for row in cells:
        yield row_text(columns, widths, row)


def _wrap(text: str, indent: str = "  ") -> str:
    words = plain(text)
    return textwrap.fill(words, COLUMNS, initial_indent=indent, subsequent_indent=f"{indent}  ")


def _nodes(nodes: Sequence[str]) -> str:
    text, rest = compress_within(nodes, _NODES_CHARS)
    return f"{text} and {rest} more" if rest else text


_JOBS = make_columns(
    "JOB", "USER:", "PARTITION:", "NAME:", "VERDICT:", "END UTC", "NODES", "COST", "MIXED GB/s",
    "WAIT", "ASKED:", "USED",
)  # fmt: skip


_CLUSTER = make_columns("CLUSTER:")


def _verdict(one: Rolled) -> str:
    worst, count = one.worst, len(one.tasks)
    words = f"{worst.status} ({worst.cause})" if worst.cause else worst.status
    return words if count == 1 else f"{one.like_worst}/{count} {words}"


def _job_row(one: Rolled) -> tuple[str, ...]:
    job = one.latest
    asked = job.switches_asked or (f"segment {job.segment_asked}" if job.segment_asked else "-")
    cost_s = one.sum_of(lambda task: task.cost_s)
    nodes = one.median_of(lambda task: task.num_nodes)
    used = one.median_of(lambda task: task.switches_used)
    return (
        one.name,
        job.user or str(job.uid or "-"), job.partition or "-", job.name or "-",
        _verdict(one),
        clock(job.end_s, "%m-%d %H:%M"), f"{nodes:g}" if nodes else "-",
        "-" if cost_s is None else elapsed(cost_s),
        bandwidth(one.median_of(lambda task: task.mixed_gbs)),
        percent(one.median_of(lambda task: task.waiting_share)),
        asked, f"{used:g}" if used else "-",
    )  # fmt: skip


def jobs_text(jobs: Sequence[JobRow], all_jobs: bool, each_task: bool = False) -> str:
    """Return one line for each job or array; ASKED and USED are leaf switches or blocks.

    For several tasks, cost is the sum; bandwidth and waiting are medians. Jobs of several clusters
    may have the same number: then there is a column for the cluster.
    """
    if not jobs:
        return "no such job in the index\n"
    rolled = singly(jobs) if each_task else roll_up(jobs)
    columns, rows = _JOBS, [_job_row(one) for one in rolled]
    if len({job.cluster for job in jobs}) > 1:
        columns = (*_JOBS[:1], *_CLUSTER, *_JOBS[1:])
        rows = [
            (row[0], one.latest.cluster or "-", *row[1:])
            for one, row in zip(rolled, rows, strict=True)
        ]
    lines = list(_table(columns, rows))
    if any(len(one.tasks) > 1 for one in rolled):
        lines.append("810_*: an array's tasks together; --tasks has each.")
    if not all_jobs:
        lines.append("Your own jobs; those of others are for report_group.")
    return "\n".join(lines) + "\n"


_NODE = make_columns(
    "NODE:", "USERS", "JOBS", "COMPARED", "NAMED IN", "BANDWIDTH", "Z", "WORST JOBS:",
)  # fmt: skip


def _node_row(one: NodeScore) -> tuple[str, ...]:
    return (
        one.node, str(one.users), str(one.jobs), str(one.compared), str(one.named),
        change(one.depth),
        "-" if one.z is None else f"{one.z:.1f}", ", ".join(map(str, one.worst)) or "-",
    )  # fmt: skip


def _against(one: NodeScore) -> str:
    said = []
    if "slow" in one.reasons:
        said.append(f"its jobs are slow beside their like ({change(one.depth)} at the median)")
    if "named" in one.reasons:
        said.append(
            f"warnings are about it in {one.named} of {one.jobs} jobs, "
            f"by {one.named_by} of {number(one.users, 'user')}"
        )
    if one.with_it:
        said.append(f"not told apart from {_nodes(one.with_it)}")
    return _wrap(f"{one.node}: {'; '.join(said)}")


def nodes_text(
    scores: Sequence[NodeScore], jobs: int, everything: bool, *, each_job: bool = False
) -> str:
    """Return suspects first, with the evidence; it is a hint, never a reason to drain a node."""
    if not scores:
        return "no job in the index\n"
    suspects = [one for one in scores if one.suspect]
    if suspects:
        lines = [f"SUSPECTS over the last {jobs} jobs: a hint for a health check, no verdict"]
        lines += _table(_NODE, [_node_row(one) for one in suspects])
        lines += map(_against, suspects)
    else:
        compared = sum(one.z is not None for one in scores)
        lines = [f"No node stands out over the last {jobs} jobs; {compared} could be compared."]
    others = [one for one in scores if not one.suspect]
    shown = others if everything else others[:NODES_SHOWN]
    if shown:
        lines += ["OTHERS", *_table(_NODE, [_node_row(one) for one in shown])]
    if len(shown) < len(others):
        lines.append(f"  and {len(others) - len(shown)} more (--all)")
    lines.append("BANDWIDTH: median over its users, each beside their own jobs of the same kinds")
    if not each_job:
        lines.append("Users are counted, not jobs (--each-job: for jobs that are all one user's).")
    return "\n".join(lines) + "\n"


_KIND = make_columns(
    "COMMUNICATOR:", "OP:", "SIZE:", "T of A ms", "of B", "CHANGE", "A GB/s", "B", "A WAIT", "B",
    ":",
)  # fmt: skip


def _of(side: Side | None) -> tuple[str, str, str]:
    if side is None:
        return "-", "-", "-"
    return f"{side.time_ns / 1e6:.4g}", bandwidth(side.bus_gbs), percent(side.waiting_share)


def _kind_row(one: KindChange) -> tuple[str, ...]:
    kind = one.kind
    a, b = _of(one.a), _of(one.b)
    waiting = ", waiting" if one.waiting_delta is not None else ""
    return (
        f"{kind.name or '-'} {kind.nranks}/{kind.nnodes}", kind.func, size_label(kind.size_class),
        a[0], b[0], change(one.delta), a[1], b[1], a[2], b[2], one.verdict + waiting,
    )  # fmt: skip


def _nodes_line(difference: Difference) -> str:
    parts = [
        f"{words}: {_nodes(nodes)}"
        for words, nodes in (
            ("only in A", difference.nodes_gone),
            ("only in B", difference.nodes_new),
        )
        if nodes
    ]
    same = f"{difference.nodes_both} in both"
    return _wrap("NODES  " + ("; ".join([*parts, same]) if parts else f"the same, {same}"), "")


def _summary(difference: Difference) -> str:
    verdicts = [one.verdict for one in difference.kinds]
    both = sum(one.a is not None and one.b is not None for one in difference.kinds)
    waiting = sum(one.waiting_delta is not None for one in difference.kinds)
    return (
        f"B beside A: of {both} kinds of operation {verdicts.count(SLOWER)} slower, "
        f"{verdicts.count(FASTER)} faster, {verdicts.count(NOISE)} within noise; "
        f"waiting changed in {waiting}"
    )


def difference_text(difference: Difference, everything: bool) -> str:
    """Return what changed from A to B: the answer first, then figures."""
    script = {True: "the same script", False: "another script", None: "script not known"}
    lines = [
        f"COMPARE  A: job {difference.a}, B: job {difference.b} ({script[difference.same_script]})",
        _summary(difference),
        *map(_wrap, difference.notes),
        _nodes_line(difference),
    ]
    if difference.fields:
        lines.append("CHANGED")
        lines += [
            _wrap(f"{one.field}: {one.a[:_VALUE_CHARS]} -> {one.b[:_VALUE_CHARS]}")
            for one in difference.fields
        ]
    shown = difference.kinds if everything else difference.kinds[:KINDS_SHOWN]
    if shown:
        lines.append("TIMES  T: transfer without waiting; WAIT: the share of waiting; ranks/nodes")
        lines += _table(_KIND, [_kind_row(one) for one in shown])
    if len(shown) < len(difference.kinds):
        lines.append(f"  and {len(difference.kinds) - len(shown)} more (--all)")
    return "\n".join(lines) + "\n"
