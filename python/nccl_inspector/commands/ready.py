# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector ready`: were nodes of this allocation slow lately?

It imports modules only when it needs them: the agent starts through the same cli.py, and should not
use memory for SQLite and the analysis.
"""

import json
import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nccl_inspector.commands.options import conf_option, json_option
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import expand
from nccl_inspector.settings.config import read_config

if TYPE_CHECKING:
    from nccl_inspector.analysis.history.node_score import NodeScore
    from nccl_inspector.store.place import IndexPlace

LIMIT_S = 2.0
_OWN_JOBS = 200
_NODELISTS = "SLURM_JOB_NODELIST", "SLURM_NODELIST"


def _own_scores(place: "IndexPlace") -> "list[NodeScore]":
    """Return the scores of nodes by the jobs that the caller may see.

    Raises:
        InspectorError: there is an index, and it cannot be read here.
    """
    if not place.is_ours_to_read:
        return []  # the caller has had no job
    try:
        from nccl_inspector.analysis.history.slow_nodes import score_nodes
        from nccl_inspector.store.index import reading
        from nccl_inspector.store.queries import last_jobs
    except ModuleNotFoundError:  # as on most nodes
        raise InspectorError(
            "your own jobs: slurm-nccl-inspector-tools is not installed on this host"
        ) from None
    with reading(place) as (index, all_jobs):
        jobs = last_jobs(index, _OWN_JOBS, place.cluster)
        return score_nodes(jobs, each_job=not all_jobs)


def _nodes(nodelist: str) -> list[str]:
    listed = nodelist or next(filter(None, map(os.environ.get, _NODELISTS)), "")
    nodes = expand(listed)
    if not nodes:
        raise click.UsageError("no node list: run it in a job, or give --nodes")
    return nodes


def _restarts() -> int:
    text = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


@click.command()
@conf_option
@click.option("--nodes", "nodelist", default="", metavar="NODELIST",
              help="Look at these nodes, like n[1-4], in place of the job's own.")  # fmt: skip
@click.option("--max-requeues", type=click.IntRange(0, 1000), default=3, show_default=True,
              help="Exit with 0 once Slurm has requeued the job this often.")  # fmt: skip
@json_option
def ready(conf: Path | None, nodelist: str, max_requeues: int, as_json: bool) -> None:
    """Say which nodes of this allocation were slow lately, and what was seen there.

    For the beginning of a batch script, which may requeue its job then. It looks at past jobs only,
    needs no GPU, and takes 2 s at most. Exit status 1: a node is a suspect. Where nothing is known
    the status is 0, so that the job starts. Do not use it in a prolog: a script that fails there
    drains the node.
    """
    from nccl_inspector.doctor.bounded import gather
    from nccl_inspector.doctor.facts import CannotTell
    from nccl_inspector.store.place import index_of
    from nccl_inspector.store.ready import judge_allocation, ready_lines
    from nccl_inspector.store.suspects import fetch_suspects, read_suspects
    from nccl_inspector.summary.job_objects import object_store

    if (place := os.environ.get("SLURM_SCRIPT_CONTEXT", "")).startswith(("prolog", "epilog")):
        click.echo(
            f"nccl-inspector: not for a {place.partition('_')[0]}: nothing is said", err=True
        )
        return
    try:
        nodes = _nodes(nodelist)
        config = read_config(conf)
        kept_at, objects = index_of(config), object_store(config)
    except InspectorError as err:
        click.echo(f"nccl-inspector: {err}", err=True)
        return
    answers = gather(
        {
            "listed": partial(fetch_suspects, objects)
            if objects
            else partial(read_suspects, kept_at.store_dir),
            "own": partial(_own_scores, kept_at),
        },
        LIMIT_S,
    )
    unknown = [one.reason for one in answers.values() if isinstance(one, CannotTell)]
    if answers["listed"] is None:
        unknown.append(f"no list of suspects in {objects.url if objects else kept_at.store_dir}")
    listed, own = (
        None if isinstance(answers[name], CannotTell) else answers[name]
        for name in ("listed", "own")
    )
    found = judge_allocation(set(nodes), listed, own, unknown, time.time())
    if as_json:
        click.echo(json.dumps({"ready": found.is_ready} | asdict(found)))
    else:
        for line in ready_lines(found):
            click.echo(line)
    if not found.is_ready and (restarts := _restarts()) >= max_requeues:
        click.echo(f"requeued {restarts} times already: exit status 0", err=True)
        return
    if not found.is_ready:
        raise SystemExit(1)
