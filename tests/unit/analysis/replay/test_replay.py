# SPDX-License-Identifier: Apache-2.0
"""The replay of exact records: who is late by its own doing, and what that costs the job."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from nccl_inspector.analysis.replay import records as records_module
from nccl_inspector.analysis.replay.arrays import Ints
from nccl_inspector.analysis.replay.bound_gaps import gaps_if_faster
from nccl_inspector.analysis.replay.cause import COST_MIN, LATE, OUTSIDE, TRANSFER, Cause
from nccl_inspector.analysis.replay.changes import find_changes
from nccl_inspector.analysis.replay.costs import standard_error
from nccl_inspector.analysis.replay.gaps import find_gaps
from nccl_inspector.analysis.replay.judge import Judged, judge_records
from nccl_inspector.analysis.replay.met_outside import met_before
from nccl_inspector.analysis.replay.order import find_order
from nccl_inspector.analysis.replay.outside_causes import outside_causes
from nccl_inspector.analysis.replay.records import RecordSource, gather
from nccl_inspector.analysis.replay.what_if import Replay
from tests.support.marks import long_but
from tests.support.step_jobs import Fault, Floats, StepJob, data_parallel, tensor_and_data_parallel

Make = Callable[..., StepJob]


def _judge(job: StepJob, clocks_s: Sequence[float] = (), of_node: int = 4) -> Judged:
    nodes = [f"n{rank // of_node}" for rank in range(job.ranks)]
    places = [rank % of_node for rank in range(job.ranks)]
    return judge_records(job.sources(clocks_s), nodes, places)


def _warned(judged: Judged) -> list[Cause]:
    return [one for one in judged.causes if one.cost_share >= COST_MIN and not one.doubtful]


def _true_cost(make: Make, fault: Fault, **more: float) -> float:
    """What the fault costs of the job's time, by the same job without it."""
    return 1 - make(**more).end_s / make(fault=fault, **more).end_s


def test_without_a_question_the_replay_gives_the_recorded_times() -> None:
    job = tensor_and_data_parallel()
    records = gather(job.sources(), job.ranks)
    assert records is not None
    order = find_order(records)
    for piece in Replay(records, order, find_gaps(records, order)).ask([]):
        assert piece.saved == pytest.approx([0.0])
        assert piece.end > piece.start


@pytest.mark.parametrize("make", [data_parallel, tensor_and_data_parallel])
@pytest.mark.parametrize("slower", [1.02, 1.05, 1.15])
def test_a_slower_gpu_is_named_with_what_it_costs_and_nobody_else_is(
    make: Make, slower: float
) -> None:
    fault = Fault((5,), slower)
    found = _judge(make(fault=fault)).causes
    cost = _true_cost(make, fault)
    assert found[0].kind == LATE
    assert found[0].members == (5,)
    assert found[0].cost_share == pytest.approx(cost, rel=0.1, abs=0.001)
    assert all(one.cost_share < COST_MIN / 2 for one in found[1:])


@pytest.mark.parametrize("work", [1.0, 4.0, 8.0])
def test_what_a_rank_costs_does_not_depend_on_where_records_are_cut_into_pieces(
    work: float,
) -> None:
    # A piece has three of the longest steps, and the rank's delay goes on through its borders.
    fault, make = Fault((5,), 1.08), partial(data_parallel, steps=100, work=work)
    (found,) = _warned(_judge(make(fault=fault)))
    assert found.cost_share == pytest.approx(_true_cost(make, fault), rel=0.04)


@pytest.mark.parametrize(
    "make", [data_parallel, pytest.param(tensor_and_data_parallel, marks=pytest.mark.long)]
)
def test_clocks_that_are_seconds_apart_change_nothing(make: Make) -> None:
    job = make(fault=Fault((5,), 1.05))
    clocks_s = np.random.default_rng(1).normal(0, 2, job.ranks).tolist()
    apart, right = _judge(job, clocks_s).causes, _judge(job).causes
    assert [one.members for one in apart[:1]] == [(5,)]
    assert apart[0].cost_share == pytest.approx(right[0].cost_share, rel=0.1)


