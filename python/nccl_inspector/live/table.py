# SPDX-License-Identifier: Apache-2.0
"""A live view as text for a terminal of any width, in plain ASCII whatever names users choose."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from nccl_inspector.live.view import CLASSES, Flow, LiveJob, LiveRank, Trouble, TroubleKind, View
from nccl_inspector.model.table_columns import Column, cut, fit_columns, make_columns, row_text
from nccl_inspector.system.printable import plain

COLUMNS_MIN = 40
_BESIDE_MIN = 40  # columns needed beside the table to put troubles there
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class ScreenLine:
    """A line of the screen; `kind` is that of its trouble, or None for a title."""

    text: str
    kind: TroubleKind | None = TroubleKind.NONE
    marked: bool = False  # the row that the user has chosen


@dataclass(frozen=True, slots=True)
class _ScreenRow:
    cells: tuple[str, ...]
    troubles: tuple[Trouble, ...]
    marked: bool = False


_FLOW = ("OPS/S", *map(str.upper, CLASSES), "WAIT", "OLDEST")
_JOB = make_columns("JOB", "USER:", "RANKS", *_FLOW, "DROPS")
_RANK = make_columns("RANK:", "GPU:", *_FLOW, "BEAT", "DROPS")


def number(value: float | None) -> str:
    """Return three significant digits with k, M or G; `-` if it is not known."""
    if value is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return _digits(value / size) + unit
    return _digits(value)


def _count(value: int | None) -> str:
    return str(value) if value is not None and value < 1000 else number(value)


def _digits(value: float) -> str:
    if value >= 99.95 or not value:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def age(seconds: float | None) -> str:
    """Return `0.4s`, `75s`, `12m` or `3h`; `-` for None."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    if seconds < 119.5:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7170 else f"{seconds / 3600:.0f}h"


def _flow_cells(flow: Flow | None, oldest_s: float | None) -> tuple[str, ...]:
    gbs = flow.gbs() if flow else {}
    waiting = flow.waiting if flow else None
    return (
        number(flow.operations_per_s) if flow else "-",
        *(number(gbs.get(word)) for word in CLASSES),
        "-" if waiting is None else f"{waiting:.0%}",
        age(oldest_s),
    )


def _job_row(job: LiveJob, marked: bool = False) -> _ScreenRow:
    ranks = str(job.alive) if job.alive == job.expected else f"{job.alive}/{job.expected}"
    cells = (
        str(job.id),
        job.user,
        ranks,
        *_flow_cells(job.flow, job.oldest_s),
        _count(job.drops),
    )
    return _ScreenRow(cells, job.troubles, marked)


def _rank_row(rank: LiveRank, with_node: bool) -> _ScreenRow:
    place = f"{rank.node} {rank.gpu}" if with_node else rank.gpu
    flow = _flow_cells(rank.flow, rank.oldest_s)
    return _ScreenRow(
        (rank.name, place, *flow, age(rank.beat_s), _count(rank.drops)), rank.troubles
    )


def _beneath(trouble: Trouble, width: int) -> Iterator[ScreenLine]:
    for line in textwrap.wrap(
        trouble.words, width, initial_indent="  ! ", subsequent_indent=_INDENT
    ):
        yield ScreenLine(line, trouble.kind)


def _table(
    columns: Sequence[Column], rows: Sequence[_ScreenRow], width: int
) -> Iterator[ScreenLine]:
    """Yield title and rows; troubles are beside a row if there is room, else below it."""
    widths = fit_columns(columns, [row.cells for row in rows], width)
    own = sum(widths) + len(widths) - 1
    longest = max((len(t.words) for row in rows for t in row.troubles), default=0)
    beside = longest > 0 and width - own - 2 >= min(longest, _BESIDE_MIN)
    title = row_text(columns, widths, [column.title for column in columns])
    yield ScreenLine(title + ("  WHAT IS WRONG" if beside else ""), None)
    for row in rows:
        text = row_text(columns, widths, row.cells)
        worst = row.troubles[0].kind if row.troubles else TroubleKind.NONE
        if not beside:
            yield ScreenLine(text, worst, row.marked)
            for trouble in row.troubles:
                yield from _beneath(trouble, width)
            continue
        words = [line for one in row.troubles for line in textwrap.wrap(one.words, width - own - 2)]
        kinds = [
            one.kind for one in row.troubles for _ in textwrap.wrap(one.words, width - own - 2)
        ]
        yield ScreenLine(f"{text.ljust(own)}  {words[0]}" if words else text, worst, row.marked)
        for line, kind in zip(words[1:], kinds[1:], strict=True):
            yield ScreenLine(" " * (own + 2) + line, kind)


def _head(view: View) -> str:
    at = datetime.fromtimestamp(view.unix_s, UTC)
    ranks = sum(job.expected for job in view.jobs)
    jobs, many = len(view.jobs), "" if len(view.jobs) == 1 else "s"
    over = "" if view.span_s is None else f"; rates over {view.span_s:.3g} s"
    return f"{view.where}  {at:%Y-%m-%d %H:%M:%S} UTC  {jobs} job{many}, {ranks} ranks{over}"


def _body(view: View, by_rank: bool, width: int, chosen: int | None) -> Iterator[ScreenLine]:
    if not by_rank:
        if view.jobs:
            rows = [_job_row(job, job.id == chosen) for job in view.jobs]
            yield from _table(_JOB, rows, width)
        return
    for job in view.jobs:
        yield from _table(_JOB, [_job_row(job)], width)
        if job.ranks:
            nodes = {rank.node for rank in job.ranks}
            yield ScreenLine("")
            rows = [_rank_row(rank, len(nodes) > 1) for rank in job.ranks]
            yield from _table(_RANK, rows, width)


def render(
    view: View,
    by_rank: bool,
    width: int,
    chosen: int | None = None,
    nothing: str = "no job is measured here",
) -> list[ScreenLine]:
    """Return the screen's lines, at most `width` wide.

    `by_rank`: with the ranks of each job. `chosen`: the job whose row is marked. `nothing`: what is
    said where there is no job.
    """
    width = max(width, COLUMNS_MIN)
    lines = [ScreenLine(_head(view), None), ScreenLine("")]
    lines += _body(view, by_rank, width, chosen)
    if not view.jobs and not view.unread:
        lines.append(ScreenLine(nothing))
    lines.append(ScreenLine(""))
    for text in (*view.unread, *(view.notes if view.jobs else ())):
        lines += [ScreenLine(line) for line in textwrap.wrap(text, width, subsequent_indent="  ")]
    return [replace(line, text=cut(plain(line.text), width)) for line in lines]
