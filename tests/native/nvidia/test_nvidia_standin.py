# SPDX-License-Identifier: Apache-2.0
"""The stand-in for NVIDIA's Inspector writes metrics as that does."""

import re
import socket
from pathlib import Path

import pytest
from tests.support.scripted_nccl import NVIDIA_STANDIN, Stage, step

MIB = 1 << 20
COMM = step("comm", id=0xABC, name="world", ranks=4)
ALL_REDUCE = step("coll", func="AllReduce", bytes=MIB, ns=25_240, times=10)
SEND = step("p2p", func="Send", peer=3, bytes=8192, ns=20_000, times=2)
PAUSE = step("pause")
FINALIZE = step("finalize")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(NVIDIA_STANDIN, tmp_path)


def test_its_metrics_are_as_described(stage: Stage) -> None:
    with stage.playing(COMM, ALL_REDUCE, SEND, PAUSE, FINALIZE) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.find("nccl_p2p_exec_time_microseconds"), "no file")
        ((name, text),) = stage.proms().items()
        playing.finish()
    assert re.fullmatch(r"nccl_inspector_metrics_GPU-[0-9a-f-]{36}\.prom", name)
    labels = (
        f'version="v5.1",slurm_job_id="4711",node="{socket.gethostname()}",gpu="GPU0",'
        'comm_name="world",n_nodes="1",nranks="4"'
    )
    coll = f'{labels},collective="AllReduce",message_size="1-2MB",algo_proto="RING_SIMPLE"'
    p2p = f'{labels},p2p_operation="Send",message_size="8-9KB"'
    assert text.splitlines() == [
        f"nccl_bus_bandwidth_gbs{{{coll}}} {1.5 * MIB / 25e3:.6g}",
        f"nccl_collective_exec_time_microseconds{{{coll}}} 25",
        f"nccl_p2p_bus_bandwidth_gbs{{{p2p}}} 0.4096",
        f"nccl_p2p_exec_time_microseconds{{{p2p}}} 20",
    ]
    assert not list(stage.out.iterdir()), "the file goes with the last communicator"


@pytest.mark.parametrize(
    ("size_bytes", "label"),
    [
        (8192, "8-9KB"),
        (65536, "64-65KB"),
        (MIB - 4, "1023-1024KB"),
        (3 * MIB // 2, "1-2MB"),
        (512 * MIB, "512-513MB"),
        (9 * 512 * MIB, "4-5GB"),
    ],
)
def test_its_size_labels_are_as_described(stage: Stage, size_bytes: int, label: str) -> None:
    with stage.playing(COMM, step("coll", bytes=size_bytes), PAUSE) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.series(), "no file")
    assert {one.labels["message_size"] for one in stage.series()} == {label}


def test_small_operations_are_nowhere(stage: Stage) -> None:
    small = step("coll", func="AllGather", bytes=8191, times=4)
    with stage.playing(COMM, small, ALL_REDUCE, PAUSE) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.series(), "no file")
    assert {one.labels["collective"] for one in stage.series()} == {"AllReduce"}
