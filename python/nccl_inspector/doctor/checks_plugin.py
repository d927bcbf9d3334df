# SPDX-License-Identifier: Apache-2.0
"""Checks of what Slurm and NCCL load: settings, plugstack.conf, both libraries, the hooks."""

import stat
from pathlib import Path

from nccl_inspector.doctor.check import Check, Role
from nccl_inspector.doctor.elf import MACHINES, Elf
from nccl_inspector.doctor.facts import (
    CannotTell,
    CannotTellError,
    Facts,
    Library,
    Script,
    StackLine,
    known,
)
from nccl_inspector.doctor.files import others_may_change

HOOK_DEADLINE_S = 5
_LOADING = frozenset({Role.NODE, Role.SUBMIT})
_NODE = frozenset({Role.NODE})
_CALLBACKS = ("slurm_spank_init", "slurm_spank_user_init", "slurm_spank_job_prolog")
_PACKAGE = "/nccl-inspector/"
_COPY = "nccl-inspector-hook"


def _settings_refused(facts: Facts) -> str:
    return facts.settings.refused


def _our_line(facts: Facts) -> StackLine | None:
    lines = known(facts.plugstack).lines
    return lines[0] if lines else None


def _no_line(facts: Facts) -> str:
    stack = known(facts.plugstack)
    if stack.lines:
        return ""
    return f"no line of {', '.join(map(str, stack.files))} names spank_nccl_inspector.so"


def _required(facts: Facts) -> str:
    return "; ".join(
        f"{line.file} says `{line.word}` before {line.path}"
        for line in known(facts.plugstack).lines
        if line.word != "optional"
    )


def _twice(facts: Facts) -> str:
    lines = known(facts.plugstack).lines
    places = ", ".join(str(line.file) for line in lines)
    return f"{len(lines)} lines name it, in {places}" if len(lines) > 1 else ""


def _words_refused(facts: Facts) -> str:
    line = _our_line(facts)
    return f"{line.file}: {'; '.join(line.refused)}" if line and line.refused else ""


def _missing(facts: Facts) -> str:
    library = known(facts.plugstack).library
    if library is None or not library.file.problem:
        return ""
    return f"{library.file.path}: {library.file.problem}"


def _broken_library(library: Library, wanted: tuple[str, ...]) -> str:
    path = library.file.path
    if library.problem:
        return f"{path}: {library.problem}"
    if library.elf is None:
        return ""
    if library.elf.cut:
        return f"{path} is cut short: it ends before its last segment"
    missing = [name for name in wanted if name not in library.elf.exports]
    return f"{path} does not export {', '.join(missing)}" if missing else ""


def _spank_broken(facts: Facts) -> str:
    library = known(facts.plugstack).library
    if library is None or library.file.problem:
        return ""
    return _broken_library(library, _CALLBACKS)


def _release(number: int) -> tuple[int, int]:
    """Return the release in a library's `plugin_version`: one byte each for major and minor."""
    return number >> 16, number >> 8 & 0xFF


def _words(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]:02d}"


def _other_slurm(facts: Facts) -> str:
    library = known(facts.plugstack).library
    if library is None or library.elf is None:
        return ""
    number = library.elf.numbers.get("plugin_version")
    if number is None:
        return ""
    slurm, built = known(facts.slurm), _release(number)
    for name, release in (("slurmd", slurm.slurmd_release), ("Slurm", slurm.command_release)):
        if release and release != built:
            return (
                f"{library.file.path} was built for Slurm {_words(built)}, "
                f"and {name} here is {_words(release)}"
            )
    return ""


def _may_be_changed(facts: Facts) -> str:
    libraries = [known(facts.plugstack).library]
    if not isinstance(facts.profiler, CannotTell):
        libraries.append(facts.profiler)
    files = [one.file for one in libraries if one and not one.file.problem]
    if not isinstance(facts.hooks, CannotTell):
        files += [file for one in facts.hooks.ours for file in one.files if not file.problem]
    return "; ".join(filter(None, map(others_may_change, files)))


def _is_name(path: Path) -> bool:
    return "/" not in str(path)


def _profiler_missing(facts: Facts) -> str:
    file = known(facts.profiler).file
    if _is_name(file.path):
        return ""
    if file.problem:
        return f"{file.path}: {file.problem}"
    if not file.mode & stat.S_IROTH:
        return f"users may not read {file.path}: its mode is {file.permissions:04o}"
    return ""


def _profiler_broken(facts: Facts) -> str:
    library = known(facts.profiler)
    if library.file.problem or _is_name(library.file.path):
        return ""
    return _broken_library(library, ()) or _other_machine(library.elf, facts)


