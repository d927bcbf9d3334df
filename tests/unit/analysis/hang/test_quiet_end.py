# SPDX-License-Identifier: Apache-2.0
"""A job of which no rank was in an operation for long before its end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.hang.quiet_end import QuietEnd, find_quiet_end, is_quiet
from nccl_inspector.model.process import (
    COMM_DESTROYED,
    DISABLED,
    FINALIZED,
    RUNNING,
    Operation,
    Process,
)
from nccl_inspector.summary.unpacked_samples import UnionColumns
from tests.support.boxes import NOW_NS
from tests.support.synthetic.standstill import STOOD_NS
from tests.unit.report.hung_jobs import hung_processes

S = 10**9
WINDOW_S = 10
LAST_S = (NOW_NS - STOOD_NS) // S
CANCELLED = Ending("CANCELLED", NOW_NS / S)
IN_FLIGHT = Operation(0, 0, 2, 3, 51, 51, 8, -1, STOOD_NS, 1)


def quiet() -> list[Process]:
    """Return all processes; the last operation of each ended STOOD_NS before the end."""
    return hung_processes(stops=None)


def windows(pause_s: int, active_s: int = 3600, ahead_s: int = 0) -> list[UnionColumns]:
    """Return a process's times with operations until LAST_S, with a pause in the middle."""
    at_s = np.arange(LAST_S - active_s, LAST_S, WINDOW_S)
    away_s = np.abs(at_s - (LAST_S - active_s // 2))
    at_s = at_s[away_s >= pause_s / 2] + ahead_s
    zero = np.zeros(len(at_s), np.int64)
    return [UnionColumns(0, WINDOW_S, at_s, zero + 5, zero, zero + S, zero)]


def found(
    processes: Sequence[Process],
    ending: Ending = CANCELLED,
    unions: Sequence[list[UnionColumns]] = (windows(30), windows(50)),
) -> QuietEnd | None:
    return find_quiet_end(processes, ending, unions) if is_quiet(processes, ending) else None


def test_a_job_that_called_nothing_more_is_quiet_since_its_last_operation() -> None:
    quiet_end = found(quiet())
    assert quiet_end
    assert quiet_end.lasted_s == pytest.approx(STOOD_NS / S, abs=2)
    assert quiet_end.since_s == pytest.approx(LAST_S, abs=2)
    assert 30 <= quiet_end.pause_s <= 30 + 3 * WINDOW_S


@pytest.mark.parametrize("state", ["TIMEOUT", "CANCELLED", "PREEMPTED", "RUNNING"])
def test_it_may_run_or_have_been_ended_from_outside(state: str) -> None:
    assert found(quiet(), Ending(state))


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "OUT_OF_MEMORY", ""])
def test_a_job_that_ended_by_itself_was_not_stuck(state: str) -> None:
    assert not found(quiet(), Ending(state))


@pytest.mark.parametrize(("pause_s", "is_usual"), [(30, False), (80, False), (150, True)])
def test_a_pause_that_is_not_much_longer_than_earlier_ones_is_usual(
    pause_s: int, is_usual: bool
) -> None:
    """A pause of all is one of every process, so the least of their longest pauses counts."""
    assert (found(quiet(), unions=(windows(pause_s), windows(2000))) is None) == is_usual


def test_nodes_whose_clocks_differ_do_not_hide_each_others_pauses() -> None:
    apart = [windows(200, ahead_s=100), windows(200), windows(200, ahead_s=-100)]
    assert found(quiet(), unions=apart) is None


def test_without_earlier_operations_nothing_is_usual() -> None:
    assert found(quiet(), unions=()) is None
    assert found(quiet(), unions=[windows(0, active_s=60)]) is None


@pytest.mark.parametrize(
    "facts",
    [{"state": FINALIZED}, {"silent": DISABLED}, {"silent_ns": S}, {"sampling": 16},
     {"sampled_ns": S}, {"api_version": 3}, {"beat_ns": NOW_NS - STOOD_NS + 60 * S}],
    ids=str,
)  # fmt: skip
def test_a_job_with_a_process_that_could_have_called_unseen_is_not_said_to_be_quiet(
    facts: dict[str, Any],
) -> None:
    processes = quiet()
    processes[3] = replace(processes[3], facts=replace(processes[3].facts, **facts))
    assert not found(processes)


def test_who_waits_in_an_operation_is_not_quiet() -> None:
    processes = quiet()
    processes[2] = replace(processes[2], operations=(IN_FLIGHT,))
    assert not found(processes)


def test_a_program_that_destroyed_its_communicators_has_done_with_nccl() -> None:
    ended = [
        replace(one, comms=tuple(replace(c, state=COMM_DESTROYED) for c in one.comms))
        for one in quiet()
    ]
    assert not found(ended)


def test_a_job_that_runs_and_works_is_not_quiet() -> None:
    at_work = [
        replace(
            one,
            facts=replace(one.facts, state=RUNNING),
            comms=tuple(replace(c, last_progress_ns=NOW_NS - S) for c in one.comms),
        )
        for one in quiet()
    ]
    assert not found(at_work, Ending("RUNNING"))
