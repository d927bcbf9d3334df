# SPDX-License-Identifier: Apache-2.0
"""The logs in `logs/`, and their reports in short."""

from functools import cache
from pathlib import Path

from nccl_inspector.nccl_log.files import read_logs
from nccl_inspector.nccl_log.judge import LogReport, judge_log
from nccl_inspector.nccl_log.reader import LogReader

PLACE = Path(__file__).with_name("logs")


@cache
def report(name: str) -> LogReport:
    """Return the report of a log."""
    return read_logs([PLACE / f"{name}.log"])


def judged(text: str) -> LogReport:
    """Return the report of a log with this text."""
    reader = LogReader()
    reader.read("job.out", [text.encode()], 2026)
    return judge_log(reader.log)


def findings(found: LogReport) -> dict[str, str]:
    """Return who each finding is about, by rule; what only follows is left out."""
    return {one.rule.id: one.who for one in found.findings if one.rule.role != "consequence"}


def facts(found: LogReport) -> dict[str, dict[str, int]]:
    """Return the facts but the environment."""
    return {one.name: dict(one.values) for one in found.facts if one.name != "environment"}
