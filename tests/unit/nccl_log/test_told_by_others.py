# SPDX-License-Identifier: Apache-2.0
"""What tells of a death only in passing, and what is no error of its own, in all its forms."""

import pytest

from nccl_inspector.nccl_log.judge import LogReport, judge_log
from nccl_inspector.nccl_log.reader import LogReader
from nccl_inspector.render.log_text import exit_code, render_log
from tests.unit.nccl_log.made_logs import findings, judged

STEP = "step 1 loss 2.5\n"
SOCKET = (
    "n1:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: "
    "Connection closed by remote peer n2<4>\n"
)


def _text(found: LogReport) -> str:
    return " ".join(render_log(found, 100, everything=False, colour=False).split())


def _first(found: LogReport) -> tuple[str, str] | None:
    return None if found.first is None else (found.first.rule.id, found.first.who)


@pytest.mark.parametrize(
    ("line", "who"),
    [
        ("Killed", "a process that is not named"),
        ("3: Killed", "task 3"),
        ("/job/slurm_script: line 12:  4711 Killed                  python train.py",
         "a process that is not named"),
        ("command terminated with exit code 137", "a process that is not named"),
        ("worker-1 exited with code 137", "a process that is not named"),
        ("subprocess.CalledProcessError: Command '['python', '--local_rank=3']' died with "
         "<Signals.SIGSEGV: 11>.", "a process that is not named"),
        ("[2026-11-25 10:11:12] Child process unexpectedly failed with exitcode=-9. pid=1926",
         "pid 1926"),
        ("[2026-11-25 10:11:12] Child process unexpectedly failed with exitcode=139. pid=1926",
         "pid 1926"),
    ],
)  # fmt: skip
def test_a_shell_or_a_launcher_tells_in_a_word_that_a_process_was_killed(
    line: str, who: str
) -> None:
    found = judged(f"{STEP}{line}\n")
    assert _first(found) == ("task-killed", who)
    assert exit_code(found) == 2


@pytest.mark.parametrize(
    "line",
    [
        "Killed 3 stale processes",
        "Killed: 0",
        "The job Killed  nothing",
        "command terminated with exit code 0",
        "exit code 137 would be SIGKILL",
        "Child process ended with exitcode=0. pid=1926",
    ],
)
def test_a_word_in_a_sentence_tells_of_no_kill(line: str) -> None:
    assert not findings(judged(f"{STEP}{SOCKET}{line}\n"))


@pytest.mark.parametrize(
    "before",
    [
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-25T10:11:12 DUE TO TIME LIMIT ***",
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-25T10:11:12 ***",
        "W1125 10:11:12.120000 12 torch/distributed/elastic/multiprocessing/api.py:897] Sending "
        "process 13 closing signal SIGTERM",
        "[2026-11-25 10:11:12,500] [INFO] [launch.py:314:sigkill_handler] Killing subprocess 13",
    ],
)
def test_what_a_launcher_kills_in_the_end_was_not_killed_before(before: str) -> None:
    found = judged(f"{STEP}{before}\nKilled\n")
    assert "task-killed" not in findings(found)


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) ERROR 10-27 02:14:51 [core_client.py:564] Engine core proc "
        "EngineCore_DP0 died unexpectedly, shutting down client.",
        "ERROR 10-27 02:14:51 [multiproc_executor.py:230] Worker proc VllmWorker-1 died "
        "unexpectedly, shutting down executor.",
        "[2026-11-25 10:11:12] Child process unexpectedly failed with exitcode=134. pid=1926",
        "subprocess.CalledProcessError: Command '['python', 'a.py']' returned non-zero exit "
        "status 1.",
    ],
)
def test_who_tells_that_another_process_ended_is_not_what_failed(line: str) -> None:
    found = judged(f"{STEP}{line}\n")
    assert found.first is None
    text = _text(found)
    assert "CAUSE not known: something failed" in text
    assert line[-20:] in text  # it is all there is, so it is shown


