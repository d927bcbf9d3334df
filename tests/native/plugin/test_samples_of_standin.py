# SPDX-License-Identifier: Apache-2.0
"""The samples and unions that the built plugin has filled, against what the stand-in did."""

import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from nccl_inspector.box.layout import HEADER, MAGIC
from nccl_inspector.model.process import FUNCS
from tests.support.plugin_runs import environment
from tests.support.sample_tables import GROUP, Row, SampleBox, read_samples
from tests.support.standin import Run, finished, started, until

NS = 10**9
TOLD = ("start_ns", "stop_ns", "bytes", "channels")  # by the stand-in and by a sample
CLOCKS_NS = 20_000_000  # what the ranks' clocks may be apart by on a busy machine


def box_of(raw: Path, run: Run, rank: int) -> SampleBox:
    return read_samples(raw / f"nccl_inspector_0_{run.processes[rank].pid}.box")


def played(raw: Path, place: Path, *args: str, **more: str) -> Run:
    run = finished(
        place, "--sizes", "256K", "--compute-ms", "0", *args, ranks=4, env=environment(raw, **more)
    )
    assert run.codes == [0] * 4, run.stderr
    return run


def identity(sample: Row) -> tuple[int, str, int, int]:
    """Return the communicator, function, number and peer (-1: none) of a sample."""
    return (
        sample["comm_id"],
        FUNCS[sample["func"]],
        sample["index"],
        sample["peer"] - 1,
    )


def logged(run: Run, rank: int) -> dict[tuple[int, str, int, int], Row]:
    """Return what a rank of the stand-in did, by the same; Sends and Recvs are counted by peer."""
    found: dict[tuple[int, str, int, int], Row] = {}
    counts: dict[tuple[int, str, int], int] = {}
    for one in run.log(rank):
        comm, peer = int(one["comm"], 16), one.get("peer", -1)
        number = one["seq"] + 1
        if peer >= 0:
            place = comm, one["func"], peer
            number = counts[place] = counts.get(place, 0) + 1
        found[comm, one["func"], number, peer] = {name: one[name] for name in TOLD}
    return found


def covered_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Return how long at least one of them lasted."""
    total, end = 0, 0
    for start, stop in sorted(intervals):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


@pytest.mark.long
def test_a_short_jobs_samples_are_its_operations(raw: Path, tmp_path: Path) -> None:
    run = played(raw, tmp_path, "--steps", "30")
    for rank in range(4):
        box = box_of(raw, run, rank)
        found = {
            identity(one): {name: one[name] for name in TOLD}
            for one in box.samples
            if not one["flags"] & GROUP
        }
        assert found == logged(run, rank)
        assert box.header["samples_kept"] == len(box.samples)
        assert (box.header["samples_lost"], box.header["samples_unkinded"]) == (0, 0)
        assert box.header["sample_length_bits"] == box.header["sample_period_bits"] == 34


def on_unix_time(box: SampleBox) -> list[Row]:
    """Return the samples of a process with one GPU; its clock is its own."""
    ahead_ns = box.unions[0]["ahead_ns"]
    return [
        {**one, "start_ns": one["start_ns"] + ahead_ns, "stop_ns": one["stop_ns"] + ahead_ns}
        for one in box.samples
    ]


def overlap(ones: list[Row]) -> bool:
    """Tell whether there was a moment in which all of them ran."""
    first_stop = min(one["stop_ns"] for one in ones)
    return max(one["start_ns"] for one in ones) < first_stop + CLOCKS_NS


def test_the_same_number_is_the_same_operation_on_all_ranks(raw: Path, tmp_path: Path) -> None:
    run = played(raw, tmp_path, "--steps", "10")
    collectives: dict[tuple[int, int, int], list[Row]] = {}
    sends: dict[tuple[int, int, int, int], Row] = {}
    receives: dict[tuple[int, int, int, int], Row] = {}
    for rank in range(4):
        for one in on_unix_time(box_of(raw, run, rank)):
            comm, own, peer = one["comm_id"], one["rank"], one["peer"] - 1
            if FUNCS[one["func"]] == "Send":
                sends[comm, own, peer, one["index"]] = one
            elif FUNCS[one["func"]] == "Recv":
                receives[comm, peer, own, one["index"]] = one
            else:
                collectives.setdefault((comm, one["func"], one["index"]), []).append(one)
    assert sends
    assert sends.keys() == receives.keys()
    for key, send in sends.items():
        assert send["bytes"] == receives[key]["bytes"]
        assert overlap([send, receives[key]])
    assert {len(ones) == ones[0]["nranks"] for ones in collectives.values()} == {True}
    for ones in collectives.values():
        assert len({one["bytes"] for one in ones}) == 1
        assert overlap(ones)


@pytest.mark.long
def test_a_gpu_was_busy_while_it_was_in_at_least_one_operation(raw: Path, tmp_path: Path) -> None:
    run = played(raw, tmp_path, "--steps", "20")
    for rank in range(4):
        (union,), (windows,) = (lambda box: (box.unions, box.windows))(box_of(raw, run, rank))
        log = run.log(rank)
        busy = covered_ns((one["start_ns"], one["stop_ns"]) for one in log)
        assert (union["gpu"], union["lost"], union["window_s"]) == (0, 0, 10)
        assert union["busy_ns"] == busy == sum(one["busy_ns"] for one in windows)
        assert union["operations"] == sum(one["operations"] for one in windows) >= len(log)
        first = min(one["start_ns"] for one in log) + windows[0]["ahead_ns"]
        assert windows[0]["start_s"] * NS <= first < (windows[0]["start_s"] + 10) * NS


def test_with_json_lines_each_call_is_known(raw: Path, tmp_path: Path) -> None:
    lines = {"NCCL_INSPECTOR_JSON": "1", "NCCL_INSPECTOR_DUMP_DIR": str(tmp_path / "json")}
    run = played(raw, tmp_path, "--steps", "5", **lines)
    samples = [one for rank in range(4) for one in box_of(raw, run, rank).samples]
    assert any(one["flags"] & GROUP for one in samples)
    assert {one["queued_us"] > 0 for one in samples} == {True}  # of a group, by its first member


def has_samples(path: Path) -> bool:
    """Tell whether a box that is perhaps just being made has some."""
    data = path.read_bytes() if path.exists() else b""
    return data.startswith(MAGIC) and HEADER.number(data, "samples_kept") > 100


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_process_leaves_is_true(raw: Path, tmp_path: Path, how: int) -> None:
    args = ("--steps", "100000", "--sizes", "256K", "--compute-ms", "0")
    with started(tmp_path, list(args), ranks=4, env=environment(raw)) as run:
        path = raw / f"nccl_inspector_0_{run.processes[2].pid}.box"
        until(lambda: has_samples(path), "samples")
        for process in run.processes:
            process.send_signal(how)
        for process in run.processes:
            process.wait(10)
        box, log = read_samples(path), logged(run, 2)
    assert len(box.samples) > 100
    for one in box.samples:
        if not one["flags"] & GROUP:
            assert log[identity(one)]["stop_ns"] == one["stop_ns"]
    assert box.header["sample_seq"] % 2 == 0
