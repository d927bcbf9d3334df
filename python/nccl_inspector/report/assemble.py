# SPDX-License-Identifier: Apache-2.0
"""Make the report card of one attempt of a job, from its node summaries and what else is known."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from nccl_inspector.analysis import join
from nccl_inspector.analysis.clocks import Clock, in_common_time, read_clocks, silences_ns
from nccl_inspector.analysis.coverage import Coverage
from nccl_inspector.analysis.hang.describe import (
    HungJob,
    describe_hangs,
    describe_quiet_end,
)
from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.hang.find import find_hangs
from nccl_inspector.analysis.hang.first_end import (
    FirstEnd,
    SeenEnd,
    find_failed_node,
    find_first_end,
    seen_ends,
    wrong_clocks,
)
from nccl_inspector.analysis.hang.quiet_end import QuietEnd, find_quiet_end, is_quiet
from nccl_inspector.analysis.hang.unmeasured import (
    Ends,
    find_replaced,
    find_unmeasured,
    tell_ends_once,
)
from nccl_inspector.analysis.hardware.findings import find_hardware
from nccl_inspector.analysis.hardware.slow import SlowHardware, find_slow_hardware
from nccl_inspector.analysis.next_command import suggest
from nccl_inspector.analysis.places import Places, gpu_of
from nccl_inspector.analysis.replay.cause import LATE
from nccl_inspector.analysis.replay.judge import Judged, judge_records
from nccl_inspector.analysis.replay.late_causes import leader_of
from nccl_inspector.analysis.replay.lone_stops import find_lone_stops, with_lone_stops
from nccl_inspector.analysis.replay.outside_causes import with_standstills
from nccl_inspector.analysis.replay.process_choice import choose
from nccl_inspector.analysis.slow_times.standstills import find_standstills
from nccl_inspector.analysis.slow_times.throughput import Readings
from nccl_inspector.analysis.straggler.culprit import describe_culprit, find_culprit
from nccl_inspector.analysis.transport.classes import gpus_of, transport_of
from nccl_inspector.analysis.transport.expected import expected, port_gbps
from nccl_inspector.analysis.transport.mixed_clocks import why_waiting_is_hidden
from nccl_inspector.analysis.transport.timed_paths import (
    compare,
    time_communicators,
    time_network,
    time_pairs,
)
from nccl_inspector.analysis.transport.transfers import find_transfers, with_transfers
from nccl_inspector.errors import RefusedError
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CRITICAL,
    FAILED,
    INFO,
    NETWORK,
    NVLINK,
    OTHER,
    SEVERITIES,
    Card,
    Entity,
    Finding,
    Hang,
    TimeLine,
    Verdict,
)
from nccl_inspector.model.exit_words import SIGKILL
from nccl_inspector.model.process import EXITED, KILLED, Process
from nccl_inspector.model.transport import ON_NETWORK
from nccl_inspector.render.hosts import describe_hosts
from nccl_inspector.render.labels import describe_labels
from nccl_inspector.report.below_ports import tell_below
from nccl_inspector.report.causes import CauseFindings, JobView, tell_causes
from nccl_inspector.report.contradicted_claims import believable
from nccl_inspector.report.counter_evidence import with_counters
from nccl_inspector.report.facts import describe_environment, describe_job, describe_quality
from nccl_inspector.report.figures import (
    comm_id,
    list_communicators,
    list_operations,
    name_communicators,
    sum_transports,
    total_waiting,
)
from nccl_inspector.report.flight_words import tell_dumps
from nccl_inspector.report.job_context import JobContext, with_record
from nccl_inspector.report.joined_job import Report, build_report
from nccl_inspector.report.launcher import (
    first_end,
    how_they_ended,
    killed_words,
    lacked_memory,
    tell_launchers,
)
from nccl_inspector.report.nccl_words import explain_failure, tell_words
from nccl_inspector.report.network import describe_network
from nccl_inspector.report.nvidia import vendor_card
from nccl_inspector.report.over_time import OverTime, look_over_time, unpack
from nccl_inspector.report.progress_dips import join_progress
from nccl_inspector.report.unseen_port import unseen_port
from nccl_inspector.report.verdict import judge
from nccl_inspector.slurm.job_record import StepRecord
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import Head, NodeSummary
from nccl_inspector.summary.unpacked_samples import UnionColumns, union_columns
from nccl_inspector.system.forked import Forked

_PAUSES_OF = 16  # processes whose pauses are looked at, about
_MANY_PROCESSES = 1024  # from here on, a child on a second processor is worthwhile


def _no_data(coverage: Coverage) -> str:
    if coverage.untimed:
        return "no times: operations were counted, but none has a time"
    why = "; while such a job runs, nccl-inspector doctor --job on its nodes says why"
    if coverage.denied:
        why = f": {', '.join(coverage.denied)} is on the site's list deny_nccl"
    elif coverage.rccl:
        why = ": RCCL is not supported yet"
    elif coverage.disabled.names:
        why = ": the site's kill switch was on"
    return f"no operation was measured{why}"


def _lasting_slowness(
    comms: Sequence[join.JoinedComm],
    transports: Mapping[str, str],
    placed: Sequence[tuple[str, Process]],
) -> list[tuple[str, Finding]]:
    """Return findings about what was slow all the time, compared with its like in the same job."""
    found: dict[tuple[Entity, ...], tuple[str, Finding]] = {}
    between = {"sends": compare(time_pairs(placed)), "network": compare(time_network(placed))}
    for transport in dict.fromkeys(transports.values()):
        of_class = [comm for comm in comms if transports[comm_id(comm)] == transport]
        sources = {"communicators": compare(time_communicators(of_class))}
        if transport in ON_NETWORK:
            sources |= between
        culprit = find_culprit(sources)
        if culprit is not None:
            cause = NETWORK if transport in ON_NETWORK else NVLINK
            finding = describe_culprit(culprit, transport)
            found.setdefault(finding.entities, (cause, finding))
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _NodeHardware:
    """GPU model and ports of the nodes."""

    models: tuple[str, ...]
    ports_gbps: tuple[int, ...]  # those of the node whose ports carry least
    gpus: int  # the most of any node


def _nodes(summaries: Sequence[NodeSummary], models: tuple[str, ...]) -> _NodeHardware:
    ports = []
    for summary in summaries:
        found = summary.counters.facts_of("port", "rate") if summary.counters else ()
        rates = (port_gbps(changes[-1].text) for _, changes in found)
        ports.append(tuple(sorted(filter(None, rates))))
    gpus = max(
        (sum(len(process.gpus) for process in summary.processes) for summary in summaries),
        default=0,
    )
    return _NodeHardware(models, min(ports, key=sum, default=()), gpus)


def _expectation(
    comm: join.JoinedComm, one: join.Figures, transport: str, nodes: _NodeHardware
) -> tuple[float, str] | None:
    if len(nodes.models) != 1 or not comm.nnodes:
        return None
    size = float(1 << one.size_class)
    if one.func in ("AllGather", "ReduceScatter"):
        size *= comm.nranks
    found = expected(
        transport, one.func, one.algo_proto, comm.nranks, comm.nnodes, size, nodes.models[0],
        nodes.ports_gbps, nodes.gpus,
    )  # fmt: skip
    return (found.gbs, found.source) if found and found.firm else None


def _judge_samples(placed: Sequence[tuple[str, Process]], given: JobContext) -> Judged:
    """Return what the exact records of processes say together; of very many, only some are read."""
    hidden = why_waiting_is_hidden([process for _, process in placed])
    if hidden:
        return Judged(why_not=hidden)
    choice = choose(placed)
    nodes = [node for node, _ in placed]
    locals_ = _places_on_nodes(placed)
    found = judge_records(choice.sources(placed), nodes, locals_, choice=choice)
    if found.records is None:
        return replace(found, why_not=given.why_no_samples) if given.why_no_samples else found
    unions = [_unions(placed[member][1]) for member in choice.members]
    causes = with_standstills(found.causes, find_standstills(unions))
    if found.replay is not None and found.active_s:
        parts = found.replay.part.tolist()
        stops = find_lone_stops(unions, choice.members, nodes, parts)
        leader = leader_of(found.records)
        causes = with_lone_stops(causes, stops, found.active_s, found.seconds, leader, parts)
    more = sum(one.cost_share for one in causes if one.kind == LATE and one not in found.causes)
    return replace(found, causes=causes, dismissed_share=max(found.dismissed_share - more, 0.0))


def _unions(process: Process) -> list[UnionColumns]:
    """Return how long a process's GPUs were in operations, by window; empty: not known."""
    try:
        return union_columns(process.unions)
    except RefusedError:
        return []


