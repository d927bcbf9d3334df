"""What `make test-gpu` compares, without a GPU: a library that plays NCCL stands in for it."""

import ctypes
import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nccl_inspector.model.process import Gpu, Process
from tests.gpu import cuda, nvml
from tests.gpu.checks import (
    FAIL,
    PASS,
    Check,
    check_api,
    check_counts,
    check_lines,
    check_times,
    expected_api,
)
from tests.gpu.cuda import Cuda
from tests.gpu.late import check_late
from tests.gpu.launch import ROOT, Ran, profiler_env, run
from tests.gpu.libnccl import Nccl, find_libraries, named
from tests.gpu.overhead import Turn, check_overhead, order_of_turns
from tests.gpu.plan import MIXED, PLAIN, WORLD, Plan, read_plan
from tests.gpu.run import driver_version, file_name, main
from tests.support import nvidia_json_reader
from tests.support.boxes import MS, fixed_chance
from tests.support.synthetic.jobs import Job

NCCL = ROOT / "build" / "player" / "libnccl.so.2"
CUDA = ROOT / "build" / "fakecuda" / "libcuda.so.1"
RANKS = 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module")
def ran(place: Path) -> Ran:
    """Every kind of operation once, by real ranks with the real plugin."""
    raw = place / "raw"
    raw.mkdir()
    plan = Plan(str(NCCL), str(CUDA), RANKS, 1, MIXED)
    found = run(place / "run", plan, profiler_env(raw, place / "lines"), 60)
    assert not found.failed
    return found


@pytest.fixture(scope="module")
def lines(place: Path, ran: Ran) -> list[dict[str, Any]]:
    assert ran.said
    return nvidia_json_reader.read(place / "lines")


def failing(check: Check) -> str:
    """Its problems, where there are some."""
    assert check.verdict == FAIL
    return "\n".join(check.problems)


def test_counts_and_times_and_lines_pass_when_all_is_true(
    ran: Ran, lines: list[dict[str, Any]]
) -> None:
    for check in (
        check_counts(ran.boxes, ran.logs),
        check_times(ran.boxes, ran.logs),
        check_lines(lines, ran.logs, 23203),
    ):
        assert check.verdict == PASS, check.problems
    assert all(said["sums_right"] for said in ran.said.values())
    # Two of each MIXED entry for SendRecv, one more for the sum; even and odd ranks split.
    assert [len(log) for log in ran.logs.values()] == [len(MIXED) + 2] * RANKS


def test_an_operation_that_is_missing_in_the_box_is_found(ran: Ran) -> None:
    more = {**ran.logs, 1: [*ran.logs[1], ran.logs[1][0]]}
    assert "rank 1, gpu_world AllReduce 4-8KB: issued (2, 8192)" in failing(
        check_counts(ran.boxes, more)
    )


def test_a_byte_that_is_missing_in_the_box_is_found(ran: Ran) -> None:
    first = ran.boxes[2].keys[0]
    keys = (first._replace(bytes=first.bytes - 1), *ran.boxes[2].keys[1:])
    boxes = {**ran.boxes, 2: replace(ran.boxes[2], keys=keys)}
    assert "rank 2" in failing(check_counts(boxes, ran.logs))


def test_a_drop_and_a_missing_box_are_found(ran: Ran) -> None:
    dropped = replace(ran.boxes[0], dropped=(3, *ran.boxes[0].dropped[1:]))
    assert "rank 0: dropped {'no_slot': 3}" in failing(
        check_counts({**ran.boxes, 0: dropped}, ran.logs)
    )
    without = {rank: box for rank, box in ran.boxes.items() if rank != 3}
    assert "rank 3 left no box" in failing(check_counts(without, ran.logs))


def test_a_send_that_is_counted_for_another_peer_is_found(ran: Ran) -> None:
    peers = tuple(replace(one, peer=(one.peer + 1) % RANKS) for one in ran.boxes[1].peers)
    boxes = {**ran.boxes, 1: replace(ran.boxes[1], peers=peers)}
    assert "rank 1: to peers {('gpu_world', 'Send', 2): (1, 200000)" in failing(
        check_counts(boxes, ran.logs)
    )


