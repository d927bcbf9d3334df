# SPDX-License-Identifier: Apache-2.0
"""Causes of lost time (analysis/replay) as findings: who, since when, the cost, what to do.

Each cause is one finding. Processes that only waited for the cause are listed in it as victims, and
counters that support it become its evidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from nccl_inspector.analysis.hardware.slow import SlowHardware
from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.analysis.next_command import show_adapters, show_late, show_link_states
from nccl_inspector.analysis.replay.cause import COST_MIN, LATE, OUTSIDE, TOLD_MIN, Cause
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.analysis.replay.late_calls import LateCalls
from nccl_inspector.analysis.replay.late_sets import LateSet, Sort
from nccl_inspector.analysis.replay.paths import ADAPTER, BOTH, IN, NODE, OUT, RAIL
from nccl_inspector.model import card, rules
from nccl_inspector.model.card import (
    CRITICAL,
    GPU,
    HIGH,
    HOST,
    INFO,
    LOW,
    MEDIUM,
    UNKNOWN,
    WARNING,
    Entity,
    Evidence,
    Finding,
    Period,
    Severity,
    Straggler,
)
from nccl_inspector.model.process import Process
from nccl_inspector.model.wording import cut_list, duration, elapsed

CRITICAL_SHARE = 0.5
_SHOWN = 4
# Shorter times outside communication, of all ranks or once of one rank or node, are normal in many
# programs: they save, or they evaluate. (What a program does once takes no fifth of its job.)
OUTSIDE_S_MIN, _ONCE_SHARE_MIN = 60.0, 0.2


@dataclass(frozen=True, slots=True)
class JobView:
    """The facts about the job that texts need; sequences are by process."""

    processes: Sequence[tuple[str, Process]]
    names: Sequence[str]
    gpus: Sequence[str]  # `GPU7`, empty: not known
    wall_s: float
    communicators: Sequence[JoinedComm]
    cost_min: float = COST_MIN  # share of the job's time that makes a cause a warning
    active_s: float = 0.0  # time with operations; 0: all of wall_s

    def place(self, member: int) -> str:
        """Return node and GPU of a process, as `n02 GPU7`."""
        return f"{self.processes[member][0]} {self.gpus[member]}".strip()

    def of_job(self, share: float) -> float:
        """Convert a share of the time with operations into a share of the job's time.

        Causes cannot make the time before a job's first operation and after its last one longer.
        """
        if not self.wall_s or not self.active_s:
            return share
        return share * min(1.0, self.active_s / self.wall_s)


@dataclass(frozen=True, slots=True)
class CauseFindings:
    """Findings, each with its kind of cause, and the late processes as rows of the card."""

    findings: tuple[tuple[str, Finding], ...]
    stragglers: tuple[Straggler, ...]


def _cost(cause: Cause, view: JobView) -> tuple[float, float]:
    """Return share and seconds of the job's time; a cause seen once is not extrapolated."""
    if cause.once and view.wall_s:
        return cause.saved_s / view.wall_s, cause.saved_s
    share = view.of_job(cause.cost_share)
    return share, share * view.wall_s


def severity(share: float, cost_min: float, *, excused: bool = False) -> Severity:
    """Return the severity of a cause from its share of the job's time; `excused`: information."""
    if excused or share < cost_min:
        return INFO
    return CRITICAL if share >= CRITICAL_SHARE else WARNING


def _may_be_once(cause: Cause, share: float, seconds: float) -> bool:
    """Tell whether somebody stood still once, for no longer than a program may by itself."""
    once = cause.once and cause.rare and cause.times <= 1
    return once and seconds < OUTSIDE_S_MIN and share < _ONCE_SHARE_MIN


def _confidence(cause: Cause) -> str:
    if cause.once and not cause.times:  # the rest of the job was not seen
        return LOW
    if cause.cost_share < 2 * COST_MIN:
        return MEDIUM
    return HIGH if cause.error_share * 8 < cause.cost_share else MEDIUM


def saved(share: float, seconds: float, view: JobView, error: float) -> str:
    """Return a sentence about the cost of a cause: how long, and which share of the job.

    `error`: that of the share, in the time with operations.
    """
    would = view.wall_s - seconds
    of_job = view.of_job(error)
    plus = f" +-{of_job:.1%}" if of_job >= 0.001 else ""
    return (
        f"It cost about {elapsed(seconds)} ({share:.1%}{plus} of the job's time): "
        f"{elapsed(view.wall_s)} would have been {elapsed(would)}."
    )


