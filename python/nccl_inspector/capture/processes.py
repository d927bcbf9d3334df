# SPDX-License-Identifier: Apache-2.0
"""Turn a capture into node summaries: what each process's box would show for these operations.

So everything that judges node summaries can judge JSON lines too, NVIDIA's as well as ours.
"""

from collections import defaultdict
from math import nan
from typing import Any

from nccl_inspector.capture.contents import Capture
from nccl_inspector.capture.contents import Process as ProcessId
from nccl_inspector.capture.ids import comm_id, index_of
from nccl_inspector.capture.line_samples import sample_lines
from nccl_inspector.capture.unions import find_unions
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.process import (
    ALGOS,
    COMM_LIVE,
    CPU_TIMED,
    EXITED,
    FUNCS,
    GPU_TIMED,
    MEASURING,
    PROTOS,
    Comm,
    Facts,
    Gpu,
    Histogram,
    Key,
    Line,
    Peer,
    Process,
    Union,
    Window,
)
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import UID_UNKNOWN, Head, NodeSummary
from nccl_inspector.system.printable import visible

_COMMS = """
select hostname, pid, comm, rank, min(comm_name), max(nranks), max(nnodes), min(first_us),
    max(last_us), sum(n)::bigint, max(last_sn), bool_or(by_gpu), bool_or(by_cpu)
from counted group by hostname, pid, comm, rank order by all
"""
_KEYS = """
with buckets as (
    select hostname, pid, comm, rank, func, size_class, algo, proto, bucket, sum(n)::bigint as n,
        sum(bytes) as bytes, sum(busy_ns) as busy_ns, min(least_ns) as least_ns,
        max(most_ns) as most_ns, sum(rate) as rate, min(first_sn) as first_sn,
        max(last_sn) as last_sn
    from counted group by all)
select hostname, pid, comm, rank, func, size_class, algo, proto, sum(n)::bigint,
    sum(bytes)::hugeint, sum(busy_ns)::hugeint, min(least_ns), max(most_ns), sum(rate)::hugeint,
    min(first_sn), max(last_sn), list(bucket order by bucket), list(n order by bucket)
from buckets group by hostname, pid, comm, rank, func, size_class, algo, proto order by all
"""
_PEERS = """
select hostname, pid, comm, rank, func, peer, sum(n)::bigint, sum(bytes)::hugeint,
    sum(busy)::hugeint, sum(rate)::hugeint, max(best_rate)
from peers group by all order by all
"""
_WINDOWS = """
with whole as (
    select line, start_s, sum(n)::bigint as n, sum(bytes)::hugeint as bytes,
        sum(busy_ns)::hugeint as busy_ns, min(least_ns) as least_ns,
        (sum(middle_ns::hugeint * n) // sum(n))::bigint as middle_ns, min(first_sn) as first_sn,
        max(last_sn) as last_sn
    from windows group by line, start_s)
select hostname, pid, comm, rank, func, size_class, start_s, n, bytes, busy_ns, least_ns, middle_ns,
    first_sn, last_sn
from whole join busiest using (line) order by all
"""


def _text(metadata: dict[str, Any], name: str) -> str:
    value = metadata.get(name)
    return visible(value) if isinstance(value, str) else ""


def _whole(metadata: dict[str, Any], name: str) -> int | None:
    value = metadata.get(name)
    return value if type(value) is int else None


def node_of(capture: Capture, who: ProcessId) -> str:
    """Return the node of a process: Slurm's name of it, otherwise the host name."""
    return _text(capture.first.get(who, {}), "node") or visible(who[0])


