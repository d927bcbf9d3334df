# SPDX-License-Identifier: Apache-2.0
"""A job on this node: its directory, its processes and their environment, its boxes.

The environment of a process is the one that it was started with.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from nccl_inspector.agent.job_files import read_manifest
from nccl_inspector.agent.kill_switch import read_switch
from nccl_inspector.agent.status import read_status
from nccl_inspector.doctor.facts import CannotTell, Fact, Job, JobBox, JobProcess, Version
from nccl_inspector.doctor.files import file_facts, read_text
from nccl_inspector.doctor.nccl import PROFILER, lines_that_matter, version_of_name
from nccl_inspector.doctor.set_by_slurm import marked
from nccl_inspector.errors import RefusedError
from nccl_inspector.live.node_look import LiveBox, look
from nccl_inspector.settings.config import Config
from nccl_inspector.system.safe_files import directory_of_same_owner
from nccl_inspector.system.tree import Tree

_PROC = Path("/proc")
_ENVIRON_BYTES, _MAPS_BYTES, _CONF_BYTES = 1 << 19, 8 << 20, 1 << 16
_PROCESSES_MAX = 512
_WANTED = ("NCCL_INSPECTOR_", PROFILER, "NCCL_CONF_FILE", "NCCL_RAS_ENABLE", "SLURM_JOB_ID")
_OUR_PLUGIN = "libnccl-profiler-inspector.so"
# Where containers keep the variables of their image: Enroot, Apptainer.
_IMAGE_FILES = ("/etc/environment",)
_IMAGE_FOLDERS = ("/.singularity.d/env",)


def variables_that_matter(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those that decide about measuring or that SPANK set: others may hold secrets."""
    ours = marked(environ)
    return {
        name: value for name, value in environ.items() if name.startswith(_WANTED) or name in ours
    }


def _environ(pid: str) -> dict[str, str]:
    with (_PROC / pid / "environ").open("rb") as file:
        text = file.read(_ENVIRON_BYTES).decode("utf-8", "replace")
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def _loaded(pid: str) -> tuple[str, str, str]:
    """Return the paths of NCCL, RCCL and our plugin in a process; empty: not loaded."""
    nccl = rccl = ours = ""
    for line in read_text(_PROC / pid / "maps", _MAPS_BYTES).splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        name = path.rpartition("/")[2].removesuffix(" (deleted)")
        if name == _OUR_PLUGIN:
            ours = path
        elif name.startswith("libnccl.so"):
            nccl = path
        elif name.startswith("librccl.so"):
            rccl = path
    return nccl, rccl, ours


def _version(path: str) -> Version | None:
    return version_of_name(path.rpartition("/")[2].removesuffix(" (deleted)"))


def _of_image(view: Tree) -> tuple[str, ...]:
    files = [*_IMAGE_FILES]
    files += [f"{folder}/{name}" for folder in _IMAGE_FOLDERS for name in view.names(folder)]
    return tuple(
        path
        for path in files
        if any(PROFILER in line for line in lines_that_matter(_text(view, path)))
    )


def _text(view: Tree, path: str) -> str:
    return view.read(path, _CONF_BYTES).decode("utf-8", "replace")


def _conf_lines(view: Tree, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return what NCCL's configuration files set, the user's own first."""
    own = environ.get("NCCL_CONF_FILE") or f"{environ.get('HOME', '')}/.nccl.conf"
    return tuple(
        line for path in (own, "/etc/nccl.conf") for line in lines_that_matter(_text(view, path))
    )


def _process(pid: str, environ: Mapping[str, str], raw: Path) -> JobProcess:
    nccl, rccl, ours = _loaded(pid)
    is_self = int(pid) == os.getppid()
    is_own = (_PROC / pid).stat().st_uid == os.geteuid()
    wanted = environ.get(PROFILER, "")
    with Tree(_PROC / pid / "root") as view:
        sees_raw = view.exists(str(raw))
        return JobProcess(
            int(pid),
            variables_that_matter(environ),
            nccl,
            rccl,
            ours,
            _version(nccl),
            not wanted.startswith("/") or view.exists(wanted),
            sees_raw,
            not (is_self and sees_raw) or os.access(raw, os.W_OK | os.X_OK),
            # Root does not read files that a user's variable names.
            _conf_lines(view, environ) if is_own and os.geteuid() else (),
            _of_image(view),
        )


def _processes(job_id: int, raw: Path) -> Iterator[JobProcess]:
    """Yield the processes of a job that the caller may look at, without root's.

    Inside a job the doctor itself is one of them: it has the variables of its step.
    """
    found = 0
    pids = (entry.name for entry in _PROC.iterdir() if entry.name.isdecimal())
    for pid in sorted(pids, key=int):
        try:
            if not (_PROC / pid).stat().st_uid or int(pid) == os.getpid():
                continue
            environ = _environ(pid)
            if environ.get("SLURM_JOB_ID") != str(job_id):
                continue
            seen = _process(pid, environ, raw)
        except OSError:  # it has ended, or is another user's
            continue
        found += 1
        if found > _PROCESSES_MAX:
            return
        yield seen


def _box(box: LiveBox) -> JobBox:
    facts, comms = box.process.facts, box.process.comms
    created = min((comm.created_ns for comm in comms if comm.created_ns), default=0)
    return JobBox(
        facts.name,
        facts.nccl,
        facts.silent,
        facts.timing,
        sum(comm.enqueued for comm in comms),
        sum(max(comm.started, comm.completed) for comm in comms),
        time.time() - created / 1e9 if created else 0.0,
    )


def _boxes(run_dir: Path, job_id: int) -> Fact[tuple[JobBox, ...]]:
    seen = look(run_dir, job_id)
    if not seen.jobs:
        return CannotTell("; ".join(seen.unread) or "its boxes cannot be read")
    return tuple(_box(box) for box in seen.jobs[0].boxes)


def _refused(run_dir: Path, job_id: int) -> str:
    """Return why the manifest is not accepted, or an empty text."""
    jobs_fd = os.open(run_dir / "jobs", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with directory_of_same_owner(str(job_id), jobs_fd) as job_fd:
            read_manifest(job_fd)
    except RefusedError as err:
        return "" if err.reason in ("gone", "unreadable") else str(err)
    finally:
        os.close(jobs_fd)
    return ""


def read_job(config: Config, job_id: int) -> Job:
    """Return what can be seen of a job on this node."""
    folder = config.run_dir / "jobs" / str(job_id)
    directory = file_facts(folder)
    processes = tuple(_processes(job_id, folder / "raw"))
    boxes: Fact[tuple[JobBox, ...]] = CannotTell(f"{folder}: {directory.problem}")
    refused = ""
    if not directory.problem:
        refused = _refused(config.run_dir, job_id)
        boxes = _boxes(config.run_dir, job_id)
    try:
        disabled = read_switch(config.run_dir) is not None
    except OSError:
        disabled = False
    fill = read_status(config.run_dir, config.agent_interval_s).fill
    return Job(job_id, directory, refused, processes, boxes, disabled, fill.trouble if fill else "")
