# SPDX-License-Identifier: Apache-2.0
"""The PromQL queries about a job that has ended.

Our counters give operations, bytes and time of each window. NVIDIA's plugin gives only two means of
each window. Both include in the times the waiting for late ranks; the rank with the least time is
closest to the pure transfer.
"""

from dataclasses import dataclass

COUNTED, MEANS = "nccl_collective_operations_total", "nccl_collective_exec_time_microseconds"
P2P_COUNTED, P2P_MEANS = "nccl_p2p_operations_total", "nccl_p2p_exec_time_microseconds"
PRESENCE = COUNTED, MEANS, P2P_COUNTED, P2P_MEANS
_COMM = "comm, comm_name, nranks, n_nodes"


@dataclass(frozen=True, slots=True)
class JobQuestions:
    """Queries about one job. `window_s`: the span in seconds of each rate and mean."""

    job_id: int
    window_s: int

    def _of(self, metric: str, *matchers: str) -> str:
        own = (f'slurm_job_id="{self.job_id}"', *matchers)
        return metric + "{" + ",".join(own) + "}"

    def presence(self) -> str:
        """Return the query for the number of series in each window."""
        parts = [f"count_over_time({self._of(one)}[{self.window_s}s])" for one in PRESENCE]
        return f"count({' or '.join(parts)})"

    def kind(self, family: str) -> str:
        """Return the labels that identify a kind of operation."""
        return f"{_COMM}, {self.func(family)}, message_size" + (
            ", algo_proto" if family == "collective" else ""
        )

    @staticmethod
    def func(family: str) -> str:
        """Return the label with the name of the NCCL function."""
        return "collective" if family == "collective" else "p2p_operation"

    def _rate(self, family: str, what: str) -> str:
        matcher = 'algo_proto!="GROUP"' if family == "collective" else 'p2p_operation=~"Send|Recv"'
        return f"rate({self._of(f'nccl_{family}_{what}_total', matcher)}[{self.window_s}s])"

    def time_s(self, family: str) -> str:
        """Return the query for the least mean time of the ranks in seconds, by kind."""
        mean = f"{self._rate(family, 'busy_seconds')} / ({self._rate(family, 'operations')} > 0)"
        return f"min by ({self.kind(family)}) ({mean})"

    def size_bytes(self, family: str) -> str:
        """Return the query for the mean message size in bytes, by kind."""
        by = f"sum by ({self.kind(family)})"
        return (
            f"{by} ({self._rate(family, 'bytes')}) / "
            f"({by} ({self._rate(family, 'operations')}) > 0)"
        )

    def operations(self, family: str) -> str:
        """Return the query for the operations per second of the busiest rank, by kind."""
        return f"max by ({self.kind(family)}) ({self._rate(family, 'operations')})"

    def mean_time_us(self, family: str) -> str:
        """Return the query for NVIDIA's mean time (us), the least over the ranks, by kind."""
        metric = self._of(f"nccl_{family}_exec_time_microseconds")
        return f"min by ({self.kind(family)}) (avg_over_time({metric}[{self.window_s}s]))"

    def mean_gbs(self, family: str) -> str:
        """Return the query for NVIDIA's mean bus bandwidth, the highest over the ranks, by kind."""
        name = "nccl_bus_bandwidth_gbs" if family == "collective" else "nccl_p2p_bus_bandwidth_gbs"
        metric = self._of(name)
        return f"max by ({self.kind(family)}) (avg_over_time({metric}[{self.window_s}s]))"

    def throughput(self) -> str:
        """Return the query for the throughput that the job itself reported, by unit."""
        metric = self._of("nccl_inspector_job_throughput")
        return f"avg by (unit) (avg_over_time({metric}[{self.window_s}s]))"

    def counts(self, family: str, span_s: int) -> str:
        """Return the query for the operations of the busiest rank in the whole job, by kind.

        It is to be asked for the time of the job's end; `span_s` is the length of the job.
        """
        metric = self._of(f"nccl_{family}_operations_total")
        return f"max by ({self.kind(family)}) (max_over_time({metric}[{span_s}s]))"

    def members(self, metric: str, span_s: int) -> str:
        """Return the query for the ranks, nodes and GPUs of each communicator."""
        return (
            f"group by ({_COMM}, rank, node, gpu) (last_over_time({self._of(metric)}[{span_s}s]))"
        )

    def information(self, span_s: int) -> str:
        """Return the query for what the agents told of the job: one series for each node."""
        return f"last_over_time({self._of('nccl_inspector_job_info')}[{span_s}s])"

    def lost(self, span_s: int) -> str:
        """Return the query for the number of processes that died without finalizing, by node."""
        metric = self._of("nccl_inspector_job_processes", 'state="lost"')
        return f"max by (node) (max_over_time({metric}[{span_s}s])) > 0"

    def drops(self, span_s: int) -> str:
        """Return the query for the number of events that were not measured, by reason."""
        metric = self._of("nccl_inspector_events_dropped_total")
        return f"sum by (reason) (max_over_time({metric}[{span_s}s])) > 0"
