# SPDX-License-Identifier: Apache-2.0
"""Checks of the shared storage and of the controller service."""

from errno import EACCES, EPERM

from nccl_inspector.controller.queue import DROPPED, QUEUE
from nccl_inspector.doctor.check import Check, Role
from nccl_inspector.doctor.checks_node import not_in_force
from nccl_inspector.doctor.facts import Controller, Facts, FileFacts, Storage, known
from nccl_inspector.model.wording import elapsed, number
from nccl_inspector.settings.in_force import CONTROLLER

STATUS_MAX_S = 300.0
UNENTERED_MIN_S = 300.0  # the service tries again every minute
_COLLECTING = frozenset({Role.NODE, Role.CONTROLLER})
_CONTROLLER = frozenset({Role.CONTROLLER})
_RWX, _WX, _X = 7, 3, 1
# A unit that is not enabled may be replaced by one of the site's own.
_DOWN = {("failed", "enabled"), ("failed", "disabled"), ("inactive", "enabled")}


def _no_account(facts: Facts) -> str:
    reports = known(facts.reports)
    return f"there is no account {reports.account}" if reports.uid is None else ""


def _unwritable(storage: Storage) -> str:
    if storage.uid is None:
        return ""
    if storage.file.problem:
        return f"{storage.file.path}: {storage.file.problem}"
    problem = known(storage.problem)
    if storage.is_full:  # a check of its own: something else is to be done
        return ""
    return _cannot_write(storage) if problem else ""


def _cannot_write(storage: Storage) -> str:
    return f"{storage.account} cannot write into {storage.file.path}: {known(storage.problem)}"


def _full(storage: Storage) -> str:
    return _cannot_write(storage) if storage.is_full else ""


def _is_unused(facts: Facts) -> bool:
    """Tell whether report_dir is not used here: a node with an object store has no need of it."""
    has_service = isinstance(facts.controller, Controller) and facts.controller.set_up
    return bool(facts.settings.values.object_url) and not has_service


def _report_dir(facts: Facts) -> str:
    return "" if _is_unused(facts) else _unwritable(known(facts.reports))


def _report_dir_full(facts: Facts) -> str:
    return "" if _is_unused(facts) else _full(known(facts.reports))


def _objects(facts: Facts) -> str:
    return known(facts.objects) or ""


def _report_dir_mode(facts: Facts) -> str:
    file = known(facts.reports).file
    if file.problem or facts.settings.values.object_url:
        return ""
    if file.mode & 0o002 and not file.mode & 0o1000:
        return f"everybody may write into {file.path}: its mode is {file.permissions:04o}"
    if not file.mode & _X:
        return f"users may not enter {file.path}: its mode is {file.permissions:04o}"
    return ""


def _report_dir_acl(facts: Facts) -> str:
    reports = known(facts.reports)
    if reports.uid is None or reports.file.problem or facts.settings.values.object_url:
        return ""
    return "" if known(reports.has_acl) else f"{reports.file.path} has no POSIX ACLs"


def may(file: FileFacts, uid: int, gids: tuple[int, ...], rights: int) -> bool:
    """Tell whether an account has these rights (bits of rwx) by owner and mode."""
    if uid == 0:
        return True
    shift = 6 if uid == file.uid else 3 if file.gid in gids else 0
    return file.mode >> shift & rights == rights


def _set_up(facts: Facts) -> Controller | None:
    """Return the service, or None if this site has none."""
    controller = known(facts.controller)
    return controller if controller.set_up else None


def _no_hook(facts: Facts) -> str:
    service = _set_up(facts)
    if service is None or service.epilog:
        return ""
    named = known(facts.slurm).config.get("EpilogSlurmctld", "(none)")
    return f"slurmctld runs with EpilogSlurmctld={named}"


