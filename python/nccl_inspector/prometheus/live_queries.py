# SPDX-License-Identifier: Apache-2.0
"""The PromQL queries of a live view."""

from dataclasses import dataclass

from nccl_inspector.analysis.straggler.lateness import SYNCHRONISING
from nccl_inspector.model.process import DROPS_IN_PART

JOB = "cluster, slurm_job_id"
GPU = f"{JOB}, node, gpu"
# The labels that identify a kind of operation of one communicator.
_KIND = f"{JOB}, comm, collective, message_size, algo_proto"


@dataclass(frozen=True, slots=True)
class LiveQuestions:
    """Queries about all jobs or one. `by`: the labels that identify a row of the view."""

    job_id: int | None
    window: str
    by: str

    def _selector(self, *matchers: str) -> str:
        own = (f'slurm_job_id="{self.job_id}"',) if self.job_id else ()
        return "{" + ",".join((*own, *matchers)) + "}"

    def _rate(self, metric: str, *matchers: str) -> str:
        return f"rate({metric}{self._selector(*matchers)}[{self.window}])"

    def information(self) -> str:
        """Return the query for the number of nodes of each job, by user and partition."""
        labels = f"{JOB}, user, partition"
        return f"count by ({labels}) (nccl_inspector_job_info{self._selector()})"

    def processes(self) -> str:
        """Return the query for the processes of each job, by node and state."""
        return f"sum by ({JOB}, node, state) (nccl_inspector_job_processes{self._selector()})"

    def oldest(self) -> str:
        """Return the query for the age (s) of the oldest collective in flight of each job."""
        return f"max by ({JOB}) (nccl_inspector_job_inflight_seconds{self._selector()})"

    def oldest_of_ranks(self, least_s: float) -> str:
        """Return the query for ranks with a collective in flight for at least `least_s` seconds.

        Only ranks that publish this metric are found.
        """
        return f"nccl_collective_inflight_seconds{self._selector()} >= {least_s:g}"

    def flights(self) -> str:
        """Return the query for the ages of what is in flight, by process and communicator."""
        return self._selector('__name__=~"nccl_(collective|p2p)_inflight_seconds"')

    def called(self) -> str:
        """Return the query for the operations that each process called, by communicator."""
        return f"nccl_communicator_operations_enqueued_total{self._selector()}"

    def mixed(self) -> str:
        """Return the query for the communicators in which there are Sends and Recvs."""
        return f"count by ({JOB}, comm) (nccl_p2p_operations_total{self._selector()})"

    def still(self) -> str:
        """Return the query for how long each row has completed nothing, when it last wrote.

        What has just been called counts, too: operations without a time never complete.
        """
        written = f"nccl_inspector_last_write_timestamp_seconds{self._selector()}"
        progress = f"nccl_communicator_last_progress_timestamp_seconds{self._selector()}"
        calls = f"changes(nccl_communicator_operations_enqueued_total{self._selector()}[1m]) > 0"
        latest = f"max by ({self.by}) (({calls}) * 0 + time() or {progress})"
        return f"max by ({self.by}) ({written}) - {latest}"

    def longest_still(self) -> str:
        """Return the query for the longest time in the last hour in which nothing completed.

        What a new communicator completes first does not count: after a restart the hang before it
        is not usual.
        """
        now = f"nccl_communicator_last_progress_timestamp_seconds{self._selector()}"
        before = f"{now} offset 30s"
        pause = f"max by ({JOB}) ({now} and {before}) - max by ({JOB}) ({before})"
        return f"max_over_time(({pause})[1h:30s])"

    def operations(self) -> list[str]:
        """Return queries for operations per second; their results are to be added up."""
        collective, p2p = ('algo_proto!="GROUP"',), ('p2p_operation=~"Send|Recv"',)
        parts = [
            self._rate(f"nccl_{what}_{untimed}operations_total", *matchers)
            for what, matchers in (("collective", collective), ("p2p", p2p))
            for untimed in ("", "untimed_")
        ]
        return [f"sum by ({self.by}) ({part})" for part in parts]

    def collectives(self, what: str) -> str:
        """Return the query for `bytes` or `busy_seconds` per second, for each bus factor."""
        rate = self._rate(f"nccl_collective_{what}_total", 'algo_proto!="GROUP"')
        return f"sum by ({self.by}, n_nodes, nranks, collective) ({rate})"

    def p2p(self, what: str) -> str:
        """Return the same query for Sends and Recvs."""
        rate = self._rate(f"nccl_p2p_{what}_total", 'p2p_operation=~"Send|Recv"')
        return f"sum by ({self.by}) ({rate})"

    def waitable(self) -> str:
        """Return the query for the seconds per second spent in synchronising collectives.

        Only kinds of operation that were seen on two ranks or more count.
        """
        return f"sum by ({self.by}) ({self._busy()} and on ({_KIND}) {self._shared()})"

    def transfer(self) -> str:
        """Return the query for the part of `waitable` that remains if no rank waits.

        It takes the least mean time of the ranks for each operation.
        """
        ops = f"({self._ops()} and on ({_KIND}) {self._shared()})"
        mean = f"{self._busy()} / ({self._ops()} > 0)"
        return f"sum by ({self.by}) ({ops} * on ({_KIND}) group_left () min by ({_KIND}) ({mean}))"

    def _matchers(self) -> tuple[str, ...]:
        return (f'collective=~"{"|".join(sorted(SYNCHRONISING))}"',)

    def _busy(self) -> str:
        return self._rate("nccl_collective_busy_seconds_total", *self._matchers())

    def _ops(self) -> str:
        return self._rate("nccl_collective_operations_total", *self._matchers())

    def _shared(self) -> str:
        return f"(count by ({_KIND}) ({self._ops()} > 0) > 1)"

    def drops(self) -> str:
        """Return the query for the number of events that were not measured."""
        reasons = f'reason!~"{"|".join(sorted(DROPS_IN_PART))}"'
        metric = f"nccl_inspector_events_dropped_total{self._selector(reasons)}"
        return f"sum by ({self.by}) ({metric})"

    def ranks(self) -> str:
        """Return the query for the ranks of each GPU, by communicator."""
        labels = f"{GPU}, rank, nranks, comm, comm_name"
        return f"group by ({labels}) (nccl_collective_operations_total{self._selector()})"

    def written(self, which: str = "min") -> str:
        """Return the query for the seconds since a process of each row wrote its metrics.

        `which`: min, the one that wrote first, or max, the one that wrote last.
        """
        metric = f"nccl_inspector_last_write_timestamp_seconds{self._selector()}"
        return f"time() - {which} by ({self.by}) ({metric})"