def test_only_a_broadcast_may_be_without_a_time(ran: Ran) -> None:
    check = check_counts(ran.boxes, ran.logs)
    assert check.figures["operations_without_time"] == {"Broadcast": RANKS}
    older = {
        rank: replace(box, facts=replace(box.facts, nccl_version=22703))
        for rank, box in ran.boxes.items()
    }
    assert "Broadcast" in failing(check_counts(older, ran.logs))


def test_a_time_longer_than_the_hosts_bracket_is_found(ran: Ran) -> None:
    logs = {
        rank: [{**op, "stop_ns": op["start_ns"] + 100_000} for op in log]
        for rank, log in ran.logs.items()
    }
    assert "the host's bracket 100000 ns" in failing(check_times(ran.boxes, logs))


def test_a_line_with_another_size_or_none_is_found(ran: Ran, lines: list[dict[str, Any]]) -> None:
    changed = json.loads(json.dumps(lines))
    perf = next(line["coll_perf"] for line in changed if "coll_perf" in line)
    perf["coll_msg_size_bytes"] += 1
    assert "line" in failing(check_lines(changed, ran.logs, 23203))
    assert "issued" in failing(check_lines(lines[1:], ran.logs, 23203))


def test_a_line_of_another_time_of_day_is_found(ran: Ran, lines: list[dict[str, Any]]) -> None:
    changed = json.loads(json.dumps(lines))
    for line in changed:
        for prefix in ("coll", "p2p"):
            if f"{prefix}_perf" in line:
                line[f"{prefix}_perf"][f"{prefix}_start_us"] += 50_000
    assert "after the host's look" in failing(check_lines(changed, ran.logs, 23203))


def test_another_interface_and_another_count_are_found(ran: Ran) -> None:
    keys = tuple(key for key in ran.boxes[0].keys if not key.untimed_ops)  # without the Broadcast
    box, issued = replace(ran.boxes[0], keys=keys), len(ran.logs[0]) - 1
    assert check_api(box, 23203, "", issued).verdict == PASS
    assert "22 issued, 10 counted" in failing(check_api(box, 23203, "", 22))
    other = replace(box, facts=replace(box.facts, api_version=6))
    assert "version 6" in failing(check_api(other, 23203, "", issued))
    assert "the box has NCCL 23203" in failing(check_api(box, 23104, "", issued))
    assert "no box" in failing(check_api(None, 23203, "", issued))


def test_each_nccl_has_its_interface() -> None:
    versions = (22200, 22304, 22605, 22703, 22807, 23007, 23203)
    assert [expected_api(nccl) for nccl in versions] == [0, 1, 3, 4, 5, 6, 7]


def test_ranks_that_cannot_begin_are_told(tmp_path: Path) -> None:
    plan = Plan(str(tmp_path / "no.so"), str(CUDA), 2, 1, PLAIN)
    found = run(tmp_path / "run", plan, {}, 30)
    assert "no.so: cannot open shared object file" in found.failed


def test_ranks_that_do_not_end_are_ended(tmp_path: Path) -> None:
    plan = Plan(str(NCCL), str(CUDA), 2, 1, PLAIN, late_rank=0, late_s=3600)
    found = run(tmp_path / "run", plan, {}, 1)
    assert found.codes[0] == -signal.SIGKILL
    assert found.failed


def test_a_plan_reaches_the_ranks_as_it_is(tmp_path: Path) -> None:
    plan = Plan("a", "b", RANKS, 3, MIXED, late_rank=2, late_s=0.5)
    plan.write(tmp_path)
    assert read_plan(tmp_path) == plan


# The late rank.


@pytest.fixture(scope="module")
def late_boxes() -> dict[int, Process]:
    """Four ranks of which number 2 is late by 60 ms in each step."""
    job = Job(fixed_chance(1), RANKS, sampled=True)
    world = job.group(WORLD, range(RANKS))
    for _ in range(200):
        job.compute(80 * MS, {2: 60 * MS})
        job.collective(world, "AllReduce", 1 << 20, 10 * MS)
    return dict(enumerate(job.processes()))


