# SPDX-License-Identifier: Apache-2.0
"""When a job was slow: transport or straggler, and when it was only another workload."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from nccl_inspector.analysis.slow_times.degradation import (
    JudgedSeries,
    find_degradations,
    severity_of,
)
from nccl_inspector.analysis.slow_times.line_columns import Floats, columns_of
from nccl_inspector.analysis.slow_times.series import Track, make_tracks
from tests.support.synthetic.lines import START_S, WINDOW_S, Made, carried, lines_of, noise, slower

MS = 1e6
WINDOWS = 240
WALL_S = float(WINDOWS * WINDOW_S)
FIRST, END = 100, 124
CLASSES = {7: "mixed", 8: "nvlink", 9: "mixed"}


def rng(seed: int = 11) -> np.random.Generator:
    return np.random.default_rng(seed)


def times(ms: float = 20.0, sigma: float = 0.02, seed: int = 1) -> Floats:
    return ms * MS * np.exp(noise(np.random.default_rng(seed), WINDOWS, sigma))


def only(value: float, usual: float = 0.0) -> Floats:
    """Return a value for each window, another one in the slow time."""
    found = np.full(WINDOWS, float(usual))
    found[FIRST:END] = value
    return found


def tracks_of(mades: Sequence[Made]) -> list[Track]:
    lines = [one for made in mades for one in lines_of(rng(made.comm_id), made)]
    nranks = {made.comm_id: made.ranks for made in mades}
    return make_tracks([columns_of(line, member) for member, line in carried(lines)], nranks)


def judge(*mades: Made) -> JudgedSeries:
    return find_degradations(tracks_of(mades), CLASSES, WALL_S)


def test_a_healthy_job_has_none() -> None:
    found = judge(Made(times()), Made(times(3, seed=2), comm_id=8))
    assert found.degradations == ()
    assert (found.judged, found.too_short, found.not_judged) == (2, 0, 0)


def test_a_slow_transport_has_time_depth_and_cost() -> None:
    (one,) = judge(Made(slower(times(), FIRST, END, 0.2))).degradations
    assert (one.kind, one.transport, one.communicator) == ("transport", "mixed", "0x7")
    assert one.period.start_s == pytest.approx(START_S + FIRST * WINDOW_S, abs=WINDOW_S)
    assert one.period.end_s == pytest.approx(START_S + END * WINDOW_S, abs=WINDOW_S)
    assert one.depth == pytest.approx(-0.2, abs=0.03)
    # 24 windows of 50 operations of 20 ms, each a quarter longer.
    assert one.cost_s == pytest.approx(24 * 50 * 0.005, rel=0.25)
    assert one.cost_share == pytest.approx((one.cost_s or 0) / WALL_S)


def test_more_waiting_with_the_same_transfer_is_a_straggler() -> None:
    (one,) = judge(Made(times(), waiting_ns=only(5 * MS, 1 * MS))).degradations
    assert one.kind == "straggler"
    assert one.period.start_s == pytest.approx(START_S + FIRST * WINDOW_S, abs=WINDOW_S)
    assert one.cost_s == pytest.approx(24 * 50 * 0.004, rel=0.3)


def test_the_spread_of_a_slower_transfer_is_no_waiting() -> None:
    (one,) = judge(Made(slower(times(), FIRST, END, 0.6))).degradations
    assert one.kind == "transport"


def test_both_at_once_are_called_both() -> None:
    made = Made(slower(times(), FIRST, END, 0.2), waiting_ns=only(6 * MS, 1 * MS))
    (one,) = judge(made).degradations
    assert one.kind == "both"


def test_waiting_that_was_there_all_the_time_is_no_degradation() -> None:
    assert judge(Made(times(), waiting_ns=9 * MS)).degradations == ()


def test_microseconds_of_waiting_are_no_straggler() -> None:
    tiny = Made(times(0.2), size_bytes=1 << 16, waiting_ns=only(0.1 * MS))
    assert judge(tiny).degradations == ()


def test_what_is_slow_at_one_time_in_one_class_is_one_degradation() -> None:
    slow = [
        Made(slower(times(seed=comm), FIRST, END, 0.2), comm_id=comm, members=range(4))
        for comm in (7, 9)
    ]
    (one,) = judge(*slow, Made(times(3, seed=5), comm_id=8)).degradations
    assert sorted(one.communicators) == ["0x7", "0x9"]
    # One process waits for both.
    assert one.cost_s == pytest.approx(2 * 24 * 50 * 0.005, rel=0.25)


def test_processes_of_their_own_do_not_add_up_their_costs() -> None:
    slow = [
        Made(slower(times(seed=n), FIRST, END, 0.2), comm_id=comm, members=range(4 * n, 4 * n + 4))
        for n, comm in enumerate((7, 9))
    ]
    (one,) = judge(*slow).degradations
    assert one.cost_s == pytest.approx(24 * 50 * 0.005, rel=0.25)


def test_two_times_are_two_degradations() -> None:
    twice = slower(slower(times(), 40, 60, 0.2), 180, 200, 0.3)
    found = judge(Made(twice)).degradations
    assert [round(one.depth, 1) for one in found] == [-0.3, -0.2]


def test_another_message_size_is_a_phase_of_the_workload() -> None:
    halves = np.where(only(1) > 0, 80 << 20, 128 << 20)
    made = Made(slower(times(), FIRST, END, 0.2))
    lines = []
    for member, line in lines_of(rng(), made):
        sizes = zip(line.windows, halves, strict=True)
        windows = [w._replace(bytes=w.ops * int(size)) for w, size in sizes]
        lines.append((member, replace(line, windows=tuple(windows))))
    tracks = make_tracks([columns_of(line, member) for member, line in carried(lines)], {7: 4})
    found = find_degradations(tracks, CLASSES, WALL_S)
    assert found.degradations == ()
    assert "operations of -38% bytes" in found.phases[0].why


def test_another_mix_of_operations_is_a_phase_of_the_workload() -> None:
    ops = only(0, 50).astype(int)
    gone = Made(times(seed=3), func="ReduceScatter", ops=ops)  # as while a model is evaluated
    found = judge(Made(slower(times(), FIRST, END, 0.2)), gone)
    assert found.degradations == ()
    assert "0 ReduceScatter where" in found.phases[0].why


def test_fewer_operations_of_all_kinds_are_no_other_mix() -> None:
    """A slow network makes fewer iterations, of all that they are made of."""
    ops = only(40, 50).astype(int)
    slow = Made(slower(times(), FIRST, END, 0.2), ops=ops)
    found = judge(slow, Made(times(3, seed=3), func="ReduceScatter", ops=ops))
    assert [one.func for one in found.degradations] == ["AllReduce"]
    assert found.phases == ()


def test_a_kind_that_is_not_called_any_more_is_another_mix() -> None:
    trained = Made(times(seed=3)[:FIRST], func="ReduceScatter")
    found = judge(Made(slower(times(), FIRST, WINDOWS - 100, 0.2)), trained)
    assert found.degradations == ()
    assert found.phases


@pytest.mark.parametrize(("ops", "wanted"), [(1, "I"), (50, "W")])
def test_how_much_it_matters_goes_by_what_it_cost(ops: int, wanted: str) -> None:
    (one,) = judge(Made(slower(times(), FIRST, END, 0.2), ops=ops)).degradations
    assert severity_of(one) == wanted


def test_functions_without_a_common_wait_are_not_judged() -> None:
    found = judge(Made(slower(times(), FIRST, END, 0.4), func="Send"))
    assert (found.judged, found.not_judged, found.degradations) == (0, 1, ())


def test_a_short_job_is_called_too_short() -> None:
    found = judge(Made(times()[:11]))
    assert (found.judged, found.too_short) == (0, 1)


def test_a_slow_time_costs_at_most_its_length() -> None:
    made = Made(slower(times(), FIRST, END, 0.9), ops=500)
    (one,) = judge(made).degradations
    assert one.cost_s == one.period.end_s - one.period.start_s
