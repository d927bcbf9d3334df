"""Bad places on a node while jobs run: no job is harmed, a log says why, the next is measured."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sandbox import Cluster, wait_until
from tests.support.sandbox import jobs
from tests.support.sandbox.small_jobs import ENDLESS, ONE_NODE, SHORT, SMALL, hook_script, run

pytestmark = pytest.mark.long  # all of them together
LIFECYCLE = "Lifecycle"
RUN_DIR = "/run/nccl-inspector"
FILL = f"{RUN_DIR}/fill"  # beside jobs/: control/ has a file system of its own


@dataclass(frozen=True)
class Place:
    """What root's shell breaks and puts right again, and what the prolog says in between."""

    broken: str
    repaired: str
    said: str


FULL = "the tmpfs is full"
NO_INODES = "no inodes are left"
READ_ONLY = "the tmpfs is read-only"
NO_JOBS = "jobs/ is gone"
NO_ENDED = "ended/ is gone"

PLACES = {
    FULL: Place(
        f"dd if=/dev/zero of={FILL} bs=1M 2>/dev/null || test -s {FILL}", f"rm {FILL}",
        f"is {RUN_DIR} full\\?|No space left on device",
    ),
    NO_INODES: Place(
        f"mkdir {FILL}; cd {FILL}; ! seq 30000 | xargs touch 2>/dev/null", f"rm -r {FILL}",
        "No space left on device",
    ),
    READ_ONLY: Place(
        f"mount -o remount,ro {RUN_DIR}", f"mount -o remount,rw {RUN_DIR}", "Read-only file system"
    ),
    NO_JOBS: Place(
        f"rm -r {RUN_DIR}/jobs", f"mkdir -m 0711 {RUN_DIR}/jobs", f"there is no {RUN_DIR}/jobs"
    ),
    NO_ENDED: Place(f"rm -r {RUN_DIR}/ended", f"mkdir -m 0700 {RUN_DIR}/ended", ""),
}  # fmt: skip


@contextmanager
def bad(cluster: Cluster, name: str) -> Iterator[None]:
    """The node n1 with this place broken."""
    node, place = cluster.node("n1"), PLACES[name]
    done = node.run(["sh", "-ec", place.broken])
    assert done.returncode == 0, done.stderr
    try:
        yield
        if name in (NO_JOBS, NO_ENDED):
            wait_until(lambda: node.process("agent") is None, 10, "the agent has noticed")
            assert "No such file or directory" in node.agent_log()
    finally:
        # As the agent's unit: systemd-tmpfiles first, then the agent.
        done = node.run(["sh", "-ec", place.repaired])
        assert done.returncode == 0, done.stderr
        if node.process("agent") is None:
            assert node.start_agent()


def noted(cluster: Cluster, kind: str) -> Path:
    """Let the product's hook write what it says to `<path>-<job id>`."""
    note = cluster.layout.root / "log" / f"said-{kind}"
    cluster.take_hook(kind)
    cluster.add_hook(kind, "50-noted.sh", hook_script(cluster, kind, note))
    return note


def said(note: Path, job_id: int) -> list[str]:
    """The lines of a hook that has exited 0."""
    *lines, last = Path(f"{note}-{job_id}").read_text().splitlines()
    assert last == "status 0"
    return lines


def assert_unharmed(cluster: Cluster, job_id: int) -> None:
    ended = cluster.wait_for_job(job_id)
    assert (ended.state, ended.exit_code) == ("COMPLETED", "0:0")
    cluster.wait_idle()


def assert_next_job_is_published_and_reported(cluster: Cluster) -> None:
    """The place is as good as before, for an agent that has seen it all."""
    job_id = jobs.submit(cluster, *SMALL, script=f"srun {jobs.standin(cluster, *ENDLESS)}")
    mark = f'slurm_job_id="{job_id}"'
    wait_until(lambda: mark in cluster.node("n1").metrics(), 15, "the next job's series", 0.1)
    cluster.run_as("root", ["scancel", str(job_id)])
    assert jobs.finish(cluster, job_id) == "CANCELLED"
    assert jobs.summaries(cluster, job_id).keys() == {"n1"}


