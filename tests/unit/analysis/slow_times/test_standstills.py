# SPDX-License-Identifier: Apache-2.0
"""A whole job that stands still outside communication, by how long its GPUs were in operations."""

import pytest

from nccl_inspector.analysis.replay.cause import LATE, OUTSIDE, Cause
from nccl_inspector.analysis.replay.outside_causes import with_standstills
from nccl_inspector.analysis.slow_times.standstills import Standstill, find_standstills
from tests.support.window_jobs import BUSY_S, START_S, WINDOW_S
from tests.support.window_jobs import WindowJob as Job


def test_a_job_that_goes_on_as_ever_never_stands_still() -> None:
    assert find_standstills(Job().unions()) == ()


def test_steps_that_all_wait_for_storage_cost_what_they_took_longer() -> None:
    job = Job()
    job.slow(40, 59, 10)
    (found,) = find_standstills(job.unions())
    assert (found.start_s, found.end_s) == (START_S + 400, START_S + 600)
    # 200 s with the steps of 20 s.
    assert found.lost_s == pytest.approx(180.0)
    assert found.lost_share == pytest.approx(0.18)
    assert found.steps


def test_a_time_that_is_as_usual_now_and_then_is_one_slow_time() -> None:
    job = Job()
    job.slow(40, 49, 10)
    job.slow(51, 59, 10)
    (found,) = find_standstills(job.unions())
    assert (found.start_s, found.end_s) == (START_S + 400, START_S + 600)


def test_slow_and_usual_windows_that_take_turns_are_no_long_slow_time() -> None:
    # As when ranks write for some seconds, learn for some, and the clock drifts along with it.
    job = Job()
    for window in range(30, 70, 2):
        job.slow(window, window, 10)
    assert {one.end_s - one.start_s for one in find_standstills(job.unions())} == {WINDOW_S}


def test_a_rest_without_any_operation_has_no_steps() -> None:
    job = Job()
    job.slow(40, 59, 0)
    (found,) = find_standstills(job.unions())
    assert found.lost_s == pytest.approx(200.0)
    assert not found.steps


def test_ranks_that_wait_for_one_are_not_at_rest() -> None:
    job = Job()
    job.slow(40, 59, 0)
    job.busy_s[1:, 40:60] = WINDOW_S
    assert find_standstills(job.unions()) == ()


def test_slow_transfers_are_no_standstill() -> None:
    job = Job()
    job.slow(40, 59, 20)
    job.busy_s[:, 40:60] = WINDOW_S - 0.2 * (WINDOW_S - BUSY_S)
    assert find_standstills(job.unions()) == ()


def test_the_begin_and_the_end_of_a_job_are_its_own() -> None:
    job = Job()
    job.slow(0, 9, 10)
    job.slow(90, 99, 10)
    assert find_standstills(job.unions()) == ()


def test_operations_of_another_sort_are_no_steps() -> None:
    job = Job()
    job.slow(40, 59, 10)
    job.busy_s[:, 40:60] /= 100  # an evaluation that only counts together
    (found,) = find_standstills(job.unions())
    assert not found.steps


def test_a_stop_that_two_windows_share_is_found() -> None:
    job = Job()
    for at in (20, 50, 80):
        job.slow(at, at + 1, 55)
    found = find_standstills(job.unions())
    assert [one.lost_s for one in found] == pytest.approx([9.0] * 3, rel=0.02)


def test_a_process_that_died_early_is_left_out() -> None:
    job = Job()
    job.slow(40, 59, 10)
    job.operations[0, 30:] = 0
    job.busy_s[0, 30:] = 0
    (found,) = find_standstills(job.unions())
    assert found.lost_s == pytest.approx(180.0)


def test_times_that_no_job_could_last_are_not_looked_at() -> None:
    unions = Job().unions()
    for (one,) in unions:
        one.start_s[-1] = START_S + 10**9
    assert find_standstills(unions) == ()


def cause(kind: str, first_s: int, last_s: int, saved_s: float) -> Cause:
    start, end = (START_S + first_s) * 10**9, (START_S + last_s) * 10**9
    return Cause(kind, saved_s / 1000, 0.0, start, end, False, saved_s=saved_s)


def still(first_s: int, last_s: int, lost_s: float, *, steps: bool = True) -> Standstill:
    return Standstill(START_S + first_s, START_S + last_s, lost_s, lost_s / 1000, 5.0, steps)


def test_a_standstill_stands_for_what_the_bursts_saw_of_it() -> None:
    late = cause(LATE, 0, 1000, 30.0)
    some = with_standstills([cause(OUTSIDE, 420, 500, 12.0), late], [still(400, 600, 180.0)])
    assert [(one.kind, one.saved_s) for one in some] == [(OUTSIDE, 180.0), (LATE, 30.0)]


def test_the_worst_part_of_a_longer_slow_time_is_not_told_twice() -> None:
    longer = cause(OUTSIDE, 300, 900, 200.0)
    assert with_standstills([longer], [still(400, 500, 80.0)]) == (longer,)


def test_what_costs_next_to_nothing_is_not_told() -> None:
    assert with_standstills([], [still(400, 450, 1.5), still(600, 700, 2.0)]) == ()


def test_short_standstills_are_told_with_what_they_cost_together() -> None:
    piece = cause(OUTSIDE, 395, 412, 9.0)
    some = [still(first, first + 20, 12.0) for first in range(100, 900, 100)]
    (found,) = with_standstills([piece], some)
    assert (found.times, found.late_ns, found.rare) == (8, 12e9, True)
    assert found.cost_share == pytest.approx(0.096)
    (alone,) = with_standstills([], [still(400, 450, 40.0)])
    assert (alone.times, alone.rare) == (1, False)


def test_rests_that_come_again_and_again_are_part_of_the_program() -> None:
    some = [still(first, first + 80, 60.0) for first in (100, 400, 700)]
    assert all(one.rare for one in with_standstills([], some))
    assert not any(one.rare for one in with_standstills([], some[:2]))
