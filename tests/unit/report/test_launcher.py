# SPDX-License-Identifier: Apache-2.0
"""What srun, slurmstepd, torchrun and mpirun write of a task's end, and what a report makes of it.

The lines are as these write them:

- srun: `_task_finish` of src/srun/launch.c (Slurm 24.11.6, 25.11.7, 26.05.3) and of
  src/plugins/launch/slurm/launch_slurm.c (22.05.9); `_step_signal` there; src/api/step_launch.c
- slurmstepd: `_handle_signal_container` of src/slurmd/slurmstepd/req.c, and
  src/plugins/task/cgroup/task_cgroup_memory.c (the same releases); the heads: src/common/log.c
- torchrun: `_FAILURE_FORMAT_TEMPLATE` of torch/distributed/elastic/multiprocessing/errors/
  __init__.py (PyTorch 2.13 and before); `SubprocessContext` and `MultiprocessContext` of
  multiprocessing/api.py, which since 2.10 has those that torchrun itself ended in the table, too
- mpirun: help-orterun.txt of Open MPI 4, help-prun.txt of PRRTE; Intel MPI's Hydra
"""

from dataclasses import replace

import pytest

from nccl_inspector.model import rules
from nccl_inspector.model.card import CRASHED, FAILED, HUNG, INFO, Card
from nccl_inspector.model.exit_words import exit_words
from nccl_inspector.model.process import Process
from nccl_inspector.nccl_log.launcher_lines import (
    LauncherLines,
    from_json,
    read_launchers,
    to_json,
)
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.report.launcher import first_end, tell_launchers
from nccl_inspector.slurm.job_record import JobRecord, StepRecord
from nccl_inspector.summary.attempts import Loaded
from tests.support.synthetic.jobs import through_summaries
from tests.unit.report.hung_jobs import End, data_parallel, ended

NINE = "SIGKILL: out of memory, or kill -9"
ONE = "exit code 1, an error or an exception of the program"


def read(text: str) -> LauncherLines:
    return read_launchers([text.encode()])


@pytest.mark.parametrize(
    ("line", "hosts", "tasks", "words"),
    [
        ("srun: error: n2: task 3: Killed", "n2", "3", NINE),
        ("srun: error: n[1-2]: tasks 0-2,5,7: Exited with exit code 1", "n[1-2]", "0-2,5,7", ONE),
        ("srun: error: n2: task 3: Segmentation fault (core dumped)", "n2", "3",
         "SIGSEGV: an invalid address"),
        ("srun: error: n2: task 3: Out Of Memory", "n2", "3", "out of memory"),
        ("srun: error: n2: task 3: Exited with exit code 137", "n2", "3", NINE),
        ("srun: error: n2: task 3: Exited with exit code 77", "n2", "3", "exit code 77"),
    ],
)  # fmt: skip
def test_sruns_line_of_a_task_is_read(line: str, hosts: str, tasks: str, words: str) -> None:
    (found,) = read(f"step 100 loss 2.1\n{line}\nbye\n").ends
    assert (found.hosts, found.tasks, found.words, found.line) == (hosts, tasks, words, line)


@pytest.mark.parametrize(
    "line",
    [
        "my srun: error: n2: task 3: Killed",
        "error in n2: task 3: Killed",
        "srun: error: n2: task 3: Feeling unwell",
        "srun: n2: task 3: Killed",
        "srun: error: n2: task 3: Exited with exit code 0",
        "srun: error: Task launch for StepId=12.0 failed on node n2: Unspecified error",
        "slurmstepd: error: execve(): train: No such file or directory",
    ],
)
def test_other_lines_are_of_no_tasks_end(line: str) -> None:
    assert read(line) == LauncherLines()


