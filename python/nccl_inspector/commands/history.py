# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector history`: jobs with their verdicts.

It imports modules only when it needs them: the agent starts through the same cli.py, and should not
use memory for SQLite and the analysis.
"""

import json
import re
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from nccl_inspector.commands.options import conf_option, json_option
from nccl_inspector.model.card import CAUSES, STATUSES
from nccl_inspector.settings.config import read_config

_SINCE = re.compile(r"([0-9]{1,6})([mhdw])")
_UNIT_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _since(_context: click.Context, _parameter: click.Parameter, text: str) -> float | None:
    """Return the Unix time of a text like `12h` (ago) or `2026-08-01` (UTC); None: it is empty."""
    if not text:
        return None
    if match := _SINCE.fullmatch(text):
        return time.time() - int(match[1]) * _UNIT_S[match[2]]
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise click.BadParameter("not a time like 12h, 7d or 2026-08-01") from None


@click.command()
@conf_option
@click.option("--user", default="", help="Only jobs of this user.")
@click.option("--partition", default="", help="Only jobs of this partition.")
@click.option(
    "--verdict",
    default="",
    help=f"Only jobs with this verdict or cause: {', '.join([*STATUSES, *CAUSES])}.",
)
@click.option(
    "--since",
    callback=_since,
    default="",
    help="Only jobs that ended since: 12h, 7d or 2026-08-01.",
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True,
              help="List this number of jobs, the latest.")  # fmt: skip
@click.option("--tasks", is_flag=True, help="List each task of an array in its own line.")
@click.option(
    "--cluster", default="", help="Only jobs of this cluster, if several share the index."
)
@json_option
def history(
    conf: Path | None,
    user: str,
    partition: str,
    verdict: str,
    since: float | None,
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
    wanted = JobFilter(user, partition, verdict, since, limit, cluster)
    with reading(index_of(read_config(conf))) as (index, all_jobs):
        jobs = find_jobs(index, wanted)
    if as_json:
        click.echo(json.dumps({"all_jobs": all_jobs, "jobs": [asdict(job) for job in jobs]}))
    else:
        click.echo(jobs_text(jobs, all_jobs, tasks), nl=False)