def cost_evidence(share: float, cause: Cause | None = None) -> Evidence:
    """Return how a cost was found; `share`: of the job's time."""
    if cause is not None and cause.times:
        return Evidence("boxes", "cost, counted while the others waited", share, "share")
    return Evidence("samples", "cost, by replaying the job without it", share, "share")


def _period(cause: Cause) -> Period:
    return Period(cause.start / 1e9, cause.end / 1e9)


def _kind(
    cause: Cause, judged: Judged, view: JobView, slow: SlowHardware
) -> tuple[str, LateCalls | None]:
    """Return what made a process late: host, gpu or unknown; and its calls if they decide it."""
    calls = judged.late_calls(cause, lambda one: view.processes[one][1].samples)
    member = cause.members[0]
    by_counters = slow.kind_of(view.processes[member][0], view.gpus[member])
    if calls is None or calls.kind == UNKNOWN:
        return by_counters, None
    if by_counters not in (UNKNOWN, calls.kind):
        return UNKNOWN, calls
    return calls.kind, calls


# What only counters speak for: they do not say when it called.
_WHY_BY_COUNTERS = {
    GPU: "When it called is not known; its GPU's counters say that the GPU may be behind",
    HOST: "When it called is not known; its node's counters say that the host may be late",
    UNKNOWN: "Whether its host or its GPU was late is not known",
}
_NEITHER_OF_SET = "Whether their hosts or their GPUs were late is not known"
_LATE_ACTIONS = {
    GPU: "check clocks, power, temperature and PCIe width of this GPU",
    HOST: "check the CPUs of this node: data loader, other tasks, binding",
    UNKNOWN: "compare its input and host with the others': it is late, which need not be a fault",
}
_SET_ACTION = (
    "compare their input and hosts with the others': they are late, which need not be a fault"
)
# What a program does by itself, and the others wait for it.
_SAVES_ACTION = "if it saves or logs then, let it do so beside the training"


def _why_late(kind: str, calls: LateCalls | None, several: bool) -> str:
    """Return why a process, or several, are late, as a sentence without its stop."""
    if calls is None and kind == UNKNOWN and several:
        return _NEITHER_OF_SET
    if calls is None:
        return _WHY_BY_COUNTERS[kind]
    if kind == UNKNOWN:
        return (
            "Its calls and the counters of its node contradict each other: whether its host or its "
            "GPU was late is not known"
        )
    late = duration(calls.late_ns)
    if kind == HOST:
        return (
            f"Its host called late: it begins {late} after the others because it calls "
            f"{duration(max(calls.called_late_ns, 0.0))} later"
        )
    return (
        f"Its GPU was behind: it begins {late} after the others, and calls only "
        f"{duration(max(calls.called_late_ns, 0.0))} later"
    )


def _host_time(member: int, view: JobView) -> list[Evidence]:
    """Return how long a process's calls of NCCL take on its host, if that was measured.

    This does not prove that the host is slow: a call also blocks if its GPU is far behind.
    """
    each = [
        one.facts.call_ns / one.facts.calls if one.facts.calls else None
        for _, one in view.processes
    ]
    own = each.pop(member)
    others = [one for one in each if one is not None]
    if own is None or not others:
        return []
    words = "mean time of its host in a call of NCCL"
    return [Evidence("boxes", words, own, "ns", median(others), len(others))]


def _entities(cause: Cause, view: JobView) -> tuple[Entity, ...]:
    if cause.among is not None:
        return _of_set(cause.among, view)
    found = []
    for member in cause.members:
        found += [Entity("rank", view.names[member]), Entity("node", view.processes[member][0])]
        if view.gpus[member]:
            found.append(Entity("gpu", view.place(member)))
    return tuple(found)


def _of_set(among: LateSet, view: JobView) -> tuple[Entity, ...]:
    """Return the nodes that are wholly in a set, and the other ranks of it with their GPUs."""
    mine = set(among.members)
    rest = {node for member, (node, _) in enumerate(view.processes) if member not in mine}
    whole = dict.fromkeys(view.processes[one][0] for one in among.members)
    if among.sort not in (Sort.NODE, Sort.NODES):
        whole = {node: None for node in whole if node not in rest}
    found = [Entity("node", node) for node in whole]
    for member in among.members:
        if view.processes[member][0] not in whole:
            found.append(Entity("rank", view.names[member]))
            if view.gpus[member]:
                found.append(Entity("gpu", view.place(member)))
    return tuple(found)


