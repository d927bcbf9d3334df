# SPDX-License-Identifier: Apache-2.0
"""Read what nccl-tests and rccl-tests print, or write as JSON (`-J`, nccl-tests 2.17.3 and later).

Formats: NVIDIA/nccl-tests src/util.cu and src/common.cu (2.0 to 2.19), ROCm/rccl-tests
src/common.cu. Up to 2.11 each program has columns of its own, so the heading of the table says
which there are. Launchers put the rank and other words in front of rows, some into them, too
(nccl_log/prefixes.py), and lines of NCCL come between them.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.model.bandwidth import bus_factor, message_bytes
from nccl_inspector.nccl_log.prefixes import without_host, without_prefix
from nccl_inspector.nccl_log.wrapped import plain
from nccl_inspector.probe.bounded_file import chunks, read_lines
from nccl_inspector.system.checked_json import Checks
from nccl_inspector.system.printable import printable

TEXT_BYTES_MAX = 256 << 20  # a job's whole output may be around the table
LINE_BYTES_MAX = 1 << 16
JSON_BYTES_MAX = 64 << 20
ROWS_MAX = 4096
_PROBLEMS_MAX = 8
_SIZE_MAX = 1 << 50
_GBS_MAX, _TIME_US_MAX = 1e6, 1e12
_RANKS_MAX = 1 << 20
# algbw of one rank is that of no communication, and has no limit. Nothing else is so fast.
_ALG_GBS_MAX = 1e12
_STARTING = re.compile(r"# Collective test starting: (\S{1,80})")
_RESULT = b"Out of bounds values"
_RANK = re.compile(
    r"#\s+Rank\s+([0-9]{1,7})\s.{0,200}?[Pp]id\s+[0-9]+ on\s+(\S{1,255})\s{1,64}device "
)
# `n1: Test NCCL failure common.cu:392 'text / text'`, perhaps behind a half row.
_FAILURE = re.compile(
    r"(?:([A-Za-z][\w.-]{0,254}): )?((?:Test )?(?:NCCL|CUDA) failure [^\n]{1,1000})"
)
_MORE_FAILURE = re.compile(r"\s*\.\. \S{1,255}(?: pid \d{1,10})?: Test failure ")
_FAILURES_MAX = 8
# A count is written so only from 1e+06 on.
_DEVIATION = re.compile(r"[1-9](?:\.\d{1,9})?e\+0[0-5]")
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values\s*: ([0-9]{1,12}) ")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*: ([0-9.e+-]{1,24})")
_WHOLE = re.compile("[0-9]{1,18}")
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_FUNCTIONS = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast", "reduce": "Reduce", "alltoall": "AlltoAll", "gather": "Gather",
    "scatter": "Scatter", "sendrecv": "SendRecv",
}  # fmt: skip
_PLACES = ("out-of-place", "in-place")


@dataclass(frozen=True, slots=True)
class PerfFigure:
    """A row's figures for one place of the result. `wrong`: elements; None: not checked."""

    place: str
    time_us: float
    alg_gbs: float
    bus_gbs: float
    wrong: int | None


@dataclass(frozen=True, slots=True)
class PerfRow:
    """A size in bytes of the larger buffer, and where it stands in the file (0: nowhere)."""

    size_bytes: int
    line: int
    figures: tuple[PerfFigure, ...]


