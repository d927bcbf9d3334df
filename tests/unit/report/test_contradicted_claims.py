# SPDX-License-Identifier: Apache-2.0
"""What a job's processes claim, and Slurm says otherwise."""

from dataclasses import replace

import pytest

from nccl_inspector.analysis.claims import RANKS_MAX
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.contradicted_claims import allocation_of, believable
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.slurm.job_record import ACCOUNTING, SUMMARY, JobRecord
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import NodeSummary
from tests.support.summaries import HEAD

CLAIMS = Loaded((NodeSummary(replace(HEAD, array_task="100_3"), ()),), (0,), ())
NO_TASK = JobRecord(42, num_nodes=4, tasks=8, gpus=32, sources=(ACCOUNTING, SUMMARY))
A_TASK = replace(NO_TASK, array_job_id=40, array_task_id=2)


@pytest.mark.parametrize(
    ("record", "task", "said"),
    [
        (NO_TASK, "", "the job is 100_3; Slurm says that it is no task of an array"),
        (A_TASK, "40_2", "the job is 100_3; Slurm says that it is 40_2"),
    ],
)
def test_a_claimed_array_task_that_slurm_contradicts_is_said_and_not_shown(
    record: JobRecord, task: str, said: str
) -> None:
    card = build_card(CLAIMS, JobContext(record))
    assert card.job.array_task == task
    assert [one for one in card.data_quality.missing if said in one]


@pytest.mark.parametrize("record", [None, replace(NO_TASK, sources=(SUMMARY,))])
def test_a_claimed_array_task_is_shown_where_slurm_says_nothing(record: JobRecord | None) -> None:
    card = build_card(CLAIMS, JobContext(record))
    assert card.job.array_task == "100_3"
    assert not [one for one in card.data_quality.missing if "100_3" in one]


def test_a_claim_that_slurm_confirms_is_no_problem() -> None:
    same = replace(NO_TASK, array_job_id=100, array_task_id=3)
    assert believable(CLAIMS, JobContext(same)).problems == ()


def test_the_size_of_a_job_is_slurms() -> None:
    assert allocation_of(CLAIMS, JobContext()).ranks_max == 4 * 256
    assert allocation_of(CLAIMS, JobContext(replace(NO_TASK, tasks=5000))).ranks_max == 5000
    # JSON lines may be of a part of the nodes, and a run without Slurm is of no known size.
    assert allocation_of(CLAIMS, JobContext(from_boxes=False)).ranks_max == RANKS_MAX
    own = replace(CLAIMS.summaries[0], head=replace(HEAD, job_id=0))
    assert allocation_of(Loaded((own,), (0,), ()), JobContext()).ranks_max == RANKS_MAX
