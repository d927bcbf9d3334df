# SPDX-License-Identifier: Apache-2.0
"""What slurmctld still knows about a job: by pyslurm for the site's release, otherwise by scontrol.

`squeue --json` of 22.05 is not used: it always returns all jobs of the cluster, has no --switches,
and has no path of a standard output with the default name.
"""

import re
from pathlib import Path

from nccl_inspector.model.jobid import JobName
from nccl_inspector.slurm import pyslurmprobe
from nccl_inspector.slurm.command import TIME_FORMAT, ask
from nccl_inspector.slurm.job_record import CONTROLLER, PYSLURM
from nccl_inspector.slurm.scontroljson import parse_json
from nccl_inspector.slurm.scontroltext import parse_text
from nccl_inspector.slurm.values import Facts

JSON_SINCE = (23, 2)
_VERSION = re.compile(r"slurm\S* ([0-9]{2})\.([0-9]{1,2})\b")


def ask_controller(scontrol: Path, name: JobName) -> tuple[str, Facts, str]:
    """Return the source that was asked, what slurmctld knows, and the reason if that is nothing."""
    version = ask(scontrol, "--version")
    match = _VERSION.match(version.output)
    if version.status != 0 or match is None:
        return CONTROLLER, {}, version.words if version.status else "its version is not known"
    release = int(match[1]), int(match[2])
    is_id = name.task is None and name.offset is None and not name.tasks
    by_pyslurm: Facts = {}
    if is_id and pyslurmprobe.installed() == release:
        by_pyslurm, _ = pyslurmprobe.ask_pyslurm(name.job_id)
        if by_pyslurm and pyslurmprobe.is_whole(by_pyslurm):
            return PYSLURM, by_pyslurm, ""
    found, why = _ask_scontrol(scontrol, name, json=release >= JSON_SINCE)
    if by_pyslurm and not found:
        return PYSLURM, by_pyslurm, ""
    return CONTROLLER, found, why


def _ask_scontrol(scontrol: Path, name: JobName, *, json: bool) -> tuple[Facts, str]:
    shape = "--json" if json else "--oneliner"
    said = ask(scontrol, shape, "show", "job", str(name), env=TIME_FORMAT)
    if said.status != 0:
        return {}, said.words
    found = parse_json(said.output, name) if json else parse_text(said.output, name)
    return found, "" if found else "it has no one record of the job"
