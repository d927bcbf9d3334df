# SPDX-License-Identifier: Apache-2.0
"""Whole jobs from a seed: ranks with clocks of their own compute, meet in collectives and send.

What comes out is node summaries through their own encoding, with nothing that a box lacks: the
histograms, time lines and counts that the plugin would have kept of these operations.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, log2
from random import Random

from nccl_inspector.analysis.histogram import bucket_of, lower_ns
from nccl_inspector.analysis.join import JoinedComm, join_communicators
from nccl_inspector.analysis.process_names import name_processes
from nccl_inspector.box.sample_table import SampleTable
from nccl_inspector.counters.node_counters import NodeCounters
from nccl_inspector.model.bandwidth import size_class
from nccl_inspector.model.process import (
    COMM_LIVE,
    FINALIZED,
    FUNCS,
    GPU_TIMED,
    Comm,
    Facts,
    Gpu,
    GpuClock,
    Histogram,
    Key,
    Line,
    Peer,
    Process,
    SampleKind,
    Window,
)  # fmt: skip
from nccl_inspector.model.sample_columns import MANTISSA_BITS
from nccl_inspector.summary.codec import Head, NodeSummary, decode, encode, encode_process
from tests.support.boxes import MS, NOW_NS, NOW_S, fixed_chance

US = 1000
WINDOW_S = 10
JITTER_NS = 150 * US
OUTLIER_NS = 5 * MS
OUTLIER_SHARE = 0.002  # of a rank's operations: of 64 ranks one in every eighth operation
LINES_MAX = 8  # of a process
BURST_BITS = 34  # length and period of bursts: all is kept

FACTS = Facts(
    name="0_1", state=FINALIZED, pid=1, step=0, procid=0, localid=0, array_job_id=None,
    array_task_id=None, api_version=5, nccl_version=23007, plugin_version="0.1.0", node="n1",
    beat_ns=NOW_NS, timing=GPU_TIMED, silent="", silent_ns=0, sampling=1, sampled_ns=0,
    series_dropped=0, json_lines=0, net_ns=0, self_ns=0, hot_ns=0, comms_created=1,
    comms_destroyed=0,
)  # fmt: skip
HEAD = Head(42, 1, "amy", "phys", "gpu", "c1", "n1", "n1", 1, 0, NOW_S, NOW_S, NOW_S + 600, "", ())


@dataclass
class Meter:
    """One kind of operation of one rank: times and ends (ns), and their index."""

    size: int
    times_ns: list[int] = field(default_factory=list)
    ends_ns: list[float] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)

    def key(self, comm: int, func: int, algo: int) -> Key:
        """Return the key of a box."""
        counts = Counter(map(bucket_of, self.times_ns))
        return Key(
            comm, func, size_class(self.size), algo, 3, len(self.times_ns),
            self.size * len(self.times_ns), sum(self.times_ns), min(self.times_ns),
            max(self.times_ns), 0, self.indices[0], self.indices[-1], 0, 0, 0, 0,
            Histogram.of(counts.items()),
        )  # fmt: skip

    def windows(self) -> tuple[Window, ...]:
        """Return the windows of a time line, by the rules of plugin/upkeep/timeline.c."""
        places: dict[int, list[int]] = defaultdict(list)
        for at, end_ns in enumerate(self.ends_ns):
            places[int(end_ns // 1e9) // WINDOW_S].append(at)
        return tuple(self._window(place, found) for place, found in sorted(places.items()))

    def _window(self, place: int, found: Sequence[int]) -> Window:
        times = sorted(self.times_ns[at] for at in found)
        middle = bucket_of(times[(len(times) - 1) // 2])
        first = bucket_of(times[0])
        return Window(
            NOW_S + WINDOW_S * place, 0, len(times), self.size * len(times), sum(times),
            (lower_ns(first) + lower_ns(first + 1)) // 2,
            (lower_ns(middle) + lower_ns(middle + 1)) // 2,
            self.indices[found[0]], self.indices[found[-1]],
        )  # fmt: skip


@dataclass(frozen=True)
class Group:
    """A communicator: its members are ranks of the job, in the order of their ranks in it."""

    id: int
    name: str
    members: tuple[int, ...]


class Job:
    """Ranks 0 to `ranks` - 1, so many on a node. `sampled`: with a record of each operation."""

    def __init__(
        self, chance: Random, ranks: int, ranks_per_node: int = 8, *, sampled: bool = False
    ) -> None:
        """Begin at time 0."""
        self.chance = chance
        self.sampled = sampled
        self.ranks = ranks
        self.ranks_per_node = ranks_per_node
        self.clock_ns = [0.0] * ranks
        self.groups: list[Group] = []
        self._meters: list[dict[tuple[int, str, int, int], Meter]] = [{} for _ in range(ranks)]
        self._called: list[Counter[int]] = [Counter() for _ in range(ranks)]

    def group(self, name: str, members: Iterable[int]) -> Group:
        """Add a communicator."""
        found = Group(0x1000 + len(self.groups), name, tuple(members))
        self.groups.append(found)
        return found

    def node_of(self, rank: int) -> str:
        """Return the node's name."""
        return f"n{rank // self.ranks_per_node + 1}"

    def compute(self, ns: float, late_ns: dict[int, float], jitter_ns: float = JITTER_NS) -> None:
        """Let all ranks compute: with jitter, rare outliers, and the late ones longer."""
        gauss, uniform = self.chance.gauss, self.chance.random
        for rank in range(self.ranks):
            self.clock_ns[rank] += ns + gauss(0.0, jitter_ns)
            if uniform() < OUTLIER_SHARE:
                self.clock_ns[rank] += OUTLIER_NS
        for rank, more_ns in late_ns.items():
            self.clock_ns[rank] += more_ns

    def collective(self, group: Group, func: str, size: int, time_ns: float) -> None:
        """Let a group meet: it ends for all `time_ns` after the last came."""
        end_ns = max(self.clock_ns[rank] for rank in group.members) + time_ns
        for rank in group.members:
            self._note(rank, (group.id, func, size, -1), end_ns)

    def send(self, group: Group, sender: int, receiver: int, size: int, time_ns: float) -> None:
        """Let one rank of a group send to another: both end when both came and it is over."""
        end_ns = max(self.clock_ns[sender], self.clock_ns[receiver]) + time_ns
        self._note(sender, (group.id, "Send", size, group.members.index(receiver)), end_ns)
        self._note(receiver, (group.id, "Recv", size, group.members.index(sender)), end_ns)

    def _note(self, rank: int, kind: tuple[int, str, int, int], end_ns: float) -> None:
        meter = self._meters[rank].setdefault(kind, Meter(kind[2]))
        self._called[rank][kind[0]] += 1
        meter.times_ns.append(int(end_ns - self.clock_ns[rank]))
        meter.ends_ns.append(end_ns)
        meter.indices.append(self._called[rank][kind[0]])
        self.clock_ns[rank] = end_ns

    def _comm(self, index: int, group: Group, rank: int) -> Comm:
        nnodes = len({self.node_of(member) for member in group.members})
        called = self._called[rank][group.id]
        return Comm(
            index, group.id, COMM_LIVE, len(group.members), nnodes, group.members.index(rank), 0,
            NOW_NS, 0, called, 0, 0, called, called, called, NOW_NS, 0, group.name,
        )  # fmt: skip

    def _samples(self, rank: int, index: dict[int, int]) -> SampleTable:
        """Return the exact records of a rank."""
        kinds, rows = [], []
        for (comm, func, size, peer), meter in self._meters[rank].items():
            group = self.groups[comm - self.groups[0].id]
            nnodes = len({self.node_of(member) for member in group.members})
            kinds.append(
                SampleKind(comm, len(group.members), nnodes, group.members.index(rank), 0,
                           FUNCS.index(func), size_class(size), 2, 3, NOW_NS + index[comm], 0,
                           group.name)
            )  # fmt: skip
            at = len(kinds) - 1
            for end_ns, ns in zip(meter.ends_ns, meter.times_ns, strict=True):
                rows.append((NOW_NS + int(end_ns) - ns, ns, at, (comm, func, peer), peer + 1, size))
        rows.sort()
        numbers: Counter[tuple[int, str, int]] = Counter()
        found = []
        for start_ns, ns, at, line, peer, size in rows:
            numbers[line] += 1
            mantissa = size >> max(size_class(size) - MANTISSA_BITS, 0)
            found.append((at, numbers[line], peer, start_ns, ns, 0, mantissa, 0))
        columns = map(array, "HIHQQIHB", zip(*found, strict=True))
        clock = GpuClock(0, (NOW_NS,), (0,))
        return SampleTable(tuple(kinds), (clock,), BURST_BITS, BURST_BITS, 0, *columns)

    def process(self, rank: int) -> Process:
        """Return what the rank's box would say."""
        groups = [one for one in self.groups if rank in one.members]
        index = {one.id: at for at, one in enumerate(groups)}
        together: dict[tuple[int, str, int], Meter] = {}
        peers = []
        for (comm, func, size, peer), meter in self._meters[rank].items():
            whole = together.setdefault((comm, func, size), Meter(size))
            whole.times_ns += meter.times_ns
            whole.ends_ns += meter.ends_ns
            whole.indices += meter.indices
            if peer >= 0:
                busy_ns, ops = sum(meter.times_ns), len(meter.times_ns)
                rates = [round(log2(size / ns) * (1 << 20)) for ns in meter.times_ns]
                peers.append(
                    Peer(index[comm], FUNCS.index(func), peer, ops, ops * size, busy_ns,
                         sum(rates), max(rates))
                )  # fmt: skip
        lines = [
            Line(comm, groups[index[comm]].members.index(rank), FUNCS.index(func),
                 size_class(size), WINDOW_S, NOW_S, meter.windows())
            for (comm, func, size), meter in together.items()
        ]  # fmt: skip
        gpu = Gpu(f"GPU-{rank:08x}", "", rank % self.ranks_per_node,
                  f"GPU{rank % self.ranks_per_node}")  # fmt: skip
        return Process(
            facts=replace(
                FACTS, name=f"0_{rank}", pid=rank + 1, procid=rank, node=self.node_of(rank)
            ),
            dropped=(0,) * 16,
            gpus=(gpu,),
            comms=tuple(self._comm(at, one, rank) for at, one in enumerate(groups)),
            keys=tuple(
                meter.key(index[comm], FUNCS.index(func), 2)
                for (comm, func, _), meter in together.items()
            ),
            peers=tuple(peers),
            lines=tuple(sorted(lines, key=lambda line: -line.busy_ns)[:LINES_MAX]),
            nets=(),
            operations=(),
            flags=(),
            samples=self._samples(rank, index) if self.sampled else None,
        )

    def processes(self) -> list[Process]:
        """Return those of all ranks."""
        return [self.process(rank) for rank in range(self.ranks)]

    def summaries(self) -> list[NodeSummary]:
        """Return the node summaries, of a job that ended when its last rank did."""
        end = NOW_S + ceil(max(self.clock_ns) / 1e9)
        return [
            replace(one, head=replace(one.head, end=end))
            for one in through_summaries(self.processes())
        ]


