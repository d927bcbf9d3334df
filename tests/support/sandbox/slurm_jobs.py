"""Jobs of every kind on a sandbox cluster with accounting, for what Slurm says of them."""

from tests.sandbox import JOB_USER, Cluster, Options, wait_until

TREE = (
    "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\n"
    "SwitchName=spine Switches=leaf[1-2]\n"
)
BLOCKS = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2\n"
HOSTILE = "evil\nJobId=1 JobName=x UserId=root(0) JobState=COMPLETED Switches=9|a|\x1b[31mé\u202e"
# Slurm's least for what has ended; it looks once a minute or less often.
FORGETS_SOON = "MinJobAge=2"
KEEPS = "MinJobAge=300"


def options(*lines: str, topology: str = "tree", accounting: bool = True) -> Options:
    """A cluster of Slurm alone, with two leaf switches or two blocks."""
    files = (("topology.conf", TREE if topology == "tree" else BLOCKS),)
    return Options(
        prolog=False, agents=False, monitoring=False, accounting=accounting, etc_files=files,
        slurm_lines=(f"TopologyPlugin=topology/{topology}", *lines),
    )  # fmt: skip


def submit_finished(cluster: Cluster) -> int:
    return cluster.sbatch(
        "-N2", "--nodelist=n[3-4]", "--ntasks-per-node=2", "--gpus-per-node=4", "--time=30",
        "--account=proj1", "--comment=a comment", "--switches=1@2:00", "--job-name=train",
        "--output=slurm-%x-%4j-%u-%N.out", "--wrap", "srun hostname",
    )  # fmt: skip


def submit_one(cluster: Cluster, name: str, script: str, *words: str) -> int:
    return cluster.sbatch("-N1", "-n1", f"--job-name={name}", *words, "--wrap", script)


def submit_requeued(cluster: Cluster) -> int:
    """A job that is in its first attempt, and requeued there; the second ends at once."""
    script = "test $SLURM_RESTART_COUNT && exit 4; sleep 100"
    job_id = submit_one(cluster, "requeued", script, "--requeue")
    cluster.wait_for_state(job_id, "RUNNING")
    cluster.run_as("root", ["scontrol", "requeue", str(job_id)])
    return job_id


def submit_cancelled(cluster: Cluster) -> int:
    job_id = submit_one(cluster, "cancelled", "sleep 100")
    cluster.wait_for_state(job_id, "RUNNING")
    cluster.run_as(JOB_USER, ["scancel", str(job_id)])
    return job_id


def submit_array(cluster: Cluster) -> int:
    return submit_one(cluster, "array", "exit $SLURM_ARRAY_TASK_ID", "--array=1-3")


def submit_het(cluster: Cluster) -> int:
    words = ["-N1", "-n1", "--job-name=het", ":", "-N2", "-n2", "--gpus-per-node=1"]
    return cluster.sbatch(*words, script="#!/bin/sh\nexit 0\n")


def unfinished(cluster: Cluster) -> set[int]:
    """The jobs that have not ended, arrays by their own id. (A name may have newlines.)"""
    done = cluster.run_as("root", ["squeue", "--noheader", "--format=%F"])
    return {int(line) for line in done.stdout.split()}


def submit_all(cluster: Cluster) -> dict[str, int]:
    """One of each kind, by what it is; those that end have ended."""
    jobs = {
        "timeout": submit_one(cluster, "timeout", "sleep 200", "--time=1"),
        "requeued": submit_requeued(cluster),
        "finished": submit_finished(cluster),
        "failed": submit_one(cluster, "failed", "exit 3"),
        "signalled": submit_one(cluster, "signalled", "kill -9 $$"),
        "cancelled": submit_cancelled(cluster),
        "array": submit_array(cluster),
        "held": submit_one(cluster, "held", "true", "--hold", "--array=1-4%2"),
        "het": submit_het(cluster),
        "hostile": submit_one(cluster, HOSTILE, "true", f"--comment={HOSTILE}"),
    }
    if cluster.layout.release >= (24, 11):
        jobs["segment"] = submit_one(cluster, "segment", "true", "--segment=1")
    wait_until(lambda: unfinished(cluster) == {jobs["held"]}, 200, "all jobs have ended", 0.5)
    jobs["running"] = submit_one(cluster, "running", "sleep 300")
    cluster.wait_for_state(jobs["running"], "RUNNING")
    return jobs
