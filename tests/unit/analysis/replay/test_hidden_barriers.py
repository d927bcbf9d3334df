# SPDX-License-Identifier: Apache-2.0
"""Points at which all ranks waited are found by what the other operations show."""

from dataclasses import replace

import numpy as np
import pytest

from nccl_inspector.analysis.replay.arrays import Ints
from nccl_inspector.analysis.replay.hidden_barriers import fill_holes
from nccl_inspector.analysis.replay.records import RecordedComm, Records
from nccl_inspector.model.process import FUNCS, PEER_NONE

MS = 10**6
RANKS, STEPS = 4, 100


def of_rows(rows: list[tuple[int, int, int, float, float]], sizes: Ints) -> Records:
    """Return records of (rank, pair, number, begin, end), whose size goes round with the number."""
    rows.sort(key=lambda row: (row[0], row[3]))
    member, comm, number, begin, end = np.array(rows).astype(np.int64).T
    same = np.zeros(len(rows), np.int64)
    return Records(
        comms=tuple(RecordedComm(at + 1, "tp", 2, 1, 0, (2 * at, 2 * at + 1)) for at in range(2)),
        member=member, comm=comm, func=same + 1, size_class=sizes[number % len(sizes)],
        number=number, peer=same + PEER_NONE, bytes=same + (1 << 24), begin=begin, end=end,
        queued=same, joined=number * 2 + comm, piece=same, run=same, members=RANKS,
        lost=0,
    )  # fmt: skip