def _quiet_end(processes: Sequence[Process], ending: Ending) -> QuietEnd | None:
    """Return the time without operations at the end of a job, compared with some processes' pauses.

    `processes` are in common time.
    """
    if not is_quiet(processes, ending):
        return None
    some = processes[:: len(processes) // _PAUSES_OF + 1]
    return find_quiet_end(processes, ending, map(_unions, some))


def _places_on_nodes(placed: Sequence[tuple[str, Process]]) -> list[int]:
    """Return the place of each process on its node: its GPU's number, else its SLURM_LOCALID.

    JSON lines have neither. Then it is the place among the node's processes, in Slurm's order.
    """
    found = [-1] * len(placed)
    order = sorted(
        range(len(placed)),
        key=lambda at: (placed[at][1].facts.procid or 0, placed[at][1].facts.pid),
    )
    before: Counter[str] = Counter()
    for at in order:
        node, process = placed[at]
        gpu = gpu_of(process)
        if gpu is not None and gpu.minor >= 0:
            found[at] = gpu.minor
        elif process.facts.localid is not None:
            found[at] = process.facts.localid
        else:
            found[at] = before[node]
        before[node] += 1
    return found


def _gpu_label(process: Process) -> str:
    gpu = gpu_of(process)
    return gpu.label if gpu is not None and gpu.label != "unknown" else ""


def _tell(
    sampled: Judged,
    view: JobView,
    slow: SlowHardware,
    over_time: OverTime,
    lasting: Sequence[tuple[str, Finding]],
) -> CauseFindings:
    """Return the findings of causes; without samples they are information and accuse nobody."""
    if sampled.records is None:
        rest = [*lasting, *over_time.causes]
        return CauseFindings(tuple((kind, replace(one, severity=INFO)) for kind, one in rest), ())
    told = tell_causes(sampled, view, slow)
    return CauseFindings(
        join_progress(told.findings, over_time.causes, view.wall_s, view.cost_min), told.stragglers
    )


def _confirmed(
    timeline: TimeLine, causes: Sequence[tuple[str, Finding]], sampled: Judged
) -> TimeLine:
    """Return the time line with only those slow times that belong to a cause.

    The cause says what they cost. Each series by itself explains some part of that, or none.
    """
    if sampled.records is None:
        return timeline
    periods = [one.period for _, one in causes if one.severity != INFO and one.period]
    kept = tuple(
        replace(one, explained_share=None)
        for one in timeline.degradations
        if any(
            min(one.period.end_s, other.end_s) > max(one.period.start_s, other.start_s)
            for other in periods
        )
    )
    return replace(timeline, degradations=kept)


def _over_time(
    report: Report,
    transports: Mapping[str, str],
    placed: Sequence[tuple[str, Process]],
    wall_s: float,
    readings: Readings | None,
) -> OverTime:
    by_id = {comm.id: transports[comm_id(comm)] for comm in report.communicators if comm.id}
    lines = unpack(report.communicators, by_id, placed)
    nodes = {number: node for number, (node, _) in enumerate(placed)}
    names = dict(enumerate(report.names))
    return look_over_time(lines, report.communicators, by_id, nodes, names, wall_s, readings)


def _sorted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda one: -SEVERITIES.index(one.severity)))


