"""What Prometheus has of jobs and nodes that do this and that, for the tests of the rules.

A job of four ranks on two nodes: communicator dp spans both, tp is within each node. It runs well
for `healthy_min` minutes; then something changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.monitoring.promtool import Labels, Series, counter, steady

HEALTHY_MIN, AFTER_MIN = 45, 35
END_MIN = HEALTHY_MIN + AFTER_MIN
_DP_MS, _TP_MS = 20.0, 1.0

Pair = tuple[float, float]  # healthy, after


@dataclass(frozen=True)
class Job:
    """What the ranks do: bandwidths in GB/s, throughput in what the job marks."""

    dp_gbs: Pair = (40, 40)
    tp_gbs: Pair = (300, 300)
    dp_gbs_of: Mapping[int, float] = field(default_factory=dict)  # by rank, after the change
    dp_ms: Mapping[int, float] = field(default_factory=dict)  # by rank, after the change
    operations: Pair = (600, 600)  # a minute, of each communicator
    throughput: Pair | None = None
    inflight_s: Pair = (0, 0)
    ranks: int = 4
    healthy_min: int = HEALTHY_MIN
    after_min: int = AFTER_MIN
    dip_min: int = AFTER_MIN  # after which all is as at first
    silent_rank: int | None = None  # its counters stand still from the change on

    def over(self, pair: Pair) -> list[tuple[int, float]]:
        """How many minutes it has which value."""
        dip = min(self.dip_min, self.after_min)
        pieces = [(self.healthy_min, pair[0]), (dip, pair[1]), (self.after_min - dip, pair[0])]
        return [piece for piece in pieces if piece[0]]

    def series(self, own: Labels) -> Iterator[Series]:
        """Every series of the job; `own` is the labels that say which it is."""
        for rank in range(self.ranks):
            place = own | {"node": f"n{rank // 2 + 1}", "gpu": f"GPU{rank % 2}"}
            late = (_DP_MS, self.dp_ms.get(rank, _DP_MS))
            dp = place | {"rank": str(rank), "comm": "d", "comm_name": "dp"}
            tp = place | {"rank": str(rank % 2), "comm": place["node"], "comm_name": "tp"}
            gbs = (self.dp_gbs[0], self.dp_gbs_of.get(rank, self.dp_gbs[1]))
            yield from self._communicator(rank, dp, ("2", str(self.ranks)), gbs, late)
            yield from self._communicator(rank, tp, ("1", "2"), self.tp_gbs, (_TP_MS, _TP_MS))
        if self.throughput:
            unit = {"node": "n1", "unit": "TFLOP/s/GPU"}
            values = steady(*self.over(self.throughput))
            yield Series("nccl_inspector_job_throughput", own | unit, values)

    def _communicator(
        self, rank: int, labels: Labels, size: tuple[str, str], gbs: Pair, mean_ms: Pair
    ) -> Iterator[Series]:
        kind = labels | {"n_nodes": size[0], "nranks": size[1], "collective": "AllReduce"}
        kind |= {"message_size": "1-2MB", "algo_proto": "RING_SIMPLE"}
        healthy, after = self.operations
        steps = self.over((healthy, 0 if rank == self.silent_rank else after))
        busy = [
            (minutes, step * ms / 1000)
            for (minutes, step), (_, ms) in zip(steps, self.over(mean_ms), strict=True)
        ]
        done = "nccl_communicator_operations_completed_total"
        yield Series("nccl_bus_bandwidth_gbs", kind, steady(*self.over(gbs)))
        yield Series("nccl_collective_operations_total", kind, counter(*steps))
        yield Series("nccl_collective_busy_seconds_total", kind, counter(*busy))
        yield Series(done, labels, counter(*steps))
        called = f"{steps[-1][1] * 1000 + (rank != self.silent_rank):g}+0x{END_MIN}"
        yield Series("nccl_communicator_operations_enqueued_total", labels, called)
        yield Series(
            "nccl_collective_inflight_seconds", labels, steady(*self.over(self.inflight_s))
        )


def written(own: Labels, every_min: int, last_min: int) -> Series:
    """A process that writes each so many minutes, until then."""
    stamps = [min(minute, last_min) // every_min * every_min * 60 for minute in range(END_MIN)]
    labels = own | {"node": "n1", "gpu": "GPU0", "process": "0_1"}
    values = " ".join(map(str, stamps))
    return Series("nccl_inspector_last_write_timestamp_seconds", labels, values)


def agent(
    own: Labels, *, up: str, gone_min: int | None = None, last_min: int = END_MIN
) -> list[Series]:
    """A node whose agent made its last pass then, and is not scraped from `gone_min` on."""
    target = {
        "cluster": own["cluster"],
        "instance": f"{own['cluster']}-n1",
        "job": "nccl-inspector",
    }
    stamps = [str(min(minute, last_min) * 60) for minute in range(gone_min or END_MIN)]
    name = "nccl_inspector_agent_last_pass_timestamp_seconds"
    stale = ["stale"] if gone_min else []
    return [
        Series("up", target, up),
        Series(name, target | {"node": "n1"}, " ".join(stamps + stale)),
    ]


def rejected(own: Labels, values: str) -> list[Series]:
    """What the agent of a node has refused, by then."""
    labels = {"cluster": own["cluster"], "node": "n1", "reason": "syntax"}
    return [Series("nccl_inspector_agent_rejected_files_total", labels, values)]
