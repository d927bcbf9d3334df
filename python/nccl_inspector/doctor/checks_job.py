# SPDX-License-Identifier: Apache-2.0
"""Checks of a job on this node: its directory, its libraries, its boxes."""

from nccl_inspector.doctor.check import Check, Role
from nccl_inspector.doctor.facts import (
    CannotTell,
    CannotTellError,
    Facts,
    Job,
    JobBox,
    known,
)
from nccl_inspector.doctor.nccl import (
    FIRST_WITH_TIMES,
    OPENS_NO_PATH,
    PROFILER,
    advice_against,
    problem_of,
    version_words,
)
from nccl_inspector.doctor.process_words import few, pids
from nccl_inspector.model.process import DENIED, DISABLED, MEASURING, RCCL, UNTIMED

EVENTS_MIN, EVENTS_S = 100, 60.0
_JOB = frozenset({Role.JOB})


def _boxes(job: Job) -> tuple[JobBox, ...]:
    return known(job.boxes)


def _no_directory(facts: Facts) -> str:
    job = known(facts.job)
    if not job.directory.problem:
        return ""
    return f"{job.directory.path}: {job.directory.problem}"


def _manifest(facts: Facts) -> str:
    job = known(facts.job)
    return f"{job.directory.path}/manifest: {job.manifest_refused}" if job.manifest_refused else ""


def _no_raw(facts: Facts) -> str:
    job = known(facts.job)
    if job.directory.problem:
        return ""
    hidden = [one for one in job.processes if not one.sees_raw]
    return f"{pids(hidden)} cannot see {job.directory.path}/raw" if hidden else ""


def _unwritable(facts: Facts) -> str:
    job = known(facts.job)
    shut = [one for one in job.processes if one.sees_raw and not one.writes_raw]
    return f"{pids(shut)} cannot write into {job.directory.path}/raw" if shut else ""


def _no_plugin_file(facts: Facts) -> str:
    blind = [one for one in known(facts.job).processes if not one.sees_profiler]
    return f"{pids(blind)} cannot see {blind[0].environ.get(PROFILER)}" if blind else ""


def _old_or_denied(facts: Facts) -> str:
    job = known(facts.job)
    deny = facts.settings.values.deny_nccl
    for one in job.processes:
        why = problem_of(one.nccl_version, deny) if one.nccl_version else ""
        if why:
            return f"pid {one.pid}: {why}"
    boxes = () if isinstance(job.boxes, CannotTell) else job.boxes
    denied = [box for box in boxes if box.silent == DENIED]
    return f"{denied[0].nccl} is on the site's list deny_nccl" if denied else ""


def _better_not(facts: Facts) -> str:
    deny = facts.settings.values.deny_nccl
    for one in known(facts.job).processes:
        why = advice_against(one.nccl_version, deny) if one.nccl_version else ""
        if why:
            return f"pid {one.pid}: {why}"
    return ""


def _opens_no_path(facts: Facts) -> str:
    found = [
        one
        for one in known(facts.job).processes
        if one.nccl_version == OPENS_NO_PATH and "/" in one.environ.get(PROFILER, "")
    ]
    return f"{pids(found)}: {version_words(OPENS_NO_PATH)}" if found else ""


def _rccl(facts: Facts) -> str:
    job = known(facts.job)
    loaded = [one for one in job.processes if one.rccl]
    boxes = () if isinstance(job.boxes, CannotTell) else job.boxes
    silent = [box.name for box in boxes if box.silent == RCCL]
    if loaded:
        return f"{pids(loaded)}: {loaded[0].rccl}"
    return f"process {few(silent)}" if silent else ""


def _not_loaded(facts: Facts) -> str:
    job = known(facts.job)
    if not isinstance(job.boxes, CannotTell) and job.boxes:
        measured = len(job.boxes)
    else:
        measured = sum(bool(one.profiler) for one in job.processes)
    with_nccl = [one for one in job.processes if one.nccl]
    without = [one for one in with_nccl if not one.profiler]
    if without:
        return f"{pids(without)} loaded {without[0].nccl} and not the profiler plugin"
    if not measured and not with_nccl:
        raise CannotTellError("no process of the job that you can see has loaded NCCL yet")
    return ""


def _off(facts: Facts) -> str:
    job = known(facts.job)
    boxes = () if isinstance(job.boxes, CannotTell) else job.boxes
    silent = [box for box in boxes if box.silent == DISABLED]
    if not job.disabled and not silent:
        return ""
    return "the kill switch of this node is on"


def _no_events(facts: Facts) -> str:
    silent = [
        box
        for box in _boxes(known(facts.job))
        if box.silent == MEASURING
        and box.enqueued >= EVENTS_MIN
        and not box.followed
        and box.age_s > EVENTS_S
    ]
    if not silent:
        return ""
    return f"process {few(box.name for box in silent)}: {silent[0].enqueued} calls, no event"


def _no_times(facts: Facts) -> str:
    untimed = [
        box
        for box in _boxes(known(facts.job))
        if box.timing == UNTIMED and box.enqueued >= EVENTS_MIN and box.silent == MEASURING
    ]
    if not untimed:
        return ""
    since = ".".join(map(str, FIRST_WITH_TIMES[:2]))
    return f"{untimed[0].nccl} gives no times (NCCL {since} and later do)"