class _Builder:
    """Combines the results of the queries for each process."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._samples = sample_lines(capture)
        self._unions = find_unions(capture)
        self.comms: dict[ProcessId, list[Comm]] = defaultdict(list)
        self.keys: dict[ProcessId, list[Key]] = defaultdict(list)
        self.peers: dict[ProcessId, list[Peer]] = defaultdict(list)
        self.lines: dict[ProcessId, list[Line]] = defaultdict(list)
        self.clocks: dict[ProcessId, set[str]] = defaultdict(set)
        self._index: dict[tuple[str, int, str, int], int] = {}

    def fill(self) -> None:
        """Run all queries."""
        sql = self._capture.sql
        for row in sql.execute(_COMMS).fetchall():
            self._comm(*row)
        for row in sql.execute(_KEYS).fetchall():
            self._key(*row)
        for row in sql.execute(_PEERS).fetchall():
            self._peer(*row)
        window_s = self._capture.window_s
        windows: dict[tuple[Any, ...], list[Window]] = defaultdict(list)
        for row in sql.execute(_WINDOWS).fetchall():
            start, ops, size, busy, least, middle, first, last = row[6:]
            windows[row[:6]].append(Window(start, 0, ops, size, busy, least, middle, first, last))
        for (host, pid, comm, rank, func, size), found in sorted(windows.items()):
            own = self.lines[host, pid]
            since = found[0].start_s
            at = index_of(FUNCS, func)
            own.append(Line(comm_id(comm), rank, at, size, window_s, since, tuple(found)))

    def _comm(
        self, host: str, pid: int, comm: str, rank: int, name: str | None, nranks: int,
        nnodes: int, first_us: int | None, last_us: int | None, count: int, last_sn: int,
        by_gpu: bool | None, by_cpu: bool | None,
    ) -> None:  # fmt: skip
        own = self.comms[host, pid]
        self._index[host, pid, comm, rank] = len(own)
        gpu = 0 if _text(self._capture.first.get((host, pid), {}), "gpu_uuid") else None
        own.append(
            Comm(len(own), comm_id(comm), COMM_LIVE, nranks, nnodes, rank, gpu,
                 (first_us or 0) * 1000, 0, count, 0, 0, count, count, last_sn,
                 (last_us or 0) * 1000, 0, visible(name or ""))
        )  # fmt: skip
        self.clocks[host, pid] |= {GPU_TIMED} if by_gpu or not by_cpu else set()
        self.clocks[host, pid] |= {CPU_TIMED} if by_cpu else set()

    def _key(
        self, host: str, pid: int, comm: str, rank: int, func: str, size: int, algo: str,
        proto: str, count: int, size_bytes: int, busy_ns: int, least_ns: int, most_ns: int,
        rate: int, first: int, last: int, buckets: list[int], counts: list[int],
    ) -> None:  # fmt: skip
        self.keys[host, pid].append(
            Key(self._index[host, pid, comm, rank], index_of(FUNCS, func), size,
                index_of(ALGOS, algo), index_of(PROTOS, proto), count, size_bytes, busy_ns,
                least_ns, most_ns, rate, first, last, 0, 0, 0, 0,
                Histogram(tuple(buckets), tuple(counts)))
        )  # fmt: skip

    def _peer(
        self, host: str, pid: int, comm: str, rank: int, func: str, peer: int, count: int,
        size_bytes: int, busy_ns: int, rate: int, best: int,
    ) -> None:  # fmt: skip
        at = self._index[host, pid, comm, rank]
        self.peers[host, pid].append(
            Peer(at, index_of(FUNCS, func), peer, count, size_bytes, busy_ns, rate, best)
        )

    def _unions_of(self, who: ProcessId) -> tuple[Union, ...]:
        union = self._unions.get(who)
        return (union,) if union else ()

    def process(self, who: ProcessId) -> Process:
        """Return a process; what only its box could tell is empty or 0."""
        pid = who[1]
        said = self._capture.first.get(who, {})
        step, uuid = _whole(said, "slurm_step_id"), _text(said, "gpu_uuid")
        clocks = self.clocks[who]
        facts = Facts(
            name=f"{'x' if step is None else step}_{pid}", state=EXITED, pid=pid, step=step,
            procid=_whole(said, "slurm_procid"), localid=None, array_job_id=None,
            array_task_id=None, api_version=0, nccl_version=0,
            plugin_version=_text(said, "git_rev"), node=node_of(self._capture, who),
            beat_ns=max(comm.last_progress_ns for comm in self.comms[who]),
            timing=CPU_TIMED if clocks == {CPU_TIMED} else GPU_TIMED, silent=MEASURING,
            silent_ns=0, sampling=1, sampled_ns=0, series_dropped=0,
            json_lines=sum(comm.completed for comm in self.comms[who]), net_ns=0, self_ns=0,
            hot_ns=0, comms_created=len(self.comms[who]), comms_destroyed=0,
        )  # fmt: skip
        flags = ("its times are of different clocks",) if len(clocks) > 1 else ()
        return Process(
            facts=facts, dropped=(), gpus=(Gpu(uuid, "", -1, uuid[:12]),) if uuid else (),
            comms=tuple(self.comms[who]), keys=tuple(self.keys[who]),
            peers=tuple(self.peers[who]), lines=tuple(self.lines[who]), nets=(), operations=(),
            flags=flags, samples=self._samples.get(who), unions=self._unions_of(who),
            # Overlapping operations count twice, so it would not show which process is busiest.
            busy_share=nan,
        )  # fmt: skip


def _head(node: str, nodes: list[str], processes: list[Process], said: dict[str, Any]) -> Head:
    start_ns = min(comm.created_ns for one in processes for comm in one.comms)
    end_ns = max(one.facts.beat_ns for one in processes)
    start = start_ns // 10**9
    return Head(
        job_id=_whole(said, "slurm_job_id") or 0, uid=UID_UNKNOWN, user="", account="",
        partition="", cluster=_text(said, "cluster"), node=node, nodelist=",".join(nodes),
        num_nodes=len(nodes), restart=0, start=start, job_start=start,
        end=end_ns // 10**9, het_job_id="", problems=(),
    )  # fmt: skip


def as_summaries(capture: Capture) -> Loaded:
    """Return the capture's processes by node.

    User, account and partition are empty. The nodes are those with records.

    Raises:
        InspectorError: there is no operation in the capture.
    """
    builder = _Builder(capture)
    builder.fill()
    nodes: dict[str, list[Process]] = defaultdict(list)
    said: dict[str, dict[str, Any]] = {}
    for who in builder.comms:
        process = builder.process(who)
        nodes[process.facts.node].append(process)
        said.setdefault(process.facts.node, capture.first.get(who, {}))
    if not nodes:
        raise InspectorError("no operation in these files")
    names = sorted(nodes)
    return Loaded(
        tuple(
            NodeSummary(_head(node, names, nodes[node], said[node]), tuple(nodes[node]))
            for node in names
        ),
        (0,),
        (),
    )
