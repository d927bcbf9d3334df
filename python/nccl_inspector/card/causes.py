# SPDX-License-Identifier: Apache-2.0
"""Causes of lost time (analysis/replay) as findings: who, since when, what it cost, what to do.

One cause is one finding. Who only waited for the cause is listed in it as a victim, and counters
that speak for it become its evidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_inspector.analysis.hardwarerules import CABLE
from nccl_inspector.analysis.join import Communicator
from nccl_inspector.analysis.queued import GPU, HOST, LateCall, Queued, queue_of
from nccl_inspector.analysis.replay.cause import (
    COST_MIN,
    HABIT_TIMES,
    LATE,
    OUTSIDE,
    TOLD_MIN,
    TRANSFER,
    Cause,
)
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.analysis.replay.paths import ADAPTER, NODE, RAIL
from nccl_inspector.analysis.slowhardware import SlowHardware
from nccl_inspector.analysis.transport import NVLINK as NVLINK_CLASS
from nccl_inspector.card import model as card
from nccl_inspector.card.model import (
    CRITICAL,
    HIGH,
    INFO,
    LOW,
    MEDIUM,
    UNKNOWN,
    WARNING,
    Entity,
    Evidence,
    Finding,
    Operations,
    Period,
    Straggler,
)
from nccl_inspector.card.words import cut_list, duration, elapsed
from nccl_inspector.model import FUNCS, Process

CRITICAL_SHARE = 0.5
_SHOWN = 4
OUTSIDE_S_MIN = 60.0  # a shorter time outside of communication is part of many programs
_EARLY_SHARE = 0.3  # of its lateness, that a rank waits less than its peers where it was late


_QUEUED_MAX = 0.5  # of the operations, that begin as soon as their stream is free
_AT_MOST = (
    " That is the most it can have cost: the ranks always wait for these transfers, so how long "
    "their own work takes is not known."
)


@dataclass(frozen=True, slots=True)
class JobView:
    """What the words need of the job: by process its node, GPU and name, and how long it ran."""

    processes: Sequence[tuple[str, Process]]
    names: Sequence[str]
    gpus: Sequence[str]  # `GPU7`, empty: not known
    wall_s: float
    communicators: Sequence[Communicator]

    def place(self, member: int) -> str:
        """Return `n02 GPU7`."""
        return f"{self.processes[member][0]} {self.gpus[member]}".strip()


# Of what ports or links carry: from where down a path is slow, and what is reached in practice.
# Inside of nodes much depends on the platform: what others measured is a weaker hint.
BELOW_NETWORK, BELOW_TOLD, BELOW_LINKS = 0.55, 0.85, 0.4
_REACHED, _REACHED_TOLD = 0.85, 0.92  # the latter: but for one port, nothing speaks for less


def tell_below(
    judged: Judged,
    operations: Sequence[Operations],
    transports: Mapping[str, str],
    view: JobView,
    hardware: Sequence[Finding],
) -> list[tuple[str, Finding]]:
    """Return the finding of transfers that are slow everywhere and all the time, if they are.

    They have nothing in the job to be compared with, but what the ports of a node can carry.
    A ring is as fast as its slowest port: where the counters of one speak, less is enough.
    """
    found = []
    port = next((one for one in hardware if _is_of_port(one)), None)
    for inside in (False, True):
        # Where some paths are slow beside others it is these, and not the network.
        if any(_is_located(cause, inside) for cause in judged.causes):
            continue
        rows = [
            one
            for one in operations
            if one.expected_gbs
            and one.bus_gbs
            and not one.waiting_included
            and (transports.get(one.communicator) == NVLINK_CLASS) == inside
        ]
        busy = sum(one.count * one.time_ns for one in rows)
        told = None if inside else port
        least = BELOW_LINKS if inside else BELOW_TOLD if told else BELOW_NETWORK
        reached = _REACHED_TOLD if told else _REACHED
        slow = [one for one in rows if (one.bus_gbs or 0.0) < least * (one.expected_gbs or 0.0)]
        if not slow or sum(one.count * one.time_ns for one in slow) < busy / 2:
            continue
        factors = {
            (int(one.communicator, 16), FUNCS.index(one.func), one.size_class):
                (one.bus_gbs or 0.0) / (reached * (one.expected_gbs or 1.0))
            for one in slow
        }  # fmt: skip
        share, error = judged.below(factors)
        if share < TOLD_MIN:
            continue
        worst = max(slow, key=lambda one: one.count * one.time_ns)
        kind, one = _below_finding(worst, share, error, inside, view)
        if judged.queued_share(factors) > _QUEUED_MAX:
            one = replace(one, detail=one.detail + _AT_MOST)
        if told is not None:
            nodes = {each.name.partition(" ")[0] for each in told.entities if each.kind == "port"}
            whose = tuple(Entity("node", node) for node in sorted(nodes))
            one = replace(one, entities=whose, title=f"{one.title}: {told.title}")
        found.append((kind, one))
    return found


def _is_located(cause: Cause, inside: bool) -> bool:
    return (
        cause.kind == TRANSFER
        and cause.inside == inside
        and cause.where is not None
        and cause.whole
        and cause.cost_share >= COST_MIN
    )


def _is_of_port(counters: Finding) -> bool:
    """Tell whether counters say that a port or its cable is bad. Congestion is nobody's fault."""
    ports = any(one.kind == "port" for one in counters.entities)
    return ports and counters.severity != INFO and CABLE in counters.actions