def _full(facts: Facts) -> str:
    return known(facts.job).fill_trouble


CHECKS = (
    Check(
        id="job-directory",
        roles=_JOB,
        looks_at="the job's directory below the run directory",
        meaning="The prolog did not run, the job was submitted with `off`, or it does not run on "
        "this node. Nothing of it is measured here.",
        mend="Submit it without `off`. On the node, nccl-inspector doctor says whether the prolog "
        "can run.",
        page="troubleshoot.md#step-2-did-the-prolog-make-the-directory",
        judge=_no_directory,
    ),
    Check(
        id="job-manifest",
        roles=_JOB,
        looks_at="the manifest that the prolog wrote",
        meaning="The job is not measured and not collected.",
        mend="Most often the tmpfs was full: see the job's node.",
        page="troubleshoot.md#step-2-did-the-prolog-make-the-directory",
        judge=_manifest,
    ),
    Check(
        id="job-raw-hidden",
        roles=_JOB,
        looks_at="the job's directory, as its processes see it",
        meaning="The container does not mount it, so these processes are missing in the report.",
        mend="Mount /run/nccl-inspector at the same path.",
        page="containers.md#what-must-be-there-inside",
        judge=_no_raw,
    ),
    Check(
        id="job-raw-unwritable",
        roles=_JOB,
        looks_at="the same, for writing (inside the job)",
        meaning="These processes are missing in the report.",
        mend="Mount it for writing, and keep the job's user id inside the container.",
        page="containers.md#what-happens-if-something-is-missing",
        judge=_unwritable,
    ),
    Check(
        id="job-plugin-hidden",
        roles=_JOB,
        looks_at="the file that NCCL_PROFILER_PLUGIN names, as the processes see it",
        meaning="NCCL finds no profiler: these processes are not measured.",
        mend="Mount /usr/lib/nccl-inspector at the same path.",
        page="containers.md#what-must-be-there-inside",
        judge=_no_plugin_file,
    ),
    Check(
        id="job-nccl",
        roles=_JOB,
        looks_at="the version of the NCCL that is loaded, and the setting `deny_nccl`",
        meaning="Processes with this NCCL are not measured.",
        mend="Use another release of NCCL.",
        page="troubleshoot.md#step-3-did-nccl-call-the-plugin",
        judge=_old_or_denied,
    ),
    Check(
        id="job-nccl-advice",
        roles=_JOB,
        looks_at="the version of the NCCL that is loaded, and the list that comes with the package",
        meaning="Measuring harms jobs with this NCCL.",
        mend="Use another release of NCCL, or submit with `off`. On the site: deny_nccl = "
        "recommended.",
        page="operate.md#releases-of-nccl-that-are-better-not-measured",
        judge=_better_not,
    ),
    Check(
        id="job-nccl-2273",
        roles=_JOB,
        looks_at="the version of the NCCL that is loaded, and the form of NCCL_PROFILER_PLUGIN",
        meaning="This release opens no profiler by its path.",
        mend="Give the setting `profiler` a name that the loader finds.",
        page="site-policy.md#nccl-2273",
        judge=_opens_no_path,
    ),
    Check(
        id="job-rccl",
        roles=_JOB,
        looks_at="the libraries in the processes, and their boxes",
        meaning="RCCL, AMD's library, is recognised and not measured.",
        mend="None.",
        page="troubleshoot.md#step-3-did-nccl-call-the-plugin",
        judge=_rccl,
    ),
    Check(
        id="job-plugin-not-loaded",
        roles=_JOB,
        looks_at="the libraries in the processes, and their boxes",
        meaning="NCCL is there and has not loaded the profiler plugin.",
        mend="Run the job with NCCL_DEBUG=INFO: NCCL then says why. The other checks have the "
        "usual reasons.",
        page="troubleshoot.md#step-3-did-nccl-call-the-plugin",
        judge=_not_loaded,
    ),
    Check(
        id="job-disabled",
        roles=_JOB,
        looks_at="the kill switch, and what the boxes say of it",
        meaning="Nothing is measured until an administrator enables the node again.",
        mend="nccl-inspector enable on the node.",
        page="operate.md#turn-measuring-off",
        judge=_off,
    ),
    Check(
        id="job-no-events",
        roles=_JOB,
        looks_at="calls and events in the boxes",
        meaning="Operations are called, and NCCL tells nothing of their kernels: something has "
        "taken the events away, such as another profiler.",
        mend="Look for other profilers in the job, and report it with NCCL's version.",
        page="troubleshoot.md#ask-the-doctor",
        judge=_no_events,
    ),
    Check(
        id="job-no-times",
        roles=_JOB,
        looks_at="the boxes",
        meaning="Operations are counted, but none has a time.",
        mend="Use NCCL 2.26 or later.",
        page="troubleshoot.md#what-the-command-says",
        judge=_no_times,
    ),
    Check(
        id="job-run-dir-full",
        roles=_JOB,
        looks_at="how much of the node's tmpfs is in use",
        meaning="Processes that find no room are missing in the report.",
        mend="Ask an administrator: nccl-inspector status on the node.",
        page="troubleshoot.md#status-says-not-well",
        judge=_full,
    ),
)