def test_the_report_names_the_late_rank(late_boxes: dict[int, Process]) -> None:
    check = check_late(late_boxes, 2, 0.06)
    assert check.verdict == PASS, check.problems
    assert check.figures["named"] == ["n3"]


def test_another_late_rank_than_the_planted_is_found(late_boxes: dict[int, Process]) -> None:
    problems = failing(check_late(late_boxes, 1, 0.06))
    assert "another rank has shorter times" in problems
    assert "the report names ['n3']" in problems


def test_a_delay_that_is_not_seen_is_found(late_boxes: dict[int, Process]) -> None:
    assert "hardly longer" in failing(check_late(late_boxes, 2, 0.5))


# What the plugin costs.


def turns(with_ms: list[float], without_ms: list[float], call_ns: float = 0) -> list[Turn]:
    return [Turn(True, ms * 1e6, 9000 + call_ns) for ms in with_ms] + [
        Turn(False, ms * 1e6, 9000) for ms in without_ms
    ]


def test_each_pair_of_turns_begins_with_the_other() -> None:
    assert order_of_turns(3) == [True, False, False, True, True, False]


def test_a_loop_that_is_as_fast_passes() -> None:
    check = check_overhead(turns([10.1, 10.1], [10, 10]), 80, False)
    assert check.verdict == PASS
    assert check.figures["ratio_of_steps"] == 1.01


def test_a_loop_that_is_slower_than_the_spread_fails() -> None:
    assert check_overhead(turns([11], [10, 10, 11.5]), 80, True).verdict == PASS
    assert "1.100 times" in failing(check_overhead(turns([11], [10, 10, 10.2]), 80, True))


def test_a_slow_call_fails_though_the_step_is_as_long() -> None:
    assert "a call takes 6000 ns more" in failing(
        check_overhead(turns([10], [10], call_ns=6000), 80, False)
    )


# NVML.


class NvmlError(Exception):
    pass


def fake_nvml() -> SimpleNamespace:
    """As much of pynvml as answers; the other calls are missing, as in an older one."""
    value = SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=12))

    def link_state(_handle: object, link: int) -> int:
        if link == 2:
            raise NvmlError("Not Supported")
        return 1

    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"580.95.05",
        nvmlSystemGetNVMLVersion=lambda: "13.580",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda _: "GPU-1a2b3c4d-0000",
        nvmlDeviceGetMinorNumber=lambda _: 3,
        nvmlDeviceGetPciInfo=lambda _: SimpleNamespace(busId=b"00000000:1B:00.0"),
        nvmlDeviceGetFieldValues=lambda _handle, _fields: [value],
        nvmlDeviceGetNvLinkState=link_state,
    )


def with_gpu(ran: Ran, gpu: Gpu) -> list[Process]:
    return [replace(ran.boxes[0], gpus=(gpu,))]


def test_nvml_answers_and_refusals_are_both_kept() -> None:
    facts = nvml.ask_all(fake_nvml())
    device = facts["devices"][0]
    assert facts["driver"] == "580.95.05"
    assert device["pci_bus_id"] == "00000000:1B:00.0"
    assert device["nvlink_states"] == [1, 1, "error: Not Supported"]
    assert device["fields"]["pcie_replay_count"] == 12
    assert any(line.startswith("ecc_mode: ") for line in nvml.refused(facts))


def test_the_same_gpu_by_another_spelling_of_its_address_passes(ran: Ran) -> None:
    facts = nvml.ask_all(fake_nvml())
    gpu = Gpu("GPU-1a2b3c4d-0000", "0000:1b:00.0", 3, "GPU3")
    assert nvml.check_identity(facts, {}, with_gpu(ran, gpu)).verdict == PASS
    nameless = replace(gpu, minor=-1, label="GPU-1a2b3c4d")
    assert nvml.check_identity(facts, {}, with_gpu(ran, nameless)).verdict == PASS