def cases(*names: str) -> list[object]:
    return [
        pytest.param(name, id=name, marks=pytest.mark.case(LIFECYCLE, f"on a node {name}"))
        for name in names
    ]


@pytest.mark.parametrize("name", cases(FULL, NO_INODES, READ_ONLY, NO_JOBS))
def test_a_job_that_starts_in_a_bad_place_runs_without_metrics(
    healthy_cluster: Cluster, name: str
) -> None:
    cluster = healthy_cluster
    note = noted(cluster, "prolog")
    with bad(cluster, name):
        job_id, _ = run(cluster, *ONE_NODE, env={"NCCL_DEBUG": "INFO"})
        assert_unharmed(cluster, job_id)
    # A pass of the agent may free the page that the manifest needs: then the plugin says it.
    lines = [*said(note, job_id), *jobs.output(cluster, job_id).splitlines()]
    assert re.search(f"job {job_id}: .*({PLACES[name].said})", "\n".join(lines))
    assert jobs.summaries(cluster, job_id) == {}
    assert_next_job_is_published_and_reported(cluster)


@pytest.mark.parametrize("name", cases(FULL, NO_INODES, READ_ONLY, NO_JOBS))
def test_a_step_that_starts_in_a_bad_place_runs_without_metrics(soon: Cluster, name: str) -> None:
    cluster = soon
    script = f"until [ -e go ]; do sleep 0.1; done; rm go; srun {jobs.standin(cluster, *SHORT)}"
    job_id = jobs.submit(cluster, *ONE_NODE, script=script, env={"NCCL_DEBUG": "INFO"})
    cluster.wait_for_state(job_id, "RUNNING")
    with bad(cluster, name):
        (cluster.home() / "go").touch()
        assert_unharmed(cluster, job_id)
    jobs.wait_until_clean(cluster, job_id)
    assert jobs.summaries(cluster, job_id) == {}
    why = jobs.output(cluster, job_id) + "\n".join(jobs.slurmd_lines(cluster, "n1", job_id))
    assert re.search("nccl-inspector: .*(No space|Read-only|no directory)", why)
    assert_next_job_is_published_and_reported(cluster)


@pytest.mark.parametrize("name", cases(FULL, NO_INODES, NO_ENDED))
def test_what_was_measured_before_a_place_went_bad_is_reported(soon: Cluster, name: str) -> None:
    cluster = soon
    note = noted(cluster, "epilog")
    script = f"srun {jobs.standin(cluster, '--steps', '60', *jobs.QUICK)}"
    job_id = jobs.submit(cluster, *ONE_NODE, script=script)
    jobs.wait_for_operations(cluster, job_id, 2)
    with bad(cluster, name):
        assert_unharmed(cluster, job_id)
    jobs.wait_until_clean(cluster, job_id)
    lines = said(note, job_id)
    assert bool(lines) == (name == NO_ENDED), "else it has nothing to say"
    summary = jobs.summaries(cluster, job_id)["n1"]
    assert {key.ops for process in summary.processes for key in process.keys} == {60}
    assert_next_job_is_published_and_reported(cluster)


@pytest.mark.case(LIFECYCLE, "a user removes their own right to write into raw/")
def test_a_raw_directory_closed_by_its_owner_costs_his_metrics_only(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    script = f"chmod 0500 {RUN_DIR}/jobs/$SLURM_JOB_ID/raw\nsrun {jobs.standin(cluster, *SHORT)}"
    job_id = jobs.submit(cluster, *ONE_NODE, script=script, env={"NCCL_DEBUG": "INFO"})
    assert_unharmed(cluster, job_id)
    jobs.wait_until_clean(cluster, job_id)
    assert jobs.summaries(cluster, job_id) == {}
    assert re.search("nccl-inspector: .*Permission denied", jobs.output(cluster, job_id))
