"""Logs of NCCL: read, compared over the processes, told as text and JSON, and in a report."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

from nccl_inspector.nccl_log.judge import LogReport, judge_log
from nccl_inspector.nccl_log.launcher_lines import LauncherReader, LinePlace, OutputEnd
from nccl_inspector.nccl_log.reader import LogReader
from nccl_inspector.nccl_log.wrapped import plain_blocks
from nccl_inspector.render.log_text import exit_code, log_json, render_log
from nccl_inspector.report.nccl_words import from_json, to_json, words_of
from tests.fuzzers import mutation
from tests.fuzzers.forms import check_text, expect
from tests.fuzzers.summary import Report
from tests.fuzzers.target import Budget, Read, Run, Target
from tests.support.repository import REPO

_CHUNK = 1 << 16
_COLUMNS = 80
_LINES = 40  # of a seed: so many inputs take less time
_LOGS = REPO / "tests" / "unit" / "nccl_log"
# What lines begin with, or what a rule looks for; a run comes behind one.
_MARKS = (b"NCCL INFO ", b"NCCL WARN ", b" via ", b"[", b":", b"comm 0x", b"Using ", b"rank ")
# Of a time: another number of digits would make it none.
_TWO_DIGITS = re.compile(rb"(?<=[-:/ IWEF])\d\d(?=\d\d |[-:/ .])")


@cache
def _seeds() -> list[bytes]:
    logs = [path.read_bytes() for path in sorted((_LOGS / "logs").glob("*.log"))]
    rows = (_LOGS / "lines.tsv").read_bytes().splitlines()
    lines = [row.split(b"\t")[2] for row in rows if not row.startswith(b"#")]
    return [*logs, *(b"\n".join(lines[at : at + _LINES]) for at in range(0, len(lines), _LINES))]


def _check_forms(report: LogReport) -> None:
    for everything in (False, True):
        text = render_log(report, _COLUMNS, everything=everything, colour=False)
        check_text("logs", text)
        expect(max(map(len, text.splitlines())) <= _COLUMNS, "logs", "a line that is too long")
    expect(json.loads(log_json(report))["format"] == 1, "logs --json", "no format")


def _as_report_reads(data: bytes) -> LogReport:
    """Return what a log says if its end has been read for launchers' lines before."""
    launchers, reader = LauncherReader(), LogReader()
    for block in plain_blocks([data]):
        launchers.read(block)
    end = OutputEnd(launchers, LinePlace(), launchers.end)
    reader.read("job.out", [data], 2026, end=end)
    return judge_log(reader.log)


def prepare(place: Path) -> Run:
    """Return what reads a log, and tells of it in each form."""
    of_job = Report(place, lean=True)

    def run(data: bytes) -> str | Read:
        reader = LogReader()
        reader.read("job.out", (data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)), 2026)
        report = judge_log(reader.log)
        words = words_of(report)
        expect(from_json(json.loads(json.dumps(to_json(words)))) == words, "words", "not the same")
        rules = sorted(one.rule.id for one in report.findings)
        facts = f"{report.first is not None} {len(report.facts)} facts"
        given = replace(of_job.given, words=words)

        def rest() -> str:
            _check_forms(report)
            if len(data) <= _CHUNK:
                expect(_as_report_reads(data) == report, "report", "not as logs reads it")
            return of_job.said(given)

        # Which rules a log meets together is another with almost each input.
        return Read(f"{exit_code(report)} {rules} {facts}", rest, f"{exit_code(report)}")

    return run


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return another log; often with long runs behind what a pattern begins with."""
    found = mutation.several(chance, data, corpus, mutation.TEXT)
    if chance.random() < 0.3:
        mark = chance.choice(_MARKS)
        run = chance.choice((b"1 ", b"0", b" ", b"[", b"a", b"NCCL ", b"n:1:1 ", mark)) * 4000
        at = found.find(mark, chance.randrange(len(found) + 1))
        place = at + len(mark) if at >= 0 else 0
        found = found[:place] + run + found[place:]
    if chance.random() < 0.2:
        found = _other_time(chance, found)
    return found


def _other_time(chance: Random, data: bytes) -> bytes:
    """Change two digits of a time, month or day, perhaps to what no clock shows."""
    match = _TWO_DIGITS.search(data, chance.randrange(len(data) + 1))
    if match is None:
        return data
    digits = b"%02d" % chance.choice((0, 13, 24, 32, 60, 99, chance.randrange(100)))
    return data[: match.start()] + digits + data[match.end() :]


TARGET = Target("logs", _seeds, mutate, prepare, Budget(cpu_s=0.2), most_bytes=1 << 20, rest_of=48)
