# SPDX-License-Identifier: Apache-2.0
"""What the time lines say: when something was slow, what caused it, and who is behind it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.analysis.slow_times.attribution import WORKLOAD, Attribution, attribute
from nccl_inspector.analysis.slow_times.comparison import compare
from nccl_inspector.analysis.slow_times.degradation import (
    JUDGED,
    JudgedSeries,
    find_degradations,
    inside,
    severity_of,
)
from nccl_inspector.analysis.slow_times.degradation import STRAGGLER as WAITED
from nccl_inspector.analysis.slow_times.late_map import LateMap, map_lateness
from nccl_inspector.analysis.slow_times.line_choice import choose_lines, unpack_columns
from nccl_inspector.analysis.slow_times.line_columns import Columns
from nccl_inspector.analysis.slow_times.progress import (
    Progress,
    on_windows,
    progress_of,
    segment_progress,
)
from nccl_inspector.analysis.slow_times.series import Track, make_tracks
from nccl_inspector.analysis.slow_times.shown import show
from nccl_inspector.analysis.slow_times.throughput import Readings
from nccl_inspector.analysis.straggler.culprit import UNDETERMINED, SlowPlace, find_culprit
from nccl_inspector.analysis.transport.timed_paths import TimedPath
from nccl_inspector.analysis.transport.timed_paths import compare as compare_paths
from nccl_inspector.model import rules
from nccl_inspector.model.bandwidth import size_label
from nccl_inspector.model.card import (
    INFO,
    NETWORK,
    NVLINK,
    OUTSIDE,
    STRAGGLER,
    UNKNOWN,
    WARNING,
    Degradation,
    Entity,
    Evidence,
    Finding,
    Period,
    TimeLine,
)
from nccl_inspector.model.process import Process
from nccl_inspector.model.wording import bandwidth, change, elapsed, percent
from nccl_inspector.render.heat import bound_heat

HEAT_ROWS, HEAT_WINDOWS = 256, 120  # size of the map of who was late when
_OVERLAP_MIN = 0.5  # share of a dip in progress that a degradation must cover to explain it


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The time lines that were unpacked."""

    columns: tuple[Columns, ...]
    refused: Counter[str]


@dataclass(frozen=True, slots=True)
class OverTime:
    """The results about the job's time."""

    timeline: TimeLine
    findings: tuple[Finding, ...]
    causes: tuple[tuple[str, Finding], ...]  # each finding of a slow time, with its kind of cause
    judged: int  # number of series
    refused: Mapping[str, int]  # invalid time lines, by reason
    heat: LateMap


def unpack(
    comms: Sequence[JoinedComm],
    transports: Mapping[int, str],
    processes: Sequence[tuple[str, Process]],
) -> Unpacked:
    """Unpack the lines that matter; `processes` come with their nodes."""
    wanted = choose_lines(comms, transports)
    refused: Counter[str] = Counter()
    columns: list[Columns] = []
    for number, (node, process) in enumerate(processes):
        kinds = wanted.get((node, process.facts.name))
        if kinds:
            columns += unpack_columns(process, number, kinds, refused)
    return Unpacked(tuple(columns), refused)


def _slow_nodes(
    tracks: Sequence[Track],
    transports: Mapping[int, str],
    slow: Degradation,
    nodes: Mapping[int, str],
) -> SlowPlace | None:
    """Return who is behind a slow time, from which communicators were slow in it."""
    timed = []
    for track in tracks:
        if transports.get(track.kind[0]) != slow.transport or track.func not in JUDGED:
            continue
        where, rates = inside(track, slow.period), track.bus_gbs
        within, without = rates[where & (rates > 0)], rates[~where & (rates > 0)]
        if len(within) and len(without):
            ratio = float(without.mean() / within.mean())
            at = frozenset(nodes[member] for member in track.members if member in nodes)
            timed.append(
                TimedPath(at, (track.func, track.kind[2], len(at)), ratio, hex(track.kind[0]))
            )
    return find_culprit({"communicators in that time": compare_paths(timed)}, known_slow=True)


