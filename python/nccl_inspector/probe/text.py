# SPDX-License-Identifier: Apache-2.0
"""A probe, or tables of nccl-tests, as text and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from nccl_inspector.model.card import Finding
from nccl_inspector.model.hostlist import compress_within
from nccl_inspector.model.table_columns import make_columns
from nccl_inspector.model.wording import UNKNOWN, bandwidth, duration, number, worst_first
from nccl_inspector.probe.judge import Judged, Verdict
from nccl_inspector.probe.nccl_tests import PerfRun
from nccl_inspector.probe.result import NCCL, Cell, ProbeResult, to_json
from nccl_inspector.probe.words import size_words
from nccl_inspector.render.tables import Grid, Row
from nccl_inspector.render.text import finding_items
from nccl_inspector.render.text_layout import Item, Paint, bullet, join, paragraph, section

NODES_CHARS = 60
_MATRIX_NODES_MAX = 12
_SLOWEST_SHOWN = 8
_ROWS_SHOWN = 40
_SIZES = make_columns("size", "timings", "time", "best time", "algbw GB/s", "busbw GB/s")
_TEST_ROWS = make_columns("size", "place:", "time", "algbw GB/s", "busbw GB/s", "wrong")
_CELLS = make_columns("sender:", "receiver:", "GB/s")
NOT_NCCL = (
    "This is TCP between the hosts, moved by one core for each rank. It is not NCCL, and uses no "
    "GPU."
)
_PAINTS = {
    Verdict.AS_EXPECTED: Paint.GOOD,
    Verdict.NO_EXPECTATION: Paint.PLAIN,
    Verdict.BELOW: Paint.WARNING,
    Verdict.NO_DATA: Paint.WARNING,
}


def _verdict(judged: Judged) -> list[Item]:
    return [paragraph(f"{judged.verdict}  ", judged.words, _PAINTS[judged.verdict])]


def _findings(findings: Sequence[Finding]) -> Iterator[Item]:
    if not findings:
        return
    yield paragraph("FINDINGS", "", Paint.TITLE)
    for at, one in enumerate(worst_first(findings), 1):
        yield from finding_items(at, one)
    ids = dict.fromkeys(one.rule for one in findings)
    yield paragraph(" what this means: ", f"nccl-inspector explain {' '.join(ids)}", indent=3)


def _head(result: ProbeResult) -> Iterator[Item]:
    kind = result.kind
    text, rest = compress_within(result.nodes, NODES_CHARS)
    more = f" and {rest} more" if rest else ""
    where = f"{number(kind.ranks, 'rank')} on {number(kind.nodes, 'node')} ({text}{more})"
    by = f"NCCL {result.version}" if kind.backend == NCCL else "TCP"
    words = ", ".join(filter(None, (kind.collective, where, by, kind.device)))
    yield paragraph("PROBE  ", words, Paint.TITLE)
    if kind.backend != NCCL:
        yield bullet(NOT_NCCL)
    yield from map(bullet, result.notes)


def _sizes(result: ProbeResult) -> Grid:
    rows = tuple(
        Row((
            size_words(row.size_bytes), f"{row.repetitions} x {row.operations}",
            duration(row.median_s * 1e9), duration(row.least_s * 1e9),
            bandwidth(row.alg_gbs), bandwidth(row.bus_gbs),
        ))
        for row in result.rows
    )  # fmt: skip
    about = "the median of so many timings, each of so many operations; the slowest rank's time"
    return Grid("SIZES", about, _SIZES, rows)


def _matrix(nodes: Sequence[str], cells: Sequence[Cell]) -> Grid:
    """Return the matrix; of many nodes the slowest cells."""
    about = "GB/s from the node of the row to that of the column"
    if len(nodes) > _MATRIX_NODES_MAX:
        slowest = sorted(cells, key=lambda one: one.gbs)[:_SLOWEST_SHOWN]
        rows = tuple(Row((one.sender, one.receiver, bandwidth(one.gbs))) for one in slowest)
        said = f"the slowest of {len(cells):,}; --json has all"
        return Grid("PAIRS OF NODES", said, _CELLS, rows)
    rates = {(one.sender, one.receiver): one.gbs for one in cells}
    rows = tuple(
        Row((sender, *(bandwidth(rates.get((sender, receiver))) for receiver in nodes)))
        for sender in nodes
    )
    return Grid("PAIRS OF NODES", about, make_columns("sender:", *nodes), rows)


def render_probe(result: ProbeResult, judged: Judged, columns: int) -> str:
    """Return the text, `columns` wide."""
    blocks = (
        list(_head(result)),
        _verdict(judged),
        list(_findings(judged.findings)),
        section(_sizes(result)),
        section(_matrix(result.nodes, result.cells)) if result.cells else [],
    )
    return join(blocks, columns, colour=False)


def _judged_json(judged: Judged) -> dict[str, Any]:
    return {
        "exit_status": judged.exit_code,
        "verdict": judged.verdict,
        "summary": judged.words,
        "expected": asdict(judged.expectation) if judged.expectation else None,
        "findings": [asdict(one) for one in judged.findings],
    }


def probe_json(result: ProbeResult, judged: Judged) -> dict[str, Any]:
    """Return everything for programs."""
    return {**to_json(result), **_judged_json(judged)}


def _test_rows(run: PerfRun) -> Grid:
    every = [(row, one) for row in run.rows for one in row.figures]
    # The largest sizes say most.
    rows = tuple(
        Row((
            size_words(row.size_bytes), one.place, duration(one.time_us * 1e3),
            bandwidth(one.alg_gbs), bandwidth(one.bus_gbs),
            UNKNOWN if one.wrong is None else str(one.wrong),
        ))
        for row, one in every[-_ROWS_SHOWN:]
    )  # fmt: skip
    rest = len(every) - len(rows)
    lines = (f"{number(rest, 'row')} before these; --json has all",) if rest else ()
    return Grid("SIZES", "as printed", _TEST_ROWS, rows, lines)


def _run_head(run: PerfRun) -> Iterator[Item]:
    words = (
        run.function or "operation not known",
        number(run.ranks, "rank") if run.ranks else "",
        f"on {number(len(run.nodes), 'node')}" if run.nodes else "",
    )
    yield paragraph("NCCL-TESTS  ", f"{', '.join(filter(None, words))}: {run.where}", Paint.TITLE)
    yield from map(bullet, run.problems)


def render_runs(judged: Sequence[tuple[PerfRun, Judged]], columns: int) -> str:
    """Return the text of tables of nccl-tests."""
    blocks: list[list[Item]] = []
    for run, one in judged:
        blocks += [
            list(_run_head(run)), _verdict(one), list(_findings(one.findings)),
            section(_test_rows(run)),
        ]  # fmt: skip
    return join(blocks, columns, colour=False)


def runs_json(judged: Sequence[tuple[PerfRun, Judged]]) -> list[dict[str, Any]]:
    """Return the tables of nccl-tests for programs."""
    return [asdict(run) | {"nodes": sorted(run.nodes)} | _judged_json(one) for run, one in judged]
