# SPDX-License-Identifier: Apache-2.0
"""The clocks of nodes, from operations that end everywhere at once."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isinf

import pytest

from nccl_inspector.analysis.clocks import Clock, in_common_time, read_clocks, silences_ns
from nccl_inspector.model.process import FUNCS, Line, Process, Window
from tests.support.boxes import NOW_NS, NOW_S
from tests.support.synthetic.jobs import Group
from tests.support.synthetic.standstill import Call, Standstill

S = 10**9
NODES = 4


def job(ahead_s: Sequence[float] = (), func: str = "AllReduce") -> list[tuple[str, Process]]:
    """A job of one rank on each node that ended well, its nodes' clocks so far ahead."""
    group = Group(7, "world", tuple(range(NODES)))
    still = Standstill([[Call(group, func, 8)] * 3] * NODES, ranks_per_node=1)
    still.run()
    ahead = [*ahead_s, *[0.0] * NODES]
    return [(f"n{rank + 1}", off(one, ahead[rank])) for rank, one in enumerate(still.processes())]


def off(process: Process, ahead_s: float) -> Process:
    def by(at_ns: int) -> int:
        return at_ns + round(ahead_s * S)

    comms = tuple(
        replace(one, created_ns=by(one.created_ns), last_progress_ns=by(one.last_progress_ns))
        for one in process.comms
    )
    facts = replace(process.facts, beat_ns=by(process.facts.beat_ns))
    return replace(process, comms=comms, facts=facts)


def ahead_s(clocks: dict[str, Clock]) -> list[float]:
    return [clocks[f"n{number + 1}"].ahead_ns / S for number in range(NODES)]


@pytest.mark.parametrize("ahead", [30.0, -30.0, 0.4])
def test_a_clock_that_is_off_is_found_by_operations_that_ended_everywhere(ahead: float) -> None:
    clocks = read_clocks(job([0, ahead]))
    assert ahead_s(clocks) == pytest.approx([0, ahead, 0, 0], abs=0.01)
    assert all(clock.error_ns <= 4 * S for clock in clocks.values())


def test_times_are_put_into_the_time_of_most_nodes() -> None:
    placed = job([0, 30])
    common = in_common_time(placed, read_clocks(placed))
    assert {one.facts.beat_ns for one in common} == {NOW_NS}
    assert len({one.comms[0].last_progress_ns for one in common}) == 1


def test_where_ranks_do_not_wait_for_all_only_the_creation_tells_and_less_well() -> None:
    clocks = read_clocks(job([0, 30], "Broadcast"))
    assert ahead_s(clocks) == pytest.approx([0, 30, 0, 0], abs=0.01)
    assert clocks["n2"].error_ns >= 10 * S


def test_nodes_without_anything_in_common_are_not_compared() -> None:
    placed = [
        (node, replace(one, comms=tuple(replace(comm, id=at) for comm in one.comms)))
        for at, (node, one) in enumerate(job())
    ]
    clocks = read_clocks(placed)
    assert sum(isinf(clock.error_ns) for clock in clocks.values()) == NODES - 1
    late = [(node, off(one, 1000.0 * at)) for at, (node, one) in enumerate(placed)]
    assert silences_ns(late, clocks) == [0.0] * NODES


def test_time_lines_tell_where_the_last_operations_are_not_the_same() -> None:
    """One process was killed an operation earlier, and its communicator's creation is not known."""

    def line(ahead_s: int) -> Line:
        windows = tuple(
            Window(NOW_S + 10 * at + ahead_s, 0, 5, 5, 5, 1, 1, 1 + 5 * at, 5 + 5 * at)
            for at in range(6)
        )
        return Line(7, 0, FUNCS.index("AllReduce"), 3, 10, NOW_S, windows)

    placed = []
    for at, (node, one) in enumerate(job([0, 40])):
        comms = tuple(replace(comm, created_ns=0, last_sequence=90 + at) for comm in one.comms)
        placed.append((node, replace(one, comms=comms, lines=(line(40 if at == 1 else 0),))))
    clocks = read_clocks(placed)
    found = ahead_s(clocks)
    assert found[1] - found[0] == pytest.approx(40, abs=10)
    assert clocks["n2"].error_ns <= 11 * S
    bare = [(node, replace(one, lines=())) for node, one in placed]
    assert sum(isinf(clock.error_ns) for clock in read_clocks(bare).values()) == NODES - 1


def test_who_was_silent_is_so_beyond_what_the_clocks_leave_open() -> None:
    placed = job()
    dead = placed[2][1]
    facts = replace(dead.facts, beat_ns=dead.facts.beat_ns - 60 * S)
    placed[2] = ("n3", replace(dead, facts=facts))
    known = dict.fromkeys(("n1", "n2", "n3", "n4"), Clock(0.0, 5e9))
    assert silences_ns(placed, known) == [0, 0, 50 * S, 0]
    assert silences_ns(placed, known, NOW_NS - 40 * S) == [0, 0, 15 * S, 0]
    together = [("n1", one) for _, one in placed]
    assert silences_ns(together, {"n1": Clock(0.0, inf)}) == [0, 0, 60 * S, 0]


def test_a_clock_that_was_set_meanwhile_is_known_by_its_latest_times() -> None:
    placed = job()
    node, one = placed[1]
    late = off(one, 30)
    comms = tuple(
        replace(comm, created_ns=old.created_ns)
        for comm, old in zip(late.comms, one.comms, strict=True)
    )
    placed[1] = node, replace(late, comms=comms)
    assert ahead_s(read_clocks(placed)) == pytest.approx([0, 30, 0, 0], abs=0.01)