def _uuid(view: JobView, member: int) -> str:
    process = view.processes[member][1]
    return next((one.uuid for one in process.gpus if one.label == view.gpus[member]), "")


def _how_often(cause: Cause) -> str:
    if cause.times == 1:
        return f"once, for {duration(cause.late_ns)}"
    if cause.times:
        return f"{cause.times} times, for {duration(cause.late_ns)} (median)"
    return f"{_seldom(cause)}, by {duration(cause.late_ns)} (median)"


def _seldom(cause: Cause) -> str:
    return "in one short time" if cause.once else "now and then"


def _rank(cause: Cause, view: JobView) -> str:
    """Return the one process that a cause is about, with its place."""
    return f"{view.names[cause.members[0]]} ({view.place(cause.members[0])})"


def _who(among: LateSet, view: JobView) -> str:
    """Return who the members of a set are, and what they have in common."""
    if among.sort == Sort.NODE:
        return f"all ranks of node {among.name}"
    nodes = list(dict.fromkeys(view.processes[one][0] for one in among.members))
    if among.sort == Sort.NODES:
        return f"all ranks of {len(nodes)} nodes ({cut_list(nodes, _SHOWN)})"
    ranks = cut_list([view.names[one] for one in among.members], _SHOWN)
    where = f"{'node' if len(nodes) == 1 else 'nodes'} {cut_list(nodes, _SHOWN)}"
    if among.sort == Sort.STAGE:
        return f"{ranks} (a stage of the pipeline, {where})"
    if among.sort == Sort.PLACE:
        at = f"place {among.place}" if among.place >= 0 else f"{among.count} places"
        return f"{ranks} ({at} of each {among.name} communicator, {where})"
    kind = f"communicators {among.name}" if " and " in among.name else f"communicator {among.name}"
    return f"{ranks} ({where}; they share {kind})"


def _late_title(cause: Cause, view: JobView) -> str:
    by = f"by {duration(cause.late_ns)} (median)"
    if cause.among is not None:
        who = _who(cause.among, view)
        if cause.rare:
            return f"{who} make the others wait {_how_often(cause)}"
        together = "" if cause.node else "together "
        return f"{who} are late {together}{by}"
    who = _rank(cause, view)
    if cause.rare:
        return f"{who} makes the others wait {_how_often(cause)}"
    if not cause.whole:  # the share of all gaps would say nothing of these
        return f"{who} is late {by}, for {elapsed((cause.end - cause.start) / 1e9)}"
    often = f"{cause.late_share:.0%}" if cause.late_share >= 0.01 else "less than 1%"
    return f"{who} is late {by}, in {often} of its gaps between operations"


def _late_words(cause: Cause, view: JobView) -> tuple[str, str]:
    """Return who is late, and how, for the card's first sentence."""
    by = duration(cause.late_ns)
    if cause.among is not None:
        who, they, come = _who(cause.among, view), "they", "come"
    else:
        who, they, come = _rank(cause, view), "it", "comes"
    if cause.times == 1:
        return who, f"{they} made the others wait once, for {by}"
    if cause.times:
        return who, f"{they} made the others wait {cause.times} times, mostly for about {by}"
    if cause.rare:
        return who, f"{they} {come} about {by} late {_seldom(cause)}, and the others wait"
    to = ""
    if cause.among is None and cause.whole:  # the share of all gaps would say nothing of a time
        often = "each" if cause.late_share >= 0.995 else f"{cause.late_share:.0%}"
        to = f" to {often} of its operations" if cause.late_share >= 0.01 else ""
    return who, f"{they} {come} about {by} late{to}, and the others wait"


def _action(cause: Cause, kind: str, *, own_doing: bool) -> str:
    if own_doing:
        return _SAVES_ACTION
    return _SET_ACTION if kind == UNKNOWN and cause.among is not None else _LATE_ACTIONS[kind]


