# SPDX-License-Identifier: Apache-2.0
"""What a run on a GPU must show: pure comparisons of what was issued with what was measured."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from nccl_inspector.model.process import (
    ALGOS,
    DROP_REASONS,
    FINALIZED,
    FUNCS,
    GPU_TIMED,
    Key,
    Process,
)
from tests.support import application_log, exposition
from tests.support.application_log import Record

PASS, FAIL, SKIP = "pass", "fail", "skip"
CALL_ONLY_SINCE = 22900  # NCCL from 2.29 on tells nothing of a Broadcast but the call
CLOCKS_APART_US = 2000  # the plugin's calendar against the rank's own, within one machine
# The GPU's clock against the host's: its resolution, and how fast they drift apart at most.
GPU_CLOCK_NS, GPU_DRIFT = 2000, 1.001
PROBLEMS_SHOWN = 12

# The interface that a version of NCCL takes from a plugin that has all: first version, API.
APIS = ((23100, 7), (22900, 6), (22800, 5), (22700, 4), (22600, 3), (22400, 2), (22300, 1))

Kind = tuple[str, str, int]  # communicator's name, function, size class
Figures = dict[str, Any]


@dataclass
class Check:
    """One question, its answer and the figures behind it."""

    name: str
    asks: str
    problems: list[str] = field(default_factory=list)
    figures: Figures = field(default_factory=dict)
    skipped: str = ""

    @property
    def verdict(self) -> str:
        """`pass`, `fail` or `skip`."""
        return SKIP if self.skipped else FAIL if self.problems else PASS

    def demand(self, holds: bool, problem: str) -> None:
        """Note a problem where something does not hold."""
        if not holds:
            self.problems.append(problem)

    def as_json(self) -> Figures:
        """Return what the result file has of it."""
        shown = self.problems[:PROBLEMS_SHOWN]
        return {
            "check": self.name, "asks": self.asks, "verdict": self.verdict,
            "problems": shown, "problems_total": len(self.problems),
            "skipped": self.skipped, "figures": self.figures,
        }  # fmt: skip


@dataclass
class Sum:
    """What a box says of one kind of operation, over algorithms and protocols."""

    ops: int = 0
    bytes: int = 0
    untimed_ops: int = 0
    untimed_bytes: int = 0
    busy_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0

    def add(self, key: Key) -> None:
        """Add a key."""
        self.min_ns = min(filter(None, (self.min_ns, key.min_ns)), default=0)
        self.max_ns = max(self.max_ns, key.max_ns)
        for word in ("ops", "bytes", "untimed_ops", "untimed_bytes", "busy_ns"):
            setattr(self, word, getattr(self, word) + getattr(key, word))


def sums(process: Process) -> dict[Kind, Sum]:
    """Return what a box says by kind, without the groups that are made of Sends and Recvs."""
    names = {comm.index: comm.name for comm in process.comms}
    table: dict[Kind, Sum] = defaultdict(Sum)
    for key in process.keys:
        if ALGOS[key.algo] != "GROUP":
            table[names.get(key.comm, "?"), FUNCS[key.func], key.size_class].add(key)
    return dict(table)


def spelt(kind: Kind) -> str:
    """Return a kind in words."""
    comm, func, size_class = kind
    return f"{comm} {func} {application_log.size_label(size_class)}"


def _has_time(func: str, nccl: int) -> bool:
    return not (func == "Broadcast" and nccl >= CALL_ONLY_SINCE)


def check_counts(boxes: Mapping[int, Process], logs: Mapping[int, list[Record]]) -> Check:
    """Operations and bytes of each rank, and of each peer, are what it issued; nothing is lost."""
    check = Check("counts", "Are operations and bytes in the box exactly what each rank issued?")
    issued = 0
    for rank, log in logs.items():
        box = boxes.get(rank)
        if box is None:
            check.problems.append(f"rank {rank} left no box")
            continue
        wanted = {
            kind: (len(ops), sum(op["bytes"] for op in ops))
            for kind, ops in application_log.by_kind(log).items()
        }
        found = {
            kind: (one.ops + one.untimed_ops, one.bytes + one.untimed_bytes)
            for kind, one in sums(box).items()
        }
        for kind in wanted.keys() | found.keys():
            one, other = wanted.get(kind, (0, 0)), found.get(kind, (0, 0))
            check.demand(one == other, f"rank {rank}, {spelt(kind)}: issued {one}, box {other}")
        _check_untimed(check, rank, box)
        _check_peers(check, rank, box, log)
        _check_whole(check, rank, box)
        issued += len(log)
    check.figures["operations_issued"] = issued
    check.demand(issued > 0, "nothing was issued")
    return check


def _check_untimed(check: Check, rank: int, box: Process) -> None:
    untimed: dict[str, int] = check.figures.setdefault("operations_without_time", {})
    for kind, one in sums(box).items():
        if one.untimed_ops:
            untimed[kind[1]] = untimed.get(kind[1], 0) + one.untimed_ops
        expected = _has_time(kind[1], box.facts.nccl_version) and box.facts.api_version >= 3
        check.demand(
            not (expected and one.untimed_ops),
            f"rank {rank}, {spelt(kind)}: {one.untimed_ops} without a time",
        )


def _check_peers(check: Check, rank: int, box: Process, log: Iterable[Record]) -> None:
    names = {comm.index: comm.name for comm in box.comms}
    found: dict[tuple[str, str, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for peer in box.peers:
        at = names.get(peer.comm, "?"), FUNCS[peer.func], peer.peer
        found[at] = found[at][0] + peer.ops, found[at][1] + peer.bytes
    wanted: dict[tuple[str, str, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for op in log:
        if op["func"] in application_log.P2P:
            at = op["comm_name"], op["func"], op["peer"]
            wanted[at] = wanted[at][0] + 1, wanted[at][1] + op["bytes"]
    check.demand(found == wanted, f"rank {rank}: to peers {dict(wanted)}, box {dict(found)}")


def _check_whole(check: Check, rank: int, box: Process) -> None:
    drops = {
        reason: number for reason, number in zip(DROP_REASONS, box.dropped, strict=True) if number
    }
    check.demand(not drops, f"rank {rank}: dropped {drops}")
    check.demand(not box.flags, f"rank {rank}: {box.flags}")
    check.demand(box.facts.state == FINALIZED, f"rank {rank}: {box.facts.state}, not finalized")
    for comm in box.comms:
        ended = comm.completed + comm.untimed + comm.lost
        check.demand(
            comm.enqueued == ended and not comm.lost,
            f"rank {rank}, {comm.name}: {comm.enqueued} enqueued, {comm.completed} completed, "
            f"{comm.untimed} untimed, {comm.lost} lost",
        )


def within(bracket_ns: int) -> float:
    """Return the longest that the GPU's clock may say of what the host's bracket holds."""
    return bracket_ns * GPU_DRIFT + GPU_CLOCK_NS


def check_times(boxes: Mapping[int, Process], logs: Mapping[int, list[Record]]) -> Check:
    """A GPU's time of an operation lies within the host's own bracket around it."""
    check = Check("times", "Are times of the GPU's clock, above 0, and within the host's bracket?")
    shares: dict[str, list[float]] = defaultdict(list)
    for rank, box in boxes.items():
        check.demand(
            box.facts.timing == GPU_TIMED or box.facts.api_version < 4,
            f"rank {rank}: times are of the clock {box.facts.timing!r}",
        )
        measured = sums(box)
        for kind, ops in application_log.by_kind(logs[rank]).items():
            one = measured.get(kind, Sum())
            if not one.ops:
                continue
            where = f"rank {rank}, {spelt(kind)}"
            brackets = [application_log.time_ns(op) for op in ops]
            check.demand(one.min_ns > 0, f"{where}: shortest time {one.min_ns} ns")
            check.demand(
                one.max_ns <= within(max(brackets)),
                f"{where}: longest {one.max_ns} ns, the host's bracket {max(brackets)} ns",
            )
            check.demand(
                one.busy_ns <= sum(map(within, brackets)),
                f"{where}: {one.busy_ns} ns in all, the host's brackets {sum(brackets)} ns",
            )
            shares[kind[1]].append(one.busy_ns / sum(brackets))
    check.demand(bool(shares), "no operation has a time")
    check.figures["share_of_host_bracket"] = {
        func: [round(min(of), 3), round(max(of), 3)] for func, of in sorted(shares.items())
    }
    return check


def check_metrics(proms: Mapping[int, str], boxes: Mapping[int, Process]) -> Check:
    """The last metrics file says what the box says; bandwidths are numbers above 0."""
    check = Check("metrics", "Does the .prom say what the box says, with finite bandwidths?")
    series_total = 0
    for rank, box in boxes.items():
        series = exposition.read_prom(proms.get(rank, ""))
        series_total += len(series)
        found: dict[str, dict[tuple[str, str, str], float]] = defaultdict(dict)
        for one in series:
            if "message_size" not in one.labels:  # of a communicator, a label or a root as a whole
                continue
            func = one.labels.get("collective") or one.labels["p2p_operation"]
            if not one.labels.get("algo_proto", "").startswith("GROUP"):
                at = one.labels["comm_name"], func, one.labels["message_size"]
                found[one.name][at] = found[one.name].get(at, 0.0) + one.value
        for kind, of_box in sums(box).items():
            at = kind[0], kind[1], application_log.size_label(kind[2])
            family = "p2p" if kind[1] in application_log.P2P else "collective"
            values = {
                word: found[f"nccl_{family}_{word}_total"].get(at, 0.0)
                for word in ("operations", "bytes", "untimed_operations", "untimed_bytes")
            }
            wanted = (of_box.ops, of_box.bytes, of_box.untimed_ops, of_box.untimed_bytes)
            check.demand(
                tuple(values.values()) == wanted,
                f"rank {rank}, {spelt(kind)}: box {wanted}, metrics {tuple(values.values())}",
            )
        rates = [
            value
            for name in ("nccl_bus_bandwidth_gbs", "nccl_p2p_bus_bandwidth_gbs")
            for value in found[name].values()
        ]
        check.demand(
            all(isfinite(rate) and rate > 0 for rate in rates), f"rank {rank}: bandwidths {rates}"
        )
    check.figures["series"] = series_total
    check.demand(series_total > 0, "no metrics")
    return check


def check_lines(lines: Sequence[Record], logs: Mapping[int, list[Record]], nccl: int) -> Check:
    """A JSON line for each operation with a time: its bytes, its time, when it was called."""
    check = Check("lines", "Is there one JSON line for each timed operation, with true values?")
    table: dict[tuple[int, str, str], list[Record]] = defaultdict(list)
    for line in lines:
        perf = line.get("coll_perf") or line["p2p_perf"]
        if perf.get("coll_algo") != "GROUP":
            func = perf.get("coll") or perf["p2p"]
            table[_world_rank(line), line["header"]["comm_name"], func].append(perf)
    checked, late_us = 0, []
    for rank, log in logs.items():
        wanted: dict[tuple[int, str, str], list[Record]] = defaultdict(list)
        for op in log:
            if _has_time(op["func"], nccl):
                wanted[rank, op["comm_name"], op["func"]].append(op)
        for at, ops in wanted.items():
            prefix = "p2p" if at[2] in application_log.P2P else "coll"
            found = sorted(table.get(at, []), key=lambda perf: perf[f"{prefix}_sn"])
            check.demand(len(found) == len(ops), f"{at}: {len(ops)} issued, {len(found)} lines")
            for op, perf in zip(ops, found, strict=False):
                late_us.append(_check_line(check, at, op, perf, prefix))
                checked += 1
    check.figures["lines_checked"] = checked
    check.figures["call_in_line_after_hosts_us"] = [min(late_us), max(late_us)] if late_us else []
    check.demand(checked > 0, "no line")
    return check


def _world_rank(line: Record) -> int:
    """Return the task's number: of a split communicator the header has another rank."""
    return int(line["metadata"]["slurm_procid"])


