# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector nodes`: on which nodes jobs were slow again and again.

It imports modules only when it needs them: the agent starts through the same cli.py, and should not
use memory for SQLite and the analysis.
"""

import json
from dataclasses import asdict
from pathlib import Path

import click

from nccl_inspector.commands.options import all_option, conf_option, json_option
from nccl_inspector.settings.config import read_config


@click.command()
@conf_option
@click.option("--last", type=click.IntRange(1, 100_000), default=1000, show_default=True,
              help="Look at this number of jobs, the latest.")  # fmt: skip
@click.option("--each-job", is_flag=True,
              help="Count jobs instead of users, if one account runs all jobs.")  # fmt: skip
@click.option("--cluster", default="",
              help="Look at this cluster, if several share the index.")  # fmt: skip
@all_option
@json_option
def nodes(
    conf: Path | None, last: int, each_job: bool, cluster: str, everything: bool, as_json: bool
) -> None:
    """List nodes on which jobs were slow again and again, with the evidence.

    This is a hint for a health check, never a reason to drain. The jobs of each user on a node are
    compared with the same user's other jobs. At least two users must have had slow jobs on the
    node. If you see only your own jobs, each job counts.
    """
    from nccl_inspector.analysis.history.slow_nodes import score_nodes
    from nccl_inspector.store.index import reading
    from nccl_inspector.store.place import index_of
    from nccl_inspector.store.queries import last_jobs
    from nccl_inspector.store.text import nodes_text

    place = index_of(read_config(conf))
    with reading(place) as (index, all_jobs):
        jobs = last_jobs(index, last, cluster or place.cluster)
    each_job |= not all_jobs
    scores = score_nodes(jobs, each_job=each_job)
    if as_json:
        click.echo(json.dumps({"jobs": len(jobs.jobs), "nodes": [asdict(one) for one in scores]}))
    else:
        click.echo(nodes_text(scores, len(jobs.jobs), everything, each_job=each_job), nl=False)
