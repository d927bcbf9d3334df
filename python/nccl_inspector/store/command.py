# SPDX-License-Identifier: Apache-2.0
"""The commands `nccl-inspector history`, `nodes` and `compare`: over jobs, not of one.

They import what they need themselves, because the agent runs through the same cli.py and needs no
memory for SQLite and the analysis.
"""

import json
import re
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from nccl_inspector.card.model import CAUSES, STATUSES
from nccl_inspector.config import read_config

_path = click.Path(path_type=Path)
_conf = click.option("--conf", type=_path, help="Configuration file in place of the usual one.")
_json = click.option("--json", "as_json", is_flag=True, help="The figures, as JSON.")
_all = click.option("--all", "everything", is_flag=True, help="Cut no table short.")
_SINCE = re.compile(r"([0-9]{1,6})([mhdw])")
_UNIT_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _since(_context: click.Context, _parameter: click.Parameter, text: str) -> float | None:
    """Return a Unix time of `12h` ago, or of a day as `2026-08-01` in UTC."""
    if not text:
        return None
    if match := _SINCE.fullmatch(text):
        return time.time() - int(match[1]) * _UNIT_S[match[2]]
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise click.BadParameter("not a time like 12h, 7d or 2026-08-01") from None


@click.command()
@_conf
@click.option("--user", default="", help="Jobs of this user.")
@click.option("--partition", default="", help="Jobs of this partition.")
@click.option("--verdict", default="", help=f"One of {', '.join([*STATUSES, *CAUSES])}.")
@click.option("--since", callback=_since, default="", help="Ended since: 12h, 7d or 2026-08-01.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True,
              help="So many, the latest.")  # fmt: skip
@click.option("--tasks", is_flag=True, help="Each task of an array in a line of its own.")
@_json
def history(
    conf: Path | None,
    user: str,
    partition: str,
    verdict: str,
    since: float | None,
    limit: int,
    tasks: bool,
    as_json: bool,
) -> None:
    """List jobs with their verdicts, the latest first; the tasks of an array together.

    Users see their own jobs, members of report_group see all. Exit status 1: there is no index.
    """
    from nccl_inspector.store.index import reading
    from nccl_inspector.store.queries import Wish, find_jobs
    from nccl_inspector.store.text import jobs_text

    if verdict and verdict.casefold() not in (one.casefold() for one in (*STATUSES, *CAUSES)):
        raise click.BadParameter("not a verdict", param_hint="--verdict")
    wish = Wish(user, partition, verdict, since, limit)
    with reading(read_config(conf).store_dir) as (index, all_jobs):
        jobs = find_jobs(index, wish)
    if as_json:
        click.echo(json.dumps({"all_jobs": all_jobs, "jobs": [asdict(job) for job in jobs]}))
    else:
        click.echo(jobs_text(jobs, all_jobs, tasks), nl=False)


@click.command()
@_conf
@click.option("--last", type=click.IntRange(1, 100_000), default=1000, show_default=True,
              help="How many jobs are looked at.")  # fmt: skip
@click.option("--each-job", is_flag=True,
              help="Count jobs, not users: where all jobs are one account's.")  # fmt: skip
@_all
@_json
def nodes(conf: Path | None, last: int, each_job: bool, everything: bool, as_json: bool) -> None:
    """Name nodes on which jobs were slow again and again, with the evidence.

    A hint for a health check, never a reason to drain: a node is compared with others by how the
    jobs of each user fared there beside the same user's other jobs. Two users at least must have
    fared badly; of your own jobs alone, each counts.
    """
    from nccl_inspector.analysis.slownodes import score_nodes
    from nccl_inspector.store.index import reading
    from nccl_inspector.store.queries import last_jobs
    from nccl_inspector.store.text import nodes_text

    with reading(read_config(conf).store_dir) as (index, all_jobs):
        jobs = last_jobs(index, last)
    each_job |= not all_jobs
    scores = score_nodes(jobs, each_job=each_job)
    if as_json:
        click.echo(json.dumps({"jobs": len(jobs), "nodes": [asdict(one) for one in scores]}))
    else:
        click.echo(nodes_text(scores, len(jobs), everything, each_job=each_job), nl=False)


@click.command()
@click.argument("a")
@click.argument("b")
@_conf
@_all
@_json
def compare(a: str, b: str, conf: Path | None, everything: bool, as_json: bool) -> None:
    """Say what changed from job A to job B, such as the same script yesterday and today.

    JOB.ATTEMPT means an earlier attempt. Times are compared with what the histograms can tell
    apart, the rest is called noise.
    """
    from nccl_inspector.analysis.compare import compare as compare_cards
    from nccl_inspector.store.rows import nodes_of
    from nccl_inspector.store.stored import find_card
    from nccl_inspector.store.text import difference_text

    config = read_config(conf)
    first, second = (find_card(words, config.report_dir, config.store_dir) for words in (a, b))
    difference = compare_cards(first, second, set(nodes_of(first)), set(nodes_of(second)))
    if as_json:
        click.echo(json.dumps(asdict(difference)))
    else:
        click.echo(difference_text(difference, everything), nl=False)
