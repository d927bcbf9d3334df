# SPDX-License-Identifier: Apache-2.0
"""The jobs to be measured, and how much of it the plugin and the agent publish."""

from dataclasses import dataclass

from nccl_inspector.agent.job_files import JOB_FILES_MAX, JOB_SERIES_MAX
from nccl_inspector.exposition.metrics import Metric, load_metrics
from nccl_inspector.model.process import DROP_REASONS

# Limits of a GPU from plugin/prom/window.h, and of a process from plugin/box/box.h.
GPU_SERIES_MAX, GPU_COMMS_MAX = 250, 16
LIVE_COMMS_MAX, KINDS_MAX = 128, 256

# Series that are there only in some cases: operations without a time or with phases, a process that
# calls nothing, network detail.
_IN_SOME_CASES = ("throughput", "_untimed_", "_wait_", "_quiet_", "_network_")


def usual_metrics(group: str, json: bool = False) -> list[Metric]:
    """Return the metrics of a group that are always there, in the table's order."""
    return [
        metric
        for metric in load_metrics().values()
        if metric.group == group
        and not any(word in metric.name for word in _IN_SOME_CASES)
        and (json or metric.name != "nccl_inspector_json_lines_total")
    ]


@dataclass(frozen=True, slots=True)
class Shape:
    """Jobs that are all alike, each on its own nodes, with one process for each GPU."""

    jobs: int
    ranks: int  # of a job
    gpus_per_node: int
    ports: int  # of a node's network adapters
    counters: bool  # the setting: series of these ports and of the GPUs
    comms: int  # of a rank
    sizes: int  # power-of-two classes of each communicator's operations
    collectives: int  # functions times algorithms, for each communicator and size
    p2p: int  # how many of Send, Recv and SendRecv each communicator and size has
    json: bool
    interval_s: float
    scrape_s: float
    job_hours: float
    days: float  # for which Prometheus keeps its data
    job_id: int  # of one of the jobs
    cluster: str
    node: str  # the name of one node
    comm_name: str

    @property
    def nodes(self) -> int:
        """The nodes of a job."""
        return -(-self.ranks // self.gpus_per_node)

    @property
    def kinds(self) -> int:
        """The number of kinds of operation that a rank has."""
        return min(self.comms, LIVE_COMMS_MAX) * self.sizes * (self.collectives + self.p2p)

    @property
    def own_series(self) -> int:
        """The series that every process has; `build` is in another file."""
        groups = len(usual_metrics("gpu_info")) + len(usual_metrics("process", self.json))
        return groups + len(usual_metrics("process_reason")) * len(DROP_REASONS)

    @property
    def comms_shown(self) -> int:
        """The number of communicators with series of their own."""
        return min(self.comms, GPU_COMMS_MAX)

    @property
    def kinds_shown(self) -> int:
        """The number of kinds with series, if every kind runs in each interval."""
        # The plugin keeps room for the series of JSON lines and for `build`.
        room = GPU_SERIES_MAX - len(usual_metrics("process_reason")) * len(DROP_REASONS)
        for group in ("gpu_info", "process", "build"):
            room -= len(usual_metrics(group, json=True))
        room -= self.comms_shown * len(usual_metrics("communicator"))
        return min(self.kinds, KINDS_MAX, room // len(usual_metrics("collective")))

    @property
    def process_series(self) -> int:
        """The series of a process in the job's published file."""
        kinds = self.kinds_shown * len(usual_metrics("collective"))
        return kinds + self.comms_shown * len(usual_metrics("communicator")) + self.own_series

    def shown(self, processes: int) -> int:
        """Return for how many of a node's processes the agent publishes series."""
        of_file = self.process_series + len(usual_metrics("build"))
        return min(processes, JOB_FILES_MAX, JOB_SERIES_MAX // of_file)
