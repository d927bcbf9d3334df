# SPDX-License-Identifier: Apache-2.0
"""The tables of a report for a terminal; each section has a function."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_inspector.model.bandwidth import size_label
from nccl_inspector.model.card import (
    Baseline,
    Card,
    Communicator,
    Counter,
    Hang,
    Operations,
    Straggler,
    Transport,
)
from nccl_inspector.model.table_columns import Column, make_columns
from nccl_inspector.model.transport import UNKNOWN
from nccl_inspector.model.wording import (
    amount,
    bandwidth,
    change,
    clock,
    compact,
    cut_list,
    duration,
    elapsed,
    expected,
    node_list,
    number,
    percent,
)
from nccl_inspector.render.output_limits import Limits

_NAME_CHARS = 40


@dataclass(frozen=True, slots=True)
class Row:
    """Cells of a table, or a text that is between its rows (`between`)."""

    cells: tuple[str, ...] = ()
    between: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A section: a title, an explanation, a table, and lines below it."""

    title: str
    about: str = ""
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    lines: tuple[str, ...] = ()


_OPERATIONS = make_columns(
    "operation:", "size:", "algorithm:", "count", "time T", "bus GB/s", "expect", "base",
    "waiting", "waited for:",
)  # fmt: skip
_TRANSPORTS = make_columns(
    "class:", "busy", "of the job's time", "waiting", "bus GB/s", "vs baseline", "worst window:",
)  # fmt: skip
_STRAGGLERS = make_columns(
    "process:", "node:", "gpu:", "late (median)", "of windows", "peers waited", "in comms",
    "kind:", ":",
)  # fmt: skip
_BASELINE = make_columns("figure:", "this job", "median", "spread (MAD)", "z", "other users")


def used_columns(grid: Grid) -> list[int]:
    """Return the columns to show: those in which some row is not empty."""
    filled = [row.cells for row in grid.rows if row.cells]
    return [
        at for at in range(len(grid.columns)) if any(row[at] not in ("", "-") for row in filled)
    ]


def _reached(one: Operations) -> float | None:
    """Return the bandwidth as a share of the expected one."""
    return one.bus_gbs / one.expected_gbs if one.bus_gbs and one.expected_gbs else None


def _operations(one: Operations) -> Row:
    cells = (
        one.func,
        size_label(one.size_class),
        one.algo_proto.replace("COLLNET_", "CN_"),
        compact(one.count) if one.count else "-",
        duration(one.time_ns) + ("*" if one.waiting_included else ""),
        bandwidth(one.bus_gbs),
        expected(_reached(one), one.size_class),
        change(one.baseline_delta),
        percent(one.waiting_share),
        f"{one.waited_for} {one.waited_for_node}".rstrip() or "-",
    )
    return Row(cells)


def _head(one: Communicator) -> str:
    name = one.name if len(one.name) <= _NAME_CHARS else f"{one.name[: _NAME_CHARS - 2]}.."
    place = f" on {number(one.nnodes, 'node')}" if one.nnodes else ""
    # Communicators that were summed have no id of NCCL's.
    own_id = one.id if one.id.startswith("0x") else ""
    seen = f", {one.ranks_seen} of them seen" if 0 < one.ranks_seen < one.nranks else ""
    words = [name or "(no name)", own_id, one.transport if one.transport != UNKNOWN else ""]
    ranks = number(one.nranks or one.ranks_seen, "rank")
    return f" {'  '.join(word for word in words if word)}  {ranks}{place}{seen}"


def _total_ns(one: Operations) -> float:
    """Return the time that the busiest rank spent in these operations, waiting included."""
    waiting = 0.0 if one.waiting_included else min(one.waiting_share or 0.0, 0.999)
    return one.count * one.time_ns / (1.0 - waiting)


def _communicator(one: Communicator, found: Sequence[Operations]) -> Iterator[Row]:
    yield Row(between=_head(one))
    for operations in found:
        yield _operations(operations)
        for note in operations.notes:
            if note not in one.notes:
                yield Row(between=f"     ({note})")
    for note in one.notes:
        yield Row(between=f"     ({note})")


