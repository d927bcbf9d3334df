# SPDX-License-Identifier: Apache-2.0
"""Who is at the root of a job that stands still, from boxes of whole models."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from nccl_inspector.analysis.clocks import in_common_time, read_clocks, silences_ns
from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.hang.find import find_hangs
from nccl_inspector.analysis.hang.wait_for import find_ends, successors
from nccl_inspector.analysis.process_names import name_processes
from nccl_inspector.model.card import (
    BLOCKED,
    DEAD,
    DEADLOCK,
    DIVERGENT,
    MISMATCHED,
    NETWORK,
    NOT_MEASURED,
    STOPPED,
    TRANSPORT,
    Hang,
)
from nccl_inspector.model.net import Net
from nccl_inspector.model.process import DISABLED, FUNCS, KILLED, RUNNING, Histogram, Peer, Process
from tests.support.boxes import NOW_NS, fixed_chance
from tests.support.synthetic.jobs import Group, Model, through_summaries
from tests.support.synthetic.standstill import (
    STOOD_NS,
    SYNC,
    Call,
    in_last_step,
    parallel_programs,
    stood,
)

UNKNOWN_END = Ending()
CUBE = Model(tp=2, dp=2, pp=2)
S = 10**9


def hangs_of(processes: Sequence[Process], ending: Ending = UNKNOWN_END) -> tuple[Hang, ...]:
    """Through node summaries, as the report gets them."""
    placed = [
        (summary.head.node, one)
        for summary in through_summaries(processes)
        for one in summary.processes
    ]
    clocks = read_clocks(placed)
    common = in_common_time(placed, clocks)
    timed = [(node, one) for (node, _), one in zip(placed, common, strict=True)]
    silences = silences_ns(timed, clocks, ending.until_ns)
    return find_hangs(common, name_processes([(42, one) for one in common]), ending, silences)


def off_clock(process: Process, ahead_ns: int) -> Process:
    """Return a process as a node says it whose clock is so far ahead."""
    comms = tuple(
        replace(one, created_ns=one.created_ns + ahead_ns,
                last_progress_ns=one.last_progress_ns + ahead_ns)
        for one in process.comms
    )  # fmt: skip
    beat_ns = process.facts.beat_ns + ahead_ns
    return replace(process, facts=replace(process.facts, beat_ns=beat_ns), comms=comms)


def assert_root(hangs: Sequence[Hang], rank: int, verdict: str = DIVERGENT) -> None:
    assert hangs
    assert {hang.roots for hang in hangs} == {(f"rank {rank}",)}
    assert hangs[0].verdict == verdict
    others = {hang.verdict for hang in hangs[1:]}
    assert others <= {verdict, BLOCKED}


@pytest.mark.parametrize("ahead", [False, True], ids=["in order", "posted ahead"])
@pytest.mark.parametrize("culprit", range(0, CUBE.ranks, 3))
def test_the_rank_that_stops_calling_is_the_root_wherever_it_stops(
    culprit: int, ahead: bool
) -> None:
    programs = parallel_programs(CUBE, ahead=ahead)
    program = programs[culprit]
    for stop in range(len(program) // 2 + culprit % 2, len(program), 4):
        if program[stop].group:
            assert_root(hangs_of(stood(programs, {culprit: stop})), culprit)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", [Model(4, 2, 4), Model(8, 4, 1), Model(1, 4, 4)])
@pytest.mark.parametrize("ahead", [False, True], ids=["in order", "posted ahead"])
def test_the_root_is_exact_for_every_position_of_larger_models(model: Model, ahead: bool) -> None:
    programs = parallel_programs(model, ahead=ahead and model.pp > 1)
    for culprit, program in enumerate(programs):
        calls = [n for n in range(len(program) // 2, len(program)) if program[n].group]
        for stop in calls[culprit % 4 :: 6]:
            assert_root(hangs_of(stood(programs, {culprit: stop})), culprit)


def test_who_waits_where_and_since_when_is_told() -> None:
    programs = parallel_programs(CUBE)
    stop = in_last_step(programs[5], "dp", "ReduceScatter")
    hangs = hangs_of(stood(programs, {5: stop}))
    first = hangs[0]
    assert (first.func, first.op_index, first.confirmed) == ("ReduceScatter", 2, True)
    assert first.never_issued == ("rank 5",)
    assert first.waiting == ("rank 7",)
    assert first.age_s == pytest.approx(STOOD_NS / S, rel=0.1)
    assert first.since_s == pytest.approx((NOW_NS - STOOD_NS) / S, abs=100)


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "PREEMPTED", "RUNNING"])
def test_a_job_killed_in_the_middle_of_healthy_operations_has_no_hang(state: str) -> None:
    programs = parallel_programs(CUBE)
    processes = stood(programs, {3: len(programs[3]) // 2 + 1})
    young = [
        replace(one, operations=tuple(replace(o, age_ns=20 * S) for o in one.operations))
        for one in processes
    ]
    assert hangs_of(young, Ending(state)) == ()


def aged(processes: Sequence[Process], age_s: int, state: str = KILLED) -> list[Process]:
    """Return the boxes as if the job had been ended so soon after it came to stand still."""
    return [
        replace(
            one,
            facts=replace(one.facts, state=state),
            operations=tuple(replace(o, age_ns=age_s * S) for o in one.operations),
        )
        for one in processes
    ]


@pytest.mark.parametrize(
    ("state", "age_s", "confirmed"),
    [
        ("RUNNING", 100, False),
        ("TIMEOUT", 100, False),
        ("CANCELLED", 100, False),
        ("", 100, False),
        ("FAILED", 100, True),
        ("TIMEOUT", 400, True),
    ],
)
def test_what_might_have_ended_had_the_job_gone_on_is_only_suspected(
    state: str, age_s: int, confirmed: bool
) -> None:
    programs = parallel_programs(CUBE)
    processes = stood(programs, {3: in_last_step(programs[3], "tp", "AllReduce")})
    found = hangs_of(aged(processes, age_s, RUNNING), Ending(state))
    assert {hang.confirmed for hang in found} == {confirmed}


@pytest.mark.parametrize("age_s", [0, 1, 8])
def test_a_job_that_failed_within_seconds_says_who_stopped_first(age_s: int) -> None:
    programs = parallel_programs(CUBE)
    processes = aged(stood(programs, {3: in_last_step(programs[3], "tp", "AllReduce")}), age_s)
    processes[3] = replace(
        processes[3], facts=replace(processes[3].facts, beat_ns=NOW_NS - age_s * S)
    )
    for failed in (Ending("FAILED", exit_code=1), Ending("OUT_OF_MEMORY")):
        hangs = hangs_of(processes, failed)
        assert {hang.roots for hang in hangs} == {("rank 3",)}
        assert {hang.verdict for hang in hangs} <= {STOPPED, DEAD}
    for other in (Ending("COMPLETED"), Ending("CANCELLED"), Ending("TIMEOUT"), Ending("NODE_FAIL"),
                  Ending("FAILED", exit_code=124), Ending()):  # fmt: skip
        assert hangs_of(processes, other) == ()


def test_a_rank_that_waits_for_one_that_crashed_is_no_culprit_for_being_killed_before_others() -> (
    None
):
    programs = parallel_programs(CUBE)
    processes = aged(stood(programs, {3: in_last_step(programs[3], "tp", "AllReduce")}), 5)
    processes[3] = replace(processes[3], facts=replace(processes[3].facts, beat_ns=NOW_NS - 5 * S))
    first = processes[2]  # it waits for rank 3, and the others for it
    young = tuple(replace(one, age_ns=19 * S // 10) for one in first.operations)
    facts = replace(first.facts, beat_ns=NOW_NS - 31 * S // 10)
    processes[2] = replace(first, facts=facts, operations=young)
    hangs = hangs_of(processes, Ending("FAILED", exit_code=1))
    assert {hang.roots for hang in hangs} == {("rank 3",)}


def test_a_rank_that_lived_while_the_others_gave_up_hung_and_did_not_crash() -> None:
    programs = parallel_programs(CUBE)
    processes = aged(stood(programs, {3: in_last_step(programs[3], "tp", "AllReduce")}), 8)
    for code in (1, 134, 143):
        assert_root(hangs_of(processes, Ending("FAILED", exit_code=code)), 3)


def test_a_job_that_failed_while_all_were_at_work_accuses_nobody() -> None:
    assert hangs_of(aged(stood(parallel_programs(CUBE), {}), 8), Ending("FAILED")) == ()


def long_lived(process: Process, longest_s: int = 0) -> Process:
    """Return a process that had been at work for an hour, with operations of so long."""
    comms = tuple(replace(one, created_ns=NOW_NS - 3600 * S) for one in process.comms)
    keys = tuple(
        key._replace(max_ns=max(key.max_ns, longest_s * S)) if key.func == 1 else key
        for key in process.keys
    )
    return replace(process, comms=comms, keys=keys)


@pytest.mark.parametrize(
    ("state", "longest_s", "confirmed"),
    [("CANCELLED", 0, True), ("", 0, True), ("CANCELLED", 50, False), ("RUNNING", 0, False)],
)
def test_a_pause_that_nothing_in_a_long_job_came_near_to_is_a_hang(
    state: str, longest_s: int, confirmed: bool
) -> None:
    programs = parallel_programs(CUBE)
    young = aged(stood(programs, {3: in_last_step(programs[3], "tp", "AllReduce")}), 100)
    hangs = hangs_of([long_lived(one, longest_s) for one in young], Ending(state))
    assert hangs[0].func == "AllReduce"
    assert hangs[0].confirmed == confirmed


def test_a_deadlock_is_sure_however_young_it_is() -> None:
    one, two = Group(7, "one", (0, 1)), Group(8, "two", (0, 1))
    calls = [Call(one, "AllReduce", 8), SYNC, Call(two, "AllReduce", 8), SYNC]
    found = hangs_of(aged(stood([calls, calls[2:] + calls[:2]], {}), 100), Ending("TIMEOUT"))
    assert {hang.confirmed for hang in found} == {True}


def test_a_long_operation_that_always_takes_long_is_none() -> None:
    programs = parallel_programs(CUBE)
    processes = stood(programs, {3: in_last_step(programs[3], "world", "AllReduce")})
    slow = [
        replace(
            one,
            keys=tuple(key._replace(histogram=Histogram((895,), (key.ops,))) for key in one.keys),
            operations=tuple(replace(o, age_ns=100 * S) for o in one.operations),
        )
        for one in processes
    ]
    assert hangs_of(slow, Ending("RUNNING")) == ()


def test_a_long_posted_receive_alone_is_no_hang() -> None:
    pair = Group(7, "pp", (0, 1))
    first = [Call(pair, "Send", 8, 1), SYNC]
    second = [Call(pair, "Recv", 8, 0), Call(pair, "Recv", 8, 0, stream="b"), SYNC]
    processes = stood([first, second], {})
    at_work = [
        replace(one, comms=tuple(replace(c, last_progress_ns=NOW_NS) for c in one.comms))
        for one in processes
    ]
    assert hangs_of(at_work) == ()
    (hang,) = hangs_of(processes)
    assert hang.roots == ("rank 0",)


def test_a_kernel_that_never_begins_is_blocked_on_its_own_gpu() -> None:
    programs = parallel_programs(CUBE)
    call = in_last_step(programs[6], "tp", "AllReduce")
    hangs = hangs_of(stood(programs, {}, {6: call}))
    assert_root(hangs, 6, BLOCKED)
    assert hangs[0].not_started == ("rank 6",)


def test_a_rank_that_died_long_before_the_others_is_dead() -> None:
    programs = parallel_programs(CUBE)
    processes = stood(programs, {2: in_last_step(programs[2], "tp", "AllReduce", 1)})
    facts = replace(processes[2].facts, beat_ns=NOW_NS - STOOD_NS + 10 * S)
    young = tuple(replace(one, age_ns=2 * S) for one in processes[2].operations)
    processes[2] = replace(processes[2], facts=facts, operations=young)
    hangs = hangs_of(processes)
    assert_root(hangs, 2, DEAD)
    assert hangs[0].dead == ("rank 2",)
    assert hangs[0].never_issued == ()


def test_ranks_killed_a_little_before_the_others_did_not_die_of_themselves() -> None:
    programs = parallel_programs(CUBE)
    processes = stood(programs, {2: in_last_step(programs[2], "tp", "AllReduce")})
    early = [
        replace(one, facts=replace(one.facts, beat_ns=NOW_NS - 30 * S)) if n % 2 else one
        for n, one in enumerate(processes)
    ]
    assert_root(hangs_of(early), 2)


def test_a_node_without_a_summary_is_not_said_to_have_never_called() -> None:
    model = Model(tp=2, dp=4, pp=2)
    programs = parallel_programs(model)
    processes = stood(programs, {5: in_last_step(programs[5], "tp", "AllReduce")})
    left = [one for one in processes if one.facts.node != "n2"]
    hangs = hangs_of(left)
    assert hangs[0].verdict == NOT_MEASURED
    assert all(hang.roots == () for hang in hangs)
    assert not any("rank 5" in hang.never_issued for hang in hangs)
    assert any("rank 5 of world" in hang.not_measured for hang in hangs)


def test_a_missing_node_is_no_suspect_where_a_measured_rank_is_the_root() -> None:
    model = Model(tp=2, dp=4, pp=2)
    programs = parallel_programs(model)
    processes = stood(programs, {5: in_last_step(programs[5], "dp", "ReduceScatter")})
    left = [one for one in processes if one.facts.node != "n1"]
    hangs = hangs_of(left)
    assert hangs[0].roots == ("rank 5",)
    assert {hang.roots for hang in hangs} == {("rank 5",)}


@pytest.mark.parametrize(
    ("func", "size"), [("AllGather", 1 << 22), ("AllReduce", 1 << 20)], ids=["func", "size"]
)
def test_a_rank_that_calls_something_else_is_mismatched(func: str, size: int) -> None:
    programs = parallel_programs(Model(tp=4, dp=2, pp=1))
    number = in_last_step(programs[6], "tp", "AllReduce")
    programs[6][number] = replace(programs[6][number], func=func, size=size)
    hangs = hangs_of(stood(programs, {}))
    assert_root(hangs, 6, MISMATCHED)
    assert hangs[0].mismatched == ("rank 6",)


def test_collectives_in_another_order_are_mismatched_where_sends_hide_the_index() -> None:
    group = Group(7, "world", (0, 1))
    start = [[Call(group, "Send", 8, 1)], [Call(group, "Recv", 8, 0)]]
    rest = [Call(group, "AllReduce", 8), Call(group, "AllGather", 8)]
    (hang,) = hangs_of(stood([start[0] + rest, start[1] + rest[::-1]], {}))
    assert hang.verdict == MISMATCHED
    assert hang.roots == ("rank 0", "rank 1")


def test_two_communicators_in_another_order_are_a_deadlock() -> None:
    one, two = Group(7, "one", (0, 1)), Group(8, "two", (0, 1))
    calls = [Call(one, "AllReduce", 8), SYNC, Call(two, "AllReduce", 8), SYNC]
    hangs = hangs_of(stood([calls, calls[2:] + calls[:2]], {}))
    assert {hang.verdict for hang in hangs} == {DEADLOCK}
    assert {hang.roots for hang in hangs} == {("rank 0", "rank 1")}


@pytest.mark.parametrize("waits", [True, False], ids=["host waits", "host runs ahead"])
def test_of_two_orders_the_ranks_in_the_minority_are_named(waits: bool) -> None:
    everybody = tuple(range(32))
    first, then = (
        [Call(Group(number, name, everybody), "AllReduce", 8), *([SYNC] if waits else [])]
        for number, name in ((7, "one"), (8, "two"))
    )
    calls, other = first + then, then + first
    hangs = hangs_of(stood([other if rank in (5, 20) else calls for rank in everybody], {}))
    assert {hang.verdict for hang in hangs} == {DEADLOCK}
    assert {hang.roots for hang in hangs} == {("rank 5", "rank 20")}
    assert hangs[0].func == "AllReduce"
    assert len(hangs[0].waiting) == 30
    assert [(last.process, last.communicator) for last in hangs[0].last] == [
        ("rank 5", "0x8"), ("rank 20", "0x8"),
    ]  # fmt: skip


@pytest.mark.parametrize("named", ["alike", "apart", "not"])
@pytest.mark.parametrize("odd", [(5, 20), (0, 4), (5, 4, 0)], ids=["apart", "a tie", "more"])
def test_replicas_that_came_through_tell_which_order_is_the_odd_one(
    odd: Sequence[int], named: str
) -> None:
    """Who is in the minority of its own replicas is not in the knot's other communicators."""
    ranks = tuple(range(32))
    world = [Call(Group(7, "world", ranks), "AllReduce", 8), SYNC]
    programs = []
    for rank in ranks:
        each = 16 if len(odd) == 2 and odd[1] == 4 else 4  # of two ranks each: one against one
        first = rank % each
        name = {"alike": "dp", "apart": f"dp{first}", "not": ""}[named]
        calls = [Call(Group(8 + first, name, ranks[first::each]), "AllReduce", 8), SYNC]
        programs.append(world + calls if rank in odd else calls + world)
    hangs = hangs_of(stood(programs, {}))
    assert {hang.verdict for hang in hangs} == {DEADLOCK}
    assert {hang.roots for hang in hangs} == {tuple(f"rank {rank}" for rank in sorted(odd))}