def test_a_gpu_that_is_another_is_found(ran: Ran, tmp_path: Path) -> None:
    facts = nvml.ask_all(fake_nvml())
    gpu = Gpu("GPU-1a2b3c4d-0000", "0000:1b:00.0", 0, "GPU0")
    assert "minor 0, NVML 3" in failing(nvml.check_identity(facts, {}, with_gpu(ran, gpu)))
    path = tmp_path / "0000:1b:00.0" / "information"
    path.parent.mkdir()
    path.write_text("Model: \t\t NVIDIA Fake\nGPU UUID: \t GPU-1a2b\nDevice Minor: \t 3\n")
    proc = nvml.proc_gpus(tmp_path)
    assert proc[nvml.pci_address("00000000:1B:00.0")] == {"minor": "3", "uuid": "GPU-1a2b"}
    blind = replace(gpu, minor=-1, label="GPU-1a2b3c4d")
    assert "minor -1, NVML 3" in failing(nvml.check_identity(facts, proc, with_gpu(ran, blind)))


# The libraries, the machine, the whole.


def test_a_configuration_has_nccls_layout() -> None:
    config = named("a name")
    # As gcc lays out ncclConfig_t of nccl.h 2.27.3; that of 2.32.3 begins alike.
    offsets = [
        getattr(type(config), name).offset for name in ("net_name", "comm_name", "nvls_ctas")
    ]
    assert offsets == [32, 48, 68]
    assert (config.size, config.magic, config.comm_name) == (72, 0xCAFEBEEF, b"a name")
    assert config.blocking == -(1 << 31)
    assert ctypes.sizeof(config) == config.size


def test_libraries_that_are_given_are_found_by_any_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NCCL.parent)
    assert find_libraries("libnccl.so.2") == [str(NCCL)]
    assert Nccl(str(NCCL)).version() == 23203
    with pytest.raises(OSError, match=r"no\.so"):
        find_libraries(f"{NCCL}:/no.so")


def test_a_driver_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(RuntimeError, match="cuInit"):
        Cuda(str(CUDA))


def test_names_of_results_are_plain() -> None:
    proc = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
    assert driver_version(proc) == "580.95.05"
    assert driver_version("") == "unknown"
    facts = {"gpu": "NVIDIA H100 80GB HBM3", "nccl": "2.27.3", "driver": "580.95.05"}
    name = "nvidia-h100-80gb-hbm3-nccl2.27.3-driver580.95.05"
    assert file_name(facts | {"mps": False}) == f"{name}.json"
    assert file_name(facts | {"mps": True}) == f"{name}-mps.json"


def test_a_machine_without_a_gpu_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda, "CANDIDATES", ("/no/libcuda.so.1",))
    assert main(["--results", str(tmp_path)]) == 2
    assert "nothing was checked" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize(("nccl", "api"), [("22703", 4), ("23203", 7)])
def test_the_whole_of_it_on_the_library_that_plays_nccl(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nccl: str, api: int
) -> None:
    monkeypatch.setenv("PLAYED_NCCL_VERSION", nccl)
    monkeypatch.setenv("NCCL_LIBS", str(NCCL))
    monkeypatch.setattr(cuda, "CANDIDATES", (str(CUDA),))
    monkeypatch.setattr("tests.gpu.run.TURN_S", 1.0)
    # Nothing goes from rank to rank there, so nobody waits for the late one: no `late`.
    main(["--results", str(tmp_path), "--turns", "1", "--only", "truth", "api", "overhead"])
    found = json.loads(next(tmp_path.glob("nvidia-fake-1-nccl*.json")).read_text())
    verdicts = {check["check"]: check["verdict"] for check in found["checks"]}
    for name in ("sums", "counts", "times", "metrics", "lines", f"api-{nccl}"):
        assert verdicts[name] == PASS, found
    assert (
        next(
            check["figures"]["api"] for check in found["checks"] if check["check"] == f"api-{nccl}"
        )
        == api
    )
    figures = found["checks"][-1]["figures"]
    assert figures["ratio_of_steps"] > 0
    assert len(figures["turns"]) == 2
