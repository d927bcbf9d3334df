# SPDX-License-Identifier: Apache-2.0
"""A report card from the joined node summaries alone: no windows, no transports, no baseline."""

from collections.abc import Iterator
from itertools import chain

from nccl_inspector.analysis.join import Communicator as Joined
from nccl_inspector.analysis.join import Figures
from nccl_inspector.analysis.precision import time_error_ns
from nccl_inspector.analysis.verdict import Named
from nccl_inspector.card import model
from nccl_inspector.report import Loaded, Report, build_report


def _job(report: Report) -> model.Job:
    head = report.head
    het = head.het_job_id.isdigit()
    return model.Job(
        job_id=int(head.het_job_id) if het else head.job_id,
        user=head.user, account=head.account, partition=head.partition, cluster=head.cluster,
        start_s=float(head.job_start or head.start), end_s=float(head.end) or None,
        num_nodes=head.num_nodes or None, nodelist=next(iter(report.nodelists.values())),
        array_task=report.array_task, het_components=tuple(report.nodelists) if het else (),
        components=tuple(
            model.Component(job_id, nodelist, report.nodes_missing.get(job_id, ()))
            for job_id, nodelist in report.nodelists.items()
        ) if het else (),
        restart=head.restart, attempts=report.attempts, steps=report.steps, uid=head.uid,
    )  # fmt: skip


def _environment(loaded: Loaded) -> model.Environment:
    found = [(one.head.node, process) for one in loaded.summaries for process in one.processes]
    gpus = {(node, gpu.label) for node, process in found for gpu in process.gpus}
    facts = [process.facts for _, process in found]
    return model.Environment(
        nccl=tuple(sorted({one.nccl.removeprefix("NCCL ") for one in facts if one.nccl_version})),
        plugin_versions=tuple(sorted({one.plugin_version for one in facts})),
        gpus=len(gpus),
    )


def _data_quality(report: Report, loaded: Loaded) -> model.DataQuality:
    missing = tuple(chain.from_iterable(report.nodes_missing.values()))
    timings = {one.facts.timing for summary in loaded.summaries for one in summary.processes}
    return model.DataQuality(
        ranks_expected=None,
        ranks_seen=report.processes,
        nodes_missing=missing,
        killed=report.killed,
        dropped=report.coverage.dropped,
        refused={},
        timing=timings.pop() if len(timings) == 1 else "mixed" if timings else "none",
        inputs=(model.Input("boxes", "partial" if missing else "present"),),
        missing=report.problems,
    )


def _comm_id(comm: Joined) -> str:
    return hex(comm.id)


def _communicator(comm: Joined) -> model.Communicator:
    nodes = tuple(dict.fromkeys(member.place.node for member in comm.members.values()))
    return model.Communicator(
        _comm_id(comm), comm.name, "unknown", comm.nranks, comm.nnodes, nodes, len(comm.members),
        comm.notes,
    )  # fmt: skip


def _operations(comm: Joined, one: Figures) -> model.Operations:
    return model.Operations(
        communicator=_comm_id(comm), func=one.func, size_class=one.size_class,
        algo_proto=one.algo_proto, count=one.operations, time_ns=one.time_ns,
        bus_gbs=one.bus_gbs or None, waiting_share=one.waiting if one.judged else None,
        waiting_included=not one.judged, notes=one.notes, time_error_ns=time_error_ns(comm, one),
    )  # fmt: skip


def _straggler(named: Named) -> model.Straggler:
    return model.Straggler(
        named.place.name, named.place.node, named.place.gpu, named.late_ns, None, None,
        named.waited_ns, "unknown", tuple(_comm_id(comm) for comm in named.communicators), True,
        named.member_of,
    )  # fmt: skip


def _findings(report: Report) -> Iterator[model.Finding]:
    for named in report.named:
        place = named.place
        yield model.Finding(
            "straggler", model.WARNING, model.MEDIUM, f"{place.name} on {place.node} comes late",
            f"{place.name} ({place.node}, {place.gpu}) came late by {named.late_ns / 1e6:.3g} ms "
            "at the median",
            entities=(model.Entity("rank", place.name), model.Entity("node", place.node)),
            evidence=(model.Evidence("boxes", "lateness, median", named.late_ns, "ns"),),
        )  # fmt: skip
    if report.killed:
        yield model.Finding(
            "killed", model.WARNING, model.HIGH, f"{len(report.killed)} processes were killed",
            ", ".join(report.killed[:8]),
            entities=tuple(model.Entity("rank", name) for name in report.killed[:8]),
        )  # fmt: skip


def _verdict(report: Report) -> model.Verdict:
    if report.named:
        place = report.named[0].place
        return model.Verdict(
            model.DEGRADED, model.STRAGGLER, model.MEDIUM,
            f"{place.name} on {place.node} is waited for",
        )  # fmt: skip
    figures = [one for comm in report.communicators for one in comm.figures]
    if not figures:
        return model.Verdict(model.NO_DATA, "", model.HIGH, "nothing was measured")
    if not any(one.judged for one in figures):
        return model.Verdict(
            model.CANNOT_TELL, "", model.LOW, "too few operations of too few ranks"
        )
    return model.Verdict(model.HEALTHY, "", model.MEDIUM, "no rank stands out")


def basic_card(loaded: Loaded) -> model.Card:
    """Return what the summaries of one attempt say."""
    report = build_report(loaded)
    return model.Card(
        job=_job(report),
        verdict=_verdict(report),
        environment=_environment(loaded),
        data_quality=_data_quality(report, loaded),
        findings=tuple(_findings(report)),
        communicators=tuple(_communicator(comm) for comm in report.communicators),
        operations=tuple(
            _operations(comm, one) for comm in report.communicators for one in comm.figures
        ),
        stragglers=tuple(_straggler(named) for named in report.named),
    )