def _longest(card: Card, limits: Limits) -> list[tuple[Communicator, list[Operations]]]:
    """Return the communicators with the kinds of operation that took most of the time."""
    by_time = sorted(card.operations, key=_total_ns, reverse=True)[: limits.operations]
    shown = {id(one) for one in by_time}
    by_id: dict[str, list[Operations]] = {}
    for one in card.operations:
        if id(one) in shown:
            by_id.setdefault(one.communicator, []).append(one)
    found = [(one, by_id.get(one.id, [])[: limits.kinds]) for one in card.communicators]
    if len(card.operations) > limits.operations:
        found = [(one, operations) for one, operations in found if operations]
    return found[: limits.communicators]


def communicators(card: Card, limits: Limits) -> Grid:
    """Return the section COMMUNICATORS: what took the most time."""
    found = _longest(card, limits)
    rows = [row for one, operations in found for row in _communicator(one, operations)]
    lines = []
    left_out = len(card.operations) - sum(len(operations) for _, operations in found)
    others = len(card.communicators) - len(found)
    if left_out:
        kinds = f"{number(left_out, 'kind')} of operation that took less time"
        among = f", among them all of {number(others, 'communicator')}" if others else ""
        lines.append(f"left out: {kinds}{among}{limits.hint}")
    elif others:
        lines.append(limits.more(number(others, "communicator")))
    if any(one.waiting_included for one in card.operations):
        lines.append("* waiting for late ranks is in this time")
    if any((_reached(one) or 0.0) >= 1.005 for one in card.operations):
        lines.append("expect: above 100% is faster than what its source measured")
    about = "(time T: the transfer itself, without the waiting for the last rank)"
    if card.operations and all(one.waiting_included for one in card.operations):
        about = ""
    return Grid("COMMUNICATORS", about, _OPERATIONS, tuple(rows), tuple(lines))


def _transport(one: Transport, card: Card) -> Row:
    depths = [
        slow.depth
        for slow in card.timeline.degradations
        if slow.transport == one.transport and not slow.waited_longer
    ]
    cells = (
        one.transport,
        elapsed(one.busy_s),
        percent(one.wall_share),
        percent(one.waiting_share),
        bandwidth(one.bus_gbs),
        change(one.baseline_delta),
        change(min(depths)) if depths else "-",
    )
    return Row(cells)


def transports(card: Card, _limits: Limits) -> Grid:
    """Return the section TRANSPORT."""
    rows = tuple(_transport(one, card) for one in card.transports)
    wall_s = card.job.wall_s
    lines: tuple[str, ...] = ()
    if wall_s and any(one.busy_s > wall_s for one in card.transports):
        lines = (
            "busy: summed over operations, which overlap here, so it is more than the job's time",
        )
    return Grid("TRANSPORT", "(times of the busiest rank)", _TRANSPORTS, rows, lines)


def _straggler(one: Straggler) -> Row:
    groups = str(len(one.communicators))
    cells = (
        one.rank,
        one.node,
        one.gpu,
        duration(one.late_ns),
        percent(one.windows_share),
        duration(one.waited_ns),
        f"{groups} of {one.member_of}" if one.member_of else groups,
        {"host": "host-late", "gpu": "GPU-late"}.get(one.kind, "-"),
        "" if one.flagged else "not accused",
    )
    return Row(cells)


def stragglers(card: Card, limits: Limits) -> Grid:
    """Return the section STRAGGLERS; if no process is named, only with `limits.everybody`."""
    named = any(one.flagged for one in card.stragglers)
    late = [one for one in card.stragglers if one.flagged or one.late_ns > 0]
    listed = late if named or limits.everybody else []
    rows = tuple(_straggler(one) for one in listed[: limits.stragglers])
    lines = []
    if len(listed) > limits.stragglers:
        lines.append(limits.more(number(len(listed) - limits.stragglers, "process")))
    if sum(one.flagged for one in listed) > 1:
        lines.append("Ranks that were only late because they waited for these are not named.")
    about = "(peers waited: all of them together)"
    return Grid("STRAGGLERS", about, _STRAGGLERS, rows, tuple(lines))