HEADS = ["slurmstepd: error: ", "3: slurmstepd: error: ", "slurmstepd-n2: error: ",
         "[2026-09-14T17:14:38.784] error: "]  # fmt: skip


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "text",
    [
        "Detected 1 oom_kill event in StepId=42.0. Some of the step tasks have been OOM Killed.",
        "Detected 2 oom-kill event(s) in StepId=42.0. Some of your processes may have been killed "
        "by the cgroup out-of-memory handler.",
    ],
)
def test_an_out_of_memory_kill_is_of_its_step(head: str, text: str) -> None:
    assert read(f"{head}{text}\n").out_of_memory == ("42.0",)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "text",
    [
        "*** STEP 42.0 ON n1 CANCELLED AT 2026-09-21T10:00:00 DUE TO TIME LIMIT ***",
        "*** JOB 42 ON n1 CANCELLED AT 2026-09-21T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG "
        "FOR DETAILS ***",
        "*** STEP 42.0 ON n1 CANCELLED AT 2026-09-21T10:00:00 DUE to SIGNAL Terminated ***",
        "*** STEP 42.0 ON n1 CANCELLED AT 2026-09-21T10:00:00 ***",
        "*** STEP 42.0 ON n1 FAILED (non-zero exit code or other failure mode) ***",
    ],
)
def test_after_slurm_began_to_end_the_step_a_killed_task_is_its_doing(head: str, text: str) -> None:
    found = read(f"{head}{text}\nsrun: error: n1: task 1: Killed\n")
    assert found.notes == (f"{head}{text}",)
    assert [one.by_launcher for one in found.ends] == [True]


TORCHRUN = """{p}============================================================
{p}train.py FAILED
{p}------------------------------------------------------------
{p}Failures:
{p}[1]:
{p}  time      : 2026-11-27_12:03:45
{p}  host      : n1.example.org
{p}  rank      : 0 (local_rank: 0)
{p}  exitcode  : -6 (pid: 1)
{p}  error_file: <N/A>
{p}  traceback : Signal 6 (SIGABRT) received by PID 1
{p}------------------------------------------------------------
{p}Root Cause (first observed failure):
{p}[0]:
{p}  time      : 2026-11-27_12:03:44
{p}  host      : n1.example.org
{p}  rank      : 1 (local_rank: 1)
{p}  exitcode  : -9 (pid: 2)
{p}  error_file: <N/A>
{p}  traceback : Signal 9 (SIGKILL) received by PID 2
{p}============================================================
"""


@pytest.mark.parametrize("prefix", ["", "0: ", "[rank0]: "])
def test_torchruns_table_names_ranks_and_processes(prefix: str) -> None:
    found = read(TORCHRUN.format(p=prefix)).ends
    assert [(one.hosts, one.tasks, one.signal, one.pid) for one in found] == [
        ("n1.example.org", "1", 9, 2),  # the root cause, which torchrun writes last
        ("n1.example.org", "0", 6, 1),
    ]
    assert first_end(read(TORCHRUN.format(p=prefix))).startswith(
        f"torchrun wrote first of rank 1 on n1.example.org: {NINE}"
    )


def row(number: int, rank: int, code: int, pid: int, host: str = "n1") -> str:
    return (
        f"[{number}]:\n  time      : 2026-11-27_12:03:45\n  host      : {host}.example.org\n"
        f"  rank      : {rank} (local_rank: {rank % 4})\n  exitcode  : {code} (pid: {pid})\n"
        f"  error_file: <N/A>\n  traceback : Signal {-code} received by PID {pid}\n"
    )


def table(root: str, *others: str) -> str:
    line = "-" * 60
    failures = "".join(others) or "  <NO_OTHER_FAILURES>\n"
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        f"{'=' * 60}\ntrain.py FAILED\n{line}\nFailures:\n{failures}{line}\n"
        f"Root Cause (first observed failure):\n{root}{'=' * 60}\n"
    )


API = "1127 12:03:44.101000 77 torch/distributed/elastic/multiprocessing/api.py"
LATER = "W1127 12:04:14.200000 77 torch/distributed/elastic/multiprocessing/api.py:1023]"


def at_once(pid: int, code: int, local: int = 2, head: str = f"E{API}:984] ") -> str:
    return (
        f"{head}failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary: "
        "/opt/conda/bin/python3.12\n"
    )


def closing(*pids: int, head: str = f"W{API}:1010] ") -> str:
    return "".join(f"{head}Sending process {pid} closing signal SIGTERM\n" for pid in pids)


