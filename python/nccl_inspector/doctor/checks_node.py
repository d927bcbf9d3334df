# SPDX-License-Identifier: Apache-2.0
"""Checks of a node: its run directory, its agent, who shows its series, its clock."""

from nccl_inspector.agent.status import COLLECTED_S, RENEWED_INTERVALS, RENEWED_S
from nccl_inspector.doctor.check import Check, Role
from nccl_inspector.doctor.facts import (
    Agent,
    CannotTell,
    CannotTellError,
    Exporter,
    Facts,
    known,
)

SIZE_MIN_BYTES, INODES_MIN = 64 << 20, 4000
CLOCK_MAX_S = 2.0
WAITED_MAX_S = 600.0
FIRST_PYTHON = (3, 11)
_NODE = frozenset({Role.NODE})
_MODES = {"": 0o755, "jobs": 0o711, "ended": 0o700, "prom": 0o755, "control": 0o755}
_PROM_OF_GROUP = 0o750
_WITHOUT_SERIES = ("report", "json")


def _dirs_missing(facts: Facts) -> str:
    places = known(facts.run_dir).places.values()
    return "; ".join(f"{one.file.path}: {one.file.problem}" for one in places if one.file.problem)


def _dir_modes(facts: Facts) -> str:
    run_dir = known(facts.run_dir)
    found = []
    for name, place in run_dir.places.items():
        file, wanted, gid = place.file, _MODES[name], 0
        if file.problem:
            continue
        if name == "prom" and facts.settings.values.prom_group:
            gid = known(run_dir.prom_gid)
            wanted = _PROM_OF_GROUP
        if (file.uid, file.permissions) != (0, wanted) or (name == "prom" and file.gid != gid):
            found.append(
                f"{file.path} has owner {file.uid}:{file.gid} and mode {file.permissions:04o} "
                f"instead of 0:{gid} and {wanted:04o}"
            )
    return "; ".join(found)


def _not_tmpfs(facts: Facts) -> str:
    places = known(facts.run_dir).places
    jobs = places["jobs"]
    if jobs.file.problem or jobs.kind == "tmpfs":
        if not places[""].is_mount and not places[""].file.problem and not jobs.is_mount:
            return f"{places[''].file.path} is no mount: it shares the tmpfs above it"
        return ""
    return f"{jobs.file.path} is on {jobs.kind or 'an unknown file system'}"


def _small(facts: Facts) -> str:
    place = known(facts.run_dir).places[""]
    if place.file.problem or not place.size_bytes:
        return ""
    if place.size_bytes >= SIZE_MIN_BYTES and place.inodes >= INODES_MIN:
        return ""
    size = f"{place.size_bytes / (1 << 20):.0f} MiB and {place.inodes} inodes"
    return f"{place.file.path} has {size}; one process needs 2.9 MiB"


def _mount_options(facts: Facts) -> str:
    place = known(facts.run_dir).places["jobs"]
    missing = [one for one in ("nosuid", "nodev") if one not in place.options]
    if place.file.problem or not missing:
        return ""
    return f"{place.file.path} is mounted without {' and '.join(missing)}"


def _full(facts: Facts) -> str:
    fill = known(facts.agent).status.fill
    return fill.trouble if fill else ""


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


def _prom_group(facts: Facts) -> str:
    gid = known(facts.run_dir).prom_gid
    return gid.reason if isinstance(gid, CannotTell) else ""


def _wants_exporter(facts: Facts) -> bool:
    values = facts.settings.values
    return not values.listen and values.default not in _WITHOUT_SERIES


def _no_exporter(facts: Facts) -> str:
    if not _wants_exporter(facts) or known(facts.monitoring).exporters:
        return ""
    return "no node_exporter runs, and `listen` is not set"


def _reads_ours(facts: Facts) -> list[Exporter]:
    prom = str(facts.settings.values.run_dir / "prom")
    return [
        one
        for one in known(facts.monitoring).exporters
        if one.reads_textfiles and prom in one.directories
    ]


def _exporter_directory(facts: Facts) -> str:
    exporters = known(facts.monitoring).exporters
    if not _wants_exporter(facts) or not exporters or _reads_ours(facts):
        return ""
    first = exporters[0]
    if not first.reads_textfiles:
        return f"node_exporter (pid {first.pid}) runs without its textfile collector"
    directories = ", ".join(first.directories) or "no directory"
    return f"node_exporter (pid {first.pid}) reads {directories}"


def _exporter_group(facts: Facts) -> str:
    prom = facts.settings.values.run_dir / "prom"
    return "; ".join(
        f"the account of node_exporter (pid {one.pid}) may not read {prom}"
        for one in _reads_ours(facts)
        if not one.may_read
    )


def _pages(facts: Facts) -> str:
    agent = known(facts.agent)
    if agent.status.agent_pid is None:
        return ""  # told by another check
    found = []
    for page in map(known, known(facts.monitoring).pages):
        if page.last_pass_age_s is None:
            found.append(f"{page.url} has no series nccl_inspector_agent_...")
        elif page.last_pass_age_s > max(RENEWED_S, 6 * facts.settings.values.agent_interval_s):
            found.append(f"{page.url} shows a pass of {page.last_pass_age_s:.0f} s ago")
    return "; ".join(found)


