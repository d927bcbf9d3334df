# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector show`."""

import sys
from pathlib import Path

import click

from nccl_inspector.commands.options import conf_option
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.settings.config import read_config

_INPUT_CHARS_MAX = 1 << 16


def ask_slurm(job_id: int, conf: Path | None) -> str | None:
    """Return a job's AdminComment; None: it has none.

    Raises:
        InspectorError: Slurm does not know the job.
    """
    from nccl_inspector.slurm.find_record import find_record

    record, problems = find_record(job_id, read_config(conf))
    if record is None:
        raise InspectorError(f"job {job_id}: {'; '.join(problems)}")
    return record.admin_comment


@click.command("show")
@click.argument("what", metavar="JOB_ID|TEXT|-")
@conf_option
def show(what: str, conf: Path | None) -> None:
    """Explain the AdminComment of a job, given as job ID, as text, or on standard input (-)."""
    from nccl_inspector.render.comment import read_comment, render_summary

    text: str | None = what
    if what == "-":
        text = sys.stdin.buffer.read(_INPUT_CHARS_MAX).decode("utf-8", "replace")
    elif JOB_ID.fullmatch(what):
        text = ask_slurm(int(what), conf)
        if not text:
            raise InspectorError(f"Slurm has no AdminComment of job {what}")
    click.echo(render_summary(read_comment(text or "")), nl=False)
