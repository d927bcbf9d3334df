# SPDX-License-Identifier: Apache-2.0
"""Turn the boxes in a directory of the user into node summaries, as the agent does on nodes.

The summaries lie as in a report directory, `<directory>/<job id>/<node>.<restart>.nodesummary`, so
that `report --report-dir` finds them later.
"""

import os
import pwd
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from nccl_inspector.agent.raw_dir import list_raw
from nccl_inspector.box.copy import BOX_BYTES_MAX
from nccl_inspector.box.reader import read_box
from nccl_inspector.box.sample_reader import add_samples
from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.model.process import Process
from nccl_inspector.summary.codec import Head, encode, encode_process
from nccl_inspector.system.atomic import replace_file
from nccl_inspector.system.printable import printable
from nccl_inspector.system.safe_files import is_locked, open_directory, regular_file

# A network file system may report a released lock as held for a little longer.
HELD_S = 5.0
_PROBLEMS_MAX = 32


@dataclass(frozen=True, slots=True)
class FoundBoxes:
    """What the boxes contain.

    `nodes`: the processes by node. `names`: the box files that nobody writes to any more.
    `problems`: what could not be read or is incomplete, as text.
    """

    nodes: dict[str, list[Process]]
    names: tuple[str, ...]
    problems: tuple[str, ...]


def _number(text: str, otherwise: int) -> int:
    return int(text) if JOB_ID.fullmatch(text) else otherwise


def job_head(environ: Mapping[str, str], start_s: int) -> Head:
    """Return what Slurm's variables say about the job; without Slurm, the process id is the job id.

    All of these variables can be set by the user. That is safe, because only the user reads the
    report.
    """
    uid = os.getuid()
    with suppress(KeyError):
        environ = {"USER": pwd.getpwuid(uid).pw_name, **environ}

    def word(name: str) -> str:
        return printable(environ.get(name, ""))[:4096]

    return Head(
        job_id=_number(word("SLURM_JOB_ID"), os.getpid()),
        uid=uid,
        user=word("SLURM_JOB_USER") or word("USER"),
        account=word("SLURM_JOB_ACCOUNT"),
        partition=word("SLURM_JOB_PARTITION"),
        cluster=word("SLURM_CLUSTER_NAME"),
        node="",
        nodelist=word("SLURM_JOB_NODELIST"),
        num_nodes=_number(word("SLURM_JOB_NUM_NODES"), 0),
        restart=_number(word("SLURM_RESTART_COUNT"), 0),
        start=start_s,
        job_start=_number(word("SLURM_JOB_START_TIME"), start_s),
        end=start_s,
        het_job_id="",
        problems=(),
    )


def _file_name(node: str) -> str:
    """Return the node's name as a valid part of a file name; most names stay as they are."""
    return re.sub("[^A-Za-z0-9._-]", "_", node).strip(".-")[:64] or "unknown"


def _wait_until_free(fd: int, until: float) -> bool:
    while is_locked(fd):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def read_boxes(directory: Path) -> FoundBoxes:
    """Return what the boxes of a directory contain; wait up to HELD_S for boxes still in use.

    Raises:
        InspectorError: there is no such directory.
    """
    nodes: dict[str, list[Process]] = {}
    names, problems = [], []
    until = time.monotonic() + HELD_S
    try:
        dir_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise InspectorError(f"{directory}: {err.strerror}") from err
    try:
        listing = list_raw(dir_fd)
        for name, stem in listing.boxes:
            try:
                with regular_file(name, os.getuid(), BOX_BYTES_MAX, dir_fd) as (fd, status):
                    free = _wait_until_free(fd, until)
                    process = read_box(fd, status.st_size, stem, not free)
                    process = add_samples(fd, status.st_size, process, len(listing.boxes))
            except RefusedError as err:
                problems.append(f"{name} is refused: {err}")
                continue
            nodes.setdefault(_file_name(process.facts.node), []).append(process)
            if free:
                names.append(name)
            else:  # by another run in this directory, or a process left in the background
                problems.append(f"{name} is still written to: figures up to now, and it stays")
    finally:
        os.close(dir_fd)
    if listing.overflow:
        problems.append("more files than are looked at: some processes are left out")
    return FoundBoxes(nodes, tuple(names), tuple(problems[:_PROBLEMS_MAX]))


def write_summaries(found: FoundBoxes, head: Head, directory: Path) -> None:
    """Write a summary for each node, then remove the boxes.

    Raises:
        InspectorError: the summaries cannot be written, or the directory belongs to another user.
            The boxes stay.
    """
    place = directory / str(head.job_id)
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        # If others may write to `directory`, this one can be theirs, or a link.
        place_fd = open_directory(place)
        try:
            if os.fstat(place_fd).st_uid != os.getuid():
                raise InspectorError(f"{place}: another user's directory")
            for number, (node, processes) in enumerate(sorted(found.nodes.items())):
                own = replace(
                    head,
                    node=node,
                    end=int(time.time()),
                    problems=() if number else found.problems,
                    array_task=processes[0].facts.array_task,
                )
                blocks = [encode_process(process) for process in processes]
                name = f"{node}.{head.restart}.nodesummary"
                replace_file(place_fd, name, encode(own, blocks), mode=0o600)
        finally:
            os.close(place_fd)
        for name in found.names:
            (directory / name).unlink(missing_ok=True)
    except OSError as err:
        raise InspectorError(f"{err.filename or place}: {err.strerror}") from err