def _step_of(processes: Sequence[Process], steps: Sequence[StepRecord]) -> StepRecord | None:
    """Return the record of the step whose processes did not end in order; of several, the last."""
    names = {one.facts.step for one in processes if one.facts.state in (KILLED, EXITED)}
    last = max(names, key=lambda one: -1 if one is None else one, default=None)
    name = "batch" if last is None else str(last)
    return next((one for one in steps if one.name == name), None) if names else None


def _ending(state: str, given: JobContext, head: Head, processes: Sequence[Process]) -> Ending:
    """Return how the job ended; `nccl-inspector run` knows it of its command, also within a job."""
    record = given.record
    if head.state:
        return Ending(head.state, exit_code=head.exit_code)
    if record is None:
        return Ending(state)
    failed = (record.failed_node or "") if state == "NODE_FAIL" else ""
    of_job = Ending(state, record.end_s, record.exit_code, record.signal, failed)
    return of_job.of_step(_step_of(processes, given.steps))


def _how_ended(
    given: JobContext,
    loaded: Loaded,
    placed: Sequence[tuple[str, Process]],
    seen: Sequence[SeenEnd],
    first: FirstEnd | None,
) -> dict[int, str]:
    """Return how processes ended, in words, by their places: as Slurm saw it, or launchers wrote.

    The lines of an attempt before this one may be in the same output, and have no times. What
    Slurm saw of a task with another process id is the end of what started the process.
    """
    lines = None if loaded.head.restart else given.launchers
    job_ids = {one.head.job_id for one in loaded.summaries}
    found = {}
    explained = set()
    if lines:
        for at, told in how_they_ended(lines, placed).items():
            step = placed[at][1].facts.step
            found[at] = killed_words(told, lines, job_ids, step)
            if found[at] and lacked_memory(told, lines, job_ids, step):
                explained.add(at)
    for one in seen:
        if one.who is None:
            continue
        if one.end.signal == SIGKILL and one.who in explained:
            continue  # slurmstepd's record has the signal, and not what sent it
        is_first = first is not None and one.who == first.who
        words = one.end.words if is_first or one.by_itself else ""
        if one.who not in found or (words and one.end.pid == placed[one.who][1].facts.pid):
            found[one.who] = words
    return found


