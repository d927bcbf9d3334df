# SPDX-License-Identifier: Apache-2.0
"""One series from the time lines of many ranks."""

from dataclasses import replace

import numpy as np
import pytest

from nccl_inspector.analysis.slow_times.line_columns import coarsen, columns_of
from nccl_inspector.analysis.slow_times.series import Track, make_tracks
from nccl_inspector.model.bandwidth import bus_factor
from nccl_inspector.model.process import Line
from nccl_inspector.model.timeline import halve
from tests.support.synthetic.lines import SHORTEST, START_S, WINDOW_S, Made, carried, lines_of

MS = 1e6
SIZE = 128 << 20


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def track_of(lines: list[tuple[int, Line]], nranks: int = 4) -> Track:
    (track,) = make_tracks([columns_of(line, member) for member, line in lines], {7: nranks})
    return track


def flat(windows: int = 20, ms: float = 20.0) -> Made:
    return Made(np.full(windows, ms * MS), waiting_ns=5 * MS)


def test_the_time_is_the_shortest_of_all_ranks_and_the_rest_is_waiting() -> None:
    track = track_of(carried(lines_of(rng(), flat())))
    assert track.time_ns == pytest.approx(SHORTEST * 20 * MS, rel=0.02)
    assert track.typical_ns == pytest.approx(25 * MS, rel=0.03)
    bus_bytes = SIZE * bus_factor("AllReduce", 4)
    assert track.bus_gbs == pytest.approx(bus_bytes / (SHORTEST * 20e6), rel=0.02)
    assert track.ranks.tolist() == [4] * 20
    assert track.members == (0, 1, 2, 3)
    assert track.notes == ()


def test_the_time_has_no_waiting_in_it_when_somebody_else_is_the_last_each_time() -> None:
    # Each rank waits in most of its operations, and is the last in a few of each window.
    lines = [
        (member, replace(line, windows=tuple(one._replace(min_ns=9 * 10**6 + member)
                                             for one in line.windows)))
        for member, line in lines_of(rng(), Made(np.full(20, 20 * MS), waiting_ns=1.0))
    ]  # fmt: skip
    track = track_of(lines)
    assert track.time_ns.tolist() == [9 * MS] * 20
    assert track.typical_ns == pytest.approx(20 * MS, rel=0.03)


def test_where_nothing_ended_there_is_no_number() -> None:
    times = np.full(20, 20 * MS)
    times[5:9] = np.nan
    track = track_of(carried(lines_of(rng(), Made(times))))
    assert np.isnan(track.bus_gbs[5:9]).all()
    assert track.ops[5:9].tolist() == [0] * 4
    assert not np.isnan(np.delete(track.bus_gbs, slice(5, 9))).any()


def test_a_rank_without_some_windows_is_said_and_the_rest_is_used() -> None:
    (member, line), *others = lines_of(rng(), flat())
    track = track_of([(member, replace(line, windows=line.windows[:10])), *others])
    assert track.ranks.tolist() == [4] * 10 + [3] * 10
    assert track.notes == (
        "10 of 20 windows not of all ranks that have a line: at least 3 of 4",
    )  # fmt: skip


def test_a_rank_that_tells_of_other_operations_is_not_compared() -> None:
    (member, line), *others = lines_of(rng(), flat())
    moved = [
        window._replace(min_ns=1, median_ns=1, first_index=window.first_index + 500,
                        last_index=window.last_index + 500)
        for window in line.windows
    ]  # fmt: skip
    track = track_of([(member, replace(line, windows=tuple(moved))), *others])
    assert track.ranks.tolist() == [3] * 20
    assert track.time_ns == pytest.approx(SHORTEST * 20 * MS, rel=0.02)


def test_a_rank_with_a_few_of_the_operations_does_not_set_the_time() -> None:
    *others, (member, line) = lines_of(rng(), flat())
    few = line.windows[3]._replace(
        ops=2, bytes=2 * SIZE, min_ns=1000, median_ns=1000, last_index=152
    )
    windows = (*line.windows[:3], few, *line.windows[4:])
    track = track_of([*others, (member, replace(line, windows=windows))])
    assert track.ranks[3] == 3
    assert track.time_ns[3] > MS


def test_ranks_whose_operations_nobody_else_has_make_no_number() -> None:
    one, two = lines_of(rng(), replace(flat(), ranks=2))
    moved = [
        window._replace(first_index=window.first_index + 9999, last_index=window.last_index + 9999)
        for window in two[1].windows
    ]
    track = track_of([one, (two[0], replace(two[1], windows=tuple(moved)))], 2)
    assert np.isnan(track.bus_gbs).all()
    assert "20 windows left out: their ranks tell of different operations" in track.notes


def test_ranks_that_are_missing_are_counted() -> None:
    track = track_of(lines_of(rng(), flat())[:2])
    assert track.notes == ("2 of 4 ranks without a time line",)


def test_lines_of_other_windows_come_on_one_grid() -> None:
    (member, line), *others = lines_of(rng(), flat(64))
    track = track_of([(member, halve(halve(line))), *others])
    assert track.window_s == 4 * WINDOW_S
    assert track.windows == 16
    assert track.ranks.tolist() == [4] * 16
    assert track.ops.tolist() == [200] * 16


def test_a_coarser_line_is_what_the_summary_makes_of_it() -> None:
    _, line = lines_of(rng(), Made(np.linspace(1, 9, 50) * MS))[0]
    ours, theirs = coarsen(columns_of(line, 0), 2 * WINDOW_S), columns_of(halve(line), 0)
    for name in ("start_s", "ops", "bytes", "busy_ns", "min_ns", "first_index", "last_index"):
        assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()
    assert ours.median_ns == pytest.approx(theirs.median_ns, abs=1)


def test_a_long_job_has_at_most_so_many_windows() -> None:
    some = Made(np.full(2500, 20 * MS), ranks=2)
    track = track_of(lines_of(rng(), some), 2)
    assert track.windows == 625
    assert track.start_s == START_S


def test_two_processes_that_say_the_same_rank_are_not_both_taken() -> None:
    lines = lines_of(rng(), flat())
    twice = (9, replace(lines[0][1], windows=lines[0][1].windows[:5]))
    track = track_of([twice, *lines])
    assert track.members == (0, 1, 2, 3)
    assert "1 time lines left out: their rank has another one" in track.notes


def test_send_and_recv_have_their_middle_because_nobody_waits_for_all() -> None:
    track = track_of(lines_of(rng(), replace(flat(), func="Send")))
    assert track.time_ns == pytest.approx(25 * MS, rel=0.03)


def test_lines_of_a_communicator_that_nobody_knows_are_left_out() -> None:
    lines = [columns_of(line, member) for member, line in lines_of(rng(), flat())]
    assert make_tracks(lines, {8: 4}) == []
    assert make_tracks([replace(line, rank=-1) for line in lines], {7: 4}) == []


def test_many_ranks_give_what_few_give() -> None:
    some = Made(np.full(30, 20 * MS), ranks=300, waiting_ns=5 * MS)
    lines = lines_of(rng(), some)
    track = track_of(lines, 300)
    assert track.ranks.tolist() == [300] * 30
    assert track.time_ns == pytest.approx(SHORTEST * 20 * MS, rel=0.02)
    assert track.typical_ns == pytest.approx(25 * MS, rel=0.03)
