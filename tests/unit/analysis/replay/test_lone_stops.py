# SPDX-License-Identifier: Apache-2.0
"""Who stood still while the others waited, by how long GPUs were in operations."""

from dataclasses import replace

import numpy as np
import pytest

from nccl_inspector.analysis.replay.cause import LATE, Cause
from nccl_inspector.analysis.replay.lone_stops import (
    LoneStops,
    _always,
    find_lone_stops,
    with_lone_stops,
)
from tests.support.window_jobs import OPERATIONS, RANKS, START_S, WINDOW_S, WINDOWS, WindowJob

NODES = ["n1"] * (RANKS // 2) + ["n2"] * (RANKS // 2)
FIRST_NODE = slice(0, RANKS // 2)
JOB_S = float(WINDOWS * WINDOW_S)


def lone(job: WindowJob, parts: list[int] | None = None) -> tuple[LoneStops, ...]:
    return find_lone_stops(job.unions(), range(RANKS), NODES, parts or [0] * RANKS)


def only(rank: int) -> slice:
    return slice(rank, rank + 1)


def test_nobody_stops_in_a_job_that_goes_on_as_ever() -> None:
    assert lone(WindowJob()) == ()


@pytest.mark.parametrize("seconds", [3.0, 14.0, 250.0])
def test_a_rank_that_stood_still_is_named_with_the_seconds_that_the_others_waited(
    seconds: float,
) -> None:
    job = WindowJob()
    for at in (20, 50, 70)[: 3 if seconds < 100 else 1]:
        job.stop(only(5), at, seconds)
    (found,) = lone(job)
    assert (found.members, found.node) == ((5,), "")
    assert [one.lost_s for one in found.stops] == pytest.approx(
        [seconds] * len(found.stops), rel=0.03
    )
    assert found.stops[0].start_s == START_S + 200 if seconds < 100 else True


def test_a_node_that_stood_still_as_a_whole_stands_for_its_ranks() -> None:
    job = WindowJob()
    for at in range(10, 90, 4):
        job.stop(FIRST_NODE, at, 1.5)
    (found,) = lone(job)
    assert (found.node, found.members) == ("n1", (0, 1, 2, 3))
    assert found.lost_s == pytest.approx(20 * 1.5, rel=0.05)


def test_stops_in_every_third_window_are_as_long_as_they_were() -> None:
    # What is usual is then found from windows with stops in them, too.
    job = WindowJob()
    chance = np.random.default_rng(2)
    job.operations[:] = OPERATIONS + chance.integers(-3, 4, WINDOWS)
    for at in range(10, 90, 3):
        job.stop(FIRST_NODE, at, 1.5)
    (found,) = lone(job)
    assert found.lost_s == pytest.approx(27 * 1.5, rel=0.12)


def test_a_rank_that_stood_still_is_not_hidden_behind_a_shorter_stop_of_its_node() -> None:
    job = WindowJob()
    job.stop(only(2), 40, 120.0)
    job.stop(FIRST_NODE, 70, 2.0)
    assert [one.members for one in lone(job)] == [(2,)]


def test_no_second_counts_twice_though_several_stop_together() -> None:
    job = WindowJob()
    for at in range(10, 90, 8):
        job.stop(slice(1, 3), at, 4.0)
    found = lone(job)
    assert sum(one.lost_s for one in found) == pytest.approx(10 * 4.0, rel=0.05)


def test_where_all_stand_still_now_and_then_nobody_is_named() -> None:
    job = WindowJob()
    for at in range(10, 90, 10):
        job.stop(slice(None), at, 8.0)
    assert lone(job) == ()


def test_stops_that_anybody_has_are_nobodys() -> None:
    chance = np.random.default_rng(7)
    job = WindowJob()
    for at in range(8, 96, 4):
        job.stop(only(int(chance.integers(RANKS))), at, float(chance.uniform(2, 6)))
    assert lone(job) == ()


def test_who_is_late_in_each_window_has_no_stops() -> None:
    job = WindowJob()
    for at in range(1, 99):
        job.stop(only(5), at, 2.0)
    assert lone(job) == ()


def test_who_is_a_little_late_for_a_while_has_not_stood_still() -> None:
    job = WindowJob()
    for at in range(40, 54):
        job.stop(only(5), at, 0.35)
    assert lone(job) == ()


def test_one_stop_is_nothing_beside_how_late_others_are_for_as_long_bit_by_bit() -> None:
    job = WindowJob()
    job.stop(only(5), 80, 2.0)
    for rank in range(0, RANKS, 2):
        for at in range(10, 24):
            job.stop(only(rank), at + 2 * rank, 0.35)
    assert lone(job) == ()


def test_stops_that_follow_each_other_closely_are_counted_one_by_one() -> None:
    job = WindowJob()
    for at in range(30, 50, 2):
        job.stop(only(5), at, 2.0)
    (found,) = lone(job)
    assert (found.members, len(found.stops)) == ((5,), 10)


def test_a_part_of_the_job_for_which_nobody_waits_costs_nothing() -> None:
    job = WindowJob()
    job.slow(40, 49, 0, FIRST_NODE)
    assert lone(job, [0] * 4 + [1] * 4) == ()


def test_how_a_job_begins_and_ends_is_no_stop() -> None:
    job = WindowJob()
    job.stop(only(3), 0, 60.0)
    job.stop(only(3), 92, 80.0)
    assert lone(job) == ()


def cause(rank: int, share: float, *, rare: bool) -> Cause:
    return Cause(LATE, share, 0.0, 0, 1, False, members=(rank,), rare=rare)


def test_stops_of_the_whole_job_replace_what_a_few_pieces_say_of_rare_delays() -> None:
    job = WindowJob()
    for at in (20, 50, 70):
        job.stop(only(5), at, 12.0)
    stops, parts = lone(job), [0] * RANKS
    rare, slow, other = (
        cause(5, 0.2, rare=True),
        cause(5, 0.2, rare=False),
        cause(4, 0.02, rare=False),
    )
    (first, second) = with_lone_stops([rare, other], stops, JOB_S, 100.0, 0, parts)
    assert (first.members, first.times, second) == ((5,), 3, other)
    assert first.cost_share == pytest.approx(0.036, rel=0.03)
    # Where all of the job was replayed, its rare delays were, too.
    assert with_lone_stops([rare, other], stops, JOB_S, JOB_S, 0, parts) == (rare, other)
    # Who is slow all the time costs more than its stops.
    assert with_lone_stops([slow, other], stops, JOB_S, 100.0, 0, parts) == (slow, other)


def test_who_waited_while_another_stood_still_is_not_late_for_the_same_seconds() -> None:
    job = WindowJob()
    job.stop(only(5), 50, 12.0)
    stops, parts = lone(job), [0] * RANKS
    (stop,) = stops[0].stops
    at_ns = stop.start_s * 10**9
    then = replace(
        cause(4, 0.2, rare=False), start=at_ns, end=at_ns + 9 * 10**9, late_ns=12e9, once=True
    )
    longer, later = replace(then, late_ns=20e9), replace(then, start=then.end + 9 * 10**12)
    later = replace(later, end=later.start + 10**9)
    (first,) = with_lone_stops([then], stops, JOB_S, JOB_S, 0, parts)
    assert first.members == (5,)
    for other in (longer, later):
        assert other in with_lone_stops([other], stops, JOB_S, JOB_S, 0, parts)
    apart = [int(rank == 4) for rank in range(RANKS)]
    assert then in with_lone_stops([then], stops, JOB_S, JOB_S, 0, apart)


def test_the_first_rank_is_known_to_be_the_one_that_saves() -> None:
    job = WindowJob()
    for at in (20, 50, 70):
        job.stop(only(0), at, 15.0)
    (found,) = with_lone_stops([], lone(job), JOB_S, 100.0, 0, [0] * RANKS)
    assert found.leader
    assert found.rare


def test_what_two_windows_have_in_common_is_a_number() -> None:
    assert _always(np.array([0.1, 0.3]), 10) == pytest.approx(0.2)
    assert _always(np.array([0.1, 3.0]), 10) == 0.0, "they are not alike"
    assert _always(np.array([]), 10) == 0.0


@pytest.mark.parametrize("seconds", [15.0, 26.0, 38.0])
def test_a_stop_is_seen_where_everybody_is_late_here_and_there(seconds: float) -> None:
    job = WindowJob()
    chance = np.random.default_rng(4)
    for at in range(2, WINDOWS - 2):
        job.stop(only(int(chance.integers(RANKS))), at, float(chance.uniform(0.3, 2.0)))
    for at in range(16, WINDOWS - 8, 20):
        for beside in range(-6, 7):
            job.stop(only(5), at + beside, float(chance.uniform(0.3, 0.8)))
        job.stop(only(5), at, seconds)
    named = {one.members for one in lone(job) if one.lost_s > seconds}
    assert named == {(5,)}
    worst = lone(job)[0]
    assert worst.lost_s >= 0.8 * seconds * len(range(16, WINDOWS - 8, 20))
