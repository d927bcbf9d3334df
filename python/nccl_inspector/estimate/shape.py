# SPDX-License-Identifier: Apache-2.0
"""What would be measured, and how much of it the plugin and the agent let through."""

from dataclasses import dataclass

from nccl_inspector.agent.job_files import JOB_FILES_MAX, JOB_SERIES_MAX
from nccl_inspector.exposition.metrics import Metric, load_metrics
from nccl_inspector.model.process import DROP_REASONS

# plugin/prom/choose.h, of a GPU; plugin/box/box.h, of a process.
GPU_SERIES_MAX, GPU_COMMS_MAX = 250, 16
LIVE_COMMS_MAX, KINDS_MAX = 128, 256

# Series that a kind of operation has in some cases only: without a time, with phases.
_IN_SOME_CASES = ("throughput", "_untimed_", "_wait_")


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
    """Jobs that are all alike, each on nodes of its own, one process a GPU."""

    jobs: int
    ranks: int  # of a job
    gpus_per_node: int
    ports: int  # of a node's network adapters
    counters: bool  # the setting: of these ports and of the GPUs
    comms: int  # of a rank
    sizes: int  # power-of-two classes of each communicator's operations
    collectives: int  # functions, or algorithms of one, of each communicator and size
    p2p: int  # Send, Recv and SendRecv: up to 3 of each communicator and size
    json: bool
    interval_s: float
    scrape_s: float
    job_hours: float
    days: float  # that a Prometheus keeps
    job_id: int  # of one
    cluster: str
    node: str  # the name of one
    comm_name: str

    @property
    def nodes(self) -> int:
        """Nodes of a job."""
        return -(-self.ranks // self.gpus_per_node)

    @property
    def kinds(self) -> int:
        """Kinds of operation that a rank has."""
        return min(self.comms, LIVE_COMMS_MAX) * self.sizes * (self.collectives + self.p2p)

    @property
    def own_series(self) -> int:
        """Series of a process that are there whatever it does; `build` goes to another file."""
        groups = len(usual_metrics("gpu_info")) + len(usual_metrics("process", self.json))
        return groups + len(usual_metrics("process_reason")) * len(DROP_REASONS)

    @property
    def comms_shown(self) -> int:
        """Communicators with series of their own."""
        return min(self.comms, GPU_COMMS_MAX)

    @property
    def kinds_shown(self) -> int:
        """Kinds with series; every kind is taken to have run in each interval."""
        # The plugin leaves room for the series of JSON lines, and for `build`.
        room = GPU_SERIES_MAX - len(usual_metrics("process_reason")) * len(DROP_REASONS)
        for group in ("gpu_info", "process", "build"):
            room -= len(usual_metrics(group, json=True))
        room -= self.comms_shown * len(usual_metrics("communicator"))
        return min(self.kinds, KINDS_MAX, room // len(usual_metrics("collective")))

    @property
    def process_series(self) -> int:
        """Series of a process in the job's published file."""
        kinds = self.kinds_shown * len(usual_metrics("collective"))
        return kinds + self.comms_shown * len(usual_metrics("communicator")) + self.own_series

    def shown(self, processes: int) -> int:
        """Return of how many of a node's processes the agent publishes the series."""
        of_file = self.process_series + len(usual_metrics("build"))
        return min(processes, JOB_FILES_MAX, JOB_SERIES_MAX // of_file)
