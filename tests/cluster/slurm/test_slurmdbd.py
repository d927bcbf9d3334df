"""Records of jobs from a real slurmctld, slurmdbd and MariaDB."""

import shlex
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.nccl_log.launcher_lines import read_launchers
from nccl_inspector.settings.config import Config, parse_config
from nccl_inspector.slurm import topology
from nccl_inspector.slurm.accounting import ask_steps
from nccl_inspector.slurm.ended import ask_ended
from nccl_inspector.slurm.find_record import find_record
from nccl_inspector.slurm.job_record import ACCOUNTING, CONTROLLER, JobRecord
from tests.sandbox import JOB_USER, Cluster, ClusterError, accounting, wait_until
from tests.sandbox.lifetime import down
from tests.support.sandbox import slurm_jobs

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster with accounting, and a slurmctld that soon forgets."""
    root = Path(tempfile.mkdtemp(prefix="nccl-inspector-test-", dir="/tmp"))
    try:
        made = Cluster.up(root, slurm_jobs.options(slurm_jobs.FORGETS_SOON))
    except ClusterError as err:
        if "_check_mysql_concat_is_sane" in str(err):
            down(root)
            pytest.skip("this suite's libmariadb3 refuses slurmdbd's first query")
        raise
    try:
        yield made
    finally:
        made.down()


@pytest.fixture
def config(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Config:
    """Commands of the cluster's own Slurm."""
    for name in ("scontrol", "sacct"):
        # With the caller's environment, not as by a fresh login: the product sets it.
        words = shlex.join(word for word in cluster.head.argv([name]) if word != "-i")
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("SLURM_CONF", str(cluster.layout.slurm_conf))
    return replace(parse_config("", "test"), scontrol=tmp_path / "scontrol")


def forgotten(cluster: Cluster, job_id: int) -> None:
    """Wait until slurmctld knows the job no more, and accounting has its end."""
    argv = ["scontrol", "show", "job", str(job_id)]
    wait_until(
        lambda: cluster.run_as("root", argv).returncode != 0, 150, f"{job_id} is forgotten", 1
    )


def found(config: Config, job: int | str) -> JobRecord:
    record, _ = find_record(job, config)
    assert record is not None
    return record


def test_jobs_that_slurmctld_has_forgotten_are_told_by_accounting(
    cluster: Cluster, config: Config
) -> None:
    ids = {
        "timeout": slurm_jobs.submit_one(cluster, "timeout", "sleep 200", "--time=1"),
        "finished": slurm_jobs.submit_finished(cluster),
        "failed": slurm_jobs.submit_one(cluster, "failed", "exit 3"),
        "cancelled": slurm_jobs.submit_cancelled(cluster),
        "requeued": slurm_jobs.submit_requeued(cluster),
        "hostile": slurm_jobs.submit_one(cluster, slurm_jobs.HOSTILE, "true"),
    }
    array, het = slurm_jobs.submit_array(cluster), slurm_jobs.submit_het(cluster)
    cluster.wait_for_state(ids["timeout"], "RUNNING")
    assert found(config, ids["timeout"]).sources == (CONTROLLER, ACCOUNTING)
    for job_id in (*ids.values(), array, het, het + 1):
        forgotten(cluster, job_id)
    told = {kind: found(config, job_id) for kind, job_id in ids.items()}
    assert {one.sources for one in told.values()} == {(ACCOUNTING,)}
    assert {kind: (one.state, one.exit_code) for kind, one in told.items()} == {
        "timeout": ("TIMEOUT", 0), "finished": ("COMPLETED", 0), "failed": ("FAILED", 3),
        "cancelled": ("CANCELLED", 0), "requeued": ("FAILED", 4), "hostile": ("COMPLETED", 0),
    }  # fmt: skip
    assert [run.state for run in told["requeued"].runs] == ["REQUEUED", "FAILED"]
    assert (told["finished"].name, told["finished"].gpus) == ("train", 8)
    assert told["hostile"].user == JOB_USER
    assert str(told["hostile"].name).startswith("evil?JobId=1 JobName=x UserId=root(0)")
    tasks = [found(config, f"{array}_{task}") for task in (1, 2, 3)]
    assert [one.exit_code for one in tasks] == [1, 2, 3]
    assert [found(config, one.job_id).array_task for one in tasks] == [
        f"{array}_{task}" for task in (1, 2, 3)
    ]
    assert found(config, f"{het}+1").job_id == het + 1
    assert found(config, het + 1).het_job_id == het
    record, problems = find_record(99999, config)
    assert record is None
    assert len(problems) == 2