_CAUSE_RULES = {
    NETWORK: rules.SLOW_NETWORK,
    NVLINK: rules.SLOW_NVLINK,
    STRAGGLER: rules.SLOW_STRAGGLER,
    UNKNOWN: rules.SLOW_UNKNOWN,
    OUTSIDE: rules.SLOW_OUTSIDE,
    WORKLOAD: rules.SLOW_WORKLOAD,
}
_CAUSE_TITLES = {
    NETWORK: "network path slow",
    NVLINK: "links inside of a node slow",
    STRAGGLER: "more waiting for late ranks",
    UNKNOWN: "slow, and what it came from is not clear",
    OUTSIDE: "slower outside of communication",
    WORKLOAD: "another phase of the workload",
}
_CAUSE_ACTIONS: dict[str, tuple[str, ...]] = {
    NETWORK: ("look at the ports and switches of that time; nothing to do in the job",),
    NVLINK: (rules.SLOW_NVLINK.action,),
    STRAGGLER: (rules.SLOW_STRAGGLER.action,),
    OUTSIDE: ("look at data loading, checkpoints and GPU clocks of that time",),
    UNKNOWN: (rules.SLOW_UNKNOWN.action,),
}


def _said_culprit(culprit: SlowPlace | None) -> tuple[str, tuple[Entity, ...], tuple[str, ...]]:
    """Return text, entities and actions."""
    if culprit is None or (culprit.kind == UNDETERMINED and not culprit.others):
        return "entity not determinable: every path goes over the same nodes", (), ()
    if culprit.kind == UNDETERMINED:
        names = ", ".join(culprit.others)
        entities = tuple(Entity("node", name) for name in culprit.others)
        return f"one of {names}, which are always on the same paths", entities, ()
    name = " - ".join(culprit.nodes)
    action = f"check ports, cables and switch of {' and '.join(culprit.nodes)}"
    return f"{culprit.kind} {name}", (Entity(culprit.kind, name),), (action,)


def _slow_finding(
    slow: Degradation, found: Attribution, culprit: SlowPlace | None, throughput: float | None
) -> Finding:
    what = f"{slow.transport} {slow.func} {size_label(slow.size_class)}"
    lasted = elapsed(slow.period.end_s - slow.period.start_s)
    who = ""
    entities: tuple[Entity, ...] = ()
    actions = _CAUSE_ACTIONS.get(found.cause, ())
    if found.cause == NETWORK:
        who, entities, named = _said_culprit(culprit)
        actions = named or actions
    elif found.node:
        who, entities = f"node {found.node}", (Entity("node", found.node),)
    evidence = [Evidence("boxes", f"{what} bus bandwidth", slow.bus_gbs, "GB/s", slow.baseline_gbs)]
    explained = ""
    if throughput is not None:
        evidence.append(
            Evidence("throughput", "change of the job's own figure", throughput, "share")
        )
    if found.explained is not None:
        evidence.append(Evidence("boxes", "explained share of the dip", found.explained, "share"))
        explained = f" That explains {percent(found.explained)} of the dip in progress."
    cost = f" It cost at most {elapsed(slow.cost_s)}." if slow.cost_s else ""
    return Finding(
        _CAUSE_RULES[found.cause].id,
        INFO if found.cause == WORKLOAD else severity_of(slow),
        found.confidence,
        f"{_CAUSE_TITLES.get(found.cause, found.cause)} for {lasted}: {what} "
        f"{bandwidth(slow.baseline_gbs)} -> {bandwidth(slow.bus_gbs)} GB/s"
        + (f"; {who}" if who else ""),
        f"{change(slow.depth)} in {len(slow.communicators) or 1} of the communicators: "
        f"{found.why}.{explained}{cost}",
        slow.period,
        entities,
        tuple(evidence),
        actions,
    )


def _overlap(one: Period, period: Period) -> bool:
    """Tell whether a time covers most of a dip's period."""
    common = min(period.end_s, one.end_s) - max(period.start_s, one.start_s)
    return common >= _OVERLAP_MIN * (period.end_s - period.start_s)


def _dips(progress: Progress | None, known: Sequence[Period]) -> Iterator[tuple[Period, float]]:
    """Yield the periods of less progress that no degradation explains, and their depth."""
    if progress is None:
        return
    cut = segment_progress(progress)
    for dip in cut.dips:
        period = Period(
            progress.start_s + dip.first * progress.window_s,
            progress.start_s + dip.end * progress.window_s,
        )
        if not any(_overlap(one, period) for one in known):
            yield period, dip.depth


