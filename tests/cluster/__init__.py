"""A real Slurm of four nodes on one machine, with node_exporter, Prometheus and our own parts.

Everything lives under one state directory, on a loopback network and ports of its own, so that
several clusters run side by side. By hand: `python -m tests.cluster up`, `shell`, `status`,
`down`. In Python: `Cluster`.

NCCL_INSPECTOR_SLURM_TREE=trixie or forky lets everything, tests and demo too, run the Slurm of that
Debian suite, from a tree that is made once: `python -m tests.cluster tree`.
"""

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.layout import HEAD, JOB_USER, NODES, OTHER_USER, REPORT_USER, Layout, Options
from tests.cluster.lifetime import wait_until
from tests.cluster.node import Node
from tests.cluster.prometheus import Sample
from tests.cluster.slurm import Job, NodeState

__all__ = [
    "HEAD", "JOB_USER", "NODES", "OTHER_USER", "REPORT_USER", "Cluster", "ClusterError", "Job",
    "Layout", "Node", "NodeState", "Options", "Sample", "wait_until",
]  # fmt: skip
