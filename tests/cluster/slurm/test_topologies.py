# SPDX-License-Identifier: Apache-2.0
"""Sites with several topologies, or with one that has neither switches nor blocks."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nccl_inspector.slurm.topology import ask_places
from tests.sandbox import Cluster, Options
from tests.support.sandbox.own_cluster import brought_up

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(Options().tree != "forky", reason="Slurm 26.05 has these topologies"),
]
SEVERAL = """
- topology: whole
  cluster_default: true
  tree:
    switches:
    - switch: leaf1
      nodes: n[1-2]
    - switch: leaf2
      nodes: n[3-4]
- topology: racks
  cluster_default: false
  block:
    block_sizes: [2]
    blocks:
    - block: b1
      nodes: n[1,3]
    - block: b2
      nodes: n[2,4]
"""
RING = """
- topology: whole
  cluster_default: true
  ring:
    rings:
    - ring: r1
      nodes: n[1-4]
"""
TORUS = """
- topology: whole
  cluster_default: true
  torus3d:
    toruses:
    - name: t1
      dims: {x: 2, y: 2, z: 1}
      nodes: n[1-4]
"""
CPU_IN_RACKS = (
    "PartitionName=cpu Nodes=ALL Default=NO MaxTime=60 State=UP OverSubscribe=NO Topology=racks"
)


@contextmanager
def scontrol_of(cluster_dir: Path, topology: str, *lines: str) -> Iterator[Path]:
    """The scontrol of a cluster of Slurm alone."""
    options = Options(
        prolog=False, agents=False, monitoring=False, slurm_lines=lines,
        etc_files=(("topology.yaml", topology),),
    )  # fmt: skip
    with brought_up(cluster_dir, options) as cluster:
        yield _program(cluster)


def _program(cluster: Cluster) -> Path:
    path = cluster.layout.root / "scontrol"
    words = shlex.join(word for word in cluster.head.argv(["scontrol"]) if word != "-i")
    path.write_text(
        f'#!/bin/sh\nexport SLURM_CONF={cluster.layout.slurm_conf}\nexec {words} "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.case(
    "Installation", "several topologies: nodes are placed by that of the job's partition"
)
def test_nodes_are_placed_by_the_topology_of_the_jobs_partition(cluster_dir: Path) -> None:
    with scontrol_of(cluster_dir, SEVERAL, CPU_IN_RACKS) as scontrol:
        whole = {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "n4": "leaf2"}
        assert ask_places(scontrol) == (whole, "")
        assert ask_places(scontrol, "gpu") == (whole, "")
        assert ask_places(scontrol, "cpu") == (
            {"n1": "b1", "n2": "b2", "n3": "b1", "n4": "b2"}, "",
        )  # fmt: skip


@pytest.mark.case("Installation", "rings and tori: where nodes are is not known, and not guessed")
@pytest.mark.parametrize("topology", [RING, TORUS], ids=["ring", "torus"])
def test_where_nodes_are_in_a_ring_or_a_torus_is_not_known(
    cluster_dir: Path, topology: str
) -> None:
    with scontrol_of(cluster_dir, topology) as scontrol:
        assert ask_places(scontrol, "gpu") == ({}, "Slurm knows of no switches or blocks")