def test_that_something_failed_is_said_beside_settings() -> None:
    init = "NCCL INFO ncclCommInitRank comm 0x{0} rank {0} nranks 2 cudaDev 0 busId 1 commId 0x7 - "
    text = "".join(
        f"n{at}:1:2 [0] NCCL INFO Using network Socket\nn{at}:1:2 [0] {init.format(at)}Init "
        "COMPLETE\n"
        for at in range(2)
    )
    found = judged(text + SOCKET)
    assert list(findings(found)) == ["network-fallback"]
    assert "CAUSE not known: something failed" in _text(found)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("std::bad_alloc", "cpp-exception"),
        ("[TensorRT-LLM][ERROR] Assertion failed: Failed: MPI error a.cpp:211 '6'",
         "cpp-exception"),
        ("  what():    what():  basic_string::_M_create", "cpp-exception"),
        ("CUDA error: an illegal memory access was encountered", "program-cuda-error"),
        ("NCCL Error 5: invalid usage", "nccl-exception"),
        ("[PG 3 Rank 5] Process group watchdog thread terminated with exception: [Rank 5] Watchdog "
         "caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, "
         "NumelOut=1, Timeout(ms)=60000) ran for 60020 milliseconds before timing out.",
         "watchdog-timeout"),
    ],
)  # fmt: skip
def test_the_text_of_an_exception_of_c_plus_plus_says_what_failed(text: str, rule: str) -> None:
    begin = "terminate called after throwing an instance of 'std::runtime_error'\n"
    assert list(findings(judged(f"{begin}  what():  {text}\n"))) == [rule]


def test_an_exception_of_c_plus_plus_after_its_rank_gave_up_waiting_is_not_the_first() -> None:
    waited = (
        "[rank3]:[E ProcessGroupNCCL.cpp:563] [Rank 3] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) "
        "ran for 600027 milliseconds before timing out.\n"
    )
    found = judged(f"{waited}terminate called after\n  what():  the communicator is gone\n")
    assert found.first is None


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 2, for "
        "key: store_based_barrier_key:1 (world_size=2, worker_count=4, timeout=0:30:00)",
        "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
    ],
)
def test_a_rank_that_met_nobody_is_no_program_with_an_error(text: str) -> None:
    trace = 'Traceback (most recent call last):\n  File "/opt/torch/a.py", line 7, in f\n    f()\n'
    found = judged(f"{trace}{text}\n")
    assert list(findings(found)) == ["store-timeout"]
    assert found.first is None


_DUMP = (
    "[rank1]:[E602 11:17:52.557891708 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) "
    "Rank 1] Received a dump signal due to a collective timeout from {} and we will try our best "
    "to dump the debug info. Last enqueued NCCL work: 6, last completed NCCL work: 6.\n"
)


def test_a_dump_for_a_timeout_of_the_rank_itself_is_not_one_of_another() -> None:
    assert findings(judged(_DUMP.format("this local rank"))) == {"watchdog-failed": "rank 1"}
    assert findings(judged(_DUMP.format(" rank 5"))) == {"timeout-of-another": "rank 1"}


@pytest.mark.parametrize("width", [60, 90, 115, 117, 150])
def test_a_line_of_pytorch_that_a_terminal_broke_is_read_whole(width: int) -> None:
    line = (
        "[rank6]:[E429 13:55:49.384372190 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID "
        "0(default_pg) Rank 6] ProcessGroupNCCL's watchdog got stuck for 480 seconds without "
        "making progress in monitoring enqueued collectives."
    )
    head = line.index("] [PG") + 2  # what is before it is in one line
    rest = line[head:]
    parts = [line[:head] + rest[: width - 40]]
    parts += [rest[at : at + width] for at in range(width - 40, len(rest), width)]
    other = "[rank7]:[I429 13:55:49.384372190 ProcessGroupNCCL.cpp:1743] [Rank 7] all is well\n"
    found = judged("\n".join(parts) + "\n" + other)
    assert findings(found) == {"watchdog-stuck": "rank 6"}


