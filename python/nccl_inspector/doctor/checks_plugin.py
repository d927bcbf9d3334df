# SPDX-License-Identifier: Apache-2.0
"""Checks of what Slurm and NCCL load: settings, plugstack.conf, both libraries."""

import stat
from pathlib import Path

from nccl_inspector.doctor.check import Check, Role
from nccl_inspector.doctor.elf import MACHINES, Elf
from nccl_inspector.doctor.facts import (
    CannotTell,
    Facts,
    Library,
    StackLine,
    known,
)
from nccl_inspector.doctor.files import others_may_change

_LOADING = frozenset({Role.NODE, Role.SUBMIT})
_NODE = frozenset({Role.NODE})
_CALLBACKS = ("slurm_spank_init", "slurm_spank_user_init", "slurm_spank_job_prolog")


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


def _setup_pending(facts: Facts) -> str:
    setup = known(facts.setup)
    if not setup.has_site_file:
        return ""  # set up by hand, perhaps in another way than setup's
    return "; ".join(
        f"setup {role} has not done all that the site file says: {', '.join(texts)}"
        for role, texts in setup.todo.items()
    )


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
        id="setup-pending",
        roles=frozenset({Role.NODE, Role.CONTROLLER}),
        looks_at="the site file, and what `nccl-inspector setup` would do here",
        meaning="This host is not as the site file says.",
        mend="nccl-inspector setup node --apply on a node, setup controller --apply on the "
        "controller.",
        page="install.md#let-setup-do-the-rest",
        judge=_setup_pending,
        by_setup=True,
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
        by_setup=True,
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
        page="install.md#make-the-packages",
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
        page="install.md#make-the-packages",
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
)
