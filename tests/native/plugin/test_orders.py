# SPDX-License-Identifier: Apache-2.0
"""What NCCL's scheduler does seldom, in its own order, through each version of the interface."""

import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.analysis.transport.late_channels import late_channels_note
from nccl_inspector.box.reader import read_box
from nccl_inspector.box.sample_reader import add_samples
from nccl_inspector.model.operation_label import LABEL_KINDS
from nccl_inspector.model.process import DROP_REASONS, FUNCS, Process
from tests.support.marks import long_but
from tests.support.repository import BUILD
from tests.support.scripted_nccl import OURS

ORDERS = BUILD / "player" / "orders"
ALL = pytest.mark.parametrize("api", [4, 5, 6, 7])
# What waits for seconds, by the newest.
ENDS = pytest.mark.parametrize("api", long_but({7}, [4, 5, 6, 7]))


@pytest.fixture
def played() -> Iterator["Played"]:
    """On a tmpfs, as on a node: what a process has when it dies is there."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Played(Path(path))


class Played:
    """What the plugin's box says of an order that was played."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __call__(self, order: str, api: int) -> Process:
        env = os.environ | {
            "NCCL_INSPECTOR_ENABLE": "1",
            "NCCL_INSPECTOR_RUN_DIR": str(self._place),
            "NCCL_INSPECTOR_PROM_DUMP": "1",
        }
        subprocess.run([ORDERS, OURS, str(api), order], env=env, check=True)
        (path,) = self._place.glob("*.box")
        fd = os.open(path, os.O_RDONLY)
        try:
            size = path.stat().st_size
            return add_samples(fd, size, read_box(fd, size, path.stem, alive=False), 32)
        finally:
            os.close(fd)


def timed(process: Process) -> Counter[str]:
    """Operations with a time, by function."""
    found: Counter[str] = Counter()
    for key in process.keys:
        found[FUNCS[key.func]] += key.ops
    return +found


def untimed(process: Process) -> int:
    return sum(key.untimed_ops for key in process.keys)


def dropped(process: Process) -> dict[str, int]:
    return {
        reason: count for reason, count in zip(DROP_REASONS, process.dropped, strict=False) if count
    }


@ENDS
def test_what_collnet_runs_has_times_though_no_channels_are_announced(
    played: Played, api: int
) -> None:
    process = played("collnet", api)
    assert timed(process) == {"AllReduce": 61}
    assert untimed(process) == 0
    assert not dropped(process)


@ENDS
def test_an_operation_of_which_announced_channels_never_began_is_in_flight(
    played: Played, api: int
) -> None:
    process = played("half", api)
    assert not timed(process)
    (comm,) = process.comms
    assert (comm.enqueued, comm.started, comm.completed) == (1, 1, 0)


@ALL
def test_the_channels_of_a_slow_rail_are_named(played: Played, api: int) -> None:
    process = played("slow_rail", api)
    assert timed(process) == {"AllReduce": 1280}
    assert not dropped(process)
    (comm,) = process.comms
    assert (comm.looked_ops, comm.looked_ns) == (1280 // 64, 1280 // 64 * 10_000)
    assert (comm.channels, comm.late_channels) == (0b1111_1111, 0b0100_0100)
    assert late_channels_note([comm]) == [
        "channels 2, 6 of 8 end 4 us after the others, 40% of an operation, on 1 of 1 ranks: what "
        "only these channels use is slow, a rail of network adapters or a link"
    ]


def test_symmetric_collectives_of_a_graph_are_untimed_and_leave_room(played: Played) -> None:
    process = played("symmetric_graph", 7)
    assert untimed(process) == 5000
    assert timed(process) == {"AllReduce": 100}
    assert not dropped(process)
    assert all(comm.enqueued == comm.completed + comm.untimed for comm in process.comms)


def labels(process: Process) -> dict[str, tuple[int, int, int]]:
    """Operations, bytes and operations with a time, by label."""
    return {
        f"{LABEL_KINDS[one.kind]} {one.text or one.value}": (one.ops, one.bytes, one.timed_ops)
        for one in process.labels
    }


@ALL
def test_operations_are_told_by_tag_kernel_and_root(played: Played, api: int) -> None:
    process = played("labels", api)
    roots = {f"root {root}": (40, 40 * 4096, 40) for root in range(3)}
    told = {
        "user_tag 1": (120, 120 * 4096, 120),
        "user_tag 2": (240, 240 * 4096, 120),  # half of them by copy engines, without a time
        "kernel LDMC": (60, 60 * 4096, 60),
    }
    assert labels(process) == (roots | told if api == 7 else roots)
    assert not dropped(process)
    for one in process.labels:
        assert 5000 * one.timed_ops <= one.busy_ns < 6000 * one.timed_ops
        assert one.first_ns <= one.last_ns


@pytest.mark.parametrize("api", [pytest.param(5, marks=pytest.mark.long), 7])
def test_a_broadcast_of_which_nccl_tells_the_call_alone_has_a_root(
    played: Played, api: int
) -> None:
    process = played("broadcast_calls", api)
    assert labels(process) == {f"root {root}": (30, 30 * 4096, 0) for root in range(4)}
    assert untimed(process) == 120


def test_symmetric_collectives_that_are_one_kernel_have_no_times(played: Played) -> None:
    process = played("symmetric_plan", 7)
    assert untimed(process) == 300
    assert timed(process) == {"AllReduce": 100}
    assert not dropped(process)


@ALL
@pytest.mark.parametrize("order", ["late_group", "groups_of_many"])
def test_groups_are_seen_whenever_their_tasks_are_told(
    played: Played, order: str, api: int
) -> None:
    process = played(order, api)
    times = 100 if order == "late_group" else 800
    assert timed(process) == {"AlltoAll": times, "Send": 7 * times, "Recv": 7 * times}
    assert not dropped(process)


@ALL
def test_a_group_of_more_parts_than_slots_is_whole(played: Played, api: int) -> None:
    process = played("large_group", api)
    (key,) = (key for key in process.keys if FUNCS[key.func] == "AlltoAll")
    assert (key.ops, key.bytes) == (5, 5 * 1499 * 4096)
    parts = timed(process)["Send"] + timed(process)["Recv"] + untimed(process)
    assert parts == 5 * 2 * 1499
    assert dropped(process).keys() == {"no_peer"}, "1,024 have figures by peer"


@ALL
def test_two_hundred_communicators_in_turn_leave_keys_to_each_other(
    played: Played, api: int
) -> None:
    process = played("short_lives", api)
    assert timed(process) == {"AllReduce": 2000}
    assert not dropped(process)
