# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector ras`: what NCCL's own RAS service says of a running job."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from nccl_inspector.commands.options import all_option, conf_option, json_option, run_dir_option
from nccl_inspector.errors import InspectorError
from nccl_inspector.ras.beside import OwnCounts, counts_of_node
from nccl_inspector.ras.client import (
    Address,
    RasError,
    ask_diagnostics,
    ask_status,
    follow,
    parse_address,
)
from nccl_inspector.ras.find import find_places
from nccl_inspector.ras.judge import JudgedComm, judge
from nccl_inspector.ras.status import parse_status
from nccl_inspector.ras.text import status_lines
from nccl_inspector.settings.config import read_config
from nccl_inspector.slurm.job_argument import optional_job_id


def _places(job_id: int | None, address: str) -> Sequence[Address]:
    if address:
        return [parse_address(address)]
    if job_id is None:
        raise click.UsageError("give a job ID, or --address")
    found = find_places(job_id)
    for problem in found.problems:
        click.echo(f"nccl-inspector: {problem}", err=True)
    if not found.addresses:
        raise InspectorError(
            f"job {job_id} has no process here that you may look at; on one of its nodes: "
            f"srun --jobid={job_id} --overlap -N1 -n1 nccl-inspector ras {job_id}"
        )
    return found.addresses


def _look(where: Address, seconds: float) -> list[JudgedComm]:
    first = parse_status(ask_status(where))
    if not seconds:
        return judge(first)
    time.sleep(seconds)
    return judge(first, parse_status(ask_status(where)))


def _look_at_all(places: Sequence[Address], seconds: float) -> list[JudgedComm]:
    """Return the communicators of all services that answer; a job has one for each of its steps."""
    found: list[JudgedComm] = []
    silent: list[RasError] = []
    for where in places:
        try:
            found += _look(where, seconds)
        except RasError as err:
            silent.append(err)
    if len(silent) == len(places):
        raise silent[0]
    for problem in silent:
        click.echo(f"nccl-inspector: {problem}", err=True)
    return found


def _as_json(
    comms: Sequence[JudgedComm], own: Mapping[tuple[int, int], OwnCounts]
) -> dict[str, object]:
    rows = []
    for comm in comms:
        row = asdict(comm) | {"hash": f"0x{comm.hash:x}"}
        for rank in row["ranks"]:
            if ours := own.get((comm.hash, rank["rank"])):
                rank["plugin"] = asdict(ours)
        rows.append(row)
    return {"communicators": rows}


@click.command()
@click.argument("job_id", callback=optional_job_id, required=False, envvar="SLURM_JOB_ID")
@click.option("--address", default="", metavar="HOST:PORT",
              help="Ask the service there, in place of the job's NCCL_RAS_ADDR.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, 3600), default=10.0, show_default=True,
              help="Look a second time after so long; 0: look once.")  # fmt: skip
@click.option("--diagnostics", is_flag=True,
              help="Print NCCL's checks of GPUs, driver, ECC, Xid, paths (NCCL 2.31).")  # fmt: skip
@click.option("--monitor", is_flag=True,
              help="Print what happens to processes, until interrupted (NCCL 2.29).")  # fmt: skip
@conf_option
@run_dir_option
@all_option
@json_option
@click.pass_context
def ras(
    context: click.Context,
    job_id: int | None,
    address: str,
    seconds: float,
    diagnostics: bool,
    monitor: bool,
    conf: Path | None,
    run_dir: Path | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Ask NCCL's own RAS service about a running job: dead ranks, errors, ranks that are behind.

    Run it on a node of the job. RAS counts what was launched and not what has ended; the plugin's
    counts are shown beside that for ranks of this node. Nothing is changed in the job. Exit status
    1: something is wrong with a rank, or there is no answer.
    """
    places = _places(job_id, address)
    if monitor or diagnostics:
        lines = follow(places[0]) if monitor else ask_diagnostics(places[0])
        for line in lines:
            click.echo(line)
        return
    found = _look_at_all(places, seconds)
    own = counts_of_node(run_dir or read_config(conf).run_dir, job_id) if job_id else {}
    if as_json:
        click.echo(json.dumps(_as_json(found, own)))
    else:
        for line in status_lines(found, own, everything=everything):
            click.echo(line)
    context.exit(1 if any(comm.unwell for comm in found) else 0)
