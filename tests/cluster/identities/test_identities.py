"""Whose number is it: arrays, het jobs, steps, shared GPUs and launchers, each told apart."""

import re
import shutil
from pathlib import Path

import pytest

from nccl_inspector.model.process import Process
from tests.sandbox import Cluster, Options, wait_until
from tests.support import exposition
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_nothing_missing
from tests.support.sandbox.own_cluster import brought_up

ENDLESS = ("--steps", "100000", *jobs.QUICK)
SHORT = ("--steps", "3", *jobs.QUICK)
OPERATIONS = 3 * 3  # of a rank in SHORT: three functions on one communicator
SHARED = ("--nccl-inspector=prom", "--mem=500")
COUNTER = "nccl_collective_operations_total"


def series(cluster: Cluster, job_id: int) -> list[exposition.Series]:
    """Every series that the agents publish of the job now, of all nodes."""
    found = []
    for node in cluster.nodes.values():
        path = f"/run/nccl-inspector/prom/{job_id}.prom"
        text = node.run(["sh", "-c", f"cat {path} 2>/dev/null"]).stdout
        found += exposition.read_prom(text)
    return found


def measured(cluster: Cluster, job_id: int) -> list[dict[str, str]]:
    """The labels of the published counters of operations, one set for each rank and function."""
    found = [one.labels for one in series(cluster, job_id) if one.name == COUNTER]
    assert len({tuple(sorted(labels.items())) for labels in found}) == len(found), "all distinct"
    return found


def wait_for_series(cluster: Cluster, job_id: int, ranks: int) -> list[dict[str, str]]:
    """Wait for all three functions of so many ranks."""
    wait_until(
        lambda: len(measured(cluster, job_id)) == 3 * ranks,
        15, f"series of {ranks} ranks of job {job_id}", 0.2,
    )  # fmt: skip
    return measured(cluster, job_id)


def processes(cluster: Cluster, job_id: int) -> list[Process]:
    """What the node summaries of the job have, in the order of nodes."""
    found = jobs.summaries(cluster, job_id)
    return [process for node in sorted(found) for process in found[node].processes]


def operations(process: Process) -> int:
    return sum(key.ops for key in process.keys)


def cancel(cluster: Cluster, *ids: int) -> None:
    cluster.run_as("root", ["scancel", *map(str, ids)])
    for job_id in ids:
        jobs.finish(cluster, job_id)


# Arrays and het jobs.


def array_tasks(cluster: Cluster, array: int) -> dict[int, int]:
    """The job ids of an array's tasks, by number."""
    words = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={array}", "--format=%K %A"]
    lines = cluster.run_as("root", words).stdout.splitlines()
    return {int(number): int(job) for number, job in (line.split() for line in lines)}


