# SPDX-License-Identifier: Apache-2.0
"""Host or GPU: when late operations were called."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from nccl_inspector.analysis.replay.cause import LATE, Cause
from nccl_inspector.analysis.replay.judge import Judged, judge_records
from nccl_inspector.analysis.replay.late_calls import LateCalls
from nccl_inspector.analysis.replay.records import RecordSource
from nccl_inspector.analysis.replay.stop_calls import judge_stops
from nccl_inspector.model.card import GPU, HOST, UNKNOWN
from nccl_inspector.model.process import (
    FUNCS,
    PEER_NONE,
    SAMPLE_AT_LEAST,
    SAMPLE_WITHIN_SHIFT,
    SampleKind,
    Samples,
)
from nccl_inspector.model.sample_columns import AT_LEAST_NS, SampleColumns
from tests.support.step_jobs import START_NS, Recorded

RANKS, LATE_RANK = 8, 5
WORK_S, TRANSFER_S = 0.1, 0.01
QUARTER = 8 << SAMPLE_WITHIN_SHIFT  # the call is known within 256 ms


def job(
    *, steps: int = 400, host_s: float = 0.0, slower: float = 1.0, waits: float = 0.0,
    host_stops: Sequence[int] = (), gpu_stops: Sequence[int] = (), stop_s: float = 3.0,
    timed_every: int = 8, rounds: bool = False, bits: tuple[int, int] = (34, 34), each: int = 1,
) -> list[RecordSource]:  # fmt: skip
    """One AllReduce a step, or `each` so many, of which one rank is late.

    `host_s`: by which its host comes late to each step; `slower`: its GPU; `waits`: the share of
    the work after which each host waits for its GPU before it calls. `host_stops`, `gpu_stops`:
    steps in which its host or its GPU stands still. `timed_every`: of one operation in so many the
    call is timed; `rounds`: of those after long gaps it is known within a quarter of a second.
    """
    rng = np.random.default_rng(1)
    pace = np.ones(RANKS)
    pace[LATE_RANK] = slower
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(RANKS)]
    end = 1.0
    for step in range(steps):
        noise = 1 + 0.01 * rng.standard_normal((2, RANKS))
        late, stall = np.zeros(RANKS), np.zeros(RANKS)
        late[LATE_RANK] = host_s * (step % each == 0) + stop_s * (step in host_stops)
        stall[LATE_RANK] = stop_s * (step in gpu_stops)
        call = end + 0.001 + waits * WORK_S * pace * noise[0] + late
        begin = call + 1e-5 + (1 - waits) * WORK_S * pace * noise[1] + stall
        gap_s = begin - end
        end = float(begin.max()) + TRANSFER_S
        for rank in range(RANKS):
            queued = begin[rank] - call[rank]
            flags = 0
            if step % timed_every:
                flags = QUARTER if rounds and gap_s[rank] > 0.3 else 0
                queued = queued + 0.256 * rng.random() if flags else 0.0
            rows[rank].append((round(begin[rank] * 1e9), round(queued * 1e6), flags))
            rows[rank][-1] = (*rows[rank][-1][:2], flags | round(end * 1e9) << 8)
    return [RecordSource(rank, recorded(rank, found, bits)) for rank, found in enumerate(rows)]


def recorded(rank: int, rows: list[tuple[int, int, int]], bits: tuple[int, int]) -> Recorded:
    """Return the samples of a rank, from begin (ns), time in the queue (us), end and flags."""
    kind = SampleKind(7, RANKS, 2, rank, 0, FUNCS.index("AllReduce"), 22, 2, 3, 1, 0, "world")
    begin = np.array([row[0] for row in rows], np.int64)
    count = len(rows)
    columns = SampleColumns(
        kind=np.zeros(count, np.int32),
        index=np.arange(1, count + 1),
        peer=np.full(count, PEER_NONE, np.int32),
        start_ns=begin,
        time_ns=np.array([row[2] >> 8 for row in rows], np.int64) - begin,
        queued_ns=np.array([row[1] for row in rows], np.int64) * 1000,
        bytes=np.full(count, 1 << 22, np.int64),
        flags=np.array([row[2] & 0xFF for row in rows], np.uint8),
    )
    return Recorded((kind,), columns, START_NS, *bits)


def judged(sources: Sequence[RecordSource]) -> tuple[Judged, Cause]:
    """Return what the records say, and the cause that the late rank is."""
    found = judge_records(sources, [f"n{rank // 4}" for rank in range(RANKS)], [0, 1, 2, 3] * 2)
    (cause,) = [
        one for one in found.causes if one.kind == LATE and one.members == (LATE_RANK,)
    ]  # fmt: skip
    return found, cause


def by_process(sources: Sequence[RecordSource]) -> Callable[[int], Samples]:
    """Return what returns the samples of a process."""
    return {one.member: one.samples for one in sources}.__getitem__


def calls(sources: Sequence[RecordSource]) -> LateCalls:
    """Return what is said about the late rank's calls."""
    found, cause = judged(sources)
    told = found.late_calls(cause, by_process(sources))
    assert told is not None
    return told


