# SPDX-License-Identifier: Apache-2.0
"""Checks of the variables in a job's processes, and of NCCL's configuration files."""

from collections.abc import Mapping

from nccl_inspector.doctor.check import Check, Role
from nccl_inspector.doctor.facts import CannotTellError, Facts, Job, JobProcess, known
from nccl_inspector.doctor.nccl import PROFILER
from nccl_inspector.doctor.process_words import few, pids
from nccl_inspector.doctor.set_by_slurm import is_ours, marked

_JOB = frozenset({Role.JOB})


def _processes(job: Job) -> tuple[JobProcess, ...]:
    if not job.processes:
        raise CannotTellError("no process of the job can be seen by you here")
    return job.processes


def _no_variables(facts: Facts) -> str:
    processes = _processes(known(facts.job))
    without = [one for one in processes if PROFILER not in one.environ]
    if len(without) < len(processes):
        loaded = [one for one in without if one.nccl]
        return f"{pids(loaded)} use NCCL without {PROFILER}" if loaded else ""
    return f"{PROFILER} is not set in any of {len(processes)} processes"


def _overridden(facts: Facts) -> str:
    """Return which processes have another profiler than the one that the site sets."""
    found = [
        one
        for one in known(facts.job).processes
        if PROFILER in one.environ and not is_ours(one.environ, PROFILER) and not one.image_sets
    ]
    if not found:
        return ""
    return f"{pids(found)}: {PROFILER}={found[0].environ[PROFILER]}"


def _of_image(facts: Facts) -> str:
    found = [
        one
        for one in known(facts.job).processes
        if one.image_sets and not (PROFILER in one.environ and is_ours(one.environ, PROFILER))
    ]
    if not found:
        return ""
    value = found[0].environ.get(PROFILER, "")
    return f"{pids(found)}: {few(found[0].image_sets)} of the image set {PROFILER}={value}"


def _changed(environ: Mapping[str, str]) -> list[str]:
    return sorted(
        name for name in marked(environ) if name != PROFILER and not is_ours(environ, name)
    )


def _others_overridden(facts: Facts) -> str:
    found = [(one, _changed(one.environ)) for one in known(facts.job).processes]
    changed = [(one, names) for one, names in found if names]
    if not changed:
        return ""
    return f"{pids([one for one, _ in changed])}: {few(changed[0][1])}"


def _conf_file(facts: Facts) -> str:
    found = []
    for one in known(facts.job).processes:
        lines = [
            line for line in one.conf_lines if line.partition("=")[0].strip() not in one.environ
        ]
        if lines:
            found.append(f"pid {one.pid}: {few(lines)}")
    return few(found)


def _unread_conf_file(facts: Facts) -> str:
    """Return who has a file of its own, if it has no lines that matter or may not be read."""
    named = [one for one in known(facts.job).processes if "NCCL_CONF_FILE" in one.environ]
    if not named or any(one.conf_lines for one in named):
        return ""
    return (
        f"{pids(named)}: NCCL_CONF_FILE={named[0].environ['NCCL_CONF_FILE']}; NCCL reads it in "
        "place of ~/.nccl.conf"
    )


def _ras_off(facts: Facts) -> str:
    found = [one for one in known(facts.job).processes if one.environ.get("NCCL_RAS_ENABLE") == "0"]
    return f"{pids(found)}: NCCL_RAS_ENABLE=0" if found else ""


CHECKS = (
    Check(
        id="job-no-variables",
        roles=_JOB,
        looks_at="the environment of the job's processes",
        meaning="The step was not to be measured, or a launcher did not hand the variables on.",
        mend="Ask for it: srun --nccl-inspector=report. With mpirun or env -i hand on NCCL_*.",
        page="troubleshoot.md#step-1-was-the-job-measured",
        judge=_no_variables,
    ),
    Check(
        id="job-other-profiler",
        roles=_JOB,
        looks_at="NCCL_PROFILER_PLUGIN of these processes, against what Slurm set",
        meaning="The job's own profiler wins, and ours is not loaded.",
        mend="Unset NCCL_PROFILER_PLUGIN in the job.",
        page="troubleshoot.md#step-1-was-the-job-measured",
        judge=_overridden,
    ),
    Check(
        id="job-profiler-of-image",
        roles=_JOB,
        looks_at="the files of the container in which images keep their variables",
        meaning="The image sets NCCL_PROFILER_PLUGIN, which wins: ours is not loaded.",
        mend="Make the runtime keep the host's value: srun --container-env=NCCL_PROFILER_PLUGIN "
        "with Pyxis, APPTAINERENV_NCCL_PROFILER_PLUGIN with Apptainer.",
        page="containers.md#environment-variables",
        judge=_of_image,
    ),
    Check(
        id="job-variables-changed",
        roles=_JOB,
        looks_at="all other variables that Slurm set, by the hashes in its marker",
        meaning="The job or its image gave these variables values of its own, or took them away. "
        "Measuring follows those values.",
        mend="Unset them in the job, if that was not meant.",
        page="internals/hooks.md#environment-of-a-task",
        judge=_others_overridden,
    ),
    Check(
        id="job-nccl-conf",
        roles=_JOB,
        looks_at="~/.nccl.conf or NCCL_CONF_FILE, and /etc/nccl.conf, as the job's user",
        meaning="NCCL takes these values, because the environment has none.",
        mend="Take the lines out, if that was not meant.",
        page="troubleshoot.md#ask-the-doctor",
        judge=_conf_file,
    ),
    Check(
        id="job-nccl-conf-file",
        roles=_JOB,
        looks_at="the variable NCCL_CONF_FILE",
        meaning="NCCL reads this file in place of the user's ~/.nccl.conf. Variables of the "
        "environment win over it.",
        mend="If variables are missing in the job, look into that file.",
        page="troubleshoot.md#ask-the-doctor",
        judge=_unread_conf_file,
    ),
    Check(
        id="job-ras-off",
        roles=_JOB,
        looks_at="the variable NCCL_RAS_ENABLE",
        meaning="Measuring goes on. But ncclras cannot be asked when the job hangs.",
        mend="Unset NCCL_RAS_ENABLE: the service of each step has a port of its own (ras=1).",
        page="troubleshoot.md#ask-the-doctor",
        judge=_ras_off,
    ),
)