def test_accounting_alone_remains_when_slurmctld_is_gone(cluster: Cluster, config: Config) -> None:
    job_id = slurm_jobs.submit_one(cluster, "failed", "exit 3")
    cluster.wait_for_job(job_id)
    wait_until(
        lambda: "FAILED" in {run.state for run in found(config, job_id).runs}, 30, "stored", 0.5
    )
    assert cluster.head.stop("slurmctld")
    try:
        record, problems = find_record(job_id, config)
    finally:
        conf = str(cluster.layout.slurm_conf)
        cluster.head.start("slurmctld", ["slurmctld", "-D", "-f", conf])
        cluster.wait_idle()
    assert record is not None
    assert (record.state, record.exit_code, record.sources) == ("FAILED", 3, (ACCOUNTING,))
    assert problems[0].startswith("scontrol: ")


def test_slurmctld_alone_remains_when_slurmdbd_is_gone(cluster: Cluster, config: Config) -> None:
    assert cluster.head.stop("slurmdbd")
    try:
        job_id = slurm_jobs.submit_finished(cluster)
        cluster.wait_for_state(job_id, "COMPLETED")
        record, problems = find_record(job_id, config)
    finally:
        accounting_back(cluster)
    assert record is not None
    assert (record.state, record.sources) == ("COMPLETED", (CONTROLLER,))
    assert record.stdout_path is not None
    assert Path(record.stdout_path).exists()
    assert (record.name, record.switches_asked, record.tasks) == ("train", "1@2:00", 4)
    assert problems[0].startswith("sacct: ")


def accounting_back(cluster: Cluster) -> None:
    """Start slurmdbd again and wait until it answers."""
    accounting.start_slurmdbd(cluster.layout)
    wait_until(
        lambda: cluster.run_as("root", ["sacct"]).returncode == 0, 30, "slurmdbd answers", 0.5
    )


def test_the_leaf_switches_are_asked_of_slurm(config: Config) -> None:
    places, why = topology.ask_places(Path(config.scontrol))
    assert why == ""
    assert topology.used(places, ["n1", "n4"]) == {"leaf1": ("n1",), "leaf2": ("n4",)}


def test_what_ended_in_a_span_of_time_is_told_of_all_users(
    cluster: Cluster, config: Config
) -> None:
    begun_s = time.time() - 60
    mine = {slurm_jobs.submit_one(cluster, name, "true") for name in ("ended", slurm_jobs.HOSTILE)}
    sacct = config.scontrol.with_name("sacct")

    def told() -> set[int]:
        rows, why = ask_ended(sacct, begun_s, time.time())
        assert why == ""
        return {int(row["JobIDRaw"]) for row in rows}

    wait_until(lambda: mine <= told(), 60, "accounting has their ends", 0.5)
    assert not mine & {
        int(row["JobIDRaw"]) for row in ask_ended(sacct, begun_s - 3600, begun_s - 60)[0]
    }


# Task 3 dies first; the other tasks hang until srun ends them, and task 0 does not heed SIGTERM.
DEATHS = """srun -n4 --kill-on-bad-exit=1 bash -c '
    [ $SLURM_PROCID = 3 ] && sleep 2 && kill -9 $$
    [ $SLURM_PROCID = 0 ] && trap "" TERM
    while :; do sleep 0.2; done'
echo the job goes on; srun -n2 bash -c 'exit $((SLURM_PROCID * 5))'; exit 7
"""


def test_the_steps_of_a_job_and_sruns_lines_say_which_task_ended_how(
    cluster: Cluster, config: Config
) -> None:
    job_id = slurm_jobs.submit_one(cluster, "deaths", DEATHS, "-N2", "--ntasks=4")
    cluster.wait_for_job(job_id)
    wait_until(lambda: found(config, job_id).end_s is not None, 60, "its end", 0.5)
    record = found(config, job_id)
    assert record.stdout_path is not None
    text = Path(record.stdout_path).read_bytes()
    lines = read_launchers([text])
    first = lines.ends[0]
    assert (first.tasks, first.signal, first.by_launcher) == ("3", 9, False), text
    assert any(one.by_launcher for one in lines.ends), text
    assert (lines.ends[-1].tasks, lines.ends[-1].code) == ("1", 5), text
    wait_until(lambda: len(ask_steps(config.scontrol.with_name("sacct"), record)) >= 3, 60,
               "its steps", 0.5)  # fmt: skip
    steps = {one.name: one for one in ask_steps(config.scontrol.with_name("sacct"), record)}
    assert (record.exit_code, steps["batch"].exit_code) == (7, 7)
    assert (steps["0"].state, steps["0"].signal) in {("CANCELLED", 9), ("CANCELLED", 15)}, steps
    assert (steps["1"].state, steps["1"].exit_code) == ("FAILED", 5), steps
