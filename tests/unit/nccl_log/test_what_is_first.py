# SPDX-License-Identifier: Apache-2.0
"""What may be called the first error, and what is said if the log does not have it."""

import pytest

from nccl_inspector.nccl_log.judge import LogReport, judge_log
from nccl_inspector.nccl_log.reader import LogReader
from nccl_inspector.render.log_text import exit_code, log_json, render_log
from tests.unit.nccl_log.made_logs import findings, judged

_WAITS = (
    "[rank{0}]:[E1125 10:11:12.123456 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600027 milliseconds before timing out.\n"
)
_RAISED = "Traceback (most recent call last):\n  File \"t.py\", line 3, in run\nKeyError: 'x'\n"
_LOST = "n2:3:4 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion with error 12, x\n"
_UNKNOWN = "n2:3:4 [0] transport/net_ib.cc:7 NCCL WARN something that nobody has read yet\n"
_CALL_FAILED = (
    "{}torch.distributed.DistBackendError: NCCL error in: x.cpp:9, {}, NCCL version 2.21\n"
)


def _text(found: LogReport) -> str:
    return " ".join(render_log(found, 100, everything=False, colour=False).split())


# Nothing but what others noticed.

_NOTICED = [
    _WAITS.format(3),
    _CALL_FAILED.format("", "unhandled system error"),
    "E0219 09:17:05.1 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 1) "
    "local_rank: 2 (pid: 2448) of binary: /usr/bin/python\n",
    "RuntimeError: NCCL Error 2: unhandled system error\n",
    "Failed, NCCL error src/Context.cu:725 'unhandled cuda error'\n",
]


@pytest.mark.parametrize("text", _NOTICED)
def test_a_log_of_what_others_noticed_says_that_the_cause_is_not_told(text: str) -> None:
    found = judged(text)
    assert found.first is None
    assert "CAUSE not known" in _text(found)
    assert '"no_first_error": "not known' in log_json(found)
    assert exit_code(found) == 2


def test_a_log_with_its_cause_says_nothing_of_the_kind() -> None:
    assert "CAUSE" not in _text(judged(_LOST + _WAITS.format(3)))
    assert "CAUSE" not in _text(judged("n1:1:2 [0] NCCL INFO Connected all rings\n"))


def test_errors_without_times_in_several_files_are_put_in_no_order() -> None:
    reader = LogReader()
    for name in ("n2", "n3"):
        reader.read(f"{name}.log", [_LOST.replace("n2:", f"{name}:").encode()], 2026)
    assert "CAUSE not known: no times tell" in _text(judge_log(reader.log))


# Something was there before.


def test_an_exception_of_nobody_after_ranks_had_waited_is_not_the_first_error() -> None:
    found = judged(_WAITS.format(3) + _RAISED)
    assert found.first is None
    assert "CAUSE not known" in _text(found)


def test_an_exception_after_a_call_of_nccl_failed_is_not_the_first_error() -> None:
    assert judged(_CALL_FAILED.format("", "internal error") + _RAISED).first is None


def test_an_exception_before_ranks_waited_is_the_first_error() -> None:
    found = judged(_RAISED + _WAITS.format(3)).first
    assert found is not None
    assert found.rule.id == "python-exception"
    assert not found.waited


def test_an_error_after_somebody_had_waited_says_so() -> None:
    found = judged(_WAITS.format(3) + _LOST)
    assert found.first is not None
    assert found.first.rule.id == "ib-retry-exceeded"
    assert "rank 3 had given up waiting before it" in _text(found)


def test_what_a_launcher_tells_at_the_end_need_not_have_happened_then() -> None:
    found = judged(_WAITS.format(3) + "srun: error: n2: task 1: Segmentation fault\n").first
    assert found is not None
    assert not found.waited


def test_an_unknown_warning_before_the_first_error_is_named() -> None:
    found = judged(_UNKNOWN + _LOST)
    assert "a warning that is not in the catalogue (job.out:1)" in _text(found)
    assert "not in the catalogue (" not in _text(judged(_LOST + _UNKNOWN))


