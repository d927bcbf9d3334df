# SPDX-License-Identifier: Apache-2.0
"""Operations that NCCL gives the times of other ones: they are counted, and have none."""

from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.analysis.transport.mixed_clocks import mixed_clocks_note, why_waiting_is_hidden
from nccl_inspector.model.process import FUNCS, Comm, Process
from tests.support.played_times import LONG_NS, SHORT_NS, TURNS, play_works

ALL = pytest.mark.parametrize("api", [4, 5, 6, 7])
NOT, SELF, GRAPH, BROADCAST = range(4)  # enum box_mixed


def the_comm(process: Process) -> Comm:
    (comm,) = process.comms
    assert comm.enqueued == comm.completed + comm.untimed
    return comm


def counts(process: Process, func: str) -> tuple[int, int]:
    """Operations with a time and without, of which each time is the function's own."""
    found = [key for key in process.keys if FUNCS[key.func] == func]
    times = {ns for key in found if key.ops for ns in (key.min_ns, key.max_ns)}
    assert times <= {LONG_NS if func == "ReduceScatter" else SHORT_NS}
    return sum(key.ops for key in found), sum(key.untimed_ops for key in found)


@ALL
@pytest.mark.parametrize("p2p", ["0", "1"])
def test_after_a_send_to_oneself_nothing_has_the_time_of_an_earlier_operation(
    tmp_path: Path, api: int, p2p: str
) -> None:
    process = play_works(tmp_path, "self", api, NCCL_INSPECTOR_ENABLE_P2P=p2p)
    assert counts(process, "AllReduce") == (TURNS, 0)
    right = api >= 7
    assert counts(process, "ReduceScatter") == ((TURNS, 0) if right else (0, TURNS))
    assert the_comm(process).mixed_why == (NOT if right else SELF)
    assert the_comm(process).mixed_since == (0 if right else TURNS + 1)


@ALL
def test_a_graph_that_is_launched_alone_has_times(tmp_path: Path, api: int) -> None:
    process = play_works(tmp_path, "graph", api)
    assert counts(process, "AllReduce") == (TURNS, 0)
    assert the_comm(process).mixed_why == NOT


@ALL
def test_a_graph_between_calls_has_times_until_they_are_mixed_up(tmp_path: Path, api: int) -> None:
    process = play_works(tmp_path, "graph_and_calls", api)
    timed, untimed = counts(process, "AllReduce")
    calls, without = counts(process, "ReduceScatter")
    assert (timed + untimed, calls + without) == (TURNS, TURNS + 1)
    if api >= 7:
        assert (untimed, without, the_comm(process).mixed_why) == (0, 0, NOT)
    else:
        assert (timed, calls, the_comm(process).mixed_why) == (1, 2, GRAPH)


@pytest.mark.parametrize("api", [5, 6, 7])  # before, it is told as any other operation
def test_after_a_broadcast_that_nccl_does_not_count_nothing_has_a_time(
    tmp_path: Path, api: int
) -> None:
    process = play_works(tmp_path, "broadcast", api)
    assert counts(process, "AllReduce") == (TURNS, 0)
    right = api < 7
    assert counts(process, "ReduceScatter") == ((TURNS, 0) if right else (0, TURNS))
    assert the_comm(process).mixed_why == (NOT if right else BROADCAST)


@ALL
def test_a_broadcast_that_is_told_mixes_up_nothing(tmp_path: Path, api: int) -> None:
    process = play_works(tmp_path, "told_broadcast", api)
    assert counts(process, "ReduceScatter") == (TURNS, 0)
    assert the_comm(process).mixed_why == NOT


@ALL
def test_a_late_thread_of_nccl_mixes_up_nothing_for_good(tmp_path: Path, api: int) -> None:
    process = play_works(tmp_path, "late_thread", api)
    assert counts(process, "ReduceScatter") == (TURNS, 0)
    assert the_comm(process).mixed_why == NOT


@pytest.mark.parametrize("api", [4, 5, 6])  # from 2.31 on there is no such ring
def test_what_a_late_thread_of_nccl_reads_of_later_operations_is_not_believed(
    tmp_path: Path, api: int
) -> None:
    process = play_works(tmp_path, "late_stop", api)
    assert counts(process, "ReduceScatter") == (0, 64)
    assert counts(process, "AllReduce") == (64, 0)
    assert the_comm(process).mixed_why == NOT


def test_the_report_says_from_where_on_and_why(tmp_path: Path) -> None:
    process = play_works(tmp_path, "self", 6)
    comm = the_comm(process)
    assert mixed_clocks_note([comm, replace(comm, mixed_since=0, mixed_why=0)]) == [
        "no times from operation 101 on, on 1 of 2 ranks: NCCL up to 2.30 mixes up the times of a "
        "communicator once a rank has sent something to itself, as in an AlltoAll"
    ]
    assert mixed_clocks_note([]) == []


def test_nobody_is_accused_where_many_operations_have_no_times(tmp_path: Path) -> None:
    process = play_works(tmp_path, "self", 6)
    assert why_waiting_is_hidden([process]).startswith("many operations of 1 of 1 processes")
    few = replace(the_comm(process), mixed_since=the_comm(process).enqueued - 50)
    assert not why_waiting_is_hidden([replace(process, comms=(few,))])
    unknown = replace(the_comm(process), mixed_why=77)
    assert "a reason not known" in why_waiting_is_hidden([replace(process, comms=(unknown,))])