def through_summaries(
    processes: Iterable[Process], counters: dict[str, NodeCounters] | None = None
) -> list[NodeSummary]:
    """Return node summaries of processes, written and read again."""
    by_node: dict[str, list[Process]] = defaultdict(list)
    for process in processes:
        by_node[process.facts.node].append(process)
    nodes = ",".join(by_node)
    return [
        decode(
            encode(
                replace(HEAD, node=node, nodelist=nodes, num_nodes=len(by_node)),
                [encode_process(one) for one in found],
                (counters or {}).get(node),
            )
        )
        for node, found in by_node.items()
    ]


def join(summaries: Iterable[NodeSummary]) -> list[JoinedComm]:
    """Return the communicators as a report joins them."""
    pairs = [(one.head.node, process) for one in summaries for process in one.processes]
    return join_communicators(pairs, name_processes([(42, process) for _, process in pairs]))


@dataclass(frozen=True)
class Model:
    """Tensor, data and pipeline parallelism: neighbours in a tensor group lie on one node."""

    tp: int
    dp: int
    pp: int

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.tp * self.dp * self.pp

    def rank(self, tensor: int, data: int, stage: int) -> int:
        """Return the rank at a position."""
        return tensor + self.tp * (data + self.dp * stage)

    def tensor_groups(self) -> list[list[int]]:
        """Return the ranks that share a layer."""
        return [
            [self.rank(t, d, p) for t in range(self.tp)]
            for p in range(self.pp)
            for d in range(self.dp)
        ]

    def data_groups(self) -> list[list[int]]:
        """Return the ranks that have the same part of the model."""
        return [
            [self.rank(t, d, p) for d in range(self.dp)]
            for p in range(self.pp)
            for t in range(self.tp)
        ]

    def pipelines(self) -> list[list[int]]:
        """Return the ranks that pass activations on, in the order of their stages."""
        return [
            [self.rank(t, d, p) for p in range(self.pp)]
            for d in range(self.dp)
            for t in range(self.tp)
        ]


