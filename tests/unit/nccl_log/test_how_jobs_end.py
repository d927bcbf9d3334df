# SPDX-License-Identifier: Apache-2.0
"""How a job ended, by what CUDA, adapters, launchers and frameworks wrote: each kind in its forms.

Inputs made to the shape of public reports are in `public/pasted/`; here is how they vary.
"""

import pytest

from nccl_inspector.nccl_log.launcher_lines import LauncherLines, read_launchers
from nccl_inspector.render.log_text import exit_code
from nccl_inspector.report.launcher import tell_launchers
from tests.unit.nccl_log.made_logs import findings, judged

_CUDA = {
    "uncorrectable ECC error encountered": "gpu-hardware",
    "uncorrectable NVLink error detected during the execution": "gpu-hardware",
    "device-side assert triggered": "device-assert",
    "CUDA driver version is insufficient for CUDA runtime version": "driver-insufficient",
    "no kernel image is available for execution on the device": "kernel-missing",
    "invalid device ordinal": "gpu-missing",
    "no CUDA-capable device is detected": "gpu-missing",
}
_WATCHDOG = "ProcessGroupNCCL.cpp:1515] [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group"
_FORMS = [
    "n1:4711:4750 [0] misc/strongstream.cc:53 NCCL WARN Cuda failure '{}'",
    "n1:4711:4750 [0] enqueue.cc:53 NCCL WARN Cuda failure 214 '{}'",
    f"[rank3]:[E817 17:40:34.227531918 {_WATCHDOG} watchdog thread terminated with exception: "
    "CUDA error: {}",
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated "
    "with exception: CUDA error: {}",
    "3: RuntimeError: CUDA error: {}",
    "torch.AcceleratorError: CUDA error: {}",
    "n1: Test CUDA failure common.cu:253 '{}'",
    "(Worker pid=73, ip=10.1.0.2) RuntimeError: CUDA error: {}",
]


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("text", _CUDA)
def test_what_cuda_says_itself_is_told_and_not_that_somebody_noticed(text: str, form: str) -> None:
    found = judged(form.format(text) + "\n")
    assert list(findings(found)) == [_CUDA[text]]
    assert exit_code(found) == 2


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("an illegal memory access was encountered", "cuda-failure"),
        ("unspecified launch failure", "cuda-failure"),
        ("invalid argument", "cuda-refused"),
        ("invalid resource handle", "cuda-refused"),
        ("operation not supported", "cuda-refused"),
        ("unknown error", "cuda-failure"),
    ],
)
def test_a_call_that_cuda_refused_is_no_error_of_a_kernel(text: str, rule: str) -> None:
    found = judged(f"n1:1:2 [0] include/alloc.h:102 NCCL WARN Cuda failure '{text}'\n")
    assert list(findings(found)) == [rule]


@pytest.mark.parametrize("status", [" with status={} opcode=0", " with error {}, opcode 0", " {}x"])
@pytest.mark.parametrize(
    ("code", "rule"),
    [(12, "ib-retry-exceeded"), (4, "ib-local-protection"), (10, "ib-remote-fault"),
     (13, "ib-receiver-not-ready"), (2, "ib-completion-error")],
)  # fmt: skip
def test_the_status_of_a_transfer_is_read_in_old_and_new_releases(
    code: int, rule: str, status: str
) -> None:
    head = "n1:1:2 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.1.0.2"
    found = judged(f"{head}{status.format(code)}, len 0, vendor err 129\n")
    assert list(findings(found)) == ["ib-completion-error" if "x" in status else rule]


_PORT = "n1:1:2 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : mlx5_0:1 Got async event : {}\n"
_LOST = "n2:3:4 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion with error 12, x\n"


def test_a_port_that_failed_just_before_is_the_first_error() -> None:
    found = judged(_PORT.format("port error") + _LOST).first
    assert found is not None
    assert (found.rule.id, found.who) == ("ib-port-event", "pid 1 (n1)")


@pytest.mark.parametrize(
    "text",
    [
        _LOST + _PORT.format("port error"),
        _PORT.format("port active") + _LOST,
        _PORT.format("port error") + 300 * (80 * "x" + "\n") + _LOST,
        "[2026-11-25 10:00:00] " + _PORT.format("port error") + "[2026-11-25 10:30:00] " + _LOST,
        "[2026-11-25 10:00:00] " + _PORT.format("port error") + "[2026-11-25 10:00:00] " + _LOST,
    ],
)
def test_a_port_is_not_accused_of_what_came_before_or_long_after(text: str) -> None:
    found = judged(text).first
    assert found is not None
    assert (found.rule.id, found.who) == ("ib-retry-exceeded", "pid 3 (n2)")


# Calls that came back, and nothing else.

