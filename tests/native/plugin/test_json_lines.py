"""JSON lines of the built plugin: true, readable by the vendor's tools, and no harm."""

import os
import resource
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.capture.end_files import parse_end
from nccl_inspector.model.process import DROP_REASONS
from tests.support import application_log, nvidia_json_reader, standin
from tests.support.repository import BUILD
from tests.support.scripted_nccl import OURS, Stage, step
from tests.support.standin import finished

MIB = 1 << 20
COMM = step("comm", id=0xABC, name="world", ranks=4, rank=1)
PAUSE = step("pause")
FINALIZE = step("finalize")
ALL_REDUCE = step("coll", func="AllReduce", bytes=MIB, ns=25_240, times=8)
LINES_ONLY = {"NCCL_INSPECTOR_RUN_DIR": "", "NCCL_INSPECTOR_PROM_DUMP": "0"}
INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"


Operation = tuple[str, str, int, int, int]


@pytest.fixture
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as out:
        yield Stage(OURS, Path(out))


def environment(lines: Path, **more: str) -> dict[str, str]:
    return {
        "NCCL_PROFILER_PLUGIN": str(OURS),
        "NCCL_STANDIN_CUDA": str(BUILD / "fakecuda" / "libcuda.so.1"),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_DIR": str(lines),
        INTERVAL: "100000",
    } | more


def without_groups(lines: list[nvidia_json_reader.Line]) -> list[nvidia_json_reader.Line]:
    """The lines without those of Sends and Recvs as one operation, which come besides."""
    return [line for line in lines if line.get("coll_perf", {}).get("coll_algo") != "GROUP"]


def check_figures(line: nvidia_json_reader.Line, rank: int) -> None:
    """What a line of that task says is right in itself."""
    meta = line["metadata"]
    kind = "coll" if "coll_perf" in line else "p2p"
    perf = line[f"{kind}_perf"]
    ns = perf[f"{kind}_exec_time_ns"]
    gbs = perf[f"{kind}_msg_size_bytes"] / ns
    factor = application_log.factor(perf[kind], line["header"]["n_ranks"])
    assert perf[f"{kind}_busbw_gbs"] == pytest.approx(factor * gbs, abs=1e-6)
    assert abs(perf[f"{kind}_exec_time_us"] - ns / 1000) <= 0.5
    assert perf[f"{kind}_timing_source"] == "kernel_gpu"
    assert (meta["slurm_job_id"], meta["slurm_step_id"]) == (4711, 0)
    assert meta["node"] == f"n{rank // 2 + 1}"
    assert meta["gpu_uuid"].startswith("GPU-")
    assert meta["lines_dropped"] == meta["operations_unmeasured"] == 0


def told_by_line(line: nvidia_json_reader.Line) -> Operation:
    """Communicator, function, bytes, ns, and the number of a collective or the peer."""
    kind = "coll" if "coll_perf" in line else "p2p"
    perf = line[f"{kind}_perf"]
    size, ns = perf[f"{kind}_msg_size_bytes"], perf[f"{kind}_exec_time_ns"]
    which = perf["coll_sn"] if kind == "coll" else perf["p2p_peer"]
    return line["header"]["comm_name"], perf[kind], size, ns, which


def told_by_log(op: application_log.Record) -> Operation:
    """The same, by the application."""
    which = op["peer"] if op["func"] in application_log.P2P else op["seq"]
    return op["comm_name"], op["func"], op["bytes"], application_log.time_ns(op), which


@pytest.mark.parametrize("api", [4, 5, 6, 7])
def test_every_operation_has_one_true_line(tmp_path: Path, api: int) -> None:
    args = ("--steps", "3", "--sizes", "256K,512K", "--compute-ms", "0", "--api", str(api))
    run = finished(tmp_path, *args, ranks=4, env=environment(tmp_path / "lines"))
    assert run.codes == [0] * 4, run.stderr
    by_rank = defaultdict(list)
    for line in without_groups(nvidia_json_reader.read(tmp_path / "lines")):
        nvidia_json_reader.check(line)
        by_rank[line["metadata"]["slurm_procid"]].append(line)
    for rank in range(4):
        for line in by_rank[rank]:
            check_figures(line, rank)
        assert by_rank[rank]
        assert sorted(map(told_by_line, by_rank[rank])) == sorted(map(told_by_log, run.log(rank)))


