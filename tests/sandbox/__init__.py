"""A real Slurm of four nodes on one machine, with node_exporter, Prometheus and our own parts.

Everything lives under one state directory, on a loopback network and ports of its own, so that
several clusters run side by side. By hand: `python -m tests.sandbox up`, `shell`, `status`,
`down`. In Python: `Cluster`.

NCCL_INSPECTOR_SLURM_TREE=trixie or forky lets everything, tests and demo too, run the Slurm of that
Debian suite, from a tree that is made once: `python -m tests.sandbox tree`.
"""

from tests.sandbox.cluster import Cluster
from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import HEAD, JOB_USER, NODES, OTHER_USER, REPORT_USER, Layout, Options
from tests.sandbox.lifetime import wait_until
from tests.sandbox.node import Node
from tests.sandbox.prometheus import Sample
from tests.sandbox.slurm import Job, NodeState

__all__ = [
    "HEAD", "JOB_USER", "NODES", "OTHER_USER", "REPORT_USER", "Cluster", "ClusterError", "Job",
    "Layout", "Node", "NodeState", "Options", "Sample", "wait_until",
]  # fmt: skip
