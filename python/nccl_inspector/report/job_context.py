# SPDX-License-Identifier: Apache-2.0
"""What is known of a job besides its node summaries: Slurm's record and the job's output."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeGuard

from nccl_inspector.analysis.replay.cause import COST_MIN
from nccl_inspector.analysis.slow_times.throughput import Readings
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import Input, Job, Period, StepEnd
from nccl_inspector.model.exit_words import exit_words
from nccl_inspector.model.hostlist import expand
from nccl_inspector.model.wording import number
from nccl_inspector.nccl_log.launcher_lines import LauncherLines
from nccl_inspector.report.announced_paths import AvoidedError, visiting
from nccl_inspector.report.flight_words import JobDumps, read_job_dumps
from nccl_inspector.report.kept_logs import KeptLog, judge_kept
from nccl_inspector.report.nccl_words import NcclWords, words_of
from nccl_inspector.report.output import CPU_S, Output, OutputContent, read_output
from nccl_inspector.settings.config import Config
from nccl_inspector.slurm.accounting import ask_steps
from nccl_inspector.slurm.find_record import find_record
from nccl_inspector.slurm.job_record import ACCOUNTING, OVER, JobRecord, StepRecord
from nccl_inspector.slurm.topology import ask_places, used
from nccl_inspector.summary.codec import Head

STEP_ENDS_MAX = 16


@dataclass(frozen=True, slots=True)
class JobContext:
    """What is known besides the summaries."""

    record: JobRecord | None = None
    switches_used: tuple[str, ...] = ()
    readings: Readings | None = None
    words: NcclWords | None = None  # what the job's output says of its end, and NCCL of its set-up
    launchers: LauncherLines | None = None  # what srun, torchrun and mpirun wrote there
    steps: tuple[StepRecord, ...] = ()  # of a job that did not end well, if accounting has them
    dumps: JobDumps | None = None  # of PyTorch's flight recorder
    inputs: tuple[Input, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    from_boxes: bool = True  # False: the summaries were made from something else
    why_no_samples: str = ""  # why no process has exact records, if that is known
    cost_min: float = COST_MIN  # share of the job's time that makes a cause a warning


@dataclass(frozen=True, slots=True)
class RequestedInputs:
    """What to look at; `output` None: the output that Slurm names.

    `output_cpu_s`: seconds of CPU time for the job's output. `errors`: where standard error went,
    if that is another file than `output`. `begins`: bytes of each that were there before the job.
    """

    slurm: bool = True
    output: Path | None = None
    patterns: tuple[re.Pattern[str], ...] = ()
    output_cpu_s: float = CPU_S
    errors: Path | None = None
    begins: Mapping[Path, int] = field(default_factory=dict)


def _exit_code(record: JobRecord) -> str:
    if record.exit_code is None:
        return ""
    return f"{record.exit_code}:{record.signal or 0}"


def with_record(job: Job, given: JobContext) -> Job:
    """Return the job from the hooks, completed and corrected by Slurm's record."""
    record = given.record
    if record is None:
        return replace(job, switches_used=given.switches_used)
    return replace(
        job,
        name=record.name or job.name,
        account=record.account or job.account,
        partition=record.partition or job.partition,
        cluster=record.cluster or job.cluster,
        state=record.state or job.state,
        exit_code=_exit_code(record) or job.exit_code,
        start_s=record.start_s if record.start_s is not None else job.start_s,
        end_s=record.end_s if record.end_s is not None else job.end_s,
        # What the job's processes say counts only if Slurm says nothing.
        array_task=record.array_task if record.by_slurm else job.array_task,
        submit_line=record.submit_line or job.submit_line,
        switches_asked=record.switches_asked,
        segment_asked=record.segment or None,
        switches_used=given.switches_used,
        step_ends=_step_ends(given.steps),
    )


def _step_ends(steps: Sequence[StepRecord]) -> tuple[StepEnd, ...]:
    """Return the steps that did not end with 0, the last of them if there are many."""
    ends = [
        StepEnd(one.name, one.state, f"{one.exit_code or 0}:{one.signal or 0}",
                exit_words(one.exit_code, one.signal))
        for one in steps
        if one.exit_code or one.signal or one.state != "COMPLETED"
    ]  # fmt: skip
    return tuple(ends[-STEP_ENDS_MAX:])


def _places(config: Config, record: JobRecord | None) -> tuple[str, ...]:
    """Return the leaf switches or blocks of the job's nodes; empty if Slurm does not tell all."""
    if record is None or not record.nodelist:
        return ()
    places, _ = ask_places(config.scontrol, record.partition or "")
    try:
        nodes = expand(record.nodelist)
    except InspectorError:
        return ()
    found = used(places, nodes)
    return () if "" in found else tuple(found)