_RETURNED = "n1:1:2 [0] NCCL INFO misc/socket.cc:564 -> {}\n"
_COMM = "n1:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId "
_COMM += "1a000 commId 0x7c - Init {}\n"


@pytest.mark.parametrize("code", [1, 2, 5])
def test_calls_that_failed_without_a_warning_are_a_failure_whose_reason_is_not_there(
    code: int,
) -> None:
    found = judged(_COMM.format("START") + _RETURNED.format(code))
    assert list(findings(found)) == ["nccl-silent"]
    assert exit_code(found) == 2


@pytest.mark.parametrize(
    "text",
    [
        _RETURNED.format(6),
        _RETURNED.format(2) + _COMM.format("COMPLETE"),
        _RETURNED.format(2)
        + "n1:1:2 [0] s.cc:1 NCCL WARN x: Connection closed by remote peer n2\n",
        _RETURNED.format(2) + "n1:1:2 [0] s.cc:1 NCCL WARN Too many open files\n",
    ],
)
def test_calls_that_failed_for_another_reason_are_not_told_to_be_silent(text: str) -> None:
    assert "nccl-silent" not in findings(judged(text))


# Who called what.


def _waits(rank: int, op: str, size: int, group: str = "0 (default_pg)", at: int = 8) -> str:
    return (
        f"[rank{rank}]:[E816 01:45:40.18 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={at}, OpType={op}, NumelIn={size}, "
        f"NumelOut={size}, Timeout(ms)=600000) ran for 600027 milliseconds before timing out.\n"
        f"[rank{rank}]:[E816 01:45:40.18 ProcessGroupNCCL.cpp:1664] [PG {group} Rank {rank}] "
        f"Exception (either an error or timeout) detected by watchdog at work: {at}, last enqueued "
        f"NCCL work: {at + 1}, last completed NCCL work: {at - 1}.\n"
    )


def _differ(text: str) -> list[str]:
    return [one.detail for one in judged(text).findings if one.rule.id == "collectives-differ"]


def test_ranks_that_wait_in_different_collectives_of_one_number_are_told() -> None:
    assert _differ(_waits(0, "ALLREDUCE", 5) + _waits(1, "BROADCAST", 5)) == [
        "number 8 of default_pg: rank 0: ALLREDUCE, rank 1: BROADCAST"
    ]


def test_ranks_that_reduce_different_sizes_are_told() -> None:
    assert _differ(_waits(0, "ALLREDUCE", 5000) + _waits(1, "ALLREDUCE", 6)) == [
        "number 8 of default_pg: rank 0: ALLREDUCE of 5,000 elements, rank 1: ALLREDUCE of 6 "
        "elements"
    ]


@pytest.mark.parametrize(
    "text",
    [
        _waits(0, "ALLREDUCE", 5) + _waits(1, "ALLREDUCE", 5),
        _waits(0, "ALLTOALL", 5) + _waits(1, "ALLTOALL", 7),
        _waits(0, "ALLREDUCE", 5) + _waits(1, "BROADCAST", 5, at=9),
        _waits(0, "ALLREDUCE", 5) + _waits(1, "BROADCAST", 5, group="2 (TENSOR)"),
        # One process waits in two groups with one number: which of the lines is of which?
        _waits(0, "ALLREDUCE", 5) + _waits(1, "BROADCAST", 5) + _waits(1, "ALLREDUCE", 5),
    ],
)
def test_ranks_of_which_that_is_not_certain_are_not_told_to_differ(text: str) -> None:
    assert _differ(text) == []


# Launchers and frameworks.

_STEP = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-25T10:11:12 ***\n"
_FAILED = "srun: error: n1: task 1: Exited with exit code 1\n"


def test_a_step_that_srun_ended_after_a_task_had_failed_was_not_cancelled_by_a_person() -> None:
    assert findings(judged(_FAILED + _STEP)) == {"task-failed": "task 1 (n1)"}


def test_a_step_that_was_cancelled_first_was_cancelled() -> None:
    assert "job-cancelled" in findings(judged(_STEP + _FAILED))


def test_a_job_that_was_cancelled_after_a_task_had_failed_was_cancelled() -> None:
    assert "job-cancelled" in findings(judged(_FAILED + _STEP.replace("STEP 7.0", "JOB 7")))


@pytest.mark.parametrize("before", ["31/67 [29:02<35:12, 58.67s/it]", "loss: 2.31,", "\x1b[A"])
def test_slurm_s_line_is_read_behind_a_progress_bar(before: str) -> None:
    assert list(findings(judged(f"step 1\n{before}{_STEP}"))) == ["job-cancelled"]


@pytest.mark.parametrize("before", ['echo "', "grep '", "# ", "see /var/log/"])
def test_a_quoted_line_of_slurm_s_is_none(before: str) -> None:
    assert read_launchers([f"{before}{_STEP}".encode()]).notes == ()


