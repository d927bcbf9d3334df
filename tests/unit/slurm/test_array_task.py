# SPDX-License-Identifier: Apache-2.0
"""A task of an array is found by the name that its user knows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_inspector.commands.report import report
from nccl_inspector.errors import InspectorError
from nccl_inspector.slurm.array_task import find_array_task
from nccl_inspector.slurm.job_record import ACCOUNTING, JobRecord
from nccl_inspector.summary.codec import encode
from tests.support.summaries import HEAD


def put(place: Path, job_id: int, task: str) -> None:
    folder = place / str(job_id)
    folder.mkdir()
    head = replace(HEAD, job_id=job_id, array_task=task)
    (folder / "n1.0.nodesummary").write_bytes(encode(head, []))


def test_a_task_is_found_among_its_neighbours(tmp_path: Path) -> None:
    for job_id, task in ((809, "810_3"), (810, "810_9"), (812, "810_2"), (813, "810_3"), (900, "")):
        put(tmp_path, job_id, task)
    (tmp_path / "lost+found").mkdir()
    assert find_array_task("810_3", tmp_path) == (813, False)
    assert find_array_task("810_9", tmp_path) == (810, False)


def test_what_two_jobs_say_of_themselves_is_not_believed(tmp_path: Path) -> None:
    put(tmp_path, 813, "810_3")
    put(tmp_path, 820, "810_3")
    with pytest.raises(InspectorError, match="several jobs say that they are 810_3: 813, 820"):
        find_array_task("810_3", tmp_path)


@pytest.mark.parametrize("task", ["810", "810_03", "810_x", "0_1", "810_3; x"])
def test_a_name_that_is_none_is_refused(task: str, tmp_path: Path) -> None:
    with pytest.raises(InspectorError, match="not a task"):
        find_array_task(task, tmp_path)


def test_a_task_without_a_report_is_said(tmp_path: Path) -> None:
    with pytest.raises(InspectorError, match="no report of 810_3"):
        find_array_task("810_3", tmp_path)
    with pytest.raises(InspectorError, match="No such file"):
        find_array_task("810_3", tmp_path / "none")


def test_what_slurm_says_comes_before_what_jobs_say_of_themselves(tmp_path: Path) -> None:
    """Job 820 is somebody else's: its processes claim to be a task that Slurm knows as 813."""
    put(tmp_path, 820, "810_3")
    assert find_array_task("810_3", tmp_path, {"810_3": 813}.get) == (813, True)
    assert find_array_task("810_3", tmp_path, {"810_9": 900}.get) == (820, False)


def test_the_command_asks_slurm_which_job_a_task_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job 813 is the task by Slurm and says nothing; job 820 claims to be it."""
    put(tmp_path, 813, "")
    put(tmp_path, 820, "810_3")
    known = JobRecord(813, array_job_id=810, array_task_id=3, sources=(ACCOUNTING,))
    monkeypatch.setattr("nccl_inspector.slurm.find_record.find_record", lambda *_asked: (known, ()))
    words = ["810_3", "--report-dir", str(tmp_path), "--json"]
    by_slurm = json.loads(CliRunner().invoke(report, words).stdout)
    assert by_slurm["job"]["job_id"] == 813
    assert "only says of itself" not in str(by_slurm)
    # What Slurm answers about another job is no answer.
    monkeypatch.setattr(
        "nccl_inspector.slurm.find_record.find_record",
        lambda *_asked: (JobRecord(810, array_job_id=810, sources=(ACCOUNTING,)), ()),
    )
    by_claim = CliRunner().invoke(report, words).stdout
    assert json.loads(by_claim)["job"]["job_id"] == 820
    assert "Slurm does not know 810_3: job 820 only says of itself that it is that" in by_claim
    assert "job 820 only says of itself" in CliRunner().invoke(report, words[:-1]).stdout
