"""The player tells a profiler what NCCL tells it."""

# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.repository import BUILD
from tests.support.standin import RECORDER, Call, read_calls

PROGRAM = BUILD / "player" / "one_of_each"
WITH_API = pytest.mark.parametrize("api", [5, 6, 7])
ALL = pytest.mark.parametrize("api", [4, 5, 6, 7])
EVERYTHING = 0xFFFF
TASK, CLOCKED = 0x2 | 0x4, 0x40


def played(folder: Path, api: int, mask: int, **env: str) -> list[Call]:
    """Return the calls of a run, `init` and `finalize` left out."""
    done = subprocess.run(
        [PROGRAM, RECORDER, str(api)],
        env=os.environ | {"RECORDER_FILE": str(folder / "calls"), "RECORDER_MASK": str(mask)} | env,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == f"{api} 0 0\n"
    (file,) = folder.glob("calls.*")
    calls = read_calls(file)
    assert (calls[0].kind, calls[-1].kind) == ("init", "finalize")
    return calls[1:-1]


def words(calls: list[Call], *types: str) -> list[str]:
    return [call.words for call in calls if not types or call.type in types]


@WITH_API
def test_a_collective_is_told_as_the_stand_in_tells_it(tmp_path: Path, api: int) -> None:
    calls = played(tmp_path, api, TASK | CLOCKED)
    head = ["GroupApi start", "GroupApi 23", "CollApi start", "CollApi stop", "GroupApi 24"]
    tail = ["Group start", "Coll start", "Coll stop", "Group stop", "GroupApi stop"]
    kernel = ["KernelCh start"] * 2 + ["KernelCh 22", "KernelCh stop"] * 2
    assert words(calls)[:16] == head + tail + kernel


def test_version_4_has_groups_and_tasks_only(tmp_path: Path) -> None:
    calls = played(tmp_path, 4, EVERYTHING)
    head = ["Group start", "Coll start", "Coll stop", "Group stop"]
    assert words(calls)[:4] == head
    assert calls[1]["parent"] == calls[0]["handle"]


def test_before_2_28_a_task_needs_a_group(tmp_path: Path) -> None:
    calls = played(tmp_path, 4, TASK | CLOCKED, RECORDER_NULL="1")
    assert set(words(calls, "Coll", "P2p")) == set()
    assert {
        call["parent"] for call in calls if call.kind == "start" and call.type == "KernelCh"
    } == {0}


@ALL
def test_without_a_mask_nothing_is_told(tmp_path: Path, api: int) -> None:
    assert played(tmp_path, api, 0) == []


@WITH_API
def test_an_event_without_a_handle_gets_no_further_call(tmp_path: Path, api: int) -> None:
    calls = played(tmp_path, api, TASK, RECORDER_NULL=str(0x100 | 0x200 | 0x400 | 0x1))
    assert {call.words for call in calls if call.kind != "start"} == {"Coll stop", "P2p stop"}


@ALL
def test_channels_are_numbered_modulo_64(tmp_path: Path, api: int) -> None:
    calls = played(tmp_path, api, CLOCKED)
    channels = [c["channel"] for c in calls if c.kind == "start" and c.type == "KernelCh"]
    assert channels[:2] == [62, 63]


@ALL
def test_a_channel_brings_its_clocks(tmp_path: Path, api: int) -> None:
    calls = [call for call in played(tmp_path, api, CLOCKED) if call.type == "KernelCh"]
    assert [c["timer_ns"] for c in calls if c.kind == "start"][:2] == [1000, 1000]
    assert [c["timer_ns"] for c in calls if c.kind == "record"][:2] == [2000, 2000]


@ALL
def test_the_copy_engine_is_told_from_version_6_on(tmp_path: Path, api: int) -> None:
    calls = words(played(tmp_path, api, EVERYTHING), "CeColl", "CeSync", "CeBatch")
    ce = ["CeColl start", "CeSync start", "CeSync stop", "CeBatch start", "CeBatch stop"]
    assert calls == ([*ce, "CeColl stop"] if api >= 6 else [])


@ALL
def test_phases_are_told_in_version_7_and_bring_their_channel(tmp_path: Path, api: int) -> None:
    calls = played(tmp_path, api, 0x8002)
    phases = [call for call in calls if call.type == "KernelPhase" and call.kind == "start"]
    if api < 7:
        assert words(calls, "KernelPhase", "KernelCh") == []
        return
    first = next(c for c in calls if c.type == "KernelCh" and c.kind == "start")
    mine = [c for c in phases if c["parent"] == first["handle"]]
    assert [c["name"] for c in mine] == ["initial_sync", "compute", "final_sync"]


def played_old(api: int) -> list[str]:
    """Return the lines of the profiler of v1 to v3, between init and finalize."""
    done = subprocess.run(
        [PROGRAM, BUILD / "player" / "old.so", str(api)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    (begin,) = (i for i, line in enumerate(lines) if line == "init")
    (end,) = (i for i, line in enumerate(lines) if line == "finalize 7")
    return lines[begin + 1 : end]


@pytest.mark.parametrize(
    ("api", "words"),
    [
        (1, "func 4 count 1024 datatype 7 channels 2 algo 1 proto 2"),
        (2, "func AllReduce count 1024 datatype ncclFloat32 channels 2 algo RING proto SIMPLE"),
        (3, "func AllReduce count 1024 datatype ncclFloat32 channels 2 algo RING proto SIMPLE"),
    ],
)
def test_the_old_versions_say_of_whom_a_collective_is(api: int, words: str) -> None:
    head = "start 2 context 7 handle 102 parent 101 rank 3 name tp hash 7 seq 0 "
    assert played_old(api)[:4] == [
        "start 1 context 7 handle 101 parent 0 rank 0",
        head + words,
        "stop 102",
        "stop 101",
    ]


@pytest.mark.parametrize(("api", "func"), [(1, "6 datatype 7"), (3, "Send datatype ncclFloat32")])
def test_the_old_versions_say_of_whom_a_send_is(api: int, func: str) -> None:
    (line,) = (line for line in played_old(api) if f"func {func}" in line)
    assert line.endswith(f"rank 3 name tp hash 7 func {func} count 16 peer 4")


def test_version_3_has_channels_without_a_clock_and_versions_before_it_have_none() -> None:
    assert [line for line in played_old(2) if line.startswith(("start 64", "record"))] == []
    three = played_old(3)
    assert three[4:6] == [
        "start 64 context 7 handle 103 parent 102 rank 0 channel 62",
        "start 64 context 7 handle 104 parent 102 rank 0 channel 63",
    ]
    assert three[6:8] == ["stop 103", "stop 104"]
    assert not any(line.startswith("record") for line in three)


def test_the_highest_version_is_taken_when_none_is_named() -> None:
    assert played_old(0) == played_old(3)
