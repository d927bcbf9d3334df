# SPDX-License-Identifier: Apache-2.0
"""The verdict in the job's AdminComment, by a scontrol and a sacctmgr of our own."""

from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.controller import report_child
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.settings.config import Config
from tests.support.queued_jobs import enqueue, left, run_pass, stored, summarize

SCONTROL = """#!/bin/sh
echo "$*" >>{log}
case $1 in
--oneliner) {show} ;; update) {update} ;; --noheader) {sacct} ;; -i) {modify} ;; esac
"""


def comment(
    config: Config, folder: Path, show: str = "echo JobId=42", update: str = ":", modify: str = ":",
    *, sacct: str = ":", more: str = "", ended: bool = True,
) -> str:  # fmt: skip
    """One pass with a scontrol and a sacctmgr that say this; what they were asked."""
    log = folder / "log"
    for name in ("scontrol", "sacct", "sacctmgr"):
        text = SCONTROL.format(log=log, show=show, update=update, modify=modify, sacct=sacct)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    if ended:
        enqueue(config, 42, more)
        summarize(config, folder / "42", 42)
    changed = replace(config, scontrol=folder / "scontrol", admin_comment=True)
    run_pass(changed, usual_makers(config))
    return log.read_text()


def test_the_verdict_goes_into_the_admin_comment(config: Config, tmp_path: Path) -> None:
    asked = comment(config, tmp_path)
    assert "update JobId=42 AdminComment=NCCL CANNOT TELL: " in asked
    assert " -- NCCL CANNOT_TELL " in asked
    assert " ranks=2/2 " in asked
    assert left(config) == []


def test_a_comment_that_could_not_be_written_comes_with_the_next_try(
    config: Config, tmp_path: Path
) -> None:
    asked = comment(config, tmp_path, update="echo Unable to contact slurm controller >&2; exit 1")
    assert asked.count("update") == 1
    again = comment(config, tmp_path, ended=False)
    assert again.count("update") == 2
    assert left(config) == []


def test_a_comment_is_not_tried_for_ever(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_child, "COMMENT_WAIT_S", 10)  # the job ended a minute ago
    comment(config, tmp_path, update=FINISHED, modify="echo ' Nothing modified'; exit 1")
    assert left(config) == []
    assert stored(config) == [42]


def test_somebody_elses_comment_stays(config: Config, tmp_path: Path) -> None:
    asked = comment(config, tmp_path, "echo JobId=42 AdminComment=JS1:abc Comment=x")
    assert "update" not in asked
    assert left(config) == []


FINISHED = "echo Job has already finished for job 42 >&2; exit 1"
NO_ACCOUNTING = "echo You are not running a supported accounting_storage plugin >&2; exit 1"


def test_where_slurmctld_changes_no_ended_job_the_database_is_asked(
    config: Config, tmp_path: Path
) -> None:
    asked = comment(config, tmp_path, update=FINISHED)
    assert "-i modify job where jobid=42 set AdminComment=NCCL CANNOT TELL: " in asked
    assert left(config) == []


def test_a_comment_in_the_database_that_is_somebody_elses_stays(
    config: Config, tmp_path: Path
) -> None:
    forgotten = "echo Invalid job id specified >&2; exit 1"
    asked = comment(config, tmp_path, show=forgotten, sacct="echo JS1:abc")
    assert "modify" not in asked


def test_a_comment_of_our_own_in_the_database_is_renewed(config: Config, tmp_path: Path) -> None:
    asked = comment(config, tmp_path, update=FINISHED, sacct="echo nccl healthy")
    assert "-i modify job where jobid=42 set AdminComment=NCCL CANNOT TELL: " in asked


def test_the_comment_of_an_arrays_last_task_is_on_no_other_task(
    config: Config, tmp_path: Path
) -> None:
    """It has the array's own number, by which scontrol and sacctmgr mean all tasks."""
    task = "array_job_id=42\narray_task_id=3\n"
    asked = comment(config, tmp_path, update=FINISHED, more=task)
    for words in ("show job 42_3\n", "update JobId=42_3 ", "--jobs=42_3 ", "where jobid=42_3 "):
        assert words in asked


@pytest.mark.parametrize(
    ("show", "update", "modify", "is_left"),
    [
        ("echo Unable to contact slurm controller >&2; exit 1", ":", ":", True),
        ("echo Invalid job id specified >&2; exit 1", ":", ":", False),
        ("echo JobId=42", "echo Access/permission denied >&2; exit 1", ":", False),
        ("echo JobId=42", FINISHED, NO_ACCOUNTING, False),
        ("echo JobId=42", FINISHED, "echo Connection refused >&2; exit 1", True),
    ],
)
def test_only_what_another_try_can_mend_is_tried_again(
    config: Config, tmp_path: Path, show: str, update: str, modify: str, is_left: bool
) -> None:
    comment(config, tmp_path, show, update, modify)
    assert bool(left(config)) is is_left
    assert stored(config) == [42]