def records(synchronised: bool, late_ms: float = 0, last_third_ms: float = 0) -> Records:
    """Two pairs of ranks; each pair meets twice a step, all meet after that where they are so.

    `late_ms`: by so much the second pair comes last. In a step of ten the machine is busy: the
    first is as late and a little more, and what the second does next takes longer. In the last
    third of the steps rank 3 is late by `last_third_ms`, and its pair ends that much later.
    """
    chance = np.random.default_rng(5)
    ready = np.zeros(RANKS)
    own_ns = np.array([MS / 10, MS / 10, 0, 0]) if late_ms else MS / 10
    pair_ns = (MS, MS / 100) if late_ms else MS
    rows = []
    for step in range(STEPS):
        for part, work_ms in enumerate((50, 80)):
            ready += work_ms * MS + chance.normal(0, own_ns, RANKS)
            ready += np.repeat(chance.normal(0, pair_ns, 2), 2)
            ready[3] += last_third_ms * MS * (step >= 2 * STEPS // 3)
            if late_ms and part:
                busy = chance.random() < 0.1
                ready[2:] = ready[2:].max() + late_ms * MS
                ready[:2] = ready[2] + MS / 10 if busy else ready[:2]
            for pair in ((0, 1), (2, 3)):
                begin = ready[list(pair)].copy()
                end = begin.max() + MS
                ready[list(pair)] = end
                rows += [
                    (rank, pair[0] // 2, 2 * step + part, began, end)
                    for rank, began in zip(pair, begin, strict=True)
                ]
        if synchronised:
            ready[:] = ready.max() + 50_000
        if late_ms and busy:
            ready[2:] += MS / 3
    return of_rows(rows, np.array([24, 20]))


def test_a_point_where_all_wait_becomes_an_operation() -> None:
    found = fill_holes(records(True))
    hidden = found.comm == 2
    assert hidden.sum() == RANKS * (STEPS - 1)  # after the last step nothing follows
    assert found.comms[2].members == (0, 1, 2, 3)
    for joined in np.unique(found.joined[hidden]):
        rows = found.joined == joined
        assert len(set(found.end[rows])) == 1
        assert found.end[rows][0] - found.begin[rows].max() <= 50_000


def test_between_two_bursts_nobody_met_although_some_begin_the_second_one_sooner() -> None:
    """The second one begins after step 48; of step 49 it has one operation of one pair."""
    given = records(True)
    kept = (given.number < 80) | (given.number >= 100)
    kept |= (given.number == 99) & (given.comm == 1)
    columns = {
        name: getattr(given, name)[kept]
        for name in ("member", "comm", "func", "size_class", "number", "peer", "bytes", "begin",
                     "end", "queued", "joined")
    }  # fmt: skip
    second = (columns["number"] >= 99).astype(np.int64)
    found = fill_holes(replace(given, **columns, piece=second, run=second))
    hidden = found.comm == 2
    assert hidden.sum() == RANKS * (39 + 49)
    for run in (0, 1):
        mine = found.run == run
        assert found.begin[mine & hidden].min() > found.begin[mine & ~hidden].min()


def test_it_is_there_too_while_others_wait_many_times_as_long_as_usual() -> None:
    given = records(True, last_third_ms=500)
    found = fill_holes(replace(given, piece=given.number // (STEPS // 2)))
    hidden = found.comm == 2
    assert hidden.sum() == RANKS * (STEPS - 1)
    waited = (found.end - found.begin)[hidden & (found.member == 0)]
    assert waited[-20:] == pytest.approx(1000 * MS, rel=0.05)  # late to both operations of a step


def test_who_is_always_last_there_says_nothing_against_it() -> None:
    found = fill_holes(records(True, late_ms=40))
    assert (found.comm == 2).sum() == RANKS * (STEPS - 1)
    apart = records(False, late_ms=40)
    assert fill_holes(apart) is apart


def phases(steps: int, varies_ns: float = MS / 2) -> Records:
    """Two pairs of ranks meet five times a step, and all meet after that; rank 3 is always late.

    Nearly by the same time at each operation, so that all its ends before the point come as much
    after the other pair's as the last one, but for a constant. `varies_ns`: by how much it is not.
    """
    chance = np.random.default_rng(18)
    ready = np.zeros(RANKS)
    rows = []
    for step in range(steps):
        for part in range(5):
            ready += 2 * MS + chance.normal(0, MS / 20, RANKS)
            ready[3] += 40 * MS + chance.normal(0, varies_ns)
            for pair in ((0, 1), (2, 3)):
                begin = ready[list(pair)].copy()
                ready[list(pair)] = end = begin.max() + 20 * MS
                rows += [
                    (rank, pair[0] // 2, 5 * step + part, begin[rank % 2], end) for rank in pair
                ]
        ready[:] = ready.max() + 50_000
    return of_rows(rows, np.array([24, 23, 22, 21, 20]))


def test_the_point_is_where_the_last_one_came_and_not_where_it_looks_alike() -> None:
    given = phases(12)
    found = fill_holes(given)
    hidden = found.comm == 2
    assert hidden.sum() == RANKS * 11
    last = given.end[(given.member == 3) & (given.number % 5 == 4)]
    assert (np.sort(found.begin[hidden & (found.member == 3)]) - last[:-1] < MS).all()
    waits = found.end[hidden & (found.member == 0)] - found.begin[hidden & (found.member == 0)]
    assert (waits > 150 * MS).all()


def beside(late_ms: float) -> Records:
    """Pairs meet twice in a step; beside that all reduce something, and meet once more at the end.

    In the middle third of the steps rank 3 comes late to the first: what is reduced is what ends
    last for the other pair then.
    """
    chance = np.random.default_rng(4)
    ready = np.zeros(RANKS)
    rows: list[tuple[int, int, int, float, float]] = []

    def meet(number: int) -> None:
        ready[:] += 50 * MS + chance.normal(0, MS, RANKS)
        for pair in ((0, 1), (2, 3)):
            came = ready[list(pair)].copy()
            ready[list(pair)] = end = came.max() + MS
            rows.extend((rank, pair[0] // 2, number, came[rank % 2], end) for rank in pair)

    for step in range(STEPS):
        ready[3] += late_ms * MS if STEPS // 3 <= step < 2 * STEPS // 3 else 0
        meet(2 * step)
        end = ready.max() + MS
        rows += [(rank, 2, step, ready[rank] + 1000, end) for rank in range(RANKS)]
        meet(2 * step + 1)
        ready[:] = max(ready.max(), end) + 50_000
    found = of_rows(rows, np.array([24]))
    everybody = RecordedComm(3, "dp", RANKS, 1, 0, tuple(range(RANKS)))
    joined = np.where(found.comm == 2, 1000 + found.number, found.joined)
    return replace(found, comms=(*found.comms, everybody), joined=joined)


def test_it_is_there_each_time_whatever_ended_last_before_it() -> None:
    for late_ms in (0, 300):
        found = fill_holes(beside(late_ms))
        hidden = found.comm == 3
        assert hidden.sum() == RANKS * (STEPS - 1)
        assert len(np.unique(found.number[hidden])) == STEPS - 1


def exchanges(ranks: int, speeds: float, apart_ns: float, seed: int = 7) -> Records:
    """Each rank sends to and receives from both neighbours in one call; all meet after that.

    The ranks work at different speeds, and rank 3 comes 150 ms late to each call. `apart_ns`: by
    how much each comes to the point and leaves it at a time of its own.
    """
    steps, chance = 40, np.random.default_rng(seed)
    speed = 1 + speeds * chance.standard_normal(ranks)
    come, leave = (apart_ns * chance.standard_normal(ranks) for _ in range(2))
    ready, rows = np.zeros(ranks), []
    send, recv = FUNCS.index("Send"), FUNCS.index("Recv")
    for step in range(steps):
        ready += 1000 * MS * speed + chance.normal(0, MS / 50 if apart_ns else MS / 5, ranks)
        ready[3] += 150 * MS
        begin = ready.copy()
        end = np.maximum(np.maximum(np.roll(begin, 1), np.roll(begin, -1)), begin) + MS + come
        for rank in range(ranks):
            for way in (1, -1):
                peer = (rank + way) % ranks
                for func, first in ((send, rank), (recv, peer)):
                    joined = (step * ranks + first) * 2 + ((func == send) == (way == 1))
                    rows.append((rank, func, peer, step, begin[rank], end[rank], joined))
        ready[:] = (end + 200 * MS * speed).max() + 50_000 + come + leave
    rows.sort(key=lambda row: (row[0], row[4]))
    member, func_of, peer_of, number, began, ended, joint = np.array(rows).astype(np.int64).T
    same = np.zeros(len(rows), np.int64)
    return Records(
        comms=(RecordedComm(1, "world", ranks, 1, 0, tuple(range(ranks))),), member=member,
        comm=same,
        func=func_of, size_class=same + 22, number=number, peer=peer_of, bytes=same + (1 << 22),
        begin=began, end=ended, queued=same, joined=joint, piece=same, run=same, members=ranks,
        lost=0,
    )  # fmt: skip


def test_the_point_is_found_where_neighbours_exchange_and_ranks_differ_in_speed() -> None:
    found = fill_holes(exchanges(32, speeds=0.002, apart_ns=0))
    hidden = found.comm == 1
    assert hidden.sum() == 32 * 39
    waits = (found.end - found.begin)[hidden & (found.member == 20)]
    assert waits == pytest.approx(150 * MS, rel=0.1)


@pytest.mark.parametrize("seed", [2, 5, 10])
def test_who_comes_a_little_earlier_than_others_does_not_outvote_who_comes_much_later(
    seed: int,
) -> None:
    found = fill_holes(exchanges(8, speeds=0, apart_ns=80_000, seed=seed))
    assert (found.comm == 1).sum() == 8 * 39


@pytest.mark.parametrize("steps", [8, 40])
def test_the_point_is_found_though_the_late_one_is_late_by_the_same_time_always(steps: int) -> None:
    given = phases(steps, varies_ns=0)
    found = fill_holes(given)
    hidden = found.comm == 2
    assert hidden.sum() == RANKS * (steps - 1)
    last = given.end[(given.member == 3) & (given.number % 5 == 4)]
    assert (np.sort(found.begin[hidden & (found.member == 3)]) - last[:-1] < MS).all()


def test_which_send_of_one_call_ends_last_changes_nothing() -> None:
    # The last operation of each step is a Send and a Recv of one kernel; which ends last is chance.
    given = phases(12)
    chance = np.random.default_rng(3)
    rows = np.flatnonzero(given.number % 5 == 4)
    both = np.sort(np.concatenate((np.arange(len(given)), rows)))
    second = np.append(False, both[1:] == both[:-1])
    parts = second | np.append(second[1:], False)
    peers = given.member ^ 1
    columns = {
        name: getattr(given, name)[both]
        for name in given.__slots__
        if isinstance(getattr(given, name), np.ndarray)
    }
    columns["func"] = np.where(parts, FUNCS.index("Send") + second, columns["func"])
    columns["peer"] = np.where(parts, peers[both], PEER_NONE)
    first_ends_last = (chance.random(len(both)) < 0.5) ^ second
    columns["end"] = columns["end"] - np.where(parts & first_ends_last, 2_000, 0)
    way = np.where(parts, 1 + (second ^ (columns["member"] % 2 == 1)), 0)
    columns["joined"] = columns["joined"] * 3 + way
    step, part = np.divmod(columns["number"], 5)
    columns["number"] = np.where(parts, step, 4 * step + part)  # of each function
    found = fill_holes(replace(given, **columns))
    assert (found.comm == 2).sum() == RANKS * 11


def test_ranks_that_do_not_wait_for_each_other_are_left_alone() -> None:
    given = records(False)
    assert fill_holes(given) is given


def test_a_few_records_are_left_alone() -> None:
    given = records(True)
    few = replace(
        given, **{name: getattr(given, name)[:3] for name in given.__slots__
                  if isinstance(getattr(given, name), np.ndarray)}
    )  # fmt: skip
    assert fill_holes(few) is few
