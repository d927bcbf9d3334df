"""What Prometheus has of jobs and nodes that do this and that, for the tests of the rules.

A job of four ranks on two nodes: communicator dp spans both, tp is within each node. It runs well
for `healthy_min` minutes; then something changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.support.promtool import Labels, Series, counter, steady

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
    p2p_inflight_s: Pair = (0, 0)
    nodes_known: bool = True  # not before NCCL 2.27
    ranks: int = 4
    healthy_min: int = HEALTHY_MIN
    after_min: int = AFTER_MIN
    dip_min: int = AFTER_MIN  # after which all is as at first
    silent_rank: int | None = None  # its counters stand still from the change on
    small_rank: int | None = None  # does as many operations of a smaller size besides, of 1 ms
    tp_flaps: bool = False  # after the change its bandwidth is 15 % lower every other 6 minutes

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
            if rank == self.small_rank:
                yield from self._collectives(dp, ("2", str(self.ranks)), "64-128KB", (1, 1), rank)
        if self.throughput:
            unit = {"node": "n1", "unit": "TFLOP/s/GPU"}
            values = steady(*self.over(self.throughput))
            yield Series("nccl_inspector_job_throughput", own | unit, values)

    def _steps(self, rank: int) -> list[tuple[int, float]]:
        healthy, after = self.operations
        return self.over((healthy, 0 if rank == self.silent_rank else after))

    def _kind(self, labels: Labels, size: tuple[str, str], message_size: str) -> Labels:
        kind = {
            "n_nodes": size[0] if self.nodes_known else "0",
            "nranks": size[1],
            "collective": "AllReduce",
        }
        return labels | kind | {"message_size": message_size, "algo_proto": "RING_SIMPLE"}

    def _collectives(
        self, labels: Labels, size: tuple[str, str], message_size: str, mean_ms: Pair, rank: int
    ) -> Iterator[Series]:
        kind, steps = self._kind(labels, size, message_size), self._steps(rank)
        busy = [
            (minutes, step * ms / 1000)
            for (minutes, step), (_, ms) in zip(steps, self.over(mean_ms), strict=True)
        ]
        yield Series("nccl_collective_operations_total", kind, counter(*steps))
        yield Series("nccl_collective_busy_seconds_total", kind, counter(*busy))

    def _communicator(
        self, rank: int, labels: Labels, size: tuple[str, str], gbs: Pair, mean_ms: Pair
    ) -> Iterator[Series]:
        kind = self._kind(labels, size, "1-2MB")
        pieces = self.over(gbs)
        if self.tp_flaps and size[0] == "1":
            low = 0.85 * gbs[0]
            pieces = [(self.healthy_min, gbs[0]), *[(6, gbs[0]), (6, low)] * 3]
        done = "nccl_communicator_operations_completed_total"
        yield Series("nccl_bus_bandwidth_gbs", kind, steady(*pieces))
        yield from self._collectives(labels, size, "1-2MB", mean_ms, rank)
        yield Series(done, labels, counter(*self._steps(rank)))
        called = "nccl_communicator_operations_enqueued_total"
        yield Series(called, labels, counter(*self._steps(rank)))
        yield Series(
            "nccl_collective_inflight_seconds", labels, steady(*self.over(self.inflight_s))
        )
        yield Series("nccl_p2p_inflight_seconds", labels, steady(*self.over(self.p2p_inflight_s)))


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
    target = _target(own)
    stamps = [str(min(minute, last_min) * 60) for minute in range(gone_min or END_MIN)]
    name = "nccl_inspector_agent_last_pass_timestamp_seconds"
    stale = ["stale"] if gone_min else []
    return [
        Series("up", target, up),
        Series(name, target | {"node": "n1"}, " ".join(stamps + stale)),
    ]


def renamed(own: Labels, at_min: int) -> list[Series]:
    """A node whose agent works, and whose label `cluster` is another one from then on."""
    old, new = _target(own), _target(own) | {"cluster": f"{own['cluster']}-new"}
    name = "nccl_inspector_agent_last_pass_timestamp_seconds"
    stamps = [str(minute * 60) for minute in range(END_MIN)]
    return [
        Series("up", old, f"1+0x{at_min - 1} stale"),
        Series("up", new, steady((at_min, None), (END_MIN - at_min, 1))),
        Series(name, old | {"node": "n1"}, " ".join([*stamps[:at_min], "stale"])),
        Series(name, new | {"node": "n1"}, " ".join(["_"] * at_min + stamps[at_min:])),
    ]


def rejected(
    own: Labels, values: str, away: range = range(0), began_min: int = -1000
) -> list[Series]:
    """What the agent of a node has refused; the minutes `away` were not scraped."""
    labels = _target(own) | {"node": "n1"}
    there = [minute >= began_min and minute not in away for minute in range(END_MIN)]
    passes = [str(minute * 60) if seen else "_" for minute, seen in enumerate(there)]
    began = [str(began_min * 60) if seen else "_" for seen in there]
    agent_metric = "nccl_inspector_agent_"
    return [
        Series(f"{agent_metric}rejected_files_total", labels | {"reason": "syntax"}, values),
        Series(f"{agent_metric}last_pass_timestamp_seconds", labels, " ".join(passes)),
        Series(f"{agent_metric}process_start_time_seconds", labels, " ".join(began)),
    ]


def left_out(own: Labels, values: str, reason: str) -> list[Series]:
    """How many series of a job the agent of a node has left out."""
    labels = _target(own) | {"node": "n1", "slurm_job_id": "0", "reason": reason}
    return [Series("nccl_inspector_job_series_left_out_total", labels, values)]


def _target(own: Labels) -> Labels:
    cluster = own["cluster"]
    return {"cluster": cluster, "instance": f"{cluster}-n1", "job": "nccl-inspector"}