def _dumps(record: JobRecord | None, head: Head) -> JobDumps | None:
    """Return what the job's flight-recorder dumps say; None: there are none, or root asks."""
    if record is None or not record.work_dir or os.geteuid() == 0:
        return None
    folder = Path(record.work_dir)
    try:
        with visiting(head.uid, folder):
            return read_job_dumps(folder, head.job_id, head.uid)
    except AvoidedError:
        return None


def _has_steps_to_tell(record: JobRecord | None, *, unfinished: bool) -> TypeGuard[JobRecord]:
    """Tell whether accounting has the steps of a job that did not end well."""
    if record is None or ACCOUNTING not in record.sources or record.state not in OVER:
        return False
    return unfinished or record.state != "COMPLETED"


def _own_ids(head: Head, asked: RequestedInputs) -> frozenset[int] | None:
    """Return the ids that Slurm's lines in the job's output must have; None: they may have any."""
    named = head.by_slurm and not head.het_job_id and not asked.output
    return frozenset({head.job_id}) if named else None


def _read_output(
    head: Head,
    asked: RequestedInputs,
    record: JobRecord | None,
    period: Period,
    logs: Sequence[KeptLog] = (),
) -> tuple[OutputContent, Input]:
    """Return what is in the output, and the input that it is."""
    path = asked.output or (Path(record.stdout_path) if record and record.stdout_path else None)
    if path is None or (not asked.output and os.geteuid() == 0):
        return OutputContent(), Input("throughput", "absent")
    errors = asked.errors
    if record and record.stderr_path and not asked.output:
        errors = Path(record.stderr_path)
    output = Output(
        path, None if asked.output else head.uid, period, asked.patterns, asked.output_cpu_s, logs,
        None if errors == path else errors, _own_ids(head, asked), asked.begins,
    )  # fmt: skip
    try:
        with visiting(head.uid, path):
            told = read_output(output)
    except AvoidedError as err:
        return OutputContent(), Input("throughput", "absent", f"{path}: {err}")
    return told, told.seen


def _in_output(words: NcclWords, of: str) -> Input:
    return Input("nccl_log", "present", f"{number(words.lines, 'line')} in {of}")


def gather_own(head: Head, asked: RequestedInputs) -> JobContext:
    """Read the output of a command that the caller has run; Slurm is not asked."""
    told, seen = _read_output(head, asked, None, Period(head.start, head.end))
    inputs = [seen]
    if told.words is not None and told.words.lines:
        inputs.append(_in_output(told.words, "the command's output"))
    return JobContext(
        readings=told.readings, words=told.words, launchers=told.launchers, inputs=tuple(inputs)
    )


def gather(
    head: Head,
    config: Config,
    asked: RequestedInputs,
    logs: Sequence[KeptLog] = (),
    *,
    unfinished: bool = False,
) -> JobContext:
    """Ask Slurm, and read the job's output; `head` is of one of the job's summaries.

    `logs`: what its summaries keep of NCCL's own logs. `unfinished`: processes of it did not end in
    order, so its steps are asked for, too, whatever its state is.

    Root does not open the output that Slurm names: the user chose its path, which can lead
    anywhere.
    """
    record: JobRecord | None = None
    steps: tuple[StepRecord, ...] = ()
    inputs: list[Input] = []
    if asked.slurm:
        record, why = find_record(head.job_id, config, head)
        known = record is not None and record.by_slurm
        inputs.append(Input("slurm", "present" if known else "absent", "; ".join(why)))
        if _has_steps_to_tell(record, unfinished=unfinished):
            steps = ask_steps(Path(config.scontrol).with_name("sacct"), record)
    start_s = record.start_s if record and record.start_s is not None else head.start
    end_s = record.end_s if record and record.end_s is not None else head.end
    told, seen = _read_output(head, asked, record, Period(start_s, end_s), logs)
    inputs.append(seen)
    words = told.words
    if words is None and logs:
        words = words_of(judge_kept(logs))
    if words is not None and words.lines:
        of = f"{number(len(logs), 'file')} of NCCL's" if logs else "the job's output"
        inputs.append(_in_output(words, of))
    dumps = _dumps(record, head)
    if dumps is not None:
        inputs.append(Input("flight_recorder", "present", dumps.detail))
    return JobContext(
        record, _places(config, record), told.readings, words, told.launchers, steps, dumps,
        tuple(inputs), cost_min=config.report_cost_percent / 100,
    )  # fmt: skip
