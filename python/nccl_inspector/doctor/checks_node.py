# SPDX-License-Identifier: Apache-2.0
"""Checks of a node: its agent, its clock, SELinux, NVML, Enroot, NCCL."""

from nccl_inspector.agent.status import COLLECTED_S, RENEWED_INTERVALS, RENEWED_S
from nccl_inspector.doctor.check import Check, Role
from nccl_inspector.doctor.facts import (
    Agent,
    CannotTellError,
    Facts,
    known,
)
from nccl_inspector.doctor.nccl import libraries_advised_against
from nccl_inspector.settings.config import Config
from nccl_inspector.settings.in_force import AGENT, Note, differences

CLOCK_MAX_S = 2.0
WAITED_MAX_S = 600.0
FIRST_PYTHON = (3, 11)
_NODE = frozenset({Role.NODE})


def _collects(agent: Agent) -> bool:
    """Tell whether the node is one without the agent, on which the timer collects."""
    age_s = agent.status.collected_age_s
    return age_s is not None and age_s <= COLLECTED_S


def _no_agent(facts: Facts) -> str:
    agent = known(facts.agent)
    if agent.status.fill is None or agent.status.agent_pid is not None or _collects(agent):
        return ""
    state = f"; its unit is {agent.unit.active}" if agent.unit else ""
    return f"no process holds the agent's lock on {agent.status.run_dir}/jobs{state}"


def _stale(facts: Facts) -> str:
    agent = known(facts.agent)
    if agent.status.agent_pid is None:
        return ""
    limit_s = max(RENEWED_S, RENEWED_INTERVALS * facts.settings.values.agent_interval_s)
    if agent.own_age_s is None:
        return "the agent runs, and has published nothing of its own"
    if agent.own_age_s <= limit_s:
        return ""
    return f"its last pass ended {agent.own_age_s:.0f} s ago"


def not_in_force(note: Note, config: Config, reader: str) -> str:
    """Return what a service runs with and what is configured, where that is not the same."""
    changes = "; ".join(str(one) for one in differences(note, config, reader))
    if changes and note.refused:
        changes += f"; it refused to change: {note.refused}"
    return changes


def _settings(facts: Facts) -> str:
    agent = known(facts.agent)
    if agent.status.agent_pid is None or facts.settings.refused:
        return ""
    note = known(agent.note)
    if note is None:
        return "the agent runs, and does not say with which settings"
    return not_in_force(note, facts.settings.values, AGENT)


def _not_enabled(facts: Facts) -> str:
    agent = known(facts.agent)
    unit = agent.unit
    if unit is None or unit.load != "loaded" or agent.status.agent_pid is None:
        return ""
    return f"{unit.name} is {unit.enabled}" if unit.enabled in ("disabled", "masked") else ""


def _python(facts: Facts) -> str:
    python = known(facts.agent).python
    if python is None:
        return ""
    if python.version is None:
        return f"{python.path}: {python.problem}"
    if python.version < FIRST_PYTHON:
        return f"{python.path} is Python {python.version[0]}.{python.version[1]}"
    return f"{python.path}: {python.problem}" if python.problem else ""


def _disabled(facts: Facts) -> str:
    disabled = known(facts.agent).status.disabled
    if disabled is None:
        return ""
    return f"the kill switch is on{f': {disabled.reason}' if disabled.reason else ''}"


def _waiting(facts: Facts) -> str:
    agent = known(facts.agent)
    if agent.status.ended is None and agent.status.fill is not None:
        raise CannotTellError("only root sees the ended jobs")
    if agent.oldest_ended_s is None or agent.oldest_ended_s <= WAITED_MAX_S:
        return ""
    return (
        f"{agent.status.ended} ended jobs are not collected, the oldest for "
        f"{agent.oldest_ended_s / 60:.0f} min"
    )


def _clock(facts: Facts) -> str:
    ahead_s = known(facts.clock_ahead_s)
    if abs(ahead_s) <= CLOCK_MAX_S:
        return ""
    way = "ahead of" if ahead_s > 0 else "behind"
    return f"this clock is {abs(ahead_s):.1f} s {way} the controller's"


def _selinux(facts: Facts) -> str:
    security = known(facts.security)
    if not security.enforcing:
        return ""
    denials = known(security.denials)
    return f"{len(denials)} denials, the last: {denials[-1]}" if denials else ""


def _nvml(facts: Facts) -> str:
    gpus = known(facts.gpus)
    if not gpus.count or not facts.settings.values.counters:
        return ""
    if not gpus.nvml:
        return f"{gpus.count} GPUs, and no libnvidia-ml.so.1"
    return "" if known(gpus.has_bindings) else f"{gpus.count} GPUs, and no Python module pynvml"


