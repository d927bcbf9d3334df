# SPDX-License-Identifier: Apache-2.0
"""The card of a job that NVIDIA's plugin measured, not ours: means only, no process is named."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nccl_inspector.analysis.dumps import Dumped, DumpedKind
from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.hardware.findings import find_hardware
from nccl_inspector.analysis.places import Places
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.model.card import (
    CRITICAL,
    FAILED,
    LOW,
    NO_DATA,
    Card,
    DataQuality,
    Finding,
    Input,
    Job,
    Operations,
    Verdict,
)
from nccl_inspector.model.wording import clock, digits, duration, number
from nccl_inspector.render.cards_of_means import (
    BY_NVIDIA,
    NOT_COUNTED,
    NOT_TOLD,
    WAITING_IN_IT,
    communicators,
    longest_first,
    nobody_named,
    operations,
)
from nccl_inspector.report.facts import describe_environment, describe_job, describe_quality
from nccl_inspector.report.job_context import JobContext, with_record
from nccl_inspector.report.joined_job import Report
from nccl_inspector.report.verdict import judge
from nccl_inspector.summary.codec import NodeSummary


def _spread_words(one: DumpedKind) -> str:
    """Return the lowest, the mean and the highest of both means, as text."""
    words = [f"{number(one.dumps, 'dump')} of {number(one.gpus, 'GPU')}"]
    time, gbs = one.time_us, one.gbs
    if time.mean is not None:
        least, mean, most = (duration(us * 1e3) for us in (time.low, time.mean, time.high))
        words.append(f"time {least} to {most}, mean {mean}")
    if gbs.mean is not None:
        least, mean, most = (digits(value) for value in (gbs.low, gbs.mean, gbs.high))
        words.append(f"GB/s {least} to {most}, mean {mean}")
    return "; ".join(words)


def _operations(found: Dumped) -> Iterator[Operations]:
    for one in found.kinds:
        if one.least_us is not None:
            words = _spread_words(one)
            yield operations(one.kind, one.least_us * 1e3, one.best_gbs, None, words)


def _quality(
    report: Report, summaries: Sequence[NodeSummary], found: Dumped, given: JobContext
) -> DataQuality:
    inputs = (Input("nvidia", "partial", found.words), *given.inputs)
    refused = {**given.refused, **found.refused}
    quality = describe_quality(report, summaries, inputs, refused)
    said = [BY_NVIDIA]
    if found.dumps:
        said.append(
            f"means of {found.words}, from {clock(found.first_s)} to {clock(found.last_s)} UTC, "
            "with the waiting for late ranks in them; what came after the last dump is not there"
        )
    largest = max((comm.nranks for comm in found.members), default=0)
    return replace(
        quality,
        ranks_expected=max(largest, found.gpus) or None,
        ranks_seen=found.gpus,
        timing=NOT_TOLD if found.kinds else "none",
        missing=(*said, *quality.missing),
    )


def _verdict(found: Dumped, findings: Sequence[Finding], job: Job) -> Verdict:
    """Return FAILED if hardware counters explain a failed job, else that nobody can tell."""
    if any(one.severity == CRITICAL for one in findings):
        judged = judge(
            ending=Ending(job.state), no_data="", most_missing=False, findings=findings, hangs=(),
            wall_s=job.wall_s, waiting_share=None, sampled=Judged(why_not="no exact records"),
        )  # fmt: skip
        if judged.status == FAILED:
            return judged
    if not found.kinds:
        return Verdict(NO_DATA, "", LOW, "no dump of NVIDIA's plugin could be read")
    return nobody_named("the dumps of NVIDIA's plugin")


def vendor_card(
    report: Report, summaries: Sequence[NodeSummary], found: Dumped, given: JobContext
) -> Card:
    """Return the card of an attempt without boxes."""
    job = with_record(describe_job(report, summaries), given)
    hardware = find_hardware(summaries)
    places = Places((), (), {one.head.node: one.counters for one in summaries})
    members = [
        (comm, f"{node} {gpu}", node) for comm, its in found.members.items() for node, gpu in its
    ]
    return Card(
        job=job,
        verdict=_verdict(found, hardware.findings, job),
        environment=replace(describe_environment(summaries), gpus=found.gpus),
        data_quality=_quality(report, summaries, found, given),
        findings=tuple(places.locate(hardware.findings)),
        communicators=communicators(members, (WAITING_IN_IT, NOT_COUNTED)),
        operations=longest_first(_operations(found)),
        counters=hardware.counters,
    )
