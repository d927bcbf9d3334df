# SPDX-License-Identifier: Apache-2.0
"""Findings about stragglers, hangs and the measurement itself: right words, no made-up figure."""

from dataclasses import replace

import pytest

from nccl_inspector.analysis.clocks import Clock, silences_ns
from nccl_inspector.analysis.coverage import find_coverage
from nccl_inspector.analysis.hang.describe import HungJob, describe_hangs
from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.hang.unmeasured import Ends, find_unmeasured
from nccl_inspector.analysis.places import Places
from nccl_inspector.model.card import (
    CRITICAL,
    HANG_VERDICTS,
    HIGH,
    INFO,
    LOW,
    MEDIUM,
    WARNING,
    Finding,
    Hang,
    LastCall,
    Period,
)
from nccl_inspector.model.process import DENIED, DISABLED, FINALIZED, KILLED, RCCL, Process
from tests.support.boxes import NOW_NS
from tests.support.synthetic.jobs import flat_job

S = 10**9
SAME_CLOCK = Clock(0.0, 0.0)
FAILED_END = Ending("FAILED", NOW_NS / S + 100)
HANG = Hang("0x5e", 1841, "AllReduce", 1000.0, 2220.0, "divergent", ("rank 0", "rank 1"),
            never_issued=("rank 2",), roots=("rank 2",))  # fmt: skip


def processes_of(*states: str) -> list[Process]:
    """Return processes that ended so, their last beat at the same time."""
    found = flat_job(1, {}, 4, len(states)).processes()
    return [
        replace(one, facts=replace(one.facts, state=state, beat_ns=NOW_NS + 100 * S))
        for one, state in zip(found, states, strict=True)
    ]


def unmeasured(
    processes: list[Process],
    missing: tuple[str, ...] = (),
    expected: int | None = None,
    ending: Ending = FAILED_END,
    clock: Clock = SAME_CLOCK,
) -> tuple[Finding, ...]:
    """Return the findings of processes that are each on a node of its own."""
    names = [f"rank {number}" for number in range(len(processes))]
    placed = [(f"n{number}", one) for number, one in enumerate(processes)]
    clocks = {node: clock for node, _ in placed}
    ends = Ends(
        Places(placed, names, {}), ending, silences_ns(placed, clocks, ending.until_ns),
        2 * clock.error_ns,
    )  # fmt: skip
    coverage = find_coverage(processes, names)
    return find_unmeasured(processes, names, coverage, missing, expected, ends)


def hang_findings(*hangs: Hang, ending: Ending = FAILED_END) -> list[Finding]:
    """Return the findings of hangs of three ranks, of which each has a node of its own."""
    processes = flat_job(1, {}, 4, 3).processes()
    placed = [
        (f"n{number}", replace(one, facts=replace(one.facts, pid=4700 + number)))
        for number, one in enumerate(processes)
    ]
    names = [f"rank {number}" for number in range(3)]
    job = HungJob(Places(placed, names, {}), ending, 42, {"0x5e": "dp", "0x7": "tp"})
    return list(describe_hangs(hangs, job))


def test_a_hang_is_told_with_who_did_what_last_and_who_waits_where() -> None:
    last = LastCall("rank 2", "0x5e", 1840, "ReduceScatter", 1_785_655_476.0)
    (finding,) = hang_findings(replace(HANG, last=(last,)))
    assert finding.title == (
        "rank 2 (n2 GPU2, pid 4702) stopped calling NCCL at 07:24:36, after ReduceScatter 1840 of "
        "dp; 2 other ranks waited 37 min in AllReduce 1841 and gave up"
    )
    assert finding.severity == CRITICAL
    assert finding.period == Period(1000.0, 3220.0)
    (culprit, comm) = finding.entities
    assert (culprit.name, culprit.node, culprit.gpu, culprit.pid) == ("rank 2", "n2", "GPU2", 4702)
    assert culprit.gpu_uuid
    assert (comm.kind, comm.name) == ("communicator", "dp")
    assert [one.name for one in finding.victims] == ["rank 0", "rank 1"]
    assert finding.cost_s == 2220.0
    assert finding.next == (
        "ssh n2 \"journalctl --utc --no-pager --since '2026-08-02 07:23:36 UTC' --until "
        "'2026-08-02 07:25:36 UTC'\""
    )


def test_while_the_job_runs_the_stack_of_the_culprit_can_be_seen() -> None:
    (finding,) = hang_findings(HANG, ending=Ending("RUNNING"))
    assert finding.next == ("srun --jobid=42 --overlap -N1 -n1 -w n2 py-spy dump --pid 4702")


def test_an_operation_of_the_kind_of_the_last_one_is_told_by_its_number_alone() -> None:
    last = LastCall("rank 2", "0x5e", 1840, "AllReduce", 1_785_655_476.0)
    (finding,) = hang_findings(replace(HANG, last=(last,), waiting=("rank 0",)))
    assert finding.title.endswith(
        "after AllReduce 1840 of dp; 1 other rank waited 37 min in 1841 and gave up"
    )