@dataclass(slots=True)
class PerfRun:
    """A table of one program; `function` and `ranks` are empty and 0 if the file has not got them.

    `is_whole`: the last lines are there, so the program came to its end.
    """

    where: str
    function: str = ""
    ranks: int = 0
    nodes: set[str] = field(default_factory=set)
    rows: list[PerfRow] = field(default_factory=list)
    out_of_bounds: int | None = None
    is_whole: bool = False
    problems: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # what the program itself wrote of an error
    alone: int = 0  # processes that each ran for themselves, if there are several

    @property
    def is_alone(self) -> bool:
        """Whether nothing was communicated: a rank, or each of several, was alone."""
        figures = [one for row in self.rows for one in row.figures]
        moved = any(one.bus_gbs for one in figures) or not any(one.alg_gbs for one in figures)
        return self.ranks <= 1 and (self.alone > 1 or not moved)

    def add_problem(self, words: str) -> None:
        """Note what could not be read; there may be any number of such lines."""
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(words)

    @property
    def wrong(self) -> int:
        """How many wrong values it counted."""
        counted = [one.wrong or 0 for row in self.rows for one in row.figures]
        return max(self.out_of_bounds or 0, sum(counted))

    def best(self) -> tuple[PerfRow, PerfFigure] | None:
        """Return the row and figure with the highest bus bandwidth."""
        every = [(row, one) for row in self.rows for one in row.figures]
        return max(every, key=lambda one: one[1].bus_gbs, default=None)


def function_of(program: str) -> str:
    """Return the operation of a program like `/opt/all_reduce_perf`; empty: not known."""
    name = program.rpartition("/")[2].removesuffix("_mpi").removesuffix("_perf")
    return _FUNCTIONS.get(name, "")


@dataclass(frozen=True, slots=True)
class _Heading:
    """The columns of a table between its size, count and type, and of each place's figures."""

    between: int
    figures: int  # columns of one place
    places: tuple[str, ...]