def _below_finding(
    worst: Operations, share: float, error: float, inside: bool, view: JobView
) -> tuple[str, Finding]:
    seconds = share * view.wall_s
    kind = card.NVLINK if inside else card.NETWORK
    link = "links inside of nodes" if inside else "the network"
    bus, could = worst.bus_gbs or 0.0, worst.expected_gbs or 0.0
    return kind, Finding(
        rule="slow-links" if inside else "slow-network",
        severity=_severity(share),
        confidence=MEDIUM,
        title=f"transfers over {link} reach {bus / could:.0%} of what is to be expected, "
        "everywhere and all the time",
        detail=f"{_saved(share, seconds, view, error)} {worst.func} reaches {bus:.1f} GB/s, where "
        f"{could:.1f} are to be expected ({worst.expected_source}). No path is faster than others.",
        evidence=(
            Evidence("samples", f"{worst.func} bus bandwidth by T", bus, "GB/s", could),
            Evidence(
                "samples", "what it cost of the job's time, by replay without it", share, "share"
            ),
        ),
        actions=(
            "look at NCCL's settings (NCCL_DEBUG=INFO says which adapters it uses), adapters, "
            "PCIe and GPUDirect RDMA",
        ),
        cost_s=seconds,
        cost_share=share,
        cause=kind,
        next="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET srun ...",
    )


@dataclass(frozen=True, slots=True)
class Told:
    """Findings with what each came from, and the late processes as rows of the card."""

    findings: tuple[tuple[str, Finding], ...]
    stragglers: tuple[Straggler, ...]


def _cost(cause: Cause, view: JobView) -> tuple[float, float]:
    """Return share and seconds of the job's time. What happened once is not made more of."""
    if cause.once and view.wall_s:
        return cause.saved_s / view.wall_s, cause.saved_s
    return cause.cost_share, cause.cost_share * view.wall_s


def _severity(share: float, *, excused: bool = False) -> str:
    if excused or share < COST_MIN:
        return INFO
    return CRITICAL if share >= CRITICAL_SHARE else WARNING


def _confidence(cause: Cause) -> str:
    if cause.once or cause.cost_share < 2 * COST_MIN:
        return LOW if cause.once else MEDIUM
    return HIGH if cause.error_share * 8 < cause.cost_share else MEDIUM


def _saved(share: float, seconds: float, view: JobView, error: float) -> str:
    would = view.wall_s - seconds
    plus = f" +-{error:.1%}" if error >= 0.001 else ""
    return (
        f"It cost about {elapsed(seconds)} ({share:.1%}{plus} of the job's time): "
        f"{elapsed(view.wall_s)} would have been {elapsed(would)}."
    )