def test_whom_torchrun_told_to_end_did_not_fail_by_itself() -> None:
    """One of them did not heed SIGTERM, and got SIGKILL half a minute later."""
    text = (
        closing(101, 102, 104)
        + f"{LATER} Unable to shutdown process 102 via 15, forcefully exiting via 9\n"
        + at_once(103, -9)
        + table(row(2, 2, -9, 103), row(0, 0, -15, 101), row(1, 1, -9, 102), row(3, 3, 1, 104))
    )
    found = read(text)
    assert [(one.tasks, one.by_launcher) for one in found.ends] == [
        ("2", False), ("0", True), ("1", True), ("3", True),
    ]  # fmt: skip
    assert first_end(found).startswith("torchrun wrote first of rank 2 on n1.example.org: ")
    (finding,) = tell_launchers(found)
    assert f"rank 2 on n1.example.org: {NINE}, rank 0" in finding.title
    assert f"rank 1 on n1.example.org: {NINE} (as torchrun ended it)" in finding.title


@pytest.mark.parametrize(
    "head",
    [
        f"E{API}:984] ",
        "ERROR:torch.distributed.elastic.multiprocessing.api:",  # before 2.3
        "[2026-11-27 12:03:44,101] torch.distributed.elastic.multiprocessing.api: [ERROR] ",
        "3: E1127 12:03:44.101000 77 site-packages/torch/distributed/elastic/multiprocessing/"
        "api.py:869] ",
        " ERROR    ",  # accelerate, with rich
    ],
)
def test_what_torchrun_writes_at_once_is_enough_without_its_table(head: str) -> None:
    """An attempt that is followed by another one has no table, nor a torchrun that is killed."""
    (one,) = read(closing(1, 3, head=head) + at_once(2, -9, head=head)).ends
    assert (one.source, one.hosts, one.tasks, one.signal, one.pid) == ("torchrun", "", "", 9, 2)
    assert first_end(read(at_once(2, -9))) == f"torchrun wrote first of process 2: {NINE}"
    card = reported(at_once(2, -9, head=head), code=1)
    assert card.verdict.status == CRASHED
    assert card.verdict.summary.startswith(KILLED)


def test_the_same_pid_in_containers_of_two_nodes_excuses_nobody() -> None:
    """On n1 process 22 was told to end, on n2 another process 22 failed."""
    text = closing(22) + at_once(23, 1) + table(row(0, 1, 1, 23), row(1, 0, -15, 22))
    text += at_once(22, -11) + table(row(0, 4, -11, 22, "n2"))
    assert [(one.hosts[:2], one.tasks, one.signal, one.by_launcher) for one in read(text).ends][
        -1
    ] == ("n2", "4", 11, False)


def test_a_name_of_the_signal_behind_the_pid_is_no_other_form() -> None:
    text = table(row(0, 1, -11, 2).replace("(pid: 2)", "(pid: 2) (SIGSEGV)"))
    assert [(one.tasks, one.signal, one.pid) for one in read(text).ends] == [("1", 11, 2)]


def test_a_watchdog_that_aborts_all_has_one_root() -> None:
    """All of a node end by themselves before torchrun looks; the order is torchrun's."""
    rows = [row(at, at, -6, 100 + at) for at in range(4)]
    found = read(at_once(101, -6, 1) + table(rows[1], rows[0], *rows[2:]))
    assert [(one.tasks, one.by_launcher) for one in found.ends] == [
        ("1", False), ("0", False), ("2", False), ("3", False),
    ]  # fmt: skip


OPEN_MPI = """--------------------------------------------------------------------------
{by} noticed that process rank 1 with PID {pid} on node n1 exited on signal 9 (Killed).
--------------------------------------------------------------------------
"""
OPEN_MPI_CODE = """mpirun detected that one or more processes exited with non-zero status, thus
causing the job to be terminated. The first process to do so was:

  Process name: [{name},1]
  Exit code:    1
"""
HYDRA = """===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 1 PID 2 RUNNING AT n1
=   KILLED BY SIGNAL: 9 (Killed)
===================================================================================
"""


def job() -> list[Process]:
    """Rank 1 dies, and the rest is in an operation that it never called."""
    return ended(data_parallel(), End((0.3, 1.2), 0.0))