def test_one_root_is_one_finding_however_many_communicators_stand() -> None:
    others = [replace(HANG, communicator=hex(n), verdict="blocked") for n in range(5)]
    (finding,) = hang_findings(HANG, *others)
    assert finding.severity == CRITICAL
    assert finding.title.startswith("rank 2 (n2 GPU2, pid 4702) never called AllReduce 1841 of dp")
    assert "5 other communicators stand behind it" in finding.detail


def test_a_deadlock_names_those_in_the_other_order_and_where_they_are() -> None:
    last = LastCall("rank 2", "0x7", 17, "AllGather", 1000.0)
    (finding,) = hang_findings(replace(HANG, verdict="deadlock", last=(last,)))
    assert finding.title == (
        "rank 2 (n2 GPU2, pid 4702) is in AllGather 17 of tp, "
        "2 others are in AllReduce 1841 of dp: communicators used in different orders"
    )
    assert "SUBSYS=COLL" in finding.next


def test_what_called_something_else_is_told_with_what_it_called() -> None:
    last = LastCall("rank 2", "0x5e", 1841, "AllGather", 1000.0)
    (finding,) = hang_findings(replace(HANG, verdict="mismatched", last=(last,)))
    assert "called AllGather 1841 of dp, not AllReduce 1841 of dp" in finding.title


def test_a_hang_that_is_only_suspected_is_no_critical_one() -> None:
    (finding,) = hang_findings(replace(HANG, confirmed=False))
    assert (finding.severity, finding.confidence, finding.cost_s) == (WARNING, LOW, None)
    assert finding.title.startswith("perhaps hung: ")
    assert "it might have ended, had the job gone on" in finding.detail


@pytest.mark.parametrize("verdict", ["transport", "network", "blocked"])
def test_who_waits_in_what_nobody_comes_out_of_is_a_victim_and_not_accused(verdict: str) -> None:
    hang = replace(HANG, verdict=verdict, roots=(), never_issued=(), not_started=("rank 2",))
    (finding,) = hang_findings(hang)
    assert [one.kind for one in finding.entities] == ["communicator"]
    assert len(finding.victims) == 2
    assert finding.title.startswith("2 ranks ")


def test_what_is_queued_behind_an_operation_that_nobody_leaves_is_no_finding_of_its_own() -> None:
    stuck = replace(HANG, verdict="transport", roots=(), never_issued=())
    behind = replace(stuck, communicator="0x5f", verdict="blocked", not_started=("rank 0",))
    (finding,) = hang_findings(stuck, behind)
    assert finding.rule == "hang-transport"


@pytest.mark.parametrize("verdict", HANG_VERDICTS)
@pytest.mark.parametrize("known", [True, False], ids=["known", "nobody known"])
def test_every_kind_of_hang_has_a_subject_and_something_to_do(verdict: str, known: bool) -> None:
    hang = replace(HANG, verdict=verdict)
    if not known:
        hang = replace(hang, roots=(), waiting=(), never_issued=())
    (finding,) = hang_findings(hang)
    assert " " not in finding.rule
    assert finding.actions[0]
    assert finding.next
    assert finding.title.startswith("rank 2 (n2" if known else "nobody that was measured")
    assert ", 0 other" not in finding.title


def test_what_waits_for_ranks_without_a_box_is_one_finding_about_these() -> None:
    lost = replace(HANG, communicator="0x7", verdict="dead or not measured", never_issued=(),
                   roots=(), not_measured=("rank 5 of world",))  # fmt: skip
    behind = replace(HANG, verdict="blocked", roots=(), waiting=(), never_issued=())
    (finding,) = hang_findings(behind, lost)
    assert finding.title.startswith("rank 5 of world is not measured and may not have come to")
    assert finding.confidence == LOW


def died(rank: int, before_s: int, processes: list[Process]) -> None:
    facts = replace(processes[rank].facts, beat_ns=NOW_NS + (100 - before_s) * S)
    processes[rank] = replace(processes[rank], facts=facts)


def test_the_rank_that_died_first_is_named() -> None:
    processes = processes_of(KILLED, KILLED, KILLED, KILLED)
    died(2, 60, processes)
    died(1, 30, processes)
    (finding,) = unmeasured(processes)
    assert finding.severity == CRITICAL
    assert finding.title == "rank 2 (n2 GPU2, pid 3) died 60 s before the last process, and 1 other"
    assert [one.name for one in finding.entities] == ["rank 2", "rank 1"]
    assert finding.next.startswith('ssh n2 "journalctl')


@pytest.mark.parametrize("state", ["TIMEOUT", "CANCELLED", "PREEMPTED", ""])
def test_who_ended_at_the_first_signal_of_a_time_limit_did_not_die_first(state: str) -> None:
    """KillWait: who handles SIGTERM ends at once, the others 25 s later by SIGKILL."""
    processes = processes_of(KILLED, KILLED, KILLED, KILLED)
    died(2, 25, processes)
    (finding,) = unmeasured(processes, ending=Ending(state, NOW_NS / S + 74 if state else None))
    assert finding.severity == INFO