@dataclass(frozen=True, slots=True)
class _CommonTime:
    """The processes in common time, and how long each gave no sign of life."""

    processes: list[Process]
    silences_ns: list[float]
    doubt_ns: float
    clocks: Mapping[str, Clock]


def _in_time(placed: Sequence[tuple[str, Process]], ending: Ending) -> _CommonTime:
    """Return the processes in common time; if all ended normally, clocks are not compared."""
    processes = [process for _, process in placed]
    if not any(one.operations or one.facts.state == KILLED for one in processes):
        return _CommonTime(processes, [0.0] * len(processes), 0.0, {})
    clocks = read_clocks(placed)
    common = in_common_time(placed, clocks)
    nodes = [node for node, _ in placed]
    silences = silences_ns(list(zip(nodes, common, strict=True)), clocks, ending.until_ns)
    doubts = sorted((clocks.get(node, Clock()).error_ns for node in set(nodes)), reverse=True)
    return _CommonTime(common, silences, sum(doubts[:2]), clocks)


def _find_hangs(
    timed: _CommonTime, names: Sequence[str], ending: Ending, first: FirstEnd | None
) -> tuple[Hang, ...]:
    """Return the operations that never ended.

    If the job went on after processes were replaced, what these were in is not counted.
    """
    went_on = not ending.is_over or ending.state == "COMPLETED"
    gone = find_replaced(timed.processes) if went_on else frozenset()
    kept = [at for at in range(len(names)) if at not in gone]
    return find_hangs(
        [timed.processes[at] for at in kept],
        [names[at] for at in kept],
        ending,
        [timed.silences_ns[at] for at in kept],
        names[first.who] if first and first.who not in gone else "",
    )