def _period(cause: Cause) -> Period:
    return Period(cause.start / 1e9, cause.end / 1e9)


def _late_calls(cause: Cause, member: int, view: JobView) -> list[LateCall]:
    """Return the kinds of operation in which a process was late, for what its queue says."""
    name = view.names[member]
    found = []
    for comm in view.communicators:
        rank = next((r for r, one in comm.members.items() if one.place.name == name), None)
        for figures in comm.figures if rank is not None else ():
            own = figures.medians.get(rank) if rank is not None else None
            others = sorted(ns for other, ns in figures.medians.items() if other != rank)
            if own is None or not others or rank is None:
                continue
            late_ns = others[len(others) // 2] - own
            if late_ns >= _EARLY_SHARE * cause.late_ns:
                kind = figures.func, figures.size_class, figures.algo_proto
                found.append(LateCall(comm, rank, kind, late_ns))
    return found


def _kind(
    cause: Cause, member: int, view: JobView, slow: SlowHardware
) -> tuple[str, Queued | None]:
    queued = queue_of(_late_calls(cause, member, view))
    by_counters = slow.kind_of(view.processes[member][0], view.gpus[member])
    if queued is None or queued.kind == UNKNOWN:
        return by_counters, None
    if by_counters not in (UNKNOWN, queued.kind):
        return UNKNOWN, queued
    return queued.kind, queued


_WHY = {
    GPU: "It called in time and its GPU was behind",
    HOST: "Its host called late",
    UNKNOWN: "Whether its host or its GPU was late is not known",
}
_LATE_ACTIONS = {
    GPU: "check clocks, power, temperature and PCIe width of this GPU",
    HOST: "check the CPUs of this node: data loader, other tasks, binding",
    UNKNOWN: "compare its input and host with the others': it is late, which need not be a fault",
}


def _next_of(kind: str, node: str, uuid: str) -> str:
    if kind == HOST:
        return f"ssh {node} 'uptime; ps -eo pid,psr,pcpu,comm --sort=-pcpu | head -20'"
    which = f" -i {uuid}" if uuid else ""
    return f"ssh {node} nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE,ECC{which}"


def _entities(cause: Cause, view: JobView) -> tuple[Entity, ...]:
    if cause.node:
        return (Entity("node", cause.node),)
    found = []
    for member in cause.members:
        found += [Entity("rank", view.names[member]), Entity("node", view.processes[member][0])]
        if view.gpus[member]:
            found.append(Entity("gpu", view.place(member)))
    return tuple(found)


def _uuid(view: JobView, member: int) -> str:
    process = view.processes[member][1]
    return next((one.uuid for one in process.gpus if one.label == view.gpus[member]), "")


def _late_title(cause: Cause, view: JobView) -> str:
    by = f"by {duration(cause.late_ns)} (median)"
    if cause.node:
        return f"all ranks of node {cause.node} are late {by}"
    member = cause.members[0]
    who = f"{view.names[member]} ({view.place(member)})"
    if cause.rare:
        return f"{who} makes the others wait now and then"
    return f"{who} is late {by}, in {cause.late_share:.0%} of its gaps between operations"


def _late_finding(
    cause: Cause, view: JobView, slow: SlowHardware
) -> tuple[Finding, list[Straggler]]:
    share, seconds = _cost(cause, view)
    member = cause.members[0]
    kind, queued = _kind(cause, member, view, slow)
    node = view.processes[member][0]
    excused = cause.leader and cause.rare
    evidence = [
        Evidence("samples", "late, by its own gaps beside its peers'", cause.late_ns, "ns"),
        Evidence("samples", "what it cost of the job's time, by replay without it", share, "share"),
    ]
    if queued is not None:
        evidence.append(
            Evidence("boxes", "mean wait in its GPU's queue", queued.wait_ns, "ns",
                     queued.peers_ns, queued.looks)
        )  # fmt: skip
    evidence += slow.evidence(node, view.gpus[member])
    why = _WHY[kind] + "."
    if excused:
        why = "Rank 0 is where programs log, evaluate and save: this is how a checkpoint looks."
    elif cause.rare:
        why = "Its delays are long and rare. " + why
    lasting = "for all of the job" if cause.whole else "in the time given"
    victims = tuple(Entity("rank", view.names[one]) for one in cause.victims)
    waited = (
        f" Late only because of it: {cut_list([one.name for one in victims], _SHOWN)}."
        if victims
        else ""
    )
    finding = Finding(
        rule="straggler",
        severity=_severity(share, excused=excused),
        confidence=_confidence(cause),
        title=_late_title(cause, view),
        detail=f"{_saved(share, seconds, view, cause.error_share)} The others wait for it, "
        f"{lasting}. {why}{waited}",
        period=_period(cause),
        entities=_entities(cause, view),
        evidence=tuple(evidence),
        actions=(_LATE_ACTIONS[kind],),
        cost_s=seconds,
        cost_share=share,
        cause=card.STRAGGLER,
        victims=victims,
        next=_next_of(kind, node, _uuid(view, member)),
    )
    rows = [
        _straggler(cause, one, view, finding, kind, queued, seconds / len(cause.members))
        for one in cause.members
    ]
    return finding, rows


def _straggler(
    cause: Cause, member: int, view: JobView, finding: Finding, kind: str,
    queued: Queued | None, cost_s: float,
) -> Straggler:  # fmt: skip
    name = view.names[member]
    comms = [
        comm for comm in view.communicators
        if comm.figures and any(one.place.name == name for one in comm.members.values())
    ]  # fmt: skip
    ranks = max(len(view.processes) - 1, 1)
    return Straggler(
        rank=name,
        node=view.processes[member][0],
        gpu=view.gpus[member] or UNKNOWN,
        late_ns=cause.late_ns,
        z=None,
        windows_share=None,
        waited_ns=cost_s * 1e9 * ranks,
        kind=kind,
        communicators=tuple(hex(comm.id) for comm in comms if comm.id),
        flagged=finding.severity != INFO,
        member_of=len(comms),
        confidence=finding.confidence,
        period=finding.period,
        queued_ns=queued.wait_ns if queued else None,
        peers_queued_ns=queued.peers_ns if queued else None,
        queue_looks=queued.looks if queued else 0,
    )


def _pair(nodes: Sequence[str]) -> tuple[Entity, ...]:
    return (Entity("pair", " - ".join(nodes)),)


def _where(cause: Cause, view: JobView) -> tuple[str, tuple[Entity, ...], str]:
    """Return where transfers were slow in words, as entities, and what to run next."""
    where = cause.where
    link = "NVLink and PCIe" if cause.inside else "the network"
    if where is None:
        return f"all paths over {link}", (), "nccl-inspector history --since 7d"
    nodes = ", ".join(where.nodes[:_SHOWN])
    node = where.nodes[0] if where.nodes else ""
    look = f"ssh {node} nvidia-smi nvlink -s" if cause.inside else f"ssh {node} ibstat"
    ranks = tuple(Entity("rank", view.names[one]) for one in where.members)
    if where.kind == NODE:
        return f"node {nodes}", (Entity("node", node),), look
    if where.kind == ADAPTER:
        found: list[Entity] = [Entity("node", node)]
        found += [Entity("gpu", view.place(one)) for one in where.members if view.gpus[one]]
        label = view.gpus[where.members[0]] or f"place {where.local}"
        return f"{label} of node {node} and its adapter", tuple(found), look
    if where.kind == RAIL:
        words = f"rail {where.local} (place {where.local} of {nodes})"
        return words, (Entity("rail", f"rail {where.local}"),), look
    if len(where.nodes) == 1:
        words = f"paths of {cut_list([one.name for one in ranks], _SHOWN)} ({nodes})"
        return words, (Entity("node", node),), look
    # Which end of a path is slow is not known.
    if len(where.nodes) == 2:
        return f"the path between {' and '.join(where.nodes)}", _pair(where.nodes), look
    return f"some paths between {cut_list(where.nodes, _SHOWN)}", (), look


def _transfer_finding(cause: Cause, view: JobView) -> tuple[str, Finding]:
    share, seconds = _cost(cause, view)
    words, entities, look = _where(cause, view)
    kind = card.NVLINK if cause.inside else card.NETWORK
    beside = "beside others of their kind" if cause.whole else "beside other times of this job"
    finding = Finding(
        rule="slow-links" if cause.inside else "slow-network",
        severity=_severity(share),
        confidence=MEDIUM if cause.where is not None else LOW,
        title=f"transfers over {words} take {cause.ratio:.2f} times as long",
        detail=f"{_saved(share, seconds, view, cause.error_share)} T, the time without waiting, is "
        f"{cause.ratio:.2f} times as long {beside}.",
        period=_period(cause),
        entities=entities,
        evidence=(
            Evidence("samples", "T beside what is usual", cause.ratio, "times"),
            Evidence(
                "samples", "what it cost of the job's time, by replay without it", share, "share"
            ),
        ),
        actions=(
            "look at NVLinks, PCIe width and XIDs of this node"
            if cause.inside
            else "check ports, cables and switch of these paths",
        ),
        cost_s=seconds,
        cost_share=share,
        cause=kind,
        victims=tuple(Entity("rank", view.names[one]) for one in cause.members),
        next=look,
    )
    return kind, finding


def _outside_finding(cause: Cause, view: JobView) -> Finding:
    share, seconds = _cost(cause, view)
    lasted = elapsed((cause.end - cause.start) / 1e9)
    own = cause.whole or cause.rare or cause.end - cause.start < OUTSIDE_S_MIN * 1e9
    return Finding(
        rule="slow-outside-communication",
        # What does not come back to what it was may be another phase of the program.
        severity=INFO if own else _severity(share),
        confidence=LOW if own else MEDIUM,
        title=f"slower outside communication for {lasted}: all ranks take "
        f"{cause.ratio:.2f} times as long between operations",
        detail=f"{_saved(share, seconds, view, 0.0)} T is as ever, and nobody waits for one rank."
        + (
            " It does not come back to what it was: it may be another phase."
            if cause.whole
            else " It comes again and again, as a part of the program does."
            if cause.rare
            else ""
        ),
        period=_period(cause),
        evidence=(Evidence("samples", "own gaps of all ranks beside usual", cause.ratio, "times"),),
        actions=("look at data loading, storage, checkpoints and GPU clocks of that time",),
        cost_s=seconds,
        cost_share=share,
        cause=card.OUTSIDE,
        next="nccl-inspector nodes --last 500",
    )


def tell_causes(judged: Judged, view: JobView, slow: SlowHardware) -> Told:
    """Return the causes as findings, the costliest first, and the late processes."""
    findings: list[tuple[str, Finding]] = []
    stragglers: list[Straggler] = []
    for cause in judged.causes:
        if _cost(cause, view)[0] < TOLD_MIN:
            continue
        if cause.kind == LATE:
            finding, rows = _late_finding(cause, view, slow)
            if not judged.seen:  # who is not seen may have come later still
                finding = replace(finding, severity=INFO, confidence=LOW)
                rows = [replace(one, flagged=False, confidence=LOW) for one in rows]
            findings.append((card.STRAGGLER, finding))
            stragglers += rows
        elif cause.kind == OUTSIDE:
            findings.append((card.OUTSIDE, _outside_finding(cause, view)))
        else:
            findings.append(_transfer_finding(cause, view))
    return Told(tuple(findings), tuple(stragglers))


def with_counters(
    causes: Sequence[tuple[str, Finding]], hardware: Sequence[Finding]
) -> tuple[list[tuple[str, Finding]], list[Finding]]:
    """Return the causes with the counters that speak for them, and what is left of the counters.

    A port speaks for a slow network, a GPU for slow links inside of its node and for a late rank.
    What speaks for nothing that was slow is information, unless it is critical.
    """
    left = list(hardware)
    found = []
    for kind, cause in causes:
        speaks = [one for one in left if _speaks_for(one, kind, cause)]
        left = [one for one in left if one not in speaks]
        words = "".join(f" {one.title[:1].upper()}{one.title[1:]}." for one in speaks)
        extra = tuple(row for one in speaks for row in one.evidence)
        ports = tuple(e for one in speaks for e in one.entities if e not in cause.entities)
        found.append((
            kind,
            replace(
                cause, detail=cause.detail + words, evidence=(*cause.evidence, *extra),
                entities=(*cause.entities, *ports),
                confidence=HIGH if speaks and cause.confidence == MEDIUM else cause.confidence,
            ),
        ))  # fmt: skip
    return found, [replace(one, severity=INFO) if one.severity == WARNING else one for one in left]


_DEVICES: Mapping[str, frozenset[str]] = {
    card.NETWORK: frozenset({"port"}),
    card.NVLINK: frozenset({"gpu"}),
    card.STRAGGLER: frozenset({"gpu"}),
}


def _speaks_for(counter: Finding, kind: str, cause: Finding) -> bool:
    if cause.severity == INFO or counter.severity == CRITICAL:
        return False
    nodes = {one.name for one in cause.entities if one.kind == "node"}
    gpus = {one.name for one in cause.entities if one.kind == "gpu"}
    for one in counter.entities:
        if one.kind not in _DEVICES.get(kind, frozenset()):
            continue
        if one.name.partition(" ")[0] in nodes and (kind == card.NETWORK or one.name in gpus):
            return True
    return False


def join_progress(
    causes: Sequence[tuple[str, Finding]],
    over_time: Sequence[tuple[str, Finding]],
    wall_s: float,
) -> tuple[tuple[str, Finding], ...]:
    """Return the causes with what the job's own figure of progress says of their times.

    A dip of that figure that no cause explains came from outside of communication.
    """
    found = list(causes)
    dips = [(dip, figure) for _, dip in over_time if (figure := _figure_of(dip)) is not None]
    for dip, figure in dips:
        if dip.period is None or dip.severity == INFO:
            continue
        lasted_s = dip.period.end_s - dip.period.start_s
        if lasted_s < OUTSIDE_S_MIN:  # as long as an evaluation or a checkpoint takes
            continue
        place = next(
            (at for at, (kind, one) in enumerate(found)
             if (one.severity != INFO or kind == card.OUTSIDE) and _explains(one, dip.period)),
            None,
        )  # fmt: skip
        if place is not None:
            kind, one = found[place]
            sure = one.confidence if one.severity == INFO else HIGH
            found[place] = kind, replace(one, evidence=(*one.evidence, figure), confidence=sure)
            continue
        # What comes again and again as deep is part of the program: an evaluation, a checkpoint.
        if sum(one.value <= figure.value / 2 for _, one in dips) >= HABIT_TIMES:
            continue
        cost_s = -figure.value * lasted_s
        share = cost_s / wall_s if wall_s else 0.0
        if share < COST_MIN:
            continue
        found.append((
            card.OUTSIDE,
            replace(
                dip, rule="slow-outside-communication", severity=_severity(share),
                title=f"slower outside of communication for {elapsed(lasted_s)}: "
                f"{figure.metric.removeprefix('change of ')} {figure.value:+.0%}",
                cause=card.OUTSIDE, cost_s=cost_s, cost_share=share,
            ),
        ))  # fmt: skip
    return tuple(sorted(found, key=lambda one: -(one[1].cost_s or 0.0)))


def _figure_of(dip: Finding) -> Evidence | None:
    """Return by how much the job's own figure of progress fell in a slow time."""
    return next((one for one in dip.evidence if one.source == "throughput" and one.value < 0), None)


def _explains(one: Finding, period: Period) -> bool:
    """Tell whether a cause lasted for most of a time, and for little else."""
    if one.period is None:
        return False
    common = min(one.period.end_s, period.end_s) - max(one.period.start_s, period.start_s)
    length = period.end_s - period.start_s
    return common >= 0.5 * length and one.period.end_s - one.period.start_s <= 4 * length
