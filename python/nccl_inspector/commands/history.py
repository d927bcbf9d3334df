# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector history`: jobs with their verdicts.

It imports modules only when it needs them: the agent starts through the same cli.py, and should not
use memory for SQLite and the analysis.
"""

import json
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from nccl_inspector.commands.options import conf_option, json_option
from nccl_inspector.model.card import CAUSES, STATUSES
from nccl_inspector.settings.config import read_config
from nccl_inspector.slurm.job_argument import job_ids

# Times as users of sacct write them; sacct's are local, ours are in UTC, as in all reports.
# https://slurm.schedmd.com/sacct.html (starttime)
_AGO = re.compile(r"([0-9]{1,6})([mhdw])")
_UNIT_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_NOW = re.compile(
    r"now(?:-([0-9]{1,9})(s(?:econds?)?|m(?:inutes?)?|h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?)?)?"
)
_DAYS_AGO = {"today": 0, "midnight": 0, "yesterday": 1}
_DATES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%m/%d/%y", "%m/%d/%y-%H:%M")
_TIMES = ("%H:%M", "%H:%M:%S")
_WORDS = "12h, 7d, yesterday, now-1day, 08:30 or 2026-08-01T08:30 (UTC)"


def read_time(text: str, now_s: float) -> float:
    """Return the Unix time that a text means at a time.

    Raises:
        ValueError: it has none of the forms.
    """
    now = datetime.fromtimestamp(now_s, UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    word = text.casefold()
    if match := _AGO.fullmatch(word):
        return now_s - int(match[1]) * _UNIT_S[match[2]]
    if match := _NOW.fullmatch(word):
        unit = (match[2] or "s")[0]
        return now_s - int(match[1] or 0) * (1 if unit == "s" else _UNIT_S[unit])
    if word in _DAYS_AGO:
        return (today - timedelta(days=_DAYS_AGO[word])).timestamp()
    if word == "noon":
        return (today + timedelta(hours=12)).timestamp()
    for form in _DATES:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    for form in _TIMES:
        try:
            at = datetime.strptime(text, form)
        except ValueError:
            continue
        return today.replace(hour=at.hour, minute=at.minute, second=at.second).timestamp()
    raise ValueError(f"not a time: {text}")


def _time(_context: click.Context, _parameter: click.Parameter, text: str) -> float | None:
    """Return the Unix time of an option; None: it was not given."""
    if not text:
        return None
    try:
        return read_time(text, datetime.now(UTC).timestamp())
    except ValueError:
        raise click.BadParameter(f"not a time like {_WORDS}") from None


@click.command()
@conf_option
@click.option("-j", "--jobs", callback=job_ids, default="", help="Only these jobs: 4711,4712.")
@click.option("-u", "--user", default="", help="Only jobs of this user.")
@click.option("-r", "--partition", default="", help="Only jobs of this partition.")
@click.option(
    "--verdict",
    default="",
    help=f"Only jobs with this verdict or cause: {', '.join([*STATUSES, *CAUSES])}.",
)
@click.option(
    "-S", "--since", callback=_time, default="",
    help=f"Only jobs that ended since: {_WORDS}.",
)  # fmt: skip
@click.option("-E", "--until", callback=_time, default="", help="Only jobs that ended until then.")
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
