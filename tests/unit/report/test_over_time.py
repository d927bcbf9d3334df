# SPDX-License-Identifier: Apache-2.0
"""What the card says of a job's time: how much it matters, and on how many sources it stands."""

from collections import Counter

import numpy as np

from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.analysis.slow_times.line_columns import columns_of
from nccl_inspector.analysis.slow_times.throughput import Reading, Readings
from nccl_inspector.report.over_time import OverTime, Unpacked, look_over_time
from tests.support.synthetic.lines import START_S, Made, carried, lines_of, noise, slower

MS = 1e6
WINDOWS = 180


def own_figure(first: int, end: int) -> Readings:
    """Return what the job printed each 10 s, a fifth less in some windows."""
    return Readings(
        "TFLOP/s",
        tuple(
            Reading(START_S + at * 10.0 + 5, 400.0 * (0.8 if first <= at < end else 1.0) + at % 3)
            for at in range(WINDOWS)
        ),
        {},
    )


def told(depth: float, ops: int, less: float = 0.0, readings: Readings | None = None) -> OverTime:
    """Return what is said of a job of one communicator, slow from window 90 to 103."""
    times = 20 * MS * np.exp(noise(np.random.default_rng(1), WINDOWS, 0.01))
    counts = np.full(WINDOWS, ops)
    counts[90:103] = round(ops * (1 - less))
    made = Made(slower(times, 90, 103, depth), ops=counts)
    lines = carried(lines_of(np.random.default_rng(2), made))
    columns = tuple(columns_of(line, member) for member, line in lines)
    comm = JoinedComm(7, "world", 4, 4, {}, (), ())
    nodes = {member: f"n{member}" for member in range(4)}
    unpacked = Unpacked(columns, Counter())
    names = {member: f"rank {member}" for member in range(4)}
    return look_over_time(unpacked, [comm], {7: "net"}, nodes, names, WINDOWS * 10.0, readings)


def test_a_slow_time_that_cost_nothing_is_no_warning() -> None:
    assert [one.severity for one in told(0.2, 1).findings] == ["I"]
    assert [one.severity for one in told(0.2, 200).findings] == ["W"]


def test_operations_a_second_are_no_second_source() -> None:
    (one,) = told(0.0, 200, less=0.1).findings
    assert one.rule == "slow-outside-communication"
    assert one.confidence == "low"


def test_fewer_operations_alone_make_no_job_degraded() -> None:
    """A start, an evaluation and a checkpoint look the same."""
    (one,) = told(0.0, 200, less=0.4).findings
    assert (one.rule, one.severity) == ("slow-outside-communication", "I")
    assert "evaluation" in one.detail


def test_less_by_the_jobs_own_figure_is_a_warning_but_for_its_start() -> None:
    (later,) = told(0.0, 200, readings=own_figure(90, 103)).findings
    assert (later.rule, later.severity) == ("slow-outside-communication", "W")
    (start,) = told(0.0, 200, readings=own_figure(0, 6)).findings
    assert (start.rule, start.severity) == ("slow-outside-communication", "I")
    assert "the job's start" in start.detail
