# SPDX-License-Identifier: Apache-2.0
"""Slurm that does not answer, about one job or at all, or is not the job's own."""

from collections.abc import Callable

import pytest

from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.orphans import Sweeper
from nccl_inspector.settings.config import Config
from nccl_inspector.slurm import command
from tests.sandbox.lifetime import wait_until
from tests.support.boxes import make_job
from tests.support.clocks import SteppedClock
from tests.support.fake_scontrol import DOWN, UNKNOWN, Scontrol, ended, jobs
from tests.unit.agent.orphans.conftest import begun as begun
from tests.unit.agent.orphans.conftest import clock as clock
from tests.unit.agent.orphans.conftest import config as config
from tests.unit.agent.orphans.conftest import slurm as slurm
from tests.unit.agent.orphans.conftest import sweeper as sweeper
from tests.unit.agent.orphans.conftest import tally as tally
from tests.unit.agent.orphans.conftest import waited as waited


def settle(sweeper: Sweeper) -> None:
    """Pass until nothing is being asked."""

    def settled() -> bool:
        sweeper.run_pass()
        return sweeper.is_idle

    wait_until(settled, 10, "nothing to ask", 0.01)


@pytest.mark.parametrize(
    "script", [DOWN, "exit 3", "true", "echo garbage", "kill -9 $$", "echo 'JobId=42 JobState='"]
)
def test_no_answer_ends_nothing(
    config: Config, slurm: Scontrol, waited: Callable[[], None], script: str
) -> None:
    slurm.says(script)
    make_job(config.run_dir / "jobs" / "42")
    waited()
    assert jobs(config) == ["42"]


def test_silence_is_said_once_and_its_end_too(
    config: Config,
    slurm: Scontrol,
    waited: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    make_job(config.run_dir / "jobs" / "42")
    waited()
    slurm.says(DOWN)
    for _ in range(2):
        waited()
    slurm.shows("RUNNING")
    waited()
    assert [one.message.split(":")[0] for one in caplog.records] == [
        "cannot ask Slurm about jobs without an epilog, so they are not collected yet",
        "Slurm answers again",
    ]
    assert "No such file" in caplog.text, "the first time there was no scontrol at all"
    assert jobs(config) == ["42"]


def test_a_job_that_slurm_does_not_speak_of_holds_no_other_up(
    config: Config,
    slurm: Scontrol,
    sweeper: Sweeper,
    clock: SteppedClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    slurm.says(f'case "$*" in *42) echo "slurm_load_jobs error: x" >&2; exit 1;; esac; {UNKNOWN}')
    for job in (42, 43, 44):
        make_job(config.run_dir / "jobs" / str(job), job)
    for _ in range(6):
        sweeper.run_pass()
        clock.ahead_s += 5400
        settle(sweeper)
    assert (jobs(config), ended(config)) == (["42"], ["43", "44"])
    silences = [one for one in caplog.records if one.message.startswith("cannot ask Slurm")]
    assert len(silences) <= 2, "not at each question about the one"


def test_a_job_without_an_answer_is_asked_about_more_and_more_rarely(
    config: Config, slurm: Scontrol, sweeper: Sweeper, begun: list[int], clock: SteppedClock
) -> None:
    slurm.says(DOWN)
    make_job(config.run_dir / "jobs" / "42")
    for _ in range(24 * 60):
        clock.ahead_s += 60
        settle(sweeper)
    assert 24 / 1.5 - 1 <= len(begun) <= 24 + 4


# Whose Slurm it is.


def test_another_clusters_slurm_ends_nothing(
    config: Config,
    slurm: Scontrol,
    waited: Callable[[], None],
    tally: Tally,
    caplog: pytest.LogCaptureFixture,
) -> None:
    slurm.cluster = "echo 'ClusterName             = c2'"
    slurm.says(UNKNOWN)
    make_job(config.run_dir / "jobs" / "42")
    for _ in range(2):
        waited()
    assert (jobs(config), tally.answers) == (["42"], {"other_cluster": 2})
    assert [one.message for one in caplog.records] == [
        "job 42: its directory stays: scontrol asks cluster 'c2', which is not the job's"
    ]


@pytest.mark.parametrize("cluster", ["exit 1", "echo X = y", "kill -9 $$"])
def test_a_cluster_that_does_not_say_its_name_ends_nothing(
    config: Config, slurm: Scontrol, waited: Callable[[], None], tally: Tally, cluster: str
) -> None:
    slurm.cluster = cluster
    slurm.says(UNKNOWN)
    make_job(config.run_dir / "jobs" / "42")
    waited()
    assert (jobs(config), tally.answers) == (["42"], {"none": 1})


@pytest.mark.parametrize("cluster", ["", "C1"])
def test_a_job_of_no_or_the_same_cluster_ends(
    config: Config, slurm: Scontrol, waited: Callable[[], None], cluster: str
) -> None:
    slurm.says(UNKNOWN)
    make_job(config.run_dir / "jobs" / "42", cluster=cluster)
    waited()
    assert ended(config) == ["42"]


def test_an_answer_without_end_is_cut_and_ends_nothing(
    config: Config,
    slurm: Scontrol,
    waited: Callable[[], None],
    tally: Tally,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "OUTPUT_BYTES_MAX", 1 << 20)
    slurm.shows("COMPLETED")
    slurm.says(f"sleep 0.2; cat {slurm.folder}/answer; exec cat /dev/zero")
    make_job(config.run_dir / "jobs" / "42")
    waited()
    assert (jobs(config), tally.answers) == (["42"], {"alive": 1}), "it was not waited for"