def _hook_broken(facts: Facts) -> str:
    service = _set_up(facts)
    if service is None or service.epilog is None:
        return ""
    for file in service.epilog.files:
        if file.problem:
            return f"{file.path}: {file.problem}"
        if not may(file, service.slurm_uid or 0, service.slurm_gids, 1) or not file.mode & 0o111:
            return f"SlurmUser may not run {file.path}: its mode is {file.permissions:04o}"
    return ""


def _no_folder(facts: Facts) -> str:
    service = _set_up(facts)
    if service is None:
        return ""
    return "; ".join(
        f"{file.path}: {file.problem}" for file in service.folders.values() if file.problem
    )


def _folder_modes(facts: Facts) -> str:
    service, reports = _set_up(facts), known(facts.reports)
    if service is None or reports.uid is None:
        return ""
    found = []
    for name, file in service.folders.items():
        if file.problem:
            continue
        shared = name in (QUEUE, DROPPED)
        if shared and not may(file, service.slurm_uid or 0, service.slurm_gids, _WX):
            found.append(f"SlurmUser may not write into {file.path}")
        if not may(file, reports.uid, service.account_gids, _RWX):
            found.append(f"{reports.account} may not change {file.path}")
        if file.mode & 0o002:
            found.append(f"everybody may write into {file.path}")
    return "; ".join(found)


def _service_gone(facts: Facts) -> str:
    service = _set_up(facts)
    if service is None:
        return ""
    if service.timer and service.timer.active == "active":
        return ""
    unit = service.unit
    if unit and (unit.active, unit.enabled) in _DOWN:
        return f"{unit.name} is {unit.enabled} and {unit.active}"
    known(service.service)
    return f"its last status is {service.age_s:.0f} s old" if service.age_s > STATUS_MAX_S else ""


def _set_aside(facts: Facts) -> str:
    service = _set_up(facts)
    if service is None or (service.folders["failed"].problem):
        return ""
    count = known(service.failed)
    return f"{count} ends of jobs are in {service.folders['failed'].path}" if count else ""


def _unentered(facts: Facts) -> str:
    service = _set_up(facts)
    if service is None:
        return ""
    count, oldest_s = known(service.unentered)
    if oldest_s < UNENTERED_MIN_S:
        return ""
    return f"{number(count, 'report')} not in the index, the oldest for {elapsed(oldest_s)}"


def _dropped(facts: Facts) -> str:
    service = _set_up(facts)
    if service is None:
        return ""
    status, uncounted = known(service.service), known(service.uncounted)
    total = sum(status.dropped.values()) + uncounted
    return f"{number(total, 'end')} of jobs had no room" if total else ""


def _no_room(facts: Facts) -> str:
    """Judge the file system of the queue; who may write is for the check of the modes."""
    if _set_up(facts) is None:
        return ""
    spool = known(facts.spool)
    if spool.uid is None or spool.errno in (0, EACCES, EPERM):
        return ""
    return _cannot_write(spool)


def _settings(facts: Facts) -> str:
    service = _set_up(facts)
    if service is None or facts.settings.refused:
        return ""
    note = known(service.note)
    if note is not None:
        return not_in_force(note, facts.settings.values, CONTROLLER)
    if service.unit is None or service.unit.active != "active":
        return ""
    return (
        f"{service.unit.name} runs, and says nothing below {facts.settings.values.controller_dir}"
    )


def _stuck(facts: Facts) -> str:
    service = _set_up(facts)
    if service is None:
        return ""
    status = known(service.service)
    mounts = sorted({one.mount for one in status.shunned})
    about = f"; files on {', '.join(mounts)} do not answer" if mounts else ""
    count = len(status.stuck)
    return f"{count} processes hang in a file system{about}" if count or mounts else ""


def _store(facts: Facts) -> str:
    return _unwritable(known(facts.store)) if _set_up(facts) else ""


def _store_full(facts: Facts) -> str:
    return _full(known(facts.store)) if _set_up(facts) else ""