def renamed(call: Call, named: str) -> Call:
    """Return a call in a communicator that has a name of its own, or none."""
    if call.group is None:
        return call
    name = f"{call.group.name}{call.group.id}" if named == "apart" else ""
    return replace(call, group=replace(call.group, name=name), needs=())


def swapped(program: Sequence[Call], chance: Random) -> list[Call] | None:
    """Return a program in which two calls of different communicators have changed places.

    The host waits between them. None: the chosen call has no other to change with.
    """
    calls = [n for n, one in enumerate(program) if one.group and one.peer < 0]
    first = chance.choice(calls[:-1])
    later = [n for n in calls if n > first and program[n].group != program[first].group]
    if not later:
        return None
    second = chance.choice(later[:3])
    found = list(program)
    found[first], found[second] = found[second], found[first]
    return [*found[: first + 1], SYNC, *found[first + 1 :]]


@pytest.mark.parametrize("named", ["apart", "not"])
@pytest.mark.parametrize("model", [Model(2, 2, 1), Model(2, 4, 1), Model(4, 2, 1), CUBE], ids=str)
def test_who_takes_any_two_calls_in_another_order_is_among_those_named(
    model: Model, named: str
) -> None:
    chance = fixed_chance(100 * model.ranks + len(named))
    programs = [[renamed(call, named) for call in one] for one in parallel_programs(model)]
    found = 0
    for _ in range(25):
        culprit = chance.randrange(model.ranks)
        program = swapped(programs[culprit], chance)
        if program is None:
            continue
        mixed = [program if rank == culprit else one for rank, one in enumerate(programs)]
        hangs = hangs_of(stood(mixed, {}))
        found += bool(hangs)
        assert not hangs or not hangs[0].roots or f"rank {culprit}" in hangs[0].roots
    assert found


