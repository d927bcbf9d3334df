# SPDX-License-Identifier: Apache-2.0
"""Late by its host or by its GPU: what looks at queues tell of the time that is spent in them."""

import random
from bisect import bisect_right
from dataclasses import replace

import pytest

from nccl_inspector.analysis.join import JoinedComm, Member, Place
from nccl_inspector.analysis.straggler.queue_waits import GPU, HOST, LateCall, Queued, queue_of
from nccl_inspector.model.card import UNKNOWN
from nccl_inspector.model.process import COMM_LIVE, FUNCS, Comm, Histogram, Key

MS = 1_000_000
KIND = "AllReduce", 20, "RING_SIMPLE"
COMM = Comm(0, 7, COMM_LIVE, 8, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "world")
KEY = Key(0, FUNCS.index(KIND[0]), KIND[1], 2, 3, 0, 0, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, Histogram())


def rank_of(
    *, ops: int = 10_000, wait_ms: float = 0, looks: int = 3600, found: int = 0, untimed: int = 0
) -> Member:
    """A rank whose operations waited so long each, found in so many of the looks."""
    queued_ns = int(ops * wait_ms * MS)
    key = KEY._replace(
        ops=ops, queued_ns=queued_ns, queued_looks=found, untimed_ops=untimed
    )  # fmt: skip
    return Member(Place("n1", "0_1", "GPU0", "rank"), replace(COMM, looks=looks), (key,))


def call(late_ms: float, *members: Member) -> LateCall:
    """The first rank is late."""
    comm = JoinedComm(7, "world", len(members), 2, dict(enumerate(members)), (), ())
    return LateCall(comm, 0, KIND, late_ms * MS)


def judged(late_ms: float, *members: Member) -> Queued:
    found = queue_of([call(late_ms, *members)])
    assert found
    return found


def looked_at(
    seed: int, seconds: float, wait_ms: float, burst: int = 1, step_s: float = 0.05
) -> Member:
    """A rank that calls `burst` operations a step, looked at as plugin/upkeep/sweep.c does."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    calls_s: list[float] = []
    at_s = 0.0
    while at_s < seconds:
        calls_s += [at_s] * burst
        at_s += step_s * chance.uniform(0.9, 1.1)
    begins_s = sorted(at + wait_ms / 1e3 * chance.uniform(0.8, 1.2) for at in calls_s)
    queued_ns, looks, found, before_s = 0.0, 0, 0, 0.0
    while before_s < seconds:
        now_s = before_s + chance.uniform(0.875, 1)
        waiting = bisect_right(calls_s, now_s) - bisect_right(begins_s, now_s)
        queued_ns += waiting * (now_s - before_s) * 1e9
        looks += 1
        found += waiting > 0
        before_s = now_s
    mean_ms = queued_ns / len(calls_s) / MS
    return rank_of(ops=len(calls_s), wait_ms=mean_ms, looks=looks, found=found)


@pytest.mark.parametrize(
    ("wait_ms", "burst"),
    [
        (0.02, 1),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in ((0.02, 2), (1.5, 1), (1.5, 8), (30.0, 1))
        ),
        (30.0, 8),
    ],
)
def test_looks_now_and_then_tell_the_mean_wait(wait_ms: float, burst: int) -> None:
    inside = 0
    for seed in range(20):
        found = judged(1, looked_at(seed, 900, wait_ms, burst), rank_of())
        inside += abs(found.wait_ns - wait_ms * MS) <= found.error_ns
    assert inside >= 17


def test_who_called_late_is_told_from_whose_gpu_was_busy() -> None:
    for seed in range(20):
        free, busy = looked_at(seed, 1800, 0.02), looked_at(seed + 100, 1800, 8)
        assert judged(5, free, free, free).kind == HOST
        assert judged(5, busy, free, free).kind == GPU


def test_hosts_that_run_ahead_of_their_gpus_are_no_queue_of_the_late_one() -> None:
    for seed in range(4):
        ahead = [looked_at(seed * 10 + rank, 1800, 80, 2, 0.1) for rank in range(4)]
        assert judged(30, *ahead).kind == HOST, "all wait as long: it called late"
        late = looked_at(seed * 10 + 9, 1800, 120, 2, 0.1)
        assert judged(40, late, *ahead).kind == GPU, "40 ms longer than its peers"


def test_half_and_half_is_neither() -> None:
    free = rank_of()
    kinds = [judged(5, looked_at(seed, 120, 2.5), free).kind for seed in range(40)]
    assert kinds.count(UNKNOWN) >= 36


def test_a_few_operations_that_waited_very_long_are_no_late_gpu() -> None:
    # For an hour: 36 s in which the host was a second ahead.
    found = judged(5, rank_of(ops=72_000, wait_ms=10, found=40), rank_of(ops=72_000))
    assert found.wait_ns - found.error_ns > 2.5 * MS
    assert found.kind == UNKNOWN


def test_a_short_job_says_nothing() -> None:
    assert queue_of([call(5, rank_of(looks=29), rank_of())]) is None
    assert judged(5, rank_of(ops=100, looks=60), rank_of(ops=100, looks=60)).kind == UNKNOWN
    assert judged(5, rank_of(looks=60), rank_of(looks=60)).kind == HOST


def test_without_half_of_its_peers_nothing_is_said() -> None:
    deaf = rank_of(looks=0)
    assert queue_of([call(5, rank_of(), deaf, deaf, rank_of())]) is None
    assert queue_of([call(5, rank_of(), deaf, rank_of(), rank_of())])


def test_what_has_operations_without_a_time_is_not_asked() -> None:
    stuck = call(5, rank_of(wait_ms=1000, found=3600, untimed=1), rank_of())
    assert queue_of([stuck]) is None
    found = queue_of([stuck, call(5, rank_of(), rank_of())])
    assert found
    assert found.wait_ns == 0


def test_all_late_calls_count_together() -> None:
    busy = rank_of(ops=20_000, wait_ms=40, found=1500)
    found = queue_of([call(5, rank_of(ops=20_000), rank_of()), call(5, busy, rank_of())])
    assert found
    assert found.wait_ns == pytest.approx(20 * MS)
    assert found.late_ns == pytest.approx(5 * MS)
    assert found.kind == GPU


def test_a_number_of_looks_that_cannot_be_true_costs_no_report() -> None:
    assert judged(5, rank_of(wait_ms=40, found=(1 << 32) - 1), rank_of()).kind == GPU