def _hang(one: Hang, names: dict[str, str], limits: Limits) -> Iterator[str]:
    since = f", since {clock(one.since_s)} UTC" if one.since_s is not None else ""
    name = names.get(one.communicator) or one.communicator
    sure = "" if one.confirmed else " (suspected)"
    yield (
        f"{one.func} {one.op_index} of {name}: {one.verdict}{sure}, in flight for "
        f"{elapsed(one.age_s)}{since}"
    )
    for words, who in (
        ("root", one.roots),
        ("never issued it", one.never_issued),
        ("called something else", one.mismatched),
        ("issued it, but their GPU never started it", one.not_started),
        ("dead", one.dead),
        ("not measured", one.not_measured),
        ("waiting", one.waiting),
    ):
        if who:
            count = f" ({len(who):,})" if len(who) > 1 else ""
            yield f"  {words}{count}: {cut_list(who, limits.names)}"


def hangs(card: Card, limits: Limits) -> Grid:
    """Return the section HANGS."""
    names = {one.id: one.name for one in card.communicators}
    lines = [text for one in card.hangs[: limits.hangs] for text in _hang(one, names, limits)]
    if len(card.hangs) > limits.hangs:
        lines.append(limits.more(number(len(card.hangs) - limits.hangs, "operation")))
    return Grid("HANGS", lines=tuple(lines))


def links(card: Card, limits: Limits) -> Grid:
    """Return the section LINKS AND GPUS."""
    sampled = card.data_quality.counters_nodes
    devices: dict[tuple[str, str], list[Counter]] = {}
    for one in card.counters:
        devices.setdefault((one.node, one.device), []).append(one)
    said = [
        f"{node} {device}: {'; '.join(one.words or amount(one.delta, one.unit) for one in found)}"
        for (node, device), found in devices.items()
    ]
    lines = said[: limits.devices]
    if len(said) > limits.devices:
        lines.append(limits.more(number(len(said) - limits.devices, "device")))
    if sampled and not said:
        lines.append(f"no error on {number(sampled, 'node')}")
    for gap in card.data_quality.gaps:
        if gap.kind == "node":
            lines.append(f"{gap.words}: {node_list(gap.names, limits.node_chars)}")
    about = "(the hardware's counters while the job ran; other jobs are in them too)"
    return Grid("LINKS AND GPUS", about, lines=tuple(lines))


def _whose(found: Baseline) -> str:
    """Return whose jobs this one was compared with."""
    own = f"{number(found.jobs, 'earlier job')} of the same user" if found.jobs else ""
    if found.differs:
        own += f", which differ in: {', '.join(found.differs)}"
    others = ""
    if found.others_users:
        others = (
            f"{number(found.others_jobs, 'job')} of {number(found.others_users, 'other user')} "
            "as information"
        )
    return "; ".join(filter(None, (own, others)))


def baseline(card: Card, _limits: Limits) -> Grid:
    """Return the section BASELINE."""
    found = card.baseline
    if found is None:
        return Grid("BASELINE")
    others = {one.name: amount(one.median, one.unit) for one in found.others}
    own = {one.name for one in found.metrics}
    rows = [
        Row(
            (
                one.name,
                amount(one.value, one.unit),
                amount(one.median, one.unit),
                amount(one.mad, one.unit),
                "-" if one.z is None else f"{one.z:+.1f}",
                others.get(one.name, ""),
            )
        )
        for one in found.metrics
    ]
    rows += [
        Row((one.name, amount(one.value, one.unit), "", "", "", others[one.name]))
        for one in found.others
        if one.name not in own
    ]
    return Grid("BASELINE", _whose(found), _BASELINE, tuple(rows))
