"""A site's default for some of its jobs, and a site that lets nobody out of it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, Cluster, Options
from tests.sandbox.layout import REPO
from tests.support.sandbox import jobs
from tests.support.sandbox.own_cluster import brought_up
from tests.support.sandbox.small_jobs import controller_down

DEFAULT = "default=prom"
ENABLED = "NCCL_INSPECTOR_ENABLE=1\n"


def is_measured(cluster: Cluster, *words: str) -> bool:
    """Whether a job that asks for nothing is, in all its steps and on all its nodes."""
    script = "env\nsrun env"
    job_id = jobs.submit(cluster, "--mem=100", *words, script=script)
    assert cluster.wait_for_job(job_id).state == "COMPLETED"
    seen = jobs.output(cluster, job_id).count(ENABLED)
    tasks = jobs.output(cluster, job_id).count("\nSLURMD_NODENAME=")
    assert seen in (0, tasks), "all steps alike"
    jobs.wait_until_clean(cluster, job_id)
    return seen > 0


@pytest.mark.long
@pytest.mark.case("Policy of a site's default", "partitions: only jobs of these partitions")
def test_the_default_may_be_for_some_partitions(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    cluster.set_plugstack(DEFAULT, "partitions=debug,cpu")
    assert is_measured(cluster, "--partition=cpu")
    assert not is_measured(cluster, "--partition=gpu")
    assert is_measured(cluster, "--partition=gpu", "--nccl-inspector=report")
    # Whichever it runs in: Slurm tries them in this order.
    assert not is_measured(cluster, "--partition=gpu,cpu")


@pytest.mark.long
@pytest.mark.case("Policy of a site's default", "min_gpus: only larger jobs")
def test_the_default_may_be_for_large_jobs(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    cluster.set_plugstack(DEFAULT, "min_gpus=8")
    assert is_measured(cluster, "-N2", "--gpus-per-node=4")
    assert not is_measured(cluster, "-N2", "--gpus-per-node=3")
    assert not is_measured(cluster, "-N2")


@pytest.mark.case("Policy of a site's default", "sample: one job in k, by its id")
def test_the_default_may_be_for_one_job_in_several(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    cluster.set_plugstack(DEFAULT, "sample=3")
    ids = [jobs.submit(cluster, "--mem=100", script="env") for _ in range(6)]
    for job_id in ids:
        assert cluster.wait_for_job(job_id).state == "COMPLETED"
        assert (ENABLED in jobs.output(cluster, job_id)) == (job_id % 3 == 0)


@pytest.mark.long
@pytest.mark.case("Policy of a site's default", "opt-out by option and by variable")
def test_a_user_may_opt_out(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    cluster.set_plugstack(DEFAULT)
    assert is_measured(cluster)
    assert not is_measured(cluster, "--nccl-inspector=off")
    job_id = jobs.submit(
        cluster, "--mem=100", script="env; srun env", env={"SLURM_NCCL_INSPECTOR": "off"}
    )
    assert cluster.wait_for_job(job_id).state == "COMPLETED"
    assert ENABLED not in jobs.output(cluster, job_id)


@pytest.fixture(scope="module")
def cluster_with_qos(cluster_dir: Path) -> Iterator[Cluster]:
    """A cluster with accounting, whose user may have two QOS."""
    options = Options(monitoring=False, accounting=True, plugstack=(DEFAULT, "qos=urgent,high"))
    with brought_up(cluster_dir, options) as cluster:
        for words in (
            ("qos", "high"),
            ("account", "proj1"),
            ("user", JOB_USER, "account=proj1", "qos=normal,high", "defaultqos=normal"),
        ):
            done = cluster.run_as("root", ["sacctmgr", "--immediate", "add", *words])
            assert done.returncode == 0, done.stderr
        with controller_down(cluster):  # slurmdbd does not tell it here
            pass
        yield cluster


@pytest.mark.long
@pytest.mark.case("Policy of a site's default", "qos: only jobs with one of these QOS")
def test_the_default_may_be_for_some_qos(cluster_with_qos: Cluster) -> None:
    cluster = cluster_with_qos
    assert is_measured(cluster, "-N2", "--qos=high")
    bare = jobs.submit(cluster, "--mem=100", "--qos=high", "--export=NONE", script="env")
    assert cluster.wait_for_job(bare).state == "COMPLETED"
    assert ENABLED in jobs.output(cluster, bare)
    assert not is_measured(cluster, "--qos=normal")
    assert not is_measured(cluster)
    assert is_measured(cluster, "--nccl-inspector=report")
    said = cluster.run_as(JOB_USER, ["srun", "--qos=high", "-n1", "env"])
    assert ENABLED in said.stdout, said.stderr
    said = cluster.run_as(JOB_USER, ["salloc", "--qos=high", "-n1", "srun", "env"])
    assert ENABLED in said.stdout, said.stderr


# A site that enforces.


def snippet() -> str:
    """The script of the docs, for the sandbox's partition."""
    page = (REPO / "packaging" / "doc" / "site-policy.md").read_text()
    (script,) = re.findall(r"^```lua\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert "h100 = true" in script
    return str(script).replace("h100 = true", "gpu = true")


@pytest.fixture(scope="module")
def strict_cluster(cluster_dir: Path) -> Iterator[Cluster]:
    """A cluster whose job_submit.lua is the docs'."""
    options = Options(
        agents=False, monitoring=False, plugstack=(DEFAULT,),
        slurm_lines=("JobSubmitPlugins=lua",), etc_files=(("job_submit.lua", snippet()),),
    )  # fmt: skip
    with brought_up(cluster_dir, options) as cluster:
        yield cluster


COMMANDS = {"sbatch": ["--wrap", "true"], "srun": ["true"], "salloc": ["true"]}


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.case(
    "Policy of a site's default", "job_submit.lua of the docs refuses jobs that opt out"
)
def test_the_docs_script_refuses_whoever_opts_out_in_a_measured_partition(
    strict_cluster: Cluster, command: str
) -> None:
    def submit(*words: str) -> tuple[int, str]:
        argv = [command, "-n1", *words, *COMMANDS[command]]
        done = strict_cluster.run_as(JOB_USER, argv)
        return done.returncode, done.stderr

    for bad in ([], ["-p", "gpu"], ["-p", "cpu,gpu"]):
        status, said = submit("--nccl-inspector=off", *bad)
        assert status != 0
        assert "jobs of partition gpu are measured: submit without --nccl-inspector=off" in said
    for good in ([], ["--nccl-inspector=report"], ["-p", "cpu", "--nccl-inspector=off"]):
        assert submit(*good)[0] == 0