def _longer_by(cause: Cause) -> Evidence:
    """Return by how much a process or set is late, and what that is compared with."""
    than = "its peers'" if cause.among is None else "their peers'"
    if cause.among is not None and cause.among.sort == Sort.STAGE:
        than = "those of other stages" if cause.uneven else "at other times"
    return Evidence("samples", f"own gaps longer than {than} by", cause.late_ns, "ns")


def _late_finding(
    cause: Cause, judged: Judged, view: JobView, slow: SlowHardware
) -> tuple[Finding, list[Straggler]]:
    share, seconds = _cost(cause, view)
    who, how = _late_words(cause, view)
    member = cause.members[0]
    kind, calls = _kind(cause, judged, view, slow)
    node = view.processes[member][0]
    once = _may_be_once(cause, share, seconds)
    excused = (cause.leader and cause.rare) or cause.starting or cause.doubtful or once
    evidence = [
        _longer_by(cause),
        cost_evidence(share, cause),
    ]
    if cause.times:  # the title has how often and how long
        del evidence[0]
    if calls is not None:
        evidence += [
            Evidence("samples", "calls late operations later than its peers by",
                     calls.called_late_ns, "ns", count=calls.operations),
            Evidence("samples", "from the call of a late operation to its begin", calls.queued_ns,
                     "ns", calls.peers_queued_ns, calls.operations),
        ]  # fmt: skip
    evidence += [*_host_time(member, view), *slow.evidence(node, view.gpus[member])]
    own_doing = once or (cause.leader and cause.rare)
    why = _why_late(kind, calls, cause.among is not None) + "."
    if cause.starting:
        why = "Programs compile, allocate and fill caches there."
    elif cause.doubtful:
        why = "Others are late by nearly as much: it may be chance."
    elif once:
        why = f"It happened once: a part of the program, as a checkpoint, looks the same. {why}"
    elif excused:
        why = "Rank 0 is where programs log, evaluate and save: this is how a checkpoint looks."
    lasting = "for all of the job" if cause.whole else "in the time given"
    if cause.rare:
        lasting = "once" if cause.once else "now and then"
    if cause.starting:
        lasting = "in the job's first steps only"
    victims = tuple(Entity("rank", view.names[one]) for one in cause.victims)
    waited = (
        f" Late only because of it: {cut_list([one.name for one in victims], _SHOWN)}."
        if victims
        else ""
    )
    part = (
        f" That is the time of the {cause.part} ranks that share communicators with it: the others "
        "do not wait for it."
        if cause.part
        else ""
    )
    finding = Finding(
        rule=rules.STRAGGLER.id,
        severity=severity(share, view.cost_min, excused=excused),
        confidence=_confidence(cause),
        title=_late_title(cause, view),
        detail=f"{saved(share, seconds, view, cause.error_share)} The others wait for "
        f"{'them' if cause.among else 'it'}, {lasting}. {why}{waited}{part}",
        period=_period(cause),
        entities=_entities(cause, view),
        evidence=tuple(evidence),
        actions=(_action(cause, kind, own_doing=own_doing),),
        cost_s=seconds,
        cost_share=share,
        cause=card.STRAGGLER,
        victims=victims,
        next=show_late(
            node,
            _uuid(view, member) if cause.among is None else "",
            host=kind != GPU,
            gpu=kind != HOST,
        ),
        who=who,
        how=how,
    )
    rows = [
        _straggler(cause, one, view, finding, kind, calls, seconds / len(cause.members))
        for one in cause.members
    ]
    return finding, rows


def _uneven_finding(cause: Cause, view: JobView) -> Finding:
    """Return a finding about work that is uneven: about nobody, whatever it costs."""
    share, seconds = _cost(cause, view)
    ranks = cut_list([view.names[one] for one in cause.members], _SHOWN)
    stage = cause.among is not None and cause.among.sort == Sort.STAGE
    title = (
        f"the work is uneven: {duration(cause.late_ns)} (median) more between two exchanges of all "
        f"with all, for {len(cause.members)} of {len(view.processes)} ranks"
    )
    why = (
        f"These ranks take longer only with what the others send to them ({ranks}), as ranks do "
        "whose experts get more than others. Elsewhere they are as fast, so neither GPU nor host "
        "is slow."
    )
    if stage:
        title = (
            f"the work is uneven: a stage of the pipeline computes {cause.ratio:.2f} times as long "
            "as the others"
        )
        why = (
            f"All ranks of the stage ({ranks}) take as long as each other. It may have more "
            "layers, or an embedding."
        )
    return Finding(
        rule=rules.UNEVEN_WORK.id,
        severity=INFO,
        confidence=_confidence(cause),
        title=title,
        detail=f"{saved(share, seconds, view, cause.error_share)} {why}",
        period=_period(cause),
        evidence=(
            _longer_by(cause),
            cost_evidence(share),
        ),
        actions=(rules.UNEVEN_WORK.action,),
        cost_s=seconds,
        cost_share=share,
        cause=card.STRAGGLER,
    )


