# SPDX-License-Identifier: Apache-2.0
"""What a job's output says of its end, in its report: one reader, and nothing contradicts."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nccl_inspector.model import rules
from nccl_inspector.model.card import CRASHED, FAILED, HEALTHY, INFO, WARNING, Card, Finding, Period
from nccl_inspector.model.process import Process
from nccl_inspector.render.html import render_html
from nccl_inspector.render.json import to_json
from nccl_inspector.render.text import render_text
from nccl_inspector.report import output
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import JobContext, RequestedInputs, gather, gather_own
from nccl_inspector.report.output import Output, OutputContent, read_output
from nccl_inspector.run.launch import output_files
from nccl_inspector.slurm.job_record import JobRecord
from nccl_inspector.summary.attempts import Loaded
from tests.support.boxes import NOW_NS
from tests.support.job_output import CONFIG, LINES, WEEK
from tests.support.synthetic.jobs import flat_job, through_summaries
from tests.unit.report.hung_jobs import End, data_parallel, ended

S = 10**9
PERIOD = Period(WEEK.start, WEEK.end)
NOW = datetime(2026, 11, 28, tzinfo=UTC)
TEXT = "ValueError: too many values to unpack (expected 2)"
GONE = "torch.distributed.DistBackendError: NCCL error in: a.cpp:3, remote process exited"
SRUN = (
    "srun: error: n2: task 3: Exited with exit code 1\nsrun: Terminating StepId=42.0\n"
    "srun: error: n1: tasks 0-2: Terminated\n"
)
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId={}.0. Some of the step tasks have "
OOM += "been OOM Killed.\n"
LIMIT = "slurmstepd: error: *** {} 42{} ON n1 CANCELLED AT 2026-09-21T10:00:00 DUE TO TIME LIMIT"
LIMIT += " ***\n"


def raised(rank: int, text: str = TEXT, line: int = 120) -> str:
    head = f"[rank{rank}]: "
    trace = ("Traceback (most recent call last):", f'  File "train.py", line {line}, in step', text)
    return "".join(f"{head}{one}\n" for one in trace)


CRASH = raised(3) + "".join(f"[rank{at}]: {GONE}\n" for at in (0, 1, 2)) + SRUN


def healthy() -> list[Process]:
    return flat_job(1, {}, 200, 4, sampled=True).processes()


def crashed() -> list[Process]:
    """Rank 1 died first, and the rest is in an operation that it never called."""
    return ended(data_parallel(), End((0.3, 1.2), 0.0))


def content(text: str, place: Path, **more: object) -> OutputContent:
    path = place / "slurm-42.out"
    path.write_text(text)
    return read_output(replace(Output(path, None, PERIOD), **more))  # type: ignore[arg-type]


def reported(
    told: OutputContent,
    state: str = "FAILED",
    processes: Sequence[Process] = (),
    *,
    restart: int = 0,
) -> Card:
    summaries = [
        replace(one, head=replace(one.head, restart=restart))
        for one in through_summaries([*processes] or healthy())
    ]
    record = JobRecord(42, state=state, exit_code=1, end_s=NOW_NS // S, sources=("sacct",))
    given = JobContext(record=record, words=told.words, launchers=told.launchers)
    return build_card(Loaded(tuple(summaries), (restart,), ()), given)


def error_of(card: Card) -> Finding:
    (one,) = [one for one in card.findings if one.rule == rules.NCCL_ERROR.id]
    return one


def test_the_first_rank_that_raised_is_told_and_what_followed_is_folded_under_it(
    tmp_path: Path,
) -> None:
    card = reported(content(CRASH, tmp_path))
    one = error_of(card)
    assert one.title == (
        f"The job's output: the program raised an exception: {TEXT} (rank 3); 3 other processes "
        "followed"
    )
    assert "at train.py:120 in step; slurm-42.out:3: `ValueError" in one.detail
    assert "Also: nccl-exception (3 processes), task-failed (1 process)." in one.detail


def test_text_page_and_json_say_the_same_sentence(tmp_path: Path) -> None:
    card = reported(content(CRASH, tmp_path))
    said = f"the program raised an exception: {TEXT} (rank 3)"
    assert card.verdict.summary.endswith(f"; the job wrote: {said}")
    page = render_html(card, NOW)
    for form, times in ((render_text(card), 2), (page, 2), (to_json(card, NOW), 3)):
        found = " ".join(form.split()).count(said)
        assert found == times, "in the verdict and in its finding, and in JSON's headline"


def test_the_last_traceback_of_the_first_that_raised_counts(tmp_path: Path) -> None:
    text = raised(3, "KeyError: 'a'", 7) + raised(3) + raised(0, "RuntimeError: b", 9)
    assert (
        f"{TEXT} (rank 3); 1 other process followed"
        in error_of(reported(content(text, tmp_path))).title
    )


def test_a_kill_for_lack_of_memory_comes_before_what_others_raised_of_it(tmp_path: Path) -> None:
    text = "".join(f"[rank{at}]: {GONE}\n" for at in (0, 1, 2)) + OOM.format(42)
    card = reported(content(text, tmp_path), "OUT_OF_MEMORY")
    assert error_of(card).title.startswith("The job's output: processes were killed for lack of me")
    assert card.verdict.summary.endswith(
        "; its launcher wrote: processes were killed for lack of memory"
    )


@pytest.mark.parametrize("other", ["41", "420"])
def test_lines_that_name_another_job_say_nothing_of_this_one(tmp_path: Path, other: str) -> None:
    told = content(OOM.format(other) + LINES, tmp_path, job_ids=frozenset({42}))
    assert told.words is None
    assert told.launchers is not None
    assert told.launchers.out_of_memory == ()
    own = content(OOM.format(42), tmp_path, job_ids=frozenset({42}))
    assert own.launchers is not None
    assert own.launchers.out_of_memory == ("42.0",)


# Nothing contradicts.


@pytest.mark.parametrize("state", ["OUT_OF_MEMORY", "NODE_FAIL"])
def test_a_state_that_says_why_is_not_explained_by_something_else(
    tmp_path: Path, state: str
) -> None:
    told = content(CRASH, tmp_path)
    assert "wrote: the program raised" not in reported(told, state).verdict.summary
    assert "wrote: the program raised" in reported(told, "FAILED").verdict.summary


def test_a_time_limit_that_slurm_s_record_does_not_have_is_information(tmp_path: Path) -> None:
    card = reported(content(LIMIT.format("JOB", ""), tmp_path))
    one = error_of(card)
    assert one.severity == INFO
    assert one.detail.endswith("Slurm's record of the job says FAILED, and that is what counts.")
    assert "time limit" not in card.verdict.summary


def test_the_time_limit_of_a_step_contradicts_nothing(tmp_path: Path) -> None:
    one = error_of(reported(content(LIMIT.format("STEP", ".0"), tmp_path)))
    assert one.severity == WARNING
    assert "what counts" not in one.detail


@pytest.mark.parametrize(
    ("text", "state"),
    [(LIMIT.format("JOB", ""), "TIMEOUT"), ("srun: error: Node failure on n2\n", "NODE_FAIL"),
     (SRUN, "FAILED")],
    ids=["the record's time limit", "the record's failed node", "the ends that are listed"],
)  # fmt: skip
def test_what_is_told_already_is_no_finding_of_its_own(
    tmp_path: Path, text: str, state: str
) -> None:
    found = {one.rule for one in reported(content(text, tmp_path), state).findings}
    assert rules.LAUNCHER.id in found
    assert rules.NCCL_ERROR.id not in found


def test_who_failed_by_the_output_and_who_by_the_boxes_are_held_against_each_other(
    tmp_path: Path,
) -> None:
    same = reported(content(raised(1), tmp_path), processes=crashed())
    other = reported(content(raised(3), tmp_path), processes=crashed())
    plain = reported(OutputContent(), processes=crashed())
    assert plain.verdict.status == CRASHED
    assert error_of(same).detail.endswith("The measurements name the same rank.")
    assert error_of(other).detail.endswith(
        "The measurements name another rank, and they are what counts."
    )
    assert other.verdict == plain.verdict
    assert replace(same.verdict, summary="") == replace(plain.verdict, summary="")


def test_lines_of_an_attempt_before_explain_no_verdict(tmp_path: Path) -> None:
    card = reported(content(CRASH, tmp_path), restart=1)
    assert "wrote" not in card.verdict.summary
    assert error_of(card).detail.endswith("It may be of an earlier attempt of the job.")


def test_a_job_that_went_on_after_an_exception_is_healthy(tmp_path: Path) -> None:
    card = reported(content(raised(3) + LINES * 2000, tmp_path), "COMPLETED")
    assert card.verdict.status == HEALTHY
    assert error_of(card).severity == INFO


def test_only_one_first_is_told_in_a_verdict(tmp_path: Path) -> None:
    """What srun wrote first is of the one that raised, or of one that followed."""
    card = reported(content(CRASH, tmp_path))
    assert card.verdict.status == FAILED
    assert card.verdict.summary.count("wrote") == 1


# What users write.


def test_a_text_of_the_user_s_is_shown_as_text_everywhere(tmp_path: Path) -> None:
    evil = "ValueError: <script>alert(1)</script> \x1b[2J \u202e [x](http://e.example) | `x`"
    card = reported(content(raised(3, evil), tmp_path))
    page = render_html(card, NOW)
    assert "<script>alert" not in page
    for form in (render_text(card), page):
        assert not {"\x1b", "\u202e"} & set(form)
    assert json.loads(to_json(card, NOW))["verdict"]["status"] == FAILED


def test_an_exception_as_long_as_a_line_may_be_is_cut(tmp_path: Path) -> None:
    card = reported(content(raised(3, "ValueError: " + "x" * 100_000), tmp_path))
    assert len(card.verdict.summary) < 400
    assert len(error_of(card).detail) < 800


def test_places_behind_what_was_left_out_have_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = LINES + CRASH
    assert "slurm-42.out:5: `V" in error_of(reported(content(text, tmp_path))).detail
    monkeypatch.setattr(output, "_WORDS_HEAD_BYTES", len(LINES) - 20)
    monkeypatch.setattr(output, "_WORDS_TAIL_BYTES", len(CRASH))
    assert "slurm-42.out: `V" in error_of(reported(content(text, tmp_path))).detail


# A command that its user runs, without Slurm.


def test_of_a_file_of_a_command_only_what_it_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out"
    before = raised(0, "KeyError: of another command")
    path.write_text(before + raised(3))
    asked = RequestedInputs(slurm=False, output=path, begins={path: len(before)})
    words = gather_own(WEEK, asked).words
    assert words is not None
    assert (words.first_who, words.told[0].text) == ("rank 3", TEXT)
    assert words.told[0].place == "out", "lines before it were not counted"
    # Somebody made the file anew, and it is shorter.
    asked = replace(asked, begins={path: 10**6})
    assert (gather_own(WEEK, asked).words or words).first_who == "rank 0"


def test_files_that_output_goes_to_are_found_and_pipes_are_not(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before\n")
    kept = os.dup(1), os.dup(2)
    read, write = os.pipe()
    try:
        with path.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(write, 2)
            assert output_files() == {path: 7}
            os.dup2(1, 2)
            assert output_files() == {path: 7}, "once"
            os.dup2(write, 1)
            os.dup2(write, 2)
            assert output_files() == {}
    finally:
        for number, fd in enumerate(kept, 1):
            os.dup2(fd, number)
        for fd in (*kept, read, write):
            os.close(fd)


def test_with_and_without_slurm_the_output_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "slurm-42.out"
    path.write_text(CRASH)
    asked = RequestedInputs(slurm=False, output=path)
    assert gather_own(WEEK, asked).words == gather(WEEK, CONFIG, asked).words
