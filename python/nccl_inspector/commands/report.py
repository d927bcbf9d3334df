# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector report`.

It imports what makes a card only when it is needed, because the agent starts through the same
cli.py and does not need the analysis.
"""

import gc
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from nccl_inspector.commands.card_output import (
    OutputOptions,
    card_options,
    exit_judging,
    write_card,
)
from nccl_inspector.commands.fetched_files import with_files_of
from nccl_inspector.commands.options import (
    attempt_option,
    conf_option,
    path_type,
    read_settings,
    report_dir_option,
)
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import Card
from nccl_inspector.settings.config import Config
from nccl_inspector.slurm.array_task import find_array_task
from nccl_inspector.slurm.job_argument import job_or_task


@dataclass(frozen=True, slots=True)
class _CardSource:
    """What a card is made from."""

    job: int | str
    attempt: int | None
    prometheus: str
    output: Path | None
    patterns: tuple[re.Pattern[str], ...]


# Kept until the process ends, because freeing the records of a large job takes as long as writing
# its report.
_kept: list[object] = []


def _make(source: _CardSource, config: Config) -> Card:
    from nccl_inspector.report.job_context import RequestedInputs
    from nccl_inspector.report.make import make_card
    from nccl_inspector.summary.attempts import load_summaries

    def slurms_number(task: str) -> int | None:
        from nccl_inspector.slurm.find_record import find_record

        record, _ = find_record(task, config)
        # Not for the array itself, and not for a task that has no job id yet: Slurm's record would
        # then be that of another job.
        return record.job_id if record and record.array_task == task else None

    job, by_claim = source.job, ""
    if source.prometheus:
        from nccl_inspector.prometheus.source import prometheus_card

        if not isinstance(job, int):
            raise InspectorError("for an array task give its own job id (JobIDRaw of sacct)")
        return prometheus_card(source.prometheus, job)
    if isinstance(job, int):
        job_id = job
    elif config.object_url:
        known = slurms_number(job)
        if known is None:
            raise InspectorError(
                f"Slurm does not know {job}; give its own job id (JobIDRaw of sacct)"
            )
        job_id = known
    else:
        job_id, is_known = find_array_task(job, config.report_dir, slurms_number)
        if not is_known:
            by_claim = (
                f"Slurm does not know {job}: job {job_id} only says of itself that it is that"
            )
    config = with_files_of(config, job_id)
    loaded = load_summaries(job_id, config.report_dir, source.attempt)
    _kept.append(loaded)
    asked = RequestedInputs(True, source.output, source.patterns)
    card = make_card(loaded, config, asked, second_process=True)
    if by_claim:
        quality = card.data_quality
        quality = replace(quality, missing=(by_claim, *quality.missing))
        card = replace(card, data_quality=quality)
    return card


def _patterns(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[re.Pattern[str], ...]:
    if not texts:
        return ()
    from nccl_inspector.analysis.slow_times.throughput import compile_pattern

    try:
        return tuple(map(compile_pattern, texts))
    except ValueError as err:
        raise click.BadParameter(str(err)) from err


@click.command()
@click.argument("job", metavar="JOB_ID|ARRAY_TASK", callback=job_or_task)
@conf_option
@report_dir_option
@attempt_option
@click.option(
    "--prometheus",
    metavar="URL",
    default="",
    help="Use the job's series in this Prometheus, if its files are gone.",
)
@click.option(
    "--output",
    type=path_type,
    help="File with the job's throughput. [default: the output that Slurm knows]",
)
@click.option(
    "--throughput",
    "patterns",
    metavar="REGEX",
    multiple=True,
    callback=_patterns,
    help="How a line of the output tells the throughput: with a group named value, seconds or "
    "milliseconds.",
)
@card_options
@click.pass_context
def report(
    context: click.Context,
    /,
    job: int | str,
    conf: Path | None,
    report_dir: Path | None,
    attempt: int | None,
    prometheus: str,
    output: Path | None,
    patterns: tuple[re.Pattern[str], ...],
    **wished: Any,
) -> None:
    """Judge an ended job: who was slow, since when, why, and what to do.

    Exit status 0: healthy; 1: warnings; 2: critical, or a wrong option; 3: not enough data to
    judge, or no report, and standard error says why.
    """

    def make() -> int:
        gc.disable()  # almost nothing of what is made in these 1 to 10 seconds could be freed
        config = read_settings(conf, report_dir=report_dir)
        card = _make(_CardSource(job, attempt, prometheus, output, patterns), config)
        return write_card(card, OutputOptions(sendmail=config.sendmail, **wished))

    exit_judging(context, make)
