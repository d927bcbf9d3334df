# SPDX-License-Identifier: Apache-2.0
"""The tables of a box that the built plugin has filled: they tell the same story, and arrive."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nccl_inspector.box.copy import read_state
from nccl_inspector.box.reader import read_box
from nccl_inspector.model.process import ALGOS, CPU_TIMED, FUNCS, GPU_TIMED, UNTIMED, Key, Process
from nccl_inspector.summary.codec import decode, encode, encode_process
from tests.support.plugin_runs import boxes, environment
from tests.support.scripted_nccl import OURS, Stage, step
from tests.support.standin import finished, started
from tests.support.summaries import HEAD

MIB = 1 << 20
ALL = step("coll", func="AllReduce", bytes=MIB, times=20)
COMM, FINALIZE = step("comm", name="world", ranks=4), step("finalize")
Sums = Mapping[tuple[int, int, int], tuple[int, int, int]]


@pytest.fixture
def measured(raw: Path, tmp_path: Path) -> list[Process]:
    """What four ranks of the stand-in leave."""
    args = ("--steps", "3", "--sizes", "256K", "--compute-ms", "0")
    run = finished(tmp_path, *args, ranks=4, env=environment(raw))
    assert run.codes == [0] * 4, run.stderr
    return list(boxes(raw, run).values())


def is_group(key: Key) -> bool:
    return ALGOS[key.algo] == "GROUP"


def test_every_operation_that_was_enqueued_is_somewhere(measured: list[Process]) -> None:
    for process in measured:
        assert not process.operations
        for comm in process.comms:
            keys = [key for key in process.keys if key.comm == comm.index]
            assert comm.enqueued == comm.completed + comm.untimed + comm.lost > 0
            assert comm.lost == 0
            assert comm.completed == sum(key.ops for key in keys if not is_group(key))
            assert comm.untimed <= sum(key.untimed_ops for key in keys)


def sums(rows: Iterable[tuple[tuple[int, int, int], tuple[int, int, int]]]) -> Sums:
    """Add up operations, bytes and time by kind."""
    found: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    for kind, more in rows:
        old = found.get(kind, (0, 0, 0))
        found[kind] = (old[0] + more[0], old[1] + more[1], old[2] + more[2])
    return found


def test_peers_have_what_the_kinds_of_send_and_recv_have(measured: list[Process]) -> None:
    p2p = (FUNCS.index("Send"), FUNCS.index("Recv"))
    for process in measured:
        by_peer = sums(
            ((peer.comm, peer.func, 0), (peer.ops, peer.bytes, peer.busy_ns))
            for peer in process.peers
        )
        by_key = sums(
            ((key.comm, key.func, 0), (key.ops, key.bytes, key.busy_ns))
            for key in process.keys
            if key.func in p2p and not is_group(key) and key.ops
        )
        assert by_peer == by_key
        assert by_peer


def test_a_time_line_has_what_its_kind_has(measured: list[Process]) -> None:
    for process in measured:
        ids = {comm.index: comm.id for comm in process.comms}
        by_key = sums(
            ((ids[key.comm], key.func, key.size_class), (key.ops, key.bytes, key.busy_ns))
            for key in process.keys
        )
        assert len(process.lines) == min(8, sum(1 for ops, _, _ in by_key.values() if ops))
        whole = Counter[bool]()
        for line in process.lines:
            columns = [sum(column) for column in zip(*line.windows, strict=True)]
            kind = line.comm_id, line.func, line.size_class
            # One that was given to another kind later has only what came then.
            whole[tuple(columns[2:5]) == by_key[kind]] += 1
            assert columns[2] <= by_key[kind][0]
            assert all(one.min_ns <= one.median_ns * 1.04 for one in line.windows)
        assert whole[True] >= 4


def test_a_summary_carries_all_of_it(measured: list[Process]) -> None:
    for process in measured:
        (found,) = decode(encode(HEAD, [encode_process(process)])).processes
        assert found.facts == process.facts
        assert found.comms == process.comms
        assert found.lines == process.lines
        assert set(found.keys) == set(process.keys)
        assert set(found.peers) == set(process.peers)
        assert found.flags == process.flags == ()


@pytest.mark.parametrize(
    ("api", "timing"), [(1, UNTIMED), (2, UNTIMED), (3, CPU_TIMED), (4, GPU_TIMED), (7, GPU_TIMED)]
)
def test_each_interface_says_whose_clock_it_was(tmp_path: Path, api: int, timing: str) -> None:
    stage = Stage(OURS, tmp_path)
    stage.play(COMM, ALL, FINALIZE, api=api)
    (process,) = stage.boxes()
    (comm,) = process.comms
    (key,) = process.keys
    counted = (comm.enqueued, comm.completed + comm.untimed, key.ops + key.untimed_ops)
    assert process.facts.timing == timing
    assert counted == (20, 20, 20)
    assert (key.untimed_ops, key.untimed_bytes) == ((20, 20 * MIB) if timing == UNTIMED else (0, 0))


def check_living(process: Process) -> None:
    assert set(process.flags) <= {"kept changing while it was read"}
    for comm in process.comms:
        ops = sum(k.ops for k in process.keys if k.comm == comm.index and not is_group(k))
        # One operation at a time is being added, between these words.
        assert abs(ops - comm.completed) <= 1 or process.flags
        assert comm.enqueued >= comm.completed + comm.untimed + comm.lost - 1 or process.flags


def check_series(text: str, seen: dict[str, float]) -> None:
    """A file is whole, and no counter of it lower than the last one that was seen."""
    assert text.endswith("\n# EOF\n")
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_total"):
                series = f"{sample.name}{sample.labels}"
                assert sample.value >= seen.get(series, 0.0), series
                seen[series] = sample.value


def test_a_reader_of_a_living_process_sees_nothing_that_cannot_be(
    raw: Path, tmp_path: Path
) -> None:
    args = ["--seconds", "4", "--sizes", "64K", "--compute-ms", "0"]
    looks = 0
    seen: dict[str, float] = {}
    env = environment(raw, NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS="100000")
    with started(tmp_path, args, ranks=2, env=env) as run:
        while any(process.poll() is None for process in run.processes):
            for path in raw.glob("*.box"):
                fd = os.open(path, os.O_RDONLY)
                try:
                    if read_state(fd):  # else it is being made
                        check_living(read_box(fd, path.stat().st_size, path.stem, alive=True))
                finally:
                    os.close(fd)
                looks += 1
            for path in raw.glob("*.prom"):
                with suppress(FileNotFoundError):  # the process has just ended
                    check_series(path.read_text(), seen)
    assert looks > 50
    assert any("_operations_total" in series for series in seen)
