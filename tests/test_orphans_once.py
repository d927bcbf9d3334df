# SPDX-License-Identifier: Apache-2.0
"""A single collection from a timer, on nodes without an agent, ends orphans too."""

import time
from pathlib import Path

import pytest

from nccl_inspector import orphans
from nccl_inspector.agent import run_collect
from nccl_inspector.config import Config
from tests.boxes import BoxOf, lock_held, make_job, write_box
from tests.orphanage import DOWN, UNKNOWN, Scontrol, configured, ended, jobs
from tests.test_slurmjob import record


@pytest.fixture
def slurm(tmp_path: Path) -> Scontrol:
    return Scontrol(tmp_path)


@pytest.fixture
def config(tmp_path: Path, slurm: Scontrol) -> Config:
    return configured(tmp_path, slurm)


def collect_old(config: Config, monkeypatch: pytest.MonkeyPatch, step_s: float = 700) -> None:
    """A single collection when all files are so old."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step_s)
    run_collect(config)


@pytest.mark.parametrize("step_s", [700, -(10**6)], ids=["later", "clock set back"])
def test_a_single_collection_ends_what_slurm_says_has_ended(
    config: Config, slurm: Scontrol, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    slurm.says(f"[ $4 = 44 ] && exec cat {slurm.folder}/answer; {UNKNOWN}")
    (slurm.folder / "answer").write_text(record("RUNNING", job="44"))
    make_job(config.run_dir / "jobs" / "42", boot_id="another")
    for job in (43, 44):
        make_job(config.run_dir / "jobs" / str(job), job)
    collect_old(config, monkeypatch, step_s)
    assert slurm.asked() == ["--oneliner show job 43", "--oneliner show job 44"]
    assert (jobs(config), ended(config)) == (["44"], [])


def test_a_single_collection_leaves_what_is_young_or_held(
    config: Config, slurm: Scontrol, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.says(UNKNOWN)
    box = write_box(make_job(config.run_dir / "jobs" / "42"), "0_1", BoxOf(state=1))
    run_collect(config)
    with lock_held(box):
        collect_old(config, monkeypatch)
    assert (jobs(config), slurm.asked()) == (["42"], [])


def test_a_single_collection_asks_no_more_when_slurm_is_silent_and_collects_all_the_same(
    config: Config, slurm: Scontrol, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.says(DOWN)
    for job in (42, 43):
        make_job(config.run_dir / "jobs" / str(job), job)
    make_job(config.run_dir / "ended" / "41.1000000000000000000", 41)
    collect_old(config, monkeypatch)
    assert (jobs(config), ended(config), len(slurm.asked())) == (["42", "43"], [], 1)


def test_a_single_collection_has_its_time(
    config: Config, slurm: Scontrol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "ONCE_S", 0.1)
    slurm.says("exec sleep 1000")
    for job in (42, 43):
        make_job(config.run_dir / "jobs" / str(job), job)
    begun = time.monotonic()
    collect_old(config, monkeypatch)
    assert time.monotonic() - begun < 5
    assert jobs(config) == ["42", "43"]
