# SPDX-License-Identifier: Apache-2.0
"""Whom the report names, and when it names nobody."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.errors import InspectorError
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CANNOT_TELL,
    CRITICAL,
    DEGRADED,
    FAILED,
    HEALTHY,
    MEDIUM,
    WARNING,
    Evidence,
    Finding,
    Hang,
    Severity,
    Verdict,
)
from nccl_inspector.model.process import COMM_FOLDED, FUNCS, Process
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.verdict import judge
from nccl_inspector.summary.attempts import Loaded, load_summaries
from nccl_inspector.summary.codec import NodeSummary
from tests.support.boxes import BoxOf, CommOf, KeyOf, write_box
from tests.support.summaries import FIRST, read_process, text_of, times, write_summary
from tests.support.synthetic.jobs import Model, flat_job, parallel_job, through_summaries

ALL_TO_ALL = FUNCS.index("AlltoAll")


def processes_of(folder: Path, boxes: Iterable[BoxOf]) -> list[Process]:
    return [read_process(write_box(folder, f"0_{n}", box)) for n, box in enumerate(boxes)]


def report(processes: list[Process], nodes: int = 4) -> str:
    """The report of processes that lie on n1 up to `nodes`, in turn."""
    share = len(processes) // nodes
    summaries = [
        NodeSummary(replace(FIRST, node=f"n{n + 1}"), tuple(processes[n * share : (n + 1) * share]))
        for n in range(nodes)
    ]
    return " ".join(text_of(summaries).split())


def judged(
    findings: Sequence[Finding], state: str = "", hangs: Sequence[Hang] = (),
    dismissed_share: float = 0.0,
) -> Verdict:  # fmt: skip
    """The verdict of a job of an hour that was measured, and in which nobody was slow."""
    return judge(
        ending=Ending(state), no_data="", most_missing=False, findings=findings, hangs=hangs,
        wall_s=3600.0, waiting_share=0.01,
        sampled=Judged(seen=True, seconds=100.0, dismissed_share=dismissed_share),
    )  # fmt: skip


def test_processes_of_one_task_are_named_by_their_rank_in_the_communicator(tmp_path: Path) -> None:
    boxes = [
        BoxOf([CommOf(7, rank, 8, 4, "world")], [KeyOf(0, times(5))],
                  procid=rank // 2, state=1 if rank == 3 else 2)
        for rank in range(8)
    ]  # fmt: skip
    text = report(processes_of(tmp_path, boxes))
    assert "up to the last event: rank 3 of world (n2)" in text


def test_processes_of_several_steps_say_their_step(tmp_path: Path) -> None:
    boxes = [
        BoxOf([CommOf(7 + step, rank, 4, 4, "world")], [KeyOf(0, times(5))],
                  procid=rank, state=1 if rank == 1 else 2, header={"step_id": step})
        for step in (0, 1)
        for rank in range(4)
    ]  # fmt: skip
    text = report(processes_of(tmp_path, boxes))
    assert "4 nodes, 8 processes in 2 steps" in text
    assert "step 0 rank 1" in text
    assert "step 1 rank 1" in text


def test_folded_communicators_accuse_nobody(tmp_path: Path) -> None:
    boxes = [
        BoxOf([CommOf(rank, rank, nranks, 1, name, COMM_FOLDED)], [KeyOf(0, times(ms))],
                  procid=rank)
        for rank, (ms, nranks, name) in enumerate(
            [(5, 4, ""), (30, 4, ""), (31, 4, ""), (30, 0, "(others)")]
        )
    ]  # fmt: skip
    text = report(processes_of(tmp_path, boxes))
    assert "CANNOT TELL" in text
    assert "odd" not in text
    assert "(others)" in text


def test_ranks_with_other_operations_are_not_compared(tmp_path: Path) -> None:
    few, many = times(5, 6), times(7, 1000)
    boxes = [
        BoxOf([CommOf(7, rank, 2)], [KeyOf(0, each)], procid=rank)
        for rank, each in enumerate([many, few])
    ]
    text = report(processes_of(tmp_path, boxes), 2)
    assert "CANNOT TELL" in text
    assert "ranks have 6 to 1000 operations" in text


def test_a_job_without_exact_records_is_told_what_is_missing_and_how_much_it_waited(
    tmp_path: Path,
) -> None:
    boxes = [
        BoxOf([CommOf(7, rank, 8, 4)], [KeyOf(0, times(5 if rank == 3 else 500, 100))], procid=rank)
        for rank in range(8)
    ]
    text = report(processes_of(tmp_path, boxes))
    assert "CANNOT TELL, low confidence: nothing slow was found, but a slow rank" in text
    assert "no process has exact records of its operations" in text
    assert "99% of the ranks' time in collectives was waiting" in text
    assert "rank 3" not in text


@pytest.mark.long
def test_of_parallel_groups_the_late_rank_is_named_and_those_that_waited_with_it_are_not() -> None:
    healthy, job = (
        parallel_job(Model(4, 2, 1), 1, late, 1700, sampled=True) for late in ({}, {5: 1e6})
    )
    card = build_card(Loaded(tuple(healthy.summaries()), (0,), ()))
    assert (card.verdict.status, card.stragglers) == (HEALTHY, ())
    card = build_card(Loaded(tuple(job.summaries()), (0,), ()))
    assert (card.verdict.status, [one.rank for one in card.stragglers]) == (DEGRADED, ["rank 5"])
    true_share = 1 - max(healthy.clock_ns) / max(job.clock_ns)
    assert card.verdict.cost_share == pytest.approx(true_share, rel=0.05)
    assert {one.waited_for for one in card.operations} == {"", "rank 5"}


def test_what_cannot_be_judged_is_said(tmp_path: Path) -> None:
    boxes = [
        BoxOf([CommOf(7, rank, 4)], [KeyOf(0, times(ms), ALL_TO_ALL)], procid=rank)
        for rank, ms in enumerate([5, 500, 5, 5])
    ]
    assert "CANNOT TELL" in report(processes_of(tmp_path, boxes))


def test_a_time_that_waiting_is_in_has_no_share_of_waiting(tmp_path: Path) -> None:
    boxes = [
        BoxOf([CommOf(7, rank, 4)],
              [KeyOf(0, times(ms), ALL_TO_ALL), KeyOf(0, times(5), func=1)], procid=rank)
        for rank, ms in enumerate([5, 500, 5, 5])
    ]  # fmt: skip
    summary = NodeSummary(FIRST, tuple(processes_of(tmp_path, boxes)))
    card = build_card(Loaded((summary,), (0,), ()))
    found = {one.func: (one.waiting_included, one.waiting_share) for one in card.operations}
    assert found["AlltoAll"] == (True, None)
    included, share = found["AllReduce"]
    assert not included
    assert share == pytest.approx(0.0, abs=0.02)


def test_one_rank_of_many_gives_no_verdict(tmp_path: Path) -> None:
    one = processes_of(tmp_path, [BoxOf([CommOf(7, 0, 8, 4)], [KeyOf(0, times(5))])])
    assert "CANNOT TELL" in report(one, 1)


def test_a_job_id_that_came_again_is_not_mixed_with_the_first(tmp_path: Path) -> None:
    box = BoxOf([CommOf(7, 0, 2)], [KeyOf(0, times(5))])
    each = tuple(processes_of(tmp_path, [box]))
    place = tmp_path / "42"
    write_summary(place, NodeSummary(replace(FIRST, cluster="old", node="n1", start=10), each))
    write_summary(place, NodeSummary(replace(FIRST, cluster="old", node="n2", start=10), each))
    bob = replace(FIRST, user="bob", uid=7, cluster="new", node="n1", nodelist="n1", start=99)
    write_summary(place, NodeSummary(bob, each))
    loaded = load_summaries(42, tmp_path, None)
    assert [summary.head.user for summary in loaded.summaries] == ["bob"]
    assert "n2: its summary is of another job of this number" in loaded.problems[0]


def test_a_summary_with_endless_keys_is_refused(tmp_path: Path) -> None:
    box = BoxOf([CommOf(7, 0, 2)], [KeyOf(0, times(5))])
    (one,) = processes_of(tmp_path, [box])
    many = replace(one, keys=[*one.keys] * 1100)
    write_summary(tmp_path / "42", NodeSummary(FIRST, (many,)))
    with pytest.raises(InspectorError, match="too many rows"):
        load_summaries(42, tmp_path, None)


def test_a_job_of_which_half_was_not_measured_is_not_called_healthy() -> None:
    processes = flat_job(1, {}, 200, 4, sampled=True).processes()

    def status(seen: int) -> str:
        summaries = through_summaries(processes[:seen])
        return build_card(Loaded(tuple(summaries), (0,), ())).verdict.status

    assert status(4) == HEALTHY
    assert status(2) == CANNOT_TELL


def test_that_nobody_cost_anything_is_said_only_if_all_lateness_together_is_small() -> None:
    assert judged([], dismissed_share=0.009).summary.startswith("no rank and no link cost the job")
    uneven = judged([], dismissed_share=0.03)
    assert uneven.status == HEALTHY
    assert "no rank" not in uneven.summary
    assert "the ranks waited for each other for 3% of the time" in uneven.summary


@pytest.mark.parametrize("severity", [WARNING, CRITICAL])
def test_counters_alone_make_no_job_degraded(severity: Severity) -> None:
    rose = Finding(
        rules.HARDWARE_PORT.id, severity, MEDIUM, "n1 mlx5_0/1: local_ack_timeout_err rose", "",
        evidence=(Evidence("counters", "local_ack_timeout_err", 41, "events"),),
    )  # fmt: skip
    assert judged([rose]).status == HEALTHY


def test_a_gpu_that_failed_in_a_job_that_failed_is_what_it_failed_of() -> None:
    fell = Finding(
        rules.HARDWARE_XID.id, CRITICAL, MEDIUM, "n1 GPU3: XID 79, GPU fell off the bus", "",
        evidence=(Evidence("counters", "XID 79", 1, "events"),),
    )  # fmt: skip
    assert judged([fell], state="FAILED").status == FAILED
