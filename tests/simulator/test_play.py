# SPDX-License-Identifier: Apache-2.0
"""What is scripted arrives in the summaries: counts and times exactly, by clocks that are set."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from nccl_inspector.analysis.histogram import bucket_of
from nccl_inspector.counters.node_counters import Count, DeviceCounters, NodeCounters, Span
from nccl_inspector.model.process import FUNCS as BOX_FUNCS
from nccl_inspector.model.process import KILLED, Key, Process
from nccl_inspector.summary.attempts import load_summaries
from tests.simulator.job import FUNCS, NEVER, OPERATIONS, Clock, Comm, Job, Rank
from tests.simulator.play import JOB_ID, CannotPlayError, analyzed, card_of, node_unix_ns, play

MS, S = 10**6, 10**9
START_S = 1_790_000_000
STEP_NS = 200 * MS
ALL_REDUCE, ALL_TO_ALL, SEND, RECV = (
    FUNCS.index(name) for name in ("AllReduce", "AlltoAll", "Send", "Recv")
)
BYTES = {ALL_REDUCE: 64 << 20, ALL_TO_ALL: 256 << 10, SEND: 1 << 20, RECV: (1 << 20) + 1}
RANKS = 4
OFFSET_NS, DRIFT_PPM = 5 * S, 40.0
LATE_NS = 2 * S  # a beat and more
HEARD_NS = 30_000  # how late NCCL hears of a kernel, at most


def operations(rank: int, seconds: int) -> NDArray[np.void]:
    """A step: an AllReduce, a Send and a Recv along the ring in one group, an AlltoAll."""
    steps = seconds * S // STEP_NS
    rows = np.zeros(4 * steps, OPERATIONS)
    chance = np.random.default_rng(rank)
    step = np.arange(len(rows)) // 4
    rows["func"] = np.tile([ALL_REDUCE, SEND, RECV, ALL_TO_ALL], steps)
    rows["peer"] = np.tile([-1, (rank + 1) % RANKS, (rank - 1) % RANKS, -1], steps)
    rows["comm"] = np.tile([0, 0, 0, 1], steps)
    rows["group"] = np.tile([0, 1, 1, 0], steps) * (step + 1)
    rows["channels"] = np.tile([4, 1, 2, 1], steps)
    rows["bytes"] = [BYTES[func] for func in rows["func"].tolist()]
    rows["call_ns"] = S + step * STEP_NS + np.tile([0, 1, 1, 2], steps) * 50 * MS
    rows["begin_ns"] = rows["call_ns"] + chance.integers(10_000, 5 * MS, len(rows))
    rows["end_ns"] = rows["begin_ns"] + chance.integers(100_000, 20 * MS, len(rows))
    return rows


def small_job(seconds: int = 120, states: tuple[str, ...] = ("finalized",), api: int = 7) -> Job:
    """Four ranks on two nodes; the second node's clock is ahead, and runs fast."""
    ranks = []
    for rank in range(RANKS):
        comms = (
            Comm(0xABC, "world", RANKS, 2, rank),
            Comm(0xDEF, "ep", RANKS, 2, rank, created_ns=S // 2, algo="NVLS", proto="LL"),
        )
        state = states[rank % len(states)]
        end_ns = (seconds + 2) * S
        rows = operations(rank, seconds)
        if state == "killed":
            end_ns = int(rows["end_ns"][-1])
        if state == "running":
            hung = rows[-8] if rows[-8]["func"] == ALL_REDUCE else rows[-4]
            hung["end_ns"] = NEVER
        status = 9 if state == "killed" else 0
        ranks.append(Rank(rank, f"n{rank // 2 + 1}", rank % 2, comms, rows, end_ns, state, status))
    clocks = {"n2": Clock(OFFSET_NS, DRIFT_PPM)}
    return Job(tuple(ranks), START_S, (seconds + 3) * S, ("n1", "n2"), clocks, nccl_api=api)


def processes(folder: Path) -> list[Process]:
    loaded = load_summaries(JOB_ID, folder / "reports", None)
    found = [process for summary in loaded.summaries for process in summary.processes]
    return sorted(found, key=lambda one: one.facts.procid or 0)


@pytest.fixture(scope="module")
def job() -> Job:
    return small_job(states=("finalized", "exited", "killed", "running"))


@pytest.fixture(scope="module")
def folder(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    play(job, folder)
    return folder


@pytest.fixture(scope="module")
def seen(folder: Path) -> list[Process]:
    return processes(folder)


def test_the_summaries_have_what_slurmstepd_saw_of_the_ends(job: Job, folder: Path) -> None:
    loaded = load_summaries(JOB_ID, folder / "reports", None)
    ends = [(one.head.node, end) for one in loaded.summaries for end in one.head.task_ends]
    assert [(node, end.step, end.task, end.signal, end.at_ns) for node, end in ends] == [
        (one.node, 0, one.procid, 9, node_unix_ns(job, one.node, one.end_ns))
        for one in job.ranks
        if one.state == "killed"
    ]


def members(rank: Rank) -> Iterator[tuple[str, int, int]]:
    """Give function, bytes and time of all that the plugin is to count of a rank, in any order."""
    heard_ns = rank.end_ns - HEARD_NS if rank.state == "killed" else rank.end_ns
    groups: dict[int, list[np.void]] = defaultdict(list)
    for row in rank.operations:
        if row["end_ns"] == NEVER or row["end_ns"] > heard_ns:
            continue
        func, size = FUNCS[row["func"]], int(row["bytes"])
        time_ns = int(row["end_ns"] - row["begin_ns"])
        if row["group"]:
            groups[row["group"]].append(row)
        if func == "AlltoAll":
            yield func, RANKS * size, time_ns
            yield from [("Send", size, time_ns), ("Recv", size, time_ns)] * (RANKS - 1)
        else:
            yield func, size, time_ns
    for rows in groups.values():
        time_ns = max(row["end_ns"] for row in rows) - min(row["begin_ns"] for row in rows)
        yield "SendRecv", max(int(row["bytes"]) for row in rows), int(time_ns)


def test_all_operations_are_counted_with_their_bytes_and_times(
    job: Job, seen: list[Process]
) -> None:
    for rank, process in zip(job.ranks, seen, strict=True):
        ops: Counter[tuple[str, int]] = Counter()
        times: dict[tuple[str, int], list[int]] = defaultdict(list)
        for func, size, time_ns in members(rank):
            ops[func, size] += 1
            times[func, size].append(time_ns)
        keys = {(BOX_FUNCS[key.func], key.bytes // key.ops): key for key in process.keys}

        assert ops == {kind: key.ops for kind, key in keys.items()}
        assert not any(process.dropped)
        for kind, key in keys.items():
            assert key.bytes == kind[1] * key.ops
            assert key.busy_ns == sum(times[kind])
            assert (key.min_ns, key.max_ns) == (min(times[kind]), max(times[kind]))
            assert dict(key.histogram.pairs()) == Counter(map(bucket_of, times[kind]))


def test_the_words_of_a_communicator_are_those_of_the_script(seen: list[Process]) -> None:
    world, second = seen[3].comms

    assert (world.id, world.name, world.rank) == (0xABC, "world", 3)
    assert (world.nranks, world.nnodes) == (RANKS, 2)
    assert (second.id, second.name) == (0xDEF, "ep")
    assert {key.algo_proto for key in seen[3].keys} == {"RING_SIMPLE", "GROUP", "Unknown_Unknown"}
    assert [one.gpus[0].minor for one in seen] == [0, 1, 0, 1]
    assert len({one.gpus[0].uuid for one in seen}) == RANKS


def test_processes_end_as_the_script_says(job: Job, seen: list[Process]) -> None:
    assert [one.facts.state for one in seen] == ["finalized", "exited", KILLED, KILLED]
    (hung,) = seen[3].operations
    assert BOX_FUNCS[hung.func] == "AllReduce"
    assert hung.started
    rows = job.ranks[3].operations
    (row,) = rows[rows["end_ns"] == NEVER]
    beat_ns = seen[3].facts.beat_ns - START_S * S - OFFSET_NS
    assert hung.age_ns == pytest.approx(beat_ns - row["call_ns"], abs=LATE_NS)
    assert [len(one.operations) for one in seen[:2]] == [0, 0]


def test_a_clock_shows_what_it_is_set_to(job: Job, seen: list[Process]) -> None:
    for rank, process in zip(job.ranks, seen, strict=True):
        end_ns = node_unix_ns(job, rank.node, rank.end_ns)
        # A killed process has no last beat at its end.
        assert end_ns - LATE_NS < process.facts.beat_ns <= end_ns + HEARD_NS
        created_ns = node_unix_ns(job, rank.node, S // 2)
        assert process.comms[1].created_ns == created_ns
    ahead_ns = seen[3].comms[1].created_ns - seen[1].comms[1].created_ns
    assert ahead_ns == OFFSET_NS + int(DRIFT_PPM * 1e-6 * S / 2)


def test_windows_have_what_ended_in_them(job: Job, seen: list[Process]) -> None:
    for rank, process in zip(job.ranks[:2], seen[:2], strict=True):
        rows = rank.operations[rank.operations["func"] == ALL_REDUCE]
        (line,) = (one for one in process.lines if BOX_FUNCS[one.func] == "AllReduce")
        ends_ns = np.sort(rows["end_ns"]) + START_S * S

        assert line.window_s == 10
        assert sum(one.ops for one in line.windows) == len(rows)
        done = 0
        for window in line.windows[:-1]:
            done += window.ops
            end_ns = (window.start_s + line.window_s) * S
            least, most = np.searchsorted(ends_ns, [end_ns - HEARD_NS, end_ns + LATE_NS])
            assert least <= done <= most


def test_the_same_script_always_gives_the_same(
    job: Job, seen: list[Process], tmp_path: Path
) -> None:
    play(job, tmp_path, at_once=1)

    again = processes(tmp_path)
    assert [one.keys for one in again] == [one.keys for one in seen]
    assert [tuple(one.lines) for one in again] == [tuple(one.lines) for one in seen]
    assert [one.facts for one in again] == [one.facts for one in seen]
    assert [one.comms for one in again] == [one.comms for one in seen]


def test_a_card_can_be_made(job: Job, folder: Path) -> None:
    card = card_of(replace(job, state="CANCELLED"), folder)

    assert card.job.state == "CANCELLED"
    assert (card.data_quality.ranks_seen, card.job.num_nodes) == (RANKS, 2)
    assert card.job.wall_s == 123


def test_counters_of_a_node_are_collected_and_a_silent_node_is_missing(tmp_path: Path) -> None:
    port = DeviceCounters("port", "mlx5_0/1", {"symbol_error": Count(3)}, {}, {})
    counters = NodeCounters((Span("infiniband", START_S, START_S + 12, 12, 2, ""),), (port,))
    job = replace(small_job(10), counters={"n1": counters}, silent_nodes=("n2",))

    play(job, tmp_path)

    (summary,) = load_summaries(JOB_ID, tmp_path / "reports", None).summaries
    assert summary.counters == counters
    assert summary.head.node == "n1"
    assert len(summary.processes) == 2


def test_lines_have_every_operation(tmp_path: Path) -> None:
    job = small_job(10)

    play(job, tmp_path, json=True)

    card = analyzed(tmp_path)
    of_world = {one.func: one for one in card.operations if one.communicator == "0xabc"}
    assert of_world["AllReduce"].count == 50
    assert card.data_quality.ranks_seen == RANKS


def test_a_process_may_destroy_all_its_communicators_and_begin_again(tmp_path: Path) -> None:
    job = small_job(10)
    rank = job.ranks[0]
    rows = rank.operations[rank.operations["func"] == ALL_REDUCE]
    rows["comm"] = np.arange(len(rows)) // 5
    comms = [
        Comm(
            number, f"c{number}", RANKS, 2, 0, int(of_comm["call_ns"][0]) - MS,
            int(of_comm["end_ns"][-1]),
        )
        for number in range(10)
        for of_comm in [rows[rows["comm"] == number]]
    ]  # fmt: skip
    again = replace(rank, comms=tuple(comms), operations=rows)

    play(replace(job, ranks=(again,), nodes=("n1",)), tmp_path, json=True)

    (process,) = processes(tmp_path)
    assert process.facts.state == "finalized"
    assert process.facts.comms_destroyed == len(comms)
    assert sum(key.ops for key in process.keys) == process.facts.json_lines == len(rows)


@pytest.mark.parametrize("api", [4, 6, 7])
def test_other_interfaces_of_nccl_are_spoken(api: int, tmp_path: Path) -> None:
    play(small_job(10, api=api), tmp_path)

    def words(key: Key) -> tuple[str, int]:
        return BOX_FUNCS[key.func], key.ops

    of_world = {
        ("AllReduce", 50): 1, ("SendRecv", 50): 1, ("Send", 50): 1, ("Recv", 50): 1,
    }  # fmt: skip
    # Up to 2.30 what a rank sends to itself mixes up the times of its communicator.
    of_ep = {("AlltoAll", 50): 1, ("Send", 150): 1, ("Recv", 150): 1} if api >= 7 else {}
    for process in processes(tmp_path):
        assert process.facts.api_version == api
        timed = [key for key in process.keys if key.ops]
        assert Counter(map(words, timed)) == of_world | of_ep
        assert sum(comm.untimed for comm in process.comms) == (100 if api >= 7 else 400)


def test_impossible_operations_are_refused(tmp_path: Path) -> None:
    job = small_job(10)
    job.ranks[1].operations["end_ns"][7] = job.ranks[1].operations["begin_ns"][7]

    with pytest.raises(
        ValueError, match="rank 1, operation 7: a kernel does not end after its begin"
    ):
        play(job, tmp_path)


def test_a_rank_whose_script_cannot_be_played_is_an_error(tmp_path: Path) -> None:
    job = small_job(10)
    late = replace(job.ranks[0].comms[1], created_ns=5 * S)
    rank = replace(job.ranks[0], comms=(job.ranks[0].comms[0], late))

    with pytest.raises(CannotPlayError, match="rank 0: no communicator lives for operation 3"):
        play(replace(job, ranks=(rank, *job.ranks[1:])), tmp_path)
