# SPDX-License-Identifier: Apache-2.0
"""Late by its host or by its GPU: what looks at a queue tell of the time that is spent in it."""

import random
from bisect import bisect_right
from dataclasses import replace

import pytest

from nccl_inspector.analysis.join import Member, Place
from nccl_inspector.analysis.queued import GPU, HOST, LOOK_NS, LateCall, queue_of
from nccl_inspector.card.model import UNKNOWN
from nccl_inspector.model import COMM_LIVE, FUNCS, Comm, Histogram, Key

MS = 1_000_000
KIND = "AllReduce", 20, "RING_SIMPLE"
PLACE = Place("n1", "0_1", "GPU0", "rank 0")
COMM = Comm(0, 7, COMM_LIVE, 8, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "world")
KEY = Key(0, FUNCS.index(KIND[0]), KIND[1], 2, 3, 0, 0, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, Histogram())


def late(
    late_ns: float, *, ops: int, queued_ns: int, looks: int, found: int = 0, untimed: int = 0
) -> LateCall:
    """Calls of a rank that came late by so much."""
    key = replace(KEY, ops=ops, queued_ns=queued_ns, queued_looks=found, untimed_ops=untimed)
    return LateCall(Member(PLACE, replace(COMM, looks=looks), (key,)), KIND, late_ns)


def looked_at(seed: int, seconds: float, wait_ms: float, late_ms: float, burst: int) -> LateCall:
    """A program that calls `burst` operations every 50 ms, looked at as plugin/sweep.c does."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    calls_s: list[float] = []
    at_s = 0.0
    while at_s < seconds:
        calls_s += [at_s] * burst
        at_s += 0.05 * chance.uniform(0.9, 1.1)
    begins_s = sorted(at + wait_ms / 1e3 * chance.uniform(0.8, 1.2) for at in calls_s)
    queued_ns, looks, found, before_s = 0.0, 0, 0, 0.0
    while before_s < seconds:
        now_s = before_s + chance.uniform(0.875, 1)
        waiting = bisect_right(calls_s, now_s) - bisect_right(begins_s, now_s)
        queued_ns += waiting * (now_s - before_s) * 1e9
        looks += 1
        found += waiting > 0
        before_s = now_s
    return late(late_ms * MS, ops=len(calls_s), queued_ns=int(queued_ns), looks=looks, found=found)


@pytest.mark.parametrize(
    ("wait_ms", "burst"), [(0.02, 1), (0.02, 2), (1.5, 1), (1.5, 8), (30.0, 1), (30.0, 8)]
)
def test_looks_now_and_then_tell_the_mean_wait(wait_ms: float, burst: int) -> None:
    inside = 0
    for seed in range(20):
        found = queue_of([looked_at(seed, 900, wait_ms, 1, burst)])
        assert found
        inside += found.low_ns <= wait_ms * MS <= found.high_ns
    assert inside >= 17


def test_who_called_late_is_told_from_whose_gpu_was_busy() -> None:
    for seed in range(20):
        host = queue_of([looked_at(seed, 1800, 0.02, 5, 1)])
        gpu = queue_of([looked_at(seed, 1800, 8, 5, 1)])
        assert host
        assert gpu
        assert (host.kind, gpu.kind) == (HOST, GPU)


def test_half_and_half_is_neither() -> None:
    kinds = [found.kind for seed in range(40) if (found := queue_of(
        [looked_at(seed, 120, 2.5, 5, 1)]))]  # fmt: skip
    assert kinds.count(UNKNOWN) >= 36


def test_a_short_job_says_nothing() -> None:
    assert queue_of([late(5 * MS, ops=10_000, queued_ns=0, looks=29)]) is None
    few = queue_of([late(5 * MS, ops=100, queued_ns=0, looks=60)])
    assert few
    assert few.kind == UNKNOWN, "among so few operations one that waited is seldom seen"
    many = queue_of([late(5 * MS, ops=10_000, queued_ns=0, looks=60)])
    assert many
    assert many.kind == HOST


def test_a_launch_is_no_queue() -> None:
    ops, looks = 10_000_000, 3600
    found = queue_of([late(40_000, ops=ops, queued_ns=20_000 * ops, looks=looks, found=3000)])
    assert found
    assert found.kind == HOST
    assert found.wait_ns == pytest.approx(20_000)


def test_what_has_operations_without_a_time_is_not_asked() -> None:
    stuck = late(5 * MS, ops=1000, queued_ns=10**12, looks=3600, found=3600, untimed=1)
    assert queue_of([stuck]) is None
    good = late(5 * MS, ops=100_000, queued_ns=0, looks=3600)
    found = queue_of([stuck, good])
    assert found
    assert found.wait_ns == 0


def test_all_late_calls_count_together() -> None:
    one = late(5 * MS, ops=20_000, queued_ns=0, looks=3600)
    other = late(5 * MS, ops=20_000, queued_ns=20_000 * 40 * MS, looks=3600, found=800)
    found = queue_of([one, other])
    assert found
    assert found.wait_ns == pytest.approx(20 * MS)
    assert found.kind == GPU
    assert found.late_ns == pytest.approx(5 * MS)
    assert found.looks * LOOK_NS == pytest.approx(3600 * 0.94e9)
