# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector probe` in allocations of a real Slurm, with TCP between the tasks of its step."""

import json

import pytest

from tests.sandbox import JOB_USER, Cluster
from tests.support.command_line import MAIN, USERS_PATHS

NODES = 4
SMALL = ("--max-size", "1M", "--pair-size", "1M", "--seconds", "5", "--timeout", "20")
PROBE = ("env", f"PYTHONPATH={USERS_PATHS}", "/usr/bin/python3", "-c", MAIN, "probe", *SMALL)


@pytest.mark.long
def test_an_allocation_of_four_nodes_is_measured_by_pairs_and_becomes_the_baseline(
    healthy_cluster: Cluster,
) -> None:
    baseline = str(healthy_cluster.home() / "probes.jsonl")
    done = healthy_cluster.run_as(
        JOB_USER,
        ["salloc", f"-N{NODES}", *PROBE, "--pairs", "--json", "--save", baseline],
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == {
        "backend": "tcp", "collective": "AllReduce", "ranks": NODES, "nodes": NODES, "device": "",
    }  # fmt: skip
    assert sorted(found["nodes"]) == ["n1", "n2", "n3", "n4"]
    pairs = {(cell["sender"], cell["receiver"]) for cell in found["cells"]}
    assert len(pairs) == len(found["cells"]) == NODES * (NODES - 1)
    assert all(cell["gbs"] > 0 for cell in found["cells"])
    assert found["verdict"] == "NO EXPECTATION"
    again = healthy_cluster.run_as(
        JOB_USER,
        ["salloc", f"-N{NODES}", *PROBE, "--baseline", baseline, "--threshold", "0.01"],
    )
    assert again.returncode == 0, again.stderr
    assert f"median of 1 probe in {baseline}" in " ".join(again.stdout.split())


def test_a_batch_job_whose_options_are_others_is_measured_too(healthy_cluster: Cluster) -> None:
    """Slurm hands the options of the job to its steps, unless the step has its own."""
    cluster = healthy_cluster
    output = cluster.home() / "probe.out"
    words = ("-N2", "--ntasks=2", "--cpus-per-task=1", "--mem=200", "--export=NONE")
    command = " ".join(f"'{word}'" for word in (*PROBE, "--expect", "1000000"))
    job_id = cluster.sbatch(
        *words, f"--output={output}", script=f"#!/bin/sh\n{command}\necho status $?\n"
    )
    cluster.wait_for_job(job_id)
    said = output.read_text()
    assert "2 ranks on 2 nodes (n[1-2])" in said
    assert "probe-below" in said
    assert "status 1" in said


@pytest.mark.long
def test_nodes_with_gpus_are_not_measured_with_tcp_unless_that_was_wanted(
    healthy_cluster: Cluster,
) -> None:
    gpus = ["salloc", "-N2", "--ntasks=4", "--gpus-per-task=1", *PROBE]
    done = healthy_cluster.run_as(JOB_USER, gpus)
    assert done.returncode == 3
    assert "this Python has no PyTorch" in done.stderr
    hidden = ["salloc", "-N2", "--gres=gpu:2", *PROBE]
    done = healthy_cluster.run_as(JOB_USER, hidden)
    assert done.returncode == 3
    assert "PyTorch" in done.stderr or "give --backend nccl --per-node 2" in done.stderr
    done = healthy_cluster.run_as(JOB_USER, [*gpus, "--backend", "tcp", "--json"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"]["ranks"] == 2