def test_times_of_day_are_those_of_the_operation(stage: Stage) -> None:
    op = step("coll", func="AllReduce", bytes=MIB, ns=30_000_000, real_us=30_000, times=4)
    before = time.time_ns() // 1000
    stage.play(COMM, op, FINALIZE, env=LINES_ONLY)
    after = time.time_ns() // 1000
    times = [
        (line["coll_perf"]["coll_start_us"], line["coll_perf"]["coll_end_us"])
        for line in nvidia_json_reader.read(stage.out)
    ]
    assert len(times) == 4
    for start, end in times:
        assert before <= start <= end <= after
        assert end - start >= 29_000
    assert sorted(times) == times


def test_the_modes_of_slurm_add_lines_to_the_box(stage: Stage) -> None:
    raw, lines = stage.out / "raw", stage.out / "lines"
    raw.mkdir()
    both = {"NCCL_INSPECTOR_RUN_DIR": str(raw), "NCCL_INSPECTOR_DUMP_DIR": str(lines)}
    json_only = both | {"NCCL_INSPECTOR_PROM_DUMP": "0", "NCCL_INSPECTOR_JSON": "1"}
    with stage.playing(COMM, ALL_REDUCE, PAUSE, FINALIZE, env=json_only) as playing:
        playing.until_pause()
        stage.wait(lambda: len(stage.lines()) == 8, "no lines")
        assert not stage.proms()
        assert len(list(raw.glob("*.box"))) == 1
        playing.finish()
    everything = both | {"NCCL_INSPECTOR_JSON": "1"}
    with stage.playing(COMM, ALL_REDUCE, PAUSE, FINALIZE, env=everything) as playing:
        playing.until_pause()
        stage.wait(stage.proms, "no metrics")
        stage.wait(lambda: len(stage.lines()) == 16, "no lines")
        told = "nccl_inspector_json_lines_total"
        stage.wait(lambda: stage.find(told) == [8], "metrics without the lines")
        playing.finish()
    assert not list(raw.glob("*.log"))
    assert [box.facts.json_lines for box in replace(stage, out=raw).boxes()] == [8, 8]
    stage.play(COMM, ALL_REDUCE, FINALIZE, env=both)
    assert len(stage.lines()) == 16, "lines that nobody asked for"


@pytest.mark.parametrize(
    ("job", "name"), [("4711", "nccl-inspector-4711"), ("", "nccl-inspector-unknown-jobid")]
)
def test_without_a_directory_the_vendors_name_is_used(stage: Stage, job: str, name: str) -> None:
    env = LINES_ONLY | {"NCCL_INSPECTOR_DUMP_DIR": "", "SLURM_JOBID": job}
    stage.play(COMM, ALL_REDUCE, FINALIZE, env=env)
    path, end = sorted((stage.out / name).iterdir())
    assert path.name.startswith(os.uname().nodename + "-pid")
    assert path.suffix == ".log"
    assert end.name == path.name + ".end"
    assert len(nvidia_json_reader.read(stage.out / name)) == 8


@pytest.mark.parametrize(
    ("env", "smallest"),
    [
        ({}, 4),
        ({"NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES": "8192"}, 8192),
        ({"NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES": "8192"}, 8192),  # NVIDIA's
        (
            {
                "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES": "8192",
                "NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES": "0",
            },
            4,
        ),
    ],
)
def test_operations_of_all_sizes_have_lines_unless_it_is_said(
    stage: Stage, env: dict[str, str], smallest: int
) -> None:
    sizes = (4, 8188, 8192, 65536)
    calls = [step("coll", func="AllReduce", bytes=size) for size in sizes]
    stage.play(COMM, *calls, FINALIZE, env=LINES_ONLY | env)
    found = [
        line["coll_perf"]["coll_msg_size_bytes"] for line in nvidia_json_reader.read(stage.out)
    ]
    assert found == [size for size in sizes if size >= smallest]


