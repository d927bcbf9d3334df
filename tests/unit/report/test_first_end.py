# SPDX-License-Identifier: Apache-2.0
"""Who failed first, by the ends of tasks as slurmstepd saw them, and when that accuses nobody."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.card import CRASHED, EXIT_CRITICAL, HIGH, INFO, LOW, MEDIUM, Card
from nccl_inspector.model.process import FINALIZED, NS_PER_S, Process
from nccl_inspector.model.task_end import TaskEnd
from nccl_inspector.nccl_log.launcher_lines import LauncherEnd, LauncherLines
from nccl_inspector.render.comment import make_comment, read_comment
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.slurm.job_record import JobRecord
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import decode_head, encode
from tests.support.summaries import FIRST
from tests.support.synthetic.jobs import through_summaries
from tests.unit.report.hung_jobs import ONSET_NS, PROGRAMS, End, ended

KILL, TERM, SEGV, ABRT, OOM_CODE, ERROR, TRAPPED = 9, 15, 11, 6, 137 << 8, 1 << 8, 143 << 8
DIED_NS = ONSET_NS
FAILED, HIDDEN = JobRecord(42, state="FAILED", exit_code=143, sources=("sacct",)), JobRecord(
    42, state="COMPLETED", exit_code=0, sources=("sacct",)
)  # fmt: skip
# All had come to all operations, or rank 1 had not come to one yet, as it happens at any time.
MOMENTS = {"in nothing": (), "rank 1 is late": (1,)}
Ends = Mapping[int, tuple[int, float]]  # wait status and seconds after DIED_NS, by rank


def processes(culprits: Sequence[int] = (), kind: str = "data parallel") -> list[Process]:
    """A job that ended within a moment, at work; two nodes of four ranks."""
    found = ended(PROGRAMS[kind](), End((0.0, 0.3), 0.1, culprits=tuple(culprits)))
    nodes = sorted({one.facts.node for one in found})
    half = len(found) // 2
    return [
        replace(
            one, facts=replace(one.facts, procid=rank, step=0, node=nodes[0] + "ab"[rank >= half])
        )
        for rank, one in enumerate(found)
    ]


def reported(
    job: Sequence[Process],
    ends: Ends,
    record: JobRecord | None = FAILED,
    ahead_s: Mapping[str, float] | None = None,
    launchers: LauncherLines | None = None,
    started: int = 0,
) -> Card:
    """The card; `ahead_s`: by how much the clock of a node is ahead in the record of ends.

    `started`: the process id of a task less that of the process that it started.
    """
    summaries = []
    for summary in through_summaries(job):
        shift_s = (ahead_s or {}).get(summary.head.node, 0.0)
        mine = [
            TaskEnd(one.facts.step, rank, one.facts.pid + started, ends[rank][0],
                    DIED_NS + round((ends[rank][1] + shift_s) * NS_PER_S))
            for rank, one in enumerate(job)
            if rank in ends and one.facts.node == summary.head.node
        ]  # fmt: skip
        summaries.append(replace(summary, head=replace(summary.head, task_ends=tuple(mine))))
    context = JobContext(record=record, launchers=launchers)
    return build_card(Loaded(tuple(summaries), (0,), ()), context)


def told(
    first: int, status: int, others: int = TERM, after_s: float = 0.1
) -> dict[int, tuple[int, float]]:
    return {rank: (status, 0.0) if rank == first else (others, after_s) for rank in range(8)}


def accused(card: Card) -> set[str]:
    return {
        one.name
        for finding in card.findings
        if finding.severity != INFO
        for one in finding.entities
        if one.kind in ("rank", "node", "gpu")
    }


def assert_names(card: Card, rank: int) -> None:
    assert accused(card) == {f"rank {rank}"}, card.findings
    assert card.verdict.status == CRASHED
    assert card.verdict.summary.startswith(f"rank {rank} (")
    assert card.exit_code == EXIT_CRITICAL
    assert read_comment(make_comment(card)).status == CRASHED


@pytest.mark.parametrize("record", [FAILED, HIDDEN, None], ids=["failed", "hidden", "no record"])
@pytest.mark.parametrize("culprits", MOMENTS.values(), ids=MOMENTS)
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (KILL, "was killed (SIGKILL: out of memory, or kill -9)"),
        (OOM_CODE, "was killed (SIGKILL: out of memory, or kill -9)"),
        (SEGV, "was killed (SIGSEGV: an invalid address)"),
        (ABRT, "crashed (SIGABRT: abort()"),
        (ERROR, "crashed (exit code 1, an error or an exception of the program)"),
    ],
)
def test_the_task_that_failed_first_is_named_whoever_was_late_at_that_moment(
    status: int, words: str, culprits: tuple[int, ...], record: JobRecord | None
) -> None:
    card = reported(processes(culprits), told(5, status), record)
    assert_names(card, 5)
    assert words in card.verdict.summary


def test_it_is_told_when_and_how_much_later_the_next_one_ended() -> None:
    card = reported(processes(), told(5, KILL, after_s=0.25))
    (finding,) = (one for one in card.findings if one.severity != INFO)
    assert (
        "Slurm saw task 5 of step 0 end first; the next task ended 250 ms later" in finding.detail
    )
    assert finding.period is not None
    assert finding.period.start_s == DIED_NS / NS_PER_S


def test_an_error_is_less_certain_than_a_signal() -> None:
    assert reported(processes(), told(5, KILL)).verdict.confidence == MEDIUM
    assert reported(processes(), told(5, ERROR)).verdict.confidence == LOW


def test_what_others_gave_because_their_peer_was_gone_changes_nothing() -> None:
    ends = told(5, SEGV) | {0: (ERROR, 0.6), 6: (ABRT, 0.7), 7: (ERROR, 0.3)}
    assert_names(reported(processes(), ends), 5)


@pytest.mark.parametrize(("status", "after_s"), [(TERM, 0.008), (ERROR, 0.15)])
def test_ends_on_another_node_may_follow_soon(status: int, after_s: float) -> None:
    assert_names(reported(processes(), told(5, SEGV) | {1: (status, after_s)}), 5)


def test_if_no_other_task_failed_the_one_that_did_is_named() -> None:
    card = reported(processes(), {5: (KILL, 0.0)})
    assert_names(card, 5)
    # There is no next one, so nothing is said of it.
    assert not [e for one in card.findings for e in one.evidence if e.source == "slurm"]


NOBODY: Mapping[str, Ends] = {
    "all were killed at once": {rank: (KILL, rank / 1000) for rank in range(8)},
    "all were told to end": {rank: (TERM, rank / 1000) for rank in range(8)},
    "all trapped SIGTERM": {rank: (TRAPPED, rank / 1000) for rank in range(8)},
    "a bug of all": {rank: (SEGV, rank / 100) for rank in range(8)},
    "errors of two": told(5, ERROR) | {2: (ERROR, 2.0)},
    "two aborted": told(5, ABRT) | {2: (ABRT, 0.5)},
    "another node's end was as early": told(5, SEGV) | {1: (ERROR, 0.02)},
    "another node's end by Slurm was as early": told(5, SEGV) | {1: (TERM, 0.003)},
    "an own time limit": told(5, 124 << 8),
    "Ctrl-C": told(5, 2),
}


@pytest.mark.parametrize("culprits", MOMENTS.values(), ids=MOMENTS)
@pytest.mark.parametrize("name", NOBODY)
def test_nobody_is_named_where_the_record_proves_nothing(
    name: str, culprits: tuple[int, ...]
) -> None:
    without = accused(reported(processes(culprits), {}))
    card = reported(processes(culprits), NOBODY[name])
    assert accused(card) == without
    assert "before any other" not in card.verdict.summary


def test_a_watchdogs_victim_is_not_named_by_its_abort() -> None:
    """Rank 5 had waited for 6 s when its watchdog ended it; it only gave up first."""
    job = [
        replace(one, operations=tuple(replace(op, age_ns=6 * NS_PER_S) for op in one.operations))
        for one in processes((1,))
    ]
    card = reported(job, told(5, ABRT))
    assert "rank 5" not in accused(card)


def test_a_task_that_slurm_killed_after_the_others_had_ended_in_order_is_not_named() -> None:
    job = [
        one
        if rank == 5
        else replace(
            one,
            operations=(),
            facts=replace(one.facts, state=FINALIZED, beat_ns=DIED_NS - 40 * NS_PER_S),
        )
        for rank, one in enumerate(processes())
    ]
    card = reported(job, {5: (KILL, 0.0)}, HIDDEN)
    assert card.verdict.status != CRASHED
    assert "before any other" not in card.verdict.summary


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL"])
def test_who_died_first_after_slurm_had_begun_to_end_the_job_is_not_named(state: str) -> None:
    record = JobRecord(42, state=state, end_s=DIED_NS // NS_PER_S - 1, sources=("sacct",))
    assert "rank 5" not in accused(reported(processes(), told(5, KILL), record))


@pytest.mark.parametrize(("earlier_s", "names"), [(0.5, False), (1.5, True)])
def test_slurms_end_of_a_job_is_known_to_a_second(earlier_s: float, names: bool) -> None:
    record = JobRecord(42, state="CANCELLED", end_s=DIED_NS // NS_PER_S + 1, sources=("sacct",))
    card = reported(processes(), {5: (KILL, 1 - earlier_s)}, record)
    assert ("rank 5" in accused(card)) == names


@pytest.mark.parametrize(("silent_s", "names"), [(1.0, True), (2.0, False)])
def test_the_others_lived_if_they_gave_a_sign_in_the_second_before(
    silent_s: float, names: bool
) -> None:
    beat_ns = DIED_NS - round(silent_s * NS_PER_S)
    job = [
        one if rank == 5 else replace(one, facts=replace(one.facts, beat_ns=beat_ns))
        for rank, one in enumerate(processes())
    ]
    assert ("before any other" in reported(job, told(5, KILL)).verdict.summary) == names


def test_a_process_that_finalized_is_not_named_for_its_exit_code() -> None:
    job = processes()
    job[5] = replace(job[5], operations=(), facts=replace(job[5].facts, state=FINALIZED))
    assert "rank 5" not in accused(reported(job, told(5, ERROR)))


def test_of_a_task_with_two_processes_it_is_not_known_which_one_failed() -> None:
    job = processes()
    job[5] = replace(job[5], facts=replace(job[5].facts, procid=4))
    assert not accused(reported(job, {4: (KILL, 0.0)} | {0: (TERM, 0.1)})) & {"rank 4", "rank 5"}


def test_without_the_record_of_a_node_nobody_is_named() -> None:
    """Whoever died first may have been there."""
    job = [one for one in processes() if one.facts.node.endswith("b")]
    card = build_card(
        Loaded(
            tuple(
                replace(
                    one,
                    head=replace(
                        one.head, nodelist="n[1-2]", num_nodes=2,
                        task_ends=(TaskEnd(0, 5, job[1].facts.pid, KILL, DIED_NS),),
                    ),
                )
                for one in through_summaries(job)
            ),
            (0,), (),
        ),
        JobContext(record=FAILED),
    )  # fmt: skip
    assert "rank 5" not in accused(card)


def test_clocks_that_are_known_to_be_wrong_decide_nothing_and_others_do() -> None:
    job = processes()
    late, early = sorted({one.facts.node for one in job})
    skewed = [
        replace(
            one,
            facts=replace(one.facts, beat_ns=one.facts.beat_ns + 30 * NS_PER_S),
            comms=tuple(
                replace(comm, created_ns=comm.created_ns + 30 * NS_PER_S,
                        last_progress_ns=comm.last_progress_ns + 30 * NS_PER_S)
                for comm in one.comms
            ),
        ) if one.facts.node == early else one
        for one in job
    ]  # fmt: skip
    # Rank 5 is on the node whose clock is 30 s ahead, so its end seems to be the last one.
    card = reported(skewed, told(5, KILL), ahead_s={early: 30.0})
    assert accused(card) <= {"rank 5"}
    # And here the end of rank 1 seems to be the first by 30 s.
    card = reported(skewed, told(5, SEGV) | {1: (ERROR, 0.2)}, ahead_s={early: 30.0})
    assert "rank 1" not in accused(card)
    # A time service keeps clocks closer than boxes can tell.
    assert_names(reported(job, told(5, KILL), ahead_s={early: 0.01, late: -0.01}), 5)


def test_what_torchrun_wrote_of_a_process_comes_before_the_end_of_torchrun_itself() -> None:
    """Slurm sees torchrun, whose exit code is 1 whatever ended its process."""
    job = processes()
    line = LauncherEnd("torchrun", job[5].facts.node, "5", 0, SEGV, "exitcode", job[5].facts.pid)
    card = reported(job, told(5, ERROR), launchers=LauncherLines((line,)), started=1000)
    assert_names(card, 5)
    assert "was killed (SIGSEGV: an invalid address)" in card.verdict.summary


@pytest.mark.parametrize("others", [False, True])
def test_what_sent_sigkill_is_what_srun_says_and_only_of_that_task(others: bool) -> None:
    """slurmstepd's record has the signal alone, whether the kernel sent it for lack of memory."""
    job = processes()
    task = 3 if others else 5
    node = job[task].facts.node
    line = LauncherEnd(
        "srun", node, str(task), 0, 125, f"error: {node}: task {task}: Out Of Memory"
    )
    card = reported(job, told(5, KILL), launchers=LauncherLines((line,)))
    assert_names(card, 5)
    words = "SIGKILL: out of memory, or kill -9" if others else "out of memory"
    assert f"was killed ({words})" in card.verdict.summary