def reported(
    text: str, code: int = 143, processes: list[Process] | None = None, *,
    steps: tuple[StepRecord, ...] = (), state: str = "FAILED", restart: int = 0,
) -> Card:  # fmt: skip
    record = JobRecord(42, state=state, exit_code=code, signal=0, sources=("sacct",))
    summaries = through_summaries(processes or job())
    summaries = [replace(one, head=replace(one.head, restart=restart)) for one in summaries]
    lines = read(text)
    given = JobContext(record, launchers=from_json(to_json(lines)), steps=steps)
    return build_card(Loaded(tuple(summaries), (restart,), ()), given)


KILLED = f"rank 1 (n1 GPU1, pid 2) was killed ({NINE}) at about "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("srun: error: n1: task 1: Killed\nsrun: Terminating StepId=42.0\n"
         "srun: error: n1: task 0: Terminated\n", KILLED),
        (TORCHRUN.format(p=""), KILLED),
        # srun says how torchrun ended, and torchrun how its worker did.
        ("srun: error: n1: task 1: Exited with exit code 1\n" + TORCHRUN.format(p=""), KILLED),
        (OPEN_MPI.format(by="mpirun", pid=2), KILLED),
        (OPEN_MPI.format(by="prterun", pid=0), KILLED),
        (HYDRA, KILLED),
        (OPEN_MPI_CODE.format(name="[2403,1]"), f"rank 1 (n1 GPU1, pid 2) crashed ({ONE}) at "),
        (OPEN_MPI_CODE.format(name="prterun-n0-14@1"), f"rank 1 (n1 GPU1, pid 2) crashed ({ONE}) "),
        ("srun: error: n1: task 1: Exited with exit code 1\n",
         f"rank 1 (n1 GPU1, pid 2) crashed ({ONE}) at about "),
        ("srun: error: n1: task 1: Out Of Memory\n",
         "rank 1 (n1 GPU1, pid 2) was killed (out of memory) at about "),
    ],
)  # fmt: skip
def test_how_the_one_that_died_ended_is_what_its_launcher_wrote(text: str, words: str) -> None:
    """The job's code, 143, is of the tasks that srun ended after that."""
    card = reported(text)
    assert card.verdict.status == CRASHED
    assert card.verdict.summary.startswith(words)


@pytest.mark.parametrize(
    "text",
    [
        "srun: error: n1: task 0: Exited with exit code 1\n",  # the code is of another one
        "srun: Terminating StepId=42.0\nsrun: error: n1: task 1: Killed\n",  # by srun itself
        "srun: error: n1: task 1: Terminated\n",
    ],
)
def test_a_code_that_is_not_of_the_one_that_died_is_not_told_as_its_own(text: str) -> None:
    card = reported(text, code=137)
    assert card.verdict.status == CRASHED
    assert card.verdict.summary.startswith("rank 1 (n1 GPU1, pid 2) crashed at about ")


def test_an_earlier_attempts_lines_say_nothing_of_this_ones_processes() -> None:
    """They are in the same output, and have no times."""
    card = reported("srun: error: n1: task 1: Segmentation fault\n", 1, restart=1)
    assert card.verdict.summary.startswith("rank 1 (n1 GPU1, pid 2) crashed at about ")


def test_a_launchers_lines_accuse_nobody_and_change_no_verdict() -> None:
    """Those of a hung job name its victims first: the watchdogs of these gave up."""
    hung = ended(data_parallel(), End((70, 72), 73))
    text = (
        "srun: error: n1: task 0: Aborted\nsrun: Terminating StepId=42.0\n"
        "slurmstepd: error: *** STEP 42.0 ON n1 CANCELLED AT 2026-09-21T10:00:00 ***\n"
        "srun: error: n1: task 1: Killed\n"
    )
    card, without = reported(text, processes=hung), reported("", processes=hung)
    assert card.verdict == without.verdict
    assert card.verdict.status == HUNG
    (finding,) = [one for one in card.findings if one.rule == rules.LAUNCHER.id]
    assert (finding.severity, finding.entities) == (INFO, ())
    assert finding.title == (
        "srun wrote: task 0 on n1: SIGABRT: abort(), as PyTorch's watchdog, NCCL and failed "
        f"assertions call it, task 1 on n1: {NINE} (as Slurm ended the step)"
    )
    assert {one.rule for one in without.findings} == {one.rule for one in card.findings} - {
        rules.LAUNCHER.id
    }


