"""Asking for a job's record: commands that hang, flood, fail or are not there; whom to believe."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.jobid import JobName, parse_job
from nccl_inspector.slurm import accounting, command
from nccl_inspector.slurm.find_record import believe, find_record
from nccl_inspector.slurm.job_record import ACCOUNTING, CONTROLLER, SUMMARY, JobRecord, StepRecord
from nccl_inspector.slurm.outputpath import fill_in
from nccl_inspector.slurm.scontroltext import parse_text
from nccl_inspector.slurm.values import seconds
from nccl_inspector.summary.codec import Head
from tests.support.fake_slurm import Slurm
from tests.support.recorded_slurm import load

HEAD = Head(
    job_id=4, uid=1001, user="ann", account="proj1", partition="gpu", cluster="sandbox",
    node="n1", nodelist="n[1-2]", num_nodes=2, restart=0, start=1000, job_start=990, end=2000,
    het_job_id="", problems=(),
)  # fmt: skip


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


# Commands.


def test_a_command_that_hangs_is_ended_in_time(slurm: Slurm) -> None:
    slurm.put("sacct", "sleep 100 & sleep 100")
    said = command.ask(slurm.folder / "sacct", seconds=0.2)
    assert (said.status, said.words) == (124, "no answer in 0.2 s")


def test_a_command_that_floods_is_cut(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "OUTPUT_BYTES_MAX", 1 << 16)
    slurm.put("sacct", "exec cat /dev/zero")
    said = command.ask(slurm.folder / "sacct")
    assert (said.status, said.words) == (1, "more output than is taken")


def test_without_slurm_nobody_knows_the_job(slurm: Slurm) -> None:
    for name in ("scontrol", "sacct"):
        (slurm.folder / name).unlink()
    found, problems = find_record(4, slurm.config)
    assert found is None
    assert [one.partition(":")[0] for one in problems] == [CONTROLLER, ACCOUNTING]
    assert all("No such file or directory" in one for one in problems)


def test_without_slurm_the_summary_remains(slurm: Slurm) -> None:
    found, problems = find_record(4, slurm.config, HEAD)
    assert found is not None
    assert (found.user, found.nodelist, found.restart, found.start_s) == ("ann", "n[1-2]", 0, 990)
    assert (found.state, found.name, found.sources) == (None, None, (SUMMARY,))
    assert {"state", "name", "exit_code"} - set(found.missing) == {"exit_code"}
    assert len(problems) == 2


def test_a_version_that_is_none_is_said(slurm: Slurm) -> None:
    slurm.put("scontrol", "echo what a nice day")
    _, problems = find_record(4, slurm.config)
    assert problems[0] == "scontrol: its version is not known"


def test_an_answer_that_is_not_what_was_asked_for_is_refused(slurm: Slurm) -> None:
    slurm.put("sacct", "[ $1 = --helpformat ] && echo JobIDRaw JobID || echo 4,5,6")
    _, problems = find_record(4, slurm.config)
    assert problems[1] == "sacct: its answer is not the columns that were asked for"


def test_a_job_is_found_with_both_sources(slurm: Slurm) -> None:
    slurm.says("scontrol", "finished")
    slurm.says("sacct", "finished")
    found, problems = find_record(load("22.05").ids["finished"], slurm.config)
    assert found is not None
    assert problems == ()
    assert found.sources == (CONTROLLER, ACCOUNTING)
    assert (found.name, found.switches) == ("train", 1)


@pytest.mark.parametrize("change", [{"uid": 1}, {"cluster": "other"}, {"start": 1000}])
def test_another_job_of_the_number_is_not_the_summarys(
    slurm: Slurm, change: dict[str, int]
) -> None:
    slurm.says("scontrol", "finished")
    slurm.says("sacct", "finished")
    job_id = load("22.05").ids["finished"]
    real, _ = find_record(job_id, slurm.config)
    assert real is not None
    assert real.uid is not None
    assert real.start_s is not None
    own = replace(HEAD, job_id=job_id, uid=real.uid, start=real.start_s)
    same, _ = find_record(job_id, slurm.config, own)
    assert same is not None
    assert same.state == "COMPLETED"
    found, problems = find_record(job_id, slurm.config, replace(own, **change))  # type: ignore[arg-type]
    assert found is not None
    assert found.sources == (SUMMARY,)
    assert sum("another job of this number" in one for one in problems) == 2


# Steps.

# As sacct prints them (src/sacct/print.c, Slurm 22.05 to 26.05): a step of which a signal ended a
# task is CANCELLED.
STEPS = [
    ("42", "FAILED", "143:0", "1000", "2000", "n[1-2]", ""),
    ("42.batch", "FAILED", "143:0", "1000", "2000", "n1", "1"),
    ("42.extern", "COMPLETED", "0:0", "1000", "2000", "n[1-2]", "2"),
    ("42.0", "CANCELLED by 1001", "0:9", "1100", "1900", "n[1-2]", "8"),
    ("42.1", "RUNNING", "0:0", "1950", "Unknown", "n[1-2]", "8"),
    ("42.0", "FAILED", "1:0", "500", "600", "n[1-2]", "8"),  # of an earlier attempt
    ("420.0", "x" * 50, "1:0", "1100", "1900", "n3", "8"),
]


def steps_of(slurm: Slurm, rows: Sequence[tuple[str, ...]]) -> tuple[StepRecord, ...]:
    said = "".join("@".join((*row, "")) + "\\n" for row in rows)
    slurm.put("sacct", 'for word; do case $word in --delimiter=*) d=${word#*=};; esac; done\n'
              f"printf '{said}' | sed \"s/@/$d/g\"")  # fmt: skip
    record = JobRecord(42, state="FAILED", start_s=1000, end_s=2000)
    return accounting.ask_steps(slurm.folder / "sacct", record)


def test_the_steps_of_an_attempt_that_are_over_are_told(slurm: Slurm) -> None:
    found = {one.name: one for one in steps_of(slurm, STEPS)}
    assert found.keys() == {"batch", "extern", "0"}
    assert found["0"] == StepRecord("0", "CANCELLED", 0, 9, 1100, 1900, "n[1-2]", 8)


def test_without_accounting_there_are_no_steps(slurm: Slurm) -> None:
    record = JobRecord(42, state="FAILED", start_s=1000, end_s=2000)
    assert accounting.ask_steps(slurm.folder / "sacct", record) == ()
    slurm.put("sacct", "echo what a nice day")
    assert accounting.ask_steps(slurm.folder / "sacct", record) == ()


# Names of jobs.


@pytest.mark.parametrize(
    "text", ["", "0", "1_", "1+", "-1", "1;2", "1_2_3", "1_[x]", "9" * 19, "1 2"]
)
def test_what_names_no_job_is_refused(text: str) -> None:
    with pytest.raises(InspectorError, match="not a job"):
        parse_job(text)


def test_jobs_are_named_as_users_write_them() -> None:
    assert parse_job("810") == JobName(810)
    assert parse_job("810_3") == JobName(810, task=3)
    assert parse_job("810_[1-4%2]") == JobName(810, tasks="1-4%2")
    assert parse_job("811+1") == JobName(811, offset=1)
    assert [str(parse_job(one)) for one in ("810", "810_3", "811+1")] == ["810", "810_3", "811+1"]


# Whom to believe.


def test_nothing_said_is_no_record() -> None:
    assert believe({}) is None


def test_what_is_of_the_attempt_is_never_mixed() -> None:
    said = {
        CONTROLLER: {"job_id": 4, "state": "RUNNING", "restart": 1},
        SUMMARY: {"job_id": 4, "restart": 1, "nodelist": "n1", "start_s": 5},
    }
    found = believe(said, attempt=1)  # type: ignore[arg-type]
    assert found is not None
    assert (found.state, found.nodelist, found.start_s) == ("RUNNING", None, None)


def test_a_number_given_again_is_not_an_attempt_more() -> None:
    row = {"UID": "1", "SubmitLine": "sbatch a", "WorkDir": "/", "End": "20", "Submit": "10"}
    again = row | {"Submit": "20", "End": "30"}
    assert accounting.attempts([row, again]) == [row, again]
    for change in ({"UID": "2"}, {"SubmitLine": "sbatch b"}, {"WorkDir": "/x"}, {"Submit": "19"}):
        other = again | change
        assert accounting.attempts([row, other]) == [other]


def test_a_text_that_looks_like_a_field_takes_nothing_but_itself_away() -> None:
    real = load("22.05").output("failed", "scontrol")
    job_id = load("22.05").ids["failed"]
    name = JobName(job_id)
    plain_facts = parse_text(real, name)
    for text in (
        "x Restarts=9",
        "x StdOut=/etc/passwd",
        "x Switches=4",
        "x NodeList=n9 TRES=gres/gpu=8",
    ):
        facts = parse_text(real.replace("JobName=failed", f"JobName={text}"), name)
        assert {key: plain_facts[key] for key in facts} == facts, text
        assert {"uid", "state", "exit_code"} <= set(facts)
    assert parse_text(real.replace("JobName=failed", f"JobName=x\nJobId={job_id} "), name) == {}


def test_a_name_with_an_equals_sign_is_only_a_name() -> None:
    real = load("22.05").output("failed", "scontrol")
    facts = parse_text(
        real.replace("JobName=failed", "JobName=lr=0.1 Model=x"),
        JobName(load("22.05").ids["failed"]),
    )
    assert facts["name"] == "lr=0.1 Model=x"
    assert "stdout_path" in facts


# Paths and times.


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("slurm-%A_%a.out", "/home/u/slurm-810_3.out"),
        ("/log/%x-%j-%5j.%u", "/log/train-814-00814.ann"),
        ("%N/%n/%t/%b/100%%", "/home/u/n1/0/0/3/100%"),
        ("%J.out", None),
        ("\\%j", None),
        ("a\n%j", None),
    ],
)
def test_patterns_are_filled_in_or_the_path_is_not_known(pattern: str, path: str | None) -> None:
    job = JobRecord(
        814, array_job_id=810, array_task_id=3, name="train", user="ann", work_dir="/home/u",
        nodelist="n[1-2]",
    )  # fmt: skip
    assert fill_in(pattern, job) == path


def test_a_pattern_of_what_is_not_known_gives_no_path() -> None:
    assert fill_in("/log/%x", JobRecord(814)) is None
    assert fill_in("/log/%N", JobRecord(814, nodelist="")) is None
    assert fill_in("log", JobRecord(814)) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("03:04", 184), ("UNLIMITED", None), ("", None)],
)
def test_spans_of_time_are_seconds(text: str, value: int | None) -> None:
    assert seconds(text) == value


def test_a_command_that_gave_no_answer_is_not_asked_again_at_once(tmp_path: Path) -> None:
    """A report asks slurmctld four times, and after an hour without it hundreds want theirs."""
    silent, other = tmp_path / "scontrol", tmp_path / "sacct"
    silent.write_text(f"#!/bin/sh\necho x >>{tmp_path}/asked\nexec sleep 60\n")
    other.write_text("#!/bin/sh\necho here\n")
    for program in (silent, other):
        program.chmod(0o755)
    for _ in range(3):
        assert command.ask(silent, "show", seconds=0.5).words == "no answer in 0.5 s"
    assert (tmp_path / "asked").read_text() == "x\n"
    assert command.ask(other).output == "here\n"