def test_a_line_of_pytorch_takes_no_words_of_the_next_one() -> None:
    odd = "[rank6]:[E429 13:55:49.3 ProcessGroupNCCL.cpp:1743] [Rank 6] an odd thing\n"
    stuck = odd.replace("6", "7").replace("an odd thing", "watchdog got stuck for 9 s")
    found = judged(odd + stuck)
    assert findings(found) == {"torch-error": "rank 6", "watchdog-stuck": "rank 7"}


@pytest.mark.parametrize(
    ("text", "rule", "who"),
    [
        ("HW Exception by GPU node-9 (Agent handle: 0x6) reason :GPU Hang", "amd-gpu-hung",
         "GPU node-9"),
        ("ssh: connect to host 10.1.0.9 port 22: Connection refused", "launch-failed",
         "node 10.1.0.9"),
        ("MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD", "mpi-aborted", "rank 2"),
        ("Stalled ops:\nHorovodBroadcast_a_0 [missing ranks: 1, 3]", "horovod-stalled",
         "rank 1, rank 3"),
        ("[1,0]<stderr>:[2026-11-25 10:11:12.8: W horovod/common/operations.cc:588] "
         "HorovodBroadcast_a_0 [missing ranks: 1]", "horovod-stalled", "rank 1"),
        ("PRTE has lost communication with a remote daemon.\n\n  HNP daemon   : [prterun-a-3@0,0] "
         "on node a\n  Remote daemon: [prterun-a-3@0,1] on node b", "mpi-daemon-lost", "node b"),
        ("ORTE has lost communication with a remote daemon.\n", "mpi-daemon-lost",
         "a node that is not named"),
    ],
)  # fmt: skip
def test_a_line_about_another_names_whom_it_is_about(text: str, rule: str, who: str) -> None:
    assert findings(judged(f"{text}\n")) == {rule: who}


def test_what_cuda_says_while_a_process_ends_is_no_error_of_cuda() -> None:
    line = "n1:1:2 [32707] include/alloc.h:243 NCCL WARN Cuda failure 'driver shutting down'\n"
    found = judged(line)
    assert found.first is None
    assert exit_code(found) == 1


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("HIP failure: 'invalid argument'", "cuda-refused"),
        ("HIP failure 2 'out of memory'", "gpu-memory"),
        ("HIP failure 'unspecified launch failure'", "cuda-failure"),
    ],
)
def test_rccl_s_failures_of_hip_are_read_as_nccl_s_of_cuda(text: str, rule: str) -> None:
    line = f"n1:1:2 [0] /b/hipify/src/enqueue.cc:102 NCCL WARN {text}\n"
    assert list(findings(judged(line))) == [rule]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Connect to 10.1.0.9<36111> failed : Connection refused", "socket-refused"),
        ("Connect to 10.1.0.9<36111> failed : No route to host", "socket-unreachable"),
        ("Net : Call to recv from 10.1.0.9<41468> failed : Connection timed out", "socket-lost"),
    ],
)
def test_an_older_nccl_s_socket_tells_who_did_not_answer_and_how(text: str, rule: str) -> None:
    line = f"n1:1:2 [0] misc/socket.cc:503 NCCL WARN {text}\n"
    assert list(findings(judged(line))) == [rule]


def test_a_shell_s_killed_is_the_kill_that_slurm_counted_for_lack_of_memory() -> None:
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=9.batch. Some of the step tasks\n"
    found = judged(f"{STEP}/job/slurm_script: line 12:  4711 Killed         python train.py\n{oom}")
    assert _first(found) == ("oom-killed", "the launcher")


def test_a_shell_s_killed_after_an_error_is_not_the_first() -> None:
    failed = "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)\n"
    found = judged(f"{STEP}{failed}Killed\n")
    assert found.first is None
    assert "CAUSE not known: what is recognized here waited" in _text(found)


