# SPDX-License-Identifier: Apache-2.0
"""The parts of a card that need no judgement: the job, its environment, and what is missing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from nccl_inspector.analysis.coverage import Coverage
from nccl_inspector.model.card import Component, DataQuality, Environment, Gap, Input, Job
from nccl_inspector.model.process import CPU_TIMED, GPU_TIMED, Process
from nccl_inspector.model.wording import duration, volume
from nccl_inspector.report.joined_job import Report
from nccl_inspector.summary.codec import UID_UNKNOWN, NodeSummary

# Texts for the reasons in DROPS_IN_PART.
_IN_PART = {
    "no_peer": "Sends and Recvs that are not in the figures by peer",
    "no_group": "Sends and Recvs that could not be seen as part of their group",
    "json": "lines that the JSON files have not got",
}


def _spell(ns: int) -> str:
    """Return a time of silence as text; longer ones in whole minutes."""
    return duration(ns) if ns < 120e9 else f"{ns / 60e9:.0f} min"


def describe_job(report: Report, summaries: Sequence[NodeSummary]) -> Job:
    """Return what the hooks and the processes say about the job; Slurm's record may add to it."""
    head = report.head
    own = [summary.head for summary in summaries]
    missing = {node for nodes in report.nodes_missing.values() for node in nodes}
    begun = [one.job_start or one.start for one in own]
    return Job(
        job_id=head.leader,
        user=head.user or ("" if head.uid == UID_UNKNOWN else str(head.uid)),
        uid=None if head.uid == UID_UNKNOWN else head.uid,
        by_slurm=head.by_slurm,
        account=head.account,
        partition=head.partition,
        cluster=head.cluster,
        start_s=min(begun, default=None),
        end_s=max((one.end for one in own), default=None),
        num_nodes=len(missing | set(report.nodes)),
        nodelist="" if head.het_job_id else head.nodelist,
        state=head.state or "",
        exit_code="" if head.exit_code is None else f"{head.exit_code}:0",
        array_task=report.array_task,
        het_components=tuple(report.nodelists) if head.het_job_id else (),
        restart=head.restart,
        attempts=report.attempts,
        steps=report.steps,
        components=tuple(
            Component(job, nodelist, report.nodes_missing.get(job, ()))
            for job, nodelist in report.nodelists.items()
        )
        if head.het_job_id
        else (),
    )


def _ports(summaries: Iterable[NodeSummary]) -> tuple[str, ...]:
    kinds: Counter[str] = Counter()
    for summary in summaries:
        if summary.counters is None:
            continue
        layers = dict(summary.counters.facts_of("port", "link_layer"))
        for port, rate in summary.counters.facts_of("port", "rate"):
            layer = f" {layers[port][0].text}" if port in layers else ""
            kinds[f"{rate[0].text}{layer}"] += 1
    return tuple(f"{count} x {words}" for words, count in kinds.most_common())


def describe_environment(summaries: Sequence[NodeSummary]) -> Environment:
    """Return versions and hardware, from boxes and counters."""
    processes = [process for summary in summaries for process in summary.processes]
    nccl = {one.facts.nccl.removeprefix("NCCL ") for one in processes if one.facts.nccl_version}
    models = {
        changes[0].text
        for summary in summaries
        for _, changes in (summary.counters.facts_of("gpu", "model") if summary.counters else ())
    }
    gpus = {
        (summary.head.node, gpu.uuid or gpu.label)
        for summary in summaries
        for process in summary.processes
        for gpu in process.gpus
    }
    return Environment(
        nccl=tuple(sorted(nccl)),
        plugin_versions=tuple(sorted({one.facts.plugin_version for one in processes})),
        gpu_models=tuple(sorted(models)),
        gpus=len(gpus),
        ports=_ports(summaries),
    )


def _of_processes(words: str, names: Sequence[str]) -> Gap:
    return Gap(words, "process", tuple(names))