@pytest.mark.parametrize("caller", range(0, CUBE.ranks, 3))
@pytest.mark.parametrize("func", ["AllReduce", "Send"])
def test_where_one_rank_called_one_operation_more_its_innocent_peers_are_not_accused(
    caller: int, func: str
) -> None:
    """A rank with a batch more than the others waits alone."""
    programs = parallel_programs(CUBE)
    more = next(one for one in reversed(programs[caller]) if one.group and one.func == func)
    programs[caller] = [*programs[caller], more]
    hangs = hangs_of(stood(programs, {}))
    assert [(one.verdict, one.waiting) for one in hangs] == [(DIVERGENT, (f"rank {caller}",))]
    assert hangs[0].roots == ()


def test_who_holds_up_its_group_is_named_though_other_groups_have_nothing_to_do() -> None:
    """As in a service of several replicas, of which one has a request."""
    world = [Call(Group(7, "world", tuple(range(32))), "AllReduce", 8)]
    programs = []
    for rank in range(32):
        tensor = Group(8 + rank // 4, "tp", tuple(range(rank // 4 * 4, rank // 4 * 4 + 4)))
        programs.append(world + [Call(tensor, "AllReduce", 8)] * (3 if rank < 4 else 1))
    hangs = hangs_of(stood(programs, {2: 2}))
    assert_root(hangs, 2)


def test_the_first_stuck_operation_is_told_and_not_one_that_nobody_has_entered() -> None:
    first, second = Group(9, "first", (0, 1, 2, 3)), Group(7, "second", (0, 1, 2, 3))
    calls = [Call(first, "AllReduce", 8), Call(second, "AllReduce", 8), SYNC]
    hangs = hangs_of(stood([calls] * 4, {3: 0}))
    assert {hang.roots for hang in hangs} == {("rank 3",)}
    assert [(hang.communicator, len(hang.waiting)) for hang in hangs] == [("0x9", 3), ("0x7", 0)]


def test_the_last_thing_that_the_culprit_did_is_told() -> None:
    group = Group(7, "dp", (0, 1, 2, 3))
    calls = [Call(group, func, 8) for func in ("AllReduce", "ReduceScatter", "AllReduce")]
    (hang,) = hangs_of(stood([calls] * 4, {2: 2}))
    assert (hang.op_index, hang.func, hang.never_issued) == (3, "AllReduce", ("rank 2",))
    (last,) = hang.last
    assert (last.process, last.communicator) == ("rank 2", "0x7")
    assert (last.op_index, last.func, last.since_s) == (2, "ReduceScatter", (NOW_NS - STOOD_NS) / S)


def test_of_several_ends_in_one_round_that_of_the_communicator_that_hangs_is_told() -> None:
    small, large = Group(7, "tp", (0, 1)), Group(8, "dp", (0, 1, 2, 3))
    calls = [*[Call(small, "AllReduce", 8)] * 5, Call(large, "AllReduce", 8)]
    others = [Call(large, "AllReduce", 8)]
    tail = [Call(large, "ReduceScatter", 8)]
    hangs = hangs_of(stood([calls + tail, calls, others + tail, others + tail], {1: 6}))
    (last,) = hangs[0].last
    assert (last.communicator, last.op_index) == ("0x8", 1)


@pytest.mark.parametrize("ahead_s", [30, -30])
def test_a_node_whose_clock_is_off_has_not_died(ahead_s: int) -> None:
    """Its processes' last beats seem to be long before the others', or the others' before them."""
    programs = parallel_programs(CUBE)
    culprit = in_last_step(programs[2], "tp", "AllReduce")
    young = [replace(one, operations=tuple(replace(o, age_ns=61 * S) for o in one.operations))
             for one in stood(programs, {2: culprit})]  # fmt: skip
    off = [off_clock(one, ahead_s * 2 * S) if one.facts.node == "n1" else one for one in young]
    hangs = hangs_of(off, Ending("FAILED"))
    assert_root(hangs, 2)
    assert not any(hang.dead for hang in hangs)


def test_receives_on_both_sides_are_a_deadlock() -> None:
    pair = Group(7, "pp", (0, 1))
    programs = [[Call(pair, "Recv", 8, 1), SYNC, Call(pair, "Send", 8, 1)],
                [Call(pair, "Recv", 8, 0), SYNC, Call(pair, "Send", 8, 0)]]  # fmt: skip
    (hang,) = hangs_of(stood(programs, {}))
    assert hang.verdict == DEADLOCK
    assert hang.roots == ("rank 0", "rank 1")


def test_a_receive_posted_ahead_does_not_excuse_who_stopped_calling() -> None:
    pair, tensor = Group(7, "pp", (0, 1)), Group(8, "tp", (1, 2))
    programs = [
        [Call(pair, "Send", 8, 1), SYNC, Call(pair, "Recv", 8, 1), SYNC, Call(pair, "Send", 8, 1)],
        [Call(pair, "Recv", 8, 0), Call(pair, "Recv", 8, 0, stream="ahead"),
         Call(tensor, "AllReduce", 8), Call(pair, "Send", 8, 0)],
        [Call(tensor, "AllReduce", 8)],
    ]  # fmt: skip
    hangs = hangs_of(stood(programs, {1: 2}))
    assert_root(hangs, 1)
    assert hangs[0].never_issued == ("rank 1",)


def test_where_all_are_in_it_and_nobody_comes_out_no_process_is_blamed() -> None:
    group = Group(7, "dp", (0, 1))
    programs = [[Call(group, "AllReduce", 8)], [Call(group, "AllReduce", 8)]]
    processes = [
        replace(one, operations=tuple(replace(o, started=1) for o in one.operations))
        for one in stood(programs, {}, {0: 0, 1: 0})
    ]
    (hang,) = hangs_of(processes)
    assert (hang.verdict, hang.roots) == (TRANSPORT, ())
    assert hang.waiting == ("rank 0", "rank 1")


@pytest.mark.parametrize(
    ("sender", "verdict", "roots"),
    [
        (Net(0, 1, 1, 10, 0, 0, 1000 * S, 0), NETWORK, ("rank 0", "rank 1")),
        (Net(0, 1, 1, 10, 0, 1000 * S, 0, 0), NETWORK, ("rank 1",)),
        (Net(0, 1, 1, 10, 1000 * S, 0, 0, 0), TRANSPORT, ("rank 0",)),
    ],
    ids=["wire", "no credit", "gpu"],
)
def test_network_detail_says_at_which_peer_it_stands(
    sender: Net, verdict: str, roots: tuple[str, ...]
) -> None:
    group = Group(7, "dp", (0, 1, 2, 3))
    programs = [[Call(group, "AllReduce", 8)]] * 4
    processes = [
        replace(
            one,
            operations=tuple(replace(o, started=1) for o in one.operations),
            nets=(sender if n == 0 else Net(0, (n + 1) % 4, 1, 10, S, S, S, 0),),
        )
        for n, one in enumerate(stood(programs, {}, dict.fromkeys(range(4), 0)))
    ]
    (hang,) = hangs_of(processes)
    assert (hang.verdict, hang.roots) == (verdict, roots)


def test_a_rank_that_was_silent_is_never_said_not_to_have_called() -> None:
    programs = parallel_programs(CUBE)
    processes = stood(programs, {3: in_last_step(programs[3], "tp", "AllReduce")})
    facts = replace(processes[3].facts, silent=DISABLED, silent_ns=100 * S)
    processes[3] = replace(processes[3], facts=facts, operations=())
    hangs = hangs_of(processes)
    assert not any("rank 3" in (*hang.never_issued, *hang.roots) for hang in hangs)
    assert hangs[0].verdict == NOT_MEASURED
    assert hangs[0].not_measured == ("rank 3",)


def test_an_operation_whose_end_was_not_told_is_over_when_a_later_one_is() -> None:
    programs = parallel_programs(CUBE)
    processes = stood(programs, {})
    lost = stood(programs, {3: in_last_step(programs[3], "tp", "AllReduce")})[2].operations
    old = tuple(replace(one, index=1, age_ns=STOOD_NS) for one in lost if one.peer < 0)
    assert FUNCS[old[0].func] == "AllReduce"
    processes[2] = replace(processes[2], operations=old)
    assert hangs_of(processes) == ()


def test_paths_end_at_the_roots_and_in_knots() -> None:
    edges = [(1, 2), (2, 3), (4, 3), (5, 6), (6, 5), (7, 5), (7, 3)]
    ends = find_ends(successors(edges))
    assert ends[1] == frozenset({frozenset({3})})
    assert ends[7] == frozenset({frozenset({3}), frozenset({5, 6})})
    chain = [(n, n + 1) for n in range(5000)]
    assert find_ends(successors(chain))[0] == frozenset({frozenset({5000})})


def test_an_operation_with_a_peer_that_cannot_be_leaves_a_report_without_its_hang() -> None:
    """A summary that has one is refused (tests/unit/summary), so this is the second wall."""
    programs = parallel_programs(CUBE)
    call = in_last_step(programs[2], "tp", "AllReduce")
    processes = stood(programs, {}, dict.fromkeys(range(len(programs)), call))
    odd = [
        replace(
            one,
            operations=tuple(replace(op, peer=-2, started=0) for op in one.operations),
            # With Sends the place of an operation is by function and peer.
            peers=tuple(Peer(comm.index, FUNCS.index("Send"), 0, 1, 1, 1, 0, 0)
                        for comm in one.comms),
        )
        for one in processes
    ]  # fmt: skip
    silences = [0.0] * len(odd)
    names = [str(number) for number in range(len(odd))]
    assert find_hangs(odd, names, UNKNOWN_END, silences) == ()