def test_what_a_c_plus_plus_exception_repeats_of_the_watchdog_is_the_watchdog_s() -> None:
    line = "  what():  [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, "
    line += (
        "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 25625607 milliseconds before timing out."
    )
    assert list(findings(judged(f"{line}\n"))) == ["watchdog-timeout"]


_WORKER = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. "
    "Worker IP address: 10.1.0.18 Worker port: 4228 Worker PID: 9094 Worker exit type: X\n"
)


def test_a_worker_that_ray_lost_after_a_rank_gave_up_waiting_is_not_the_first() -> None:
    waited = (
        "(WorkerDict pid=9094, ip=10.1.0.18) [rank5]:[E808 04:11:09.12 ProcessGroupNCCL.cpp:632] "
        "[Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600011 milliseconds "
        "before timing out.\n"
    )
    assert judged(waited + _WORKER).first is None
    assert _first(judged(_WORKER + waited)) == ("ray-worker-died", "pid 9094")


@pytest.mark.parametrize(
    "line",
    [
        "ExternalError: NCCL error(5), invalid usage. (at /paddle/ProcessGroupNCCL.cc:209)",
        "Error: Nccl error, unhandled system error  at (/paddle/platform/nccl_helper.h:114)",
        "F0917 19:48:12.202469 101934 nccl_util.h:30] Check failed: ncclGroupEnd() : unhandled "
        "system error (2 vs 0)",
        "my_app: ncclAllReduce gave 'remote process exited or there was a network error'",
    ],
)
def test_whoever_writes_nccl_s_words_for_a_result_tells_that_a_call_failed(line: str) -> None:
    found = judged(f"{STEP}{line}\n")
    assert list(findings(found)) == ["nccl-exception"]
    assert found.first is None


def test_words_like_nccl_s_for_a_result_are_not_nccl_s() -> None:
    assert not judged(f"{STEP}error: invalid usage of the option --steps\n").lines


@pytest.mark.parametrize(
    ("signal", "rule"),
    [("SEGV", "process-crashed"), ("BUS", "process-bus-error")],
)
def test_glog_tells_which_process_crashed(signal: str, rule: str) -> None:
    found = judged(
        f"*** SIG{signal} (@0x50) received by PID 12833 (TID 0x7f5) from PID 80; stack\n"
    )
    assert _first(found) == (rule, "pid 12833")


def test_slurmd_s_own_words_for_a_program_that_is_not_there_have_only_a_time() -> None:
    found = judged("[2026-11-25T02:29:03.160] error: execve(): bash: No such file or directory\n")
    assert list(findings(found)) == ["launch-failed"]


def test_a_process_of_jax_that_waits_is_told_and_names_nobody() -> None:
    line = (
        "2026-11-25 17:14:59.9: E external/xla/xla/service/rendezvous.cc:38] This thread has been "
        "waiting for `initialize clique for rank 6` for 10 seconds and may be stuck.\n"
    )
    assert findings(judged(line)) == {"jax-waiting": "a process that is not named"}


def test_a_line_without_its_first_letters_is_of_nobody_where_a_block_begins() -> None:
    """A torn line may be the first of what is read at once."""
    reader = LogReader()
    torn = b"CCL WARN this was torn off\n"
    whole = b"n1:1:2 [0] a.cc:1 NCCL WARN this is of n1\n"
    reader.read("job.out", [whole, torn + whole], 2026)
    assert findings(judge_log(reader.log))["warning"]
    who = {one.quote.record.message: one.who for one in judge_log(reader.log).findings if one.quote}
    assert who[b"this was torn off"] == "a process that is not named"


GLOO = "/b/third_party/gloo/gloo/transport/tcp/"
UNREAD = "not in the catalogue: {} with words of an error near the end"