def test_addresses_that_change_just_before_are_why_an_adapter_gave_up() -> None:
    event = "n1:1:2 [0] transport/net_ib.cc:73 NCCL WARN NET/IB : Got async event : {}\n"
    found = judged(event.format("GID table change") + _LOST).first
    assert found is not None
    assert (found.rule.id, found.who) == ("ib-addresses-changed", "pid 1 (n1)")
    late = judged(_LOST + event.format("GID table change")).first
    assert late is not None
    assert late.rule.id == "ib-retry-exceeded"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Broadcast : sendbuff (nil) is not a valid pointer", "invalid-call"),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401",
         "nvls-bind"),
        ("something that nobody has read yet", "nccl-failed"),
    ],
)  # fmt: skip
def test_what_an_exception_repeats_as_the_last_error_is_why_the_call_failed(
    text: str, rule: str
) -> None:
    called = _CALL_FAILED.format("[rank2]: ", "unhandled cuda error")
    found = judged(f"{called}[rank2]: Last error:\n[rank2]: {text}\n").first
    assert found is not None
    assert (found.rule.id, found.who) == (rule, "rank 2")


# A process that died is never "none", and never nothing.

_DEATHS = {
    "[n1:04711] *** Process received signal ***\n[n1:04711] Signal: Bus error (7)\n": (
        "process-bus-error", "pid 4711 (n1)"),
    "[n1:04711] Signal: Segmentation fault (11)\n": ("process-crashed", "pid 4711 (n1)"),
    "[n1:4711:0:4720] Caught signal 11 (Segmentation fault: address not mapped)\n": (
        "process-crashed", "pid 4711 (n1)"),
    "[n1:4711 :0:4720] Caught signal 7 (Bus error: nonexistent physical address)\n": (
        "process-bus-error", "pid 4711 (n1)"),
    "3: Segmentation fault (core dumped)\n": ("process-crashed", "task 3"),
    "job.sh: line 9: 4711 Bus error               (core dumped) python t.py\n": (
        "process-bus-error", "a process that is not named"),
    "n1 kernel: NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.\n": (
        "gpu-xid", "GPU 0000:b3:00"),
    "kernel: NVRM: Xid (PCI:0000:b3:00): 13, pid=3, Graphics Exception: ESR 0x504648=0x1000e\n": (
        "gpu-xid", "GPU 0000:b3:00"),
    "Memory access fault by GPU node-1 (Agent handle: 0x1f) on address 0x7a8a. Reason: x\n": (
        "amd-gpu-fault", "GPU node-1"),
    "(x) Instance k-1 (node IP: 10.1.0.9) will be terminated soon (reason: spot).\n": (
        "ray-node-lost", "node 10.1.0.9"),
    "(TrainController pid=73) The actor died because its node has died. Node Id: b157c9\n": (
        "ray-node-lost", "node b157c9"),
    "(TrainController pid=73) the actor's node was preempted: spot reclaim\n": (
        "ray-node-lost", "a node that is not named"),
    "\tpid: 5226\n\tnamespace: a\n\tip: 10.1.0.8\nThe actor is dead because its worker process has "
    "died. Worker exit type: SYSTEM_ERROR\n": ("ray-worker-died", "pid 5226 (10.1.0.8)"),
}  # fmt: skip


@pytest.mark.parametrize("text", _DEATHS)
def test_a_death_is_told_and_of_whom(text: str) -> None:
    found = judged("step 1 loss 2.5\n" + text)
    assert found.first is not None
    assert (found.first.rule.id, found.first.who) == _DEATHS[text]
    assert exit_code(found) == 2


@pytest.mark.parametrize(
    "text",
    [
        "terminate called after throwing an instance of 'std::runtime_error'\n",
        "Fatal Python error: Aborted\n",
        "*** SIGABRT received at time=1713225805 on cpu 44 ***\n",
        "Aborted (core dumped)\n",
    ],
)
def test_a_process_that_ended_itself_is_not_all_is_well(text: str) -> None:
    found = judged(text)
    assert exit_code(found) == 1
    assert "CAUSE not known: something failed" in _text(found)


@pytest.mark.parametrize("number", [43, 45])
def test_an_xid_that_follows_from_another_error_is_no_error_of_its_own(number: int) -> None:
    assert judged(f"kernel: NVRM: Xid (PCI:0000:b3:00): {number}, pid=71\n").first is None


def test_a_crash_without_a_name_is_that_of_the_task_that_its_launcher_tells() -> None:
    text = "Segmentation fault (core dumped)\nsrun: error: n7: task 12: Segmentation fault\n"
    found = judged(text).first
    assert found is not None
    assert found.who == "task 12 (n7)"


