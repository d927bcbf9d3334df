"""NVIDIA's own plugin (its stand-in) under our hooks and agent, on the real cluster."""

import json

import pytest

from tests.sandbox import NODES, Cluster, wait_until
from tests.support import exposition
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_exporter_is_well
from tests.support.sandbox.small_jobs import ENDLESS, TWO_NODES

RATE = "nccl_bus_bandwidth_gbs"
# It looks for channels from 0 on, and the stand-in has others too: without the last word no time.
QUICK_DUMPS = {
    "NVIDIA_STANDIN_PROM_FLOOR_MICROSECONDS": "1000000",
    "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING": "0",
}


@pytest.fixture
def vendor_cluster(healthy_cluster: Cluster) -> Cluster:
    """Jobs load the stand-in of NVIDIA's plugin."""
    cluster = healthy_cluster
    cluster.set_conf(profiler=str(cluster.tool("nvidia-standin.so")))
    return cluster


def rates(cluster: Cluster, job_id: int) -> list[exposition.Series]:
    """The job's bandwidths in the answers of all node_exporters."""
    found = [one for node in NODES for one in exposition.read_prom(cluster.node(node).metrics())]
    return [one for one in found if one.name == RATE and one.labels["slurm_job_id"] == str(job_id)]


@pytest.mark.long
@pytest.mark.case("Identities", "NVIDIA's own plugin as `profiler`: torn files without identity")
def test_nvidias_own_plugin_is_published_under_the_jobs_identity(vendor_cluster: Cluster) -> None:
    cluster = vendor_cluster
    script = f"srun {jobs.standin(cluster, *ENDLESS)}"
    job_id = jobs.submit(cluster, *TWO_NODES, script=script, env=QUICK_DUMPS)
    wait_until(
        lambda: len({one.labels["gpu"] for one in rates(cluster, job_id)}) >= 2
        and len({one.labels["node"] for one in rates(cluster, job_id)}) == 2,
        30, "bandwidths of both nodes", 0.2,
    )  # fmt: skip
    for one in rates(cluster, job_id):
        assert one.labels["cluster"] == "sandbox"
        assert one.labels["slurm_nodelist"] == "n[1-2]"
        assert one.labels["gpu"].startswith("GPU-")
        assert one.value > 0
        assert one.labels.get("rank", "") == one.labels.get("comm", "") == ""
    for name in ("n1", "n2"):
        assert_exporter_is_well(cluster.node(name))
    cluster.run_as("root", ["scancel", str(job_id)])
    assert jobs.finish(cluster, job_id) == "CANCELLED"
    assert rates(cluster, job_id) == []
    said = "measured by NVIDIA's plugin: no counts"
    wait_until(lambda: said in jobs.report(cluster, job_id), 30, "its report", 0.5)
    report = json.loads(cluster.report(job_id, "--json").stdout)
    assert (report["verdict"]["status"], report["exit_code"]) == ("CANNOT TELL", 3)
    assert report["communicators"][0]["nodes"] == ["n1", "n2"]
    assert {one["func"] for one in report["operations"]} >= {"AllReduce"}
