# SPDX-License-Identifier: Apache-2.0
"""The service beside slurmctld: its directories, its hook, its status."""

import os
import pwd
import time
from pathlib import Path

from nccl_inspector.controller.queue import DROPPED, FAILED, QUEUE, STATE
from nccl_inspector.controller.status import ServiceStatus, read_status
from nccl_inspector.controller.unentered import waiting
from nccl_inspector.doctor.facts import CannotTell, Controller, Fact, Slurm, Storage
from nccl_inspector.doctor.files import file_facts, read_text
from nccl_inspector.doctor.read_node import read_running, read_unit
from nccl_inspector.doctor.read_plugin import entries, read_script
from nccl_inspector.doctor.read_slurm import daemon_uid
from nccl_inspector.doctor.read_storage import read_storage
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config
from nccl_inspector.settings.in_force import controller_note

EPILOG = "nccl-inspector-epilogctld"
SERVICE, TIMER = "nccl-inspector-controller.service", "nccl-inspector-reports.timer"
_SCRIPT_BYTES = 1 << 16
FOLDERS = (QUEUE, DROPPED, STATE, FAILED)


def _groups(uid: int | None) -> tuple[int, ...]:
    try:
        account = pwd.getpwuid(uid if uid is not None else -1)
    except (KeyError, OverflowError):
        return ()
    return tuple(os.getgrouplist(account.pw_name, account.pw_gid))


def _account_groups(name: str) -> tuple[int, ...]:
    try:
        return _groups(pwd.getpwnam(name).pw_uid)
    except KeyError:
        return ()


def _runs_ours(entry: str) -> bool:
    """Tell whether an entry is our hook, or a script of the site that names it."""
    try:
        return EPILOG in entry or EPILOG in read_text(Path(entry), _SCRIPT_BYTES)
    except OSError:
        return False


def uncounted(folder: Path) -> Fact[int]:
    """Return how many ends the epilog has counted there: a byte for each (controller/queue.py)."""
    try:
        return sum(one.stat().st_size for one in os.scandir(folder) if one.name[0] != ".")
    except OSError as err:
        return CannotTell(f"{err.filename}: {err.strerror}")


def read_spool(config: Config, slurm: Slurm) -> Storage:
    """Return whether SlurmUser can write where the queue is; beside it, in `dropped`, because the
    service takes each file of the queue for an end."""
    account = slurm.config.get("SlurmUser", "root").partition("(")[0]
    return read_storage(config.controller_dir / DROPPED, account)


def read_controller(config: Config, slurm: Slurm, wanted: bool) -> Controller:
    """Return the state of the service; `wanted`: it should be here, even if no part of it is."""
    named = [one for one in entries(slurm.config, "EpilogSlurmctld") if _runs_ours(one)]
    folders = {name: file_facts(config.controller_dir / name) for name in FOLDERS}
    unit, timer = read_unit(SERVICE), read_unit(TIMER)
    enabled = any(one and one.enabled == "enabled" for one in (unit, timer))
    try:
        status = read_status(config.controller_dir)
        service: Fact[ServiceStatus] = status
        age_s = time.time() - status.written_s
    except InspectorError as err:
        service, age_s = CannotTell(str(err)), 0.0
    try:
        failed: Fact[int] = sum(
            one.suffix != ".why" for one in (config.controller_dir / FAILED).iterdir()
        )
    except OSError as err:
        failed = CannotTell(f"{err.filename}: {err.strerror}")
    try:
        unentered: Fact[tuple[int, float]] = waiting(config.controller_dir)
    except OSError as err:
        unentered = CannotTell(f"{err.filename}: {err.strerror}")
    slurm_uid = daemon_uid(slurm.config, "SlurmUser")
    return Controller(
        wanted or bool(named) or config.controller_dir.exists() or enabled,
        read_script("EpilogSlurmctld", named[0]) if named else None,
        folders,
        slurm_uid,
        _groups(slurm_uid),
        _account_groups(config.report_user),
        service,
        age_s,
        failed,
        unentered,
        unit,
        timer,
        read_running(controller_note(config)),
        uncounted(config.controller_dir / DROPPED),
    )