def _heading(words: Sequence[str]) -> _Heading | None:
    if words[:4] != ["#", "size", "count", "type"]:
        return None
    begins = [at for at, word in enumerate(words) if word in ("time", "cputime")]
    if not begins or len(begins) > 2 or len(words) > 64:
        return None
    columns = [word for word in words[begins[0] :] if word != "timestamp"]
    if columns[1:3] != ["algbw", "busbw"] or len(columns) % len(begins):
        return None
    places = _PLACES if len(begins) == 2 else ("in-place",)
    return _Heading(begins[0] - 4, len(columns) // len(begins), places)


def _figure_number(text: str, most: float) -> float:
    value = float(text)
    if not isfinite(value) or not 0 <= value <= most:
        raise ValueError
    return value


def _wrong(text: str) -> int | None:
    """Return a count of wrong elements; None: not checked, or a deviation as up to 2.11."""
    if text == "N/A":
        return None
    value = _figure_number(text, 1e18)
    return int(value) if value == int(value) and not _DEVIATION.fullmatch(text) else None


def _figure(place: str, words: Sequence[str]) -> PerfFigure:
    return PerfFigure(
        place, _figure_number(words[0], _TIME_US_MAX), _figure_number(words[1], _ALG_GBS_MAX),
        _figure_number(words[2], _GBS_MAX), _wrong(words[3]),
    )  # fmt: skip


def _row(words: Sequence[str], heading: _Heading, line: int) -> PerfRow:
    """Return the row in the words of a line.

    Some programs print nothing for the operation; a replayed trace has only the in-place figures.

    Raises:
        ValueError: it is none.
    """
    if not all(map(_WHOLE.fullmatch, words[:2])) or int(words[0]) > _SIZE_MAX:
        raise ValueError
    each = heading.figures
    for between in range(heading.between, -1, -1):
        rest = words[3 + between :]
        if len(rest) in (each, each * len(heading.places)):
            places = heading.places[-(len(rest) // each) :]
            figures = [
                _figure(place, rest[at * each : (at + 1) * each]) for at, place in enumerate(places)
            ]
            return PerfRow(int(words[0]), line, tuple(figures))
    raise ValueError


def _is_row(text: str) -> bool:
    words = text.split()
    return len(words) > 6 and all(map(_WHOLE.fullmatch, words[:2]))


class TextReader:
    """Takes the lines of an output; each table begins a run of its own."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.runs: list[PerfRun] = []
        self._heading: _Heading | None = None
        self._function, self._ranks = "", 0
        self._nodes: set[str] = set()
        self._firsts = 0  # lines of a rank 0 since the last table
        self._failures: list[str] = []  # before any table

    def take(self, line_number: int, line: bytes) -> None:
        """Take one line."""
        text = without_prefix(line).decode("utf-8", "replace").rstrip()
        own = text.lstrip()
        if not own[:1].isdigit() and not own.startswith("#"):
            inner = without_host(without_prefix(line)).decode("utf-8", "replace").rstrip()
            if inner.lstrip()[:1] == "#" or (self._heading and _is_row(inner)):
                text, own = inner, inner.lstrip()
        if (failed := _FAILURE.search(text)) is not None:
            self._take_failure(failed)
        elif own.startswith("#"):
            self._take_comment(line_number, text.strip())
        elif self._heading and own[:1].isdigit():
            self._take_row(line_number, text)

    def _take_failure(self, match: re.Match[str]) -> None:
        host = f"{match[1]}: " if match[1] else ""
        failures = self.runs[-1].failures if self.runs and self._heading else self._failures
        if len(failures) < _FAILURES_MAX:
            failures.append(printable(f"{host}{match[2]}"))

    def failed_without_table(self, line_number: int) -> None:
        """Make a run of a failure that came before any table."""
        if self._failures and not self.runs:
            self.runs.append(PerfRun(f"{self._path}:{line_number}", self._function, self._ranks,
                                     self._nodes, failures=self._failures))  # fmt: skip

    def _take_comment(self, line_number: int, text: str) -> None:
        if match := _STARTING.match(text):
            self._function = function_of(match[1])
        elif match := _RANK.match(text):
            # A second run in one file counts its ranks anew.
            self._firsts += int(match[1]) == 0
            self._ranks = (
                int(match[1]) + 1 if int(match[1]) == 0 else max(self._ranks, int(match[1]) + 1)
            )
            if len(self._nodes) < _RANKS_MAX:
                self._nodes.add(printable(match[2]))
        elif heading := _heading(text.split()):
            if self._heading == heading and self.runs and not self.runs[-1].rows:
                # Another process's table, written into this one.
                self.runs[-1].alone = max(self.runs[-1].alone, 2)
                return
            self._heading = heading
            where = f"{self._path}:{line_number}"
            self.runs.append(PerfRun(where, self._function, self._ranks, self._nodes))
            self.runs[-1].alone = self._firsts if self._firsts > 1 else 0
            self.runs[-1].failures += self._failures
            self._nodes, self._firsts, self._failures = set(), 0, []
        elif self.runs and (match := _OUT_OF_BOUNDS.match(text)):
            self.runs[-1].out_of_bounds = int(match[1])
        elif self.runs and (match := _AVERAGE.match(text)):
            self.runs[-1].is_whole = True
            self._heading = None

    def _take_row(self, line_number: int, text: str) -> None:
        run, heading = self.runs[-1], self._heading
        words = text.split()
        if _DATE.fullmatch("".join(words[-2:-1])):
            words = words[:-2]  # the time at which the row was printed
        try:
            if heading is None or len(words) < 7 or len(words) > 64:
                raise ValueError
            row = _row(words, heading, line_number)
        except (ValueError, IndexError):
            run.add_problem(f"{self._path}:{line_number}: not a row of nccl-tests")
            return
        if len(run.rows) < ROWS_MAX:
            run.rows.append(row)
        else:
            run.add_problem(f"{self._path}:{line_number}: more than {ROWS_MAX} rows")


def _json_figure(checks: Checks, place: str, value: Any) -> PerfFigure:
    table = checks.table(value)
    wrong = table.get("nwrong")
    return PerfFigure(
        place,
        checks.figure(table.get("time", table.get("cpu_time")), _TIME_US_MAX),
        checks.figure(table.get("alg_bw"), _ALG_GBS_MAX),
        checks.figure(table.get("bus_bw"), _GBS_MAX),
        None if wrong is None else int(checks.figure(wrong, 1e18)),
    )


def _json_row(checks: Checks, value: Any) -> PerfRow:
    table = checks.table(value)
    keys = (("out_of_place", "out-of-place"), ("in_place", "in-place"))
    figures = [
        _json_figure(checks, place, table[key]) for key, place in keys if table.get(key) is not None
    ]
    return PerfRow(checks.integer(table.get("size"), _SIZE_MAX), 0, tuple(figures))


def read_json(path: str, data: bytes) -> PerfRun:
    """Return the run in a JSON file.

    Raises:
        RefusedError: it is not such a file.
    """
    checks = Checks(path)
    table = checks.table(checks.load(data))
    if not isinstance(table.get("results"), list):
        raise checks.refused("no output of nccl-tests: it has no results")
    run = PerfRun(path)
    args = table.get("args")
    if isinstance(args, list) and args and isinstance(args[0], str):
        run.function = function_of(args[0][:4096])
    config = table.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    for one in devices if isinstance(devices, list) else []:
        if isinstance(one, dict) and isinstance(one.get("rank"), int):
            run.ranks = max(run.ranks, checks.integer(one["rank"], _RANKS_MAX) + 1)
            if isinstance(one.get("hostname"), str):
                run.nodes.add(checks.text(one["hostname"]))
    run.rows = [_json_row(checks, one) for one in checks.rows(table["results"], most=ROWS_MAX)]
    bounds = table.get("out_of_bounds")
    if isinstance(bounds, dict):
        run.out_of_bounds = checks.integer(bounds.get("count"), 1 << 53)
    run.is_whole = isinstance(table.get("average_bus_bandwidth"), dict)
    return run


def check_factors(run: PerfRun) -> None:
    """Note the rows whose busbw is not their algbw with the factor of the operation.

    Figures are printed with two decimals: those below 1 GB/s are too coarse for this.
    """
    if not run.function or run.ranks < 2:
        return
    for row in run.rows:
        for one in row.figures:
            share = message_bytes(run.function, 1 << 30, run.ranks) / (1 << 30)
            wanted = one.alg_gbs * share * bus_factor(run.function, run.ranks)
            if one.alg_gbs >= 1 and abs(one.bus_gbs - wanted) > 0.02 * wanted + 0.02:
                where = f"line {row.line}" if row.line else f"{row.size_bytes} bytes"
                run.add_problem(
                    f"{run.where}, {where}: busbw {one.bus_gbs:g} does not follow from algbw "
                    f"{one.alg_gbs:g} for {run.function} of {run.ranks} ranks ({wanted:.4g})"
                )


def _begin(path: Path) -> bytes:
    for chunk in chunks(path, TEXT_BYTES_MAX):
        return chunk.lstrip()[:1]
    return b""


def read_output(path: Path) -> list[PerfRun]:
    """Return the runs in a file, which is text or JSON.

    Raises:
        InspectorError: it cannot be read, or has no table of nccl-tests.
    """
    if _begin(path) == b"{":
        data = b"".join(chunks(path, JSON_BYTES_MAX))
        try:
            runs = [read_json(str(path), data)]
        except RefusedError as err:
            raise InspectorError(f"{err}{_where_json_ends(data)}") from None
    else:
        runs = _read_text(str(path), read_lines(path, TEXT_BYTES_MAX, LINE_BYTES_MAX))
    for run in runs:
        check_factors(run)
    return runs


def _where_json_ends(data: bytes) -> str:
    lines = data.count(b"\n") + 1
    ended = data.rstrip().endswith(b"}")
    return "" if ended else f"; it is cut in line {lines}"


def _read_text(path: str, lines: Iterable[tuple[int, bytes]]) -> list[PerfRun]:
    reader = TextReader(path)
    number, result = 0, ""
    for number, line in lines:
        reader.take(number, plain(line).rstrip(b"\r\n"))
        if _RESULT in line and not result:
            result = (
                f", although it says {printable(line.decode('utf-8', 'replace').strip(' #'))!r}"
            )
    reader.failed_without_table(number)
    if not reader.runs:
        raise InspectorError(
            f"{path}: no table of nccl-tests that is known in {number} lines{result}"
        )
    for run, following in pairwise([*reader.runs, None]):
        if run and not run.is_whole and not run.failures:
            where = following.where if following else f"{path}:{number}"
            run.add_problem(f"{where}: the table ends without its last lines")
    return reader.runs
