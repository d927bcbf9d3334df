# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector history`: jobs with their verdicts.

It imports modules only when it needs them: the agent starts through the same cli.py, and should not
use memory for SQLite and the analysis.
"""

import json
from dataclasses import asdict
from pathlib import Path

import click

from nccl_inspector.commands.options import conf_option, json_option
from nccl_inspector.commands.slurm_time import WORDS, numbers_option, time_option
from nccl_inspector.model.card import CAUSES, STATUSES
from nccl_inspector.settings.config import read_config


@click.command()
@conf_option
@click.option(
    "-j", "--jobs", callback=numbers_option, default="", help="Only these jobs: 4711,4712."
)
@click.option("-u", "--user", default="", help="Only jobs of this user.")
@click.option("-r", "--partition", default="", help="Only jobs of this partition.")
@click.option(
    "--verdict",
    default="",
    help=f"Only jobs with this verdict or cause: {', '.join([*STATUSES, *CAUSES])}.",
)
@click.option(
    "-S", "--since", callback=time_option, default="",
    help=f"Only jobs that ended since: {WORDS}.",
)  # fmt: skip
@click.option(
    "-E", "--until", callback=time_option, default="", help="Only jobs that ended until then."
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True,
              help="List this number of jobs, the latest.")  # fmt: skip
@click.option("--tasks", is_flag=True, help="List each task of an array in its own line.")
@click.option(
    "-M", "--cluster", default="", help="Only jobs of this cluster, if several share the index."
)
@json_option
def history(
    conf: Path | None,
    jobs: tuple[int, ...],
    user: str,
    partition: str,
    verdict: str,
    since: float | None,
    until: float | None,
    limit: int,
    tasks: bool,
    cluster: str,
    as_json: bool,
) -> None:
    """List jobs with their verdicts, the latest first; the tasks of an array are one line.

    Users see their own jobs; members of report_group see all jobs. Exit status 1: there is no
    index.
    """
    from nccl_inspector.store.index import reading
    from nccl_inspector.store.place import index_of
    from nccl_inspector.store.queries import JobFilter, find_jobs
    from nccl_inspector.store.text import jobs_text

    if verdict and verdict.casefold() not in (one.casefold() for one in (*STATUSES, *CAUSES)):
        raise click.BadParameter("not a verdict", param_hint="--verdict")
    wanted = JobFilter(user, partition, verdict, since, limit, cluster, until, jobs)
    with reading(index_of(read_config(conf))) as (index, all_jobs):
        found = find_jobs(index, wanted)
    if as_json:
        click.echo(json.dumps({"all_jobs": all_jobs, "jobs": [asdict(job) for job in found]}))
    else:
        click.echo(jobs_text(found, all_jobs, tasks), nl=False)
