# SPDX-License-Identifier: Apache-2.0
"""Automatic at job end, with a real slurmctld: its epilog queues, the service stores."""

import json
import pwd
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, wait_until
from tests.sandbox.layout import OTHER_USER, REPORT_USER
from tests.support.sandbox import jobs
from tests.support.sandbox.controller_site import WAIT_S, Service, controlled
from tests.support.sandbox.small_jobs import ONE_NODE, SHORT, TWO_NODES, controller_down, run, start

pytestmark = pytest.mark.long
HET = ("--nccl-inspector=prom", "-N1", "--ntasks=2", "--gpus-per-task=1")


@pytest.fixture(scope="module")
def variant(cluster_dir: Path) -> Iterator[Service]:
    """A cluster whose controller has our epilog."""
    with controlled(cluster_dir.parent) as found:
        yield found


@pytest.fixture
def service(variant: Service) -> Iterator[Service]:
    """The service at work; afterwards without jobs and with an empty queue."""
    variant.start()
    yield variant
    if variant.process:
        variant.stop()
    variant.cluster.reset()
    for path in (variant.folder / "queue").iterdir():
        path.unlink()


def can_read(service: Service, user: str, path: Path) -> bool:
    done = service.cluster.head.run(["cat", str(path)], user=user, cwd=Path("/"))
    return done.returncode == 0


def history(service: Service, user: str) -> list[int]:
    done = service.command(user, "history", "--json")
    return [job["job_id"] for job in json.loads(done.stdout)["jobs"]] if done.stdout else []


def test_the_report_of_an_ended_job_is_there_for_its_user_alone(service: Service) -> None:
    job_id, state = run(service.cluster, *TWO_NODES)
    assert state == "COMPLETED"
    card = service.wait_stored(job_id)
    assert (card.job.user, card.job.exit_code, card.job.nodelist) == (JOB_USER, "0:0", "n[1-2]")
    assert card.data_quality.nodes_missing == ()
    service.wait_empty()
    path = service.store / str(job_id) / "0.json"
    assert can_read(service, JOB_USER, path)
    assert not can_read(service, OTHER_USER, path)
    assert job_id in history(service, JOB_USER)
    assert history(service, OTHER_USER) == []
    assert job_id in history(service, "root")
    # Without accounting nobody keeps the comment of a job that is over: that is said.
    assert "no AdminComment" in service.stop()


def test_each_attempt_of_a_requeued_job_has_its_report(service: Service) -> None:
    cluster = service.cluster
    words = ("--requeue", *TWO_NODES)
    line = f"srun {jobs.standin(cluster, *SHORT)}\n[ $SLURM_RESTART_COUNT ] || sleep 60"
    job_id = jobs.submit(cluster, *words, script=line)
    jobs.wait_for_operations(cluster, job_id, 4, 9)
    wait_until(lambda: len(jobs.tasks(cluster)) == 0, 20, "the first attempt has done its step")
    cluster.run_as("root", ["scontrol", "requeue", str(job_id)])
    assert service.wait_stored(job_id, 0).job.restart == 0
    assert jobs.finish(cluster, job_id, 90) == "COMPLETED"
    assert service.wait_stored(job_id, 1).job.restart == 1
    service.wait_empty()


def test_a_het_job_is_one_report(service: Service) -> None:
    line = f"srun {jobs.standin(service.cluster, *SHORT)} : {jobs.standin(service.cluster, *SHORT)}"
    job_id = jobs.submit(service.cluster, *HET, ":", *HET[1:], script=line)
    assert jobs.finish(service.cluster, job_id) == "COMPLETED"
    assert service.wait_stored(job_id).job.het_components == (job_id, job_id + 1)
    service.wait_empty()
    assert not (service.store / str(job_id + 1)).exists()


def test_a_job_without_nccl_leaves_nothing(service: Service) -> None:
    job_id = service.cluster.sbatch("-N1", "--wrap", "true")
    service.cluster.wait_for_job(job_id)
    service.wait_empty()
    assert not (service.store / str(job_id)).exists()


