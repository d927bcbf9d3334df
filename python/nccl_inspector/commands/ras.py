# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector ras`: what NCCL's own RAS service says of a running job."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from nccl_inspector.commands.options import all_option, conf_option, json_option, run_dir_option
from nccl_inspector.errors import InspectorError
from nccl_inspector.ras.beside import JobHere, OwnByRank, read_job_here
from nccl_inspector.ras.client import (
    Address,
    NobodyListensError,
    ask_diagnostics,
    follow,
    parse_address,
)
from nccl_inspector.ras.diagnostics import fault_lines, read_checks
from nccl_inspector.ras.events import parse_events
from nccl_inspector.ras.find import RasPlace, find_places
from nccl_inspector.ras.judge import JudgedComm, judge
from nccl_inspector.ras.origin import Origin, ask_job
from nccl_inspector.ras.status import RasStatus
from nccl_inspector.ras.text import status_lines
from nccl_inspector.settings.config import read_config
from nccl_inspector.slurm.job_argument import optional_job_step


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the services at one place said."""

    place: RasPlace
    comms: list[JudgedComm]


def _tell(problem: object) -> None:
    click.echo(f"nccl-inspector: {problem}", err=True)


def _places(job: tuple[int, str], here: JobHere) -> Sequence[RasPlace]:
    """Return where to ask for a job and step."""
    job_id, step = job
    if here.uid is None and not os.geteuid():
        _tell(f"job {job_id} is not measured here: its processes are known by their own word only")
    found = find_places(job_id, step, here.uid)
    for problem in found.problems:
        _tell(problem)
    if not found.places:
        name = f"{job_id}.{step}" if step else f"{job_id}"
        raise InspectorError(
            f"job {name} has no process here that you may look at; on one of its nodes: "
            f"srun --jobid={job_id} --overlap -N1 -n1 nccl-inspector ras {name}"
        )
    return found.places


def _look(
    places: Sequence[RasPlace], own: OwnByRank
) -> tuple[dict[RasPlace, RasStatus], list[InspectorError]]:
    """Return what the job's services at these places say, and why others gave no answer."""
    found: dict[RasPlace, RasStatus] = {}
    silent: list[InspectorError] = []
    for place in places:
        try:
            found[place], origin = ask_job(place, own)
        except InspectorError as err:
            silent.append(err)
            continue
        if origin is Origin.UNKNOWN and place.pids:
            _tell(f"{place.address}: it cannot be told whether this answer is of the job")
    return found, silent


def _look_twice(places: Sequence[RasPlace], own: OwnByRank, seconds: float) -> list[_Answer]:
    """Return what the services at all places say; a job has one for each of its steps.

    Nobody listens for a batch script that only starts others.
    """
    first, silent = _look(places, own)
    told = [err for err in silent if not isinstance(err, NobodyListensError)]
    if not first:
        raise (told or silent)[0]
    second: dict[RasPlace, RasStatus] = {}
    if seconds:
        time.sleep(seconds)
        second, lost = _look(tuple(first), own)
        told += lost
    for problem in told:
        _tell(problem)
    return [_Answer(place, judge(status, second.get(place))) for place, status in first.items()]


def _only_service(places: Sequence[RasPlace], own: OwnByRank) -> Address:
    """Return where the one service among these listens."""
    answering = []
    for place in places:
        try:
            if place.pids:
                ask_job(place, own)
        except NobodyListensError:
            continue
        answering.append(place)
    if not answering:
        raise NobodyListensError(f"{places[0].address}: nobody listens there")
    if len(answering) > 1:
        steps = ", ".join(step for place in answering for step in place.steps)
        raise InspectorError(f"several steps have a service: give one of them as JOB.STEP: {steps}")
    return answering[0].address


def _show_events(address: Address, as_json: bool) -> None:
    lines = follow(address, as_json=as_json)
    shown = (json.dumps(asdict(one)) for one in parse_events(lines)) if as_json else lines
    for line in shown:
        click.echo(line)


def _show_diagnostics(address: Address, as_json: bool) -> bool:
    """Show NCCL's checks; return whether one of them found something."""
    lines = ask_diagnostics(address)
    checks = list(read_checks(lines))
    if as_json:
        click.echo(json.dumps({"checks": [asdict(one) for one in checks]}))
    else:
        for line in (*lines, *fault_lines(checks)):
            click.echo(line)
    return any(one.is_fault for one in checks)


def _as_json(answers: Sequence[_Answer], own: OwnByRank) -> dict[str, object]:
    rows = []
    for answer in answers:
        place = {"address": str(answer.place.address), "steps": answer.place.steps}
        for comm in answer.comms:
            row = asdict(comm) | {"hash": f"0x{comm.hash:x}"} | place
            for rank in row["ranks"]:
                if ours := own.get((comm.hash, rank["rank"])):
                    rank["plugin"] = asdict(ours)
            rows.append(row)
    return {"communicators": rows}


def _title(place: RasPlace) -> str:
    steps = ", ".join(place.steps)
    return f"STEP{'S' if len(place.steps) > 1 else ''} {steps} at {place.address}"


@click.command()
@click.argument("job", callback=optional_job_step, required=False, envvar="SLURM_JOB_ID",
                metavar="[JOB_ID[.STEP]]")  # fmt: skip
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
    job: tuple[int, str] | None,
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
    1: something is wrong with a rank, a check of NCCL's found something, or there is no answer.
    """
    here = read_job_here(run_dir or read_config(conf).run_dir, job[0]) if job else JobHere()
    if address:
        places: Sequence[RasPlace] = [RasPlace(parse_address(address))]
    elif job:
        places = _places(job, here)
    else:
        raise click.UsageError("give a job ID, or --address")
    if monitor:
        _show_events(_only_service(places, here.counts), as_json)
        return
    if diagnostics:
        found = _show_diagnostics(_only_service(places, here.counts), as_json)
        context.exit(1 if found else 0)
    answers = _look_twice(places, here.counts, seconds)
    comms = [comm for answer in answers for comm in answer.comms]
    if as_json:
        click.echo(json.dumps(_as_json(answers, here.counts)))
    else:
        for answer in answers:
            if len(answers) > 1:
                click.echo(_title(answer.place))
            for line in status_lines(answer.comms, here.counts, everything=everything):
                click.echo(line)
    context.exit(1 if any(comm.unwell for comm in comms) else 0)