@pytest.mark.parametrize(
    "line",
    [
        f"RuntimeError: [{GLOO}unbound_buffer.cc:81] Timed out waiting 1800000ms for recv",
        f"RuntimeError: [{GLOO}unbound_buffer.cc:138] Timed out waiting 60000ms for send",
        f"RuntimeError: [{GLOO}pair.cc:534] Connection closed by peer [10.1.0.2]:4711",
        f"RuntimeError: [{GLOO}pair.cc:598] writev [10.1.0.2]:4711: Broken pipe",
    ],
)
def test_who_waits_over_gloo_or_loses_another_is_not_the_first(line: str) -> None:
    found = judged(
        'Traceback (most recent call last):\n  File "a.py", line 2, in step\n' + f"{line}\n"
    )
    assert found.first is None
    assert "not known" in _text(found)


@pytest.mark.parametrize(
    "line",
    [
        "free(): invalid pointer",
        "*** Error in `python': free(): invalid next size (normal): 0x00007f2140c0 ***",
        "double free or corruption (!prev)",
        "malloc(): unaligned tcache chunk detected",
        "munmap_chunk(): invalid pointer",
        "corrupted size vs. prev_size",
    ],
)
def test_a_damaged_heap_is_an_error_but_not_after_one_that_was_noticed(line: str) -> None:
    found = judged(f"{STEP}{line}\nrun.sh: line 3: 4711 Aborted                 (core dumped) x\n")
    assert found.first is not None
    assert found.first.rule.id == "heap-damaged"
    after = judged(f"{STEP}NCCL error in: /b/ProcessGroupNCCL.cpp:1970, internal error\n{line}\n")
    assert after.first is None
    assert "heap-damaged" in findings(after)


def test_the_node_whose_memory_ran_out_is_named_by_ray() -> None:
    found = judged(
        "(raylet) [2026-11-25 10:00:01,1 E 88 88] (raylet) node_manager.cc:3097: 1 Workers (tasks "
        "/ actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at "
        "node (ID: 17f2, IP: 10.1.0.2) over the last time period.\n"
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"
    )
    assert _first(found) == ("ray-memory", "node 10.1.0.2")


def test_a_buffer_that_could_not_be_made_is_the_first_if_nothing_says_why() -> None:
    failed = (
        "n1:1:2 [0] misc/shmutils.cc:114 NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-Nz (size 9637888)\n"
    )
    assert _first(judged(failed)) == ("shm-unmade", "pid 1 (n1)")
    why = (
        "n1:1:2 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-Nz to 9 "
        "bytes, error: No space left on device (28)\n"
    )
    found = judged(why + failed)
    assert _first(found) == ("shm-full", "pid 1 (n1)")
    assert "shm-unmade" not in findings(found)


@pytest.mark.parametrize(
    "line",
    [
        "[1718801312.114] [t4:2201 :0]  ib_mlx5.c:1019 UCX  ERROR transport retry count exceeded",
        "*** FATAL ERROR (proc 1): in gasnetc_ofi_init() at gasnet_ofi.c:823: fi_domain failed",
        "RuntimeError: size mismatch, m1: [64 x 480], m2: [415 x 512]",
        "slurmstepd: error:  mpi/pmix_v3: pmixp_coll.c:742: collective timeout seq=0",
        "tool: error: no such option",
    ],
)
def test_an_error_that_no_rule_knows_is_shown_if_there_is_no_first(line: str) -> None:
    text = _text(judged(f"{STEP}{line}\n"))
    assert UNREAD.format("1 line") in text
    assert " ".join(line.split())[:60] in text
    assert "not in the catalogue" not in _text(judged(f"{STEP}{line}\nKilled\n"))


def test_what_is_read_is_not_shown_as_unread() -> None:
    read = (
        'Traceback (most recent call last):\n  File "a.py", line 2, in step\nValueError: no\n'
        "srun: error: n1: task 3: Exited with exit code 1\n" + SOCKET
    )
    assert "not in the catalogue" not in _text(judged(SOCKET + read))
    assert "not in the catalogue" not in _text(
        judged("srun: error: n1: task 3: Exited with exit code 1\nloss error 0.25\n")
    )
    many = "".join(f"program: error: number {one}\n" for one in range(9))
    text = _text(judged(many))
    assert UNREAD.format("9 lines") in text
    same = _text(judged("program: error: the same\n" * 4))
    assert UNREAD.format("4 lines") in same
    assert same.count("the same") == 1
    whole = _text(
        judged(
            "ERROR 10-22 [core.py:710] Traceback (most recent call last):\n"
            'ERROR 10-22 [core.py:710]   File "/a.py", line 264, in call\n'
            "ERROR 10-22 [core.py:710]     raise self.error(f())\n"
            "ERROR 10-22 [core.py:710] ended\nncclSystemError: System call\nLast error:\n"
        )
    )
    assert UNREAD.format("1 line") in whole
    assert "[core.py:710] ended" in whole
    assert "number 2" in text
    assert "number 3" not in text