def _waiting(
    processes: Sequence[Process], names: Sequence[str], hangs: Sequence[Hang]
) -> frozenset[str]:
    """Return who waited, by name, if it is known for whom."""
    roots = {name for one in hangs for name in one.roots}
    if not roots:
        return frozenset()
    return (
        frozenset(
            name
            for name, one in zip(names, processes, strict=True)
            if any(operation.started for operation in one.operations)
        )
        - roots
    )


def build_card(
    loaded: Loaded, given: JobContext | None = None, *, second_process: bool = False
) -> Card:
    """Return the card of the attempt that was loaded.

    `second_process`: children may examine the records and the time lines of a large job at the same
    time. Limits on the caller's time and memory do not limit these children, so it is only for a
    caller without such limits.
    """
    given = given or JobContext()
    loaded = believable(loaded, given)
    placed = [(one.head.node, process) for one in loaded.summaries for process in one.processes]
    forking = second_process and len(placed) >= _MANY_PROCESSES
    with Forked(lambda: _judge_samples(placed, given), worthwhile=forking) as judging:
        return _build(loaded, given, placed, judging, forking=forking)


def _with_output(
    verdict: Verdict, findings: tuple[Finding, ...], given: JobContext, *, requeued: bool
) -> tuple[Verdict, tuple[Finding, ...]]:
    """Return verdict and findings with what was given of the job's output."""
    by_slurm = given.record.state or "" if given.record and given.record.by_slurm else ""
    claimed = [
        *tell_words(given.words, verdict, findings, state=by_slurm, requeued=requeued),
        *tell_dumps(given.dumps, verdict, findings),
        *tell_launchers(given.launchers, requeued=requeued),
    ]
    summary = explain_failure(verdict, given.words, findings, state=by_slurm, requeued=requeued)
    findings = _sorted([*findings, *claimed])
    if (
        summary == verdict.summary
        and verdict.status == FAILED
        and verdict.cause == OTHER
        and not requeued
        and (wrote := first_end(given.launchers))
    ):
        summary = f"{summary}; {wrote}"
    return replace(verdict, summary=summary), findings