@pytest.mark.parametrize(("code", "signal"), [(124, 0), (143, 0), (0, 15)])
def test_a_time_limit_of_the_users_own_is_one_like_slurms(code: int, signal: int) -> None:
    processes = processes_of(KILLED, KILLED, KILLED, KILLED)
    died(2, 25, processes)
    assert unmeasured(processes, ending=Ending("FAILED", None, 1, 0))[0].severity == CRITICAL
    (finding,) = unmeasured(processes, ending=Ending("FAILED", None, code, signal))
    assert finding.severity == INFO


def test_a_kill_wait_of_minutes_names_nobody_where_slurm_says_when_it_began() -> None:
    processes = processes_of(KILLED, KILLED, KILLED, KILLED)
    died(2, 300, processes)
    began_s = NOW_NS / S + 100 - 300
    (finding,) = unmeasured(processes, ending=Ending("TIMEOUT", began_s))
    assert finding.severity == INFO


def test_who_died_long_before_a_time_limit_is_named() -> None:
    processes = processes_of(KILLED, KILLED, KILLED, KILLED)
    died(2, 900, processes)
    (finding,) = unmeasured(processes, ending=Ending("TIMEOUT", NOW_NS / S + 75))
    assert (finding.severity, finding.entities[0].name) == (CRITICAL, "rank 2")


def test_a_failed_node_makes_nobody_who_died_with_it_guilty() -> None:
    processes = processes_of(KILLED, KILLED, KILLED)
    died(2, 300, processes)
    (finding,) = unmeasured(processes, ending=Ending("NODE_FAIL", NOW_NS / S + 100))
    assert finding.severity == INFO


def test_nodes_whose_clocks_are_not_known_well_are_compared_no_better() -> None:
    processes = processes_of(KILLED, KILLED, KILLED)
    died(2, 30, processes)
    assert unmeasured(processes)[0].severity == CRITICAL
    assert unmeasured(processes, clock=Clock(0.0, 10e9))[0].severity == INFO
    died(2, 60, processes)
    (finding,) = unmeasured(processes, clock=Clock(0.0, 10e9))
    assert finding.severity == CRITICAL
    assert "died 40 s before the last process" in finding.title
    assert "It may have been up to 60 s before: the nodes' clocks tell no better." in finding.detail
    died(2, 900, processes)
    (finding,) = unmeasured(processes, clock=Clock(0.0, 10e9))
    assert "clocks" not in finding.detail


def test_a_job_that_was_killed_as_a_whole_has_nobody_to_blame() -> None:
    (finding,) = unmeasured(processes_of(KILLED, KILLED))
    assert finding.severity == INFO
    assert "cancelled" in finding.detail


def test_ranks_that_left_in_disorder_when_others_ended_are_a_warning() -> None:
    (finding,) = unmeasured(processes_of(KILLED, FINALIZED, FINALIZED))
    assert finding.severity == WARNING
    assert finding.title == "1 process of 3 did not end in order"


def test_a_job_that_ended_well_and_whole_has_nothing_to_say() -> None:
    assert unmeasured(processes_of(FINALIZED, FINALIZED), expected=2) == ()


def test_what_is_missing_is_a_warning_with_its_nodes() -> None:
    (finding,) = unmeasured(processes_of(FINALIZED), missing=("n2", "n3"), expected=3)
    assert finding.title == "no data of 2 ranks and 2 nodes"
    assert [one.name for one in finding.entities] == ["n2", "n3"]


@pytest.mark.parametrize(("lost", "severity"), [(1, WARNING), (0, None)])
def test_drops_are_told_by_their_share(lost: int, severity: str | None) -> None:
    (one,) = processes_of(FINALIZED)
    found = unmeasured([replace(one, dropped=(lost, *one.dropped[1:]))])
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_silence_is_told_with_how_long_it_was() -> None:
    one, two = processes_of(FINALIZED, FINALIZED)
    denied = replace(one, facts=replace(one.facts, silent=DENIED, silent_ns=S))
    off = replace(two, facts=replace(two.facts, silent=DISABLED, silent_ns=90 * S))
    foreign = replace(one, facts=replace(one.facts, silent=RCCL, silent_ns=S))
    (finding,) = unmeasured([foreign])
    assert finding.title == "1 process with RCCL 2.30.7 not measured: RCCL is not supported yet"
    found = unmeasured([denied, off])
    assert [(finding.rule, finding.severity) for finding in found] == [
        ("no-times", WARNING), ("silent", INFO),
    ]  # fmt: skip
    assert "For up to 90 s." in found[1].detail
    assert all(finding.confidence in (HIGH, MEDIUM) for finding in found)