def test_a_failure_that_nothing_explains_is_told_with_the_launchers_first_line() -> None:
    quiet = [replace(one, operations=()) for one in ended(data_parallel(), End((0, 0), 0))]
    card = reported("srun: error: n3: task 3: Bus error\n", 1, quiet)
    assert card.verdict.status == FAILED
    assert card.verdict.summary.endswith(
        "nothing in its communication explains that; srun wrote first of task 3 on n3: SIGBUS: an "
        "invalid address, a full /dev/shm or a file that became shorter"
    )


def step(name: str, state: str, code: int, signal: int) -> StepRecord:
    return StepRecord(name, state, code, signal, 1000, 2000)


BATCH = step("batch", "FAILED", 143, 0)


@pytest.mark.parametrize(
    ("job_state", "job_code", "steps", "words"),
    [
        # srun ended the rest, and returned their 143; a task had crashed before.
        ("FAILED", 143, (BATCH, step("0", "CANCELLED", 0, 11)), "killed (SIGSEGV"),
        ("FAILED", 143, (BATCH, step("0", "OUT_OF_MEMORY", 0, 125)), "killed (out of memory)"),
        # The script goes on after a step that crashed.
        ("COMPLETED", 0, (step("0", "CANCELLED", 0, 11),), "killed (SIGSEGV"),
        ("FAILED", 1, (step("0", "FAILED", 139, 0),), "killed (SIGSEGV"),
        # The code of a step that a signal ended may be the answer to a signal of the user's own.
        ("FAILED", 143, (BATCH, step("0", "CANCELLED", 0, 15)), "crashed at about"),
    ],
)
def test_the_code_of_the_step_counts_where_it_certainly_says_more(
    job_state: str, job_code: int, steps: tuple[StepRecord, ...], words: str
) -> None:
    card = reported("", job_code, state=job_state, steps=steps)
    assert words in card.verdict.summary
    assert card.job.exit_code == f"{job_code}:0"
    assert [one.step for one in card.job.step_ends] == [one.name for one in steps]


@pytest.mark.parametrize(
    ("state", "code", "step_of"),
    [
        ("COMPLETED", 0, step("0", "FAILED", 1, 0)),
        ("FAILED", 143, step("0", "FAILED", 1, 0)),
        ("FAILED", 124, step("0", "FAILED", 1, 0)),
        ("CANCELLED", 0, step("0", "CANCELLED", 0, 11)),
        ("TIMEOUT", 0, step("0", "FAILED", 1, 0)),
    ],
)
def test_a_step_that_may_have_answered_a_signal_with_an_error_makes_nothing_more_certain(
    state: str, code: int, step_of: StepRecord
) -> None:
    """As a program does that saves a checkpoint on SIGTERM and then exits with 1."""
    processes = ended(data_parallel(), End((0.0, 0.4), 0.4, usual_s=(0.1, 0.5)))
    card = reported("", code, processes, steps=(step_of,), state=state)
    without = reported("", code, processes, state=state)
    assert (card.verdict, card.findings) == (without.verdict, without.findings)


@pytest.mark.parametrize(
    ("code", "signal", "words"),
    [
        (0, 0, ""),
        (1, 0, ONE),
        (137, 0, f"exit code 137, {NINE}"),
        (0, 9, f"signal 9, {NINE}"),
        (0, 125, "signal 125, Slurm's sign for a step that was out of memory"),
        (125, 0, "exit code 125"),
        (200, 0, "exit code 200"),
        (255, 0, "exit code 255, exit(-1), or a connection of ssh that failed"),
        (None, None, ""),
    ],
)
def test_codes_are_words(code: int | None, signal: int | None, words: str) -> None:
    assert exit_words(code, signal) == words


def test_an_output_of_nothing_but_such_lines_is_bounded() -> None:
    lines = "".join(f"srun: error: n{one}: task {one}: Killed\n" for one in range(5000))
    found = read(lines + TORCHRUN.format(p="x" * 5000) + "  exitcode  : -9" * 5000)
    assert len(found.ends) == 256