def _excuse(period: Period, progress: Progress) -> str:
    """Return why a dip of the job's own throughput need not be a fault; empty: it may be one."""
    if progress.is_at_start(period):
        return "it is the job's start"
    if progress.is_at_end(period):
        return "it lasts to the end, so it may be another phase of the program"
    if not progress.stands_out(period):
        return "that figure is as low at other times, too"
    return ""


def _dip_finding(
    period: Period, depth: float, found: Attribution, progress: Progress | None
) -> Finding:
    unit = progress.unit if progress else "progress"
    lasted = elapsed(period.end_s - period.start_s)
    source = "boxes" if unit.endswith(" operations/s") else "throughput"
    why, severity = found.why, INFO if found.cause == WORKLOAD else WARNING
    if found.cause in (OUTSIDE, UNKNOWN) and source == "boxes":
        severity = INFO
        why += "; without the job's own figure a start or an evaluation looks the same"
    elif progress and severity != INFO:
        excuse = _excuse(period, progress)
        severity = INFO if excuse else severity
        why += f"; {excuse}" if excuse else ""
    return Finding(
        _CAUSE_RULES[found.cause].id,
        severity,
        found.confidence,
        f"{_CAUSE_TITLES.get(found.cause, found.cause)} for {lasted}: {unit} {change(depth)}",
        f"{why}.",
        period,
        (),
        (Evidence(source, f"change of {unit}", depth, "share"),),
        _CAUSE_ACTIONS.get(found.cause, ()),
    )


def _progress(
    readings: Readings | None, tracks: Sequence[Track], timeline_of: Track | None
) -> tuple[Progress | None, Progress | None]:
    """Return the job's own throughput, and the progress to judge: the same, else operations/s."""
    if timeline_of is None:
        return None, None
    if readings and readings.found:
        start_s = min(track.start_s for track in tracks)
        end_s = max(track.start_s + track.windows * track.window_s for track in tracks)
        window_s = timeline_of.window_s
        own = on_windows(readings, start_s, window_s, (end_s - start_s) // window_s)
        return own, own
    return None, progress_of(timeline_of)


def look_over_time(
    unpacked: Unpacked,
    comms: Sequence[JoinedComm],
    transports: Mapping[int, str],
    nodes: Mapping[int, str],
    names: Mapping[int, str],
    wall_s: float,
    readings: Readings | None,
) -> OverTime:
    """Judge the time lines; `nodes` and `names` are by process, `wall_s` is the job's length."""
    tracks = make_tracks(unpacked.columns, {comm.id: comm.nranks for comm in comms if comm.id})
    judged: JudgedSeries = find_degradations(tracks, transports, wall_s)
    busiest = next((one for one in tracks if one.func in JUDGED and one.factor > 0), None)
    own, progress = _progress(readings, tracks, busiest)
    degradations, causes = [], []
    for slow in judged.degradations:
        changes = compare(tracks, transports, nodes, slow.period, own)
        found = attribute(changes)
        if slow.kind == WAITED and found.cause == UNKNOWN:
            found = replace(found, cause=STRAGGLER)
        culprit = _slow_nodes(tracks, transports, slow, nodes) if found.cause == NETWORK else None
        causes.append((found.cause, _slow_finding(slow, found, culprit, changes.throughput)))
        degradations.append(replace(slow, explained_share=found.explained))
    known = [one.period for one in judged.degradations]
    for period, depth in _dips(progress, known):
        phase = next((one.why for one in judged.phases if _overlap(one.period, period)), "")
        changes = compare(tracks, transports, nodes, period, own, phase)
        found = attribute(changes)
        causes.append((found.cause, _dip_finding(period, depth, found, progress)))
    timeline = show(tracks, transports, replace(judged, degradations=tuple(degradations)), own)
    return OverTime(
        timeline=timeline,
        findings=tuple(one for _, one in causes),
        causes=tuple(causes),
        judged=judged.judged,
        refused=unpacked.refused,
        heat=bound_heat(
            map_lateness(unpacked.columns, comms, names, HEAT_WINDOWS), HEAT_ROWS, HEAT_WINDOWS
        ),
    )