def _other_machine(elf: Elf | None, facts: Facts) -> str:
    spank = None if isinstance(facts.plugstack, CannotTell) else facts.plugstack.library
    if elf is None:
        return ""
    if not any(name.startswith("ncclProfiler") for name in elf.exports):
        return f"{known(facts.profiler).file.path} is no profiler plugin of NCCL"
    if spank is None or spank.elf is None or spank.elf.machine == elf.machine:
        return ""
    names = [MACHINES.get(one, f"machine {one}") for one in (elf.machine, spank.elf.machine)]
    return f"the profiler is for {names[0]}, the SPANK plugin for {names[1]}"


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
    text = known(facts.slurm).config.get("PrologFlags", "")
    return {word.strip().lower() for word in text.split(",") if word.strip()}


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
    if flags & {"alloc", "contain", "runinjob", "nohold", "x11"}:  # each of them implies Alloc
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
        id="settings-refused",
        roles=frozenset(Role),
        looks_at="nccl-inspector.conf",
        meaning="A line of the file is not valid. Jobs are not measured on this host, and the "
        "services do not start.",
        mend="Correct the line that the message names.",
        page="settings.md",
        judge=_settings_refused,
    ),
    Check(
        id="plugstack-line",
        roles=_LOADING,
        looks_at="plugstack.conf and the files that it includes",
        meaning="Slurm does not load the plugin here: a submit host does not know the option "
        "--nccl-inspector, and a node measures nothing.",
        mend="Add the line `optional /usr/lib/nccl-inspector/spank_nccl_inspector.so`, then "
        "restart slurmd on nodes (Slurm 24.11 and later: scontrol reconfigure).",
        page="install.md#turn-on",
        judge=_no_line,
    ),
    Check(
        id="plugstack-required",
        roles=_LOADING,
        looks_at="the word before the library in plugstack.conf",
        meaning="With `required` a missing library refuses jobs and drains nodes.",
        mend="Write `optional`.",
        page="install.md#turn-on",
        judge=_required,
    ),
    Check(
        id="plugstack-twice",
        roles=_LOADING,
        looks_at="all lines of plugstack.conf that name the plugin",
        meaning="Slurm loads the plugin once for each line, and the later line's words may win.",
        mend="Keep one line.",
        page="install.md#turn-on",
        judge=_twice,
    ),
    Check(
        id="plugstack-words",
        roles=_LOADING,
        looks_at="the words behind the library in plugstack.conf, and the file that conf= names",
        meaning="A word or a line that is not valid turns measuring off.",
        mend="Correct the word, or the file that conf= names.",
        page="settings.md",
        judge=_words_refused,
    ),
    Check(
        id="spank-missing",
        roles=_LOADING,
        looks_at="the library that plugstack.conf names",
        meaning="Slurm skips the line: nothing is measured here.",
        mend="Install the package on this host, or correct the path.",
        page="install.md#put-the-files-in-place",
        judge=_missing,
    ),
    Check(
        id="spank-broken",
        roles=_LOADING,
        looks_at="the file of that library, which is read and not loaded",
        meaning="A library that was cut short kills every program that loads it, and drains the "
        "node. Another file than ours is not loaded.",
        mend="Install the package anew. Never copy over the library in place.",
        page="troubleshoot.md#a-node-drained",
        judge=_spank_broken,
    ),
    Check(
        id="spank-other-slurm",
        roles=_LOADING,
        looks_at="the Slurm release in the library, `slurmd -V` and `scontrol --version`",
        meaning="Slurm does not load a plugin of another release: nothing is measured here.",
        mend="Install the package that was built for this release of Slurm.",
        page="install.md#put-the-files-in-place",
        judge=_other_slurm,
    ),
    Check(
        id="files-writable",
        roles=_LOADING,
        looks_at="owner and mode of both libraries, of the hooks, and of the directories above",
        meaning="Root and all jobs run these files. Whoever may change them is root.",
        mend="Give them to root, and take the write permission from all others.",
        page="security.md",
        judge=_may_be_changed,
    ),
    Check(
        id="profiler-missing",
        roles=_NODE,
        looks_at="the file of the setting `profiler`",
        meaning="NCCL finds no profiler: jobs run and are not measured.",
        mend="Install the package on this node, or correct the setting `profiler`.",
        page="troubleshoot.md#step-3-did-nccl-call-the-plugin",
        judge=_profiler_missing,
    ),
    Check(
        id="profiler-broken",
        roles=_NODE,
        looks_at="the file of the setting `profiler`, which is read and not loaded",
        meaning="NCCL does not load it. A library that was cut short kills the processes that do.",
        mend="Install the package of this machine's architecture anew.",
        page="troubleshoot.md#step-3-did-nccl-call-the-plugin",
        judge=_profiler_broken,
    ),
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