def _check_line(check: Check, at: object, op: Record, perf: Record, prefix: str) -> float:
    """Return how long after the host's own look the line says that the call was, us."""
    size, time_ns = perf[f"{prefix}_msg_size_bytes"], perf[f"{prefix}_exec_time_ns"]
    check.demand(size == op["bytes"], f"{at}: issued {op['bytes']} bytes, line {size}")
    check.demand(
        0 < time_ns <= within(application_log.time_ns(op)),
        f"{at}: {time_ns} ns, the host's bracket {application_log.time_ns(op)} ns",
    )
    rate = perf[f"{prefix}_busbw_gbs"]
    check.demand(isfinite(rate) and rate >= 0, f"{at}: bandwidth {rate}")
    after_us: float = perf[f"{prefix}_start_us"] - op["wall_ns"] / 1e3
    took_us = (op["issued_ns"] - op["start_ns"]) / 1e3
    check.demand(
        -CLOCKS_APART_US <= after_us <= took_us + CLOCKS_APART_US,
        f"{at}: called {after_us:.0f} us after the host's look, which lasted {took_us:.0f} us",
    )
    return round(after_us, 1)


def expected_api(nccl: int) -> int:
    """Return the interface that this NCCL takes, 0 for one that has none."""
    return next((api for since, api in APIS if nccl >= since), 0)


def check_api(box: Process | None, nccl: int, nccl_log: str, issued: int) -> Check:
    """NCCL took the highest interface that both know, and every operation was counted."""
    wanted = expected_api(nccl)
    check = Check(
        f"api-{nccl}", f"Does NCCL {nccl} take version {wanted}, and is each operation counted?"
    )
    said = [line for line in nccl_log.splitlines() if "PROFILER/Plugin" in line]
    check.figures = {"nccl": nccl, "said": said[:4]}
    if box is None:
        check.problems.append("no box")
        return check
    counted = sum(one.ops + one.untimed_ops for one in sums(box).values())
    timed = sum(one.ops for one in sums(box).values())
    check.figures |= {
        "api": box.facts.api_version, "timing": box.facts.timing, "counted": counted,
        "timed": timed, "issued": issued,
    }  # fmt: skip
    check.demand(box.facts.api_version == wanted, f"version {box.facts.api_version}")
    check.demand(box.facts.nccl_version == nccl, f"the box has NCCL {box.facts.nccl_version}")
    check.demand(counted == issued, f"{issued} issued, {counted} counted")
    check.demand(wanted < 3 or timed == issued, f"{issued} issued, {timed} with a time")
    return check
