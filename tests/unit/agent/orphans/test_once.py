# SPDX-License-Identifier: Apache-2.0
"""A single collection from a timer, on nodes without an agent, ends orphans too."""

import time

import pytest

from nccl_inspector.agent import orphans
from nccl_inspector.agent.service import run_collect
from nccl_inspector.settings.config import Config
from tests.support.boxes import BoxOf, give, lock_held, make_job, names, write_box
from tests.support.clocks import SteppedClock
from tests.support.fake_scontrol import DOWN, UNKNOWN, Scontrol, ended, jobs, record


def collect_old(config: Config, step_s: float = 700) -> None:
    """A single collection when all files are so old."""
    clock = SteppedClock()
    clock.set_s = step_s
    run_collect(config, clock)


@pytest.mark.parametrize("step_s", [700, -(10**6)], ids=["later", "clock set back"])
def test_a_single_collection_ends_what_slurm_says_has_ended(
    config: Config, slurm: Scontrol, step_s: float
) -> None:
    slurm.says(f"[ $4 = 44 ] && exec cat {slurm.folder}/answer; {UNKNOWN}")
    (slurm.folder / "answer").write_text(record("RUNNING", job="44"))
    for job in (43, 44):
        make_job(config.run_dir / "jobs" / str(job), job)
    collect_old(config, step_s)
    assert slurm.asked() == ["--oneliner show job 43", "--oneliner show job 44"]
    assert (jobs(config), ended(config)) == (["44"], [])


def test_a_single_collection_leaves_what_is_young_or_held(config: Config, slurm: Scontrol) -> None:
    slurm.says(UNKNOWN)
    box = write_box(make_job(config.run_dir / "jobs" / "42"), "0_1", BoxOf(state=1))
    run_collect(config)
    with lock_held(box):
        collect_old(config)
    assert (jobs(config), slurm.asked()) == (["42"], [])


def test_a_single_collection_asks_no_more_when_slurm_is_silent_and_collects_all_the_same(
    config: Config, slurm: Scontrol
) -> None:
    slurm.says(DOWN)
    for job in range(42, 47):
        make_job(config.run_dir / "jobs" / str(job), job)
    make_job(config.run_dir / "ended" / "41.1000000000000000000", 41)
    collect_old(config)
    assert (len(jobs(config)), ended(config), len(slurm.asked())) == (5, [], 3)


def test_a_single_collection_without_scontrol_says_so_once_and_not_again_until_it_would_ask(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    make_job(config.run_dir / "jobs" / "42", 42)
    for step_s in (700, 1000, 1200):
        collect_old(config, step_s)
    assert [one.message.rpartition(": ")[2] for one in caplog.records] == [
        "No such file or directory"
    ]


def test_a_job_that_slurm_does_not_speak_of_holds_no_other_up(
    config: Config, slurm: Scontrol
) -> None:
    slurm.says(f'case "$*" in *44|*45) {UNKNOWN};; esac; {DOWN}')
    for job in range(41, 46):
        make_job(config.run_dir / "jobs" / str(job), job)
    collect_old(config)
    assert jobs(config) == ["41", "42", "43", "44", "45"], "three in a row: is it Slurm?"
    collect_old(config)
    assert jobs(config) == ["41", "42", "43"]


def test_an_idle_job_is_asked_about_more_and_more_rarely(config: Config, slurm: Scontrol) -> None:
    slurm.shows("RUNNING")
    job = make_job(config.run_dir / "jobs" / "42").parent
    asked = []
    for ahead_s in range(300, 6 * 3600, 300):
        before = len(slurm.asked())
        collect_old(config, ahead_s)
        if len(slurm.asked()) > before:
            asked.append(ahead_s)
    assert asked == [600, 1200, 2400, 4800, 8400, 12000, 15600, 19200]
    assert names(job) == ["asked", "manifest", "raw"]
    assert (job / "asked").stat().st_mode & 0o7777 == 0o600


def test_what_is_known_of_the_questions_goes_with_the_job(config: Config, slurm: Scontrol) -> None:
    slurm.shows("RUNNING")
    make_job(config.run_dir / "jobs" / "42")
    collect_old(config)
    assert names(config.run_dir / "jobs" / "42") == ["asked", "manifest", "raw"]
    slurm.says(UNKNOWN)
    collect_old(config, 7200)
    assert [len(list(config.run_dir.glob(f"{place}/*"))) for place in ("jobs", "ended")] == [0, 0]


def test_nobody_but_root_may_say_when_slurm_was_asked(config: Config, slurm: Scontrol) -> None:
    slurm.says(UNKNOWN)
    for job, text in ((42, f"{int(time.time())} 900000\n".encode()), (43, b"9" * 100), (44, b"")):
        path = make_job(config.run_dir / "jobs" / str(job), job).parent / "asked"
        path.write_bytes(text)
        if job == 42:
            give(path)
    collect_old(config)
    assert jobs(config) == []


def test_a_single_collection_has_its_time(
    config: Config, slurm: Scontrol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "ONCE_S", 0.1)
    slurm.says("exec sleep 1000")
    for job in (42, 43):
        make_job(config.run_dir / "jobs" / str(job), job)
    begun = time.monotonic()
    collect_old(config)
    assert time.monotonic() - begun < 5
    assert jobs(config) == ["42", "43"]