def _as_root(facts: Facts) -> str:
    service = _set_up(facts)
    if service is None or service.unit is None or service.unit.user != "root":
        return ""
    return f"{service.unit.name} has User=root"


CHECKS = (
    Check(
        id="account-missing",
        roles=_COLLECTING,
        looks_at="the account of the setting `report_user`",
        meaning="Summaries of ended jobs are not written: there are no reports.",
        mend="Create it, with the same uid on all nodes: useradd --system nccl-inspector.",
        page="troubleshoot.md#step-4-did-the-agent-collect-the-job",
        judge=_no_account,
        by_setup=True,
    ),
    Check(
        id="report-dir",
        roles=_COLLECTING,
        looks_at="report_dir, into which a small file is written as the service account",
        meaning="Summaries of ended jobs are not written: they wait on the nodes until a reboot.",
        mend="Mount the shared storage, and give report_dir to the account with mode 0711.",
        page="troubleshoot.md#step-4-did-the-agent-collect-the-job",
        judge=_report_dir,
        by_setup=True,
    ),
    Check(
        id="report-dir-full",
        roles=_COLLECTING,
        looks_at="the same file",
        meaning="Summaries of ended jobs are not written: they wait on the nodes until a reboot.",
        mend="Make room on the file system of report_dir, or raise the account's quota: df -h and "
        "df -i show which. A smaller summary_days removes more. What waits is written then.",
        page="troubleshoot.md#step-4-did-the-agent-collect-the-job",
        judge=_report_dir_full,
    ),
    Check(
        id="report-dir-mode",
        roles=_COLLECTING,
        looks_at="the mode of report_dir",
        meaning="Users cannot read their reports, or may remove others'.",
        mend="chmod 0711",
        page="install.md#turn-on",
        judge=_report_dir_mode,
    ),
    Check(
        id="report-dir-acl",
        roles=_COLLECTING,
        looks_at="an ACL that is set on that small file",
        meaning="Users cannot read the summaries of their jobs.",
        mend="Use a file system with POSIX ACLs, or let users read what the controller service "
        "stores.",
        page="install.md#turn-on",
        judge=_report_dir_acl,
    ),
    Check(
        id="object-store",
        roles=_COLLECTING,
        looks_at="object_url, into which a small object is written as the service account",
        meaning="Summaries of ended jobs are not written: they wait on the nodes until a reboot.",
        mend="Correct object_url, or the keys in the file object_keys, which that account must be "
        "able to read.",
        page="large-sites.md#hosts-that-share-no-file-system",
        judge=_objects,
    ),
    Check(
        id="controller-hook",
        roles=_CONTROLLER,
        looks_at="EpilogSlurmctld= of `scontrol show config`",
        meaning="The service learns of ended jobs only from accounting, or not at all.",
        mend="Set EpilogSlurmctld=/usr/lib/nccl-inspector/epilogctld/nccl-inspector-epilogctld, "
        "and restart slurmctld.",
        page="operate.md#reports",
        judge=_no_hook,
    ),
    Check(
        id="controller-hook-file",
        roles=_CONTROLLER,
        looks_at="the file of that line, as SlurmUser",
        meaning="Ended jobs are not queued.",
        mend="Install the package on the controller, and make the file executable for all.",
        page="operate.md#reports",
        judge=_hook_broken,
    ),
    Check(
        id="queue-missing",
        roles=_CONTROLLER,
        looks_at="the directories in controller_dir",
        meaning="Ended jobs are not queued, or the service cannot keep its notes.",
        mend="Install tmpfiles-controller.conf, and run systemd-tmpfiles --create.",
        page="troubleshoot.md#step-5-is-the-report-stored",
        judge=_no_folder,
        by_setup=True,
    ),
    Check(
        id="queue-modes",
        roles=_CONTROLLER,
        looks_at="owners and modes of these directories, for SlurmUser and for the service account",
        meaning="Ended jobs are not queued, or their entries cannot be taken out.",
        mend="Write the site's SlurmUser into tmpfiles-controller.conf, and run systemd-tmpfiles "
        "--create.",
        page="operate.md#reports",
        judge=_folder_modes,
    ),
    Check(
        id="queue-full",
        roles=_CONTROLLER,
        looks_at="dropped/ in controller_dir, into which a small file is written as SlurmUser",
        meaning="Ended jobs are queued without what slurmctld says of them, or not at all: then "
        "only accounting knows them.",
        mend="Make room on the file system of controller_dir: df -h and df -i show which.",
        page="troubleshoot.md#step-5-is-the-report-stored",
        judge=_no_room,
    ),
    Check(
        id="controller-settings",
        roles=_CONTROLLER,
        looks_at="the settings that the service says it runs with, and nccl-inspector.conf",
        meaning="What was changed is not in force before the service starts again.",
        mend="nccl-inspector setup controller --apply, or systemctl restart "
        "nccl-inspector-controller.",
        page="operate.md#change-a-setting",
        judge=_settings,
    ),
    Check(
        id="controller-service",
        roles=_CONTROLLER,
        looks_at="systemctl, and the status that the service writes",
        meaning="No report is stored, and nothing old is removed.",
        mend="systemctl enable --now nccl-inspector-controller, or look into its journal.",
        page="troubleshoot.md#step-5-is-the-report-stored",
        judge=_service_gone,
        by_setup=True,
    ),
    Check(
        id="controller-root",
        roles=_CONTROLLER,
        looks_at="User= of the service's unit",
        meaning="The service refuses to run as root, because it reads what users wrote.",
        mend="Set User= to report_user or to SlurmUser.",
        page="operate.md#reports",
        judge=_as_root,
    ),
    Check(
        id="reports-set-aside",
        roles=_CONTROLLER,
        looks_at="failed/ in controller_dir",
        meaning="Making these reports failed five times.",
        mend="Read the .why file beside each, repair what it names, and move the entry back.",
        page="troubleshoot.md#step-5-is-the-report-stored",
        judge=_set_aside,
    ),
    Check(
        id="reports-unentered",
        roles=_CONTROLLER,
        looks_at="state/unentered in controller_dir",
        meaning="The index cannot be written. The reports are stored, but history and nodes do not "
        "know them.",
        mend="The journal of nccl-inspector-controller says why. The service tries again by "
        "itself.",
        page="large-sites.md#when-the-database-does-not-answer",
        judge=_unentered,
    ),
    Check(
        id="ends-dropped",
        roles=_CONTROLLER,
        looks_at="the status of the service",
        meaning="The queue was full of these users' jobs. Without accounting such jobs have no "
        "stored report.",
        mend="Look at what these users submit: nccl-inspector controller --status has their uids.",
        page="operate.md#reports",
        judge=_dropped,
    ),
    Check(
        id="storage-hangs",
        roles=_CONTROLLER,
        looks_at="the status of the service",
        meaning="A file system does not answer; reports that need it wait.",
        mend="Repair the mount: nccl-inspector controller --status names the processes.",
        page="troubleshoot.md#step-5-is-the-report-stored",
        judge=_stuck,
    ),
    Check(
        id="store-dir",
        roles=_CONTROLLER,
        looks_at="store_dir, into which a small file is written as the service account",
        meaning="No report is stored.",
        mend="Make the directory, and give it to the service account with mode 0711.",
        page="operate.md#reports",
        judge=_store,
        by_setup=True,
    ),
    Check(
        id="store-dir-full",
        roles=_CONTROLLER,
        looks_at="the same file",
        meaning="No report is stored. The jobs wait in the queue.",
        mend="Make room on the file system of store_dir, or raise the account's quota: df -h and "
        "df -i show which. A smaller report_days removes more.",
        page="troubleshoot.md#step-5-is-the-report-stored",
        judge=_store_full,
    ),
)