def _straggler(
    cause: Cause, member: int, view: JobView, finding: Finding, kind: str,
    calls: LateCalls | None, cost_s: float,
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
        queued_ns=calls.queued_ns if calls else None,
        peers_queued_ns=calls.peers_queued_ns if calls else None,
        queue_looks=calls.operations if calls else 0,
    )


# In which direction the transfers of a place are slow.
_WAYS = {BOTH: "on", OUT: "from", IN: "to"}


def _pair(nodes: Sequence[str]) -> tuple[Entity, ...]:
    return (Entity("pair", " - ".join(nodes)),)


def _where(cause: Cause, view: JobView) -> tuple[str, tuple[Entity, ...], str]:
    """Return which transfers were slow, as text and as entities, and the command to run next."""
    where = cause.where
    link = "NVLink and PCIe" if cause.inside else "network"
    if where is None:
        return f"on all {link} paths", (), "nccl-inspector history --since 7d"
    nodes = ", ".join(where.nodes[:_SHOWN])
    node = where.nodes[0] if where.nodes else ""
    look = show_link_states(node) if cause.inside else show_adapters([node])
    ranks = tuple(Entity("rank", view.names[one]) for one in where.members)
    way = _WAYS[where.way]
    if where.kind == NODE:
        return f"{way} node {nodes}", (Entity("node", node),), look
    if where.kind == ADAPTER:
        found: list[Entity] = [Entity("node", node)]
        found += [Entity("gpu", view.place(one)) for one in where.members if view.gpus[one]]
        label = view.gpus[where.members[0]] or f"place {where.local}"
        return f"{way} {label} of node {node} and its adapter", tuple(found), look
    if where.kind == RAIL:
        words = f"on rail {where.local} (place {where.local} of {nodes})"
        return words, (Entity("rail", f"rail {where.local}"),), look
    if len(where.nodes) == 1:
        words = f"on paths of {cut_list([one.name for one in ranks], _SHOWN)} ({nodes})"
        return words, (Entity("node", node),), look
    # Which end of a path is slow is not known, so all of them are looked at.
    look = "nccl-inspector history --since 7d"
    if len(where.nodes) <= _SHOWN:
        look = show_adapters(where.nodes)
    if len(where.nodes) == 2:
        return f"on the path between {' and '.join(where.nodes)}", _pair(where.nodes), look
    return f"on some paths between {cut_list(where.nodes, _SHOWN)}", (), look


