# SPDX-License-Identifier: Apache-2.0
"""Find the jobs that ended in a span of time, from accounting (`sacct`, all users and attempts)."""

import secrets
import time
from pathlib import Path

from nccl_inspector.slurm.accounting import Row, known_columns, read_rows
from nccl_inspector.slurm.command import TIME_FORMAT, TOO_MUCH, ask
from nccl_inspector.slurm.job_record import OVER
from nccl_inspector.slurm.values import moment, state_word

ANSWER_S = 30.0
_SPAN_MIN_S = 60
_MARGIN_S = 60  # for differences of two hosts' clocks, and the time of a query
_COLUMNS = frozenset(
    {
        "JobIDRaw", "JobID", "User", "UID", "Cluster", "State", "ExitCode", "End", "Restarts",
        "NodeList", "JobName",
    }
)  # fmt: skip


def _words(columns: list[str], delimiter: str, from_s: float, to_s: float) -> list[str]:
    """Return sacct's arguments. Times are relative to now, so that time zones do not matter."""
    now_s = time.time()
    begin, end = (max(1, int(now_s - at)) for at in (from_s - _MARGIN_S, to_s + _MARGIN_S))
    return [
        "--parsable", "--noheader", "--duplicates", "--allocations", "--allusers",
        f"--starttime=now-{begin}", f"--endtime=now-{end}",
        f"--delimiter={delimiter}", f"--format={','.join(columns)}",
    ]  # fmt: skip


def has_ended(row: Row, from_s: float, to_s: float) -> bool:
    """Tell whether this attempt ended at a time `from_s <= t < to_s` (Unix seconds)."""
    end_s = moment(row["End"])
    return state_word(row["State"]) in OVER and end_s is not None and from_s <= end_s < to_s


def ask_ended(sacct: Path, from_s: float, to_s: float) -> tuple[list[Row], str]:
    """Return the attempts that ended in a span of time (Unix seconds), and what went wrong.

    If the answer would be too long, the span is asked for in parts. If even the answer for one
    minute is too long, the attempts of that minute are left out.
    """
    said = ask(sacct, "--helpformat")
    if said.status != 0:
        return [], said.words
    columns = [one for one in known_columns(said.output) if one in _COLUMNS]
    return _ask(sacct, columns, from_s, to_s)


def _ask(sacct: Path, columns: list[str], from_s: float, to_s: float) -> tuple[list[Row], str]:
    delimiter = secrets.token_hex(12)
    said = ask(sacct, *_words(columns, delimiter, from_s, to_s), env=TIME_FORMAT, seconds=ANSWER_S)
    if said.errors == TOO_MUCH and to_s - from_s > _SPAN_MIN_S:
        middle_s = (from_s + to_s) / 2
        first, why = _ask(sacct, columns, from_s, middle_s)
        if why:
            return first, why
        second, why = _ask(sacct, columns, middle_s, to_s)
        return first + second, why
    if said.errors == TOO_MUCH:
        return [], ""
    if said.status != 0:
        return [], said.words
    rows = read_rows(said.output, columns, delimiter)
    if rows is None:
        return [], "its answer is not the columns that were asked for"
    return [row for row in rows if has_ended(row, from_s, to_s)], ""
