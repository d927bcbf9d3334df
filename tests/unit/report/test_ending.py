# SPDX-License-Identifier: Apache-2.0
"""Whole reports of jobs that were ended, and of jobs that ended themselves."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nccl_inspector.model.card import CRASHED, FAILED, HUNG, PERHAPS_HUNG, Card
from nccl_inspector.model.process import Process
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.slurm.job_record import JobRecord
from nccl_inspector.summary.attempts import Loaded
from tests.support.boxes import NOW_NS
from tests.support.synthetic.jobs import through_summaries
from tests.support.synthetic.standstill import STOOD_NS
from tests.unit.report.hung_jobs import RANKS, hung_processes

S = 10**9


def processes(stops: int | None = None, age_s: int | None = None) -> list[Process]:
    """Return a job of two nodes, at work, or in which rank 5 called nothing for so long."""
    return hung_processes(stops, NOW_NS - (age_s * S if age_s else STOOD_NS))


def ahead(process: Process, by_s: float) -> Process:
    """Return what a node says whose clock is so far ahead."""
    by_ns = round(by_s * S)
    comms = tuple(
        replace(one, created_ns=one.created_ns + by_ns,
                last_progress_ns=one.last_progress_ns + by_ns)
        for one in process.comms
    )  # fmt: skip
    facts = replace(process.facts, beat_ns=process.facts.beat_ns + by_ns)
    return replace(process, comms=comms, facts=facts)


def card_of(found: Sequence[Process], state: str, end_s: int | None = None) -> Card:
    record = JobRecord(42, state=state, end_s=end_s, sources=("sacct",))
    loaded = Loaded(tuple(through_summaries(found)), (0,), ())
    return build_card(loaded, JobContext(record=record))


@pytest.mark.parametrize("off_s", [30.0, -30.0, 300.0])
@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "CANCELLED"])
def test_a_node_whose_clock_is_off_has_no_process_that_died_first(off_s: float, state: str) -> None:
    found = [ahead(one, off_s) if one.facts.node == "n2" else one for one in processes()]
    card = card_of(found, state)
    assert [one.severity for one in card.findings if one.rule == "killed"] == ["I"]
    assert (card.verdict.status == FAILED) == (state == "FAILED")
    assert card.verdict.confidence == "low" or card.verdict.status != FAILED


def test_a_job_that_its_time_limit_ended_has_not_failed_by_who_was_the_first_to_go() -> None:
    found = [
        replace(one, facts=replace(one.facts, beat_ns=NOW_NS - 25 * S)) if rank % 3 else one
        for rank, one in enumerate(processes())
    ]
    assert card_of(found, "TIMEOUT", NOW_NS // S - 26).verdict.status != FAILED


def test_a_process_that_died_first_in_a_job_that_failed_is_what_it_failed_of() -> None:
    found = processes(stops=40)
    early = replace(found[5].facts, beat_ns=NOW_NS - STOOD_NS + 5 * S)
    found[5] = replace(found[5], facts=early, operations=())
    card = card_of(found, "FAILED")
    assert card.verdict.status == CRASHED
    assert "rank 5 (n2 GPU5, pid 6) died" in card.verdict.summary


def test_a_hang_is_told_to_the_end() -> None:
    card = card_of(processes(stops=40), "TIMEOUT", NOW_NS // S)
    assert card.verdict.status == HUNG
    hang = next(one for one in card.findings if one.rule == "hang-divergent")
    assert "rank 5 (n2 GPU5, pid 6) stopped calling NCCL at " in hang.title
    assert hang.title.endswith(
        ", after AllReduce 40 of dp; 7 other ranks waited 20 min in 41 until the job reached its "
        "time limit"
    )
    culprit = hang.entities[0]
    assert (culprit.node, culprit.gpu, culprit.gpu_uuid) == ("n2", "GPU5", "GPU-00000005")
    assert len(hang.victims) == RANKS - 1
    text = " ".join(render_text(card).split())
    assert "next: ssh n2" in text
    assert "held up: rank 0, rank 1" in text


def test_a_job_that_was_ended_in_a_long_pause_is_only_perhaps_hung() -> None:
    """Rank 5 may have written a checkpoint when the time was over."""
    card = card_of(processes(stops=40, age_s=90), "TIMEOUT", NOW_NS // S)
    assert card.verdict.status == PERHAPS_HUNG
    assert card.verdict.summary.startswith("rank 5 (n2 GPU5, pid 6) stopped calling NCCL at ")
    assert card.exit_code == 1
    assert card_of(processes(stops=40, age_s=90), "FAILED").verdict.status == HUNG