def _transfer_finding(cause: Cause, view: JobView) -> tuple[str, Finding]:
    share, seconds = _cost(cause, view)
    words, entities, look = _where(cause, view)
    kind = card.NVLINK if cause.inside else card.NETWORK
    than = "on other paths of their kind" if cause.whole else "at other times of this job"
    often = f", {_how_often(cause)}" if cause.times else ", now and then" if cause.rare else ""
    finding = Finding(
        rule=(rules.SLOW_LINKS if cause.inside else rules.SLOW_NETWORK).id,
        severity=severity(share, view.cost_min),
        confidence=MEDIUM if cause.where is not None else LOW,
        title=f"transfers {words} take {cause.ratio:.2f} times as long{often}",
        detail=f"{saved(share, seconds, view, cause.error_share)} T, the time without waiting, is "
        f"{cause.ratio:.2f} times what it is {than}.",
        period=_period(cause),
        entities=entities,
        evidence=(
            Evidence("samples", "T compared with usual", cause.ratio, "times"),
            cost_evidence(share),
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
        who=f"slow transfers {words}",
        how=f"they take {cause.ratio:.2f} times as long as {than}{often}",
    )
    return kind, finding


def _outside_words(cause: Cause) -> tuple[str, str]:
    """Return what happened outside communication, for the card's first sentence."""
    if cause.times:
        return "stops outside communication", f"no rank was in an operation, {_how_often(cause)}"
    how = f"all ranks take {cause.ratio:.2f} times as long between operations"
    if cause.still:
        how = "no rank is in an operation"
    return "a slow time outside communication", how


def _outside_title(cause: Cause) -> str:
    if cause.times:
        return f"no rank is in an operation: {_how_often(cause)}"
    lasted = elapsed((cause.end - cause.start) / 1e9)
    return f"slower outside communication for {lasted}: {_outside_words(cause)[1]}"


def _at_start(cause: Cause, judged: Judged) -> bool:
    """Tell whether a slow time is at the job's begin rather than at its end."""
    if judged.records is None:
        return False
    first, last = int(judged.records.begin.min()), int(judged.records.end.max())
    return cause.start - first < last - cause.end


def _own_doing(cause: Cause, judged: Judged) -> str:
    """Return why a slow time may be the program's own doing, as a sentence; empty: no reason."""
    if cause.whole and _at_start(cause, judged):
        return " The job began with it: programs compile, allocate and fill caches there."
    if cause.whole:
        return " It does not come back to what it was: it may be another phase."
    if cause.rare:
        return " It comes again and again, as a part of the program does."
    if cause.still:
        return " No training step ended in it: an evaluation or a checkpoint looks the same."
    if cause.evenly:
        return " All parts of a step take longer by as much: it may be more work."
    if cause.times or cause.end - cause.start < OUTSIDE_S_MIN * 1e9:
        return " It was short: a part of the program, as a checkpoint, looks the same."
    return ""


def _late_meanwhile(cause: Cause, every: Sequence[Cause], view: JobView) -> str:
    """Return who is late in the time of a cause, as words; empty: nobody."""
    late = [
        _who(one.among, view) if one.among is not None else view.names[one.members[0]]
        for one in every
        if one.kind == LATE and not one.uneven
        if one.start < cause.end and one.end > cause.start
        if _cost(one, view)[0] >= TOLD_MIN
    ]
    return cut_list(late, _SHOWN) if late else ""


def _outside_finding(cause: Cause, judged: Judged, view: JobView) -> Finding:
    share, seconds = _cost(cause, view)
    outside, how = _outside_words(cause)
    own = _own_doing(cause, judged)
    late = _late_meanwhile(cause, judged.causes, view)
    who = (
        f"It is time besides that in which the others wait for {late}"
        if late
        else "The ranks do not wait for one of them"
    )
    return Finding(
        rule=rules.SLOW_OUTSIDE.id,
        severity=INFO if own else severity(share, view.cost_min),
        confidence=LOW if own else MEDIUM,
        title=_outside_title(cause),
        detail=f"{saved(share, seconds, view, 0.0)} T is as usual. {who}.{own}",
        period=_period(cause),
        evidence=(
            Evidence("boxes", "more time outside operations than usual", seconds, "s")
            if cause.still
            else Evidence(
                "samples", "time between operations compared with usual", cause.ratio, "times"
            ),
        ),
        actions=(rules.SLOW_OUTSIDE.action,),
        cost_s=seconds,
        cost_share=share,
        cause=card.OUTSIDE,
        next="nccl-inspector nodes --last 500",
        who=outside,
        how=how,
    )


def tell_causes(judged: Judged, view: JobView, slow: SlowHardware) -> CauseFindings:
    """Return the causes as findings, the most costly first, and the late processes."""
    findings: list[tuple[str, Finding]] = []
    stragglers: list[Straggler] = []
    for cause in judged.causes:
        if _cost(cause, view)[0] < TOLD_MIN:
            continue
        if cause.uneven:
            findings.append((card.STRAGGLER, _uneven_finding(cause, view)))
        elif cause.kind == LATE:
            finding, rows = _late_finding(cause, judged, view, slow)
            # A process that was not seen may have been even later.
            if not judged.seen and not judged.proves:
                finding = replace(finding, severity=INFO, confidence=LOW)
                rows = [replace(one, flagged=False, confidence=LOW) for one in rows]
            findings.append((card.STRAGGLER, finding))
            stragglers += rows
        elif cause.kind == OUTSIDE:
            findings.append((card.OUTSIDE, _outside_finding(cause, judged, view)))
        else:
            findings.append(_transfer_finding(cause, view))
    return CauseFindings(tuple(findings), tuple(stragglers))