def test_the_record_is_carried_by_the_summary_and_checked() -> None:
    ends = (TaskEnd(3, 7, 4711, KILL, DIED_NS), TaskEnd(None, 0, 4712, ERROR, DIED_NS + 5))
    data = encode(replace(FIRST, task_ends=ends), [])
    assert decode_head(data).task_ends == ends
    for wrong in ("[[3, 7, 4711, 70000, 1]]", "7", "[[3, 7, -1, 9, 1]]", '[["x", 7, 1, 9, 1]]'):
        begin = data.index(b'"task_ends"')
        spoilt = data[:begin] + f'"task_ends": {wrong}}}\n'.encode()
        with pytest.raises(RefusedError):
            decode_head(spoilt)
    # A release before this one writes no record.
    begin = data.index(b', "task_ends"')
    assert decode_head(data[:begin] + b"}\n").task_ends == ()


LOST = JobRecord(42, state="NODE_FAIL", exit_code=0, signal=15, sources=("sacct",))
OF_FIRST_NODE = dict.fromkeys(range(4), (KILL, 1.0))  # Slurm killed them


@pytest.mark.parametrize(
    ("by_slurm", "ends", "confidence"),
    [(True, {}, HIGH), (True, told(5, KILL), HIGH), (False, OF_FIRST_NODE, MEDIUM)],
    ids=["Slurm names it", "Slurm names it, and it told its ends later", "no end of its tasks"],
)
def test_the_node_that_failed_is_named_though_all_data_are_there(
    by_slurm: bool, ends: Ends, confidence: str
) -> None:
    job = processes()
    node = job[-1].facts.node
    card = reported(job, ends, replace(LOST, failed_node=node if by_slurm else ""))
    assert accused(card) == {node}, card.findings
    assert card.verdict.status == CRASHED
    assert card.verdict.confidence == confidence
    assert card.verdict.summary == f"node {node} failed, so Slurm ended the job"
    assert card.exit_code == EXIT_CRITICAL
    assert read_comment(make_comment(card)).status == CRASHED


@pytest.mark.parametrize(
    ("ends", "record"),
    [
        ({}, LOST),
        (dict.fromkeys(range(8), (KILL, 1.0)), LOST),
        (OF_FIRST_NODE, replace(LOST, failed_node="elsewhere")),
        (OF_FIRST_NODE, replace(LOST, state="CANCELLED")),
        (OF_FIRST_NODE, replace(LOST, state="CANCELLED", failed_node="nodeb")),
    ],
    ids=["no end was recorded", "all were", "Slurm names another one", "cancelled", "and earlier"],
)
def test_no_node_is_named_if_it_is_not_certain_that_it_failed(
    ends: Ends, record: JobRecord
) -> None:
    card = reported(processes(), ends, record)
    assert not accused(card)
    assert "failed, so Slurm" not in card.verdict.summary
