# SPDX-License-Identifier: Apache-2.0
"""Checks of the run directory."""

from nccl_inspector.doctor.check import Check, Role
from nccl_inspector.doctor.facts import (
    Facts,
    known,
)

SIZE_MIN_BYTES, INODES_MIN = 64 << 20, 4000
_NODE = frozenset({Role.NODE})
_MODES = {"": 0o755, "jobs": 0o711, "ended": 0o700, "prom": 0o755, "control": 0o755}
_PROM_OF_GROUP = 0o750


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
        by_setup=True,
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
)