def test_many_ended_jobs_of_one_user_do_not_come_before_the_one_of_another(
    service: Service,
) -> None:
    cluster = service.cluster
    service.stop()
    line = f"srun {jobs.standin(cluster, *SHORT)}\nyes 'loss 2.5 of a step' | head -c 20000000"
    many = [jobs.submit(cluster, *ONE_NODE, script=line, user=OTHER_USER) for _ in range(5)]
    assert {jobs.finish(cluster, one, 90) for one in many} == {"COMPLETED"}
    one, state = run(cluster, *ONE_NODE)
    assert state == "COMPLETED"
    wait_until(lambda: len(service.queued()) == len(many) + 1, 20, "all are queued")
    time.sleep(WAIT_S)  # until the last one is due as well
    service.start()
    for other in (one, *many):
        service.wait_stored(other)
    service.wait_empty()
    stored = {other: (service.store / str(other) / "0.json").stat().st_mtime_ns for other in many}
    own = (service.store / str(one) / "0.json").stat().st_mtime_ns
    assert sum(other < own for other in stored.values()) <= 1


def test_nothing_is_lost_while_service_and_slurmctld_are_down(service: Service) -> None:
    service.stop(kill=True)
    first, state = run(service.cluster, *ONE_NODE)
    assert state == "COMPLETED"
    second = start(service.cluster, *TWO_NODES)
    with controller_down(service.cluster):
        pass
    service.cluster.run_as("root", ["scancel", str(second)])
    assert jobs.finish(service.cluster, second) == "CANCELLED"
    wait_until(lambda: len(service.queued()) == 2, 20, "both are queued")
    mark = f".u{pwd.getpwnam(JOB_USER).pw_uid}"
    assert all(name.endswith(mark) for name in service.queued()), "whose they are"
    service.start()
    assert service.wait_stored(first).job.exit_code == "0:0"
    assert service.wait_stored(second).data_quality.killed
    service.wait_empty()


def test_a_node_that_never_tells_is_named_in_the_report(service: Service) -> None:
    cluster = service.cluster
    cluster.node("n2").stop("agent")
    job_id = jobs.submit(cluster, *TWO_NODES, script=f"srun {jobs.standin(cluster, *SHORT)}")
    cluster.wait_for_job(job_id)
    assert service.wait_stored(job_id).data_quality.nodes_missing == ("n2",)


def test_a_full_store_delays_reports_and_loses_none(service: Service) -> None:
    head = service.cluster.head
    service.stop()
    owner = pwd.getpwnam(REPORT_USER)
    words = f"size=256k,uid={owner.pw_uid},gid={owner.pw_gid},mode=0711"
    done = head.run(["mount", "-t", "tmpfs", "-o", words, "full", str(service.store)])
    assert done.returncode == 0, done.stderr
    try:
        head.run(["sh", "-c", f"cat /dev/zero >{service.store}/filler"])
        job_id, _ = run(service.cluster, *ONE_NODE)
        wait_until(lambda: bool(service.queued()), 20, "it is queued")

        def refused() -> bool:
            done = service.command(REPORT_USER, "controller", "--once")
            return f"job {job_id}: not yet" in done.stderr and "1 ended jobs wait" in done.stdout

        # The service's pauses are over at once here.
        wait_until(refused, 20, "it cannot be stored")
        assert [name for name in service.queued() if ".try" in name] == []
        head.run(["rm", f"{service.store}/filler"])
        assert once(service) == ""
        listed = head.run(["ls", f"{service.store}/{job_id}"]).stdout.split()
        assert listed == ["0.html", "0.json"]
        assert service.queued() == []
    finally:
        head.run(["umount", "-l", str(service.store)])


def once(service: Service) -> str:
    return service.command(REPORT_USER, "controller", "--once").stdout