def test_a_crash_after_a_failed_transfer_is_not_the_first_error() -> None:
    crash = "[n2:3:0:9] Caught signal 11 (Segmentation fault: address not mapped)\n"
    first = [judged(text).first for text in (_LOST + crash, crash + _LOST)]
    assert [one and one.rule.id for one in first] == ["ib-retry-exceeded", "process-crashed"]


def test_a_crash_is_once_and_what_was_before_it_comes_first() -> None:
    crash = "[n2:3  :0:9] Caught signal 11 (Segmentation fault: address not mapped)\n"
    told = "mpirun noticed that process rank 2 with PID 3 on node n2 exited on signal 11\n"
    found = judged(_LOST + crash + told).first
    assert found is not None
    assert found.rule.id == "ib-retry-exceeded"
    alone = judged(crash + told).first
    assert alone is not None
    assert (alone.rule.id, alone.who) == ("process-crashed", "pid 3 (n2)")


@pytest.mark.parametrize("why", ["TIME LIMIT", "PREEMPTION", "JOB REQUEUE"])
def test_slurm_s_end_of_a_job_that_had_waited_is_not_the_first_error(why: str) -> None:
    end = f"slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-25T11:00:12 DUE TO {why} ***\n"
    assert judged(end).first is not None
    found = judged(_WAITS.format(3) + end)
    assert found.first is None
    assert "CAUSE not known" in _text(found)


@pytest.mark.parametrize(
    "text",
    [
        'Sample 12: "why does it print Segmentation fault (core dumped)?" -> label 3\n',
        "INFO eval: the answer says 'terminate called after throwing an instance'\n",
        "the page about Fatal Python error: Aborted\n",
        "Instance k-7 (node IP: 10.1.0.7) will be terminated soon (reason: idle timeout).\n",
    ],
)
def test_what_a_healthy_job_writes_of_such_things_is_no_death(text: str) -> None:
    assert not judged(text).findings


# Whom a line is about, and who wrote it.


def test_ranks_that_called_different_collectives_are_both_named() -> None:
    found = judged(
        "[RANK 1] [ERROR] cuda_error - Detected mismatch between collectives on ranks. Rank 1 is "
        "running collective: X(SequenceNumber=101), but Rank 7 is running collective: X()\n"
        "[rank7]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors "
        "while waiting for send/recv from rank 3. Please check rank 3 logs for faulty rank.\n"
    )
    assert found.first is not None
    assert found.first.who == "rank 1, rank 7"
    assert findings(found)["barrier-missed"] == "rank 3"


@pytest.mark.parametrize(
    ("prefix", "who"),
    [
        ("[gpu187:1]: ", "gpu187:1"),
        ("[trainer0|0]:", "trainer0|0"),
        ("(EngineCore_3 pid=73) ERROR 04-17 23:05:06 [core.py:390] ", "pid 73"),
        ("(EngineCore_3 pid=73) ERROR 04-17 23:05:06 core.py:390] ", "pid 73"),
        ("[0604/1024][2026-11-25 22:31:34,422] ", "rank 604"),
    ],
)
def test_the_marks_of_more_launchers_are_read(prefix: str, who: str) -> None:
    lines = _RAISED.splitlines()
    found = judged("".join(f"{prefix}{line}\n" for line in lines))
    assert findings(found) == {"python-exception": who}
    detail = found.findings[0].detail
    assert detail == "at t.py:3 in run"


def test_ranks_with_numbers_of_their_world_are_not_taken_for_each_other() -> None:
    form = (
        "[{}/1024][2026-11-25 22:31:34,42{}] [misc/socket.cc:586] [n7:pid=4{}] NCCL WARN "
        "socketPollConnect poll() returned 1, no POLLOUT events\n"
    )
    assert findings(judged(form.format("0604", 2, 1) + form.format("0607", 1, 2))) == {
        "socket-unreachable": "rank 604, rank 607"
    }


def test_a_group_without_a_name_is_called_by_its_number() -> None:
    text = (
        "[E930 15:23:00.05 ProcessGroupNCCL.cpp:1487] [PG ID 4 PG GUID  Rank 2] ProcessGroupNCCL's "
        "watchdog got stuck for 10 seconds without making progress\n"
    )
    assert findings(judged(text)) == {"watchdog-stuck": "rank 2 of group 4"}


def test_a_line_of_source_in_a_traceback_is_no_message() -> None:
    text = 'ERROR 06-29 19:19:58 [x.py:4]     raise RuntimeError(f"NCCL error: {error_str}")\n'
    assert not judged(text).findings