def _silence(coverage: Coverage) -> Iterator[Gap]:
    for nccl, names in coverage.denied.items():
        yield _of_processes(f"not measured, {nccl} is on the site's list deny_nccl", names)
    for nccl, names in coverage.rccl.items():
        yield _of_processes(f"not measured, {nccl} is not supported yet", names)
    spell = coverage.disabled
    if spell.names:
        longest = _spell(spell.longest_ns)
        words = f"not measured while the site's kill switch was on, up to {longest}"
        yield _of_processes(words, spell.names)
    spell = coverage.sampled
    if spell.names:
        last = f", one in {coverage.sampling} at the end" if coverage.sampling > 1 else ""
        words = (
            "only some operations timed, to spare the application, for up to "
            f"{_spell(spell.longest_ns)}{last}"
        )
        yield _of_processes(words, spell.names)


def _gaps(report: Report) -> Iterator[Gap]:
    coverage = report.coverage
    yield from _silence(coverage)
    for nccl, names in coverage.counted_only.items():
        yield _of_processes(f"counted only, {nccl} tells no times", names)
    for nccl, names in coverage.cpu_timed.items():
        words = f"measured by the CPU's clock, {nccl} does not tell the GPU's"
        yield _of_processes(words, names)
    if coverage.untimed:
        funcs = ", ".join(
            f"{func} {count} ({volume(size)})" for func, (count, size) in coverage.untimed.items()
        )
        yield Gap(f"operations without a time, counted over all ranks: {funcs}", "process", ())
    for reason, count in coverage.in_part.items():
        have = f" (they have {coverage.json_lines})" if reason == "json" else ""
        yield Gap(f"{_IN_PART[reason]}: {count}{have}", "process", ())
    if report.links:
        for why, nodes in report.links.absent.items():
            yield Gap(why, "node", nodes)


def _not_looked_at(processes: int, looked: int) -> Iterator[Gap]:
    if 0 < looked < processes:
        words = (
            f"{processes - looked:,} of {processes:,} processes were only compared by how long "
            f"their GPUs were in operations; {looked:,}, with those least in them, were operation "
            "by operation"
        )
        yield Gap(words, "process", ())


def _timing(processes: Iterable[Process]) -> str:
    known = {one.facts.timing for one in processes} & {GPU_TIMED, CPU_TIMED}
    return "mixed" if len(known) > 1 else known.pop() if known else "none"


def _dumped(report: Report) -> Iterator[str]:
    """Yield texts about NVIDIA's plugin; if there are boxes, the figures come from these."""
    if report.dumps is None:
        return
    if report.processes:
        yield f"NVIDIA's plugin measured, too: {report.dumps.words} that are not in these figures"
    yield from report.dumps.problems


def describe_quality(
    report: Report,
    summaries: Sequence[NodeSummary],
    inputs: Sequence[Input],
    refused: dict[str, int],
    from_boxes: bool = True,
    looked: int = 0,
) -> DataQuality:
    """Return what the card is based on; `refused` counts records of its inputs that are unreadable.

    `from_boxes`: the summaries were made from boxes, so boxes are one of the inputs. `looked`: how
    many processes' exact records were read; 0: none.
    """
    largest = max((comm.nranks for comm in report.communicators), default=0)
    missing = [node for nodes in report.nodes_missing.values() for node in nodes]
    present = set(report.nodes)
    expected = max(largest, report.processes) if largest else None
    links = report.links
    boxes = Input("boxes", "present" if report.processes else "absent")
    if report.processes and (missing or (expected and report.processes < expected)):
        boxes = Input("boxes", "partial")
    counters = Input("counters", "present" if links and links.sampled else "absent")
    return DataQuality(
        ranks_expected=expected,
        ranks_seen=report.processes,
        # A node that has a summary of another component is not missing.
        nodes_missing=tuple(dict.fromkeys(node for node in missing if node not in present)),
        killed=report.killed,
        dropped=report.coverage.dropped,
        refused=refused,
        timing=_timing(process for summary in summaries for process in summary.processes),
        inputs=(boxes, counters, *inputs) if from_boxes else (*inputs, counters),
        missing=(*report.problems, *(links.problems if links else ()), *_dumped(report)),
        gaps=(*_gaps(report), *_not_looked_at(report.processes, looked)),
        counters_nodes=links.sampled if links else None,
    )
