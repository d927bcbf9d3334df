# SPDX-License-Identifier: Apache-2.0
"""Checks of what slurmd runs around jobs, and of what slurm.conf says about it."""

from nccl_inspector.doctor.check import Check, Role
from nccl_inspector.doctor.facts import (
    CannotTellError,
    Facts,
    Script,
    known,
)
from nccl_inspector.slurm.prolog_flags import flags_of, has_alloc

HOOK_DEADLINE_S = 5
_NODE = frozenset({Role.NODE})
_PACKAGE = "/nccl-inspector/"
_COPY = "nccl-inspector-hook"


def _slurmd_without(facts: Facts) -> str:
    if not known(facts.plugstack).lines or known(facts.hooks).slurmd_has_plugin is True:
        return ""
    if known(known(facts.hooks).slurmd_has_plugin):
        return ""
    return "the running slurmd has not loaded the SPANK plugin"


def _below_package(facts: Facts) -> str:
    return "; ".join(
        f"{one.key}={one.entry}" + ("" if _PACKAGE in one.entry else ", which has a link there")
        for one in known(facts.hooks).named
        if _PACKAGE in one.entry or _leads_to_package(one)
    )


def _leads_to_package(script: Script) -> bool:
    return any(_PACKAGE in file.link_to for file in script.files)


def _fails(script: Script) -> str:
    """Return why slurmd would drain the node by these entries, or an empty text."""
    if not script.files:
        return "matches no file"
    for file in script.files:
        if file.problem:
            kind = "is a dangling link" if file.dangling else f"is not there: {file.problem}"
            return f"{file.path} {kind}"
        if not file.mode & 0o111:
            return f"{file.path} is not executable"
    return ""


def _would_drain(facts: Facts) -> str:
    found = [(one, _fails(one)) for one in known(facts.hooks).named]
    return "; ".join(f"{one.key}={one.entry}: {why}" for one, why in found if why)


def _flags(facts: Facts) -> set[str]:
    return flags_of(known(facts.slurm).config.get("PrologFlags", ""))


def _run_in_job(facts: Facts) -> str:
    if "runinjob" not in _flags(facts):
        return ""
    named = known(facts.hooks).named
    return (
        ""
        if any(_COPY in str(f.path) for one in named for f in one.files)
        else ("PrologFlags has RunInJob, and no Prolog= runs a copy of nccl-inspector-hook")
    )


def _no_alloc(facts: Facts) -> str:
    flags = _flags(facts)
    if has_alloc(flags):
        return ""
    return f"PrologFlags={','.join(sorted(flags)) or '(none)'}"


def _short_timeout(facts: Facts) -> str:
    config = known(facts.slurm).config
    for key in ("PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout"):
        value = config.get(key, "").split(" ")[0]
        if value.isdecimal() and 0 < int(value) <= HOOK_DEADLINE_S:
            return f"{key}={value}"
    return ""


def _hook_missing(facts: Facts) -> str:
    files = [file for one in known(facts.hooks).ours for file in one.files]
    return "; ".join(f"{file.path}: {file.problem}" for file in files if file.problem)


def _hook_mode(facts: Facts) -> str:
    files = [file for one in known(facts.hooks).ours for file in one.files if not file.problem]
    return "; ".join(
        f"{file.path} has mode {file.permissions:04o}" for file in files if not file.mode & 0o100
    )


def _drained(facts: Facts) -> str:
    slurm = known(facts.slurm)
    if not slurm.node_state:
        raise CannotTellError(f"Slurm has no node {slurm.node_name}")
    by_hook = ("prolog", "epilog", "batch job complete failure")
    reason = slurm.node_reason.lower()
    if "DRAIN" not in slurm.node_state or not any(word in reason for word in by_hook):
        return ""
    return f"{slurm.node_name} is {slurm.node_state}: {slurm.node_reason}"


CHECKS = (
    Check(
        id="slurmd-without-plugin",
        roles=_NODE,
        looks_at="the libraries that the running slurmd has loaded",
        meaning="slurmd was started before the plugin was there. It runs no prolog of ours, so "
        "jobs are not measured.",
        mend="Restart slurmd; running jobs go on. From Slurm 24.11 on `scontrol reconfigure` is "
        "enough.",
        page="install.md#in-which-order",
        judge=_slurmd_without,
    ),
    Check(
        id="hook-below-package",
        roles=_NODE,
        looks_at="Prolog= and Epilog= of `scontrol show config`",
        meaning="A node on which the package is missing or broken drains at its next job.",
        mend="Take the entry out of slurm.conf. The line in plugstack.conf is enough.",
        page="install.md#how-the-hooks-are-called-and-why-so",
        judge=_below_package,
    ),
    Check(
        id="hook-would-drain",
        roles=_NODE,
        looks_at="the files on this node that Prolog= and Epilog= name",
        meaning="slurmd drains the node at its next job, measured or not.",
        mend="Put the file in place and make it executable, or take the entry out of slurm.conf.",
        page="install.md#what-each-way-does-when-something-is-missing",
        judge=_would_drain,
    ),
    Check(
        id="hook-run-in-job",
        roles=_NODE,
        looks_at="PrologFlags= and Prolog=",
        meaning="With RunInJob Slurm does not run the plugin's callbacks: jobs are not measured.",
        mend="Use a copy of nccl-inspector-hook as Prolog and Epilog.",
        page="install.md#without-the-callbacks",
        judge=_run_in_job,
    ),
    Check(
        id="prolog-flags",
        roles=_NODE,
        looks_at="PrologFlags=",
        meaning="Without Alloc the prolog runs at a node's first step, and an `off` for that step "
        "takes the metrics from the whole job.",
        mend="Set PrologFlags=Alloc in slurm.conf.",
        page="install.md#turn-on",
        judge=_no_alloc,
    ),
    Check(
        id="prolog-timeout",
        roles=_NODE,
        looks_at="PrologEpilogTimeout=",
        meaning="Our hooks are stopped after five seconds. If Slurm's own time is not longer, a "
        "hook that hangs drains the node.",
        mend="Set PrologEpilogTimeout to more than 5 seconds, 20 for example.",
        page="install.md#for-the-sites-own-prolog",
        judge=_short_timeout,
    ),
    Check(
        id="hook-missing",
        roles=_NODE,
        looks_at="the scripts in the directory of the setting `hooks`",
        meaning="No directory is made for a job, so it is not measured; or its directory stays.",
        mend="Install the package, or correct the setting `hooks`.",
        page="troubleshoot.md#step-2-did-the-prolog-make-the-directory",
        judge=_hook_missing,
    ),
    Check(
        id="hook-mode",
        roles=_NODE,
        looks_at="the modes of these scripts",
        meaning="The plugin cannot run the script, so jobs are not measured.",
        mend="Make it executable for root: chmod 0755.",
        page="troubleshoot.md#step-2-did-the-prolog-make-the-directory",
        judge=_hook_mode,
    ),
    Check(
        id="node-drained",
        roles=_NODE,
        looks_at="`scontrol show node`",
        meaning="A prolog or an epilog failed here, ours or the site's. No job runs on the node.",
        mend="Find out which script failed, repair it, then `scontrol update NodeName=NODE "
        "State=RESUME`.",
        page="troubleshoot.md#a-node-drained",
        judge=_drained,
    ),
)
