# SPDX-License-Identifier: Apache-2.0
"""Who came late, in jobs made from seeds: named where somebody did, and nobody where nobody."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nccl_inspector.analysis.lateness import comparable, find_late, is_late_in_window
from nccl_inspector.analysis.latewindows import judge_windows
from nccl_inspector.analysis.slowhardware import find_slow_hardware
from nccl_inspector.analysis.straggler import find_stragglers
from nccl_inspector.card.model import HIGH, LOW, MEDIUM, Straggler
from nccl_inspector.counters.model import Count, DeviceCounters, NodeCounters, Span
from nccl_inspector.model import DISABLED, Histogram, Line, Process, Window
from tests.boxes import MS, NOW_S, fixed_chance, window
from tests.synthetic.jobs import (
    US,
    Job,
    Model,
    flat_job,
    join,
    parallel_job,
    through_summaries,
)

RANKS = 64
TRIALS = 400
CUBE = Model(tp=4, dp=4, pp=2)
SMALL = Model(tp=2, dp=3, pp=2)


def stragglers_of(
    processes: Sequence[Process], counters: dict[str, NodeCounters] | None = None
) -> tuple[Straggler, ...]:
    summaries = through_summaries(processes, counters)
    read = [one for summary in summaries for one in summary.processes]
    return find_stragglers(join(summaries), read, find_slow_hardware(summaries).kind_of)


def of_job(job: Job) -> tuple[Straggler, ...]:
    return stragglers_of(job.processes())


def trial(seed: int, late_us: int) -> tuple[bool, bool, bool]:
    """Return whether the late rank is first, whether it is flagged, and whether another is."""
    slow = fixed_chance(1000 + seed).randrange(RANKS)
    found = of_job(flat_job(seed, {slow: late_us * US} if late_us else {}, ops=200))
    right = found[0].rank == f"rank {slow}"
    wrong = any(one.flagged and one.rank != f"rank {slow}" for one in found)
    return right, right and found[0].flagged, wrong


def shares(late_us: int, trials: int) -> tuple[float, float, float]:
    found = [trial(seed, late_us) for seed in range(trials)]
    first, flagged, wrong = (sum(column) / trials for column in zip(*found, strict=True))
    return first, flagged, wrong


def test_a_late_rank_is_named_and_a_healthy_job_has_none() -> None:
    assert shares(100, 1)[0] == 1
    assert shares(300, 1)[1:] == (1, 0)
    assert shares(0, 1)[2] == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_rank_late_by_100_us_is_the_slowest_in_95_of_100_jobs() -> None:
    first, _, wrong = shares(100, TRIALS)
    print(f"ranked slowest at 100 us: {first:.1%} of {TRIALS}, another flagged: {wrong:.1%}")
    assert first >= 0.95
    assert wrong <= 0.01


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_rank_late_by_300_us_is_flagged_in_95_of_100_jobs() -> None:
    _, flagged, wrong = shares(300, TRIALS)
    print(f"flagged at 300 us: {flagged:.1%} of {TRIALS}, another flagged: {wrong:.1%}")
    assert flagged >= 0.95
    assert wrong <= 0.01


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_in_a_healthy_job_hardly_anybody_is_flagged() -> None:
    _, flagged, wrong = shares(0, TRIALS)
    print(f"flagged in a healthy job: {flagged + wrong:.2%} of {TRIALS}")
    assert flagged + wrong <= 0.01


def assert_only(found: Sequence[Straggler], *ranks: int) -> None:
    assert {one.rank for one in found if one.flagged} == {f"rank {rank}" for rank in ranks}


def test_a_late_rank_is_told_from_those_that_it_makes_late() -> None:
    found = of_job(parallel_job(CUBE, 13, {13: 1 * MS}, 30))
    assert_only(found, 13)
    assert (found[0].node, found[0].gpu) == ("n4", "GPU1")
    assert len(found[0].communicators) >= 2


@pytest.mark.long
@pytest.mark.parametrize("model", [CUBE, Model(4, 2, 4), Model(2, 8, 1), Model(8, 4, 1)])
def test_the_late_rank_is_exact_for_every_position(model: Model) -> None:
    for slow in range(model.ranks):
        assert_only(of_job(parallel_job(model, slow, {slow: 1 * MS}, 50)), slow)


def test_two_late_ranks_are_both_named_the_later_first() -> None:
    found = of_job(parallel_job(SMALL, 5, {2: 1 * MS, 9: 2 * MS}, 40))
    assert_only(found, 2, 9)
    assert found[0].rank == "rank 9"


def test_a_rank_that_ends_first_in_some_functions_of_an_uneven_ring_is_not_late() -> None:
    job = Job(fixed_chance(7), 8)
    world = job.group("world", range(8))
    for _ in range(100):
        for func, early_ns in (("AllReduce", 4.0 * MS), ("AllGather", 0.0), ("ReduceScatter", 0.0)):
            job.compute(20 * MS, {}, 20 * US)
            job.clock_ns[2] += early_ns
            job.collective(world, func, 1 << 24, 45 * MS)
    assert_only(of_job(job))


def test_a_healthy_model_has_a_slowest_rank_that_is_not_flagged() -> None:
    (one,) = of_job(parallel_job(SMALL, 6, {}, 40))
    assert not one.flagged
    assert one.confidence == LOW


def test_all_ranks_of_a_late_node_are_named() -> None:
    late = dict.fromkeys(range(8, 16), 2.0 * MS)
    assert_only(of_job(flat_job(3, late, ops=60, ranks=32)), *range(8, 16))


def test_a_rank_that_was_late_for_a_part_of_the_job_says_since_when() -> None:
    job = Job(fixed_chance(4), 16)
    world = job.group("world", range(16))
    for number in range(1000):
        job.compute(98 * MS, {3: 2.0 * MS} if number >= 400 else {})
        job.collective(world, "AllReduce", 1 << 27, 2 * MS)
    (one,) = of_job(job)
    assert one.flagged
    assert one.windows == 10
    assert one.windows_share == pytest.approx(0.6)
    assert one.period is not None
    assert one.period.start_s == NOW_S + 40
    assert one.confidence == MEDIUM


def test_a_rank_late_in_few_windows_is_not_flagged() -> None:
    late = _lines({0: [5, 9, 9, 9], 1: [9, 9, 9, 9], 2: [9, 9, 9, 9], 3: [9, 9, 9, 9]})
    found = judge_windows(late, 0)
    assert found is not None
    assert (found.judged, found.share) == (4, 0.25)


def _lines(medians_ms: dict[int, list[int]], ops: int = 60) -> dict[int, Line]:
    return {
        rank: Line(7, rank, 1, 20, 10, NOW_S, tuple(
            _window(NOW_S + 10 * n, ops, ms) for n, ms in enumerate(row)
        ))
        for rank, row in medians_ms.items()
    }  # fmt: skip


def _window(start_s: int, ops: int, ms: int) -> Window:
    return Window(late_ms=0, **window(start_s, ops, ms * MS))


def test_windows_with_few_operations_become_longer_ones() -> None:
    rows = {rank: [5 if rank == 1 else 9] * 32 for rank in range(4)}
    found = judge_windows(_lines(rows, ops=20), 1)
    assert found is not None
    assert (found.judged, found.share) == (8, 1.0)
    assert judge_windows(_lines({0: [5], 1: [9]}, ops=20), 0) is None


def test_without_time_lines_the_confidence_is_low_and_no_share_is_made_up() -> None:
    processes = [replace(one, lines=()) for one in flat_job(1, {9: 1.0 * MS}, 60, 16).processes()]
    (one,) = stragglers_of(processes)
    assert (one.rank, one.flagged, one.windows_share, one.windows) == ("rank 9", True, None, 0)
    assert one.confidence == LOW


def test_counters_that_agree_make_it_sure() -> None:
    processes = flat_job(1, {9: 1.0 * MS}, 120, 16).processes()
    spans = tuple(Span(name, NOW_S, NOW_S + 100, 100, 3, "") for name in ("gpu", "pressure"))
    held = DeviceCounters("gpu", "GPU1", {"hw_thermal": Count(20 * 10**9)}, {}, {})
    short = DeviceCounters("node", "", {"cpu_some": Count(40 * 10**6)}, {}, {})
    for device, kind in ((held, "gpu"), (short, "host")):
        (one,) = stragglers_of(processes, {"n2": NodeCounters(spans, (device,))})
        assert (one.rank, one.kind, one.confidence) == ("rank 9", kind, HIGH)
    (one,) = stragglers_of(processes, {"n2": NodeCounters(spans, (held, short))})
    assert (one.rank, one.kind, one.confidence) == ("rank 9", "unknown", MEDIUM)


def test_a_rank_that_was_silent_for_a_time_is_not_called_late() -> None:
    processes = flat_job(1, {}, 200, 16).processes()
    one = processes[4]
    # Only the fast half of its operations was counted.
    pairs = one.keys[0].histogram.pairs()
    short = Histogram.of((bucket - 64, count // 2) for bucket, count in pairs if count > 1)
    key = one.keys[0]._replace(ops=one.keys[0].ops // 2, histogram=short)
    facts = replace(one.facts, silent=DISABLED, silent_ns=10**10)
    processes[4] = replace(one, facts=facts, keys=(key,))
    (slowest,) = stragglers_of(processes)
    assert not slowest.flagged
    assert slowest.rank != "rank 4"


def test_ranks_with_other_numbers_of_operations_are_left_out() -> None:
    assert comparable({0: 100, 1: 101, 2: 50, 3: 100}, 4) == {0, 1, 3}
    assert comparable({0: 1000, 1: 6}, 2) == frozenset()
    assert comparable({0: 100}, 8) == frozenset()
    assert comparable({}, 2) == frozenset()


def test_z_is_of_the_spread_and_never_infinite() -> None:
    errors = dict.fromkeys(range(4), 0.0)
    late = find_late({0: 5.0 * MS, 1: 9.0 * MS, 2: 9.0 * MS, 3: 9.0 * MS}, errors)
    assert late[0].clear
    assert late[0].z == pytest.approx(4 / 0.03, rel=0.01)
    assert find_late({0: 5.0 * MS, 1: 9.0 * MS}, errors)[0].z is None
    assert find_late({0: 5.0 * MS}, errors) == ()


def test_a_tie_in_a_window_is_no_lateness() -> None:
    assert is_late_in_window({0: 2.0 * MS, 1: 2.3 * MS, 2: 2.3 * MS}, 0)
    assert not is_late_in_window({0: 2.3 * MS, 1: 2.3 * MS, 2: 2.3 * MS}, 0)
    assert not is_late_in_window({0: 2.3 * MS, 1: 2.0 * MS, 2: 2.8 * MS}, 0)