def _enroot(facts: Facts) -> str:
    enroot = known(facts.enroot)
    files = enroot.fstab, enroot.hook
    missing = [one for one in files if one.problem]
    if len(missing) == len(files):
        return ""  # not set up for Enroot
    if missing:
        return f"{missing[0].path}: {missing[0].problem}"
    if not enroot.hook.mode & 0o001:
        return f"{enroot.hook.path} is not executable: its mode is {enroot.hook.permissions:04o}"
    found = [
        f"{path} (setting `{name}`)"
        for name, path in enroot.wanted.items()
        if not any(path.is_relative_to(one) for one in enroot.mounts)
    ]
    return f"{enroot.fstab.path} does not mount {' and '.join(found)}" if found else ""


def _nccl_better_not(facts: Facts) -> str:
    return libraries_advised_against(known(facts.nccl), facts.settings.values.deny_nccl)


CHECKS = (
    Check(
        id="agent-missing",
        roles=_NODE,
        looks_at="the agent's lock, and when jobs were last collected without it",
        meaning="Nothing is published, and ended jobs are not collected.",
        mend="systemctl enable --now nccl-inspector-agent, or look into its journal.",
        page="troubleshoot.md#status-says-not-well",
        judge=_no_agent,
        by_setup=True,
    ),
    Check(
        id="agent-stale",
        roles=_NODE,
        looks_at="the age of what the agent publishes about itself",
        meaning="The agent hangs: series are old, and ended jobs wait.",
        mend="systemctl restart nccl-inspector-agent. Look at the node's load, and at `df` of "
        "prom/.",
        page="troubleshoot.md#status-says-not-well",
        judge=_stale,
    ),
    Check(
        id="agent-settings",
        roles=_NODE,
        looks_at="the settings that the agent says it runs with, and nccl-inspector.conf",
        meaning="What was changed is not in force on this node before its agent starts again, so "
        "nodes differ until all have been rebooted.",
        mend="nccl-inspector setup node --apply, or systemctl reload nccl-inspector-agent (after "
        "a change of run_dir: restart).",
        page="operate.md#change-a-setting",
        judge=_settings,
    ),
    Check(
        id="agent-not-enabled",
        roles=_NODE,
        looks_at="systemctl",
        meaning="The agent runs now, and will not after the next boot.",
        mend="systemctl enable nccl-inspector-agent.",
        page="install.md#install-them",
        judge=_not_enabled,
        by_setup=True,
    ),
    Check(
        id="agent-python",
        roles=_NODE,
        looks_at="the Python of the agent's command, which is started once",
        meaning="The agent cannot start, or cannot start again: its Python is too old or gone, as "
        "after an upgrade of the system.",
        mend="Install Python 3.11 or later, and the package slurm-nccl-inspector anew.",
        page="install.md#make-the-packages",
        judge=_python,
    ),
    Check(
        id="disabled",
        roles=_NODE,
        looks_at="control/disabled in the run directory",
        meaning="Somebody turned measuring off on this node.",
        mend="nccl-inspector enable, if the reason has gone.",
        page="operate.md#turn-measuring-off",
        judge=_disabled,
    ),
    Check(
        id="jobs-not-collected",
        roles=_NODE,
        looks_at="how long ended jobs have waited in ended/",
        meaning="These jobs have no report, and a reboot loses them.",
        mend="journalctl -u nccl-inspector-agent has the reason, most often report_dir.",
        page="troubleshoot.md#step-4-did-the-agent-collect-the-job",
        judge=_waiting,
    ),
    Check(
        id="clock",
        roles=_NODE,
        looks_at="the time that slurmctld tells `sdiag`",
        meaning="Times of this node and of others do not agree in reports and series.",
        mend="Repair the time service: chronyc tracking, or timedatectl.",
        page="limits.md",
        judge=_clock,
    ),
    Check(
        id="selinux",
        roles=_NODE,
        looks_at="/var/log/audit/audit.log, if SELinux is enforcing",
        meaning="SELinux refused something to our parts.",
        mend="ausearch -m AVC -ts today | grep nccl says what; label the files, or allow it.",
        page="troubleshoot.md#ask-the-doctor",
        judge=_selinux,
    ),
    Check(
        id="nvml",
        roles=_NODE,
        looks_at="the driver's GPUs, libnvidia-ml.so.1 and the module pynvml",
        meaning="Counters of GPUs and NVLinks are missing in reports and series.",
        mend="Install the driver's library and nvidia-ml-py for the agent's Python, or set "
        "counters = 0.",
        page="metrics.md",
        judge=_nvml,
    ),
    Check(
        id="enroot-files",
        roles=_NODE,
        looks_at="our two files in /etc/enroot, and the settings `profiler` and `run_dir`",
        meaning="Jobs in Enroot's containers are not measured, or the kill switch does not reach "
        "them.",
        mend="Install both files, and write the paths of these settings into the fstab.",
        page="containers.md#pyxis-and-enroot",
        judge=_enroot,
    ),
    Check(
        id="nccl-advice",
        roles=_NODE,
        looks_at="the names of the NCCL libraries in this host's library directories, and the list "
        "that comes with the package",
        meaning="Measuring harms jobs that use this NCCL.",
        mend="Install another release of NCCL, or set deny_nccl = recommended.",
        page="operate.md#releases-of-nccl-that-are-better-not-measured",
        judge=_nccl_better_not,
    ),
)