def test_what_has_no_time_has_no_line_but_is_counted(stage: Stage) -> None:
    silent = step("coll", func="AllReduce", bytes=MIB, channels=0, times=3)
    stage.play(COMM, silent, ALL_REDUCE, FINALIZE, env=LINES_ONLY)
    lines = nvidia_json_reader.read(stage.out)
    assert len(lines) == 8
    assert {line["metadata"]["operations_unmeasured"] for line in lines} == {3}


def test_nccl_2_26_has_lines_timed_by_the_cpu(stage: Stage) -> None:
    op = step("coll", func="AllReduce", bytes=MIB, real_us=2000, times=4)
    stage.play(COMM, op, FINALIZE, api=3, env=LINES_ONLY)
    lines = nvidia_json_reader.read(stage.out)
    assert len(lines) == 4
    for line in lines:
        nvidia_json_reader.check(line)
        assert line["header"]["id"] == "0xabc"
        assert line["header"]["comm_name"] == "world"
        assert line["header"]["rank"] == 1
        assert line["coll_perf"]["coll_timing_source"] == "kernel_cpu"
        assert line["coll_perf"]["coll_gpu_start_ns"] is None
        assert line["coll_perf"]["coll_exec_time_ns"] >= 1_900_000


def test_verbose_lines_carry_the_tag_of_the_call_and_the_kernel(stage: Stage) -> None:
    tagged = step("coll", func="AllReduce", bytes=MIB, tag=77, times=3)
    plain = step("p2p", func="Send", peer=2, bytes=MIB)
    verbose = LINES_ONLY | {"NCCL_INSPECTOR_DUMP_VERBOSE": "1"}
    stage.play(COMM, tagged, plain, FINALIZE, api=7, env=verbose)
    perfs = [
        line.get("coll_perf") or line["p2p_perf"] for line in nvidia_json_reader.read(stage.out)
    ]
    assert [perf.get("coll_user_tag") for perf in perfs] == [77, 77, 77, None]
    assert [perf.get("coll_kernel_variant") for perf in perfs] == ["Generic"] * 3 + [None]
    assert not {"p2p_user_tag", "p2p_kernel_variant"} & set(perfs[3])


@pytest.mark.parametrize("api", [5, 7])
def test_verbose_lines_have_every_event(stage: Stage, api: int) -> None:
    op = step("coll", func="AllReduce", bytes=MIB, channels=4, first=8, times=20)
    message = step("p2p", func="Send", peer=2, bytes=MIB, channels=2, first=16)
    verbose = LINES_ONLY | {"NCCL_INSPECTOR_DUMP_VERBOSE": "1"}
    stage.play(COMM, op, message, FINALIZE, api=api, env=verbose)
    lines = nvidia_json_reader.read(stage.out)
    assert len(lines) == 21
    for line in lines:
        nvidia_json_reader.check(line)
        kind, channels = ("coll", range(8, 12)) if "coll_perf" in line else ("p2p", range(16, 18))
        perf = line[f"{kind}_perf"]
        numbers, times = perf["event_trace_sn"], perf["event_trace_ts"]
        assert list(numbers) == [f"{kind}_start_sn", f"{kind}_stop_sn", "kernel_events"]
        assert list(times) == [f"{kind}_start_ts", f"{kind}_stop_ts", "kernel_events"]
        for word, events in (("sn", numbers), ("ts", times)):
            assert [one["channel_id"] for one in events["kernel_events"]] == list(channels)
            for one in events["kernel_events"]:
                start, record, stop = (
                    one[f"kernel_{what}_{word}"] for what in ("start", "record", "stop")
                )
                assert events[f"{kind}_start_{word}"] <= start <= record <= stop
        every = [numbers[f"{kind}_start_sn"]]
        for one in numbers["kernel_events"]:
            every += [number for key, number in one.items() if key != "channel_id"]
        if numbers[f"{kind}_stop_sn"] is not None:  # else the kernels were faster than the call
            every.append(numbers[f"{kind}_stop_sn"])
        assert sorted(every) == list(range(1, len(every) + 1))
        assert 0 <= times[f"{kind}_start_ts"] - perf[f"{kind}_start_us"] < 1000


