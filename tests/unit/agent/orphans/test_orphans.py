# SPDX-License-Identifier: Apache-2.0
"""Directories whose epilog never came, with real directories, locks and a made-up scontrol."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nccl_inspector.agent import job_dir as jobdir
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.orphans import Sweeper
from nccl_inspector.agent.service import Agent
from nccl_inspector.settings.config import Config
from nccl_inspector.slurm import command
from tests.sandbox.lifetime import wait_until
from tests.support.boxes import BoxOf, lock_held, make_job, names, write_box
from tests.support.clocks import SteppedClock
from tests.support.fake_scontrol import UNKNOWN, Scontrol, answers, ended, jobs


def ask(sweeper: Sweeper, slurm: Scontrol) -> None:
    """Pass until the first question is asked."""

    def asked() -> bool:
        sweeper.run_pass()
        return len(slurm.asked()) == 1

    wait_until(asked, 10, "a question", 0.01)


# Another boot.


@pytest.mark.parametrize("boot_id", ["another", "", None], ids=["another", "empty", "no line"])
def test_the_boot_that_a_manifest_names_ends_no_job(
    config: Config, sweeper: Sweeper, tally: Tally, slurm: Scontrol, clock: SteppedClock,
    boot_id: str | None,
) -> None:  # fmt: skip
    slurm.shows("RUNNING")
    manifest = make_job(config.run_dir / "jobs" / "42", boot_id=boot_id).parent / "manifest"
    if boot_id is None:
        manifest.write_text(manifest.read_text().replace("boot_id=None\n", ""))
    (config.run_dir / "prom" / "42.prom").write_text("x")
    sweeper.run_pass()
    assert (jobs(config), names(config.run_dir / "prom")) == (["42"], ["42.prom"])
    clock.ahead_s += 7200
    answers(sweeper, tally, 1)
    assert (jobs(config), tally.answers, tally.swept) == (["42"], {"alive": 1}, 0)


def test_what_an_earlier_boot_left_on_a_disk_is_ended_by_slurms_word_and_unpublished(
    config: Config, sweeper: Sweeper, tally: Tally, slurm: Scontrol, clock: SteppedClock
) -> None:
    slurm.shows("NODE_FAIL")
    raw = make_job(config.run_dir / "jobs" / "42", boot_id="another")
    write_box(raw, "0_1", BoxOf(state=1))
    (config.run_dir / "prom" / "42.prom").write_text("x")
    sweeper.run_pass()
    clock.ahead_s += 900
    answers(sweeper, tally, 1)
    assert (jobs(config), ended(config), tally.swept) == ([], ["42"], 1)
    assert names(config.run_dir / "prom") == []


# Asking Slurm.


def test_slurm_is_asked_only_when_nothing_has_lived_for_a_while(
    config: Config, sweeper: Sweeper, tally: Tally, slurm: Scontrol, clock: SteppedClock
) -> None:
    slurm.shows("COMPLETED")
    box = write_box(make_job(config.run_dir / "jobs" / "42"), "0_1", BoxOf(state=1))
    with lock_held(box):
        for _ in range(3):
            sweeper.run_pass()
            clock.ahead_s += 7200
        sweeper.run_pass()
    clock.ahead_s += 590
    sweeper.run_pass()
    assert slurm.asked() == []
    clock.ahead_s += 400
    answers(sweeper, tally, 1)
    assert slurm.asked() == ["--oneliner show job 42"]
    assert (jobs(config), ended(config), tally.swept) == ([], ["42"], 1)


def test_scontrol_gets_a_small_environment(
    config: Config,
    slurm: Scontrol,
    waited: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/etc/x.conf")
    monkeypatch.setenv("LD_PRELOAD", "")
    slurm.shows("RUNNING")
    make_job(config.run_dir / "jobs" / "42")
    waited()
    found = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert found.pop("PATH") == "/usr/sbin:/usr/bin:/sbin:/bin"
    assert {key: found[key] for key in found.keys() - {"PWD", "SHLVL", "_", "OLDPWD"}} == {
        "LC_ALL": "C",
        "SLURM_CONF": "/etc/x.conf",
    }


def test_an_unknown_id_is_an_end(
    config: Config, slurm: Scontrol, waited: Callable[[], None]
) -> None:
    slurm.says(UNKNOWN)
    make_job(config.run_dir / "jobs" / "42")
    waited()
    assert ended(config) == ["42"]


def test_a_job_that_lives_stays_and_is_asked_about_more_and_more_rarely(
    config: Config, slurm: Scontrol, sweeper: Sweeper, tally: Tally, clock: SteppedClock
) -> None:
    slurm.shows("RUNNING")
    make_job(config.run_dir / "jobs" / "42")
    sweeper.run_pass()
    clock.ahead_s += 900
    for count, gap_s in enumerate((600, 1200, 2400, 3600, 3600), 1):
        answers(sweeper, tally, count)
        clock.ahead_s += gap_s * 0.98
        sweeper.run_pass()
        assert sum(tally.answers.values()) == len(slurm.asked()) == count
        clock.ahead_s += gap_s * 0.6
    assert tally.answers == {"alive": 5}
    assert jobs(config) == ["42"]


def test_a_hanging_scontrol_holds_no_pass_up_and_is_killed_with_its_children(
    config: Config,
    slurm: Scontrol,
    sweeper: Sweeper,
    tally: Tally,
    clock: SteppedClock,
    tmp_path: Path,
) -> None:
    slurm.says(f"sleep 1000 & echo $! >{tmp_path}/pid; wait")
    make_job(config.run_dir / "jobs" / "42")
    sweeper.run_pass()
    clock.ahead_s += 900
    begun = time.monotonic()
    sweeper.run_pass()
    pid_file = tmp_path / "pid"
    wait_until(lambda: pid_file.exists() and pid_file.read_text() != "", 10, "scontrol hangs", 0.01)
    sweeper.run_pass()
    assert time.monotonic() - begun < 5
    clock.ahead_s += command.ANSWER_S
    sweeper.run_pass()
    assert (tally.answers, jobs(config)) == ({"none": 1}, ["42"])
    program = Path(f"/proc/{int(pid_file.read_text())}/exe")  # a zombie has none
    wait_until(lambda: not program.exists(), 5, "its child is dead")


def test_one_question_at_a_time(
    config: Config,
    slurm: Scontrol,
    sweeper: Sweeper,
    tally: Tally,
    clock: SteppedClock,
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    slurm.says(f"read line <{gate}; {UNKNOWN}")
    for job in (42, 43):
        make_job(config.run_dir / "jobs" / str(job), job)
    sweeper.run_pass()
    clock.ahead_s += 900
    ask(sweeper, slurm)
    sweeper.run_pass()
    assert len(slurm.asked()) == 1
    gate.write_text("go\n")
    slurm.says(UNKNOWN)
    answers(sweeper, tally, 2)
    assert (jobs(config), len(slurm.asked())) == ([], 2)


# What changes between question and answer.


def test_an_answer_about_the_attempt_before_does_not_end_the_next(
    config: Config,
    slurm: Scontrol,
    sweeper: Sweeper,
    tally: Tally,
    clock: SteppedClock,
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    slurm.says(f"read line <{gate}; {UNKNOWN}")
    make_job(config.run_dir / "jobs" / "42")
    sweeper.run_pass()
    clock.ahead_s += 900
    ask(sweeper, slurm)
    (config.run_dir / "jobs" / "42").rename(config.run_dir / "ended" / "42.1")
    make_job(config.run_dir / "jobs" / "42", restart=1)
    clock.ahead_s += 5
    sweeper.run_pass()
    gate.write_text("go\n")
    answers(sweeper, tally, 1)
    assert (jobs(config), tally.swept) == (["42"], 0)


def test_a_process_that_comes_between_question_and_answer_saves_its_directory(
    config: Config,
    slurm: Scontrol,
    sweeper: Sweeper,
    tally: Tally,
    clock: SteppedClock,
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    slurm.says(f"read line <{gate}; {UNKNOWN}")
    raw = make_job(config.run_dir / "jobs" / "42")
    sweeper.run_pass()
    clock.ahead_s += 900
    ask(sweeper, slurm)
    with lock_held(write_box(raw, "0_1", BoxOf(state=1))):
        gate.write_text("go\n")
        answers(sweeper, tally, 1)
    assert (jobs(config), tally.swept) == (["42"], 0)


def test_what_a_prolog_makes_in_the_last_moment_is_put_back(config: Config) -> None:
    run_fd = os.open(config.run_dir, os.O_RDONLY)
    jobs_fd = os.open(config.run_dir / "jobs", os.O_RDONLY)
    make_job(config.run_dir / "jobs" / "42")
    seen = jobdir.look("42", jobs_fd)
    assert seen is not None
    (config.run_dir / "jobs" / "42").rename(config.run_dir / "ended" / "42.1")
    make_job(config.run_dir / "jobs" / "42", restart=1)
    assert not jobdir.move_to_ended("42", seen, run_fd, 2)
    assert (jobs(config), names(config.run_dir / "ended")) == (["42"], ["42.1"])
    os.close(jobs_fd)
    os.close(run_fd)


def test_what_a_prolog_makes_anew_before_that_keeps_its_place_and_it_is_said(
    config: Config, slurm: Scontrol, waited: Callable[[], None], tally: Tally,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    slurm.says(UNKNOWN)
    make_job(config.run_dir / "jobs" / "42")
    real = os.rename

    def late(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        if old == "jobs/42":
            real(config.run_dir / old, config.run_dir / "ended" / "42.1")
            make_job(config.run_dir / old, restart=1)
        real(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if old == "jobs/42":
            make_job(config.run_dir / old, restart=2)

    monkeypatch.setattr(os, "rename", late)
    waited()
    assert "restart=2\n" in (config.run_dir / "jobs" / "42" / "manifest").read_text()
    assert (ended(config), tally.swept) == (["42", "42"], 1)
    why = "another attempt's directory was moved and cannot be moved back: ended/42."
    assert why in caplog.text


# Torn and odd directories.


def test_a_directory_without_a_manifest_is_asked_for_after_an_hour(
    config: Config, slurm: Scontrol, sweeper: Sweeper, tally: Tally, clock: SteppedClock
) -> None:
    slurm.says(UNKNOWN)
    (config.run_dir / "jobs" / "42").mkdir()
    (make_job(config.run_dir / "jobs" / "43", 43).parent / "manifest").write_text("format=1\n")
    sweeper.run_pass()
    clock.ahead_s += 3500
    sweeper.run_pass()
    assert slurm.asked() == []
    clock.ahead_s += 2000
    answers(sweeper, tally, 2)
    assert (jobs(config), ended(config)) == ([], ["42", "43"])


def test_a_manifest_of_another_job_is_as_none(
    config: Config, slurm: Scontrol, sweeper: Sweeper, clock: SteppedClock
) -> None:
    slurm.says(UNKNOWN)
    make_job(config.run_dir / "jobs" / "42", 41)
    sweeper.run_pass()
    clock.ahead_s += 3500
    sweeper.run_pass()
    assert slurm.asked() == [], "only after an hour, as about a directory without one"


def test_what_is_no_jobs_directory_is_left_alone(config: Config, sweeper: Sweeper) -> None:
    (config.run_dir / "jobs" / "42").symlink_to("/etc")
    (config.run_dir / "jobs" / "43").write_text("x")
    (config.run_dir / "jobs" / "x").mkdir()
    sweeper.run_pass()
    assert jobs(config) == ["42", "43", "x"]


# Clocks.


@pytest.mark.parametrize("step_s", [-(10**6), 10**6])
def test_a_step_of_the_clock_asks_no_earlier_and_no_later(
    config: Config,
    slurm: Scontrol,
    sweeper: Sweeper,
    tally: Tally,
    clock: SteppedClock,
    begun: list[int],
    step_s: int,
) -> None:
    slurm.says(UNKNOWN)
    make_job(config.run_dir / "jobs" / "42")
    sweeper.run_pass()
    clock.set_s = step_s
    clock.ahead_s += 590
    sweeper.run_pass()
    assert begun == []
    clock.ahead_s += 400
    sweeper.run_pass()
    assert begun == [42]
    answers(sweeper, tally, 1)
    assert ended(config) == ["42"]


# The agent.


def test_the_agent_collects_an_orphan_and_counts_it(
    config: Config, slurm: Scontrol, clock: SteppedClock
) -> None:
    slurm.says(UNKNOWN)
    make_job(config.run_dir / "jobs" / "42")
    run_fd = os.open(config.run_dir, os.O_RDONLY)
    one = Agent(config, run_fd, clock=clock)
    one.run_pass(10)
    clock.ahead_s += 900

    def collected() -> bool:
        one.run_pass(10)
        return jobs(config) + ended(config) == []

    wait_until(collected, 10, "the job is collected", 0.01)
    one.run_pass(10)
    own = (config.run_dir / "prom" / "nccl_inspector_agent.prom").read_text()
    one.close()
    os.close(run_fd)
    assert (jobs(config), ended(config)) == ([], [])
    assert 'nccl_inspector_agent_swept_jobs_total{cluster="",' in own
    assert next(line for line in own.splitlines() if line.startswith(
        "nccl_inspector_agent_swept_jobs_total{"
    )).endswith(" 1")  # fmt: skip