def test_who_is_only_told_of_a_timeout_is_not_accused() -> None:
    found = judged(
        "[rank5]:[E303 08:12:30.102 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0(default_pg) Rank "
        "5] Observed flight recorder dump signal from another rank via TCPStore.\n"
    )
    assert "may be the one" not in _text(found)
    assert "it waited as well, or it was busy" in _text(found)


def test_channels_of_a_plugin_are_counted_once() -> None:
    head = "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via "
    of_plugin = judged(f"{head}NET/AWS Libfabric/4/GDRDMA\n")
    assert [one.values for one in of_plugin.facts if one.name == "channels"] == [
        (("NET/AWS Libfabric/GDRDMA", 1),)
    ]
    of_ib = judged(f"{head}NET/IB/4/GDRDMA\n{head}NET/IB/0(8)/GDRDMA/Shared\n")
    assert [one.values for one in of_ib.facts if one.name == "channels"] == [
        (("NET/IB/GDRDMA", 2),)
    ]


def test_mpich_need_not_name_the_rank_that_ended() -> None:
    found = judged(
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
        f"=   PID 108257 RUNNING AT n1\n=   EXIT CODE: {139}\n"
        "=   CLEANING UP REMAINING PROCESSES\n"
    )
    assert _first(found) == ("task-killed", "pid 108257 (n1)")


def test_one_address_that_did_not_answer_is_no_rendezvous_that_failed() -> None:
    line = "socket.cpp:663] [c10d] The client socket has failed to connect to {}.\n"
    one = judged("[W1125 10:00:00.1 " + line.format("[n1]:29500 (errno: 110 - timed out)"))
    assert list(findings(one)) == ["store-retry"]
    assert exit_code(one) == 1
    every = judged("[E1125 10:00:00.1 " + line.format("any network address of (n1, 29500)"))
    assert list(findings(every)) == ["store-timeout"]


@pytest.mark.parametrize(
    ("trace", "is_failure"), [("include/net.h:19 -> 2", False), ("init.cc:1800 -> 2", True)]
)
def test_what_no_call_came_back_with_is_no_failure(trace: str, *, is_failure: bool) -> None:
    head = "n1:1:2 [0] NCCL INFO "
    found = judged(f"{head}{trace}\n{head}comm 0x7f rank 0 nranks 2 cudaDev 0 - Init COMPLETE\n")
    assert found.only_consequences == is_failure
    assert exit_code(found) == is_failure


@pytest.mark.parametrize(
    ("function", "text", "is_first"),
    [
        ("all_reduce", "OPS function error: HcclAllreduce, error code is 6", False),
        ("barrier", "Timed out waiting for the other ranks", False),
        ("recv", "the remote end has gone", False),
        ("all_reduce", "No backend type associated with device type cpu", True),
        ("_new_process_group_helper", "the connection could not be made", True),
    ],
)
def test_an_exception_of_a_collective_that_tells_of_others_is_not_the_first(
    function: str, text: str, *, is_first: bool
) -> None:
    path = "/m/torch/distributed/distributed_c10d.py"
    found = judged(
        f'[rank1]: Traceback (most recent call last):\n[rank1]:   File "{path}", line 9, in '
        f"{function}\n[rank1]: RuntimeError: {text}\n"
    )
    assert (found.first is not None) == is_first
    assert text in _text(found)