def test_an_exit_without_destroy_loses_no_line(stage: Stage) -> None:
    slow = LINES_ONLY | {INTERVAL: "30000000"}
    stage.play(COMM, ALL_REDUCE, step("exit"), env=slow)
    assert len(nvidia_json_reader.read(stage.out)) == 8


def test_kill_9_leaves_whole_lines(stage: Stage) -> None:
    with stage.playing(COMM, ALL_REDUCE, PAUSE, env=LINES_ONLY) as playing:
        playing.until_pause()
        stage.wait(lambda: len(stage.lines()) == 8, "no lines")
        playing.process.send_signal(signal.SIGKILL)
        playing.process.wait()
    assert len(nvidia_json_reader.read(stage.out)) == 8


def test_kill_9_leaves_a_gzip_file_that_can_be_read(stage: Stage) -> None:
    packed = LINES_ONLY | {"NCCL_INSPECTOR_JSON_GZIP": "1"}
    with stage.playing(COMM, ALL_REDUCE, PAUSE, ALL_REDUCE, PAUSE, env=packed) as playing:
        playing.until_pause()
        stage.wait(lambda: len(nvidia_json_reader.read(stage.out)) == 8, "no lines")
        playing.go_on()
        playing.until_pause()
        stage.wait(lambda: len(nvidia_json_reader.read(stage.out)) == 16, "no more lines")
        playing.process.send_signal(signal.SIGKILL)
        playing.process.wait()
    (path,) = stage.out.iterdir()
    assert path.name.endswith(".log.gz")
    assert subprocess.run(["gzip", "-t", path]).returncode == 0
    for line in nvidia_json_reader.read(stage.out):
        nvidia_json_reader.check(line)


def test_a_process_that_ends_says_so_beside_its_lines(stage: Stage) -> None:
    stage.play(COMM, ALL_REDUCE, FINALIZE, env=LINES_ONLY)
    (path,) = stage.out.glob("*.end")
    end = parse_end(path.read_bytes())
    assert end is not None
    assert end.unfinished == 0
    assert abs(end.end_us / 1e6 - time.time()) < 60
    lines = nvidia_json_reader.read(stage.out)
    assert end.end_us >= max(line["coll_perf"]["coll_end_us"] for line in lines)


def test_the_word_of_an_end_goes_when_the_process_goes_on(stage: Stage) -> None:
    steps = COMM, ALL_REDUCE, FINALIZE, PAUSE, COMM, ALL_REDUCE, PAUSE
    with stage.playing(*steps, env=LINES_ONLY) as playing:
        playing.until_pause()
        stage.wait(lambda: list(stage.out.glob("*.end")), "no word of the end")
        playing.go_on()
        playing.until_pause()
        stage.wait(lambda: not list(stage.out.glob("*.end")), "it goes on")
        playing.process.send_signal(signal.SIGKILL)
        playing.process.wait()
    assert not list(stage.out.glob("*.end"))


def test_a_destroyed_communicators_lines_keep_its_name(stage: Stage) -> None:
    steps = []
    for n in range(40):
        steps += [
            step("comm", id=n + 1, name=f"c{n}", ranks=4),
            step("coll", comm=n, func="AllReduce", bytes=MIB, times=3),
            step("finalize", comm=n),
        ]
    stage.play(*steps, env=LINES_ONLY)
    count: dict[tuple[str, str], int] = defaultdict(int)
    for line in nvidia_json_reader.read(stage.out):
        count[line["header"]["id"], line["header"]["comm_name"]] += 1
    assert count == {(hex(n + 1), f"c{n}"): 3 for n in range(40)}


