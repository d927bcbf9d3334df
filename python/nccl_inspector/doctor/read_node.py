# SPDX-License-Identifier: Apache-2.0
"""The node itself: run directory, agent, units, GPUs, SELinux."""

import os
import re
import time
from importlib.util import find_spec
from pathlib import Path

from nccl_inspector.agent.ended_job import parse_ended
from nccl_inspector.agent.prom_access import group_id
from nccl_inspector.agent.status import read_status
from nccl_inspector.doctor.facts import (
    Agent,
    CannotTell,
    Fact,
    Gpus,
    Interpreter,
    Place,
    Release,
    RunDir,
    Security,
    Unit,
)
from nccl_inspector.doctor.files import file_facts, read_bytes, read_text
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config
from nccl_inspector.settings.in_force import Note, agent_note, read_running_note
from nccl_inspector.slurm.command import ask
from nccl_inspector.system.printable import printable

PARTS = ("", "jobs", "ended", "prom", "control")
AGENT_UNIT = "nccl-inspector-agent.service"
COLLECT_TIMER = "nccl-inspector-collect.timer"
COMMAND_S = 4.0
_SYSTEMD = Path("/run/systemd/system")
_SYSTEMCTL = Path("/usr/bin/systemctl")
_OWN_SERIES = "nccl_inspector_agent.prom"
_AUDIT_LOG = Path("/var/log/audit/audit.log")
_AUDIT_BYTES, _DENIALS_MAX = 8 << 20, 20
_OURS = re.compile(r"nccl.inspector")
_PATH_OF_EXEC = re.compile(r"path=(\S+)")
_NVML = "libnvidia-ml.so.1"
_LIBRARY_PATHS = ("usr/lib/*-linux-gnu", "usr/lib64", "usr/lib", "lib64", "usr/lib64/nvidia")


def _mounts() -> dict[str, tuple[str, frozenset[str]]]:
    """Return type and options of what is mounted, by mount point."""
    found = {}
    for line in read_text(Path("/proc/self/mountinfo"), 8 << 20).splitlines():
        before, _, after = line.partition(" - ")
        words, kinds = before.split(), after.split()
        if len(words) > 5 and len(kinds) > 2:
            options = frozenset(words[5].split(",")) | frozenset(kinds[2].split(","))
            found[words[4]] = kinds[0], options
    return found


def _place(path: Path, mounts: dict[str, tuple[str, frozenset[str]]]) -> Place:
    file = file_facts(path)
    if file.problem:
        return Place(file)
    above = next((one for one in (path, *path.parents) if str(one) in mounts), Path("/"))
    kind, options = mounts.get(str(above), ("", frozenset()))
    whole = os.statvfs(path)
    return Place(file, kind, options, whole.f_blocks * whole.f_frsize, whole.f_files, above == path)


def read_run_dir(config: Config) -> RunDir:
    """Return the run directory and its parts."""
    mounts = _mounts()
    places = {name: _place(config.run_dir / name, mounts) for name in PARTS}
    try:
        gid: Fact[int] = group_id(config.prom_group) or 0
    except InspectorError as err:
        gid = CannotTell(str(err))
    return RunDir(places, gid)


def read_unit(name: str) -> Unit | None:
    """Return a unit as systemd has it; None: this host has no systemd."""
    if not _SYSTEMD.is_dir() or not _SYSTEMCTL.exists():
        return None
    wanted = "--property=LoadState,ActiveState,UnitFileState,User,ExecStart"
    said = ask(_SYSTEMCTL, "show", wanted, name, seconds=COMMAND_S)
    if said.status:
        return None
    found = dict(line.split("=", 1) for line in said.output.splitlines() if "=" in line)
    program = _PATH_OF_EXEC.search(found.get("ExecStart", ""))
    return Unit(
        name,
        found.get("LoadState", ""),
        found.get("ActiveState", ""),
        found.get("UnitFileState", ""),
        found.get("User", ""),
        program[1] if program else "",
    )