@pytest.mark.parametrize(
    "fault", [pytest.param(Fault((5,), 1.6), marks=pytest.mark.long), Fault((5,), 1.06)]
)
@pytest.mark.parametrize(
    "make",
    [
        partial(data_parallel, transfer_s=0.0001),
        pytest.param(tensor_and_data_parallel, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("drift_ppm", [pytest.param(3.0, marks=pytest.mark.long), 400.0])
def test_what_a_rank_costs_is_known_however_fast_the_clocks_drift_apart(
    make: Make, fault: Fault, drift_ppm: float
) -> None:
    nodes = np.random.default_rng(2).uniform(-drift_ppm, drift_ppm, 4)
    job = make(fault=fault, steps=120)
    drifts = np.repeat(nodes, 4).tolist()
    judged = judge_records(job.sources(drifts_ppm=drifts), [""] * job.ranks, [0] * job.ranks)
    assert judged.causes[0].members == (5,)
    cost = _true_cost(make, fault, steps=120)
    assert judged.causes[0].cost_share == pytest.approx(cost, rel=0.06, abs=0.001)


@pytest.mark.parametrize(
    ("make", "off_us"),
    [
        *((partial(data_parallel, transfer_s=0.0001), off_us) for off_us in (20.0, 300.0)),
        *((partial(tensor_and_data_parallel, layer_s=0.002), off_us) for off_us in (60.0, 500.0)),
    ],
)
def test_a_clock_that_is_a_little_off_takes_nobody_out_of_an_operation(
    monkeypatch: pytest.MonkeyPatch, make: Make, off_us: float
) -> None:
    # As if the clocks could not be compared better than that.
    def badly(member: Ints, begin: Ints, end: Ints, *_: object) -> tuple[Ints, Ints]:
        chance = np.random.default_rng(4)
        off = chance.normal(0, off_us * 1e3, int(member.max()) + 1).astype(np.int64)[member]
        return begin + off, end + off

    monkeypatch.setattr(records_module, "align", badly)
    fault = Fault((5,), 1.6)
    found = _judge(make(fault=fault)).causes
    assert found[0].members == (5,)
    assert found[0].cost_share == pytest.approx(_true_cost(make, fault), rel=0.1)


@pytest.mark.parametrize("records", [pytest.param(100_000, marks=pytest.mark.long), 32_000])
def test_what_others_wait_for_seconds_later_is_counted(
    monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    monkeypatch.setattr(records_module, "RECORDS_MAX", records)  # all pieces, or each second one
    fault, slow = Fault((5,), 1.05), partial(tensor_and_data_parallel, layer_s=0.15, steps=100)
    found = _judge(slow(fault=fault)).causes
    assert found[0].members == (5,)
    cost = _true_cost(slow, fault)
    assert found[0].cost_share == pytest.approx(cost, rel=0.1)


@pytest.mark.parametrize(
    ("slower", "every"),
    [*(pytest.param(*one, marks=pytest.mark.long) for one in ((2.0, 5), (3.0, 4))), (6.0, 8)],
)
def test_how_long_a_late_rank_was_late_is_known_though_its_next_operation_was_queued(
    slower: float, every: int
) -> None:
    fault, short = Fault((5,), slower, every), partial(tensor_and_data_parallel, layer_s=0.0015)
    found = _judge(short(fault=fault, steps=60)).causes
    assert found[0].members == (5,)
    assert found[0].cost_share == pytest.approx(_true_cost(short, fault, steps=60), rel=0.1)


def test_two_late_ranks_share_the_cost_that_each_alone_would_hide() -> None:
    fault = Fault((3, 12), 1.05)
    found = _warned(_judge(data_parallel(fault=fault)))
    assert {one.members for one in found} == {(3,), (12,)}
    cost = _true_cost(data_parallel, fault)
    assert sum(one.cost_share for one in found) == pytest.approx(cost, rel=0.15)


def test_a_node_whose_ranks_are_all_late_is_one_cause() -> None:
    fault = Fault((4, 5, 6, 7), 1.05)
    (found,) = _warned(_judge(data_parallel(fault=fault)))
    assert (found.node, found.members) == ("n1", (4, 5, 6, 7))
    assert found.cost_share == pytest.approx(_true_cost(data_parallel, fault), rel=0.15)


def test_a_rank_that_is_late_in_every_tenth_step_is_named() -> None:
    fault = Fault((9,), 1.4, every=10)
    (found,) = _warned(_judge(data_parallel(fault=fault, steps=200)))
    assert found.members == (9,)
    assert found.cost_share == pytest.approx(_true_cost(data_parallel, fault, steps=200), rel=0.3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("uneven", [0.0, 0.003, 0.15])
@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_nobody_is_accused_where_the_work_is_uneven_by_chance(
    ranks: int, uneven: float, seed: int
) -> None:
    judged = _judge(data_parallel(ranks=ranks, uneven=uneven, seed=seed))
    assert _warned(judged) == []
    assert judged.seen


def test_one_rank_whose_pauses_are_rare_is_named_and_pauses_of_all_are_nobodys() -> None:
    def job(pauses_of: Sequence[int]) -> StepJob:
        return data_parallel(steps=400, pauses=12, pauses_of=pauses_of, seed=3)

    (found,) = _warned(_judge(job([9])))
    assert found.members == (9,)
    assert found.cost_share == pytest.approx(
        1 - data_parallel(steps=400, seed=3).end_s / job([9]).end_s, rel=0.35
    )
    assert _warned(_judge(job(range(16)))) == []


@pytest.mark.parametrize("pauses", [2, 3])
def test_few_pauses_that_nobody_else_has_are_no_chance(pauses: int) -> None:
    job = partial(data_parallel, steps=100 * pauses, seed=3)
    paused = job(pauses=pauses, pauses_of=[9])
    (found,) = _warned(_judge(paused))
    assert found.members == (9,)
    assert found.cost_share == pytest.approx(1 - job().end_s / paused.end_s, rel=0.2)


@pytest.mark.long
def test_a_rank_that_is_late_for_a_while_is_not_excused_by_longer_pauses_of_others() -> None:
    # In three pieces of seventeen: too few to prove by pieces that it is always the same one.
    fault = Fault((9,), 1.6, every=2, steps=(150, 200))
    judged = _judge(data_parallel(steps=400, fault=fault, pauses=8, pauses_of=range(8), seed=3))
    (found,) = [one for one in judged.causes if one.kind == LATE and not one.doubtful]
    assert found.members == (9,)


def test_pauses_that_might_be_anybodys_are_told_and_accuse_nobody() -> None:
    judged = _judge(data_parallel(steps=400, pauses=12, pauses_of=range(16), seed=3))
    assert _warned(judged) == []
    assert judged.dismissed_share >= COST_MIN
    costly = [one for one in judged.causes if one.cost_share >= COST_MIN]
    assert all(one.doubtful for one in costly)


@pytest.mark.parametrize("late_s", [0.06, 0.09])
def test_a_rank_late_by_the_same_time_at_each_step_is_not_taken_for_a_slower_one(
    late_s: float,
) -> None:
    # The others wait behind it in the queue all the time, but for steps in which one paused.
    job = partial(data_parallel, steps=160, pauses=16, pauses_of=range(8, 16), seed=5)
    (found,) = _warned(_judge(job(late=(5, late_s))))
    assert found.members == (5,)
    cost = 1 - job().end_s / job(late=(5, late_s)).end_s
    assert found.cost_share == pytest.approx(cost, rel=0.15)


@pytest.mark.parametrize("uneven", long_but([0.05], [0.0, 0.02, 0.05, 0.1, 0.15, 0.25]))
def test_what_a_slow_gpu_costs_is_known_though_batches_are_of_different_size(
    uneven: float,
) -> None:
    fault, job = Fault((5,), 1.3), partial(data_parallel, uneven=uneven, steps=200)
    (found,) = _warned(_judge(job(fault=fault)))
    assert found.members == (5,)
    assert found.cost_share == pytest.approx(_true_cost(job, fault), rel=0.08)


@pytest.mark.parametrize("uneven", long_but([0.0], [0.0, 0.02, 0.05, 0.1]))
def test_a_node_whose_gpus_are_all_slow_costs_what_one_of_them_would(uneven: float) -> None:
    fault, job = Fault((4, 5, 6, 7), 1.2), partial(data_parallel, uneven=uneven, steps=200)
    (found,) = _warned(_judge(job(fault=fault)))
    assert found.members == (4, 5, 6, 7)
    assert found.cost_share == pytest.approx(_true_cost(job, fault), rel=0.1)


@pytest.mark.parametrize("uneven", long_but([0.0], [0.0, 0.02]))
@pytest.mark.parametrize("late_s", long_but([0.1], [0.1, 0.2]))
def test_a_host_that_calls_late_once_a_step_does_not_compute_more_slowly(
    uneven: float, late_s: float
) -> None:
    # All others wait behind it all the time, so only its calls tell.
    job = partial(data_parallel, steps=200, uneven=uneven, called=True)
    (found,) = _warned(_judge(job(late=(5, late_s))))
    assert found.members == (5,)
    cost = 1 - job().end_s / job(late=(5, late_s)).end_s
    assert found.cost_share == pytest.approx(cost, rel=0.1)


def test_a_gpu_whose_host_waits_for_it_each_step_is_slow_in_all_that_it_does() -> None:
    fault, job = Fault((5,), 1.3), partial(data_parallel, uneven=0.02, steps=200, called=True)
    (found,) = _warned(_judge(job(fault=fault)))
    assert found.cost_share == pytest.approx(_true_cost(job, fault), rel=0.1)


@pytest.mark.long
def test_two_nodes_whose_work_differs_by_chance_are_not_accused() -> None:
    for seed in range(6):
        job = data_parallel(ranks=8, steps=120, node_uneven=0.15, of_node=4, seed=seed)
        assert _warned(_judge(job)) == []


def test_a_node_that_is_always_late_is_named_where_the_work_differs_too() -> None:
    fault = Fault((4, 5, 6, 7), 1.1)
    job = data_parallel(ranks=8, steps=200, node_uneven=0.02, of_node=4, fault=fault)
    (found,) = _warned(_judge(job))
    assert found.node == "n1"


def test_the_same_operations_of_all_ranks_are_judged_though_a_clock_is_half_a_minute_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records_module, "RECORDS_MAX", 8000)
    fault = Fault((5,), 1.05)
    job = data_parallel(steps=400, fault=fault)
    found = _judge(job, [30.0 * (rank >= 8) for rank in range(16)]).causes
    assert found[0].members == (5,)
    cost = _true_cost(data_parallel, fault, steps=400)
    assert found[0].cost_share == pytest.approx(cost, rel=0.1)


def test_a_slow_network_that_fills_all_of_the_time_costs_what_faster_transfers_would_save() -> None:
    slow, fast = (data_parallel(transfer_s=each, steps=60) for each in (0.3, 0.15))
    judged = _judge(slow)
    assert judged.records is not None
    (kind,) = {
        (judged.records.comms[comm].id, func, size)
        for comm, func, size in zip(
            judged.records.comm.tolist(), judged.records.func.tolist(),
            judged.records.size_class.tolist(), strict=True,
        )
    }  # fmt: skip
    cost, _ = judged.below({kind: 0.5})
    assert cost == pytest.approx(1 - fast.end_s / slow.end_s, rel=0.1)
    assert judged.queued_share([kind]) > 0.5


def test_a_gap_that_operations_fill_is_no_work_of_the_rank() -> None:
    records = gather(data_parallel(transfer_s=0.6, work=0.3, steps=60).sources(), 16)
    assert records is not None
    order = find_order(records)
    gaps = find_gaps(records, order)
    last = (records.number % 8 == 0) & ~np.isnan(order.gap)
    # As if its rank had come a little after the stream was free.
    begun = replace(order, queued=order.queued & ~last)
    more = gaps_if_faster(records, begun, replace(gaps, own=np.where(last, order.gap, gaps.own)))
    assert last.any()
    assert (order.gap[last] > 4e9).all()
    assert (order.gap[last] + more[last] < 0.5e9).all()
    idle = gather(data_parallel(transfer_s=0.02, steps=20).sources(), 16)
    assert idle is not None
    order = find_order(idle)
    assert not gaps_if_faster(idle, order, find_gaps(idle, order)).any()


def _one_after_the_other(parts: Sequence[StepJob]) -> StepJob:
    operations: list[tuple[int, Floats, Floats]] = []
    shift = 0.0
    for part in parts:
        (own,) = part.comms.values()
        first = len(operations)
        operations += [(first + n, begin + shift, end + shift) for n, begin, end in own]
        shift += part.end_s
    return StepJob({tuple(range(16)): operations}, shift, 16)


def _outside(parts: Sequence[tuple[StepJob, bool]]) -> list[Cause]:
    """What is said of a job whose parts follow each other."""
    found = _judge(_one_after_the_other([part for part, _ in parts])).causes
    return [one for one in found if one.kind == OUTSIDE]


def test_a_wait_of_all_ranks_at_one_place_of_a_step_is_told_from_more_work() -> None:
    usual = data_parallel(steps=150, seed=1)
    waits = data_parallel(steps=150, seed=2, input_s=0.3)
    more = data_parallel(steps=150, seed=3, work=1.4)
    (waited,) = _outside([(usual, True), (waits, False), (usual, True)])
    lost_s = waits.end_s - data_parallel(steps=150, seed=2).end_s
    all_s = 2 * usual.end_s + waits.end_s
    assert waited.cost_share == pytest.approx(lost_s / all_s, rel=0.2)
    assert not waited.evenly
    (grown,) = _outside([(usual, True), (more, False), (usual, True)])
    assert grown.evenly


@pytest.mark.parametrize("always", [False, True])
def test_who_is_late_in_the_first_steps_alone_is_told_from_who_is_late_in_all(always: bool) -> None:
    fault = Fault((5, 11), 1.6)
    first = data_parallel(steps=1, seed=7)
    # Programs compile in it.
    second = data_parallel(steps=1, work=6.0, fault=fault)
    rest = data_parallel(steps=11, seed=1, fault=fault if always else Fault())
    causes = _judge(_one_after_the_other([first, second, rest])).causes
    assert {one.members for one in causes} == {(5,), (11,)}
    assert all(one.starting is not always for one in causes)


def _without_pattern(input_s: float, work: float = 1.0, seed: int = 1) -> StepJob:
    """Steps of now more and now fewer operations, so that nobody knows which is which."""
    rng = np.random.default_rng(seed)
    now, number, found = 0.0, 0, []
    for _ in range(100):
        for part in range(int(rng.integers(10, 30))):
            took = 0.01 * work if part else 0.3 * work + input_s
            begins = now + took * (1 + 0.02 * rng.standard_normal(16))
            now, number = float(begins.max()) + 0.002, number + 1
            found.append((number, begins, np.full(16, now)))
    return StepJob({tuple(range(16)): found}, now, 16)


@pytest.mark.long
def test_a_wait_is_told_from_more_work_where_operations_have_no_pattern() -> None:
    usual = _without_pattern(0.0)
    (waited,) = _outside([(usual, True), (_without_pattern(0.6, seed=2), False), (usual, True)])
    assert not waited.evenly
    (grown,) = _outside([(usual, True), (_without_pattern(0, 1.6, seed=2), False), (usual, True)])
    assert grown.evenly


def test_a_stop_of_all_ranks_that_is_longer_than_a_piece_is_counted_whole() -> None:
    usual = data_parallel(steps=200, seed=1)
    stop = data_parallel(steps=2, seed=2, input_s=40.0)
    (stopped,) = _outside([(usual, True), (stop, False), (usual, True)])
    all_s = 2 * usual.end_s + stop.end_s
    assert stopped.cost_share == pytest.approx(80 / all_s, rel=0.1)
    assert stopped.end - stopped.start >= 80e9
    assert not stopped.whole
    assert not stopped.still


@pytest.mark.long
def test_a_slow_time_stands_out_of_what_pieces_differ_by_chance() -> None:
    usual, waits = data_parallel(steps=200, seed=1), data_parallel(steps=60, seed=2, input_s=0.15)
    job = _one_after_the_other([usual, waits, usual])
    records = gather(job.sources(), 16)
    assert records is not None
    order = find_order(records)
    gaps = find_gaps(records, order)
    replay, changes = Replay(records, order, gaps), find_changes(records, order, gaps)
    (found,) = outside_causes(records, order, replay, changes)
    assert found.ratio == pytest.approx(1.2, abs=0.05)
    noise = 0.2 * np.random.default_rng(3).standard_normal(len(changes.grown))
    apart = np.where(changes.grown < 1.05, changes.grown + noise, changes.grown)
    assert outside_causes(records, order, replay, replace(changes, grown=apart)) == []


@pytest.mark.long
def test_ranks_that_wait_now_longer_and_now_shorter_have_no_slow_time() -> None:
    # As servers do, for requests.
    chance = np.random.default_rng(5)
    parts = []
    for seed in range(60):
        longer_s = float(chance.uniform(0, 0.6)) if chance.random() < 0.45 else 0.0
        parts.append((data_parallel(steps=20, seed=seed, input_s=longer_s), True))
    assert _outside(parts) == []


def test_one_stop_of_all_ranks_between_two_steps_may_be_an_evaluation() -> None:
    usual = data_parallel(steps=200, seed=1)
    stop = data_parallel(steps=1, seed=2, input_s=80.0)
    (stopped,) = _outside([(usual, True), (stop, False), (usual, True)])
    assert stopped.still


@pytest.mark.long
def test_what_comes_again_and_again_is_a_habit() -> None:
    usual = data_parallel(steps=200, seed=1)
    waits = data_parallel(steps=60, seed=2, input_s=0.4)
    found = _outside([(usual, True), (waits, False)] * 4 + [(usual, True)])
    assert len(found) >= 3
    assert all(one.rare for one in found)


def test_parts_of_a_job_that_do_not_meet_are_judged_each_by_itself() -> None:
    fault = Fault((2,), 1.1)
    slow, fine = data_parallel(ranks=4, fault=fault), data_parallel(ranks=12, seed=9)
    (own,), (others,) = slow.comms.values(), fine.comms.values()
    both = StepJob(
        {(0, 1, 2, 3): own, tuple(range(4, 16)): others}, max(slow.end_s, fine.end_s), 16
    )
    (found,) = _warned(_judge(both))
    assert (found.members, found.part) == ((2,), 4)
    assert found.cost_share == pytest.approx(_true_cost(data_parallel, fault, ranks=4), rel=0.2)


def test_transfers_that_are_slow_for_a_while_are_told_with_their_time() -> None:
    fast = data_parallel(steps=60)
    slow = data_parallel(steps=60, transfer_s=0.06, seed=1)
    again = data_parallel(steps=60, seed=2)
    parts, shift, number = [], 0.0, 0
    for part in (fast, slow, again):
        (operations,) = part.comms.values()
        parts += [(number + n, begin + shift, end + shift) for n, begin, end in operations]
        shift, number = shift + part.end_s, len(parts)
    job = StepJob({tuple(range(16)): parts}, shift, 16)
    (found,) = _warned(_judge(job))
    assert found.kind == TRANSFER
    assert found.ratio == pytest.approx(3.0, rel=0.1)
    start_s, end_s = (at / 1e9 - 1_795_000_000 for at in (found.start, found.end))
    assert start_s == pytest.approx(fast.end_s, abs=18)
    assert end_s == pytest.approx(fast.end_s + slow.end_s, abs=18)
    usual = slow.end_s - data_parallel(steps=60, seed=1).end_s
    assert found.cost_share * shift == pytest.approx(usual, rel=0.3)


def _by_one_host(steps: int, spread_s: float) -> StepJob:
    """Operations before which the hosts met outside NCCL; by how much ranks then come apart."""
    rng = np.random.default_rng(2)
    now, found = 0.0, []
    for step in range(steps):
        begins = now + 0.3 * (1 + 0.1 * rng.random()) + spread_s * rng.random(8)
        now = float(begins.max()) + 0.005
        found.append((step + 1, begins, np.full(8, now)))
    return StepJob({tuple(range(8)): found}, now, 8)


def test_where_all_come_at_one_moment_each_time_nobody_can_be_seen_to_be_late() -> None:
    judged = _judge(_by_one_host(60, spread_s=20e-6))
    assert not judged.seen
    assert "meet outside NCCL" in judged.why_not
    assert _judge(_by_one_host(60, spread_s=2e-3)).seen


def test_where_there_are_only_sends_these_tell_that_all_come_at_one_moment() -> None:
    def sends(spread_s: float) -> StepJob:
        rng = np.random.default_rng(3)
        now, found = 0.0, []
        for step in range(60):
            begins = now + 0.3 * (1 + 0.1 * rng.random()) + spread_s * rng.random(2)
            now = float(begins.max()) + 0.005
            found.append((step + 1, begins, np.full(2, now)))
        return StepJob({(0, 1): found}, now, 2)

    def met(spread_s: float) -> float:
        records = gather(sends(spread_s).sources(), 2)
        assert records is not None
        # Of one rank a Send, of the other the Recv.
        records = replace(records, peer=1 - records.member)
        return met_before(records, find_order(records))

    assert met(20e-6) > 0.9
    assert met(5e-3) < 0.2


def _late_once_a_step(rank: int, late_s: float) -> StepJob:
    """Steps of fifty operations; a rank's host comes late to the first of them."""
    rng = np.random.default_rng(4)
    now, number, found = np.zeros(8), 0, []
    for _ in range(80):
        now[rank] += late_s
        for _ in range(50):
            begins = now + 0.01 * (1 + 0.02 * rng.standard_normal(8))
            now = np.full(8, begins.max() + 0.002)
            number += 1
            found.append((number, begins, now.copy()))
    return StepJob({tuple(range(8)): found}, float(now.max()), 8)


@pytest.mark.long
def test_a_rank_0_that_is_late_once_in_each_step_saves_no_checkpoints() -> None:
    (found,) = _warned(_judge(_late_once_a_step(0, 0.06)))
    assert found.leader
    assert not found.rare
    assert found.late_ns == pytest.approx(0.06e9, rel=0.1)
    assert found.late_share == pytest.approx(1 / 50, rel=0.2)
    true = 1 - _late_once_a_step(0, 0.0).end_s / _late_once_a_step(0, 0.06).end_s
    assert found.cost_share == pytest.approx(true, rel=0.1)


def test_what_the_records_stand_for_is_the_time_with_operations() -> None:
    job = data_parallel(steps=80)
    judged = _judge(job)
    assert judged.active_s == pytest.approx(job.end_s, rel=0.01)
    # Bursts of a quarter of the time.
    sources = [
        RecordSource(one.member, replace(one.samples, length_bits=30, period_bits=32))  # type: ignore[type-var]
        for one in job.sources()
    ]
    some = judge_records(sources, ["n0"] * job.ranks, list(range(job.ranks)))
    assert some.records is not None
    assert len(some.records) < 0.5 * len(judged.records or ())
    assert some.active_s == pytest.approx(job.end_s, rel=0.15)


def test_records_that_no_others_join_say_that_a_fault_might_not_have_shown() -> None:
    job = data_parallel()
    judged = judge_records(job.sources()[:4], ["n0"] * job.ranks, list(range(job.ranks)))
    assert not judged.seen
    assert "4 of 16 processes" in judged.why_not
    assert judge_records([], ["n0"], [0]).why_not


def test_shares_that_cannot_be_true_have_an_infinite_error_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert standard_error(np.array([1e300, 0.0]), np.ones(2)) == math.inf


def _without(job: StepJob, members: Sequence[int]) -> Judged:
    """Return what the records say if those of some ranks are missing."""
    sources = [one for one in job.sources() if one.member not in members]
    nodes = [f"n{rank // 4}" for rank in range(job.ranks)]
    return judge_records(sources, nodes, [rank % 4 for rank in range(job.ranks)])


@pytest.mark.parametrize("make", [data_parallel, tensor_and_data_parallel])
def test_a_slow_gpu_costs_what_it_costs_although_the_records_of_a_node_are_missing(
    make: Make,
) -> None:
    fault = Fault((5,), 1.08)
    judged = _without(make(fault=fault), range(12, 16))
    assert judged.proves
    (cause,) = _warned(judged)
    assert cause.members == (5,)
    assert cause.cost_share == pytest.approx(_true_cost(make, fault), rel=0.1)


@pytest.mark.parametrize("make", [data_parallel, tensor_and_data_parallel])
def test_nobody_is_accused_for_a_slow_gpu_whose_records_are_missing(make: Make) -> None:
    judged = _without(make(fault=Fault((13,), 1.08)), range(12, 16))
    assert not _warned(judged)