def _build(
    loaded: Loaded,
    given: JobContext,
    placed: Sequence[tuple[str, Process]],
    judging: Forked[Judged],
    *,
    forking: bool,
) -> Card:
    report, summaries = build_report(loaded), loaded.summaries
    processes = [process for _, process in placed]
    comms = report.communicators
    if report.dumps and not processes:
        card = vendor_card(report, summaries, report.dumps, given)
        verdict, findings = _with_output(
            card.verdict, card.findings, given, requeued=report.head.restart > 0
        )
        return replace(card, verdict=verdict, findings=findings)
    gpus = {one.head.node: gpus_of(one.counters) for one in summaries}
    counted = {one.head.node: one.counters for one in summaries}
    places = Places(placed, report.names, counted)
    transports = {comm_id(comm): transport_of(comm, gpus).transport for comm in comms}
    job = with_record(describe_job(report, summaries), given)
    looked = Forked(
        lambda: _over_time(report, transports, placed, job.wall_s or 0.0, given.readings),
        worthwhile=forking,
    )
    ending = _ending(job.state, given, report.head, processes)
    environment = describe_environment(summaries)
    nodes = _nodes(summaries, environment.gpu_models)
    missing = dict.fromkeys(chain.from_iterable(report.nodes_missing.values()))
    with looked:
        hardware, slow_hardware = find_hardware(summaries), find_slow_hardware(summaries)
        timed = _in_time(placed, ending)
        wrong = wrong_clocks(timed.clocks)
        seen = list(seen_ends(summaries, wrong))
        first = None if missing else find_first_end(seen, placed, wrong, ending)
        ended = _how_ended(given, loaded, placed, seen, first)
        how_ended = {report.names[at]: words for at, words in ended.items()}
        first_name = report.names[first.who] if first else ""
        hangs = _find_hangs(timed, report.names, ending, first)
        sampled = judging.result()
        comms = with_transfers(comms, find_transfers(sampled))
        lasting = _lasting_slowness(comms, transports, placed)
        comm_names = name_communicators(comms)
        sums = sum_transports(comms, transports, job.wall_s)
        over_time = looked.result()
    refused = Counter(given.refused) + Counter(over_time.refused) + Counter(sampled.refused)
    quality = describe_quality(
        report, summaries, given.inputs, refused, given.from_boxes, sampled.looked
    )
    unmeasured = find_unmeasured(
        timed.processes, report.names, report.coverage, tuple(missing), quality.ranks_expected,
        Ends(places, ending, timed.silences_ns, timed.doubt_ns,
             _waiting(timed.processes, report.names, hangs), how_ended,
             None if any(one.roots for one in hangs) else first,
             find_failed_node(summaries, tuple(missing), ending)),
    )  # fmt: skip
    view = JobView(
        placed,
        report.names,
        [_gpu_label(process) for process in processes],
        job.wall_s or 0.0,
        comms,
        given.cost_min,
        sampled.active_s,
    )
    told = _tell(sampled, view, slow_hardware, over_time, lasting)
    accused = [one.rank for one in told.stragglers if one.flagged]
    operations = list_operations(
        comms,
        lambda comm, one: _expectation(comm, one, transports[comm_id(comm)], nodes),
        accused,
    )
    below = tell_below(sampled, operations, transports, view, hardware.findings)
    port = unseen_port(sampled, operations, transports, view, hardware.findings)
    causes, counters = with_counters([*told.findings, *below], hardware.findings)
    timeline = _confirmed(over_time.timeline, causes, sampled)
    running_job = None if ending.is_over else job.job_id
    hung_job = HungJob(places, ending, job.job_id, comm_names, how_ended, first_name)
    died = any(one.rule == rules.KILLED.id and one.severity == CRITICAL for one in unmeasured)
    quiet = None if hangs or died else _quiet_end(timed.processes, ending)
    of_hangs, of_ends = tell_ends_once(describe_hangs(hangs, hung_job), unmeasured)
    located = places.locate(
        [
            *of_hangs,
            *([describe_quiet_end(quiet, hung_job)] if quiet else []),
            *(one for _, one in causes),
            *counters,
            *of_ends,
        ]
    )
    findings = _sorted([suggest(one, running_job) for one in located])
    measured = any(comm.figures for comm in comms)
    verdict = judge(
        ending=ending,
        no_data="" if measured else _no_data(report.coverage),
        most_missing=2 * quality.ranks_seen <= (quality.ranks_expected or 0),
        findings=findings,
        hangs=hangs,
        wall_s=job.wall_s,
        waiting_share=total_waiting(comms),
        sampled=sampled,
        cost_min=given.cost_min,
        unseen=port,
        nodes_missing=tuple(missing),
    )
    requeued = report.head.restart > 0
    verdict, findings = _with_output(verdict, findings, given, requeued=requeued)
    return Card(
        job=job,
        verdict=verdict,
        environment=environment,
        data_quality=quality,
        findings=findings,
        communicators=list_communicators(comms, transports, comm_names),
        operations=operations,
        transports=sums,
        timeline=timeline,
        stragglers=told.stragglers,
        hangs=hangs,
        heat=tuple(row for row in over_time.heat if row[0] in accused),
        counters=hardware.counters,
        network=describe_network(placed, report.names, counted),
        hosts=describe_hosts(placed, report.names),
        labels=describe_labels([process for _, process in placed]),
    )