@pytest.mark.long
@pytest.mark.case("Identities", "tasks of an array: each is a job, with the array's number")
def test_each_task_of_an_array_is_a_job_and_knows_its_number(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    script = f"srun {jobs.standin(cluster, *ENDLESS)}"
    words = (*SHARED, "--array=0,7", "-N1", "-n2", "--gpus-per-task=1")
    array = jobs.submit(cluster, *words, script=script)
    # Before they start, all tasks have the array's number.
    started = lambda: len(set(array_tasks(cluster, array).values())) == 2  # noqa: E731
    wait_until(started, 10, "two jobs", 0.1)
    tasks = array_tasks(cluster, array)
    assert tasks.keys() == {0, 7}
    for job_id in tasks.values():
        found = wait_for_series(cluster, job_id, 2)
        assert {labels["slurm_job_id"] for labels in found} == {str(job_id)}
    cancel(cluster, *tasks.values())
    for number, job_id in tasks.items():
        assert {one.facts.array_task for one in processes(cluster, job_id)} == {f"{array}_{number}"}
        assert f"job {job_id} (array task {array}_{number})" in jobs.report(cluster, job_id)


@pytest.mark.long
@pytest.mark.case("Identities", "a job that an array's task submits does not belong to the array")
def test_a_job_that_an_arrays_task_submits_is_none_of_the_array(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    inner = f"#!/bin/sh\nsrun {jobs.standin(cluster, *SHORT)}\n"
    cluster.run_as("nccl-demo", ["sh", "-c", "cat >inner.sh"], stdin=inner)
    script = "sbatch --parsable --wait --mem=500 -n2 --nccl-inspector=report inner.sh"
    array = jobs.submit(cluster, *SHARED, "--array=3", "-n1", script=script)
    (outer,) = array_tasks(cluster, array).values()
    assert jobs.finish(cluster, outer) == "COMPLETED"
    job_id = int(jobs.output(cluster, outer).split()[0])
    jobs.finish(cluster, job_id)
    found = processes(cluster, job_id)
    assert [operations(one) for one in found] == [OPERATIONS] * 2
    assert {one.facts.array_task for one in found} == {""}
    assert f"job {job_id}, name " in jobs.report(cluster, job_id)


@pytest.mark.long
@pytest.mark.case("Identities", "a het job: series of each component, one report of all")
def test_a_het_job_has_series_of_each_component_and_one_report(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    size = ("-N1", "-n2", "--mem=500", "--gpus-per-task=1")
    script = f"srun --het-group=0,1 {jobs.standin(cluster, *ENDLESS)}"
    leader = jobs.submit(cluster, "--nccl-inspector=prom", *size, ":", *size, script=script)
    components = [leader, leader + 1]
    ranks = {
        job_id: {labels["rank"] for labels in wait_for_series(cluster, job_id, 2)}
        for job_id in components
    }
    assert ranks == {leader: {"0", "1"}, leader + 1: {"2", "3"}}
    cluster.run_as("root", ["scancel", str(leader)])
    for job_id in components:
        jobs.finish(cluster, job_id)
    text = jobs.report(cluster, leader)
    for job_id in components:
        assert jobs.report(cluster, job_id) == text
        assert f"job {leader} (het: components {leader}, {leader + 1})" in text
        assert "4 ranks" in text
        assert "did not end in order, data up to the last event: rank 0" in text


# Steps.


@pytest.mark.long
@pytest.mark.case("Identities", "several steps at once, on the same resources")
def test_steps_that_run_at_once_are_told_apart(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    step = f"srun --overlap -n2 --gpus=2 {jobs.standin(cluster, *SHORT)}"
    script = f"{step} &\n{step.replace('oplog', 'other')} &\nwait"
    words = (*SHARED, "--nodelist=n1", "-n2", "--gpus-per-node=2")
    job_id = jobs.submit(cluster, *words, script=script)
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    found = processes(cluster, job_id)
    places = sorted((one.facts.step, one.facts.procid) for one in found)
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [operations(one) for one in found] == [OPERATIONS] * 4
    text = jobs.report(cluster, job_id)
    assert "4 processes in 2 steps" in text


@pytest.mark.long
@pytest.mark.case("Identities", "two ranks on one GPU")
def test_two_ranks_on_one_gpu_have_series_of_their_own(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    words = (*SHARED, "--nodelist=n1", "-n2", "--gpus-per-node=1")
    script = f"srun {jobs.standin(cluster, *ENDLESS)}"
    job_id = jobs.submit(cluster, *words, script=script)
    found = wait_for_series(cluster, job_id, 2)
    assert len({labels["gpu"] for labels in found}) == 1
    assert {labels["rank"] for labels in found} == {"0", "1"}
    errors = cluster.node("n1").metrics()
    assert "node_textfile_scrape_error 0\n" in errors
    assert f'slurm_job_id="{job_id}"' in errors
    cancel(cluster, job_id)


# Launchers.

TORCHRUN = """srun sh -c '
export WORLD_SIZE=8
for local in 0 1 2 3; do
    LOCAL_RANK=$local RANK=$((SLURM_PROCID * 4 + local)) {command} &
done
wait'"""


def assert_a_world_of_eight(cluster: Cluster, job_id: int, world: str) -> None:
    """Eight ranks on two nodes, four GPUs each, every one with its own numbers and name."""
    found = processes(cluster, job_id)
    comms = [comm for one in found for comm in one.comms]
    assert sorted(comm.rank for comm in comms) == list(range(8))
    assert {(comm.nranks, comm.name) for comm in comms} == {(8, world)}
    assert [operations(one) for one in found] == [OPERATIONS] * 8
    labels = [gpu.label for one in found for gpu in one.gpus]
    assert sorted(labels) == sorted([f"GPU{minor}" for minor in range(4)] * 2)
    text = jobs.report(cluster, job_id)
    assert re.search(r"2 nodes, 8 (ranks|processes in 2 steps)", text), text
    assert_nothing_missing(text)


@pytest.mark.long
@pytest.mark.case("Identities", "a launcher like torchrun: one task a node, four processes each")
def test_processes_that_share_a_task_are_told_apart(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    words = (*SHARED, "-N2", "--ntasks-per-node=1", "--gpus-per-node=4")
    script = TORCHRUN.format(command=jobs.standin(cluster, *SHORT))
    job_id = jobs.submit(cluster, *words, script=script)
    assert jobs.finish(cluster, job_id) == "COMPLETED", jobs.output(cluster, job_id)
    assert {one.facts.procid for one in processes(cluster, job_id)} == {0, 1}
    assert_a_world_of_eight(cluster, job_id, "standin_world")


MPIRUN = """cat >as-mpi-says.sh <<'END'
#!/bin/sh
export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
export LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK
exec {command}
END
chmod +x as-mpi-says.sh
# All nodes are this host, which has no eight cores. From release 5 on, mpirun refuses lo beside
# another interface.
case $(mpirun --version) in *"Open MPI) 4."*) set -- --mca oob_tcp_if_include lo ;; esac
mpirun "$@" --bind-to none --mca btl self,tcp --mca btl_tcp_if_include lo ./as-mpi-says.sh
"""


@pytest.mark.long
@pytest.mark.case("Identities", "Open MPI's mpirun")
def test_what_mpirun_starts_is_one_world(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    if cluster.layout.tree or not shutil.which("mpirun"):
        pytest.skip("no mpirun beside this Slurm")
    words = (*SHARED, "-N2", "--ntasks-per-node=4", "--gpus-per-node=4")
    rendezvous = f"--rendezvous={cluster.home()}/mpi"
    script = MPIRUN.format(command=jobs.standin(cluster, *SHORT, rendezvous))
    job_id = jobs.submit(cluster, *words, script=script)
    assert jobs.finish(cluster, job_id) == "COMPLETED", jobs.output(cluster, job_id)
    steps = {one.facts.step for one in processes(cluster, job_id)}
    assert steps == {None, 0}, "the batch step and mpirun's own"
    assert_a_world_of_eight(cluster, job_id, "standin_world")


# Names. Two jobs on a node are in test_tenants.


@pytest.mark.long
@pytest.mark.case("Identities", "NodeName is not the host name")
def test_a_node_is_called_by_its_node_name(cluster_dir: Path) -> None:
    options = Options(monitoring=False, host_prefix="gpu-host-")
    with brought_up(cluster_dir, options) as cluster:
        words = (*SHARED, "--nodelist=n2", "-n2", "--gpus-per-task=1")
        job_id = jobs.submit(cluster, *words, script=f"srun {jobs.standin(cluster, *ENDLESS)}")
        found = wait_for_series(cluster, job_id, 2)
        assert {labels["node"] for labels in found} == {"n2"}
        cancel(cluster, job_id)
        assert jobs.summaries(cluster, job_id).keys() == {"n2"}
        assert "rank 0 (n2)" in jobs.report(cluster, job_id)
