# SPDX-License-Identifier: Apache-2.0
"""Callbacks for click: job ids as arguments of commands."""

import click

from nccl_inspector.model.jobid import ARRAY_TASK, JOB_ID, JOB_STEP


def job_id(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    """Return a job id. click's own integers take 1_2 as 12, which is another job than task 1_2."""
    if not JOB_ID.fullmatch(text):
        hint = "; for an array task give its own job id (JobIDRaw of sacct)" if "_" in text else ""
        if step := JOB_STEP.fullmatch(text):
            hint = f": it is a step; give the job, {step[1]}"
        raise click.BadParameter(f"not a job id{hint}")
    return int(text)


def job_ids(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Return the job ids of a text such as `4711,4712`; none if it is empty."""
    return tuple(job_id(context, parameter, one) for one in text.split(",") if one)


def optional_job_id(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> int | None:
    """Return a job id, or None if none was given."""
    return None if text is None else job_id(context, parameter, text)


def optional_job_step(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, str] | None:
    """Return a job id and a step such as `0` or `batch`; an empty step if none was given."""
    match = JOB_STEP.fullmatch(text or "")
    if match and match[2]:
        return int(match[1]), match[2]
    job = optional_job_id(context, parameter, text)
    return None if job is None else (job, "")


def job_or_task(context: click.Context, parameter: click.Parameter, text: str) -> int | str:
    """Return a job id, or an array task as `810_3`."""
    return text if ARRAY_TASK.fullmatch(text) else job_id(context, parameter, text)