def read_interpreter(program: str) -> Interpreter | None:
    """Try the Python of the agent's command; None: it starts, or is no script."""
    if not program:
        return None
    try:
        head = read_bytes(Path(program), 4096).split(b"\n", 1)[0]
    except OSError as err:
        return Interpreter(program, None, printable(err.strerror or str(err)))
    if not head.startswith(b"#!/"):
        return None
    path = os.fsdecode(head[2:].split()[0])
    if path == "/bin/sh":  # the package's launcher, which looks for a Python by itself
        started = ask(Path(program), "agent", "--help", seconds=COMMAND_S)
        said = (started.errors.strip().splitlines() or [started.words])[-1]
        return Interpreter(program, None, printable(said[:200])) if started.status else None
    code = "import sys, click, nccl_inspector.agent.service; print(*sys.version_info[:2])"
    version = ask(Path(path), "-c", "import sys; print(*sys.version_info[:2])", seconds=COMMAND_S)
    words = version.output.split()
    release: Release | None = None
    if version.status == 0 and len(words) == 2:
        release = int(words[0]), int(words[1])
    tried = ask(Path(path), "-c", code, seconds=COMMAND_S) if release else version
    problem = (tried.errors.strip().splitlines() or [tried.words])[-1] if tried.status else ""
    return Interpreter(path, release, printable(problem[:200]))


def _age_s(path: Path) -> float | None:
    try:
        return abs(time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return None


def _oldest_ended_s(path: Path) -> float | None:
    try:
        ends = [found.end_s for one in path.iterdir() if (found := parse_ended(one.name))]
    except OSError:  # told by the check of the run directory
        return None
    return time.time() - min(ends) if ends else None


def read_running(path: Path) -> Fact[Note | None]:
    """Return what a service that runs says of itself; None: it says nothing."""
    try:
        return read_running_note(path)
    except InspectorError as err:
        return CannotTell(str(err))


def read_agent(config: Config) -> Agent:
    """Return the state of the agent."""
    unit = read_unit(AGENT_UNIT)
    return Agent(
        read_status(config.run_dir, config.agent_interval_s),
        _age_s(config.run_dir / "prom" / _OWN_SERIES),
        _oldest_ended_s(config.run_dir / "ended"),
        unit,
        read_interpreter(unit.program) if unit else None,
        read_running(agent_note(config)),
    )


def _nvml_path() -> str:
    for pattern in _LIBRARY_PATHS:
        for found in Path("/").glob(f"{pattern}/{_NVML}"):
            if found.exists():
                return str(found)
    said = ask(Path("/sbin/ldconfig"), "-p", seconds=COMMAND_S)
    match = re.search(rf"{re.escape(_NVML)} .*=> (\S+)", said.output)
    return match[1] if match else ""


def read_gpus() -> Gpus:
    """Return the GPUs that the driver shows, and what is needed to read their counters."""
    count = len(list(Path("/proc/driver/nvidia").glob("gpus/*")))
    if not count:
        return Gpus(0, "", has_bindings=False)
    return Gpus(count, _nvml_path(), find_spec("pynvml") is not None)


def _denials() -> Fact[tuple[str, ...]]:
    try:
        with _AUDIT_LOG.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _AUDIT_BYTES))
            text = file.read(_AUDIT_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return CannotTell(f"there is no {_AUDIT_LOG}")
    except PermissionError:
        return CannotTell(f"only root can read {_AUDIT_LOG}")
    found = [
        printable(line[:300])
        for line in text.splitlines()
        if "avc:" in line and "denied" in line and _OURS.search(line)
    ]
    return tuple(found[-_DENIALS_MAX:])


def read_security() -> Security:
    """Return what SELinux refused to our parts, as far as the audit log has it."""
    try:
        enforcing = read_text(Path("/sys/fs/selinux/enforce"), 16).strip() == "1"
    except OSError:
        enforcing = False  # no SELinux
    return Security(enforcing, _denials() if enforcing else ())
