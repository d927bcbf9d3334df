# SPDX-License-Identifier: Apache-2.0
"""A job on nodes with adapters and GPUs, from their counters to its report."""

from functools import partial

import pytest

from nccl_inspector.counters.counter_record import CounterRecord
from nccl_inspector.counters.node_counters import NodeCounters
from tests.sandbox import Cluster, wait_until
from tests.sandbox.config import nvml_lines
from tests.sandbox.layout import GPUS_PER_NODE
from tests.support import fake_hardware
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_nothing_missing


def counters(cluster: Cluster, job_id: int) -> dict[str, NodeCounters]:
    """Those of the job's summaries, by node."""
    found = jobs.summaries(cluster, job_id)
    return {node: one.counters for node, one in found.items() if one.counters}


def is_sampled(cluster: Cluster, job_id: int, node: str) -> bool:
    """Whether an agent has a sample of both sources to which the job's later ones are put."""
    done = cluster.node(node).run(["cat", f"/run/nccl-inspector/jobs/{job_id}/counters"])
    if done.returncode:
        return False
    spans = CounterRecord.decode(done.stdout.encode()).counters().spans
    return {"infiniband", "gpu"} <= {span.source for span in spans}


@pytest.mark.long
def test_a_links_and_a_gpus_errors_are_in_prometheus_and_in_the_report(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    layout = cluster.layout
    job_id = jobs.submit(
        cluster, "--nccl-inspector=prom", "-N2", "-w", "n1,n4", "--ntasks-per-node=1",
        "--gpus-per-task=2",
        script=f"srun {jobs.standin(cluster, '--steps', '3', *jobs.QUICK)}\n"
        "while [ ! -e go.$SLURM_JOB_ID ]; do sleep 0.1; done",
    )  # fmt: skip
    port = layout.sys("n1") / "class/infiniband/mlx5_0/ports/1"
    try:
        timeouts = 'nccl_node_port_events_total{node="n1",device="mlx5_0",event="ack_timeout"}'
        wait_until(lambda: bool(cluster.query(timeouts)), 15, "n1's port is in Prometheus", 0.2)
        # It may be there of the job before this one.
        for node in ("n1", "n4"):
            sampled = partial(is_sampled, cluster, job_id, node)
            wait_until(sampled, 15, f"the job's first sample on {node}", 0.2)
        nvlinks = 'nccl_node_gpu_nvlinks_active{node="n1"}'
        wait_until(lambda: bool(cluster.query(nvlinks)), 15, "n1's GPUs are in Prometheus", 0.2)
        links = cluster.query(nvlinks)
        assert {one.labels["gpu"]: one.value for one in links} == {
            f"GPU{n}": 2 for n in range(GPUS_PER_NODE)
        }
        assert not cluster.query('nccl_node_port_events_total{node="n4"}')
        # A link that flaps, and a GPU whose NVLink is retrained.
        fake_hardware.write(port / "counters/link_downed", 1)
        fake_hardware.write(port / "hw_counters/local_ack_timeout_err", 41)
        lines = [line.replace("0 field.162.1 0", "0 field.162.1 3") for line in nvml_lines("n1")]
        fake_hardware.write_nvml(layout.nvml("n1"), lines, GPUS_PER_NODE)
        (cluster.home() / f"go.{job_id}").touch()
        assert jobs.finish(cluster, job_id) == "COMPLETED"
        # The last sample is taken after the job's end.
        wait_until(lambda: set(counters(cluster, job_id)) == {"n1", "n4"}, 30, "both summaries")
    finally:
        fake_hardware.write_nvml(layout.nvml("n1"), nvml_lines("n1"), GPUS_PER_NODE)
        for name in ("counters/link_downed", "hw_counters/local_ack_timeout_err"):
            fake_hardware.write(port / name, 0)
    found = counters(cluster, job_id)
    assert {span.source: span.absent for span in found["n4"].spans if span.absent} == {
        "infiniband": "no port of InfiniBand or RoCE", "gpu": "no NVIDIA driver",
    }  # fmt: skip
    devices = {one.name: one for one in found["n1"].devices}
    assert devices["mlx5_0/1"].counts["link_downed"].total == 1
    assert devices["mlx5_1/1"].counts["link_downed"].total == 0
    assert {name for name in devices if name.startswith("GPU")} == {
        "GPU0", "GPU0/0", "GPU0/1", "GPU1", "GPU1/0", "GPU1/1",
    }  # fmt: skip
    text = jobs.report(cluster, job_id)
    assert "n1 mlx5_0/1: link_downed 1 (" in text
    assert "local_ack_timeout_err 41" in text
    assert "n1 GPU0 NVLink 1: recovery 3" in text
    assert "no port of InfiniBand or RoCE: n4" in text
    assert_nothing_missing(text)