def _scrape_error(facts: Facts) -> str:
    return "; ".join(
        f"{page.url} has node_textfile_scrape_error 1"
        for page in map(known, known(facts.monitoring).pages)
        if page.scrape_error
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


CHECKS = (
    Check(
        id="run-dir-missing",
        roles=_NODE,
        looks_at="the run directory and its parts",
        meaning="The prolog cannot make a job's directory: jobs run and are not measured.",
        mend="systemctl start 'run-nccl\\x2dinspector.mount', then systemd-tmpfiles --create "
        "/usr/lib/tmpfiles.d/nccl-inspector.conf.",
        page="install.md#mount-the-tmpfs",
        judge=_dirs_missing,
    ),
    Check(
        id="run-dir-modes",
        roles=_NODE,
        looks_at="owners and modes of these directories",
        meaning="Users could reach other users' files, or node_exporter could not read ours.",
        mend="systemd-tmpfiles --create /usr/lib/tmpfiles.d/nccl-inspector.conf; the agent sets "
        "the group of prom/.",
        page="internals/run-directory.md",
        judge=_dir_modes,
    ),
    Check(
        id="run-dir-not-tmpfs",
        roles=_NODE,
        looks_at="what is mounted there",
        meaning="On another file system a killed process loses its last interval. In a tmpfs that "
        "is shared, a user who fills it stops other services.",
        mend="Mount a tmpfs: systemctl enable --now 'run-nccl\\x2dinspector.mount'.",
        page="install.md#mount-the-tmpfs",
        judge=_not_tmpfs,
    ),
    Check(
        id="run-dir-small",
        roles=_NODE,
        looks_at="size and inodes of the tmpfs",
        meaning="Processes that find no room are missing in their report.",
        mend="Mount it with size=256m,nr_inodes=20k, as the package's unit does.",
        page="install.md#mount-the-tmpfs",
        judge=_small,
    ),
    Check(
        id="run-dir-options",
        roles=_NODE,
        looks_at="the options of the mount",
        meaning="Users write there. Without these options they could bring a setuid program or a "
        "device.",
        mend="Mount it with nosuid,nodev,noexec.",
        page="install.md#mount-the-tmpfs",
        judge=_mount_options,
    ),
    Check(
        id="run-dir-full",
        roles=_NODE,
        looks_at="how much of the tmpfs is in use",
        meaning="Processes that find no room are missing in their report.",
        mend="Find out who fills it: du -s /run/nccl-inspector/jobs/* /run/nccl-inspector/ended/*.",
        page="troubleshoot.md#status-says-not-well",
        judge=_full,
    ),
    Check(
        id="agent-missing",
        roles=_NODE,
        looks_at="the agent's lock, and when jobs were last collected without it",
        meaning="Nothing is published, and ended jobs are not collected.",
        mend="systemctl enable --now nccl-inspector-agent, or look into its journal.",
        page="troubleshoot.md#status-says-not-well",
        judge=_no_agent,
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
        id="agent-not-enabled",
        roles=_NODE,
        looks_at="systemctl",
        meaning="The agent runs now, and will not after the next boot.",
        mend="systemctl enable nccl-inspector-agent.",
        page="install.md#put-the-files-in-place",
        judge=_not_enabled,
    ),
    Check(
        id="agent-python",
        roles=_NODE,
        looks_at="the Python of the agent's command, which is started once",
        meaning="The agent cannot start, or cannot start again: its Python is too old or gone, as "
        "after an upgrade of the system.",
        mend="Install Python 3.11 or later, then make the agent's environment anew.",
        page="install.md#put-the-files-in-place",
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
        id="prom-group",
        roles=_NODE,
        looks_at="the group of the setting `prom_group`",
        meaning="The agent does not start.",
        mend="Create the group, or correct the setting.",
        page="site-policy.md#who-may-read-the-metrics-of-a-node",
        judge=_prom_group,
    ),
    Check(
        id="exporter-missing",
        roles=_NODE,
        looks_at="the processes of this host, and the setting `listen`",
        meaning="Nobody shows the published series, so Prometheus has none. Reports are complete.",
        mend="Start node_exporter with --collector.textfile.directory=/run/nccl-inspector/prom, or "
        "set `listen`.",
        page="install.md#turn-on",
        judge=_no_exporter,
    ),
    Check(
        id="exporter-directory",
        roles=_NODE,
        looks_at="the command line of the running node_exporter",
        meaning="It does not read the published series, so Prometheus has none.",
        mend="Give it --collector.textfile.directory=/run/nccl-inspector/prom.",
        page="troubleshoot.md#no-series-in-prometheus",
        judge=_exporter_directory,
    ),
    Check(
        id="exporter-group",
        roles=_NODE,
        looks_at="the account and the groups of the running node_exporter",
        meaning="It may not read the published series, so Prometheus has none.",
        mend="Put its account into the group of `prom_group`, then restart node_exporter.",
        page="site-policy.md#who-may-read-the-metrics-of-a-node",
        judge=_exporter_group,
    ),
    Check(
        id="page-without-series",
        roles=_NODE,
        looks_at="what node_exporter, or the agent's own endpoint, answers",
        meaning="The page lacks the agent's series or has old ones, so Prometheus has no others.",
        mend="Look at prom/ and at the log of node_exporter.",
        page="troubleshoot.md#no-series-in-prometheus",
        judge=_pages,
    ),
    Check(
        id="scrape-error",
        roles=_NODE,
        looks_at="the same page",
        meaning="node_exporter could not read one of its text files, ours or the site's.",
        mend="Its log names the file.",
        page="troubleshoot.md#no-series-in-prometheus",
        judge=_scrape_error,
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
)
