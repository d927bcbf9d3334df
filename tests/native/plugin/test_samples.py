# SPDX-License-Identifier: Apache-2.0
"""Samples that the built plugin has taken: every operation, alike on all ranks, in the summary."""

import os
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from nccl_inspector.box.reader import read_box
from nccl_inspector.box.sample_reader import add_samples
from nccl_inspector.model.process import (
    FUNCS,
    NS_PER_S,
    PEER_NONE,
    SAMPLE_CPU_TIMED,
    SAMPLE_GROUP,
    Process,
)
from nccl_inspector.model.sample_columns import SampleColumns
from nccl_inspector.summary.codec import decode, encode, encode_process
from nccl_inspector.summary.unpacked_samples import unix_ns
from tests.support.plugin_runs import environment
from tests.support.scripted_nccl import OURS, Stage, step
from tests.support.standin import finished
from tests.support.summaries import HEAD

MIB = 1 << 20
COMM, FINALIZE = step("comm", name="world", ranks=4), step("finalize")


def read_whole(path: Path) -> Process:
    """Return what collection makes of the box of a dead process."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = path.stat().st_size
        process = add_samples(fd, size, read_box(fd, size, path.stem, alive=False), 1)
    finally:
        os.close(fd)
    (found,) = decode(encode(HEAD, [encode_process(process)])).processes
    return found


def columns_of(process: Process) -> SampleColumns:
    assert process.samples is not None
    assert (process.samples.lost, process.flags) == (0, ())
    return process.samples.columns()


def play(tmp_path: Path, *steps: list[str | bytes], api: int = 7) -> Process:
    stage = Stage(OURS, tmp_path)
    stage.play(COMM, *steps, FINALIZE, api=api)
    (path,) = stage.out.glob("*.box")
    return read_whole(path)


def funcs_of(process: Process) -> list[str]:
    assert process.samples is not None
    return [FUNCS[process.samples.kinds[kind].func] for kind in columns_of(process).kind]


def test_each_collective_is_a_sample_with_its_number_bytes_and_time(tmp_path: Path) -> None:
    process = play(
        tmp_path,
        step("coll", func="AllReduce", bytes=MIB, times=20, ns=100_000),
        step("coll", func="AllGather", bytes=3 << 10, times=5, ns=40_000),
        step("coll", func="AllReduce", bytes=100, times=2, ns=20_000),
    )
    found = columns_of(process)
    assert Counter(funcs_of(process)) == {"AllReduce": 22, "AllGather": 5}
    reduces = np.array(funcs_of(process)) == "AllReduce"
    assert found.index[reduces].tolist() == list(range(1, 23))
    assert found.index[~reduces].tolist() == list(range(1, 6))
    assert found.bytes[reduces].tolist() == [MIB] * 20 + [100] * 2
    assert found.time_ns[reduces].tolist() == pytest.approx([100_000] * 20 + [20_000] * 2, abs=64)
    assert set(found.peer.tolist()) == {PEER_NONE}
    assert (np.diff(found.start_ns) > 0).all()
    assert not found.flags.any()


def test_the_union_of_operations_is_the_time_that_the_gpu_was_busy(tmp_path: Path) -> None:
    steps = [step("coll", bytes=MIB, times=5, ns=ns) for ns in (100_000, 10_000, 50_000)]
    process = play(tmp_path, *steps)
    (union,) = process.unions
    assert process.gpus[union.gpu].uuid
    assert sum(window.operations for window in union.windows) == 15
    found = columns_of(process)
    stops = found.start_ns + found.time_ns
    latest = np.maximum.accumulate(stops)
    begins = np.maximum(found.start_ns, np.concatenate(([0], latest[:-1])))
    busy_ns = int(np.maximum(stops - begins, 0).sum())
    assert 100_000 < busy_ns < int(found.time_ns.sum()), "they overlap"
    assert sum(window.busy_ns for window in union.windows) == pytest.approx(busy_ns, abs=15 * 64)
    ends = unix_ns(found.start_ns + found.time_ns, union.clock)
    last_ns = process.facts.beat_ns
    assert (np.abs(ends - last_ns) < 60 * NS_PER_S).all()


def test_a_send_has_its_peer_and_its_number_with_it(tmp_path: Path) -> None:
    process = play(
        tmp_path,
        step("p2p", func="Send", peer=1, bytes=MIB, times=3),
        step("p2p", func="Send", peer=2, bytes=MIB, times=2),
        step("p2p", func="Recv", peer=1, bytes=MIB, times=2),
    )
    found = columns_of(process)
    rows = zip(funcs_of(process), found.peer.tolist(), found.index.tolist(), strict=True)
    alone = [row for row, flags in zip(rows, found.flags, strict=True) if not flags & SAMPLE_GROUP]
    assert sorted(alone) == [
        *(("Recv", 1, 1), ("Recv", 1, 2)),
        *(("Send", 1, 1), ("Send", 1, 2), ("Send", 1, 3), ("Send", 2, 1), ("Send", 2, 2)),
    ]


def test_what_the_cpu_timed_says_so_and_what_nobody_timed_is_no_sample(tmp_path: Path) -> None:
    for api in (2, 3):
        (tmp_path / str(api)).mkdir()
    found = columns_of(play(tmp_path / "3", step("coll", times=4, real_us=1000), api=3))
    assert found.flags.tolist() == [SAMPLE_CPU_TIMED] * 4
    assert play(tmp_path / "2", step("coll", times=4), api=2).samples is None


def test_ranks_have_samples_of_the_same_operations(raw: Path, tmp_path: Path) -> None:
    args = ("--steps", "3", "--sizes", "256K", "--compute-ms", "0")
    run = finished(tmp_path, *args, ranks=4, env=environment(raw))
    assert run.codes == [0] * 4, run.stderr
    by_comm: dict[int, list[Counter[tuple[int, int, int]]]] = defaultdict(list)
    for path in raw.glob("*.box"):
        process = read_whole(path)
        assert process.samples is not None
        found = columns_of(process)
        assert len(found.kind) == sum(key.ops for key in process.keys), "each, and each group"
        own: dict[int, Counter[tuple[int, int, int]]] = defaultdict(Counter)
        for place, index, peer, flags in zip(
            found.kind, found.index.tolist(), found.peer, found.flags, strict=True
        ):
            kind = process.samples.kinds[place]
            if peer == PEER_NONE and not flags & SAMPLE_GROUP:
                own[kind.comm_id][kind.incarnation, kind.func, index] += 1
        for comm_id, operations in own.items():
            by_comm[comm_id].append(operations)
    assert max(map(len, by_comm.values())) == 4
    for ranks in by_comm.values():
        assert ranks == [ranks[0]] * len(ranks)
        assert set(ranks[0].values()) == {1}