@pytest.mark.parametrize("waits", [0.0, 0.3, 0.6])
def test_a_rank_that_calls_later_by_as_much_as_it_begins_later_has_a_late_host(
    waits: float,
) -> None:
    told = calls(job(host_s=0.01, waits=waits))
    assert told.kind == HOST
    assert told.called_late_ns == pytest.approx(10e6, rel=0.1)
    assert told.late_ns == pytest.approx(10e6, rel=0.15)


@pytest.mark.parametrize("waits", [0.0, 0.3, 0.6, 0.8])
def test_a_rank_whose_work_takes_longer_behind_its_calls_has_a_slow_gpu(waits: float) -> None:
    told = calls(job(slower=1.1, waits=waits))
    assert told.kind == GPU
    assert told.called_late_ns == pytest.approx(waits * 10e6, abs=1e6)


@pytest.mark.parametrize("fault", [{"host_s": 0.01}, {"slower": 1.1}])
def test_where_each_host_waits_for_its_gpu_before_it_calls_neither_is_told(
    fault: dict[str, float],
) -> None:
    assert calls(job(waits=1.0, **fault)).kind == UNKNOWN  # type: ignore[arg-type]  # its fields


@pytest.mark.parametrize(("host_s", "slower", "kind"), [(0.05, 1.0, HOST), (0.0, 1.2, UNKNOWN)])
def test_who_is_late_once_in_a_step_has_no_slow_gpu_although_hosts_wait_for_theirs(
    host_s: float, slower: float, kind: str
) -> None:
    # A GPU that is slow is so in what follows, too.
    told = calls(job(waits=1.0, each=4, timed_every=3, host_s=host_s, slower=slower))
    assert told.kind == kind


def test_a_job_whose_calls_are_not_timed_tells_neither() -> None:
    sources = job(host_s=0.01, timed_every=1_000_000)
    found, cause = judged(sources)
    assert found.late_calls(cause, by_process(sources)) is None


@pytest.mark.parametrize(
    ("stops", "kind"), [({"host_stops": (50, 190)}, HOST), ({"gpu_stops": (50, 190)}, GPU)]
)
def test_rare_stops_are_told_although_none_of_their_calls_was_timed(
    stops: dict[str, Sequence[int]], kind: str
) -> None:
    told = calls(job(rounds=True, timed_every=64, **stops))  # type: ignore[arg-type]  # its fields
    assert told.kind == kind
    assert told.late_ns == pytest.approx(3e9, rel=0.05)


def samples_of(sources: Sequence[RecordSource]) -> dict[int, Recorded]:
    """Return the samples by process."""
    return {one.member: one.samples for one in sources}  # type: ignore[misc]  # they are Recorded


@pytest.mark.parametrize(
    ("stops", "kind"), [({"host_stops": (50, 190)}, HOST), ({"gpu_stops": (50, 190)}, GPU)]
)
def test_stops_outside_of_what_is_replayed_are_told_by_the_late_ranks_own_records(
    stops: dict[str, Sequence[int]], kind: str
) -> None:
    samples = samples_of(job(rounds=True, timed_every=64, **stops))  # type: ignore[arg-type]
    told = judge_stops(samples, (LATE_RANK,), 3e9, 0.1)
    assert told is not None
    assert (told.kind, told.operations) == (kind, 2)
    # The others waited in an operation meanwhile: they made no stop of their own.
    assert judge_stops(samples, (2,), 3e9, 0.1) is None
    # Where hosts wait for their GPUs before they call, a late call tells nothing.
    hidden = judge_stops(samples, (LATE_RANK,), 3e9, 0.95)
    assert hidden is not None
    assert hidden.kind == (UNKNOWN if kind == HOST else GPU)


def test_the_time_between_two_bursts_is_no_stop() -> None:
    """With bursts of 17 s in each 34 s, a rank has no records for 17 s."""
    sources = job(rounds=True, timed_every=1, host_s=0.01)
    whole = sources[LATE_RANK].samples.columns()
    inside = (whole.start_ns + whole.time_ns + START_NS) % (1 << 35) < 1 << 34
    assert 0 < inside.sum() < len(inside)
    cut = SampleColumns(
        whole.kind[inside], whole.index[inside], whole.peer[inside], whole.start_ns[inside],
        whole.time_ns[inside], whole.queued_ns[inside], whole.bytes[inside], whole.flags[inside],
    )  # fmt: skip
    samples = samples_of(sources)
    samples[LATE_RANK] = Recorded(samples[LATE_RANK].kinds, cut, START_NS, 34, 35)
    assert judge_stops(samples, (LATE_RANK,), 3e9, 0.1) is None


def test_of_a_call_before_all_remembered_rounds_only_the_least_wait_is_known() -> None:
    flags = SAMPLE_AT_LEAST << SAMPLE_WITHIN_SHIFT | 1_100_000_000 << 8
    one = recorded(0, [(10**9, 20_000_000, flags)], (34, 34)).columns()
    assert (one.queued_ns[0], one.within_ns[0]) == (20 * 10**9, AT_LEAST_NS)