def test_the_node_that_failed_is_named_and_not_the_one_that_tells_it() -> None:
    text = "srun: error: Node failure on n3\n"
    text += _STEP.replace("***\n", "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n")
    assert findings(judged(text)) == {"slurm-node-failed": "node n3"}


_DEEPSPEED = "[2026-11-25 10:11:12,885] [ERROR] [launch.py:434:sigkill_handler] ['python', '-u', "
_DEEPSPEED += "'train.py', '--local_rank=7', '--deepspeed'] exits with return code = {}\n"


@pytest.mark.parametrize(
    ("code", "rule"), [(-9, "task-killed"), (-7, "task-killed"), (-15, ""),
                       (1, "task-failed"), (-6, "task-failed")],
)  # fmt: skip
@pytest.mark.parametrize("head", ["", "n1: "])
def test_deepspeed_tells_a_code_and_the_command_of_another_process(
    head: str, code: int, rule: str
) -> None:
    """It writes the command that it started last, whichever process failed."""
    found = judged(head + _DEEPSPEED.format(code))
    assert list(findings(found)) == ([rule] if rule else [])
    assert exit_code(found) == (2 if rule else 1)
    assert not any("7" in one.who for one in found.findings)


def test_the_report_names_nobody_for_a_line_that_names_nobody() -> None:
    lines = read_launchers([_DEEPSPEED.format(-9).encode()])
    (finding,) = tell_launchers(lines)
    assert "None" not in finding.title + finding.detail
    assert "a process" in finding.title
    assert tell_launchers(LauncherLines()) == []


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("[E1125 10:11:12.1 ProcessGroupGloo.cpp:142] Rank 5 failed to pass monitoredBarrier in "
         "120000 ms", "rank 5"),
        ("[rank0]: RuntimeError: [Rank 0]: Ranks 3, 5 failed to pass monitoredBarrier in 120 ms",
         "rank 3, rank 5"),
    ],
)  # fmt: skip
def test_ranks_that_missed_a_barrier_are_named_and_not_who_waited(text: str, who: str) -> None:
    assert findings(judged(text + "\n")) == {"barrier-missed": who}


def test_a_worker_of_ray_that_died_comes_before_what_its_peers_write() -> None:
    text = _LOST + "(raylet) A worker died or was killed while executing a task by an unexpected "
    text += "system error. Worker IP address: 10.1.0.2 Worker PID: 90738 Worker exit type: x\n"
    found = judged(text).first
    assert found is not None
    assert (found.rule.id, found.who) == ("ray-worker-died", "pid 90738")


# What a program did after it had waited in vain.

_MEMORY = "[rank{}]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3 GiB.\n"


def test_a_program_that_fails_after_its_own_timeout_is_not_the_first_error() -> None:
    found = judged(_waits(2, "BROADCAST", 5) + _MEMORY.format(2))
    assert found.first is None
    assert found.findings[0].rule.id == "watchdog-timeout"


@pytest.mark.parametrize(
    "text",
    [
        _MEMORY.format(2) + _waits(2, "BROADCAST", 5),
        _waits(0, "BROADCAST", 5) + _MEMORY.format(2),
        _MEMORY.format(2) + _waits(2, "BROADCAST", 5) + _waits(0, "BROADCAST", 5),
    ],
)
def test_a_program_that_fails_before_or_while_others_wait_is_the_first_error(text: str) -> None:
    found = judged(text).first
    assert found is not None
    assert (found.rule.id, found.who) == ("program-gpu-memory", "rank 2")


@pytest.mark.parametrize("call", ["Call to recv from", "Call to send to", "Connect to"])
def test_a_peer_that_resets_a_connection_is_gone_and_not_out_of_reach(call: str) -> None:
    text = "n1:1:2 [0] misc/socket.cc:518 NCCL WARN Net : {} 10.1.0.2<4> failed : {}\n"
    assert exit_code(judged(text.format(call, "Connection reset by peer"))) == 1
    if call == "Connect to":
        found = judged(text.format(call, "No route to host"))
        assert list(findings(found)) == ["socket-unreachable"]


@pytest.mark.parametrize("error", ["RuntimeError", "torch.distributed.DistBackendError"])
def test_an_exception_that_repeats_the_watchdog_is_a_timeout_and_no_fault_of_its_line(
    error: str,
) -> None:
    text = "".join(
        "Traceback (most recent call last):\n"
        '  File "/home/amy/train.py", line 120, in step\n    dist.all_reduce(loss)\n'
        f"{error}: NCCL communicator was aborted on rank {rank}.  Original reason for failure was: "
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
        "OpType=ALLGATHER, Timeout(ms)=1800000) ran for 1800715 milliseconds before timing out.\n"
        for rank in (6, 4)
    )
    assert findings(judged(text)) == {"watchdog-timeout": "rank 4, rank 6"}
