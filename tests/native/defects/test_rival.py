"""The rival where it has no defect: else its failures would say nothing."""

import json
import re
import socket
from pathlib import Path

import pytest

from tests.support.scripted_nccl import RIVAL, Stage, step

MIB = 1 << 20
COMM = step("comm", id=0xABC, name="world", ranks=4)
ALL_REDUCE = step("coll", func="AllReduce", bytes=MIB, ns=25_240, times=10)
SEND = step("p2p", func="Send", peer=3, bytes=8192, ns=20_000, times=2)
PAUSE = step("pause")
FINALIZE = step("finalize")
JSON = {"NCCL_INSPECTOR_PROM_DUMP": "0"}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(RIVAL, tmp_path)


def test_every_defect_of_the_list_has_a_check() -> None:
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    checked = set(re.findall(r'^@defect\("(\w+)"', "\n".join(sources), re.MULTILINE))
    letters = {"D": 14, "P": 7, "S": 13}
    assert checked == {f"{a}{n + 1}" for a, last in letters.items() for n in range(last)}


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


def test_its_lines_are_as_described(stage: Stage) -> None:
    with stage.playing(COMM, ALL_REDUCE, SEND, PAUSE, FINALIZE, env=JSON) as playing:
        playing.until_pause()
        stage.wait(lambda: len(stage.lines()) == 12, "no lines")
        (path,) = stage.out.iterdir()
        playing.finish()
    pid = playing.process.pid
    assert path.name == f"{socket.gethostname()}-pid{pid}.log"
    line, *_, last = (json.loads(text) for text in path.read_text().splitlines())
    stamp = line["metadata"].pop("dump_timestamp_us")
    assert stamp > 1.7e15
    assert line == {
        "header": {"id": "0xabc", "comm_name": "world", "rank": 0, "n_ranks": 4, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "unknown",
            "rec_mechanism": "nccl_profiler_interface",
            "hostname": socket.gethostname(),
            "pid": pid,
        },
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": 0,
            "coll_msg_size_bytes": MIB,
            "coll_exec_time_us": 25,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 41.94304,
            "coll_busbw_gbs": 62.91456,
        },
    }
    assert last["p2p_perf"] == {
        "p2p": "Send",
        "p2p_sn": 1,
        "p2p_peer": 3,
        "p2p_msg_size_bytes": 8192,
        "p2p_exec_time_us": 20,
        "p2p_timing_source": "kernel_gpu",
        "p2p_algobw_gbs": 0.4096,
        "p2p_busbw_gbs": 0.4096,
    }


def test_its_traces_are_as_described(stage: Stage) -> None:
    verbose = JSON | {"NCCL_INSPECTOR_DUMP_VERBOSE": "1"}
    with stage.playing(COMM, ALL_REDUCE, PAUSE, env=verbose) as playing:
        playing.until_pause()
        stage.wait(lambda: len(stage.lines()) == 10, "no lines")
    perf = stage.lines()[0]["coll_perf"]
    for unit in ("sn", "ts"):
        trace = perf[f"event_trace_{unit}"]
        assert trace.keys() == {f"coll_start_{unit}", f"coll_stop_{unit}", "kernel_events"}
        assert [event["channel_id"] for event in trace["kernel_events"]] == list(range(8))
        assert all(
            event[f"kernel_start_{unit}"]
            <= event[f"kernel_record_{unit}"]
            <= event[f"kernel_stop_{unit}"]
            for event in trace["kernel_events"]
        )


def test_small_operations_are_nowhere(stage: Stage) -> None:
    small = step("coll", func="AllGather", bytes=8191, times=4)
    with stage.playing(COMM, small, ALL_REDUCE, PAUSE) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.series(), "no file")
    assert {one.labels["collective"] for one in stage.series()} == {"AllReduce"}