def parallel_job(
    model: Model, seed: int, late_ns: dict[int, float], steps: int, *, sampled: bool = False
) -> Job:
    """Return a job of steps: layers with a collective each, handing on, gradients, a norm."""
    job = Job(fixed_chance(seed), model.ranks, 4, sampled=sampled)
    tensor = [job.group("tp", members) for members in model.tensor_groups()]
    data = [job.group("dp", members) for members in model.data_groups()]
    pipes = [job.group("pp", members) for members in model.pipelines() if model.pp > 1]
    world = job.group("world", range(model.ranks))
    for _ in range(steps):
        for stage in range(model.pp):
            for _ in range(2):
                job.compute(5 * MS, late_ns)
                for group in tensor:
                    job.collective(group, "AllReduce", 1 << 22, 0.4 * MS)
            for pipe in pipes if stage + 1 < model.pp else ():
                job.send(pipe, pipe.members[stage], pipe.members[stage + 1], 1 << 20, 0.3 * MS)
        for group in data:
            job.collective(group, "ReduceScatter", 1 << 26, 4 * MS)
        job.collective(world, "AllReduce", 1 << 10, 0.1 * MS)
    return job


def flat_job(seed: int, late_ns: dict[int, float], ops: int = 300, ranks: int = 64,
             time_ns: float = 2 * MS, *, sampled: bool = False) -> Job:  # fmt: skip
    """Return a job of one communicator that meets ten times a second."""
    job = Job(fixed_chance(seed), ranks, sampled=sampled)
    world = job.group("world", range(ranks))
    for _ in range(ops):
        job.compute(100 * MS - time_ns, late_ns)
        job.collective(world, "AllReduce", 1 << 27, time_ns)
    return job