def test_what_there_is_no_room_for_is_counted(stage: Stage) -> None:
    ops = step("coll", func="AllReduce", bytes=MIB, times=40_000)
    small = {"NCCL_INSPECTOR_JSON": "1", "NCCL_INSPECTOR_DUMP_VERBOSE": "1", INTERVAL: "-1"}
    stage.play(COMM, ops, FINALIZE, env=small)
    lines = nvidia_json_reader.read(stage.out)
    (box,) = stage.boxes()
    (key,) = box.keys
    dropped = box.dropped[DROP_REASONS.index("json")]
    assert 0 < lines[-1]["metadata"]["lines_dropped"] <= dropped
    assert len(lines) + dropped == key.ops
    assert box.facts.json_lines == len(lines)


def test_a_directory_that_cannot_be_made_loses_every_line_and_says_so(stage: Stage) -> None:
    (stage.out / "file").write_text("")
    env = {"NCCL_INSPECTOR_JSON": "1", "NCCL_INSPECTOR_DUMP_DIR": str(stage.out / "file" / "below")}
    for end in (FINALIZE, step("exit")):
        stage.play(COMM, ALL_REDUCE, end, env=env)
    for box in stage.boxes():
        assert box.dropped[DROP_REASONS.index("json")] == 8
        assert box.facts.json_lines == 0
    assert len(stage.boxes()) == 2


def test_a_file_that_blocks_delays_nobody(stage: Stage) -> None:
    blocked = step("set", write_ms=-1)
    facts = stage.play(
        COMM, blocked, ALL_REDUCE, step("await", stuck=1), ALL_REDUCE, FINALIZE, env=LINES_ONLY
    )
    (end,) = (one for one in facts if one["step"] == "finalize")
    assert end["ms"] < 1000
    assert {"step": "await", "seen": True} in facts


def test_a_limit_on_files_does_not_kill_the_job(stage: Stage) -> None:
    ops = step("coll", func="AllReduce", bytes=MIB, times=3000)
    resource.prlimit(0, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        stage.play(COMM, ops, FINALIZE, env=LINES_ONLY)
    finally:
        resource.prlimit(0, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    lines = nvidia_json_reader.read(stage.out)
    assert lines
    assert all(path.stat().st_size <= 100_000 for path in stage.out.iterdir())


def test_twelve_ranks_that_make_the_directory_all_write(tmp_path: Path) -> None:
    lines = tmp_path / "a" / "b" / "lines"
    run = finished(tmp_path, "--steps", "1", ranks=12, per_node=12, env=environment(lines))
    assert run.codes == [0] * 12
    assert len(list(lines.glob("*.log"))) == 12
    told = without_groups(nvidia_json_reader.read(lines))
    assert len(told) == sum(len(run.log(rank)) for rank in range(12))


@pytest.mark.parametrize(
    ("build", "options"),
    [("san-address-undefined", "ASAN_OPTIONS"), ("san-thread", "TSAN_OPTIONS")],
)
def test_sanitizers_find_nothing_in_the_json_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, options: str
) -> None:
    env = environment(
        tmp_path / "lines",
        NCCL_PROFILER_PLUGIN=str(BUILD / build / "libnccl-profiler-inspector.so"),
        NCCL_INSPECTOR_DUMP_VERBOSE="1",
        NCCL_INSPECTOR_JSON_GZIP="1",
        **{options: "detect_leaks=0:exitcode=66" if build != "san-thread" else "exitcode=66"},
    )
    monkeypatch.setattr(standin, "STANDIN", BUILD / build / "nccl-standin")
    run = finished(tmp_path, "--seconds", "1", ranks=4, env=env)
    assert run.codes == [0] * 4, run.stderr
    assert nvidia_json_reader.read(tmp_path / "lines")
